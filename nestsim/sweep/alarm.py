"""A limit on how long one point may take."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from topologies.errors import InputError


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
