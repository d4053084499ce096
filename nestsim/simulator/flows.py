"""The flows of one training step: who sends what over which links.

Every message between two virtual stages of a replica and every phase of a collective
is one static flow, used as often as it is sent. Its lanes (tensor-parallel ranks, or
the members of rings) run at one rate, the slowest lane's; its weight on a link is the
number of lanes there. With several chunks per stage several flows join the same two
stages, and share the links between them. Collectives of one kind, size and group are
one flow, however many layers or buckets use it.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``t`` lanes, ``E`` links,
``F`` flows, ``P`` phases. Virtual stage ``k`` is chunk ``k div p`` of stage
``k mod p``.

Slots: the names under which the program of a stage knows its channels.

All replicas of a stage run one program, each with its own table of channels. Slots are
those of each chunk in turn, in and out for either direction; then those of the
collectives of the step's end, of collectives inside of passes, and of buckets.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``S`` slots. Virtual stage
``k`` is chunk ``k div p`` of stage ``k mod p``.

The columns that flows are collected in, family by family.

A family is a number of flows of one kind, whose properties are one value for all of
them or an array.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.folding import Lanes, binding, joined, largest
from nestsim.simulator.outcome import TRANSFER_KINDS
from nestsim.simulator.system import NONE, Incidence
from nestsim.simulator.work import (
    Bucket,
    Phase,
    PipelineWork,
    TeamEdgePhase,
    TeamPhase,
    TeamTraffic,
)
from planner.step.schedules import VirtualStages, find_schedule
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.network import Links, Network

NOTHING = -1
"""No replica, no chunk or no flow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FlowFamily:
    """Flows of one kind; every field is as in `nestsim.simulator.flows.Flows`."""

    kind: int
    stage: int | IntArray
    num_sources: int | IntArray
    num_bytes: float | FloatArray
    num_steps: int
    """How often the latency of the slowest lane is paid."""
    lanes: Lanes
    """Of all flows of the family."""
    chunk: int | IntArray = NOTHING
    replica: int | IntArray = NOTHING


@dataclass(slots=True)
class Columns:
    """Families in the order in which they were added."""

    families: list[FlowFamily] = field(default_factory=list)
    num_flows: int = 0

    def add(self, family: FlowFamily) -> int:
        """Add a family; return the number of its first flow."""
        first = self.num_flows
        self.families.append(family)
        self.num_flows += family.lanes.counts.size
        return first

    def column(self, name: str, dtype: type[Any] = np.int64) -> NDArray[Any]:
        """Return one property of all flows."""
        column = np.zeros(self.num_flows, dtype=dtype)
        first = 0
        for family in self.families:
            last = first + family.lanes.counts.size
            column[first:last] = getattr(family, name)
            first = last
        return column

    def lanes(self) -> Lanes:
        """Return the lanes of all flows."""
        return joined([family.lanes for family in self.families])


SIGNAL = -1
"""Kind of a flow that is no transfer: an actor tells its communication stream that a
bucket is full. It has no bytes and takes no time."""

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """All flows, structure of arrays of shape ``(F,)``, and where to find each."""

    kind: IntArray
    """An index into `TRANSFER_KINDS`, or `SIGNAL`."""

    stage: IntArray
    """The sending stage, or the stage that a collective belongs to."""

    chunk: IntArray
    """The sending chunk; -1 for collectives."""

    replica: IntArray
    """-1 for collectives of several replicas."""

    num_sources: IntArray
    """Actors that must be ready before a transfer starts."""

    num_bytes: FloatArray
    """Per lane and transfer [byte]."""

    latency: FloatArray
    """Added after the last byte [s]."""

    incidence: Incidence
    """Links of the network that each flow crosses."""

    binding: BoolArray
    """Links that can limit a flow when the others are respected, shape ``(E,)``."""

    activation: IntArray
    """Flow of the activations from virtual stage ``k`` to ``k + 1``, shape
    ``(v p - 1, d)``."""

    gradient: IntArray
    """Flow of the gradients from virtual stage ``k + 1`` to ``k``, shape
    ``(v p - 1, d)``."""

    reduce: tuple[Numbers, ...]
    """Per stage: flows of the gradient collective's phases."""

    gather: tuple[Numbers, ...]
    """Per stage: flows of the parameter gather's phases."""

    tied: Numbers
    """Flows of the tied embedding's phases."""

    teams: tuple[tuple[IntArray, ...], ...]
    """Per stage and `TeamTraffic`: each replica's flow of each phase, ``(P, d)``."""

    gather_buckets: tuple[tuple[Numbers, ...], ...]
    """Per stage and bucket: flows of its phases."""

    reduce_buckets: tuple[tuple[Numbers, ...], ...]
    """Per stage and bucket: flows of its phases."""

    signal: IntArray
    """What each actor sends to its stream, shape ``(p, d)``; `NOTHING` where there is
    no stream."""

    def __len__(self) -> int:
        return int(self.kind.shape[0])

    def slowest_times(self, links: Links) -> FloatArray:
        """Return how long a transfer takes at most, all flows being active [s].

        A max-min fair level is at least the least fair share on the flow's links.
        """
        share = np.bincount(
            self.incidence.links, self.incidence.weights, minlength=len(links)
        )
        slowness = (share / links.bandwidth)[self.incidence.links]
        return self.latency + self.num_bytes * largest(self.incidence.indptr, slowness)


def build_flows(network: Network, work: PipelineWork) -> Flows:
    """Return the flows of a placed training step.

    O(total length of all lanes' routes), vectorised.
    """
    num_stages, num_replicas, _ = work.devices.shape
    columns = Columns()
    activation, gradient = _boundaries(columns, work)
    reduce = tuple(
        _tail(columns, "reduce", stage, num_replicas, phases)
        for stage, phases in enumerate(work.reduce_phases)
    )
    gather = tuple(
        _tail(columns, "gather", stage, num_replicas, phases)
        for stage, phases in enumerate(work.gather_phases)
    )
    both_ends = num_replicas * min(2, num_stages)
    tied = _tail(columns, "tied", 0, both_ends, work.tied_phases)
    teams = work.layers.teams if work.layers else ((),) * num_stages
    team_flows = tuple(
        tuple(_team(columns, stage, traffic) for traffic in own)
        for stage, own in enumerate(teams)
    )
    gather_buckets = _buckets(columns, "gather", work.gather_buckets, num_replicas)
    reduce_buckets = _buckets(columns, "reduce", work.reduce_buckets, num_replicas)
    signal = _signals(columns, work)
    lanes = columns.lanes()
    routes = lanes.routes(network)
    return Flows(
        kind=columns.column("kind"),
        stage=columns.column("stage"),
        chunk=columns.column("chunk"),
        replica=columns.column("replica"),
        num_sources=columns.column("num_sources"),
        num_bytes=columns.column("num_bytes", np.float64),
        latency=lanes.latencies(network, routes) * columns.column("num_steps"),
        incidence=lanes.incidence(routes, len(network.links)),
        binding=binding(routes, network.links),
        activation=activation,
        gradient=gradient,
        reduce=reduce,
        gather=gather,
        tied=tied,
        teams=team_flows,
        gather_buckets=gather_buckets,
        reduce_buckets=reduce_buckets,
        signal=signal,
    )


def _boundaries(columns: Columns, work: PipelineWork) -> tuple[IntArray, IntArray]:
    """Add the transfers between virtual stages, forward and backward."""
    _, num_replicas, num_lanes = work.devices.shape
    num_boundaries = work.boundary_bytes.size
    # Both sides of a blocking exchange take part in it.
    sequential = not find_schedule(work.schedule).interleaves
    num_sources = 2 if work.blocking_transfers and sequential else 1
    virtual = work.virtual_stages()
    up = work.devices[virtual.stage[:-1]].ravel()
    down = work.devices[virtual.stage[1:]].ravel()
    counts = np.full(num_boundaries * num_replicas, num_lanes)
    numbers = []
    for kind, ends in (("activation", (up, down)), ("gradient", (down, up))):
        sender = np.arange(num_boundaries) + (kind == "gradient")
        sender = np.repeat(sender, num_replicas)
        first = columns.add(
            FlowFamily(
                kind=TRANSFER_KINDS.index(kind),
                stage=virtual.stage[sender],
                chunk=virtual.chunk[sender],
                replica=np.tile(np.arange(num_replicas), num_boundaries),
                num_sources=num_sources,
                num_bytes=np.repeat(work.boundary_bytes, num_replicas),
                num_steps=1,
                lanes=Lanes(counts, *ends),
            )
        )
        found = first + np.arange(counts.size)
        numbers.append(found.reshape(num_boundaries, num_replicas))
    return numbers[0], numbers[1]


def _tail(
    columns: Columns,
    kind: str,
    stage: int,
    num_sources: int,
    phases: tuple[Phase, ...],
) -> Numbers:
    """Add collectives of all replicas of a stage."""
    return tuple(
        columns.add(
            FlowFamily(
                kind=TRANSFER_KINDS.index(kind),
                stage=stage,
                num_sources=num_sources,
                num_bytes=phase.bytes_per_member,
                num_steps=phase.num_steps,
                lanes=Lanes(np.array([phase.ends()[0].size]), *phase.ends()),
            )
        )
        for phase in phases
    )


def _team(columns: Columns, stage: int, traffic: TeamTraffic) -> IntArray:
    """Add what passes of a stage send; return each replica's flow of each phase."""
    members = np.bincount(traffic.team)
    alone = np.flatnonzero(members[traffic.team] == 1)
    replica = np.full(members.size, NOTHING)
    replica[traffic.team[alone]] = alone
    firsts = []
    for phase in traffic.phases:
        counts = np.bincount(phase.team_of_message(), minlength=members.size)
        firsts.append(
            columns.add(
                FlowFamily(
                    kind=TRANSFER_KINDS.index(traffic.kind),
                    stage=stage,
                    replica=replica,
                    num_sources=members,
                    num_bytes=phase.bytes_per_member,
                    num_steps=phase.num_steps,
                    lanes=_team_lanes(phase, counts),
                )
            )
        )
    return np.array(firsts)[:, None] + traffic.team


def _buckets(
    columns: Columns,
    kind: str,
    buckets: tuple[tuple[Bucket, ...], ...],
    num_replicas: int,
) -> tuple[tuple[Numbers, ...], ...]:
    """Add the phases of all buckets of each stage; equal ones share a flow."""
    found = []
    # Buckets share arrays and phases: by identity, which of them were seen before.
    seen: dict[tuple[int, ...], tuple[bytes, ...]] = {}
    for stage, own in enumerate(buckets):
        known: dict[tuple[tuple[bytes, ...], float, int], int] = {}
        alike: dict[int, Numbers] = {}
        numbers = []
        for bucket in own:
            if id(bucket.phases) in alike:
                numbers.append(alike[id(bucket.phases)])
                continue
            flows = []
            for phase in bucket.phases:
                *members, num_bytes, num_steps = phase
                same = tuple(map(id, members))
                if same not in seen:
                    seen[same] = tuple(end.tobytes() for end in phase.ends())
                key = seen[same], num_bytes, num_steps
                if key not in known:
                    (known[key],) = _tail(columns, kind, stage, num_replicas, (phase,))
                flows.append(known[key])
            alike[id(bucket.phases)] = tuple(flows)
            numbers.append(tuple(flows))
        found.append(tuple(numbers))
    return tuple(found)


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
                    lanes=Lanes(np.zeros(num_replicas, dtype=np.int64), none, none),
                )
            )
            signal[stage] = first + np.arange(num_replicas)
    return signal


def _team_lanes(phase: TeamPhase | TeamEdgePhase, counts: IntArray) -> Lanes:
    """Return the lanes of a flow for each team."""
    weights = phase.weights
    return Lanes(counts, *phase.ends(), None if weights is None else weights.ravel())


ACTIVATION_IN, ACTIVATION_OUT, GRADIENT_IN, GRADIENT_OUT = range(4)
SLOTS_PER_CHUNK = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSlots:
    """The slots of one stage; buckets and phases are in their order."""

    channels: IntArray
    """The channel in each slot for each replica, or `NONE`, shape ``(d, S)``."""

    before: Numbers
    """Phases before the optimizer step: gradients, then the tied embedding."""

    after: Numbers
    """Phases after the optimizer step: parameter gather."""

    teams: tuple[Numbers, ...]
    """Phases of each `TeamTraffic`."""

    gather_buckets: tuple[Numbers, ...]
    """Phases of each bucket."""

    reduce_buckets: tuple[Numbers, ...]
    """Phases of each bucket."""

    signal: int
    """To the communication stream, or `NONE`."""

    def bucket_ends(self) -> list[tuple[int, int]]:
        """Return the slot of each bucket's last message, and which one there it is.

        In the order in which the communication stream sends them: parameters, then
        gradients. Messages are counted as it posts them, since a slot serves several
        buckets, and several phases of one: the reduce-scatter and the all-gather inside
        of nodes that belong to one all-reduce.
        """
        posted: Counter[int] = Counter()
        ends = []
        for phases in (*self.gather_buckets, *self.reduce_buckets):
            posted.update(phases)
            ends.append((phases[-1], posted[phases[-1]]))
        return ends


def stage_slots(flows: Flows, stage: int, virtual: VirtualStages) -> StageSlots:
    """Lay out the slots of one stage, which holds some of the virtual stages."""
    columns = _boundary_columns(flows, virtual.number[stage])
    num_replicas = flows.signal.shape[1]

    def give(channels: list[IntArray]) -> Numbers:
        first = len(columns)
        columns.extend(channels)
        return tuple(range(first, len(columns)))

    def whole_stage(numbers: Numbers) -> list[IntArray]:
        return [np.full(num_replicas, number) for number in numbers]

    num_stages = len(flows.reduce)
    tied = flows.tied if stage in {0, num_stages - 1} else ()
    before = give(whole_stage((*flows.reduce[stage], *tied)))
    after = give(whole_stage(flows.gather[stage]))
    teams = tuple(give(list(phases)) for phases in flows.teams[stage])
    buckets = flows.gather_buckets[stage], flows.reduce_buckets[stage]
    distinct = tuple(sorted({f for own in buckets for flow in own for f in flow}))
    slot_of = dict(zip(distinct, give(whole_stage(distinct)), strict=True))
    gathers, reduces = (
        tuple(tuple(slot_of[f] for f in bucket) for bucket in own) for own in buckets
    )
    (signal,) = give([flows.signal[stage]]) if reduces else (NONE,)
    return StageSlots(
        channels=np.stack(columns, axis=1).astype(np.int64),
        before=before,
        after=after,
        teams=teams,
        gather_buckets=gathers,
        reduce_buckets=reduces,
        signal=signal,
    )


def _boundary_columns(flows: Flows, held: IntArray) -> list[IntArray]:
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
