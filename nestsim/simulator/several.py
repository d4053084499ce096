"""Several training steps in one system: each repeated, all over the links they share.

A training is a stream of steps. Here each job repeats its step a given number of times,
one after another, without a barrier: an actor begins its next step when it has finished
its own duties of the one before, and a communication stream when the actor that it
belongs to has. Numbers of messages go on over the steps. Jobs have devices, actors and
channels of their own, and meet on links alone. So which links can limit a flow is
decided over the routes of all jobs: a link that is never full with the flows of one job
may be with those of two.

The end of a step is a step of the program itself, a span without duration behind all
others; nothing else is added to what an actor does. Hence one step of one job is that
of `nestsim.simulator.replay`, bit for bit, on the same tick
(`nestsim.simulator.system.tick_for`). Of several steps the first one ends as late, too,
unless stages that are done sooner begin the next one on links that others still need.
What a job does whose links no other one uses is bit for bit what it does alone, since
rates are solved by components of flows. (Two components whose rates at one instant
agree within 1e-12 without being equal are the exception, as inside of one job: links so
close saturate together.)

Letters: ``J`` jobs, ``A`` actors, ``P`` programs, ``S`` ports, ``C`` channels, ``E``
links, ``p`` stages, ``d`` replicas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from nestsim.simulator.build import Draft, draft_step
from nestsim.simulator.flows import SIGNAL, Flows, binding_links
from nestsim.simulator.folding import (
    Folding,
    fold,
    list_steps,
    num_posts_of_channels,
    numbered,
)
from nestsim.simulator.programs import Programs
from nestsim.simulator.system import (
    NONE,
    OPENS,
    ROUND,
    TICK,
    WHOLE,
    Incidence,
    Run,
    Step,
    Steps,
    System,
    quantise,
    tick_for,
)
from nestsim.simulator.work import PipelineWork
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from topologies.network import Network

_STEP_BEGINS = SIGNAL - 1
"""Kind of the channels by which actors tell their streams that a step is over."""


MOST_PROGRAM_STEPS = 2**25
"""Steps of all programs of one job in a row, 40 bytes each: more are refused."""


class Stint(NamedTuple):
    """A job among others."""

    work: PipelineWork
    """One step, on devices of the network that no other job has."""

    num_steps: int
    """Steps that it makes, at least 1."""

    start: float = 0.0
    """Moment at which its first step begins [s]."""


class SharedModel(NamedTuple):
    """Several jobs, ready for the engine."""

    system: System
    """Actors and channels job by job."""

    flows: tuple[Flows, ...]
    """Flow of each channel of each job, but for those that tell of a step's end."""

    first_actor: IntArray
    """First actor of each job, and behind the last one, shape ``(J + 1,)``."""

    first_channel: IntArray
    """First channel of each job, and behind the last one, shape ``(J + 1,)``."""

    spans: IntArray
    """Spans of each actor in one step, 0 for streams, shape ``(A,)``."""

    actor_colours: IntArray
    """Equal for the replicas of one stage of one job, shape ``(A,)``."""

    channel_colours: IntArray
    """Equal for channels of one kind and stage of one job, shape ``(C,)``."""


class Layout(NamedTuple):
    """Works over the same links, on the same clock, each a system of its own."""

    drafts: list[Draft]
    """Flows and ports of each work."""

    programs: list[Programs]
    """What the actors of each work run."""

    systems: list[System]
    """What an engine runs of each work, over the links that any of them can fill."""


def lay_out(
    network: Network,
    works: Sequence[PipelineWork],
    until: Callable[[Sequence[float]], float],
    tick: float = TICK,
) -> Layout:
    """Return works that meet on the links of one network.

    Parameters
    ----------
    network
        Links and routes.
    works
        One step of each.
    until
        Of what a step of each work takes at most, a moment before which all is done.
    tick
        The finest tick to be used [s].

    Raises
    ------
    InputError
        If a schedule does not exist or does not work with these sizes.
    """
    links = network.links
    drafts = [draft_step(network, work) for work in works]
    flows = [draft.flows for draft in drafts]
    weights = np.sum([flow.weights(len(links)) for flow in flows], axis=0)
    programs = [draft.programs(TICK) for draft in drafts]
    times = [
        draft.horizon(of_work, links, weights)
        for draft, of_work in zip(drafts, programs, strict=True)
    ]
    tick = max(tick, tick_for(until(times)))
    if tick > TICK:
        programs = [draft.programs(tick) for draft in drafts]
    kept = binding_links(flows, links)
    systems = [
        draft.system(of_work, links, kept, tick)
        for draft, of_work in zip(drafts, programs, strict=True)
    ]
    return Layout(drafts, programs, systems)


def join_jobs(
    network: Network, stints: Sequence[Stint], *, tick: float = TICK
) -> SharedModel:
    """Prepare the engine's actors, channels and links for jobs that run together.

    Parameters
    ----------
    network
        Links and routes.
    stints
        The jobs.
    tick
        The finest tick to be used, that of a run to compare with [s].

    Raises
    ------
    InputError
        If a schedule does not exist or does not work with these sizes, or a job makes
        too many steps to be written down.
    """
    laid = lay_out(
        network,
        [stint.work for stint in stints],
        # Jobs do not wait for each other: the longest one bounds the run.
        lambda times: max(
            stint.start + stint.num_steps * time
            for stint, time in zip(stints, times, strict=True)
        ),
        tick,
    )
    for job, (stint, of_job) in enumerate(zip(stints, laid.programs, strict=True)):
        _check_length(job, stint, of_job)
    rows = []
    for stint, draft, of_job, system in zip(stints, *laid, strict=True):
        once = _told_of_ends(system, of_job, stint.work.devices.shape)
        spans = _num_spans(once)
        rows.append((_in_a_row(once, stint), spans, *_colours(draft, of_job)))
    systems, spans_of_jobs, actor_colours, channel_colours = zip(*rows, strict=True)
    return SharedModel(
        system=side_by_side(systems),
        flows=tuple(draft.flows for draft in laid.drafts),
        first_actor=_firsts([one.program.size for one in systems]),
        first_channel=_firsts([one.latency.size for one in systems]),
        spans=np.concatenate(spans_of_jobs),
        actor_colours=_apart(actor_colours),
        channel_colours=_apart(channel_colours),
    )


def fold_jobs(model: SharedModel) -> Folding:
    """Merge alike actors and channels, as `nestsim.simulator.replay.fold_model` does.

    Those of different jobs stay apart.
    """
    return fold(model.system, model.actor_colours, model.channel_colours)


def step_ends(model: SharedModel, folding: Folding, run: Run) -> tuple[FloatArray, ...]:
    """Return when the last actor of each job had finished each of its steps [s]."""
    actors = folding.actors.first
    job = np.searchsorted(model.first_actor, actors, side="right") - 1
    spans = model.spans[actors]
    ends: list[FloatArray] = []
    for number in range(len(model.flows)):
        working = np.flatnonzero((job == number) & (spans > 0)).tolist()
        logs = [run.span_ends[k][spans[k] - 1 :: spans[k]] for k in working]
        ends.append(np.max(logs, axis=0))
    return tuple(ends)


def carried_bytes(
    model: SharedModel,
    folding: Folding,
    run: Run,
    num_links: int,
    *,
    within: tuple[float, float] = (0.0, math.inf),
) -> FloatArray:
    """Return what each link carried of each job, shape ``(J, E)`` [byte].

    Of messages that left and arrived ``within`` two moments, all of the run if nothing
    is said: so that no link has carried more than it can in that time.
    """
    begin, end = within
    counts = np.array(
        [
            np.count_nonzero((left >= begin) & (arrived <= end))
            for left, arrived in zip(run.departures, run.arrivals, strict=True)
        ],
        np.int64,
    )
    messages = counts[folding.channels.of]
    carried = np.zeros((len(model.flows), num_links))
    for job, flows in enumerate(model.flows):
        first = int(model.first_channel[job])
        moved = flows.num_bytes * messages[first : first + len(flows)]
        incidence = flows.incidence
        carried[job] = np.bincount(
            incidence.links,
            incidence.weights * np.repeat(moved, np.diff(incidence.indptr)),
            minlength=num_links,
        )
    return carried


def _check_length(job: int, stint: Stint, programs: Programs) -> None:
    """Refuse steps in a row that would fill the memory."""
    length = sum(len(program.steps) for program in programs.distinct)
    if stint.num_steps * length > MOST_PROGRAM_STEPS:
        raise InputError(
            "makes too many steps to be replayed in a row",
            where=f"jobs[{job}]",
            got=f"{stint.num_steps:,} training steps of {length:,} operations",
            expected=f"at most {max(1, MOST_PROGRAM_STEPS // length):,} training steps",
            hint="Jobs whose steps are far shorter than those of others, or that start "
            "far earlier, make many of them meanwhile.",
        )


def _told_of_ends(system: System, programs: Programs, shape: tuple[int, ...]) -> System:
    """Let every actor end its step with a span, and tell its stream, which waits.

    Nobody tells a stream to begin its first step: it needs no message for that.
    """
    num_stages, num_replicas, _ = shape
    num_workers = num_stages * num_replicas
    num_streams = len(programs.streams) * num_replicas
    num_channels, port = system.latency.size, system.ports.shape[1]
    begins = np.full((num_stages, num_replicas), NONE)
    streams = list(programs.streams)
    added = num_channels + np.arange(num_streams)
    begins[streams] = added.reshape(-1, num_replicas)
    column = np.append(begins.ravel(), added)
    is_end = np.zeros(len(system.programs), dtype=np.bool_)
    is_end[system.program[:num_workers][begins.ravel() != NONE]] = True
    num_programs = int(system.program[:num_workers].max()) + 1
    begin = Steps.of([Step(0.0, port, 0, NONE, 0)])
    steps = []
    for number, once in enumerate(system.programs):
        if number >= num_programs:
            steps.append(begin.followed_by(once))
            continue
        target = port if is_end[number] else NONE
        end = Steps.of([Step(0.0, NONE, 0, target, WHOLE)])
        steps.append(once.followed_by(end))
    indptr = system.incidence.indptr
    nothing = np.zeros(num_streams)
    return replace(
        system,
        programs=tuple(steps),
        ports=np.column_stack((system.ports, column)).astype(np.int64),
        num_sources=np.append(system.num_sources, np.ones(num_streams, np.int64)),
        latency=np.append(system.latency, nothing),
        num_bytes=np.append(system.num_bytes, nothing),
        incidence=system.incidence._replace(
            indptr=np.append(indptr, np.full(num_streams, indptr[-1]))
        ),
    )


def _in_a_row(once: System, stint: Stint) -> System:
    """Repeat all programs, and let them wait for the job's start."""
    system = in_turn(once, stint.num_steps)
    start = quantise(stint.start, once.tick)
    if start <= 0.0:
        return system
    waiting = Steps.of([Step(start, NONE, 0, NONE, 0)])
    programs = tuple(map(waiting.followed_by, system.programs))
    return replace(system, programs=programs)


def in_turn(once: System, count: int, outside: Sequence[int] = ()) -> System:
    """Repeat all programs: what they need of a port grows by what a step brings it.

    Parameters
    ----------
    once
        One step.
    count
        How often it is done.
    outside
        Channels to which others post, once for each step.
    """
    brought = num_posts_of_channels(once, list_steps(once)) // once.num_sources
    brought[list(outside)] = 1
    by_actor = np.append(brought, 0)[once.ports]
    _, first = np.unique(once.program, return_index=True)
    assert np.array_equal(by_actor, by_actor[first][once.program])
    programs = tuple(
        _repeated(steps, by_actor[k], count)
        for steps, k in zip(once.programs, first.tolist(), strict=True)
    )
    return replace(once, programs=programs)


def _repeated(steps: Steps, brought: IntArray, count: int) -> Steps:
    """Return a program ``count`` times; a step brings each port so many messages."""
    rounds = np.arange(count)[:, None]
    more = np.append(brought, 0)[steps.source]
    span = np.tile(steps.span, (count, 1))
    # One row is enough for no two rounds to be alike.
    span[:, :1] += rounds * ROUND
    return Steps(
        np.tile(steps.duration, count),
        np.tile(steps.source, count),
        (steps.need + rounds * more).ravel(),
        np.tile(steps.target, count),
        span.ravel(),
    )


def _num_spans(system: System) -> IntArray:
    """Return the spans of each actor."""
    spans = [np.count_nonzero(steps.span & OPENS) for steps in system.programs]
    return np.array(spans, dtype=np.int64)[system.program]


def _colours(draft: Draft, programs: Programs) -> tuple[IntArray, IntArray]:
    """Return what keeps actors and channels of a job apart."""
    flows, num_replicas = draft.flows, draft.work.devices.shape[1]
    streams = np.repeat(np.array(programs.streams, np.int64), num_replicas)
    none = np.full(streams.size, NONE)
    return (
        np.arange(programs.of_actor.size) // num_replicas,
        numbered(
            np.append(flows.kind, np.full(streams.size, _STEP_BEGINS)),
            np.append(flows.stage, streams),
            np.append(flows.chunk, none),
        ),
    )


def side_by_side(systems: Sequence[System]) -> System:
    """Return systems over the same links as one."""
    num_ports = max(system.ports.shape[1] for system in systems)
    channels = _firsts([system.latency.size for system in systems])
    programs = _firsts([len(system.programs) for system in systems])
    ports = []
    for one, first in zip(systems, channels.tolist(), strict=False):
        moved = np.where(one.ports == NONE, NONE, one.ports + first)
        missing = num_ports - one.ports.shape[1]
        ports.append(np.pad(moved, ((0, 0), (0, missing)), constant_values=NONE))
    return replace(
        systems[0],
        programs=tuple(steps for system in systems for steps in system.programs),
        program=np.concatenate(
            [
                system.program + first
                for system, first in zip(systems, programs, strict=False)
            ]
        ),
        ports=np.concatenate(ports),
        num_sources=np.concatenate([system.num_sources for system in systems]),
        latency=np.concatenate([system.latency for system in systems]),
        num_bytes=np.concatenate([system.num_bytes for system in systems]),
        incidence=_stacked([system.incidence for system in systems]),
        num_recorded=sum(system.num_recorded for system in systems),
    )


def _stacked(parts: Sequence[Incidence]) -> Incidence:
    """Return the flows of several lists, over the same links, in one list."""
    entries = _firsts([part.links.size for part in parts])
    indptr = [
        part.indptr[:-1] + first
        for part, first in zip(parts, entries.tolist(), strict=False)
    ]
    return Incidence(
        np.concatenate([*indptr, entries[-1:]]),
        np.concatenate([part.links for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )


def _apart(colours: Sequence[IntArray]) -> IntArray:
    """Join colours of jobs, so that no two jobs have one in common."""
    first = _firsts([int(colour.max(initial=-1)) + 1 for colour in colours])
    return np.concatenate(
        [colour + begin for colour, begin in zip(colours, first.tolist(), strict=False)]
    )


def _firsts(sizes: Sequence[int]) -> IntArray:
    """Return where each of consecutive pieces begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
