"""Steps that send the same between the same devices share their network.

A search replays hundreds of plans that lie on few placements. Which links their
messages cross, which of these can limit anything, and what behaves alike depends on who
sends to whom alone; durations, sizes, and how often a boundary or a ring comes again do
not matter. So that is worked out once, for a *frame* in which every family of flows
occurs once, and the system of a step is put together of the frame's classes: array by
array the one that `nestsim.simulator.folding.fold` returns.

Why the classes hold. Let copies of a family be flows of the same pairs of devices that
the same actors know under other ports. Give each copy the classes of its family, and
let actors and links keep theirs. On the links of one class every class of a family has
the same weight, so every copy has; actors that are alike in the frame have channels of
one class in each of its ports, so in those of the copies, too; and copies are posted to
by the same actors as their family. Hence the classes of the step are stable. In the
same way stable classes of the step are stable in the frame, so the coarsest ones are
the same. A collective of all replicas is one flow, which is alike to no other, and
tells no actors apart.

This holds for steps whose passes send nothing inside, and whose clock has the finest
tick, which a bound of the step's end tells; all others are folded by themselves.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nestsim.simulator.build import latest_end, port_table, step_notes
from nestsim.simulator.flows import (
    SIGNAL,
    Columns,
    FlowFamily,
    FlowNumbers,
    FlowTable,
    number_flows,
    stage_ports,
)
from nestsim.simulator.folding import (
    UNITS,
    DevicePairs,
    Folding,
    binding,
    classes_of,
    fold,
    in_units,
    joined,
    seams_of,
)
from nestsim.simulator.kernels.refine import by_link, family_slowness
from nestsim.simulator.link_use import CrossedLinks
from nestsim.simulator.programs import StageProgram, build_programs
from nestsim.simulator.system import (
    NONE,
    TICK,
    Incidence,
    Step,
    Steps,
    System,
    num_posts,
    quantise,
    tick_for,
)
from nestsim.simulator.work import PipelineWork
from planner.step.schedules import find_schedule
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.keeping import Keeper
from topologies.network import Links, Network

_ROOM = 2**26
"""Bytes that all frames may take, and their keys."""


_FamilyKey = tuple[str, int, int] | bytes
"""What tells families apart: of a boundary the direction, and the stages that send and
receive activations; of signals their stage, twice; of a collective its devices."""


class _Key(NamedTuple):
    """All that a frame depends on."""

    families: tuple[_FamilyKey, ...]
    """Families of flows, each once: boundaries, signals and collectives."""
    shape: tuple[int, ...]
    """Shape of the devices ``(p, d, t)``."""
    devices: bytes
    """Devices of each actor."""
    kind: bytes
    """Kind of each actor, shape ``(p, d)``."""
    meets: bool
    """Whether receivers take part in transfers."""
    streams: tuple[int, ...]
    """Stages whose actors have a communication stream."""

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        collectives = sum(len(key) for key in self.families if isinstance(key, bytes))
        return len(self.devices) + len(self.kind) + collectives


class _FrameFamily(NamedTuple):
    """A family of flows of a frame."""

    place: int
    """Place among the families."""
    first: int
    """First class of its flows."""
    of: IntArray
    """Class of each flow, from 0 on."""


class Frame(NamedTuple):
    """A folded network of which every family of flows is there once."""

    families: dict[_FamilyKey, _FrameFamily]
    """Classes of each family."""
    num_classes: IntArray
    """Number of classes of each family."""
    slowness: FloatArray
    """The most that a flow of one family is slowed down by the flows of another, all of
    them being active, shape ``(families, families)`` [s/byte]."""
    actors: IntArray
    """First actor of each class: stages, then streams."""
    latency: FloatArray
    """Latency of one step of each class of flows [s]."""
    incidence: Incidence
    """Classes of links that each class of flows crosses."""
    capacity: FloatArray
    """Capacity of each class of links [byte/s]."""
    num_common: int
    """Classes of links that several flows may cross; each of the others belongs to one
    class of flows."""

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        of_families = sum(family.of.nbytes for family in self.families.values())
        return of_families + self.slowness.nbytes + 3 * self.incidence.links.nbytes


class Frames:
    """Keeps the frames of the steps that were replayed on one network.

    Parameters
    ----------
    network
        The network.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._frames = Keeper[_Key, Frame](
            lambda key, frame: key.size + frame.size, _ROOM
        )

    def system(self, work: PipelineWork) -> System | None:
        """Return the folded system of a step; None if it has to be folded by itself.

        Raises
        ------
        InputError
            If the schedule does not exist or does not work with these sizes.
        """
        if work.layers is not None:
            return None
        step = _NumberedStep.of(work)
        frame = self._frames.get(step.key, partial(_kept_frame, self.network, step.key))
        assembled = _assembled(frame, step)
        return None if assembled is None else assembled.system


class _NumberedStep(NamedTuple):
    """A step, and what its families of flows are."""

    work: PipelineWork
    """The step."""
    columns: Columns
    """Its flows, family by family."""
    keys: list[_FamilyKey]
    """What tells these apart; copies have the same."""
    numbers: FlowNumbers
    """Where to find each flow."""
    key: _Key
    """What its frame depends on."""

    @classmethod
    def of(cls, work: PipelineWork) -> "_NumberedStep":
        """Return a step with its flows numbered; its passes send nothing inside."""
        columns, numbers = number_flows(work)
        keys = _family_keys(work, columns.families)
        return cls(work, columns, keys, numbers, _key(work, keys))


class Lines(NamedTuple):
    """The links that flows share, and those that they have for themselves."""

    incidence: Incidence
    """Links that each flow crosses."""
    capacity: FloatArray
    """Capacity of each link [byte/s]."""
    num_common: int
    """Links that several flows may cross; the others have one flow each."""


class FoldedStep(NamedTuple):
    """A training step of which one of each class is simulated."""

    flows: FlowTable
    """All flows."""
    programs: tuple[StageProgram, ...]
    """What the steps of each of the system's programs mean."""
    folding: Folding
    """What is simulated, and for what."""
    crossings: CrossedLinks
    """Links that the flows cross."""
    num_replicas: int
    """Replicas of each stage."""
    notes: tuple[str, ...]
    """What is not simulated one by one, one sentence each."""


class FramedStep:
    """A step whose network is worked out for one of each family of flows.

    Parameters
    ----------
    network
        The network.
    work
        The step; its passes send nothing inside.
    """

    def __init__(self, network: Network, work: PipelineWork) -> None:
        self._network, self._step = network, _NumberedStep.of(work)
        self.flows = _frame_flows(network, self._step.key)

    @property
    def num_crossing(self) -> IntArray:
        """Flows that cross each link, shape ``(E,)``."""
        step, incidence = self._step, self.flows.incidence
        place = {name: number for number, name in enumerate(step.key.families)}
        copies = np.bincount([place[name] for name in step.keys], minlength=len(place))
        entries = np.repeat(copies[self.flows.family], np.diff(incidence.indptr))
        num_links = len(self._network.links)
        return np.bincount(incidence.links, entries, num_links).astype(np.int64)

    def fold(self, lines: Lines | None = None) -> FoldedStep | None:
        """Return the folded step; None if it has to be folded by itself.

        Parameters
        ----------
        lines
            What the frame's flows cross; None for the links that can limit them.
        """
        step, flows, links = self._step, self.flows, self._network.links
        kept = np.flatnonzero(flows.kept)
        if lines is None:
            lines = flows.binding_lines(links)
        folding = _fold_frame(step.key, flows, lines)
        frame = _frame(links, step.key, flows, lines, folding)
        assembled = _assembled(frame, step)
        if assembled is None:
            return None
        rows = [
            np.arange(family.pairs.counts.size)
            + flows.first[frame.families[name].place]
            for family, name in zip(step.columns.families, step.keys, strict=True)
        ]
        num_used = int(np.count_nonzero(np.bincount(flows.incidence.links)))
        return FoldedStep(
            flows=step.columns.table(step.numbers),
            programs=assembled.programs,
            folding=Folding(
                system=assembled.system,
                actors=folding.actors,
                channels=classes_of(assembled.channels),
                num_rounds=folding.num_rounds,
            ),
            crossings=CrossedLinks(
                flows.incidence,
                np.concatenate([np.zeros(0, np.int64), *rows]),
                folding.channels,
            ),
            num_replicas=step.key.shape[1],
            notes=(
                *step.work.notes,
                *step_notes(step.work, num_used, num_used - kept.size),
            ),
        )


def _family_keys(
    work: PipelineWork, families: Sequence[FlowFamily]
) -> list[_FamilyKey]:
    """Return what tells the families of a step apart; copies have the same."""
    stages = work.virtual_stages().stage.tolist()
    keys: list[_FamilyKey] = [
        (name, *ends) for name in _DIRECTIONS for ends in pairwise(stages)
    ]
    # Families share pairs of devices: by identity, which of them were seen before.
    seen: dict[int, bytes] = {}
    for family in families[len(keys) :]:
        if family.kind == SIGNAL:
            assert isinstance(family.stage, int)
            keys.append(("signal", family.stage, family.stage))
            continue
        pairs = family.pairs
        if id(pairs) not in seen:
            seen[id(pairs)] = pairs.sources.tobytes() + pairs.targets.tobytes()
        keys.append(seen[id(pairs)])
    return keys


_DIRECTIONS = ("activation", "gradient")
"""Names of the transfers over a boundary, in the order of their families."""


def _key(work: PipelineWork, keys: Sequence[_FamilyKey]) -> _Key:
    buckets = zip(work.gather_buckets, work.reduce_buckets, strict=True)
    return _Key(
        families=tuple(dict.fromkeys(keys)),
        shape=work.devices.shape,
        devices=work.devices.tobytes(),
        kind=work.kind.tobytes(),
        meets=work.blocking_transfers and find_schedule(work.schedule).meets_receivers,
        streams=tuple(stage for stage, both in enumerate(buckets) if any(both)),
    )


class _FrameFlows(NamedTuple):
    """The flows of a frame."""

    first: IntArray
    """First flow of each family."""
    family: IntArray
    """Family of each flow."""
    latency: FloatArray
    """Latency of one step of each flow [s]."""
    incidence: Incidence
    """Links of the network that each flow crosses."""
    kept: BoolArray
    """Whether each link can limit any flow."""

    def binding_lines(self, links: Links) -> Lines:
        """Return the links that can limit any flow."""
        kept = np.flatnonzero(self.kept)
        incidence = self.incidence.restricted(kept, len(links))
        return Lines(incidence, links.bandwidth[kept], kept.size)


def _frame_flows(network: Network, key: _Key) -> _FrameFlows:
    """Work out which links the flows of a frame cross, and which of these limit any."""
    links, pairs = network.links, _pairs(key)
    sizes = np.array([part.counts.size for part in pairs], np.int64)
    family = np.repeat(np.arange(sizes.size), sizes)
    first = np.cumsum(sizes) - sizes
    flows = joined(pairs)
    routes = flows.routes(network)
    incidence = flows.incidence(routes, len(links))
    used = np.zeros(len(links), np.bool_)
    used[incidence.links] = True
    kept = used & binding([seams_of(routes, len(links))], links)
    latency = flows.latencies(network, routes)
    return _FrameFlows(first, family, latency, incidence, kept)


def _kept_frame(network: Network, key: _Key) -> Frame:
    """Return a frame over the links that can limit its flows."""
    flows = _frame_flows(network, key)
    lines = flows.binding_lines(network.links)
    folding = _fold_frame(key, flows, lines)
    return _frame(network.links, key, flows, lines, folding)


def _fold_frame(key: _Key, flows: _FrameFlows, lines: Lines) -> Folding:
    """Work out what behaves alike in a frame."""
    num_replicas, family = key.shape[1], flows.family
    ports, posts = _ports(key, flows.first.tolist())
    kind = np.frombuffer(key.kind, np.int64).reshape(key.shape[:2])
    num_kinds = kind.max(axis=1) + 1
    begin = np.cumsum(num_kinds) - num_kinds
    streams = num_kinds.sum() + np.arange(len(key.streams))
    program = np.concatenate(
        (begin[:, None] + kind, np.tile(streams, (num_replicas, 1)).T)
    )
    meets = np.array([name[0] in _DIRECTIONS and key.meets for name in key.families])
    return fold(
        System(
            programs=(
                *(posts[stage] for stage in np.repeat(range(len(kind)), num_kinds)),
                *(Steps.of(()) for _ in key.streams),
            ),
            program=program.ravel(),
            ports=ports,
            num_sources=1 + meets[family],
            latency=quantise(flows.latency, TICK),
            num_bytes=np.zeros(family.size),
            incidence=lines.incidence,
            capacity=lines.capacity,
            tick=TICK,
            num_recorded=0,
        ),
        np.arange(len(ports)) // num_replicas,
        family,
        num_common=lines.num_common,
    )


def _frame(
    links: Links, key: _Key, flows: _FrameFlows, lines: Lines, folding: Folding
) -> Frame:
    """Return what is kept of a frame."""
    of, classes = folding.channels
    first, capacity = flows.first, folding.system.capacity
    num_classes = np.bincount(flows.family[classes], minlength=first.size)
    crossing, indptr = lines.incidence.links, lines.incidence.indptr
    flow = np.repeat(np.arange(of.size), np.diff(indptr))
    num_alone = np.unique(of[flow[crossing >= lines.num_common]]).size
    begin_class = of[first]
    return Frame(
        families={
            name: _FrameFamily(place, begin_class[place], part - begin_class[place])
            for place, (name, part) in enumerate(
                zip(key.families, np.split(of, first)[1:], strict=True)
            )
        },
        num_classes=num_classes,
        slowness=_slowness(flows, links.bandwidth),
        actors=folding.actors.first,
        latency=flows.latency[classes],
        incidence=folding.system.incidence,
        capacity=capacity,
        num_common=capacity.size - num_alone,
    )


def _pairs(key: _Key) -> list[DevicePairs]:
    """Return the pairs of devices of each family."""
    num_stages, num_replicas, num_ranks = key.shape
    devices = np.frombuffer(key.devices, np.int64).reshape(num_stages, -1)
    nothing = np.zeros(0, np.int64)
    pairs = []
    for name in key.families:
        if isinstance(name, bytes):
            sources, targets = np.frombuffer(name, np.int64).reshape(2, -1)
            pairs.append(DevicePairs(np.array([sources.size]), sources, targets))
        elif name[0] in _DIRECTIONS:
            ends = [devices[stage] for stage in name[1:]]
            counts = np.full(num_replicas, num_ranks)
            back = _DIRECTIONS.index(name[0])
            pairs.append(DevicePairs(counts, ends[back], ends[1 - back]))
        else:
            counts = np.zeros(num_replicas, np.int64)
            pairs.append(DevicePairs(counts, nothing, nothing))
    return pairs


def _ports(key: _Key, first: Sequence[int]) -> tuple[IntArray, list[Steps]]:
    """Return the channels of every actor and stream, and what each stage posts to."""
    num_stages, num_replicas, _ = key.shape
    replicas = np.arange(num_replicas)
    columns: list[list[IntArray]] = [[] for _ in range(num_stages)]
    posts: list[list[Step]] = [[] for _ in range(num_stages)]
    for name, begin in zip(key.families, first, strict=True):
        if isinstance(name, bytes):
            continue
        for stage, posting in zip(_ends(*name), (True, key.meets), strict=False):
            if posting:
                posts[stage].append(Step(0.0, NONE, 0, len(columns[stage]), 0))
            columns[stage].append(begin + replicas)
    width = max(map(len, columns))
    table = np.full((num_stages, num_replicas, width), NONE)
    for stage, of_stage in enumerate(columns):
        for port, channels in enumerate(of_stage):
            table[stage, :, port] = channels
    blocks = np.concatenate(table[[*range(num_stages), *key.streams]])
    return blocks, [Steps.of(steps) for steps in posts]


def _ends(kind: str, sender: int, receiver: int) -> tuple[int, ...]:
    """Return the stages that know a family that is no collective, the poster first."""
    if kind == "signal":
        return (sender,)
    return (receiver, sender) if kind == "gradient" else (sender, receiver)


def _slowness(flows: _FrameFlows, bandwidth: FloatArray) -> FloatArray:
    """Return `Frame.slowness`."""
    slowness = np.zeros((flows.first.size, flows.first.size))
    of_links = by_link(*in_units(flows.incidence), bandwidth.size)
    capacity = bandwidth * UNITS
    family_slowness(*of_links, flows.family, slowness, capacity)
    return slowness


_SLACK = 1.0 + 1e-9
"""More than what rounding takes from a bound of the step's end."""


class _Assembled(NamedTuple):
    """A folded step, put together of the classes of its frame."""

    system: System
    """What runs."""
    programs: tuple[StageProgram, ...]
    """What the steps of each program mean."""
    channels: IntArray
    """Channel of the system of each flow."""


def _assembled(frame: Frame, step: _NumberedStep) -> _Assembled | None:
    """Return a folded step, None if it may last too long for its tick."""
    work, columns, keys, numbers, _ = step
    copies = columns.families
    families = [frame.families[name] for name in keys]
    place = np.array([family.place for family in families], np.int64)
    begin = np.array([family.first for family in families], np.int64)
    num_bytes = np.array([copy.num_bytes for copy in copies], np.float64)
    num_steps = np.array([copy.num_steps for copy in copies], np.int64)
    sizes = frame.num_classes[place]
    offset = np.cumsum(sizes) - sizes
    copy = np.repeat(np.arange(sizes.size), sizes)
    rows = np.arange(copy.size) + (begin - offset)[copy]
    latency = frame.latency[rows] * num_steps[copy]
    virtual = work.virtual_stages()
    by_stage = [stage_ports(numbers, k, virtual) for k in range(len(work.devices))]
    programs = build_programs(work, by_stage, tick=TICK)
    programs = programs._replace(of_actor=programs.of_actor[frame.actors])
    of = [number + family.of for number, family in zip(offset, families, strict=True)]
    channels = np.concatenate([*of, np.full(1, NONE)])
    ports = channels[port_table(by_stage, programs, frame.actors)]
    slowness = frame.slowness @ np.bincount(place, minlength=frame.num_classes.size)
    slowest = latency + (num_bytes * slowness[place])[copy]
    end = latest_end(programs, np.append(slowest, 0.0)[ports])
    if tick_for(end * _SLACK) > TICK:
        return None
    steps = tuple(program.steps for program in programs.distinct)
    posted = ports[num_posts(steps, ports.shape[1])[programs.of_actor] > 0]
    incidence, capacity = _with_own_links(frame.incidence.taken(rows), frame)
    system = System(
        programs=steps,
        program=programs.of_actor,
        ports=ports,
        num_sources=np.maximum(
            np.bincount(posted[posted != NONE], minlength=rows.size), 1
        ),
        latency=quantise(latency, TICK),
        num_bytes=num_bytes[copy],
        incidence=incidence,
        capacity=capacity,
        tick=TICK,
        num_recorded=len(copies),
    )
    return _Assembled(system, programs.distinct, channels[:-1])


def _with_own_links(incidence: Incidence, frame: Frame) -> tuple[Incidence, FloatArray]:
    """Give every copy of a class of flows links of its own where these have some."""
    alone = np.flatnonzero(incidence.links >= frame.num_common)
    links = incidence.links.copy()
    links[alone] = frame.num_common + np.arange(alone.size)
    return incidence._replace(links=links), np.concatenate(
        (frame.capacity[: frame.num_common], frame.capacity[incidence.links[alone]])
    )
