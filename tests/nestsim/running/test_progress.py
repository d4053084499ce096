"""What is shown of work under way: a bar where there is a terminal, lines elsewhere."""

import io
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress as Bar

from nestsim.running import progress as module
from nestsim.running.progress import ProgressLines, shown_progress
from topologies.notices import gathered_notices, notices


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressLines]:
    """Lines of work that began at 100 s."""
    monkeypatch.setattr("nestsim.running.progress.time.monotonic", lambda: 100.0)
    made = ProgressLines()
    yield made
    made.end()


@pytest.mark.parametrize("first", [0.0, 0.25, 0.5])
def test_what_is_left_takes_as_long_as_what_is_done(
    lines: ProgressLines, first: float
) -> None:
    for now, share in itertools.product((107.0, 140.0), (0.625, 0.75, 1.0)):
        lines.show("", None)
        lines.show("search", first)
        lines.show("search", share)
        left = (now - 100.0) / (share - first) * (1.0 - share)
        expected = f"after {now - 100.0:.0f} s: search, {share:.0%} done"
        assert lines.line(now) == f"{expected}, about {left:,.0f} s left"


def test_a_part_of_a_share_says_nothing_of_what_is_left(lines: ProgressLines) -> None:
    lines.show("search", 0.0)
    lines.show("search", 0.0199)
    assert lines.line(110.0) == "after 10 s: search, 2% done"
    lines.show("search", 0.02)
    assert lines.line(110.0) == "after 10 s: search, 2% done, about 490 s left"


def test_a_share_that_falls_begins_something_else(
    lines: ProgressLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.show("search: first", 0.5)
    monkeypatch.setattr("nestsim.running.progress.time.monotonic", lambda: 150.0)
    lines.show("search: second", 0.25)
    lines.show("search: second", 0.5)
    expected = "after 60 s: search: second, 50% done, about 20 s left"
    assert lines.line(160.0) == expected
    lines.show("search: third", None)  # not known: nothing is done
    lines.show("search: third", 0.5)
    expected = "after 60 s: search: third, 50% done, about 10 s left"
    assert lines.line(160.0) == expected


def test_what_is_done_once_comes_before_all_else(lines: ProgressLines) -> None:
    lines.show("search", 0.5)
    lines.show_once("compile")
    assert lines.line(103.0) == "after 3 s: compile"
    lines.show_once("")
    assert lines.line(103.0).startswith("after 3 s: search, 50% done")


def test_distances_between_lines_grow_to_twice_the_last(
    lines: ProgressLines,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Waited:
        def __init__(self) -> None:
            self.seconds: list[float] = []

        def wait(self, seconds: float) -> bool:
            self.seconds.append(seconds)
            return len(self.seconds) == 7

    waited = Waited()
    ended = lines._ended
    monkeypatch.setattr("nestsim.running.progress.FIRST_LINES", (5.0, 10.0, 15.0, 30.0))
    lines._ended = waited  # type: ignore[assignment]
    lines._run()
    lines._ended = ended
    assert waited.seconds == [5.0, 10.0, 15.0, 30.0, 60.0, 60.0, 60.0]
    assert capsys.readouterr().err == "after 0 s: working\n" * 6


def test_a_bar_shows_what_is_done_of_one_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(Bar, "update", lambda _, task, **fields: shown.append(fields))
    console = Console(file=io.StringIO())
    monkeypatch.setattr(module, "_console", lambda: console)
    with gathered_notices() as call, shown_progress(True) as show:
        assert show is not None
        show("search", None)
        show("replay", 0.25)
        once = notices().listener
        assert once is not None
        once("compile")
        once("")
    assert call.listener is None
    assert shown == [
        {"description": "search", "total": None, "completed": 0.0},
        {"description": "replay", "total": 1.0, "completed": 0.25},
        {"description": "compile"},
        {"description": "replay"},
    ]


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("widgets", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_bar_needs_a_terminal_or_a_notebook_with_widgets(
    kernel: bool, widgets: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    if kernel:
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    spec = module.__spec__ if widgets else None
    monkeypatch.setattr(module, "find_spec", lambda name: spec)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    console = module._console()
    assert (console is not None) == (terminal or (kernel and widgets))
    if console is not None:
        assert console.stderr == (not (kernel and widgets))


def test_a_caller_hears_of_what_is_done_once() -> None:
    heard: list[tuple[str, float | None]] = []

    def progress(doing: str, share: float | None) -> None:
        heard.append((doing, share))

    with gathered_notices() as call, shown_progress(progress) as shown:
        assert shown is progress
        outer = notices().listener
        assert outer is not None
        outer("compile")
        outer("")
        with shown_progress(lambda doing, share: None):  # who came first hears it all
            assert notices().listener is outer
        assert notices().listener is outer
    assert call.listener is None
    assert heard == [("compile", None)]


def test_work_without_a_name_is_timed_from_its_begin(lines: ProgressLines) -> None:
    lines.show("", 0.5)
    assert lines.line(110.0) == "after 10 s: working, 50% done, about 10 s left"


@pytest.mark.parametrize("progress", [None, False])
def test_whoever_wants_no_progress_hears_nothing(progress: bool | None) -> None:
    with gathered_notices() as call, shown_progress(progress) as shown:
        assert shown is None
        assert call.listener is None
