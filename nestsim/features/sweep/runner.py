"""Evaluate points wherever there is room, and write each down as soon as it is done.

Who evaluates is an executor's matter. This process alone writes. Points are known by
number and key: neither their order of finishing nor who evaluated them changes what is
stored. One point may take a limited time.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from nestsim.features.sweep.executors.processes import Processes
from nestsim.features.sweep.executors.protocol import Evaluate, Executor
from nestsim.running.store import Outcome, Point, PointTask, Row, Store
from planner.work import Progress
from topologies.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Everything that a sweep found."""

    outcomes: tuple[Outcome, ...]
    """Outcome of each point, in their order."""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Points without results."""
        return tuple(outcome for outcome in self.outcomes if outcome.row is None)

    @property
    def rows(self) -> tuple[Row | None, ...]:
        """The results of each point; None for those that failed."""
        return tuple(outcome.row for outcome in self.outcomes)


def run_sweep(  # noqa: PLR0913 - one for each thing that can be asked
    points: Sequence[Point],
    task: PointTask,
    store: Store | None = None,
    *,
    workers: int | None = 1,
    executor: Executor | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Evaluate all points that the store does not have yet.

    Interrupted or killed at any moment, it leaves a store with whole points only; the
    same call takes it up again. Points that failed are not tried again.

    Parameters
    ----------
    points
        What is evaluated, all of them different.
    task
        What is done with each; unless this process alone does it, of a module that
        workers can import.
    store
        Where finished points are kept; None for memory alone.
    workers
        Processes; 1 for this one alone, None for one for each core.
    executor
        Who evaluates points; None for so many processes of this machine.
    time_limit
        A point that takes longer fails [s]; None for no limit.
    progress
        Called with every finished point, with rate and time left.

    Raises
    ------
    InputError
        If two points are the same, the store is of other points or full, or there is
        nobody to evaluate points.
    """
    keys = _keys(points, task)
    if store is None:
        with Store() as memory:
            return run_sweep(
                points,
                task,
                memory,
                workers=workers,
                executor=executor,
                time_limit=time_limit,
                progress=progress,
            )
    pending = _pending(keys, store)
    meter = _Meter(len(points), len(points) - len(pending), progress)
    jobs = [(number, points[number]) for number in pending]
    evaluate = Evaluate(task, time_limit)
    executor = Processes(workers) if executor is None else executor
    # Closed at once when interrupted: that stops what is under way.
    with closing(executor.answers(jobs, evaluate)) as answers:
        for answer in answers:
            outcome = Outcome(
                number=answer.number,
                key=keys[answer.number],
                point=points[answer.number],
                row=answer.row,
                reason=answer.reason,
            )
            store.record(outcome, answer.seconds)
            meter.count()
    return SweepResult(outcomes=tuple(store.outcomes()))


def _keys(points: Sequence[Point], task: PointTask) -> list[str]:
    """Return the key of each point; refuse two that are the same."""
    keys: dict[str, int] = {}
    for number, point in enumerate(points):
        key = task.key(point)
        if key in keys:
            raise InputError(
                f"points {keys[key] + 1} and {number + 1} are the same",
                got=dict(point),
                expected="every point once",
            )
        keys[key] = number
    return list(keys)


def _pending(keys: Sequence[str], store: Store) -> list[int]:
    """Return the numbers of the points that are not done; refuse a foreign store."""
    done = store.keys()
    for number, key in done.items():
        if number >= len(keys) or keys[number] != key:
            raise InputError(
                "holds points of another sweep",
                where=str(store.path),
                expected="the points that it was begun with",
                hint="--restart forgets it; another --output leaves it alone",
            )
    return [number for number in range(len(keys)) if number not in done]


class _Meter:
    """Reports how many points are done, how fast, and how long the others will take."""

    def __init__(self, total: int, done: int, progress: Progress | None) -> None:
        self._total, self._done, self._progress = total, done, progress
        self._had, self._begun = done, time.perf_counter()
        self._report()

    def count(self) -> None:
        """Count one more point."""
        self._done += 1
        self._report()

    def _report(self) -> None:
        if self._progress is None or not self._total:
            return
        text = f"point {self._done:,} of {self._total:,}"
        seconds = time.perf_counter() - self._begun
        fresh = self._done - self._had
        if fresh and seconds > 0:
            left = (self._total - self._done) * seconds / fresh
            text += f", {_rate(fresh / seconds)}, {left:,.0f} s left"
        self._progress(text, self._done / self._total)


def _rate(rate: float) -> str:
    """Return points per second, or per minute where that is less than one."""
    return f"{rate:,.1f}/s" if rate >= 1.0 else f"{60 * rate:,.1f}/min"
