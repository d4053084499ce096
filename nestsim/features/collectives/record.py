"""Measured collectives as JSON and CSV, in SI units."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nestsim.document.dumps import csv_of
from nestsim.features.collectives.job import OperationTable, SizeRow, SizeTiming
from nestsim.features.run.record import spent_json

if TYPE_CHECKING:
    from nestsim.features.collectives.job import CollectivesResult

CONDITIONS = ("alone", "together", "busy")
"""Under which each operation is measured, fields of `SizeRow`."""

MEANING = {
    "alone": "the slowest group, and nothing else on the network",
    "together": "all groups of the kind at once, until the last one is done",
    "busy": "the same again and again, while the other kinds of groups send what the "
    "plan has them send in every microbatch; the mean of the slowest",
}
"""Condition -> what happens, in words."""


def collectives_json(result: "CollectivesResult") -> dict[str, object]:
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


def _table_json(table: OperationTable) -> dict[str, object]:
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
