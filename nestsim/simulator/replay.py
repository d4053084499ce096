"""Replay one lowered training step over the links of the network.

Every stage of every replica is an actor with its schedule's instructions; activations,
gradients and collectives are flows that share links max-min fairly. Actors that are
provably alike are simulated once.

A system runs on the engine that suits it, and a long run says beforehand how long it
will take. Both engines give bitwise the same run, so the choice is one of time alone;
what is reported as confirmed, SimPy's has run, up to `MOST_SIMPY_EVENTS`.
Times were measured on one core of a small shared machine (Python 3.11, SimPy 4.1, numba
0.68), for rings and pipelines of 16 to 6,400 actors, in-layer collectives included;
compiling is not counted.

What a run leaves are logs, which know ports and numbers of messages; from them come
records, which know stages, replicas and microbatches.

The account of memory has every allocation and release of a device, at its moment. What
is held for a purpose is allocated when a pass of one kind starts and released when
a pass of the same or another kind, of the same chunk and microbatch, ends. So moments
within a pass are not told apart: all that it works with is alive from its start to its
end. What the optimizer makes for its step is there from the end of the last pass on.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.build import Model, build_model
from nestsim.simulator.compiled import (
    end_of_compiled_run,
    num_steps,
    simulate_compiled,
)
from nestsim.simulator.flows import SIGNAL
from nestsim.simulator.folding import Folding, fold, numbered, unfolded
from nestsim.simulator.frames import FoldedStep, FramedStep, Frames
from nestsim.simulator.link_use import CrossedLinks, Traffic
from nestsim.simulator.programs import PASS_KINDS, StageProgram
from nestsim.simulator.system import (
    CLOSES,
    MOST_SIMPY_EVENTS,
    OPENS,
    SPAN_KINDS,
    MemoryTimeline,
    Replay,
    ReplaySettings,
    Run,
    Skip,
    Spans,
    System,
    Transfers,
    is_same_run,
    num_posts,
)
from nestsim.simulator.work import PipelineWork, StageMemory
from planner.step.instructions import BACKWARD, FORWARD, shared_pairs
from planner.work import Progress
from topologies.arrays import FloatArray, IntArray
from topologies.network import Network


def stage_memory_timeline(
    memory: StageMemory,
    program: StageProgram,
    workers: Sequence[tuple[FloatArray, FloatArray]],
) -> MemoryTimeline:
    """Return the timeline of the worker with the largest peak, the first of equals.

    Parameters
    ----------
    memory
        What one device of the stage allocates [byte].
    program
        What its spans are, in the workers' order of work.
    workers
        Start and end of each span, for each replica of the stage [s].
    """
    parts = _parts(memory, program)
    for name, num_bytes in memory.until_step_end.items():
        parts[name] = np.full(2 * program.kinds.size + 1, num_bytes)
        parts[name][-1] = 0.0
    for name, num_bytes in memory.step_end.items():
        parts[name] = np.zeros(2 * program.kinds.size + 1)
        parts[name][-1] = num_bytes
    static = float(sum(memory.static.values()))
    total = np.full(2 * program.kinds.size + 1, static)
    for held in parts.values():
        total += held
    # All workers do the same in the same order: they differ in moments alone.
    starts, ends = workers[0]
    times = np.zeros(total.size)
    times[1::2], times[2::2] = starts, ends
    at = int(np.argmax(total))
    # A release and an allocation at one moment leave no dip between them.
    hidden = (times[:-1] == times[1:]) & (total[:-1] <= total[1:])
    shown = np.append(~hidden, True)
    return MemoryTimeline(
        times=tuple(times[shown].tolist()),
        total=tuple(total[shown].tolist()),
        peak=float(total[at]),
        peak_time=float(times[at]),
        peak_parts={
            **memory.static,
            **{name: float(held[at]) for name, held in parts.items()},
        },
    )


def _parts(memory: StageMemory, program: StageProgram) -> dict[str, FloatArray]:
    """Return what is held of each part after each change, from the step's start on.

    Changes are the start and the end of each span in turn.
    """
    kinds = [SPAN_KINDS.index(name) for name in PASS_KINDS]
    num_changes = 2 * program.kinds.size
    allocated = _allocations(memory, program)
    parts: dict[str, FloatArray] = {}
    for part, chunk, begin, end, num_bytes in memory.held:
        of_chunk = program.chunks == chunk
        # Whole microbatches are counted, so that the end is exactly the beginning.
        change = np.zeros(num_changes + 1, dtype=np.int64)
        begins = np.flatnonzero(of_chunk & (program.kinds == kinds[begin]))
        shared = begin == FORWARD and end != FORWARD
        np.add.at(change, allocated[begins] if shared else 1 + 2 * begins, 1)
        change[2::2] -= of_chunk & (program.kinds == kinds[end])
        parts.setdefault(part, np.zeros(num_changes + 1))
        parts[part] += np.cumsum(change) * num_bytes
    return parts


def _allocations(memory: StageMemory, program: StageProgram) -> IntArray:
    """Return the change at which each span's activations are there, if it has any.

    At its start; of a forward pass that goes through its layers in step with a backward
    pass at the end of that one.
    """
    spans = np.arange(program.kinds.size)
    changes = 1 + 2 * spans
    if memory.warmup is None:
        return changes
    forward, backward = (
        SPAN_KINDS.index(PASS_KINDS[kind]) for kind in (FORWARD, BACKWARD)
    )
    passes = np.flatnonzero(np.isin(program.kinds, (forward, backward)))
    kind = np.where(program.kinds[passes] == forward, FORWARD, BACKWARD)
    begins = shared_pairs(kind, memory.warmup)
    changes[passes[begins]] = 2 + 2 * passes[begins + 1]
    return changes


LONG = 0.3
"""Forecast of SimPy's running time above which a run is compiled. Loading the compiled
engine takes 0.01 s, but seconds the first time after an installation, which short runs
are spared [s]."""


class _Cost(NamedTuple):
    """Average running time of an engine."""

    per_step: float
    """Running time of a step without its message [s]."""

    per_message: float
    """Running time of a message from its post to its arrival, solving the rates
    included [s]."""


# A step with a message: SimPy 13 us where each flow has links of its own, 18 us where
# many share; compiled 1.1 and 3.4 us, of 2.4 million with misaligned stages 2.0 us.
_COSTS: Mapping[str, _Cost] = MappingProxyType(
    {
        "simpy": _Cost(2e-6, 14e-6),
        "compiled": _Cost(0.2e-6, 2.0e-6),
    }
)
"""Engine -> its average running times."""


def run_system(system: System, settings: ReplaySettings) -> Run:
    """Run all actors of a system to their ends.

    The run is bitwise the same for every engine, and with or without skipping, but for
    `Run.num_events` and `Run.skips`, which tell of skipping.
    """
    if choose_engine(system, settings) == "compiled":
        return simulate_compiled(system, skipping=settings.skipping)
    from nestsim.simulator.simpy_engine import simulate  # many commands need no SimPy

    return simulate(system, skipping=settings.skipping)


class _EngineRun(NamedTuple):
    """A run, and what made it."""

    run: Run
    """The run."""
    engine: str
    """Engine that made it, ``"simpy"`` or ``"compiled"``."""


def confirmed_run(system: System, settings: ReplaySettings) -> _EngineRun:
    """Return the run by SimPy, if it has no more than `MOST_SIMPY_EVENTS`.

    The compiled engine, which takes a tenth of the time, counts them, and has to give
    the same run bit for bit. Settings that name an engine have their way.
    """
    compiled = simulate_compiled(system, skipping=settings.skipping)
    is_long = settings.engine == "auto" and compiled.num_events > MOST_SIMPY_EVENTS
    if is_long or settings.engine == "compiled":
        return _EngineRun(compiled, "compiled")
    from nestsim.simulator.simpy_engine import simulate

    run = simulate(system, skipping=settings.skipping)
    assert is_same_run(run, compiled), (
        f"SimPy's engine ends at {run.end!r} s after {run.num_events} events, "
        f"the compiled engine at {compiled.end!r} s after {compiled.num_events}"
    )
    return _EngineRun(run, "simpy")


def system_time(system: System, settings: ReplaySettings, cutoff: float) -> float:
    """Return the end of a system's run, infinity if it is later than the cutoff [s].

    Bitwise that of `run_system`. With the engine ``"auto"`` it is compiled: who asks
    for the time alone, asks often.
    """
    if settings.engine != "simpy":
        return end_of_compiled_run(system, skipping=settings.skipping, cutoff=cutoff)
    from nestsim.simulator.simpy_engine import end_of_run

    return end_of_run(system, skipping=settings.skipping, cutoff=cutoff)


def choose_engine(system: System, settings: ReplaySettings) -> str:
    """Return the engine that `run_system` takes: ``"simpy"`` or ``"compiled"``."""
    if settings.engine != "auto":
        return settings.engine
    return "compiled" if forecast_seconds(system)["simpy"] > LONG else "simpy"


def forecast_seconds(system: System) -> Mapping[str, float]:
    """Return about what a run takes with each engine, by name, nothing skipped [s].

    Right to about a factor of two for stages, and up to four times too much for
    collectives inside of passes, many of which start together and are solved at once.
    Flows that share links with hundreds of others take longer, and memory and other
    work on the machine matter.
    """
    # A message of several senders takes a post of each.
    num_posted = num_posts(system.programs, system.ports.shape[1])[system.program]
    sources = np.append(system.num_sources, 1)[system.ports]
    num_messages = round(float((num_posted / sources).sum()))
    return {
        engine: num_steps(system) * cost.per_step + num_messages * cost.per_message
        for engine, cost in _COSTS.items()
    }


_NONE = np.zeros(0, np.int64)
"""Microbatches of no messages."""


def collect_spans(
    model: Model | FoldedStep, folding: Folding, run: Run
) -> tuple[Spans, IntArray]:
    """Return the spans of all actors simulated, and how many each stands for.

    In order of start; equal ones by stage and replica.
    """
    actors = folding.actors
    programs = [model.programs[k] for k in folding.system.program.tolist()]
    length = np.array([program.kinds.size for program in programs], np.int64)
    stage, replica = np.divmod(actors.first, model.num_replicas)
    start = _joined(run.span_starts)
    order = np.argsort(start, kind="stable")
    spans = Spans(
        stage=np.repeat(stage, length)[order],
        replica=np.repeat(replica, length)[order],
        kind=np.concatenate([program.kinds for program in programs])[order],
        microbatch=np.concatenate([program.microbatches for program in programs])[
            order
        ],
        chunk=np.concatenate([program.chunks for program in programs])[order],
        start=start[order],
        end=_joined(run.span_ends)[order],
    )
    multiplicity = np.repeat(actors.sizes, length)[order]
    _freeze(*spans, multiplicity)
    return spans, multiplicity


def collect_transfers(
    model: Model | FoldedStep, folding: Folding, run: Run
) -> tuple[Transfers, IntArray]:
    """Return the messages of all channels simulated, and how many each stands for.

    In order of start; equal ones by flow number.
    """
    flows, channels = model.flows, folding.channels
    counts = np.array([arrivals.size for arrivals in run.arrivals], np.int64)
    start = _joined(run.departures)
    assert start.size == counts.sum(), "a message is under way at the end"
    order = np.argsort(start, kind="stable")
    shown = flows.kind[np.repeat(channels.first, counts)] != SIGNAL
    order = order[shown[order]]
    flow = np.repeat(channels.first, counts)[order]
    microbatch = np.concatenate([*_microbatches(model, folding.system), _NONE])
    transfers = Transfers(
        kind=flows.kind[flow],
        stage=flows.stage[flow],
        replica=flows.replica[flow],
        microbatch=microbatch[order],
        chunk=flows.chunk[flow],
        posted=_joined(run.posts)[order],
        start=start[order],
        end=_joined(run.arrivals)[order],
        num_bytes=flows.num_bytes[flow],
    )
    multiplicity = np.repeat(channels.sizes, counts)[order]
    _freeze(*transfers, multiplicity)
    return transfers, multiplicity


def _microbatches(model: Model | FoldedStep, system: System) -> list[IntArray]:
    """Return the microbatch of each message of each channel, in order.

    The messages of a channel are posted by the same steps of all its senders, or by
    steps of no microbatch.
    """
    by_channel = [_NONE] * system.num_bytes.size
    for program, counts in enumerate(num_posts(system.programs, system.ports.shape[1])):
        actors = np.flatnonzero(system.program == program)
        targets, posted = _posted(model.programs[program])
        for port in np.flatnonzero(counts).tolist():
            sent = posted[targets == port]
            for channel in system.ports[actors, port].tolist():
                known = by_channel[channel]
                # A receiver that says that it is ready has no microbatch.
                by_channel[channel] = np.maximum(known, sent) if known.size else sent
    return by_channel


def _posted(program: StageProgram) -> tuple[IntArray, IntArray]:
    """Return the port that each step posts to, and the microbatch that it posts.

    That of the span that the step is part of, -1 for what is posted outside of any.
    """
    flags = program.steps.span
    opened = np.cumsum(flags & OPENS > 0)
    closes = flags & CLOSES > 0
    closed: IntArray = np.cumsum(closes) - closes
    spans = np.where(opened > closed, closed, -1)
    return program.steps.target, np.append(program.microbatches, -1)[spans]


def _joined(logs: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([*logs, np.zeros(0)])


def _freeze(*columns: NDArray[np.generic]) -> None:
    for values in columns:
        values.flags.writeable = False


_DEFAULT = ReplaySettings()

_WORTH_A_WORD = 5.0
"""Forecast of the running time above which a run reports it before it starts [s]."""


def replay(  # noqa: PLR0913 - what is simulated, and how
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings = _DEFAULT,
    *,
    memory: bool = True,
    every_actor: bool = False,
    confirm: bool = False,
    progress: Progress | None = None,
) -> Replay:
    """Simulate one training step and return everything that happened in it.

    The same input gives bitwise the same output. With nothing in each other's way the
    spans are those of `planner.kernels.timeline`, durations rounded to ticks. Folding
    changes no moment at which anything happens, bit for bit.

    Parameters
    ----------
    network
        Links and routes.
    work
        Durations, bytes and devices of the step.
    settings
        What to simulate event by event.
    memory
        Whether to keep the account of memory; without it `Replay.memory` is empty.
    every_actor
        Whether to record what every actor and channel did, instead of one of each
        class; that takes memory in proportion to the cluster.
    confirm
        Whether SimPy has the last word, as far as `confirmed_run` asks it.
    progress
        Called before a long run with about how long it will take.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    step: FoldedStep | None = None
    whole: System | None = None
    if settings.folding and work.layers is None and not every_actor:
        step = FramedStep(network, work).fold()
    if step is None:
        model = build_model(network, work)
        step = model_step(model, settings)
        whole = model.system if every_actor else None
    return replay_step(
        network,
        work,
        step,
        settings,
        memory=memory,
        whole=whole,
        confirm=confirm,
        progress=progress,
    )


def model_step(model: Model, settings: ReplaySettings) -> FoldedStep:
    """Fold a step that is ready for the engine, if that is asked for."""
    flows, folding = model.flows, _folding(model, settings)
    return FoldedStep(
        flows=flows,
        programs=model.programs,
        folding=folding,
        crossings=CrossedLinks(
            flows.incidence, np.arange(len(flows)), folding.channels
        ),
        num_replicas=model.num_replicas,
        notes=model.notes,
    )


def replay_step(  # noqa: PLR0913 - what is simulated, and what `replay` takes
    network: Network,
    work: PipelineWork,
    model: FoldedStep,
    settings: ReplaySettings,
    *,
    memory: bool = True,
    whole: System | None = None,
    confirm: bool = False,
    progress: Progress | None = None,
) -> Replay:
    """Simulate a training step that is ready for the engine; as `replay` does.

    Parameters
    ----------
    network, work
        What the step was built of.
    model
        Actors, channels and flows, folded.
    settings
        What to simulate event by event.
    whole
        The system that was folded, if all that its actors did is to be recorded.
    memory, confirm, progress
        As of `replay`.
    """
    folding = model.folding
    traffic = Traffic(
        network.links, model.flows.num_bytes, folding.channels, model.crossings
    )
    num_recorded = max(traffic.num_rows, folding.channels.first.size)
    system = dataclasses.replace(folding.system, num_recorded=num_recorded)
    if progress is not None:
        report_forecast(system, settings, progress)
    if confirm:
        run, engine = confirmed_run(system, settings)
    else:
        run, engine = run_system(system, settings), choose_engine(system, settings)
    links = traffic.record(run)
    notes = (*model.notes, *_folding_notes(model, folding), *_skip_notes(run.skips))
    if whole is not None:
        run, folding = folding.unfolded(run), unfolded(whole)
    spans, span_multiplicity = collect_spans(model, folding, run)
    transfers, transfer_multiplicity = collect_transfers(model, folding, run)
    passes = spans.kind != SPAN_KINDS.index("optimizer")
    return Replay(
        schedule=work.schedule,
        iteration_time=run.end,
        pipeline_time=float(spans.end[passes].max(initial=0.0)),
        spans=spans,
        span_multiplicity=span_multiplicity,
        transfers=transfers,
        transfer_multiplicity=transfer_multiplicity,
        representative=_representatives(model, folding),
        memory=_memory(model, folding, run, work) if memory else (),
        links=links,
        engine=engine,
        host_time=work.host_time,
        num_events=run.num_events,
        num_skipped=run.num_skipped,
        notes=notes,
        system=system,
    )


def replayed_time(
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings = _DEFAULT,
    *,
    cutoff: float = math.inf,
    frames: Frames | None = None,
) -> float:
    """Return how long one training step takes, and nothing else of it [s].

    Bitwise `Replay.iteration_time` of `replay`; but infinity if that is more than the
    cutoff [s], which is noticed as soon as the simulated time has passed it. Nothing of
    what happened is recorded. For searches, which ask this of many plans: with
    ``frames`` of this network what steps have in common is worked out once.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    system = frames.system(work) if frames and settings.folding else None
    if system is None:
        system = _folding(build_model(network, work), settings).system
    return system_time(system, settings, cutoff)


def _folding(model: Model, settings: ReplaySettings) -> Folding:
    return fold_model(model) if settings.folding else unfolded(model.system)


def fold_model(model: Model) -> Folding:
    """Merge alike actors of each stage, and alike channels of each kind and stage."""
    flows, num_replicas = model.flows, model.num_replicas
    return fold(
        model.system,
        np.arange(model.system.program.size) // num_replicas,
        numbered(flows.kind, flows.stage, flows.chunk),
    )


def report_forecast(
    system: System, settings: ReplaySettings, progress: Progress
) -> None:
    """Say about how long a run will take, if it is long."""
    seconds = forecast_seconds(system)[choose_engine(system, settings)]
    if seconds > _WORTH_A_WORD:
        unless = ", less if its state repeats" if settings.skipping else ""
        progress(f"about {seconds:.0f} s{unless}", None)


def _representatives(model: FoldedStep, folding: Folding) -> IntArray:
    """Return the replica that stands for each, by stage."""
    num_stages = len(model.flows.reduce)
    replicas = folding.actors.representative % model.num_replicas
    # Communication streams come after the actors of the stages.
    of_stages = replicas[: num_stages * model.num_replicas].copy()
    of_stages.flags.writeable = False
    return of_stages.reshape(-1, model.num_replicas)


def _folding_notes(model: FoldedStep, folding: Folding) -> tuple[str, ...]:
    """Return what folding did, in words; nothing if it did nothing."""
    representative = _representatives(model, folding)
    is_recorded = representative == np.arange(model.num_replicas)
    if is_recorded.all():
        return ()
    numbers = (
        np.arange(len(representative))[:, None] * model.num_replicas + representative
    )
    sizes = np.bincount(numbers.ravel(), minlength=is_recorded.size)
    sizes = np.sort(sizes[is_recorded.ravel()])
    members = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else f"{sizes[0]}"
    return (
        f"{sizes.size:,} of {is_recorded.size:,} actors (a stage of a replica each) "
        f"are simulated, each for a class of {members} that are provably alike, and "
        f"{folding.channels.first.size:,} of {len(model.flows):,} channels; this "
        "changes no moment at which anything happens.",
    )


def _skip_notes(skips: tuple[Skip, ...]) -> tuple[str, ...]:
    """Return what was skipped, in words; nothing if nothing was."""
    if not skips:
        return ()
    periods = sum(skip.num_periods for skip in skips)
    spans = sum(skip.num_spans for skip in skips)
    events = sum(skip.num_events for skip in skips)
    shortest, longest = (pick(skip.period for skip in skips) for pick in (min, max))
    length = f"{shortest:.4g}"
    if longest > shortest:
        length += f" to {longest:.4g}"
    single = periods == 1
    return (
        f"{periods:,} {'period' if single else 'periods'} of {length} s repeated what "
        f"came before bit for bit; {'its' if single else 'their'} {spans:,} passes and "
        f"{events:,} events were written down again instead of being simulated, which "
        "changes no moment at which anything happens.",
    )


def _memory(
    model: FoldedStep, folding: Folding, run: Run, work: PipelineWork
) -> tuple[MemoryTimeline, ...]:
    """Return the account of each stage; alike actors hold the same at all times."""
    stages = folding.actors.first // model.num_replicas
    timelines = []
    for stage, memory in enumerate(work.memory):
        actors = np.flatnonzero(stages == stage).tolist()
        program = model.programs[int(folding.system.program[actors[0]])]
        logs = [(run.span_starts[actor], run.span_ends[actor]) for actor in actors]
        timelines.append(stage_memory_timeline(memory, program, logs))
    return tuple(timelines)
