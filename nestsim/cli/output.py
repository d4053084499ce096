"""Standard output for results, standard error for notes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from nestsim.cli.streams import silence
from nestsim.running.progress import sentences_of, shown_progress, tell
from planner.work import Progress
from topologies.notices import gathered_notices

PIPE_WIDTH = 120
"""Columns where there is no terminal that could say."""


class ResultConsole(Console):
    """Standard output; a reader that has left does not change the exit status."""

    def on_broken_pipe(self) -> None:
        """Stop writing."""
        self.quiet = True
        silence(sys.stdout)


def note(text: str, *, quiet: bool = False) -> None:
    """Tell the user something that is not a result."""
    if not quiet:
        tell(f"{text}\n")


def note_all(sentences: Sequence[str], *, quiet: bool) -> None:
    """Tell the user what a result has to say of how it came about."""
    for sentence in sentences:
        note(sentence, quiet=quiet)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress | None]:
    """Show progress, and say afterwards what users should know.

    Parameters
    ----------
    quiet
        Show nothing, and yield None.
    """
    with gathered_notices() as gathered, shown_progress(not quiet) as progress:
        yield progress
    note_all(sentences_of(gathered), quiet=quiet)


@contextmanager
def working(doing: str, *, quiet: bool) -> Iterator[None]:
    """Show that something is being done that does not report on itself."""
    with progress_bar(quiet=quiet) as progress:
        if progress is not None:
            progress(doing, None)
        yield


def result_console() -> ResultConsole:
    """Return standard output; in a pipe or a file, wide enough for every table."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return ResultConsole(width=width, highlight=False, soft_wrap=False)
