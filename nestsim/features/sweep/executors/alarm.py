"""A limit on the time of one point, in whichever thread it is evaluated.

In the main thread of a process the system's alarm rings (SIGALRM), which also ends
sleep. Workers of Dask evaluate in other threads, where no signal is heard: there a
second thread raises the exception in the first one. Neither interrupts compiled code:
the alarm rings when it returns.
"""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from topologies.errors import InputError


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
