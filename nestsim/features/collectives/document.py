"""What measured collectives say, in the words of nccl-tests; JSON and CSV in SI units.

Bandwidths are written in GB/s, 1e9 bytes, as nccl-tests does; sizes in binary units.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nestsim.document.dumps import csv_of
from nestsim.document.figures import CurveMarks, CurvePoint, Curves, DrawnCurve
from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    FactList,
    FigureBlock,
    Headline,
    Section,
    cell,
)
from nestsim.document.wording import (
    device_ranges,
    no_plan_words,
    percent,
    plan_label,
    plural,
)
from nestsim.features.collectives.job import OperationTable, SizeRow, SizeTiming
from nestsim.features.run.record import spent_json
from nestsim.lowering.traffic import GroupTraffic
from planner.work import Spent
from topologies.units import format_duration, format_size

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
    names = [
        f"{condition}_{quantity}" for condition in CONDITIONS for quantity in quantities
    ]
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


_GIGA = 1e9


def collectives_document(result: "CollectivesResult") -> Document:
    """Return what the measured collectives of a plan say."""
    return Document(
        subject=result.scenario_name,
        doing="collectives",
        headline=_headline(result),
        sections=_sections(result.tables) if result.tables else (),
    )


def _headline(result: "CollectivesResult") -> Headline:
    if result.priced is None:
        verdict = no_plan_words(result.spent or Spent(), covers_space=True)
        return Headline.without(verdict, result.shortfall)
    plan = result.priced.plan
    label = f"{plan_label(plan)}, placed {plan.placement}"
    if not result.tables:
        sent = "No device of this plan sends anything to another one."
        return Headline(
            verdict="NOTHING TO MEASURE", tone="plain", sentences=(f"{label}.", sent)
        )
    return Headline(
        verdict=_answer(result.tables), tone="plain", sentences=(f"{label}.",)
    )


def _answer(tables: tuple[OperationTable, ...]) -> str:
    """Say how much of its bandwidth the operation keeps that loses most."""

    def kept(table: OperationTable) -> float:
        row = table.rows[-1]
        return row.busy.bus_bandwidth / row.alone.bus_bandwidth

    worst = min(tables, key=kept)
    if kept(worst) > 0.995:
        return "In the job, collectives reach the bandwidth that they have alone"
    return (
        f"In the job, {_name(worst.traffic)} reaches {percent(kept(worst))} of its "
        "bandwidth alone"
    )


def _sections(tables: tuple[OperationTable, ...]) -> tuple[Section, ...]:
    return (
        Section(
            "conditions",
            "What is measured",
            (
                FactList(
                    {
                        **MEANING,
                        "algbw, busbw": "algorithm and bus bandwidth in GB/s (1e9 "
                        "bytes), as nccl-tests has them",
                    }
                ),
            ),
        ),
        Section(
            "operations",
            "Each operation of each kind of group",
            tuple(_figure(place, table) for place, table in enumerate(tables)),
        ),
    )


def _name(traffic: GroupTraffic) -> str:
    """Write what is measured: ``data reduce-scatter``."""
    operation = traffic.operation
    words = "send/recv" if operation == "send_recv" else operation.replace("_", "-")
    return f"{traffic.kind} {words}"


def _groups(traffic: GroupTraffic) -> str:
    """Write who takes part: ``4 groups of 32, the first one devices 0-31``."""
    first = device_ranges(traffic.groups[0, 0].tolist())
    count = plural(traffic.num_groups, "group")
    return f"{count} of {traffic.num_members}, the first one devices {first}"


def _sent(traffic: GroupTraffic) -> str:
    """Write what the plan itself does, the largest of its stages."""
    largest = int(traffic.num_bytes.argmax())
    period = float(traffic.period[largest])
    often = "once a step"
    if math.isfinite(period):
        often = f"every {format_duration(period)}"
    size = format_size(float(traffic.num_bytes[largest]))
    return f"the plan sends {size} ({traffic.algorithm}) {often}"


def _figure(place: int, table: OperationTable) -> FigureBlock:
    """Return the bus bandwidth of an operation over the size."""
    traffic = table.traffic
    name = _name(traffic)
    sent = float(traffic.num_bytes.max())
    inside = table.rows[0].num_bytes <= sent <= table.rows[-1].num_bytes
    return FigureBlock(
        name=f"operation-{place}",
        title=f"{name[:1].upper()}{name[1:]}: {_groups(traffic)}; {_sent(traffic)}",
        about="Curves of the bus bandwidth over the size of the message.",
        drawing=Curves(
            curves=tuple(
                DrawnCurve(
                    condition, tuple(_point(row, condition) for row in table.rows)
                )
                for condition in CONDITIONS
            ),
            across="size",
            up="bus bandwidth [GB/s]",
            names={
                float(row.num_bytes): format_size(row.num_bytes) for row in table.rows
            },
            logarithmic=True,
            marks=CurveMarks(upright=(sent,) if inside else ()),
        ),
        note=f"{_algorithms(table)}{' Dotted: what the plan sends.' if inside else ''}",
        table=DataTable.of(
            name,
            table.rows,
            {
                "Size": lambda row: cell(row.num_bytes, format_size),
                "Algorithm": lambda row: row.algorithm,
                **{
                    f"{condition}, {quantity}": write
                    for condition in CONDITIONS
                    for quantity, write in _columns(condition).items()
                },
            },
        ),
    )


def _algorithms(table: OperationTable) -> str:
    """Say from which size on each algorithm is the cheapest."""
    runs = [
        (algorithm, format_size(next(rows).num_bytes))
        for algorithm, rows in itertools.groupby(
            table.rows, key=lambda row: row.algorithm
        )
    ]
    (first, _), *others = runs
    later = "".join(f", {name} from {size} on" for name, size in others)
    return f"Cheapest: {first}{later}."


def _columns(condition: str) -> Mapping[str, Callable[[SizeRow], str | Cell]]:
    def measured(row: SizeRow) -> SizeTiming:
        timing: SizeTiming = getattr(row, condition)
        return timing

    return {
        "time": lambda row: cell(measured(row).time, format_duration),
        "algbw": lambda row: cell(measured(row).algorithm_bandwidth, _gigabytes),
        "busbw": lambda row: cell(measured(row).bus_bandwidth, _gigabytes),
    }


def _gigabytes(bandwidth: float) -> str:
    return f"{bandwidth / _GIGA:.2f}"


def _point(row: SizeRow, condition: str) -> CurvePoint:
    bandwidth = getattr(row, condition).bus_bandwidth
    size = format_size(row.num_bytes)
    tip = f"{condition}, {size} by {row.algorithm}: {_gigabytes(bandwidth)} GB/s"
    return CurvePoint(float(row.num_bytes), bandwidth / _GIGA, tip)
