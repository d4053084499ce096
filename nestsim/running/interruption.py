"""Being told to stop: Ctrl-C, SIGTERM, SIGHUP, and moments that must not be cut.

The command line turns all three into `KeyboardInterrupt`, which unwinds the stack, so
that every ``finally`` puts things in order. Whoever is interrupted with something to
say adds it to the exception by `BaseException.add_note`; the command line prints that.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from types import FrameType

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
)
"""What tells a process to stop, and can be caught."""

_SOON = 0.05
"""Until a signal that was lost is sent again [s]."""

_TIDIED = "ignore:resource_tracker:UserWarning"
"""Filter of warnings for processes that are started: their tracker tidies up what
workers of a stopped command leave, and would tell users of it."""

_PATIENCE = 2.0
"""An impatient user presses Ctrl-C twice; what puts things in order may end [s]."""


class StoppedError(KeyboardInterrupt):
    """A signal came.

    Python ends by SIGINT, whatever is returned, once a `KeyboardInterrupt` itself has
    left code that was made from text, such as a named tuple's.
    """


class Stop:
    """Raises `KeyboardInterrupt` when a signal arrives, and remembers which."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The first signal; None as long as there was none."""

        self._last = -_PATIENCE

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        """Take a signal; another one only after a while.

        While a library of machine code is loaded, it waits: some crash if what they
        call on the way raises.
        """
        now = time.monotonic()
        if self.received is not None and now < self._last + _PATIENCE:
            return
        if _is_loading_library(frame):
            self._send_again(self.received or number)
            return
        self.received, self._last = self.received or number, now
        raise StoppedError

    def hear_again(self, lost: "sys.UnraisableHookArgs") -> bool:
        """Send the signal again if this is what it raised.

        Python drops what is raised in a destructor, or in a function that a library
        calls back, as the compiler of kernels does.
        """
        if not isinstance(lost.exc_value, StoppedError) or self.received is None:
            return False
        self._send_again(self.received)
        return True

    def _send_again(self, number: int) -> None:
        self.received, self._last = number, -_PATIENCE
        again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()


def _is_loading_library(frame: FrameType | None) -> bool:
    """Tell whether an import of an extension module is under way."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            loader = frame.f_locals.get("self")
            if isinstance(loader, ExtensionFileLoader):
                return True
        frame = frame.f_back
    return False


@contextmanager
def stoppable(*, at_exit: bool = False) -> Iterator[Stop]:
    """Have `SIGNALS` end a block by `KeyboardInterrupt`; only in the main thread.

    A signal that the process was started to ignore, as by ``nohup``, stays ignored.

    Parameters
    ----------
    at_exit
        The process ends after the block: leave the signals ignored, so that none
        cuts the interpreter's own end.
    """
    stop = Stop()
    if not _is_main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [
        number for number, handler in before.items() if handler is not signal.SIG_IGN
    ]
    for number in heard:
        signal.signal(number, stop)
    unraisable, in_thread = sys.unraisablehook, threading.excepthook
    sys.unraisablehook = lambda lost: stop.hear_again(lost) or unraisable(lost)
    # A pool's thread that loses its workers to a stop has nothing to tell.
    threading.excepthook = lambda lost: stop.received or in_thread(lost)
    try:
        yield stop
    finally:
        sys.unraisablehook = unraisable
        if not (at_exit and stop.received):
            threading.excepthook = in_thread
        for number in heard:
            signal.signal(number, signal.SIG_IGN if at_exit else before[number])


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let a short block end before a signal is acted upon; only in the main thread.

    Masks of threads do not help: any other thread takes the signal, and Python then
    calls the handler in the main one.
    """
    if not _is_main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        signal_number: signal.signal(
            signal_number, lambda number, _: arrived.append(number)
        )
        for signal_number in SIGNALS
        if signal.getsignal(signal_number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, signal.SIG_DFL if handler is None else handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Start processes that `SIGNALS` do not reach: a terminal sends them to all.

    Masks outlive the start of another program. What is sent to this process
    meanwhile arrives at the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # The first process that is started starts this one too, which up to Python 3.12
    # unblocks SIGINT and SIGTERM again.
    sys.warnoptions.append(_TIDIED)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.warnoptions.remove(_TIDIED)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
