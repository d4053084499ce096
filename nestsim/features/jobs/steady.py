"""What jobs that meet take in the long run: locked, settled, or within a range.

Jobs with steps of different lengths push each other until their phases *lock*: from
then on a period of whole steps of each repeats. All that happened in one period, every
span of every actor and every message, then happened in the next one, at moments that
differ by `SAME` of the period at most: durations are whole ticks, so that what repeats
does so to the bit, or misses by the few ticks by which durations were rounded. What
happens next follows from what is under way. So a job that makes ``n`` steps in a period
``P`` takes ``P / n`` for a step in the long run.

Where nothing repeats, the mean is *settled* if that of the later half of what was
replayed is within `MOST_MOVE` of that of the earlier half, for every job, and the jobs
have met in all phases, or their phases come to rest: of two jobs that drift past each
other slowly, a short replay sees one side alone. Else there is a range: from the least
to the largest mean of the quarters of what was replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray, IntArray

SAME = 1e-9
"""Part of a period by which what repeats may miss it."""

MOST_MOVE = 0.005
"""Part of a mean step by which the halves of what was replayed differ at most, where
the mean is called settled."""

LEAST_COUNTED = 8
"""Steps of each job of which a mean is called settled, at least."""

_LARGEST_GAP = 0.25
"""Part of a step in which a job's ends never fell, at most, where it has met all phases
of another."""

_LONGEST_CYCLE = 16
"""Steps after which the phase of a job may be back where it was."""

_AT_REST = 1e-6
"""Part of a step by which a phase at rest moves, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A period in which jobs repeat all that they do."""

    period: float
    """Duration [s]."""

    steps: int
    """Steps of this job in it."""

    begin: float
    """Moment at which a period begins: a step of the slowest of the jobs ends [s]."""

    phase: float
    """Part of this job's mean step that passes from there until one of its steps
    ends."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Steady:
    """What a job's steps take while all that it meets are running."""

    counted: IntArray
    """Steps, from 0, that it is the mean of: those of a period, if jobs are locked."""

    time: float
    """Mean time of a step [s]."""

    low: float
    """Least time in the long run; `time` unless it is neither locked nor settled
    [s]."""

    high: float
    """Largest time in the long run [s]."""

    lock: Lock | None
    """The period; None if nothing was seen to repeat."""

    is_settled: bool
    """Whether the jobs are locked, or the mean no longer moves."""


def window(starts: Sequence[float], ends: Sequence[FloatArray], job: int) -> IntArray:
    """Return the steps of a job, from 0, that began and ended while all ran.

    Without its first.
    """
    begins = np.concatenate(([starts[job]], ends[job][:-1]))
    stop = min(of_job[-1] for of_job in ends)
    inside = (begins >= max(starts)) & (ends[job] <= stop)
    inside[0] = False
    return np.flatnonzero(inside)


def steady_steps(
    starts: Sequence[float], ends: Sequence[FloatArray], logs: Sequence[FloatArray]
) -> tuple[Steady | None, ...]:
    """Return what steps of jobs that meet take; None for one without any to count.

    Parameters
    ----------
    starts
        Moment at which each job's first step began [s].
    ends
        Moments at which each job had finished each of its steps [s].
    logs
        Rising moments of everything else that happened, such as messages that arrived
        [s].
    """
    locks = _locks(starts, ends, logs)
    if locks:
        return tuple(map(_locked, ends, locks))
    counted = [window(starts, ends, job) for job in range(len(ends))]
    times = [
        np.diff(of_job, prepend=start)
        for of_job, start in zip(ends, starts, strict=True)
    ]
    is_settled = all(map(_mean_rests, times, counted)) and _met_all(
        starts, ends, counted
    )
    return tuple(
        _unlocked(of_job, steps, is_settled=is_settled) if steps.size else None
        for of_job, steps in zip(times, counted, strict=True)
    )


def _locked(ends: FloatArray, lock: Lock) -> Steady:
    """Return the steady step of a job in a period."""
    first, last = _between(ends, lock.begin, lock.begin + lock.period)
    time = lock.period / lock.steps
    return Steady(
        counted=np.arange(first, last),
        time=time,
        low=time,
        high=time,
        lock=lock,
        is_settled=True,
    )


def _unlocked(times: FloatArray, counted: IntArray, *, is_settled: bool) -> Steady:
    """Return the mean of some steps, of their later half if it moves, and its range."""
    kept = counted if is_settled else counted[counted.size // 2 :]
    mean = float(times[kept].mean())
    quarters = np.array_split(times[counted], min(4, counted.size))
    means = [float(part.mean()) for part in quarters]
    return Steady(
        counted=kept,
        time=mean,
        low=mean if is_settled else min(*means, mean),
        high=mean if is_settled else max(*means, mean),
        lock=None,
        is_settled=is_settled,
    )


def _locks(
    starts: Sequence[float], ends: Sequence[FloatArray], logs: Sequence[FloatArray]
) -> tuple[Lock, ...]:
    """Return the shortest period that was seen twice at the end; none if none was.

    Periods begin and end with a step of the job that makes the fewest.
    """
    begin, stop = max(starts), min(of_job[-1] for of_job in ends)
    inside = [moments[(moments >= begin) & (moments <= stop)] for moments in ends]
    # Of equally many those that end first, whatever the order of the jobs.
    marks = min(inside, key=lambda moments: (moments.size, moments.tolist()))
    for length in range(1, (marks.size - 1) // 2 + 1):
        first, middle, last = marks[[-1 - 2 * length, -1 - length, -1]].tolist()
        if all(_repeats(log, first, middle, last) for log in (*ends, *logs)):
            period = last - middle
            return tuple(_lock(of_job, middle, period) for of_job in ends)
    return ()


def _repeats(log: FloatArray, first: float, middle: float, last: float) -> bool:
    """Whether what happened in one period happened in the next."""
    period = last - middle
    (a, b), (_, c) = _between(log, first, middle), _between(log, middle, last)
    if abs(middle - first - period) > SAME * period or c - b != b - a:
        return False
    return bool((np.abs(log[b:c] - log[a:b] - period) <= SAME * period).all())


def _between(log: FloatArray, begin: float, end: float) -> tuple[int, int]:
    """Return the first event behind a moment, and that behind a period's end."""
    moments = np.array([begin, end]) + SAME * (end - begin)
    first, last = np.searchsorted(log, moments, side="right").tolist()
    return first, last


def _lock(ends: FloatArray, begin: float, period: float) -> Lock:
    first, last = _between(ends, begin, begin + period)
    steps = last - first
    passed = float(ends[first] - begin) * steps / period
    return Lock(period=period, steps=steps, begin=begin, phase=passed % 1.0)


def _mean_rests(times: FloatArray, counted: IntArray) -> bool:
    """Whether the mean of the later half of some steps is that of the earlier one."""
    if counted.size < LEAST_COUNTED:
        return False
    early, late = np.array_split(times[counted], 2)
    before, after = float(early.mean()), float(late.mean())
    return abs(after - before) <= MOST_MOVE * after


def _met_all(
    starts: Sequence[float], ends: Sequence[FloatArray], counted: Sequence[IntArray]
) -> bool:
    """Whether jobs met in all phases of the slowest, or their phases come to rest."""
    slowest = min(
        range(len(ends)), key=lambda job: (counted[job].size, ends[job].tolist())
    )
    borders = np.concatenate(([starts[slowest]], ends[slowest]))
    for job, steps in enumerate(counted):
        if job == slowest:
            continue
        moments = ends[job][steps]
        place = np.searchsorted(borders, moments, side="left")
        begin, end = borders[place - 1], borders[place]
        phases = (moments - begin) / (end - begin)
        late = np.sort(phases[phases.size // 2 :])
        gaps = np.diff(late, append=late[0] + 1.0)
        if gaps.max() > _LARGEST_GAP and not _comes_to_rest(phases):
            return False
    return True


def _comes_to_rest(phases: FloatArray) -> bool:
    """Whether phases return to where they were, closer each time."""
    halves = np.array_split(phases, 2)
    longest = min(_LONGEST_CYCLE, halves[1].size - 1)
    if longest < 1:
        return False
    early, late = (
        [_moved(half, cycle) for cycle in range(1, longest + 1)] for half in halves
    )
    cycle = int(np.argmin(late))
    return late[cycle] <= max(_AT_REST, early[cycle] / 2.0)


def _moved(phases: FloatArray, cycle: int) -> float:
    """Return by how much phases differ from those a cycle before, round a circle."""
    turned = np.abs(phases[cycle:] - phases[:-cycle])
    return float(np.minimum(turned, 1.0 - turned).mean())
