"""Jobs that train at the same time on devices of one network, replayed together.

Each job repeats its step for as long as the others are busy. What counts is its
*steady* step: what it takes in the long run (`steady`). How much others
slow it down is that time over its steady step when it is alone. Jobs that share no link
have nothing to do with each other: each group that meets is replayed by itself, for
four steps of its slowest job, and then for more and more, until it is locked or its
means are settled.

Jobs begin at given moments, and nothing is drawn at random. Two equal jobs that begin
together stay in phase, so that each of their transfers meets its twin: the worst case.
Jobs with steps of different lengths push each other into a phase, or drift past each
other.

Jobs meet in the transfers that the replay simulates. With `ReplaySettings.granularity`
``"stage"`` what passes send inside of themselves (tensor, context and expert groups,
ZeRO-3) is part of their durations and meets nothing: where such groups span links that
jobs share, ``"layer"`` is needed to see it.

Letters: ``J`` jobs, ``E`` links.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nestsim.document.wording import plural
from nestsim.features.jobs.steady import MOST_MOVE, Steady, steady_steps, window
from nestsim.simulator.folding import unfolded
from nestsim.simulator.replay import replayed_time, report_forecast, run_system
from nestsim.simulator.several import (
    Stint,
    carried_bytes,
    fold_jobs,
    join_jobs,
    step_ends,
)
from nestsim.simulator.system import TICK, ReplaySettings, quantise
from nestsim.simulator.work import PipelineWork
from planner.work import Progress
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError
from topologies.network import Links, Network
from topologies.units import format_duration

LEAST_STEPS = 4
"""Steps that every job makes at least while all are running, where nobody says how
many: of fewer, no two in a row can be alike behind the first."""

MOST_STEPS = 128
"""Steps of the slowest of the jobs that meet up to which they are replayed, where
nobody says how many."""

_GROWTH = 4
"""How many times as many steps the second replay has, and every later one half as many
times."""


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

    rates: FloatArray
    """What each link carries of each job in the long run, shape ``(J, E)``
    [byte/s]."""

    steady: tuple[Steady | None, ...]
    """Steady step of each job; None for one that finished no step to count."""

    groups: tuple[tuple[int, ...], ...]
    """Jobs that meet, directly or by others, rising."""

    ticks: tuple[float, ...]
    """What all moments of each job are multiples of [s]."""

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

    @property
    def is_settled(self) -> bool:
        """Whether what all jobs take in the long run is known."""
        return self.is_settled_in(range(len(self.steady)))

    def is_settled_in(self, group: Sequence[int]) -> bool:
        """Whether what some jobs take in the long run is known."""
        steady = [self.steady[job] for job in group]
        return all(of_job is not None and of_job.is_settled for of_job in steady)

    def of_job(self, job: int) -> "SharedReplay":
        """Return what one job did, that no other one met."""
        return replace(
            self,
            starts=self.starts[job : job + 1],
            ends=self.ends[job : job + 1],
            num_bytes=self.num_bytes[job : job + 1],
            rates=self.rates[job : job + 1],
            steady=self.steady[job : job + 1],
            groups=((0,),),
            ticks=self.ticks[job : job + 1],
        )

    @property
    def tick(self) -> float:
        """What all moments are multiples of [s]."""
        return max(self.ticks)

    def window(self, job: int) -> IntArray:
        """Return the steps of a job, from 0, that began and ended while all ran.

        Without its first.
        """
        return window(self.starts, self.ends, job)

    def shared_links(self) -> IntArray:
        """Return the links over which two jobs or more send, rising."""
        return np.flatnonzero(np.count_nonzero(self.num_bytes, axis=0) > 1)

    def shares(self, links: Links) -> FloatArray:
        """Return the part of each link's capacity that each job takes, ``(J, E)``."""
        return np.asarray(self.rates / links.bandwidth)


def steady_step(shared: SharedReplay, job: int) -> Steady:
    """Return what a job's steps take in the long run.

    Raises
    ------
    InputError
        If the job finished no step but its first while all jobs were running.
    """
    steady = shared.steady[job]
    if steady is None:
        raise InputError(
            "A job finishes no step but its first while all jobs are running.",
            where=f"jobs[{job}]",
            got=f"{shared.steps[job]} steps beside {shared.steps}",
            hint="Let the other jobs make more steps, or start earlier.",
        )
    return steady


def slowdown(shared: SharedReplay, alone: SharedReplay, job: int) -> float:
    """Return by what the other jobs multiply the step time of a job.

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
    return steady_step(shared, job).time / steady_step(alone, 0).time


def lost_devices(num_devices: Sequence[int], slowdowns: Sequence[float]) -> float:
    """Return how many devices' throughput jobs lose to each other.

    Parameters
    ----------
    num_devices
        Of each job.
    slowdowns
        Of each job.
    """
    return sum(
        count * (1.0 - 1.0 / slowdown)
        for count, slowdown in zip(num_devices, slowdowns, strict=True)
    )


def replay_together(  # noqa: PLR0913 - four of them by name
    network: Network,
    works: Sequence[PipelineWork],
    settings: ReplaySettings,
    *,
    steps: Sequence[int] | int = MOST_STEPS,
    offsets: Sequence[float] | None = None,
    locked_within: int = 0,
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
        Steps that each job makes, at least 1; or the most that the slowest of those
        that meet makes, `LEAST_STEPS` or more, where it is as many as show what they
        take in the long run.
    offsets
        Moment at which each job begins; 0 for all if None [s].
    locked_within
        Steps of the slowest until which jobs are replayed whose means are settled, but
        which may lock later.
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
    replays = _Replays(network, settings, progress, locked_within=locked_within)
    if not isinstance(steps, int):
        assert len(steps) == len(works)
        assert all(count >= 1 for count in steps)
        return replays.run([*map(Stint, works, steps, starts)])
    usual = [replayed_time(network, work, settings) for work in works]
    whole = range(len(works))
    first = replays.run(_beginning(works, starts, usual, whole))
    groups = _meeting(first.num_bytes)
    if len(groups) == 1:
        return replays.steadied(_beginning(works, starts, usual, whole), first, steps)
    parts = []
    for group in groups:
        stints = _beginning(works, starts, usual, group)
        parts.append(replays.steadied(stints, replays.run(stints), steps))
    return _merged(groups, parts)


def _beginning(
    works: Sequence[PipelineWork],
    starts: Sequence[float],
    times: Sequence[float],
    group: Sequence[int],
) -> list[Stint]:
    """Return some jobs for the fewest steps, from about what each of theirs takes."""
    until = max(starts[job] for job in group)
    until += LEAST_STEPS * max(times[job] for job in group)
    return [
        Stint(works[job], _busy_steps(times[job], starts[job], until), starts[job])
        for job in group
    ]


@dataclass(frozen=True, slots=True)
class _Replays:
    """How jobs are replayed together."""

    network: Network
    settings: ReplaySettings
    progress: Progress | None
    tick: float = TICK
    """The finest tick to be used [s]."""

    locked_within: int = 0
    """Steps until which means that are settled are not enough."""

    def steadied(
        self, stints: Sequence[Stint], shared: SharedReplay, most_steps: int
    ) -> SharedReplay:
        """Replay jobs that meet for more steps, until what they take is known.

        Or for as many as there is room to write down.
        """
        starts = [stint.start for stint in stints]
        wanted = LEAST_STEPS
        while wanted < most_steps and not self._is_enough(shared, wanted):
            growth = _GROWTH if wanted == LEAST_STEPS else _GROWTH // 2
            wanted = min(wanted * growth, most_steps)
            times = [shared.step_times(job) for job in range(len(stints))]
            slowest = max(float(of_job.max()) for of_job in times)
            until = max(starts) + wanted * slowest
            again = [
                stint._replace(
                    num_steps=_busy_steps(float(of_job.mean()), stint.start, until)
                )
                for stint, of_job in zip(stints, times, strict=True)
            ]
            try:
                shared = self.run(again)
            except InputError:
                if any(one is None for one in shared.steady):
                    raise
                break
        return shared

    def _is_enough(self, shared: SharedReplay, num_steps: int) -> bool:
        """Whether it is known after so many steps what jobs take in the long run."""
        is_locked = all(steady and steady.lock for steady in shared.steady)
        return shared.is_settled and (is_locked or num_steps >= self.locked_within)

    def run(self, stints: Sequence[Stint]) -> SharedReplay:
        """Replay jobs for given numbers of steps."""
        settings = self.settings
        if settings.engine == "auto":
            # Who asks how jobs do together, asks for many placements of them.
            settings = replace(settings, engine="compiled")
        model = join_jobs(self.network, stints, tick=self.tick)
        folding = fold_jobs(model) if settings.folding else unfolded(model.system)
        system = folding.system
        if self.progress is not None:
            report_forecast(system, settings, self.progress)
        run = run_system(system, settings)
        num_links = len(self.network.links)
        num_bytes = carried_bytes(model, folding, run, num_links)
        ends = step_ends(model, folding, run)
        starts = tuple(quantise(stint.start, system.tick) for stint in stints)
        steady = steady_steps(starts, ends, (*run.span_ends, *run.arrivals))
        rates = _rates(steady, num_bytes, ends)
        if rates is None:
            begin, end = max(starts), min(float(of_job[-1]) for of_job in ends)
            within = (begin, end)
            rates = carried_bytes(model, folding, run, num_links, within=within)
            rates /= max(end - begin, system.tick)
        for values in (num_bytes, rates, *ends):
            values.flags.writeable = False
        return SharedReplay(
            starts=starts,
            ends=ends,
            num_bytes=num_bytes,
            rates=rates,
            steady=steady,
            groups=(tuple(range(len(stints))),),
            ticks=(system.tick,) * len(stints),
            num_actors=model.system.program.size,
            num_classes=system.program.size,
            num_events=run.num_events,
        )


def _meeting(num_bytes: FloatArray) -> tuple[tuple[int, ...], ...]:
    """Return which jobs share links, directly or by others, rising."""
    uses = (num_bytes > 0.0).astype(np.float64)
    meets = (uses @ uses.T > 0.0) | np.eye(len(uses), dtype=np.bool_)
    for _ in range(len(uses)):
        meets = meets @ meets
    groups = (tuple(np.flatnonzero(row).tolist()) for row in meets)
    return tuple(dict.fromkeys(groups))


def _merged(
    groups: Sequence[Sequence[int]], parts: Sequence[SharedReplay]
) -> SharedReplay:
    """Return replays of groups of jobs as one of all jobs."""
    places = {
        job: (part, place)
        for group, part in zip(groups, parts, strict=True)
        for place, job in enumerate(group)
    }
    rows = [places[job] for job in range(len(places))]
    return SharedReplay(
        starts=tuple(part.starts[place] for part, place in rows),
        ends=tuple(part.ends[place] for part, place in rows),
        num_bytes=np.array([part.num_bytes[place] for part, place in rows]),
        rates=np.array([part.rates[place] for part, place in rows]),
        steady=tuple(part.steady[place] for part, place in rows),
        groups=tuple(map(tuple, groups)),
        ticks=tuple(part.ticks[place] for part, place in rows),
        num_actors=sum(part.num_actors for part in parts),
        num_classes=sum(part.num_classes for part in parts),
        num_events=sum(part.num_events for part in parts),
    )


def replay_alone(
    network: Network,
    works: Sequence[PipelineWork],
    shared: SharedReplay,
    settings: ReplaySettings,
) -> tuple[SharedReplay, ...]:
    """Replay each of some jobs by itself, until its step is steady, too.

    On the tick of the job among the others: what nobody disturbs is the same, bit for
    bit, and is not replayed again.

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
    alone = []
    for job, work in enumerate(works):
        steady_step(shared, job)
        if (job,) in shared.groups:
            alone.append(shared.of_job(job))
            continue
        replays = _Replays(network, settings, None, shared.ticks[job])
        stints = [Stint(work, LEAST_STEPS)]
        alone.append(replays.steadied(stints, replays.run(stints), MOST_STEPS))
    return tuple(alone)


def _busy_steps(time: float, start: float, until: float) -> int:
    """Return the steps that keep a job busy until a moment, from its usual time."""
    if time <= 0.0:
        return 1
    return max(LEAST_STEPS, math.ceil((until - start) / time))


def long_run_notes(names: Sequence[str], shared: SharedReplay) -> Iterator[str]:
    """Yield how what jobs take in the long run is known, one sentence a group.

    Parameters
    ----------
    names
        What the jobs are called.
    shared
        The jobs together.
    """
    alone = [names[group[0]] for group in shared.groups if len(group) == 1]
    if alone:
        listed = ", ".join(f'"{name}"' for name in alone)
        yield f"No link is shared by {listed} and another job."
    for group in shared.groups:
        if len(group) == 1:
            continue
        steady = [steady_step(shared, job) for job in group]
        locks = [of_job.lock for of_job in steady if of_job.lock is not None]
        listed = ", ".join(
            f'"{names[job]}" {shared.steps[job]:,} steps' for job in group
        )
        start = f"Replayed together: {listed}."
        if locks:
            made = ", ".join(
                f'{plural(lock.steps, "step")} of "{names[job]}"'
                + (f" ({lock.phase:.2f} of a step behind)" if place else "")
                for place, (job, lock) in enumerate(zip(group, locks, strict=True))
            )
            period = format_duration(locks[0].period)
            yield f"{start} They are locked: {made} take {period}, again and again."
        elif shared.is_settled_in(group):
            yield (
                f"{start} They are not locked, but have met in all phases, or come to "
                f"rest in some: the means of both halves are within "
                f"{100 * MOST_MOVE:g} % of each other."
            )
        else:
            yield (
                f"{start} They are neither locked nor settled by then: the ranges are "
                "those of the quarters' means, and more steps (shared.most_steps) may "
                "leave them."
            )


def _rates(
    steady: Sequence[Steady | None],
    num_bytes: FloatArray,
    ends: Sequence[FloatArray],
) -> FloatArray | None:
    """Return what links carry of locked jobs [byte/s]; None where they are not.

    All steps of a job carry the same, so whole periods carry what they can.
    """
    times = [one.time for one in steady if one is not None and one.lock is not None]
    if len(times) < len(steady):
        return None
    steps = np.array([of_job.size for of_job in ends])
    return np.asarray(num_bytes / steps[:, None] / np.array(times)[:, None])


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
