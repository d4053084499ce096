"""What differs between two reports of run, plan or simulate: plan and numbers.

Reports are compared value by value: what `nestsim plan`, `run` and `simulate` print
with ``--json``, and a folder of results holds as ``result.json``. Of a report with
several plans the first one counts. Other candidates and what the search counted are
left out, as they are not about the plan that is reported; so are sentences.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from planner.step.plan import to_ranges
from topologies.errors import InputError, readable
from topologies.input_file import file_in, read_json

RESULT = "result.json"

LARGEST = 16 * 2**20
"""The report on a plan for a million devices takes half of it [byte]."""

MOST_VALUES = 1_000_000
"""Of a report, devices of a stage counting once."""

_LEFT_OUT = ("candidates", "plans", "search", "assertions", "reason", "folding")
"""Of other plans, or sentences about what is compared by itself."""

_PLAN = "plan."

_LONGEST_NAME = 100

Value = Any
Leaves = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that both reports have, and that differs."""

    path: str
    """Dotted path in the report."""

    before: Value
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberChange(Change):
    """A number that differs."""

    @property
    def absolute(self) -> float:
        """By how much, in the number's unit."""
        return float(self.after - self.before)

    @property
    def relative(self) -> float:
        """The same as a share of what it was before; NaN if that was 0."""
        return self.absolute / abs(self.before) if self.before else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Everything that differs."""

    settings: tuple[Change, ...]
    """Of the plan, stage by stage, and of what is not a number."""

    numbers: tuple[NumberChange, ...]
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
            settings.append(Change(path=path, before=old, after=new))
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
