"""Evaluate points on all cores, and write each one down as soon as it is done.

Workers are processes that stay, so that what they have loaded, compiled and cached
serves every later point, and that end with the sweep that they work for, however it
ends. The parent alone writes. Points are known by number and key: neither their order
of finishing nor the number of workers changes what is stored. One point may take a
limited time.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NamedTuple

from nestsim.interruption import unheard_by_children
from nestsim.store import Outcome, Point, PointFailedError, PointTask, Row, Store
from planner.work import Progress
from topologies.errors import InputError
from topologies.units import format_duration


class TimeIsUpError(Exception):
    """The time limit has passed."""


def _ring(_: int, __: FrameType | None) -> None:
    raise TimeIsUpError


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Raise `TimeIsUpError` when the time is up; only in the main thread.

    Compiled code is not interrupted: the alarm rings when it returns.

    Parameters
    ----------
    seconds
        The limit [s]; None for none.

    Raises
    ------
    InputError
        If this system has no such alarm.
    """
    if seconds is None:
        yield
        return
    if not hasattr(signal, "setitimer"):
        raise InputError(
            "this system cannot limit the time of a point",
            where="sweep.time_limit",
            expected="no limit",
        )
    before = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


_INTERVAL = 1.0
"""Time between two looks at the parent [s]."""


def end_with(parent: int) -> None:
    """Have this process end soon after its parent has.

    A sweep that is killed cannot tell its workers, which would wait for minutes for
    more to do.

    Parameters
    ----------
    parent
        Number of the process that sweeps.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_INTERVAL)
    os._exit(1)


DIED = "its process died: most likely, this machine ran out of memory"
"""Reason of a point whose process died."""

OUT_OF_MEMORY = "this machine ran out of memory"
"""Reason of a point that found no memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """Everything that a sweep found."""

    outcomes: tuple[Outcome, ...]
    """Outcome of each point, in their order."""

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Points without results."""
        return tuple(one for one in self.outcomes if one.row is None)

    @property
    def rows(self) -> tuple[Row | None, ...]:
        """The results of each point; None for those that failed."""
        return tuple(one.row for one in self.outcomes)


class _Answer(NamedTuple):
    """What a worker sends back."""

    number: int
    """Number of the point."""

    row: Row | None
    """Results of the point; None if it failed."""

    reason: str
    """Reason why the point failed; empty if it did not."""

    seconds: float
    """Time that the point took [s]."""


def run_sweep(
    points: Sequence[Point],
    task: PointTask,
    store: Store | None = None,
    *,
    workers: int | None = 1,
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
        What is done with each; with more than one worker, of a module that workers
        can import.
    store
        Where finished points are kept; None for memory alone.
    workers
        Processes; 1 for this one alone, None for one for each core.
    time_limit
        A point that takes longer fails [s]; None for no limit.
    progress
        Called with every finished point, with rate and time left.

    Raises
    ------
    InputError
        If two points are the same, or the store is of other points or full.
    """
    keys = _keys(points, task)
    if store is None:
        with Store() as memory:
            return run_sweep(
                points,
                task,
                memory,
                workers=workers,
                time_limit=time_limit,
                progress=progress,
            )
    pending = _pending(keys, store)
    meter = _Meter(len(points), len(points) - len(pending), progress)
    jobs = [(number, points[number]) for number in pending]
    # Closed at once when interrupted: that ends the workers.
    with closing(_answers(jobs, _Evaluate(task, time_limit), workers)) as answers:
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


_Job = tuple[int, Point]
"""Number of a point, and the point."""


class _Evaluate(NamedTuple):
    """Evaluates one point, in whichever process."""

    task: PointTask
    """Task that evaluates a point."""

    time_limit: float | None
    """Limit on the time of one point [s]."""

    def __call__(self, number: int, point: Point) -> _Answer:
        """Return the results of a point, or why it has none."""
        begun = time.perf_counter()
        row, reason = None, ""
        try:
            with alarm(self.time_limit):
                row = self.task(point)
        except InputError as error:
            reason = one_line(error)
        except PointFailedError as failure:
            reason = " ".join(failure.reason.split())
        except TimeIsUpError:
            assert self.time_limit is not None
            reason = f"took longer than {format_duration(self.time_limit)}"
        except MemoryError:
            reason = OUT_OF_MEMORY
        return _Answer(number, row, reason, time.perf_counter() - begun)


def one_line(error: InputError) -> str:
    """Return a mistake in the input as one line."""
    first, *others = (" ".join(line.split()) for line in str(error).splitlines())
    return f"{first} ({'; '.join(others)})" if others else first


def _answers(
    jobs: Sequence[_Job], evaluate: _Evaluate, workers: int | None
) -> Generator[_Answer, None, None]:
    """Yield answers as they come."""
    if not jobs:
        return
    workers = workers or _cores()
    if workers == 1:
        for job in jobs:
            yield evaluate(*job)
        return
    # Of one process joblib would make none.
    workers = max(2, min(workers, len(jobs)))
    waiting = dict(jobs)
    while waiting:
        begun: set[int] = set()
        try:
            with closing(_parallel(waiting, evaluate, workers, begun.add)) as answers:
                for answer in answers:
                    del waiting[answer.number]
                    yield answer
        except BrokenProcessPool:
            # One of those that were under way took its worker with it: each of them
            # alone, until it is known which.
            for number in sorted(begun & waiting.keys()):
                yield _alone((number, waiting.pop(number)), evaluate)


def _cores() -> int:
    import joblib

    return int(joblib.cpu_count())


def _parallel(
    waiting: dict[int, Point],
    evaluate: _Evaluate,
    workers: int,
    on_begin: Callable[[int], object],
) -> Generator[_Answer, None, None]:
    """Yield the answers of processes, and call back with each point handed out.

    Workers do not hear what tells this process to stop, and end with it.
    """
    import joblib

    def calls() -> Iterator[tuple[_Evaluate, _Job, dict[str, object]]]:
        for job in list(waiting.items()):
            on_begin(job[0])
            yield evaluate, job, {}

    pool = joblib.Parallel(
        n_jobs=workers,
        return_as="generator_unordered",
        batch_size=1,
        initializer=end_with,
        initargs=(os.getpid(),),
    )
    answers = None
    try:
        with unheard_by_children():
            answers = pool(calls())
        # Not "yield from", which would close it where joblib's warning is heard.
        for answer in answers:  # noqa: UP028
            yield answer
    finally:
        if answers is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answers.close()


def _alone(job: _Job, evaluate: _Evaluate) -> _Answer:
    """Evaluate a point in a process of its own, which may die."""
    number, point = job
    begun = time.perf_counter()
    try:
        (answer,) = _parallel({number: point}, evaluate, 2, lambda _: None)
    except BrokenProcessPool:
        return _Answer(number, None, DIED, time.perf_counter() - begun)
    return answer


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
