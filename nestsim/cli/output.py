"""Standard output for results, standard error for progress and notes."""

import itertools
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from nestsim.cli.streams import silence, tell
from planner.work import Progress
from topologies.notices import NOTICES

if TYPE_CHECKING:
    from nestsim.scenario import Scenario

PIPE_WIDTH = 120
"""Columns where there is no terminal that could say."""

FIRST_LINES = (5.0, 10.0, 15.0, 30.0)
"""Between lines of progress where there is no terminal; then the last one [s]."""

LEAST_TOLD = 1.0
"""What is done once on a machine is told if it takes as long [s]."""

_LEAST_SHARE = 0.02
"""Done of something, below which nothing is said of the time that it will take."""


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


def note_unread_plan(scenario: "Scenario", *, quiet: bool) -> None:
    """Tell the user that a search does not read the scenario's plan."""
    if scenario.plan is not None and scenario.planner != "fixed":
        note(
            f"{scenario.path}: [plan] is for nestsim simulate; the search does not "
            "read it",
            quiet=quiet,
        )


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Progress | None]:
    """Show progress: a bar on a terminal, elsewhere a line now and then.

    Parameters
    ----------
    quiet
        Show nothing, and yield None.
    """
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        lines = ProgressLines()
        NOTICES.listener = lines.show_once
        try:
            yield lines.show
        finally:
            NOTICES.listener = None
            lines.end()
    for sentence in NOTICES.sentences(LEAST_TOLD):
        note(sentence, quiet=quiet)


@contextmanager
def working(doing: str, *, quiet: bool) -> Iterator[None]:
    """Show that something is being done that does not report on itself."""
    with progress_bar(quiet=quiet) as progress:
        if progress is not None:
            progress(doing, None)
        yield


@contextmanager
def _bar() -> Iterator[Progress]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        latest = ""

        def show(doing: str, share: float | None) -> None:
            nonlocal latest
            latest = doing
            total, done = (None, 0.0) if share is None else (1.0, share)
            bar.update(task, description=doing, total=total, completed=done)

        def show_once(doing: str) -> None:
            bar.update(task, description=doing or latest)

        NOTICES.listener = show_once
        try:
            yield show
        finally:
            NOTICES.listener = None


class ProgressLines:
    """Writes a plain line on standard error now and then, at growing distances.

    A thread does, so that what reports seldom is not silent either. Short work ends
    before the first line.
    """

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._state: tuple[str, float | None] = ("", None)
        self._once = ""
        self._since = (self._begun, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def show(self, doing: str, share: float | None) -> None:
        """Take what is being done and the share of it that is done."""
        before, last = self._state
        if _phase(doing) != _phase(before) or (share or 0.0) < (last or 0.0):
            self._since = (time.monotonic(), share or 0.0)
        self._state = (doing, share)

    def show_once(self, doing: str) -> None:
        """Take what is being done once on this machine; empty if that is done."""
        self._once = doing

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        for distance in itertools.chain(
            FIRST_LINES, itertools.repeat(2 * FIRST_LINES[-1])
        ):
            if self._ended.wait(distance):
                return
            tell(f"{self.line(time.monotonic())}\n")

    def line(self, now: float) -> str:
        """Return what there is to say at a moment of the monotonic clock [s]."""
        doing, share = self._state
        parts = [f"after {now - self._begun:,.0f} s", doing or "working"]
        if self._once:
            return f"{parts[0]}: {self._once}"
        if share is not None:
            parts[1] += f", {share:.0%} done"
            begun, first = self._since
            if share - first >= _LEAST_SHARE and "left" not in doing:
                left = (now - begun) * (1.0 - share) / (share - first)
                parts[1] += f", about {left:,.0f} s left"
        return ": ".join(parts)


def _phase(doing: str) -> str:
    """Return the part of what is being done that stays for a while."""
    return doing.partition(":")[0]


def print_table(columns: Mapping[str, bool], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a plain table to standard output.

    Parameters
    ----------
    columns
        Heading -> whether the column holds numbers, which are aligned to the right.
    rows
        One string for each column.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, is_number in columns.items():
        justify: Literal["left", "right"] = "right" if is_number else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    result_console().print(table)


def result_console() -> ResultConsole:
    """Return standard output; in a pipe or a file, wide enough for every table."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return ResultConsole(width=width, highlight=False, soft_wrap=False)
