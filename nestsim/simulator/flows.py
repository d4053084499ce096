"""The flows of one training step, and the ports under which programs know them.

Every message between two virtual stages of a replica and every phase of a collective
is one static flow, used as often as it is sent. Its pairs of devices (the ranks of a
replica with those of the next stage, or neighbours in rings) run at one rate, the
slowest pair's; its weight on a link is the number of pairs there. With several chunks
per stage several flows join the same two stages, and share the links between them.
Collectives of one kind, size and group are one flow, however many layers or buckets use
it. Flows are collected family by family: flows of one kind, whose properties are one
value for all of them or an array.

A channel carries the messages of one flow. All replicas of a stage run one program,
each with its own table of channels; what a program names are the *ports* of the stage.
They are those of each chunk in turn, in and out for either direction; then those of the
collectives of the step's end, of collectives inside of passes, and of buckets.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``t`` ranks of a replica,
``E`` links, ``F`` flows, ``P`` phases, ``S`` ports. Virtual stage ``k`` is chunk
``k div p`` of stage ``k mod p``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.folding import (
    DevicePairs,
    Seams,
    binding,
    joined,
    largest,
    seams_of,
)
from nestsim.simulator.system import NONE, TRANSFER_KINDS, Incidence
from nestsim.simulator.work import (
    Bucket,
    Ends,
    LockstepEdgePhase,
    LockstepRingPhase,
    LockstepTraffic,
    Phase,
    PipelineWork,
)
from planner.step.instructions import VirtualStages
from planner.step.schedules import find_schedule
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.network import Links, Network

NOTHING = -1
"""No replica, no chunk or no flow."""

SIGNAL = -1
"""Kind of a flow that is no transfer: an actor tells its communication stream that a
bucket is full. It has no bytes and takes no time."""

Numbers = tuple[int, ...]
"""Numbers of flows, or of ports."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowFamily:
    """Flows of one kind, one value of a property for all of them or one for each."""

    kind: int
    """Kind of message, an index into `TRANSFER_KINDS`, or `SIGNAL`."""

    stage: int | IntArray
    """Stage that sends, or that a collective belongs to."""

    num_sources: int | IntArray
    """Actors that must be ready before a transfer starts."""

    num_bytes: float | FloatArray
    """Bytes between each pair of devices in a transfer [byte]."""

    num_steps: int
    """Times that the latency of the slowest pair is paid."""

    pairs: DevicePairs
    """Pairs of devices of all flows of the family."""

    chunk: int | IntArray = NOTHING
    """Chunk that sends, `NOTHING` for collectives."""

    replica: int | IntArray = NOTHING
    """Replica that sends, `NOTHING` for collectives of several replicas."""


@dataclass(slots=True)
class Columns:
    """Families in the order in which they were added."""

    families: list[FlowFamily] = field(default_factory=list)
    """Families added so far."""

    num_flows: int = 0
    """Flows of these families."""

    def add(self, family: FlowFamily) -> int:
        """Add a family; return the number of its first flow."""
        first = self.num_flows
        self.families.append(family)
        self.num_flows += family.pairs.counts.size
        return first

    def column(self, name: str, dtype: type[Any] = np.int64) -> NDArray[Any]:
        """Return one property of all flows."""
        column = np.zeros(self.num_flows, dtype=dtype)
        first = 0
        for family in self.families:
            last = first + family.pairs.counts.size
            column[first:last] = getattr(family, name)
            first = last
        return column

    def pairs(self) -> DevicePairs:
        """Return the pairs of devices of all flows."""
        return joined([family.pairs for family in self.families])

    def table(self, numbers: "FlowNumbers") -> "FlowTable":
        """Return what is known of all flows before their routes are."""
        return FlowTable(
            kind=self.column("kind"),
            stage=self.column("stage"),
            chunk=self.column("chunk"),
            replica=self.column("replica"),
            num_sources=self.column("num_sources"),
            num_bytes=self.column("num_bytes", np.float64),
            **{name.name: getattr(numbers, name.name) for name in fields(numbers)},
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowNumbers:
    """Where to find each flow of a step."""

    activation: IntArray
    """Flow of the activations from virtual stage ``k`` to ``k + 1``, shape
    ``(v p - 1, d)``."""

    gradient: IntArray
    """Flow of the gradients from virtual stage ``k + 1`` to ``k``, shape
    ``(v p - 1, d)``."""

    reduce: tuple[Numbers, ...]
    """Flows of the phases of each stage's gradient collective."""

    gather: tuple[Numbers, ...]
    """Flows of the phases of each stage's parameter gather."""

    tied: Numbers
    """Flows of the tied embedding's phases."""

    in_passes: tuple[tuple[IntArray, ...], ...]
    """Flow of each phase for each replica, by stage and `LockstepTraffic`, shape
    ``(P, d)``."""

    gather_buckets: tuple[tuple[Numbers, ...], ...]
    """Flows of the phases of each gather bucket, by stage."""

    reduce_buckets: tuple[tuple[Numbers, ...], ...]
    """Flows of the phases of each reduce bucket, by stage."""

    signal: IntArray
    """Flow of the signals of each actor to its communication stream, `NOTHING` where
    there is none, shape ``(p, d)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowTable(FlowNumbers):
    """All flows, structure of arrays of shape ``(F,)``, and where to find each."""

    kind: IntArray
    """Kind of message, an index into `TRANSFER_KINDS`, or `SIGNAL`."""

    stage: IntArray
    """Stage that sends, or that a collective belongs to."""

    chunk: IntArray
    """Chunk that sends, `NOTHING` for collectives."""

    replica: IntArray
    """Replica that sends, `NOTHING` for collectives of several replicas."""

    num_sources: IntArray
    """Actors that must be ready before a transfer starts."""

    num_bytes: FloatArray
    """Bytes between each pair of devices in a transfer [byte]."""

    def __len__(self) -> int:
        return int(self.kind.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows(FlowTable):
    """All flows, and the links that they cross."""

    latency: FloatArray
    """Time from the last byte's leaving to its arrival [s]."""

    incidence: Incidence
    """Links of the network that each flow crosses."""

    seams: Seams
    """Where routes begin and end, and which links follow each other on them."""

    def used(self, num_links: int) -> BoolArray:
        """Return which of ``num_links`` links any flow crosses."""
        used = np.zeros(num_links, dtype=np.bool_)
        used[self.incidence.links] = True
        return used

    def weights(self, num_links: int) -> FloatArray:
        """Return the weight of all flows on each of ``num_links`` links."""
        incidence = self.incidence
        weights = np.bincount(incidence.links, incidence.weights, num_links)
        return np.asarray(weights, dtype=np.float64)

    def slowest_times(self, links: Links, weights: FloatArray) -> FloatArray:
        """Return how long a transfer takes at most, all flows being active [s].

        A max-min fair level is at least the least fair share on the flow's links.

        Parameters
        ----------
        links
            Of the network.
        weights
            Weight of all flows that there are on each link, as of `weights`.
        """
        slowness = (weights / links.bandwidth)[self.incidence.links]
        return self.latency + self.num_bytes * largest(self.incidence.indptr, slowness)


def binding_links(flows: Sequence[Flows], links: Links) -> IntArray:
    """Return the links that can limit any of the flows, rising.

    What neighbours on routes carry counts, so all flows that there are must be given.
    """
    used = np.logical_or.reduce([flow.used(len(links)) for flow in flows])
    kept = binding([flow.seams for flow in flows], links)
    return np.flatnonzero(used & kept)


def number_flows(work: PipelineWork) -> tuple[Columns, FlowNumbers]:
    """Return the flows of a lowered training step before their routes are known."""
    num_stages, num_replicas, _ = work.devices.shape
    columns = Columns()
    activation, gradient = _boundaries(columns, work)
    reduce = tuple(
        _collective(columns, "reduce", stage, num_replicas, phases)
        for stage, phases in enumerate(work.reduce_phases)
    )
    gather = tuple(
        _collective(columns, "gather", stage, num_replicas, phases)
        for stage, phases in enumerate(work.gather_phases)
    )
    both_ends = num_replicas * min(2, num_stages)
    tied = _collective(columns, "tied", 0, both_ends, work.tied_phases)
    collectives = work.layers.collectives if work.layers else ((),) * num_stages
    in_passes = tuple(
        tuple(_pass_collective(columns, stage, traffic) for traffic in of_stage)
        for stage, of_stage in enumerate(collectives)
    )
    gather_buckets = _buckets(columns, "gather", work.gather_buckets, num_replicas)
    reduce_buckets = _buckets(columns, "reduce", work.reduce_buckets, num_replicas)
    signal = _signals(columns, work)
    return columns, FlowNumbers(
        activation=activation,
        gradient=gradient,
        reduce=reduce,
        gather=gather,
        tied=tied,
        in_passes=in_passes,
        gather_buckets=gather_buckets,
        reduce_buckets=reduce_buckets,
        signal=signal,
    )


def build_flows(network: Network, work: PipelineWork) -> Flows:
    """Return the flows of a lowered training step.

    O(total length of all pairs' routes), vectorised.
    """
    columns, numbers = number_flows(work)
    pairs = columns.pairs()
    routes, table = pairs.routes(network), columns.table(numbers)
    return Flows(
        latency=pairs.latencies(network, routes) * columns.column("num_steps"),
        incidence=pairs.incidence(routes, len(network.links)),
        seams=seams_of(routes, len(network.links)),
        **{name.name: getattr(table, name.name) for name in fields(table)},
    )


def _boundaries(columns: Columns, work: PipelineWork) -> tuple[IntArray, IntArray]:
    """Add the transfers between virtual stages, forward and backward."""
    _, num_replicas, num_ranks = work.devices.shape
    num_boundaries = work.boundary_bytes.size
    # Both sides of a blocking exchange take part in it.
    meets = find_schedule(work.schedule).meets_receivers
    num_sources = 2 if work.blocking_transfers and meets else 1
    virtual = work.virtual_stages()
    stage, chunk = virtual.stage.tolist(), virtual.chunk.tolist()
    counts = np.full(num_replicas, num_ranks)
    replica = np.arange(num_replicas)
    ends = [devices.ravel() for devices in work.devices]
    numbers = np.zeros((2, num_boundaries, num_replicas), np.int64)
    for back, kind in enumerate(("activation", "gradient")):
        for boundary, num_bytes in enumerate(work.boundary_bytes.tolist()):
            sender, receiver = boundary + back, boundary + 1 - back
            first = columns.add(
                FlowFamily(
                    kind=TRANSFER_KINDS.index(kind),
                    stage=stage[sender],
                    chunk=chunk[sender],
                    replica=replica,
                    num_sources=num_sources,
                    num_bytes=num_bytes,
                    num_steps=1,
                    pairs=DevicePairs(
                        counts, ends[stage[sender]], ends[stage[receiver]]
                    ),
                )
            )
            numbers[back, boundary] = first + replica
    return numbers[0], numbers[1]


def _collective(
    columns: Columns,
    kind: str,
    stage: int,
    num_sources: int,
    phases: tuple[Phase, ...],
) -> Numbers:
    """Add collectives of all replicas of a stage."""
    return tuple(
        _phase(columns, kind, stage, num_sources, phase, _all_at_once(phase.ends()))
        for phase in phases
    )


def _all_at_once(ends: Ends) -> DevicePairs:
    """Return pairs of devices as those of one flow."""
    return DevicePairs(np.array([ends[0].size]), *ends)


def _phase(
    columns: Columns,
    kind: str,
    stage: int,
    num_sources: int,
    phase: Phase,
    pairs: DevicePairs,
) -> int:
    """Add a phase of a collective; return its flow."""
    return columns.add(
        FlowFamily(
            kind=TRANSFER_KINDS.index(kind),
            stage=stage,
            num_sources=num_sources,
            num_bytes=phase.bytes_per_member,
            num_steps=phase.num_steps,
            pairs=pairs,
        )
    )


def _pass_collective(
    columns: Columns, stage: int, traffic: LockstepTraffic
) -> IntArray:
    """Add what passes of a stage send; return each replica's flow of each phase."""
    members = np.bincount(traffic.lockstep)
    alone = np.flatnonzero(members[traffic.lockstep] == 1)
    replica = np.full(members.size, NOTHING)
    replica[traffic.lockstep[alone]] = alone
    firsts = []
    for phase in traffic.phases:
        counts = np.bincount(phase.lockstep_of_message(), minlength=members.size)
        firsts.append(
            columns.add(
                FlowFamily(
                    kind=TRANSFER_KINDS.index(traffic.kind),
                    stage=stage,
                    replica=replica,
                    num_sources=members,
                    num_bytes=phase.bytes_per_member,
                    num_steps=phase.num_steps,
                    pairs=_lockstep_pairs(phase, counts),
                )
            )
        )
    return np.array(firsts)[:, None] + traffic.lockstep


def _lockstep_pairs(
    phase: LockstepRingPhase | LockstepEdgePhase, counts: IntArray
) -> DevicePairs:
    """Return the pairs of devices of a flow for each lockstep group."""
    weights = phase.weights
    return DevicePairs(
        counts, *phase.ends(), None if weights is None else weights.ravel()
    )


def _buckets(
    columns: Columns,
    kind: str,
    buckets: tuple[tuple[Bucket, ...], ...],
    num_replicas: int,
) -> tuple[tuple[Numbers, ...], ...]:
    """Add the phases of all buckets of each stage; equal ones share a flow."""
    by_stage = []
    # Buckets share arrays and phases: by identity, which of them were seen before.
    seen: dict[tuple[int, ...], tuple[DevicePairs, tuple[bytes, ...]]] = {}
    for stage, of_stage in enumerate(buckets):
        known: dict[tuple[tuple[bytes, ...], float, int], int] = {}
        alike: dict[int, Numbers] = {}
        numbers = []
        for bucket in of_stage:
            if id(bucket.phases) in alike:
                numbers.append(alike[id(bucket.phases)])
                continue
            flows = []
            for phase in bucket.phases:
                *members, num_bytes, num_steps = phase
                same = tuple(map(id, members))
                if same not in seen:
                    ends = phase.ends()
                    seen[same] = _all_at_once(ends), tuple(e.tobytes() for e in ends)
                pairs, devices = seen[same]
                key = devices, num_bytes, num_steps
                if key not in known:
                    known[key] = _phase(
                        columns, kind, stage, num_replicas, phase, pairs
                    )
                flows.append(known[key])
            alike[id(bucket.phases)] = tuple(flows)
            numbers.append(tuple(flows))
        by_stage.append(tuple(numbers))
    return tuple(by_stage)


def _signals(columns: Columns, work: PipelineWork) -> IntArray:
    """Add a flow to the stream of every actor that fills gradient buckets."""
    num_stages, num_replicas, _ = work.devices.shape
    signal = np.full((num_stages, num_replicas), NOTHING)
    for stage, buckets in enumerate(work.reduce_buckets):
        if buckets:
            none = np.zeros(0, dtype=np.int64)
            first = columns.add(
                FlowFamily(
                    kind=SIGNAL,
                    stage=stage,
                    replica=np.arange(num_replicas),
                    num_sources=1,
                    num_bytes=0.0,
                    num_steps=0,
                    pairs=DevicePairs(
                        np.zeros(num_replicas, dtype=np.int64), none, none
                    ),
                )
            )
            signal[stage] = first + np.arange(num_replicas)
    return signal


ACTIVATION_IN, ACTIVATION_OUT, GRADIENT_IN, GRADIENT_OUT = range(4)
"""Ports of a chunk."""

PORTS_PER_CHUNK = 4
"""Number of ports of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagePorts:
    """The ports of one stage; buckets and phases are in their order."""

    channels: IntArray
    """Channel in each port for each replica, or `NONE`, shape ``(d, S)``."""

    before: Numbers
    """Ports of the phases before the optimizer step: gradients, then the tied
    embedding."""

    after: Numbers
    """Ports of the phases of the parameter gather after the optimizer step."""

    in_passes: tuple[Numbers, ...]
    """Ports of the phases of each `LockstepTraffic`."""

    gather_buckets: tuple[Numbers, ...]
    """Ports of the phases of each gather bucket."""

    reduce_buckets: tuple[Numbers, ...]
    """Ports of the phases of each reduce bucket."""

    signal: int
    """Port to the communication stream, or `NONE`."""

    def bucket_ends(self) -> list[tuple[int, int]]:
        """Return the port of each bucket's last message, and which one there it is.

        In the order in which the communication stream sends them: parameters, then
        gradients. Messages are counted as it posts them, since a port serves several
        buckets, and several phases of one: the reduce-scatter and the all-gather inside
        of nodes that belong to one all-reduce.
        """
        posted: dict[int, int] = {}
        ends = []
        for phases in (*self.gather_buckets, *self.reduce_buckets):
            for port in phases:
                posted[port] = posted.get(port, 0) + 1
            ends.append((phases[-1], posted[phases[-1]]))
        return ends


def stage_ports(flows: FlowNumbers, stage: int, virtual: VirtualStages) -> StagePorts:
    """Lay out the ports of one stage, which holds some of the virtual stages."""
    columns = [np.array(_boundary_columns(flows, virtual.number[stage]), np.int64)]
    num_replicas, num_ports = flows.signal.shape[1], len(columns[0])

    def give(channels: Sequence[IntArray] | IntArray) -> Numbers:
        nonlocal num_ports
        first = num_ports
        num_ports += len(channels)
        columns.append(np.reshape(channels, (len(channels), num_replicas)))
        return tuple(range(first, num_ports))

    def whole_stage(numbers: Numbers) -> IntArray:
        return np.tile(np.array(numbers, np.int64)[:, None], (1, num_replicas))

    num_stages = len(flows.reduce)
    tied = flows.tied if stage in {0, num_stages - 1} else ()
    before = give(whole_stage((*flows.reduce[stage], *tied)))
    after = give(whole_stage(flows.gather[stage]))
    in_passes = tuple(give(list(phases)) for phases in flows.in_passes[stage])
    buckets = flows.gather_buckets[stage], flows.reduce_buckets[stage]
    distinct = tuple(sorted({k for some in buckets for bucket in some for k in bucket}))
    port_of = dict(zip(distinct, give(whole_stage(distinct)), strict=True))
    gathers, reduces = (
        tuple(tuple(port_of[k] for k in bucket) for bucket in some) for some in buckets
    )
    (signal,) = give([flows.signal[stage]]) if reduces else (NONE,)
    return StagePorts(
        channels=np.ascontiguousarray(np.concatenate(columns).T, np.int64),
        before=before,
        after=after,
        in_passes=in_passes,
        gather_buckets=gathers,
        reduce_buckets=reduces,
        signal=signal,
    )


def _boundary_columns(flows: FlowNumbers, held: IntArray) -> list[IntArray]:
    """Return the channels of virtual stages, in and out for either direction."""
    nobody = np.full(flows.signal.shape[1], NONE)
    last = len(flows.activation)
    columns = []
    for k in held.tolist():
        columns += [
            flows.activation[k - 1] if k > 0 else nobody,
            flows.activation[k] if k < last else nobody,
            flows.gradient[k] if k < last else nobody,
            flows.gradient[k - 1] if k > 0 else nobody,
        ]
    return columns
