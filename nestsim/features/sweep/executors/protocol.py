"""What an executor is: it evaluates points somewhere, and tells what became of each.

An executor is handed numbered points and what evaluates one, and yields one answer for
each, in any order. A point may fail, which is an answer like any other; a worker may
die, which is none: its points go to others. Only a point that takes its worker with it
whenever it is tried has failed, for the reason `DIED`.
"""

import ctypes
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from nestsim.running.store import Point, PointFailedError, PointTask, Row
from topologies.errors import InputError
from topologies.units import format_duration

DIED = "its process died: most likely, its machine ran out of memory"
"""Reason of a point whose process died."""

OUT_OF_MEMORY = "its machine ran out of memory"
"""Reason of a point that found no memory."""

Job = tuple[int, Point]
"""Number of a point, and the point."""

Value = TypeVar("Value")
"""What the points of one call share."""


class PointAnswer(NamedTuple):
    """What a worker sends back."""

    number: int
    """Number of the point."""

    row: Row | None
    """Results of the point; None if it failed."""

    reason: str
    """Reason why the point failed; empty if it did not."""

    seconds: float
    """Time that the point took [s]."""


class Shared(Generic[Value]):
    """What the points of one call share: each process that works on them makes it once.

    To other processes only the key and the maker travel. A worker is sent its task anew
    with every point, and keeps what it made for the last key.

    Parameters
    ----------
    key
        Hash of the content that the value is made of.
    make
        Function that makes the value, where it is needed for the first time.
    """

    def __init__(self, key: str, make: Callable[[], Value]) -> None:
        self.key, self.make = key, make
        self._made: list[Value] = []

    def __call__(self) -> Value:
        """Return the value."""
        if not self._made:
            self._made.append(self.make())
        return self._made[0]

    def put(self, value: Value) -> None:
        """Take a value that is there already."""
        self._made = [value]

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.key, self.make)


def _received(key: str, make: Callable[[], Value]) -> Shared[Value]:
    shared: Shared[Value] = _last_received(key)
    shared.make = make
    return shared


@lru_cache(maxsize=1)
def _last_received(key: str) -> Shared[Any]:
    return Shared(key, object)


class Evaluate(NamedTuple):
    """Evaluates one point, in whichever process."""

    task: PointTask
    """Task that evaluates a point."""

    time_limit: float | None
    """Limit on the time of one point [s]."""

    def __call__(self, number: int, point: Point) -> PointAnswer:
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
            row = None  # it may have come just as the time was up
            reason = f"took longer than {format_duration(self.time_limit)}"
        except MemoryError:
            reason = OUT_OF_MEMORY
        return PointAnswer(number, row, reason, time.perf_counter() - begun)


def one_line(error: InputError) -> str:
    """Return a mistake in the input as one line."""
    first, *others = (" ".join(line.split()) for line in str(error).splitlines())
    return f"{first} ({'; '.join(others)})" if others else first


class Executor(Protocol):
    """Somewhere to evaluate points."""

    def answers(
        self, jobs: Sequence[Job], evaluate: Evaluate
    ) -> Generator[PointAnswer, None, None]:
        """Yield the answer of each job once, as they come.

        Closed before its end, as by an interruption, the generator stops what is
        under way and waits for nobody.

        Parameters
        ----------
        jobs
            Points with their numbers.
        evaluate
            What is done with each; it travels to workers by pickle.

        Raises
        ------
        InputError
            If there is nobody to evaluate points, or no longer. What a task itself
            raises beside failures of points is raised here.
        """
        ...


@runtime_checkable
class FileReader(Protocol):
    """A task that reads files, which may have to travel with it."""

    def files(self, points: Sequence[Point]) -> Iterable[Path]:
        """Return the files that points read, each at least once."""
        ...


class TimeIsUpError(Exception):
    """The time limit has passed."""


def _ring(_: int, __: FrameType | None) -> None:
    raise TimeIsUpError


@contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Raise `TimeIsUpError` in this thread when the time is up.

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
    if threading.current_thread() is not threading.main_thread():
        with raised_after(seconds, TimeIsUpError):
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


@contextmanager
def raised_after(
    seconds: float,
    error: type[Exception],
    is_due: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Raise an exception in this thread after some time, unless the block has ended.

    Parameters
    ----------
    seconds
        How long until then [s].
    error
        What is raised.
    is_due
        Asked then, and again after as long while it says no.
    """
    thread, lock, ended = threading.get_ident(), threading.Lock(), threading.Event()

    def wait() -> None:
        while not ended.wait(seconds):
            with lock:
                if ended.is_set() or not is_due():
                    continue
                _raise_in(thread, error)
                return

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        with lock:  # from here on nobody raises it, and what is pending is taken back
            _raise_in(thread, None)


def _raise_in(thread: int, error: type[Exception] | None) -> None:
    """Raise an exception in another thread at its next step of Python; None: do not."""
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
