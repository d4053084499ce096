"""All replayed plans of a search as a table that readers sort."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nestsim.document.parts import Cell, DataTable
from nestsim.report.wording import difference, signed_percent
from topologies.units import format_duration, format_size

Row = Mapping[str, Any]
"""A row of ``candidates`` of ``result.json``."""

_DEGREES = {
    "TP": "tensor_model_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "CP": "context_parallel_size",
    "EP": "expert_model_parallel_size",
    "DP": "data_parallel_size",
}
"""Heading -> setting, under Megatron's names."""

_ALWAYS = ("TP", "PP", "DP")
"""Degrees that stand there even if they are 1 everywhere."""


def candidates_table(rows: Sequence[Row], reported_rank: int) -> DataTable:
    """Return the replayed plans, fastest first.

    Parameters
    ----------
    rows
        As ``result.json`` has them.
    reported_rank
        Planner's rank of the plan that the page is about.
    """
    degrees = [
        heading
        for heading in _DEGREES
        if heading in _ALWAYS or any(_degree(row, heading) != 1 for row in rows)
    ]
    columns: dict[str, Callable[[Row], Cell | str]] = {
        "Planner's rank": lambda row: _count(row["planner_rank"]),
        **{heading: partial(_degree_cell, heading) for heading in degrees},
        "Micro batch": lambda row: _count(row["micro_batch_size"]),
        "Planned": lambda row: _time(row["planned_iteration_time_s"]),
        "Simulated": lambda row: _time(row["simulated_iteration_time_s"]),
        "Differs": _differs,
        "Memory": lambda row: Cell(
            format_size(row["simulated_peak_memory_bytes"]),
            row["simulated_peak_memory_bytes"],
        ),
        "Placement": lambda row: row["placement"],
        "Verdict": lambda row: row["verdict"],
    }
    ranks = [row["planner_rank"] for row in rows]
    return DataTable(
        caption="Replayed plans, fastest first; the marked one is this page's",
        columns=tuple(columns),
        rows=tuple(tuple(write(row) for write in columns.values()) for row in rows),
        numbers=tuple(name for name in columns if name not in _WORDS),
        sortable=True,
        shown=ranks.index(reported_rank) if reported_rank in ranks else None,
    )


_WORDS = ("Placement", "Verdict")
"""Columns of words."""


def _degree(row: Row, heading: str) -> int:
    name = _DEGREES[heading]
    degree: int = row["parallel"].get(name, row.get(name, 1))
    return degree


def _degree_cell(heading: str, row: Row) -> Cell:
    return _count(_degree(row, heading))


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _time(seconds: float) -> Cell:
    return Cell(format_duration(seconds), seconds)


def _differs(row: Row) -> Cell:
    share = difference(
        row["planned_iteration_time_s"], row["simulated_iteration_time_s"]
    )
    return Cell(signed_percent(share), share if math.isfinite(share) else 0.0)
