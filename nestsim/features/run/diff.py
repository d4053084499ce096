"""What differs between two reports of run, plan or simulate, as text and as JSON.

Reports are compared value by value: what `nestsim plan`, `run` and `simulate` print
with ``--json``, and a folder of results holds as ``result.json``. Of a report with
several plans the first one counts. Other candidates and what the search counted are
left out, as they are not about the plan that is reported; so are sentences.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from nestsim.document.parts import (
    DataTable,
    Document,
    Headline,
    Section,
    Sentences,
)
from nestsim.document.wording import plural
from planner.step.plan import to_ranges
from topologies.errors import InputError, readable, shown
from topologies.input_file import file_in, read_json
from topologies.units import format_duration, format_size

RESULT = "result.json"
"""Name of the report in a folder of results."""

LARGEST = 16 * 2**20
"""The report on a plan for a million devices takes half of it [byte]."""

MOST_VALUES = 1_000_000
"""Values of a report that are compared at most, devices of a stage counting once."""

_LEFT_OUT = ("candidates", "plans", "search", "assertions", "reason", "folding")
"""Keys of other plans, or of sentences about what is compared by itself."""

_PLAN = "plan."
"""Prefix of the settings of a plan."""

_LONGEST_NAME = 100
"""Characters of a name that are shown."""

Value = Any
"""Plain JSON value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """A value that both reports have, and that differs."""

    path: str
    """Dotted path in the report."""

    before: Value
    """Value in the first report."""

    after: Value
    """Value in the second report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange(ValueChange):
    """A number that differs."""

    @property
    def absolute(self) -> float:
        """By how much, in the number's unit."""
        return float(self.after - self.before)

    @property
    def relative(self) -> float:
        """Change as a share of the value before; NaN if that was 0."""
        return self.absolute / abs(self.before) if self.before else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Everything that differs."""

    settings: tuple[ValueChange, ...]
    """Changes of the plan, stage by stage, and of what is not a number."""

    numbers: tuple[NumberChange, ...]
    """Changes of numbers."""

    only_before: tuple[str, ...]
    """Paths that the second report does not have."""

    only_after: tuple[str, ...]
    """Paths that the first report does not have."""

    @property
    def is_empty(self) -> bool:
        """Whether the reports are equal."""
        return not (
            self.settings or self.numbers or self.only_before or self.only_after
        )


def read_report(path: Path) -> Mapping[str, Value]:
    """Return the report in a folder of results, or in a file.

    Raises
    ------
    InputError
        If there is none of run, plan or simulate, or it has too many values.
    """
    file = file_in(path, RESULT)
    expected = "a folder of results of nestsim run or simulate, or what --json printed"
    try:
        report = read_json(file, expected=expected, most_bytes=LARGEST)
    except InputError as error:
        raise error.at(str(file), ": ") from None
    is_ours = isinstance(report, dict) and "lower_bound_s" in report
    if not is_ours or not ("plan" in report or isinstance(report.get("plans"), list)):
        raise InputError(
            "is not a report of run, plan or simulate",
            where=str(file),
            expected=expected,
        )
    report = _with_one_plan(report)
    if sum(1 for _ in islice(_leaves(report), MOST_VALUES + 1)) > MOST_VALUES:
        raise InputError(
            "has too many values to be compared",
            where=str(file),
            expected=f"a report of at most {MOST_VALUES:,} values",
        )
    return _with_ranges(report)


def _with_one_plan(report: Mapping[str, Value]) -> Mapping[str, Value]:
    """Give the first plan of `nestsim plan` the place that one plan has elsewhere."""
    plans = report.get("plans")
    if plans is None:
        return report
    first = plans[0] if plans and isinstance(plans[0], dict) else {}
    return {**report, "plan": first.get("plan"), "planned": first.get("planned")}


def _with_ranges(report: Mapping[str, Value]) -> Mapping[str, Value]:
    """Write lists of device numbers, as earlier versions did, in today's form."""
    plan = report["plan"]
    stages = plan.get("stages") if isinstance(plan, dict) else None
    if not isinstance(stages, list):
        return report
    renewed = [
        {**stage, "devices": to_ranges(chain.from_iterable(stage["devices"]))}
        if isinstance(stage, dict) and _are_numbers(stage.get("devices"))
        else stage
        for stage in stages
    ]
    return {**report, "plan": {**plan, "stages": renewed}}


def _are_numbers(rows: Value) -> bool:
    """Tell whether these are lists of whole numbers, one for each replica."""
    return isinstance(rows, list) and all(
        isinstance(row, list)
        and all(type(number) is int and 0 <= number < 2**53 for number in row)
        for row in rows
    )


def compare_reports(before: Mapping[str, Value], after: Mapping[str, Value]) -> Diff:
    """Return what differs, in the order of the first report."""
    first, second = (dict(_leaves(report)) for report in (before, after))
    changed = [
        (path, first[path], second[path])
        for path in first
        if path in second and not _equal(first[path], second[path])
    ]
    settings, numbers = [], []
    for path, old, new in changed:
        if _is_number(old) and _is_number(new) and not path.startswith(_PLAN):
            numbers.append(NumberChange(path=path, before=old, after=new))
        else:
            settings.append(ValueChange(path=path, before=old, after=new))
    return Diff(
        settings=tuple(settings),
        numbers=tuple(numbers),
        only_before=tuple(path for path in first if path not in second),
        only_after=tuple(path for path in second if path not in first),
    )


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal(old: Value, new: Value) -> bool:
    """Tell whether values are the same, true and 1 being two."""
    return bool(old == new) and isinstance(old, bool) == isinstance(new, bool)


def _leaves(value: Value, path: str = "") -> Iterator[tuple[str, Value]]:
    """Yield what has no parts of its own, by path.

    Entries of lists of tables go by their name, or else by their position.
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            if key not in _LEFT_OUT:
                name = readable(key, _LONGEST_NAME)
                yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        for key, inner in _entries(value).items():
            yield from _leaves(inner, f"{path}[{key}]")
    else:
        yield path, value


def _entries(rows: list[dict[str, Value]]) -> dict[str, dict[str, Value]]:
    names = [row.get("name") for row in rows]
    if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
        return {
            readable(str(row["name"]), _LONGEST_NAME): {
                k: v for k, v in row.items() if k != "name"
            }
            for row in rows
        }
    return {str(number): row for number, row in enumerate(rows)}


MOST_SHOWN = 40
"""Lines of each kind in the text; JSON has all."""

_WIDEST = 60
"""Characters of a value that are shown."""

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


def diff_json(diff: Diff) -> dict[str, object]:
    """Return everything that differs, for programs."""
    return {
        "equal": diff.is_empty,
        "settings": [asdict(change) for change in diff.settings],
        "numbers": [
            {
                **asdict(change),
                "absolute": change.absolute,
                "relative": change.relative,
            }
            for change in diff.numbers
        ],
        "only_before": list(diff.only_before),
        "only_after": list(diff.only_after),
    }


def diff_document(diff: Diff, names: tuple[str, str]) -> Document:
    """Return what differs: settings of the plan, numbers, what is in one only."""
    if diff.is_empty:
        headline = Headline(verdict="EQUAL", tone="good")
        return Document(
            subject=" and ".join(names), doing="diff", headline=headline, sections=()
        )
    counts = (
        plural(len(diff.settings), "setting"),
        plural(len(diff.numbers), "number"),
    )
    verdict = f"DIFFERENT: {' and '.join(counts)}"
    return Document(
        subject=" -> ".join(names),
        doing="diff",
        headline=Headline(verdict=verdict, tone="bad"),
        sections=tuple(_sections(diff, names)),
    )


def _sections(diff: Diff, names: tuple[str, str]) -> Iterator[Section]:
    if diff.settings:
        table = _table("Settings", diff.settings, SETTING_COLUMNS, ())
        yield Section("settings", "Settings", (table,))
    if diff.numbers:
        ordered = sorted(diff.numbers, key=_place)
        columns = {"number": SETTING_COLUMNS["setting"], **_NUMBER_COLUMNS}
        table = _table("Numbers", ordered, columns, tuple(_NUMBER_COLUMNS))
        yield Section("numbers", "Numbers", (table,))
    only = zip(names, (diff.only_before, diff.only_after), strict=True)
    for place, (name, paths) in enumerate(only):
        if paths:
            lines = Sentences((*paths[:MOST_SHOWN], *_rest(len(paths))))
            title = f"Only in {name}"
            yield Section(f"only-{place}", title, (lines,))


def _table(
    title: str,
    changes: Sequence[Any],
    columns: Mapping[str, Callable[[Any], str]],
    numbers: tuple[str, ...],
) -> DataTable:
    return DataTable.of(title, changes, columns, numbers=numbers, first=MOST_SHOWN)


def _rest(count: int) -> list[str]:
    more = count - MOST_SHOWN
    return [f".. and {more:,} more, which --json has"] if more > 0 else []


def _value(path: str, value: object) -> str:
    """Write a setting; devices as ranges."""
    if value is None:
        return "none"
    if path.endswith(".devices") and isinstance(value, list):
        ranges = [readable(str(devices)[:_WIDEST]) for devices in value]
        if len(ranges) > _MOST_RANGES:
            ranges[_MOST_RANGES - 1 :] = [f".. {ranges[-1]} ({len(ranges)})"]
        return ", ".join(ranges)
    if isinstance(value, str):
        text = value if len(value) <= _WIDEST else f"{value[:_WIDEST]}.."
        return readable(text)
    return shown(value, _WIDEST)


SETTING_COLUMNS: Mapping[str, Callable[[ValueChange], str]] = {
    "setting": lambda change: change.path,
    "before": lambda change: _value(change.path, change.before),
    "after": lambda change: _value(change.path, change.after),
}
"""Heading -> what writes a setting that differs."""


def _change(change: NumberChange) -> str:
    sign = "+" if change.absolute > 0 else "-"
    return sign + _quantity(change.path, abs(change.absolute))


_NUMBER_COLUMNS: Mapping[str, Callable[[NumberChange], str]] = {
    "before": lambda change: _quantity(change.path, change.before),
    "after": lambda change: _quantity(change.path, change.after),
    "change": _change,
    "relative": lambda change: (
        f"{change.relative:+.2%}" if math.isfinite(change.relative) else ""
    ),
}


def _place(change: NumberChange) -> tuple[bool, int]:
    """Put numbers of the plan as a whole first, then those with shorter paths."""
    *outer, last = change.path.split(".")
    is_headline = outer in (["planned"], ["simulated"]) and last in _HEADLINES
    return not is_headline, len(outer)


def _quantity(path: str, value: float) -> str:
    """Write a number in the unit that the end of its name says."""
    parts = path.replace("]", "").replace("[", ".").split(".")
    name = next(
        (part for part in reversed(parts) if part.endswith(("_s", "_bytes"))), ""
    )
    if name.endswith("_bytes"):
        return format_size(value)
    if name.endswith("_s") and "_per_" not in name:
        return format_duration(value)
    return f"{value:,.6g}"
