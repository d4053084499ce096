"""How work under way is shown, and what notebooks show of results.

The command line and the Python face share it. Results never depend on it.

What notebooks show of scenarios and results: a heading, facts, a table or a text.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from planner.work import Progress

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from topologies.notices import Notices


FIRST_LINES = (5.0, 10.0, 15.0, 30.0)
"""Between lines of progress where there is no terminal; then the last one [s]."""

LEAST_TOLD = 1.0
"""What is done once on a machine is told if it takes as long [s]."""

_LEAST_SHARE = 0.02
"""Done of something, below which nothing is said of the time that it will take."""


def sentences_of(gathered: "Notices") -> list[str]:
    """Return what users should know of a call's notes."""
    return gathered.sentences(LEAST_TOLD)


def tell(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def shown_progress(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Give what a job tells of its progress, for as long as it works.

    Parameters
    ----------
    progress
        What is called with what is being done and the share of it that is done; True
        to show it: by a bar on a terminal or in a notebook, elsewhere by a line on
        standard error now and then; False or None to show nothing.
    """
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        with _heard(_while_done_once(progress)):
            yield progress
    elif (console := _console()) is not None:
        with _bar(console) as show:
            yield show
    else:
        lines = ProgressLines()
        try:
            with _heard(lines.show_once):
                yield lines.show
        finally:
            lines.end()


@contextmanager
def _heard(listener: Callable[[str], None]) -> Iterator[None]:
    """Have a function told of what the call does once, if nobody is yet."""
    from topologies.notices import notices  # with numpy: not before it is needed

    gathered = notices()
    if gathered.listener is not None:
        yield
        return
    gathered.listener = listener
    try:
        yield
    finally:
        gathered.listener = None


def _while_done_once(progress: Progress) -> Callable[[str], None]:
    """Return what tells a caller's function of what is done once."""

    def show_once(doing: str) -> None:
        if doing:
            progress(doing, None)

    return show_once


def _console() -> "Console | None":
    """Return where a bar can be shown: a notebook or a terminal, if there is one."""
    is_notebook = "ipykernel" in sys.modules and find_spec("ipywidgets") is not None
    if not (is_notebook or sys.stderr.isatty()):
        return None
    from rich.console import Console

    return Console() if is_notebook else Console(stderr=True)


@contextmanager
def _bar(console: "Console") -> Iterator[Progress]:
    """Show a bar that is gone at the end."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    description = TextColumn("{task.description}", markup=False)
    columns = (description, BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        latest = ""

        def show(doing: str, share: float | None) -> None:
            nonlocal latest
            latest = doing
            total, done = (None, 0.0) if share is None else (1.0, share)
            bar.update(task, description=doing, total=total, completed=done)

        def show_once(doing: str) -> None:
            bar.update(task, description=doing or latest)

        with _heard(show_once):
            yield show


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


_MOST_ROWS = 20
"""Rows of a table; of more, the first and the last."""

_MOST_TEXT = 4_000
"""Characters of a text."""


def html_of(title: str, facts: Mapping[str, object], text: str = "") -> str:
    """Return facts as HTML, and a text that is folded away below them."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(_words(name))}</th>"
        f"<td style='text-align:left'>{escape(fact_text(fact))}</td></tr>"
        for name, fact in facts.items()
    )
    html = f"<b>{escape(title)}</b><table>{rows}</table>"
    if text:
        shown = escape(text[:_MOST_TEXT])
        html += f"<details><summary>as written</summary><pre>{shown}</pre></details>"
    return html


def html_table(frame: "pd.DataFrame") -> str:
    """Return a table as HTML, long ones without their middle."""
    return str(frame.to_html(max_rows=_MOST_ROWS, index=False, na_rep=""))


def fact_text(fact: Any) -> str:
    """Return a fact as people read it: numbers to six digits."""
    if isinstance(fact, float):
        return f"{fact:.6g}"
    if isinstance(fact, tuple):
        return ", ".join(fact_text(item) for item in fact)
    return str(fact)


def _words(name: str) -> str:
    return name.replace("_", " ")
