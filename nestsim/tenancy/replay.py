"""Jobs that train at the same time on devices of one network, replayed together.

Each job repeats its step for as long as the others are busy. What counts is its
*steady* step: the mean over the steps that it makes while all jobs are running, without
its first, before which nothing was under way. How much others slow it down is that time
over the time of the same steps when it is alone.

Jobs begin at given moments, and nothing is drawn at random. Two equal jobs that begin
together stay in phase, so that each of their transfers meets its twin: the worst case.
Jobs with steps of different lengths drift past each other, and the mean is over what
they meet in the window.

Jobs meet in the transfers that the replay simulates. With `ReplaySettings.granularity`
``"stage"`` what passes send inside of themselves (tensor, context and expert groups,
ZeRO-3) is part of their durations and meets nothing: where such groups span links that
jobs share, ``"layer"`` is needed to see it.

Letters: ``J`` jobs, ``E`` links.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nestsim.simulator.folding import unfolded
from nestsim.simulator.replay import (
    ReplaySettings,
    replayed_time,
    report_forecast,
    run_system,
)
from nestsim.simulator.several import (
    Stint,
    carried_bytes,
    fold_jobs,
    join_jobs,
    step_ends,
)
from nestsim.simulator.system import TICK, quantise
from nestsim.simulator.work import PipelineWork
from planner.work import Progress
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from topologies.network import Links, Network

LEAST_STEPS = 4
"""Steps that every job makes at least while all are running, where nobody says how
many: the first is not counted, and the last may end too late."""

LEAST_COUNTED = 2
"""Steps of each job that its steady step is the mean of, at least, where nobody says
how many steps it makes."""

_MOST_ATTEMPTS = 4
"""Replays until each job has enough steps in the window: the second one knows how much
jobs slow each other down, later ones are for those that drift."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedReplay:
    """What jobs did that ran at the same time, in the order of the jobs given."""

    starts: tuple[float, ...]
    """Moment at which the first step of each job began [s]."""

    ends: tuple[FloatArray, ...]
    """Moments at which each job had finished each of its steps [s]."""

    num_bytes: FloatArray
    """What each link carried of each job in the whole replay, shape ``(J, E)``
    [byte]."""

    tick: float
    """What all moments are multiples of [s]."""

    num_actors: int
    """Stages of replicas, of all jobs, and their communication streams."""

    num_classes: int
    """Actors that were simulated, each for others that are alike."""

    num_events: int
    """Events that the engine processed."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that each job made."""
        return tuple(ends.size for ends in self.ends)

    def step_times(self, job: int) -> FloatArray:
        """Return how long each step of a job took [s]."""
        return np.diff(self.ends[job], prepend=self.starts[job])

    def window(self, job: int) -> IntArray:
        """Return the steps of a job, from 0, that began and ended while all ran.

        Without its first.
        """
        ends = self.ends[job]
        begins = np.concatenate(([self.starts[job]], ends[:-1]))
        inside = (begins >= max(self.starts)) & (ends <= min(e[-1] for e in self.ends))
        inside[0] = False
        return np.flatnonzero(inside)

    def shared_links(self) -> IntArray:
        """Return the links over which two jobs or more send, rising."""
        return np.flatnonzero(np.count_nonzero(self.num_bytes, axis=0) > 1)

    def shares(self, links: Links) -> FloatArray:
        """Return the part of each link's capacity that each job takes, ``(J, E)``.

        The bytes of a step over the capacity and the steady step time: the mean over
        the time in which all jobs are running.
        """
        per_step = self.num_bytes / np.array(self.steps)[:, None]
        times = np.array([steady_step_time(self, job) for job in range(len(self.ends))])
        return np.asarray(per_step / times[:, None] / links.bandwidth)


def steady_step_time(shared: SharedReplay, job: int) -> float:
    """Return the mean step time of a job while all jobs were running [s].

    Raises
    ------
    InputError
        If the job finished no step in that time but its first.
    """
    return float(shared.step_times(job)[_counted(shared, job)].mean())


def slowdown(shared: SharedReplay, alone: SharedReplay, job: int) -> float:
    """Return by what the other jobs multiply the step time of a job.

    The steps of `SharedReplay.window` are compared with the same ones of the job alone.

    Parameters
    ----------
    shared
        The job among others.
    alone
        The job by itself, as of `replay_alone`.
    job
        Which one of those in ``shared`` it is.

    Raises
    ------
    InputError
        If the job finished no step but its first while all jobs were running.
    """
    counted = _counted(shared, job)
    disturbed = float(shared.step_times(job)[counted].sum())
    return disturbed / float(alone.step_times(0)[counted].sum())


def _counted(shared: SharedReplay, job: int) -> IntArray:
    counted = shared.window(job)
    if not counted.size:
        raise InputError(
            "A job finishes no step but its first while all jobs are running.",
            where=f"jobs[{job}]",
            got=f"{shared.steps[job]} steps beside {shared.steps}",
            hint="Let the other jobs make more steps, or start earlier.",
        )
    return counted


def replay_together(
    network: Network,
    works: Sequence[PipelineWork],
    settings: ReplaySettings,
    *,
    steps: Sequence[int] | None = None,
    offsets: Sequence[float] | None = None,
    progress: Progress | None = None,
) -> SharedReplay:
    """Replay jobs that run at the same time on devices of one network.

    The same input gives bitwise the same output, and jobs in another order give the
    same in that order. Folding and the skipping of periods change no moment.

    Parameters
    ----------
    network
        Links and routes.
    works
        One step of each job; no device belongs to two.
    settings
        What is simulated event by event; for all jobs.
    steps
        Steps that each job makes, at least 1. None: as many as keep all jobs busy
        until the slowest has made `LEAST_STEPS`.
    offsets
        Moment at which each job begins; 0 for all if None [s].
    progress
        Called before a long run with about how long it will take.

    Raises
    ------
    InputError
        If jobs have a device in common, a schedule does not work with its sizes, or a
        job makes too many steps to be written down.
    """
    starts = tuple(offsets) if offsets is not None else (0.0,) * len(works)
    assert len(starts) == len(works) > 0
    assert all(start >= 0.0 for start in starts)
    _check_disjoint(works)
    if steps is not None:
        assert len(steps) == len(works)
        assert all(count >= 1 for count in steps)
        stints = [*map(Stint, works, steps, starts)]
        return _run(network, stints, settings, progress)
    usual = [replayed_time(network, work, settings) for work in works]
    slowest = max(usual)
    for attempt in range(_MOST_ATTEMPTS):
        until = max(starts) + LEAST_STEPS * 2**attempt * slowest
        counts = _busy_steps(usual, starts, until)
        stints = [*map(Stint, works, counts, starts)]
        shared = _run(network, stints, settings, progress)
        jobs = range(len(works))
        if all(shared.window(job).size >= LEAST_COUNTED for job in jobs):
            break
        times = [shared.step_times(job) for job in jobs]
        usual = [float(of_job.mean()) for of_job in times]
        slowest = max(float(of_job.max()) for of_job in times)
    return shared


def replay_alone(
    network: Network,
    works: Sequence[PipelineWork],
    shared: SharedReplay,
    settings: ReplaySettings,
) -> tuple[SharedReplay, ...]:
    """Replay each of some jobs by itself, in the same way as together.

    As many steps of each as its steady step is the mean of, and those before them, on
    the tick of the jobs together: what nobody disturbs is the same, bit for bit.

    Parameters
    ----------
    network
        Links and routes.
    works
        One step of each job.
    shared
        The same jobs together.
    settings
        The same as of the jobs together.

    Raises
    ------
    InputError
        If a job finished no step but its first while all jobs were running.
    """
    counts = [int(_counted(shared, job)[-1]) + 1 for job in range(len(works))]
    return tuple(
        _run(network, [Stint(work, count)], settings, None, tick=shared.tick)
        for work, count in zip(works, counts, strict=True)
    )


def _busy_steps(
    times: Sequence[float], starts: Sequence[float], until: float
) -> list[int]:
    """Return the steps that keep jobs busy until a moment, from their usual times."""
    return [
        max(LEAST_STEPS, math.ceil((until - start) / time)) if time > 0.0 else 1
        for time, start in zip(times, starts, strict=True)
    ]


def _run(
    network: Network,
    stints: Sequence[Stint],
    settings: ReplaySettings,
    progress: Progress | None,
    *,
    tick: float = TICK,
) -> SharedReplay:
    """Replay jobs for given numbers of steps, on no finer tick than the one given."""
    if settings.engine == "auto":
        # Who asks how jobs do together, asks for many placements of them.
        settings = replace(settings, engine="compiled")
    model = join_jobs(network, stints, tick=tick)
    folding = fold_jobs(model) if settings.folding else unfolded(model.system)
    system = folding.system
    if progress is not None:
        report_forecast(system, settings, progress)
    run = run_system(system, settings)
    num_bytes = carried_bytes(model, folding, run, len(network.links))
    ends = step_ends(model, folding, run)
    for values in (num_bytes, *ends):
        values.flags.writeable = False
    return SharedReplay(
        starts=tuple(quantise(stint.start, system.tick) for stint in stints),
        ends=ends,
        num_bytes=num_bytes,
        tick=system.tick,
        num_actors=model.system.program.size,
        num_classes=system.program.size,
        num_events=run.num_events,
    )


def _check_disjoint(works: Sequence[PipelineWork]) -> None:
    """Refuse jobs that have a device in common."""
    devices = np.concatenate([work.devices.ravel() for work in works])
    distinct, counts = np.unique(devices, return_counts=True)
    if distinct.size < devices.size:
        twice = distinct[counts > 1]
        raise InputError(
            "Jobs that run at the same time have devices of their own.",
            where="jobs",
            got=f"device {twice[0]} in two places, {twice.size} such devices in all",
        )
