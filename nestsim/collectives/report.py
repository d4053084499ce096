"""Measured collectives as text, JSON and CSV, in the words of nccl-tests.

Bandwidths are written in GB/s, 1e9 bytes, as nccl-tests does; sizes in binary units.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as TextTable
from rich.text import Text

from nestsim.collectives.job import OperationTable, SizeRow, SizeTiming
from nestsim.lowering.traffic import GroupTraffic
from nestsim.report.frames import csv_of
from nestsim.report.json import spent_json
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import device_ranges, no_plan_words, plan_label, plural
from planner.work import Spent
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.collectives.job import CollectivesResult

CONDITIONS = ("alone", "together", "busy")
"""Under which each operation is measured, fields of `SizeRow`."""

MEANING = {
    "alone": "the slowest group, and nothing else on the network",
    "together": "all groups of the kind at once, until the last one is done",
    "busy": "the same again and again, while the other kinds of groups send what the "
    "plan has them send in every microbatch; the mean of the slowest",
}
"""Condition -> what happens, in words."""

_WIDE = 112
"""Columns from which on all conditions stand beside each other."""


def operation_name(operation: str) -> str:
    """Write an operation for people: ``all-reduce``."""
    return "send/recv" if operation == "send_recv" else operation.replace("_", "-")


def title(traffic: GroupTraffic) -> str:
    """Write what is measured: ``data reduce-scatter``."""
    return f"{traffic.kind} {operation_name(traffic.operation)}"


def groups_in_words(traffic: GroupTraffic) -> str:
    """Write who takes part: ``4 groups of 32, the first one devices 0-31``."""
    first = device_ranges(traffic.groups[0, 0].tolist())
    count = plural(traffic.num_groups, "group")
    return f"{count} of {traffic.num_members}, the first one devices {first}"


def sent_by_plan(traffic: GroupTraffic) -> str:
    """Write what the plan itself does, the largest of its stages."""
    largest = int(traffic.num_bytes.argmax())
    period = float(traffic.period[largest])
    often = "once a step"
    if math.isfinite(period):
        often = f"every {format_duration(period)}"
    size = format_size(float(traffic.num_bytes[largest]))
    return f"the plan sends {size} ({traffic.algorithm}) {often}"


def print_collectives(result: "CollectivesResult", console: Console) -> None:
    """Print a table for each kind of group and operation."""
    if result.priced is None:
        headline = no_plan_words(result.spent or Spent(), covers_space=True)
        console.print(Text(headline, style="bold red"), highlight=False)
        console.print(Text(result.shortfall), highlight=False)
        return
    plan = result.priced.plan
    headline = f"{result.scenario_name}: {plan_label(plan)}, placed {plan.placement}"
    console.print(Text(headline, style="bold"), highlight=False)
    if not result.tables:
        text = "No device of this plan sends anything to another one."
        console.print(Text(text), highlight=False)
        return
    for condition in CONDITIONS:
        line = f"{condition}: {MEANING[condition]}"
        console.print(Text(line), highlight=False)
    console.print(
        Text(
            "Algorithm and bus bandwidth in GB/s (1e9 bytes), as nccl-tests has them."
        ),
        highlight=False,
    )
    for table in result.tables:
        _print_table(table, console)


def _print_table(table: OperationTable, console: Console) -> None:
    console.print()
    traffic = table.traffic
    text = Text(title(traffic)[:1].upper() + title(traffic)[1:], style="bold")
    text.append(f": {groups_in_words(traffic)}; {sent_by_plan(traffic)}", style="none")
    console.print(text, highlight=False)
    if console.width >= _WIDE:
        console.print(_text_table(table, CONDITIONS))
        return
    for condition in CONDITIONS:
        console.print(_text_table(table, (condition,)))


def _text_table(table: OperationTable, conditions: Sequence[str]) -> TextTable:
    numbers = ["Size"]
    for condition in conditions:
        numbers += [f"{condition}\ntime", f"{condition}\nalgbw", f"{condition}\nbusbw"]
    text = new_table("Size", "Algorithm", *numbers[1:], numbers=numbers)
    for column in text.columns[2:]:
        column.min_width = None
    for row in table.rows:
        cells = [format_size(row.num_bytes), row.algorithm]
        for condition in conditions:
            cells += _cells(getattr(row, condition))
        add_row(text, *cells)
    return text


def _cells(timing: SizeTiming) -> tuple[str, str, str]:
    return (
        format_duration(timing.time),
        f"{timing.algorithm_bandwidth / 1e9:.2f}",
        f"{timing.bus_bandwidth / 1e9:.2f}",
    )


def collectives_json(result: "CollectivesResult") -> dict[str, Any]:
    """Return everything that was measured, for programs."""
    plan = result.priced.plan.to_json() if result.priced is not None else None
    return {
        "scenario": result.scenario_name,
        "plan": plan,
        "reason": result.shortfall,
        "search": spent_json(result.spent) if result.spent is not None else None,
        "conditions": MEANING,
        "tables": [_table_json(table) for table in result.tables],
    }


def _table_json(table: OperationTable) -> dict[str, Any]:
    traffic = table.traffic
    return {
        "kind": traffic.kind,
        "operation": traffic.operation,
        "num_groups": traffic.num_groups,
        "num_members": traffic.num_members,
        "first_group": traffic.groups[0, 0].tolist(),
        "plan_algorithm": traffic.algorithm,
        "plan_size_bytes": float(traffic.num_bytes.max()),
        "plan_period_s": float(traffic.period.min()),
        "rows": [
            {
                "size_bytes": row.num_bytes,
                "algorithm": row.algorithm,
                **{name: _timing_json(getattr(row, name)) for name in CONDITIONS},
                "closed_forms_s": dict(row.closed_forms),
            }
            for row in table.rows
        ],
    }


def _timing_json(timing: SizeTiming) -> dict[str, float]:
    return {
        "time_s": timing.time,
        "algbw_bytes_per_s": timing.algorithm_bandwidth,
        "busbw_bytes_per_s": timing.bus_bandwidth,
    }


def collectives_csv(tables: Sequence[OperationTable]) -> str:
    """Return one line per kind of group, operation and size, in SI units."""
    columns = ["kind", "operation", "num_groups", "num_members", "size_bytes"]
    quantities = ("time_s", "algbw_bytes_per_s", "busbw_bytes_per_s")
    names = [f"{one}_{quantity}" for one in CONDITIONS for quantity in quantities]
    rows = []
    for table in tables:
        traffic = table.traffic
        about = traffic.kind, traffic.operation, traffic.num_groups
        rows += [
            [*about, traffic.num_members, row.num_bytes, row.algorithm, *_all(row)]
            for row in table.rows
        ]
    return csv_of(rows, [*columns, "algorithm", *names])


def _all(row: SizeRow) -> list[float]:
    return [value for name in CONDITIONS for value in getattr(row, name)]
