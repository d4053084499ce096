"""What bounds of the replayed time are given, and what the stages of a plan hold.

Letters as in `planner.kernels.replay_bound`.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels import tables
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
from topologies.compiling import subkernel


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
    """Row of all of these of each stage, shape ``(p,)``."""

    alone_forward: FloatMatrix
    """`forward` with no other pass beside them."""

    alone_backward: FloatCube
    """`backward` with no other pass beside them."""


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

    frozen: FloatVector
    """Weights that are not trained [byte]."""

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

    inside: FloatCube
    """Shares of dense gradients that sharding groups reduce, by option but the first,
    shape ``(rows, options, p)``."""

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

    Of 1F1B, plain or interleaved, only the first five say anything.
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

    alone: IntCube
    """Forward passes of each chunk before a stage's first pair of passes (0), and
    backward passes behind its last one (1), shape ``(p, 2, v)``; 0 where passes take
    the same beside each other."""

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


_SAFE = 1.0 - 1e-12


@subkernel
def behind_repeated(family: PlanFamily, begin: int, end: int, count: int) -> int:
    """Return the first layer behind some blocks of a chunk, or its end."""
    held = 0
    for layer in range(begin, end):
        if family.layers.is_block[layer] > 0.0:
            if held == count:
                return layer
            held += 1
    return end


@subkernel
def _saved_by_rounds(
    family: PlanFamily, plan: PlanChoice, stage: int, most: int
) -> float:
    """Return what passes of several chunks keep at most [byte].

    Any mixture of chunks may be in flight: each block counts by its largest round.
    """
    v, number = family.pipeline.v, family.order.number
    is_block, saved = family.layers.is_block, family.layers.saved
    mode = plan.mode
    each, leads, trails = 0.0, 0.0, 0.0
    for j in range(most):
        round_ = 0.0
        for c in range(v):
            k = number[stage, c]
            begin, end = plan.bounds[k], plan.bounds[k + 1]
            place = 0
            for layer in range(begin, end):
                if is_block[layer] > 0.0:
                    if place == j:
                        row = mode if j < plan.num_blocks else 0
                        round_ = max(round_, saved[row, layer])
                        break
                    place += 1
        each += round_
    for c in range(v):
        k = number[stage, c]
        begin, end = plan.bounds[k], plan.bounds[k + 1]
        for layer in range(begin, end):
            if is_block[layer] == 0.0:
                if begin == 0:
                    leads += saved[mode, layer]
                else:
                    trails += saved[mode, layer]
    kept: float = float(family.pipeline.in_flight[stage]) * (each + leads)
    kept += float(family.pipeline.last_in_flight) * trails
    return kept


@subkernel
def _waiting_bytes(
    family: PlanFamily, plan: PlanChoice, stage: int
) -> tuple[float, float]:
    """Return what passes keep at most, of an order that is read list by list [byte].

    Before it, by how much a backward pass leaves more than it found. What a chunk keeps
    for its weight gradients takes the place of what it saved.
    """
    order, layers, v = family.order, family.layers, family.pipeline.v
    first, last = order.waiting_starts[stage], order.waiting_starts[stage + 1]
    most, added = 0.0, 0.0
    for row in range(first, last):
        held = 0.0
        for c in range(v):
            k = order.number[stage, c]
            begin, end = plan.bounds[k], plan.bounds[k + 1]
            behind = behind_repeated(family, begin, end, plan.num_blocks)
            saved, kept = 0.0, 0.0
            for layer in range(begin, end):
                saved += layers.saved[plan.mode if layer < behind else 0, layer]
                kept += order.kept[layer]
            added = max(added, kept - saved)
            held += order.waiting[row, 0, c] * saved + order.waiting[row, 1, c] * kept
        most = max(most, held)
    return added, most


@subkernel
def _stage_memory(family: PlanFamily, plan: PlanChoice, stage: int) -> float:
    """Return the memory of a stage as `planner.step.memory` counts it [byte]."""
    v, layers, number = family.pipeline.v, family.layers, family.order.number
    job, sent, mode = family.job.constants, plan.sent, plan.mode
    in_flight = float(family.pipeline.in_flight[stage])
    dense, expert, largest, working, redone = 0.0, 0.0, 0.0, 0.0, 0.0
    most_saved, frozen = 0.0, 0.0
    row = 0 if mode == tables.STAGE else mode
    most = 0
    for c in range(v):
        k = number[stage, c]
        begin, end = plan.bounds[k], plan.bounds[k + 1]
        blocks = 0
        behind = behind_repeated(family, begin, end, plan.num_blocks)
        ends = 0.0
        for layer in range(begin, end):
            if layers.is_block[layer] == 0.0 and not family.order.is_listed:
                ends += layers.saved[0, layer]
        for layer in range(begin, end):
            kept_row = row if layer < behind else 0
            if layers.is_block[layer] == 0.0 and not family.order.is_listed:
                ends -= layers.saved[0, layer]
            dense += layers.dense[layer]
            expert += layers.expert[layer]
            frozen += layers.frozen[layer]
            largest = max(largest, layers.largest[layer])
            working = max(working, layers.working[kept_row, layer] - ends)
            redone += layers.saved[0, layer]
            ways = 1.0
            if layers.is_block[layer] > 0.0:
                blocks += 1
            else:
                ways = tables.ON_THE_WAY
            most_saved = max(most_saved, layers.saved[kept_row, layer] / ways)
        most = max(most, blocks)
    if stage == 0 and number[0, v - 1] == plan.bounds.size - 2:
        dense -= family.job.tied_parameters
    experts = job.expert_group
    whole, shard = dense + expert, dense / plan.group + expert / experts
    updated = shard if sent.shards_optimizer > 0.0 else whole
    reduced = shard if sent.shards_gradients > 0.0 else whole
    gathered = shard if sent.shards_weights > 0.0 else whole
    away = plan.offload
    stays: float = 1.0 - away[tables.ACTIVATIONS]
    total: float = frozen
    total += (1.0 - away[tables.OPTIMIZER]) * job.optimizer_bytes * updated
    total += (1.0 - away[tables.GRADIENTS]) * job.gradient_bytes * reduced
    total += (1.0 - away[tables.WEIGHTS]) * job.weight_bytes * gathered
    on_host: float = away[tables.OPTIMIZER] * job.optimizer_bytes * updated
    on_host += away[tables.GRADIENTS] * job.gradient_bytes * reduced
    on_host += away[tables.WEIGHTS] * job.weight_bytes * gathered
    group = min(plan.group, experts) if expert > 0.0 else plan.group
    layer_weights = largest / (group if sent.shards_weights > 0.0 else 1.0)
    layer_gradients = largest / (group if sent.shards_gradients > 0.0 else 1.0)
    staging = away[tables.WEIGHTS] * job.weight_bytes * layer_weights
    staging += away[tables.GRADIENTS] * job.gradient_bytes * layer_gradients
    staging += away[tables.ACTIVATIONS] * most_saved
    total += tables.ON_THE_WAY * staging
    copies = (1.0 - away[tables.OPTIMIZER]) * job.copies_bytes * updated
    at_step_end: float = total + copies
    total += working
    if max(plan.group, experts) > 1.0:
        buffers = sent.whole_gradients * job.gradient_bytes
        buffers += sent.whole_weights * job.gather_bytes
        total += buffers * largest
    kept = 0.0
    if family.order.is_listed:
        most_added, kept = _waiting_bytes(family, plan, stage)
        total += most_added
    elif mode == tables.STAGE:
        entering = 0.0 if plan.bounds[stage] == 0 else family.job.boundary_bytes
        total += in_flight * entering + redone
    elif v == 1:
        once = 0.0
        begin, end = plan.bounds[stage], plan.bounds[stage + 1]
        behind = behind_repeated(family, begin, end, plan.num_blocks)
        for layer in range(begin, end):
            once += layers.saved[mode if layer < behind else 0, layer]
        kept = in_flight * once
    else:
        kept = _saved_by_rounds(family, plan, stage, most)
    total += stays * kept
    on_host += away[tables.ACTIVATIONS] * kept
    peak: float = max(total, at_step_end)
    if on_host * _SAFE > job.host_memory:
        # Whatever the device has, the host has too little.
        peak = np.inf
    return peak


@subkernel
def most_memory(family: PlanFamily, plan: PlanChoice) -> float:
    """Return the memory of the fullest stage, or of one that is too full [byte].

    What is on devices with less than the most counts by as much more.
    """
    most = 0.0
    for i in range(family.pipeline.p):
        most = max(most, _stage_memory(family, plan, i) * family.devices.scarcity[i])
        if most * _SAFE > family.job.constants.memory:
            break
    return most


@subkernel
def overfull_stage(family: PlanFamily, plan: PlanChoice, first: int) -> int:
    """Return a stage that holds more than its devices have, -1 if none does.

    The search begins with some stage: what is too much with fewer repeated blocks is so
    at the same stage most often.
    """
    p = family.pipeline.p
    for further in range(p):
        i = (first + further) % p
        held = _stage_memory(family, plan, i) * family.devices.scarcity[i]
        if held * _SAFE > family.job.constants.memory:
            return i
    return -1
