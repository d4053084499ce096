"""The command line: typer made of descriptions, and one way to run a command."""

import gc
import signal
from collections.abc import Callable, Sequence

from nestsim.cli.streams import standard_streams
from nestsim.running.interruption import Stop, stoppable
from nestsim.running.progress import tell

__all__ = ["main"]

WRONG_INPUT = 2
"""Exit status when the user has something to correct."""

STOPPED = 128
"""Exit status of what a signal stopped, less the signal's number."""

_COLLECTIONS = (500_000, 5, 5)
"""New objects before the garbage collector looks for cycles, and how often it looks at
older ones. With Python's 700 it takes a sixth of a run, with 100,000 a fortieth, most
of it among the objects that importing libraries makes and nothing ever frees."""

_WORDS = {int(signal.SIGINT): "Interrupted.", int(signal.SIGTERM): "Terminated."}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Parameters
    ----------
    argv
        The arguments after the program's name; those of the process if None, which is
        then taken to end.

    Returns
    -------
    int
        0 done (and confirmed), 1 nothing fits, not confirmed, or an assertion of
        the scenario does not hold, 2 the input is wrong or results cannot be written,
        130 interrupted, 143 terminated.
    """
    if argv is None:  # a process of our own
        gc.set_threshold(*_COLLECTIONS)
    with stoppable(at_exit=argv is None) as stop, standard_streams() as hand_over:
        try:
            status = _status(argv, stop)
            problem = hand_over()
        except KeyboardInterrupt as interrupt:
            return _stopped(stop, interrupt, hand_over)
        except Exception as error:
            if stop.received is not None:  # as when the import of a library is cut
                return _stopped(stop, error, hand_over)
            problem = hand_over()
            if not problem:
                raise
        finally:
            if argv is None:
                gc.freeze()  # or the interpreter's end looks at all for cycles: 0.5 s
        if problem:
            tell(f"standard output: cannot be written: {problem}\n")
            return WRONG_INPUT
        return status


def _status(argv: Sequence[str] | None, stop: Stop) -> int:
    """Run the command line and return its exit status, standard output not flushed."""
    from nestsim.cli.app import app

    try:
        app(args=None if argv is None else list(argv), prog_name="nestsim")
    except SystemExit as leaving:
        if leaving.code and (stopped := _interrupt(leaving)) is not None:
            raise stopped from None  # typer has made an exit of it
        return leaving.code if isinstance(leaving.code, int) else 0
    except ValueError as error:
        from topologies.errors import InputError  # with numpy: not before it is needed

        if stop.received is not None or not isinstance(error, InputError):
            raise
        tell(f"{error}\n")
        return WRONG_INPUT
    return 0


def _interrupt(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interruption that an exception came from, however deep it lies."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__cause__ or cause.__context__
    return cause


def _stopped(stop: Stop, error: BaseException, hand_over: Callable[[], str]) -> int:
    """Say what there is to say after a signal, and return the exit status."""
    number = stop.received or int(signal.SIGINT)
    notes = getattr(error, "__notes__", ())
    hand_over()
    tell(" ".join([_WORDS.get(number, "Stopped."), *notes]) + "\n")
    return STOPPED + number
