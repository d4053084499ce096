"""Standard output for results, standard error for progress and notes."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import typer
from rich.console import Console

from planner.progress import Progress

if TYPE_CHECKING:
    from nestsim.scenario import Scenario

PIPE_WIDTH = 120
"""Columns where there is no terminal that could say."""


class ResultConsole(Console):
    """Standard output; a reader that has left does not change the exit status."""

    def on_broken_pipe(self) -> None:
        """Stop writing."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str, *, quiet: bool = False) -> None:
    """Tell the user something that is not a result."""
    if not quiet:
        typer.echo(text, err=True)


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
    """Show progress on a terminal; yield None where nobody would see it.

    Parameters
    ----------
    quiet
        Show nothing, terminal or not.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(doing: str, share: float | None) -> None:
            total, done = (None, 0.0) if share is None else (1.0, share)
            bar.update(task, description=doing, total=total, completed=done)

        yield show


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
