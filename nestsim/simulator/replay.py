"""Replay one placed training step over the links of the network.

Every stage of every replica is an actor with its schedule's instructions; activations,
gradients and collectives are flows that share links max-min fairly. Actors that are
provably alike are simulated once.
"""

import dataclasses
import math

import numpy as np

from nestsim.simulator.folding import Folding, fold, numbered, unfolded
from nestsim.simulator.memory import stage_memory_timeline
from nestsim.simulator.model import Model, build_model
from nestsim.simulator.outcome import SPAN_KINDS, MemoryTimeline, Replay
from nestsim.simulator.records import collect_spans, collect_transfers
from nestsim.simulator.run import (
    choose_engine,
    forecast_seconds,
    run_system,
    system_time,
)
from nestsim.simulator.settings import ReplaySettings
from nestsim.simulator.system import Run, Skip, System
from nestsim.simulator.traffic import Traffic
from nestsim.simulator.work import PipelineWork
from planner.work import Progress
from topologies.arrays import IntArray
from topologies.network import Network

_DEFAULT = ReplaySettings()

_LONG = 5.0
"""A run that is forecast to take longer says so before it starts [s]."""


def replay(
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings = _DEFAULT,
    *,
    memory: bool = True,
    every_actor: bool = False,
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
    progress
        Told before a long run about how long it will take.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    model = build_model(network, work)
    folding = _folding(model, settings)
    traffic = Traffic(network.links, model.flows, folding.channels)
    num_recorded = max(traffic.num_rows, folding.channels.first.size)
    system = dataclasses.replace(folding.system, num_recorded=num_recorded)
    if progress is not None:
        _announce(system, settings, progress)
    run = run_system(system, settings)
    links = traffic.record(run)
    folded = (*model.folded, *_said(model, folding), *_said_of_skips(run.skips))
    if every_actor:
        run, folding = folding.unfolded(run), unfolded(model.system)
    spans, span_multiplicity = collect_spans(model, folding, run)
    transfers, transfer_multiplicity = collect_transfers(model, folding, run)
    passes = spans.kind != SPAN_KINDS.index("optimizer")
    return Replay(
        iteration_time=run.end,
        pipeline_time=float(spans.end[passes].max(initial=0.0)),
        spans=spans,
        span_multiplicity=span_multiplicity,
        transfers=transfers,
        transfer_multiplicity=transfer_multiplicity,
        stand_in=_stand_in(model, folding),
        memory=_memory(model, folding, run, work) if memory else (),
        links=links,
        num_events=run.num_events,
        num_skipped=run.num_skipped,
        folded=folded,
    )


def replayed_time(
    network: Network,
    work: PipelineWork,
    settings: ReplaySettings = _DEFAULT,
    *,
    cutoff: float = math.inf,
) -> float:
    """Return how long one training step takes, and nothing else of it [s].

    Bitwise `Replay.iteration_time` of `replay`; but infinity if that is more than the
    cutoff [s], which is noticed as soon as the simulated time has passed it. Nothing of
    what happened is recorded. For searches, which ask this of many plans.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    model = build_model(network, work)
    return system_time(_folding(model, settings).system, settings, cutoff)


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


def _announce(system: System, settings: ReplaySettings, progress: Progress) -> None:
    """Say how long a long run will take."""
    seconds = forecast_seconds(system)[choose_engine(system, settings)]
    if seconds > _LONG:
        unless = ", less if its state repeats" if settings.skipping else ""
        progress(f"about {seconds:.0f} s{unless}", None)


def _stand_in(model: Model, folding: Folding) -> IntArray:
    """Return the replica that stands for each, by stage."""
    num_stages = len(model.flows.reduce)
    replicas = folding.actors.stand_in % model.num_replicas
    # Communication streams come after the actors of the stages.
    of_stages = replicas[: num_stages * model.num_replicas].copy()
    of_stages.flags.writeable = False
    return of_stages.reshape(-1, model.num_replicas)


def _said(model: Model, folding: Folding) -> tuple[str, ...]:
    """Return what folding did, in words; nothing if it did nothing."""
    stand_in = _stand_in(model, folding)
    own = stand_in == np.arange(model.num_replicas)
    if own.all():
        return ()
    numbers = np.arange(len(stand_in))[:, None] * model.num_replicas + stand_in
    sizes = np.bincount(numbers.ravel(), minlength=own.size)
    sizes = np.sort(sizes[own.ravel()])
    members = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else f"{sizes[0]}"
    return (
        f"{sizes.size:,} of {own.size:,} actors (a stage of a replica each) are "
        f"simulated, each for a class of {members} that are provably alike, and "
        f"{folding.channels.first.size:,} of {len(model.flows):,} channels; this "
        "changes no moment at which anything happens.",
    )


def _said_of_skips(skips: tuple[Skip, ...]) -> tuple[str, ...]:
    """Return what was skipped, in words; nothing if nothing was."""
    if not skips:
        return ()
    periods = sum(skip.num_periods for skip in skips)
    spans = sum(skip.num_spans for skip in skips)
    events = sum(skip.num_events for skip in skips)
    shortest, longest = (pick(skip.period for skip in skips) for pick in (min, max))
    each = f"{shortest:.4g}"
    if longest > shortest:
        each += f" to {longest:.4g}"
    one = periods == 1
    return (
        f"{periods:,} {'period' if one else 'periods'} of {each} s repeated what came "
        f"before bit for bit; {'its' if one else 'their'} {spans:,} passes and "
        f"{events:,} events were written down again instead of being simulated, which "
        "changes no moment at which anything happens.",
    )


def _memory(
    model: Model, folding: Folding, run: Run, work: PipelineWork
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
