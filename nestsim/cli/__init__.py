"""The command line: parse, call, print, exit status. One command a file."""

import gc
import io
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]

WRONG_INPUT = 2
"""Exit status when the user has something to correct."""

_COLLECTIONS = (100_000, 5, 5)
"""New objects before the garbage collector looks for cycles, and how often it looks at
older ones. With Python's 700 it takes a sixth of a run, most of it among the million
objects that importing libraries makes and nothing ever frees."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process if None.

    Returns
    -------
    int
        0 done (and confirmed), 1 nothing fits, not confirmed, or an assertion of
        the scenario does not hold, 2 the input is wrong, 130 interrupted.
    """
    if argv is None:  # a process of our own
        gc.set_threshold(*_COLLECTIONS)
    from nestsim.cli.app import app

    _never_fail_on_a_letter()
    try:
        app(args=None if argv is None else list(argv), prog_name="nestsim")
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 0
    except KeyboardInterrupt:
        status = 130
    except ValueError as error:
        from topologies.errors import InputError  # with numpy: not before it is needed

        if not isinstance(error, InputError):
            raise
        sys.stderr.write(f"{error}\n")
        status = WRONG_INPUT
    else:
        status = 0
    return _flushed(status)


def _never_fail_on_a_letter() -> None:
    """Write what an old terminal cannot show as an escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed(status: int) -> int:
    """Hand over the output now, and be quiet if nobody reads it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
