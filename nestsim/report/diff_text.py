"""The difference of two reports as text and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from nestsim.report.diff import Change, Diff, NumberChange
from nestsim.report.sections import print_line, print_section
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import plural
from topologies.errors import readable, shown
from topologies.units import format_duration, format_size

MOST_SHOWN = 40
"""Lines of each kind in the text; JSON has all."""

_WIDEST = 60
_MOST_RANGES = 3
"""Ranges of devices written out; of more, the first ones and the last are."""
_HEADLINES = (
    "iteration_time_s",
    "tokens_per_s",
    "mfu",
    "peak_memory_bytes",
    "bubble_fraction",
)
"""Numbers of the plan as a whole, which come first."""


def diff_json(diff: Diff) -> dict[str, Any]:
    """Return everything that differs, for programs."""
    return {
        "equal": diff.is_empty,
        "settings": [
            {"path": one.path, "before": one.before, "after": one.after}
            for one in diff.settings
        ],
        "numbers": [
            {
                "path": one.path,
                "before": one.before,
                "after": one.after,
                "absolute": one.absolute,
                "relative": one.relative,
            }
            for one in diff.numbers
        ],
        "only_before": list(diff.only_before),
        "only_after": list(diff.only_after),
    }


def print_diff(diff: Diff, names: tuple[str, str], console: Console) -> None:
    """Print what differs: settings of the plan, numbers, what is in one only."""
    if diff.is_empty:
        print_line(console, Text("EQUAL", style="bold green"), " and ".join(names))
        return
    counts = (
        plural(len(diff.settings), "setting"),
        plural(len(diff.numbers), "number"),
    )
    headline = Text(f"DIFFERENT: {' and '.join(counts)}", style="bold yellow")
    print_line(console, headline, " -> ".join(names))
    if diff.settings:
        print_section(console, "Settings", _settings(diff.settings))
    if diff.numbers:
        print_section(console, "Numbers", _numbers(diff.numbers))
    for name, paths in zip(names, (diff.only_before, diff.only_after), strict=True):
        if paths:
            lines = [*paths[:MOST_SHOWN], *_rest(len(paths))]
            print_section(console, f"Only in {name}", Text("\n".join(lines)))


def _rest(count: int) -> list[str]:
    more = count - MOST_SHOWN
    return [f".. and {more:,} more, which --json has"] if more > 0 else []


def _settings(changes: Sequence[Change]) -> Any:
    table = new_table("setting", "before", "after")
    for one in changes[:MOST_SHOWN]:
        add_row(
            table, one.path, _value(one.path, one.before), _value(one.path, one.after)
        )
    for line in _rest(len(changes)):
        add_row(table, line, "", "")
    return table


def _value(path: str, value: object) -> str:
    """Write a setting; devices as ranges."""
    if value is None:
        return "none"
    if path.endswith(".devices") and isinstance(value, list):
        ranges = [readable(str(one)[:_WIDEST]) for one in value]
        if len(ranges) > _MOST_RANGES:
            ranges[_MOST_RANGES - 1 :] = [f".. {ranges[-1]} ({len(ranges)})"]
        return ", ".join(ranges)
    if isinstance(value, str):
        text = value if len(value) <= _WIDEST else f"{value[:_WIDEST]}.."
        return readable(text)
    return shown(value, _WIDEST)


def _numbers(changes: Sequence[NumberChange]) -> Any:
    columns = ("before", "after", "change", "relative")
    table = new_table("number", *columns, numbers=columns)
    ordered = sorted(changes, key=_place)
    for one in ordered[:MOST_SHOWN]:
        relative = f"{one.relative:+.2%}" if math.isfinite(one.relative) else ""
        change = _quantity(one.path, abs(one.absolute))
        sign = "+" if one.absolute > 0 else "-"
        add_row(
            table,
            one.path,
            _quantity(one.path, one.before),
            _quantity(one.path, one.after),
            f"{sign}{change}",
            relative,
        )
    for line in _rest(len(changes)):
        add_row(table, line, "", "", "", "")
    return table


def _place(change: NumberChange) -> tuple[bool, int]:
    """Put numbers of the plan as a whole first, then those with shorter paths."""
    *outer, last = change.path.split(".")
    is_headline = outer in (["planned"], ["simulated"]) and last in _HEADLINES
    return not is_headline, len(outer)


def _quantity(path: str, value: float) -> str:
    """Write a number in the unit that the end of its name says."""
    parts = path.replace("]", "").replace("[", ".").split(".")
    name = next((one for one in reversed(parts) if one.endswith(("_s", "_bytes"))), "")
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_s") and "_per_" not in name:
        return format_duration(value)
    return f"{value:,.6g}"
