"""What the simulator gives back: all that happened in a step, and on every link.

Letters: ``p`` stages, ``d`` replicas of each, ``E`` links. Where actors (stages of
replicas), channels or links are alike, what one of them did is recorded, and how many
it stands for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray
from topologies.short_repr import short_repr


class Spans(NamedTuple):
    """Work on compute streams, in order of start: read-only arrays of one length."""

    stage: IntArray
    """Stage that works."""
    replica: IntArray
    """Replica that works."""
    kind: IntArray
    """Kind of work, an index into `SPAN_KINDS`."""
    microbatch: IntArray
    """Microbatch worked on, -1 where there is none."""
    chunk: IntArray
    """Chunk worked on, -1 where there is none."""
    start: FloatArray
    """Moment at which the work begins [s]."""
    end: FloatArray
    """Moment at which the work ends [s]."""


SPAN_KINDS = ("forward", "backward", "weight", "optimizer")
"""Names of the kinds of work on a compute stream."""


class Transfers(NamedTuple):
    """Stage-to-stage messages and collectives, in order of start."""

    kind: IntArray
    """Kind of message, an index into `TRANSFER_KINDS`."""
    stage: IntArray
    """Stage that sends, or that a collective belongs to."""
    replica: IntArray
    """Replica that sends, -1 for collectives."""
    microbatch: IntArray
    """Microbatch that a message belongs to, -1 for collectives."""
    chunk: IntArray
    """Chunk that sends, -1 for collectives."""
    posted: FloatArray
    """Moment at which the sender had the message ready [s]."""
    start: FloatArray
    """Moment at which the first byte left (a channel sends one message at a time)
    [s]."""
    end: FloatArray
    """Moment at which the receiver had the message, latency included [s]."""
    num_bytes: FloatArray
    """Bytes between each pair of devices, or of each ring member [byte]."""


TRANSFER_KINDS = (
    "activation",
    "gradient",
    "reduce",
    "gather",
    "tied",
    "tensor",
    "context",
    "expert",
    "layer gather",
    "layer reduce",
    "to device",
    "to host",
    "expert tensor",
)
"""Names of the kinds of messages. The last eight are sent inside of passes: by tensor-,
context- and expert-parallel groups, by ZeRO-2 and 3 for each layer, between devices and
their hosts, and by the ranks that share each expert where those are no tensor-parallel
groups."""


MOST_SIMPY_EVENTS = 3_000_000
"""Events up to which SimPy confirms a replay, however busy the machine is: about a
minute at 10 to 20 us each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory of one device of a stage over the step (replicas are alike in bytes)."""

    times: tuple[float, ...]
    """Moments of change, rising [s]."""

    total: tuple[float, ...]
    """Memory held from each moment of `times` on [byte]."""

    peak: float
    """Largest value of `total` [byte]."""

    peak_time: float
    """First moment at which `peak` is reached [s]."""

    peak_parts: Mapping[str, float]
    """What the peak is made of [byte]: the static parts, ``"activations"``,
    ``"working"``."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkUse:
    """Traffic on every link of the network."""

    num_bytes: FloatArray
    """Bytes that each link carried in the step, shape ``(E,)`` [byte]."""

    bin_edges: FloatArray
    """Edges of the time bins, shape ``(K + 1,)`` [s]."""

    rates: FloatArray
    """Mean load of the links in `link_ids` per bin, shape ``(H, K)`` [byte/s]."""

    link_ids: IntArray
    """The links that `rates` describes, rising: of links of one level and bandwidth
    that carried the same at all times the first, shape ``(H,)``."""

    row: IntArray
    """Row of `rates` that holds for each link, -1 for links that carried nothing,
    shape ``(E,)``."""

    __repr__ = short_repr

    @property
    def num_alike(self) -> IntArray:
        """Links that each row of `rates` stands for, shape ``(H,)``."""
        used = self.row[self.row >= 0]
        return np.bincount(used, minlength=self.link_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Everything that happened in one simulated training step."""

    schedule: str
    """Name of the pipeline's schedule, of `planner.step.schedules.SCHEDULES`."""

    iteration_time: float
    """Time until the last stage has finished its last duty [s]."""

    pipeline_time: float
    """Time until the last backward pass has ended [s]."""

    spans: Spans
    """Compute: of each class of alike actors the first one's, in order of stages."""

    span_multiplicity: IntArray
    """Actors that each row of `spans` stands for, itself included."""

    transfers: Transfers
    """Communication: of each class of alike channels the first one's."""

    transfer_multiplicity: IntArray
    """Channels that each row of `transfers` stands for, itself included."""

    representative: IntArray
    """Replica whose records hold for each actor: the first one of its stage that is
    alike, the actor's own where all are recorded. Messages between stages have the
    replica of their sender's representative. Shape ``(p, d)``."""

    memory: tuple[MemoryTimeline, ...]
    """Memory of a device of each stage, in the replica with the largest peak, the first
    one of equals; empty if it was not asked for."""

    links: LinkUse
    """Traffic on every link of the network."""

    engine: str
    """Engine that made the records: ``"simpy"`` or ``"compiled"``."""
    host_time: FloatArray | None = None
    """Part of the passes in which devices wait for their hosts, as
    `nestsim.simulator.work.PipelineWork` has it [s]."""

    num_events: int
    """Events that the engine processed."""

    num_skipped: int
    """Passes that were not simulated, because whole periods repeat exactly."""

    notes: tuple[str, ...]
    """What was not simulated event by event, one sentence each."""

    __repr__ = short_repr

    @property
    def num_actors(self) -> int:
        """Stages of replicas."""
        return self.representative.size

    @property
    def num_classes(self) -> int:
        """Actors that stand for themselves, and for all others."""
        return int(
            (self.representative == np.arange(self.representative.shape[1])).sum()
        )
