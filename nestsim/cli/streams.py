"""The three standard streams, whatever state they are in.

Results go to standard output: if they cannot be written there, that is an error. What
goes to standard error is told to whoever listens; nobody need. A reader of results that
has left, as ``head`` does, is no error.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STREAMS = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))
"""What a closed descriptor is opened for: the wrong thing, so that it fails as before,
but for notes, which vanish."""


class _Results(io.FileIO):
    """Standard output, which remembers why it could not be written."""

    problem = ""

    def write(self, data: "Buffer") -> int:
        """Write, or remember why not."""
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.problem = error.strerror or str(error)
            raise


class _Notes(io.FileIO):
    """Standard error, which takes everything, whether or not it can be written."""

    def write(self, data: "Buffer") -> int:
        """Write if possible."""
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


@contextmanager
def standard_streams() -> Iterator[Callable[[], str]]:
    """Make the streams such that what cannot be written is told once, and calmly.

    Yields
    ------
    Callable
        Hands over standard output, and returns why that was impossible at any time;
        nothing if it was not, or if only its reader has left.
    """
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    results = _Results(1, "w", closefd=False) if _is_own(sys.stdout, 1) else None
    if results is not None:
        sys.stdout = _text(results, sys.stdout)
    if _is_own(sys.stderr, 2):
        sys.stderr = _text(_Notes(2, "w", closefd=False), sys.stderr)

    def hand_over() -> str:
        try:
            sys.stdout.flush()
        except OSError:
            silence(sys.stdout)
        return "" if results is None else results.problem

    try:
        yield hand_over
    finally:
        sys.stdout, sys.stderr = before


def silence(stream: TextIO) -> None:
    """Send what is left of a stream to nowhere, so that the end is quiet."""
    with suppress(OSError):  # io.UnsupportedOperation: it is none of the system's
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def _open_closed_streams() -> None:
    """Let no file that is opened later become standard output by accident.

    The system gives the lowest free number to a file: with standard output closed, what
    libraries print would go into it.
    """
    for descriptor, flags in _STREAMS:
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, flags)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _is_own(stream: TextIO, descriptor: int) -> bool:
    """Return whether a stream is the process's, and not what somebody put there."""
    try:
        return type(stream) is io.TextIOWrapper and stream.fileno() == descriptor
    except OSError:
        return False


def _text(raw: io.FileIO, like: TextIO) -> io.TextIOWrapper:
    """Return a stream of text; letters that it cannot show are written as escapes."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=like.encoding,
        errors="backslashreplace",
        line_buffering=raw.isatty() or raw.fileno() == 2,
    )
