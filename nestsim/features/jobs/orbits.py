"""Orbits of jobs that lock, which starts end in which, and what another start saves.

Jobs that lock (`nestsim.features.jobs.steady`) go round an *orbit*: in a period each
makes a whole number of steps, at the same moments of it again and again. In which orbit
they end depends on when they begin. So one job's start is moved over its own step, in
equal parts, and each of these starts is replayed: all that end in the same orbit are
its *basin*.

By how much must a job be shifted so that it sends while others compute? That is the
question of CASSINI (Rajasekaran, Ghobadi, Akella, "CASSINI: Network-Aware Job
Scheduling in Machine Learning Clusters", NSDI 2024), which answers it by geometry; here
jobs are replayed as they push each other.

Whether an orbit *holds* is seen by pushing: the start is moved a little to both sides.
The jobs come back to the same orbit, stay shifted by about as much (no link makes them
come closer or go apart), or leave for another one. What stays or leaves lasts no longer
than nothing disturbs it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.features.jobs.replay import (
    SharedReplay,
    lost_devices,
    replay_together,
    steady_step,
)
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import PipelineWork
from planner.work import Progress
from topologies.arrays import FloatArray
from topologies.network import Network

LOCKED_WITHIN = 32
"""Steps of the slowest job within which jobs lock, or are taken to drift if their means
are settled."""

SAME_ORBIT = 1e-4
"""Part of the shifted job's step by which equal orbits differ, at most: jobs come
closer to an orbit with each period, and are replayed until two are alike."""

PUSH = 2e-3
"""Part of the shifted job's step by which its start is moved to see what holds."""

_STAYS = 8.0
"""Pushes by which an orbit that stays shifted is away, at most: steps of several jobs
may pass a push on more than once."""

_IN_STEP = 1e-6
"""Part of a step by which one that ends with another misses it, at most."""

HOLDS = ("returns", "stays", "leaves")
"""What becomes of an orbit that is pushed: the worse one of both sides."""

EQUAL = 5e-4
"""Devices that are lost, relative to all, by which starts hardly differ."""


class Orbit(NamedTuple):
    """What jobs repeat that are locked."""

    period: float
    """Duration [s]."""

    ends: tuple[FloatArray, ...]
    """Parts of the period after which each job ends a step, from an end of a step of
    the slowest on, rising."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that each job makes in a period."""
        return tuple(moments.size for moments in self.ends)

    @property
    def phases(self) -> tuple[float, ...]:
        """Least part of a step of each job by which it ends behind the slowest job."""
        marks = self.ends[int(np.argmin(self.steps))]
        phases = []
        for moments in self.ends:
            near = _IN_STEP / moments.size
            behind = (moments[:, None] - marks + near) % 1.0 - near
            phases.append(max(0.0, float(behind.min())) * moments.size)
        return tuple(phases)

    def distance(self, other: "Orbit") -> float:
        """Return how far apart steps end and how differently long they are, at most.

        Where both orbits fit best; infinite for other numbers of steps [s].
        """
        if self.steps != other.steps:
            return math.inf
        slowest = int(np.argmin(self.steps))
        here = [moments - self.ends[slowest][0] for moments in self.ends]
        apart = min(
            max(
                _apart(mine, moments - mark)
                for mine, moments in zip(here, other.ends, strict=True)
            )
            for mark in other.ends[slowest].tolist()
        )
        longer = abs(other.period - self.period) / max(self.steps)
        return max(apart * self.period, longer)


def _apart(first: FloatArray, second: FloatArray) -> float:
    """Return how far a moment of either is from the nearest of the other, at most."""
    turned = (first[:, None] - second) % 1.0
    away = np.minimum(turned, 1.0 - turned)
    return float(max(away.min(axis=0).max(), away.min(axis=1).max()))


def orbit_of(shared: SharedReplay) -> Orbit | None:
    """Return what jobs repeat, all of which meet; None if they are not locked."""
    ends, period = [], 0.0
    for job, moments in enumerate(shared.ends):
        steady = steady_step(shared, job)
        lock = steady.lock
        if lock is None:
            return None
        period = lock.period
        ends.append((moments[steady.counted] - lock.begin) / period)
    return Orbit(period, tuple(ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Company:
    """Jobs that meet, directly or by others."""

    network: Network
    """Links and routes."""

    works: Sequence[PipelineWork]
    """One step of each."""

    names: Sequence[str]
    """What they are called."""

    num_devices: Sequence[int]
    """Devices of each."""

    settings: ReplaySettings
    """What is simulated event by event."""

    most_steps: int
    """Steps of the slowest, at most."""

    starts: Sequence[float]
    """Moments at which they begin today [s]."""

    alone: Sequence[float]
    """Steady step of each by itself [s]."""

    def replayed(self, job: int, offset: float) -> SharedReplay:
        """Replay all with one job's start moved; to earlier where below 0."""
        starts = [start + max(0.0, -offset) for start in self.starts]
        starts[job] += offset
        return replay_together(
            self.network,
            self.works,
            self.settings,
            steps=self.most_steps,
            offsets=starts,
            locked_within=LOCKED_WITHIN,
        )

    def slowdowns(self, shared: SharedReplay) -> tuple[float, ...]:
        """Return what the others multiply the step of each job by."""
        return tuple(
            steady_step(shared, job).time / alone
            for job, alone in enumerate(self.alone)
        )

    def lost(self, shared: SharedReplay) -> float:
        """Return the throughput that all of them lose, in devices of theirs."""
        return lost_devices(self.num_devices, self.slowdowns(shared))


class ShiftedStart(NamedTuple):
    """What a job's start makes of all jobs that it meets."""

    offset: float
    """By how much later than today it begins [s]."""

    slowdowns: tuple[float, ...]
    """What the others multiply the step of each job by."""

    lost: float
    """Throughput that all of them lose, in devices of theirs."""

    orbit: int | None
    """Place of the orbit in which they end; None if they are not locked."""

    is_settled: bool
    """Whether what they take in the long run is known."""


class Basin(NamedTuple):
    """An orbit with the starts that end in it."""

    orbit: Orbit
    """What repeats."""

    slowdowns: tuple[float, ...]
    """What the others multiply the step of each job by, over the orbit."""

    starts: tuple[int, ...]
    """Numbers of the starts that end in it, rising."""

    holds: str
    """What becomes of it when it is pushed, one of `HOLDS`."""

    pushed_lost: float
    """Devices' throughput that all lose where it was pushed, the worse side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifts:
    """Starts of one job over its own step, today's first."""

    job: str
    """The job."""

    beside: tuple[str, ...]
    """Names of all jobs that meet, this one included, as slow-downs are ordered."""

    span: float
    """Its step by itself, over which the starts are [s]."""

    starts: tuple[ShiftedStart, ...]
    """By offset, rising; the first is today's."""

    basins: tuple[Basin, ...]
    """Orbits, by the first start that ends in each."""

    best: int
    """Number of the start by which all lose the least: of those that hardly differ,
    the one in the middle of the longest run, round the circle."""

    worst: int
    """Number of the start by which all lose the most, the first of equals."""

    nearly: float
    """Devices' throughput by which starts hardly differ."""

    @property
    def saves(self) -> float:
        """Devices' throughput that the best start saves over today's."""
        return self.starts[0].lost - self.starts[self.best].lost


def shifted_starts(
    company: Company,
    job: int,
    count: int,
    progress: Progress | None = None,
) -> Shifts:
    """Replay jobs for starts of one of them over its own step.

    Parameters
    ----------
    company
        Jobs that meet, two or more.
    job
        Which one's start is moved.
    count
        Starts, in equal parts of its step by itself, at least 1.
    progress
        Called before each replay.
    """
    span, names = company.alone[job], company.names
    replays: list[SharedReplay] = []
    for number in range(count):
        if progress is not None:
            progress(f'shift "{names[job]}"', number / count)
        replays.append(company.replayed(job, span * number / count))
    known: list[tuple[Orbit, list[int]]] = []
    starts = []
    for number, shared in enumerate(replays):
        orbit = orbit_of(shared)
        place = None
        if orbit is not None:
            place = _placed(known, orbit, number, SAME_ORBIT * span)
        starts.append(
            ShiftedStart(
                offset=span * number / count,
                slowdowns=company.slowdowns(shared),
                lost=company.lost(shared),
                orbit=place,
                is_settled=shared.is_settled,
            )
        )
    basins = []
    for orbit, numbers in known:
        first = starts[numbers[0]]
        holds, lost = _pushed(company, job, orbit, first.offset)
        basins.append(Basin(orbit, first.slowdowns, tuple(numbers), holds, lost))
    losses = [start.lost for start in starts]
    nearly = EQUAL * sum(company.num_devices)
    return Shifts(
        job=names[job],
        beside=tuple(names),
        span=span,
        starts=tuple(starts),
        basins=tuple(basins),
        best=_middle([lost <= min(losses) + nearly for lost in losses]),
        worst=losses.index(max(losses)),
        nearly=nearly,
    )


def _middle(equal: Sequence[bool]) -> int:
    """Return the middle of the longest run round a circle; 0 if all are equal."""
    if all(equal):
        return 0
    begin, longest = 0, 0
    for first in range(len(equal)):
        if equal[first] and not equal[first - 1]:
            run = 1
            while equal[(first + run) % len(equal)]:
                run += 1
            if run > longest:
                begin, longest = first, run
    return (begin + (longest - 1) // 2) % len(equal)


def _placed(
    known: list[tuple[Orbit, list[int]]], orbit: Orbit, number: int, same: float
) -> int:
    """Put a start to the orbit that it ends in, a new one if none is the same."""
    for place, (other, numbers) in enumerate(known):
        if other.distance(orbit) <= same:
            numbers.append(number)
            return place
    known.append((orbit, [number]))
    return len(known) - 1


def _pushed(
    company: Company, job: int, orbit: Orbit, offset: float
) -> tuple[str, float]:
    """Return what becomes of an orbit that is pushed to both sides, and what is lost.

    The worse side of each.
    """
    span = company.alone[job]
    farthest = lost = 0.0
    for push in (-PUSH * span, PUSH * span):
        shared = company.replayed(job, offset + push)
        pushed = orbit_of(shared)
        away = math.inf if pushed is None else orbit.distance(pushed)
        farthest, lost = max(farthest, away), max(lost, company.lost(shared))
    if farthest <= SAME_ORBIT * span:
        return "returns", lost
    return "stays" if farthest <= _STAYS * PUSH * span else "leaves", lost
