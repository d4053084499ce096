"""What bounds of the replayed time are given: pipeline, layers, choices, exits.

Letters as in `planner.kernels.replay_bound`, which reads them.
"""

from typing import NamedTuple

from planner.kernels.tables import Choices, JobConstants, ZeroTerms
from topologies.arrays import (
    FloatCube,
    FloatHypercube,
    FloatMatrix,
    FloatVector,
    IntCube,
    IntMatrix,
    IntVector,
)


class Pipeline(NamedTuple):
    """The schedule of a plan."""

    p: int
    """Stages."""

    v: int
    """Chunks of each stage."""

    m: int
    """Microbatches."""

    in_flight: IntVector
    """Passes whose activations a stage keeps, shape ``(p,)``."""

    first_passes: IntVector
    """Forward passes before a stage's first backward pass, shape ``(p,)``."""

    last_in_flight: int
    """Passes of the last virtual stage whose activations are kept, where chunks are
    several."""

    round_passes: int
    """Microbatches that go through a chunk before the next one's turn, so many backward
    passes of each chunk but the last follow the last chunk's last one."""


class Variants(NamedTuple):
    """Plans that differ in nothing else: all layouts with all choices."""

    layouts: IntMatrix
    """First layer of each virtual stage, and their number, ``(Y, C + 1)``."""

    choices: Choices
    """Recompute mode, ZeRO stage and sharding option, shape ``(K,)`` each."""


class PassDurations(NamedTuple):
    """What passes take, of the layers before each."""

    forward: FloatMatrix
    """Forward passes, shape ``(sig, L + 1)`` [s]."""

    backward: FloatCube
    """Backward passes by recompute mode, shape ``(sig, NUM_MODES, L + 1)`` [s]."""

    sharded: FloatHypercube
    """What gathers (0) and reductions (1) of ZeRO-2 and 3 in a pass add to it, by
    sharding option, shape ``(sig, options, 2, L + 1)`` [s]."""

    hidden: FloatHypercube
    """Those that go on beside a pass, which lasts at least as long, same shape [s]."""

    signature: IntVector
    """Row of the four above of each stage, shape ``(p,)``."""


class LayerColumns(NamedTuple):
    """The layers of the chain, shape ``(L,)`` each."""

    dense: FloatVector
    """Parameters outside of experts."""

    expert: FloatVector
    """Parameters of experts."""

    largest: FloatVector
    """Parameters that are gathered together."""

    is_block: FloatVector
    """1 for transformer blocks."""

    saved: FloatMatrix
    """Kept by a pass in flight, by recompute mode, shape ``(NUM_MODES, L)`` [byte]."""

    working: FloatMatrix
    """Alive inside a pass, by recompute mode, shape ``(NUM_MODES, L)`` [byte]."""


class BlockExits(NamedTuple):
    """What leaves blocks of the network."""

    shares: FloatCube
    """Lanes of the boundary after each stage, activations (0) and gradients (1); shares
    of the dense (2) and expert (3) gradients of each stage, summed over groups of
    ranks, shape ``(rows, 4, p)``."""

    across: FloatCube
    """Shares of what goes across sharding groups, by option, in shards, shape ``(rows,
    options, p)``."""

    inverses: FloatVector
    """To leave each block, all ways out together, shape ``(rows,)`` [s/byte]."""

    is_choice: bool
    """Whether rows are what placements may choose from, instead of blocks of one."""


class SentTerms(NamedTuple):
    """What everything costs that is sent between passes and after them."""

    wires: FloatCube
    """Transfers over the boundary after each stage, activations (0) and gradients (1),
    by replica, shape ``(R, p, 2)``; the last one is the wrap-around [s]."""

    ends: FloatMatrix
    """Rates of the collectives of the step's end, columns as in
    `planner.kernels.tables`, shape ``(p, rates)``."""

    group_sizes: FloatVector
    """Ranks of each sharding option."""

    senders: FloatVector
    """Ranks that shards are sent to one by one, of each sharding option."""

    exits: BlockExits
    """What leaves blocks of the network."""


class JobTerms(NamedTuple):
    """What is the same for all plans of a job with the same degrees."""

    constants: JobConstants
    """What a parameter costs."""

    ledger: FloatMatrix
    """What each ZeRO stage sends and holds, see `planner.kernels.tables`."""

    step_once: float
    """What every stage takes once a step, whatever it holds [s]."""

    shard_time: float
    """For every rank that shards go to one by one [s]."""

    tied_time: float
    """All-reduce of a tied embedding [s]."""

    tied_parameters: float
    """Parameters of a tied embedding on one device."""

    boundary_bytes: float
    """What each lane sends over every boundary, a stage's input [byte]."""

    messages_time: float
    """What the host takes for the messages of each forward or backward pass [s]."""

    reduces_behind: bool
    """Whether gradients are reduced behind backward passes."""

    gathers_ahead: bool
    """Whether weights are gathered behind forward passes."""

    by_layer: bool
    """Whether what ZeRO sends in a pass is that of its layers, not of a mean one."""


class PlanChoice(NamedTuple):
    """One choice of a plan."""

    bounds: IntVector
    """First layer of each virtual stage, and their number, shape ``(C + 1,)``."""

    mode: int
    """Recompute mode."""

    num_blocks: int
    """Blocks of each chunk, from its first one on, that the mode is about."""

    option: int
    """Sharding option."""

    group: float
    """Ranks that share shards."""

    sent: ZeroTerms
    """What the ZeRO stage sends and holds."""

    offload: FloatVector
    """Fractions that the host keeps, columns as in `planner.kernels.tables`."""

    host_step: float
    """What the host adds to the step's end for each updated parameter [s]."""

    host_once: float
    """What the host adds to the step's end beside [s]."""


class PassOrder(NamedTuple):
    """Where virtual stages are, and in what order a stage works on its passes.

    Of 1F1B, plain or interleaved, only the first four say anything.
    """

    number: IntMatrix
    """Virtual stage that is each chunk of each stage, shape ``(p, v)``."""

    stage: IntVector
    """Stage of each virtual stage, shape ``(C,)``."""

    crossings: IntVector
    """Messages of each microbatch over the boundary after each stage, one way; the last
    one is that to the first stage, shape ``(p,)``."""

    is_listed: bool
    """Whether bounds read the lists of the stages; else the order is 1F1B's."""

    weight: FloatMatrix
    """Weight gradients of the layers before each that are passes of their own, by the
    rows of `PassDurations`, shape ``(sig, L + 1)`` [s]."""

    kept: FloatVector
    """Kept by each layer for its weight gradients, shape ``(L,)`` [byte]."""

    waiting: IntCube
    """Activations of each chunk that wait for their backward pass (0) and for their
    weight gradients (1) at some moment, shape ``(n, 2, v)``."""

    waiting_starts: IntVector
    """First row of each stage in `waiting`, and their number, shape ``(p + 1,)``."""

    first_backward: IntVector
    """Virtual stage of each stage's first backward pass, shape ``(p,)``."""

    last_backward: IntVector
    """Virtual stage of each stage's last backward pass, shape ``(p,)``."""

    done: IntMatrix
    """Forward passes before the first backward one, shape ``(p, v)``."""

    after: IntMatrix
    """Weight gradients after the last backward pass, shape ``(p, v)``."""

    behind: IntCube
    """Passes of each kind from the first one on that completes the gradients of some
    chunk, shape ``(p, 3, v)``."""

    crossed: FloatCube
    """Transfers to the next virtual stage (0), and back (1), by replica, shape ``(R,
    C - 1, 2)`` [s]."""


class StageDevices(NamedTuple):
    """The devices of each stage, shape ``(p,)`` each."""

    step_time: FloatVector
    """Optimizer step of one parameter [s]."""

    host_saving: FloatVector
    """What hosts that update parameters save beyond the time of a healthy device of
    the job's accelerator, for each of them (negative on slower devices) [s]."""

    scarcity: FloatVector
    """Factor by which the memory of a job's constants exceeds that of a device of the
    stage; 1 where devices have the same."""


class PlanFamily(NamedTuple):
    """All that does not change from plan to plan."""

    pipeline: Pipeline
    """The schedule."""

    passes: PassDurations
    """What passes take."""

    layers: LayerColumns
    """The layers of the chain."""

    sent: SentTerms
    """What everything costs that is sent."""

    job: JobTerms
    """The job."""

    order: PassOrder
    """The order of the passes."""

    devices: StageDevices
    """The devices of the stages."""
