"""Times by cause, and the plans that were replayed, as figures and tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import tomli

from nestsim.document.figures import (
    BarGroups,
    GroupedBar,
    StackedBar,
    StackPart,
    Stacks,
)
from nestsim.document.paints import Swatch
from nestsim.document.parts import Cell, DataTable, FigureBlock, cell
from nestsim.document.wording import (
    difference,
    gap_cause,
    percent,
    plural,
    signed_duration,
    signed_percent,
    time_unit,
    without_rounding,
)
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A cause of which something is known that may shorten the step."""

    words: str
    """What people call it."""

    changes: tuple[tuple[str, ...], ...] = ()
    """Names of rows of ``advise/changes.toml``, with "more" or "less" where only such
    values count."""

    network: bool = False
    """Whether wider links may shorten it."""


@cache
def waits() -> Mapping[str, Wait]:
    """Return all of ``causes.toml``: term of a step -> what is known of it."""
    text = files("nestsim.features.run").joinpath("causes.toml")
    tables = tomli.loads(text.read_text(encoding="utf-8"))
    return {
        term: Wait(
            words=table["words"],
            changes=tuple(map(tuple, table.get("changes", ()))),
            network=table.get("network", False),
        )
        for term, table in tables.items()
    }


def words_of_term(term: str) -> str:
    """Return what people call a term of a step."""
    return waits()[term].words if term in waits() else term


_MOST_CANDIDATES = 12
"""Rows of the replayed plans that stay legible in a figure."""


def planned_figure(candidate: "Candidate") -> FigureBlock:
    """Return the planned time by cause, with the simulated time below it."""
    planned = candidate.planned.iteration_time
    simulated = candidate.simulated.iteration_time
    causes = planned_causes(candidate)
    largest = max(causes, key=lambda name: causes[name])
    totals = {"planned": (planned, "planned"), "simulated": (simulated, "simulated")}
    return FigureBlock(
        name="planned",
        title=f"Planned: {format_duration(planned)}, most of it {largest}",
        about="Bars of the causes of the planned time, one after the other, and below "
        "them the planned and the simulated time.",
        drawing=waterfall(
            {name: (seconds, "cause") for name, seconds in causes.items()},
            totals,
            format_duration,
        ),
        table=causes_table("Planned time, by cause", causes, planned),
        legend=(
            Swatch(name="a cause", paint="cause"),
            Swatch(name="planned", paint="planned"),
            Swatch(name="simulated", paint="simulated"),
        ),
    )


def planned_causes(candidate: "Candidate") -> dict[str, float]:
    """Return the planned time by cause, without causes that take none [s].

    What the causes leave unexplained, beyond rounding, is ``"other"``.
    """
    planned = candidate.priced.iteration_time
    terms = dict(candidate.priced.terms)
    other = planned - math.fsum(terms.values())
    if abs(other) > 1e-6 * planned:
        terms["other"] = other
    return {name: seconds for name, seconds in terms.items() if seconds}


def gap_causes(candidate: "Candidate") -> dict[str, float]:
    """Return simulated minus planned time by cause, without rounding [s]."""
    planned = candidate.planned.iteration_time
    terms = {
        name: without_rounding(seconds, planned)
        for name, seconds in candidate.verdict.gap.terms.items()
    }
    return {name: seconds for name, seconds in terms.items() if seconds}


def gap_figure(candidate: "Candidate") -> FigureBlock | None:
    """Return simulated minus planned time by cause; None where they do not differ."""
    causes = gap_causes(candidate)
    if not causes:
        return None
    painted = {
        name: (seconds, "longer" if seconds > 0 else "shorter")
        for name, seconds in (*causes.items(), ("difference", sum(causes.values())))
    }
    total = {"difference": painted.pop("difference")}
    planned = candidate.planned.iteration_time
    return FigureBlock(
        name="gap",
        title=gap_title(candidate),
        about="Bars of what makes the replay longer or shorter than the plan.",
        drawing=waterfall(painted, total, signed_duration, planned),
        table=gap_table(candidate),
        legend=(
            Swatch(name="longer", paint="longer"),
            Swatch(name="shorter", paint="shorter"),
        ),
    )


def gap_table(candidate: "Candidate") -> DataTable:
    """Return the difference between plan and replay by cause."""
    planned, gap = candidate.planned.iteration_time, candidate.verdict.gap
    rows = [
        (name, without_rounding(seconds, planned))
        for name, seconds in (*gap.terms.items(), ("total", gap.total))
    ]
    return DataTable.of(
        "Simulated minus planned, by cause",
        rows,
        {
            "Cause": lambda row: row[0],
            "Time": lambda row: cell(row[1], signed_duration),
            "Of planned": lambda row: signed_percent(
                row[1] / planned if planned else math.nan
            ),
        },
        numbers=("Of planned",),
    )


def causes_table(caption: str, causes: Mapping[str, float], total: float) -> DataTable:
    """Return a time by cause, without the causes that take none."""
    exact = {name: without_rounding(time, total) for name, time in causes.items()}
    rows = [*((name, time) for name, time in exact.items() if time), ("total", total)]
    return DataTable.of(
        caption,
        rows,
        {
            "Cause": lambda row: row[0],
            "Time": lambda row: cell(row[1], format_duration),
            "Share": lambda row: percent(row[1] / total if total else math.nan),
        },
        numbers=("Share",),
    )


def waterfall(
    causes: Mapping[str, tuple[float, str]],
    totals: Mapping[str, tuple[float, str]],
    words: Callable[[float], str],
    whole: float = 0.0,
) -> Stacks:
    """Return bars from top to bottom, each of ``causes`` where the last one ends.

    Parameters
    ----------
    causes, totals
        Name -> time [s] and paint; totals begin at 0.
    words
        What writes a time.
    whole
        Time that all are a part of: a gap of 0.07 % of it is a short bar [s].
    """
    bars, reached = [], 0.0
    steps = [
        (name, *step, name in totals) for name, step in {**causes, **totals}.items()
    ]
    starts: list[float] = []
    for _, seconds, _, is_total in steps:
        starts.append(0.0 if is_total else reached)
        reached += seconds
    ends = [
        end
        for start, (_, seconds, _, _) in zip(starts, steps, strict=True)
        for end in (start, start + seconds)
    ]
    scale, unit = time_unit(max(max(ends) - min(ends), 0.01 * whole) or 1e-9)
    for start, (name, seconds, paint, _) in zip(starts, steps, strict=True):
        text = words(seconds)
        part = StackPart(name, seconds / scale, paint, f"{name}: {text}")
        bars.append(StackedBar(name, (part,), text, start=start / scale))
    return Stacks(bars=tuple(bars), across=f"time [{unit}]", whole=whole / scale)


def gap_title(candidate: "Candidate") -> str:
    """Say how far the replay is from the plan, and the largest cause."""
    planned = candidate.planned.iteration_time
    gap = candidate.verdict.gap
    share = gap.total / planned if planned else math.nan
    if abs(share) < 5e-4:
        return "The replay takes as long as planned, within 0.1 %"
    how = f"{percent(abs(share))} {'longer' if gap.total > 0 else 'shorter'}"
    cause = gap_cause(gap)
    if not cause:
        return f"The replay is {how} than planned"
    part = signed_percent(gap.terms[cause] / planned)
    return f"The replay is {how} than planned; the largest cause is {cause} ({part})"


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


_REAL = ("TP", "PP", "EP", "CP")
"""Degrees that, beside recompute, make a plan another one, not a shade of the same."""

_MOST_OTHERS = 3
"""Other plans that the terminal has without ``--verbose``."""

YOURS = 0
"""Rank of the user's own plan."""


def plans_figure(rows: Sequence[Row], reported_rank: int) -> FigureBlock:
    """Return the replayed plans, fastest first, planned beside simulated.

    Parameters
    ----------
    rows
        At least one, as ``result.json`` has them; the user's own plan, of rank `YOURS`,
        may come first.
    reported_rank
        Planner's rank of the plan that is reported.
    """
    count = sum(row["planner_rank"] != YOURS for row in rows)
    drawn = rows[:_MOST_CANDIDATES]
    scale, unit = time_unit(max(map(_longest, drawn)))
    ranks = [row["planner_rank"] for row in rows]

    def bar(row: Row) -> GroupedBar:
        simulated = row["simulated_iteration_time_s"]
        words = f"{format_duration(simulated)}, {row['verdict']}"
        size = format_size(row["simulated_peak_memory_bytes"])
        return GroupedBar(
            name=_mark(row, reported_rank) + _degrees(row),
            length=simulated / scale,
            words=words,
            paint="simulated" if row["verdict"] == "confirmed" else "idle",
            mark=row["planned_iteration_time_s"] / scale,
            tip=f"{_degrees(row)}: {words}, {size}",
        )

    table = DataTable.of(
        "Replayed plans, fastest first; * is the one that is reported",
        rows,
        _plan_columns(rows, reported_rank),
        sortable=True,
        shown=ranks.index(reported_rank) if reported_rank in ranks else None,
        first=5,
    )
    return FigureBlock(
        name="plans",
        title=f"{'Yours, and ' * (count < len(rows))}{plural(count, 'plan')} replayed, "
        "fastest first",
        about="Bars of the simulated time of each replayed plan, with a line at the "
        "planned time.",
        drawing=BarGroups.of(
            map(bar, drawn),
            f"iteration time, simulated, with a line where planned [{unit}]",
        ),
        table=replace(
            table,
            brief=_brief_rows(rows, reported_rank),
            details=("Planned", "Differs", "Placement"),
        ),
        legend=(
            Swatch(name="simulated, confirmed", paint="simulated"),
            Swatch(name="simulated, not confirmed", paint="idle"),
        ),
        note="*: the plan that is reported.",
        opened=True,
    )


def _mark(row: Row, reported_rank: int) -> str:
    rank = row["planner_rank"]
    return "yours: " if rank == YOURS else "* " * (rank == reported_rank)


def _brief_rows(rows: Sequence[Row], reported_rank: int) -> tuple[int, ...]:
    """Return the user's plan, the reported one, and others that are really others."""

    def kind(row: Row) -> tuple[object, ...]:
        return (*(_degree(row, name) for name in _REAL), row.get("recompute"))

    always = {YOURS, reported_rank}
    kept = {number for number, row in enumerate(rows) if row["planner_rank"] in always}
    seen, most = {kind(rows[number]) for number in kept}, len(kept) + _MOST_OTHERS
    for number, row in enumerate(rows):
        if kind(row) not in seen and len(kept) < most:
            kept.add(number)
            seen.add(kind(row))
    return tuple(sorted(kept))


def _longest(row: Row) -> float:
    times: tuple[float, float] = (
        row["planned_iteration_time_s"],
        row["simulated_iteration_time_s"],
    )
    return max(times)


def _plan_columns(
    rows: Sequence[Row], reported_rank: int
) -> dict[str, Callable[[Row], Cell | str]]:
    degrees = [
        heading
        for heading in _DEGREES
        if heading in _ALWAYS or any(_degree(row, heading) != 1 for row in rows)
    ]
    return {
        "Rank": lambda row: (
            "yours"
            if row["planner_rank"] == YOURS
            else cell(row["planner_rank"], _count)
        ),
        **{heading: _degree_cell(heading) for heading in degrees},
        "b": lambda row: cell(row["micro_batch_size"], _count),
        **({"Saving": lambda row: row["saving"]} if "saving" in rows[0] else {}),
        "Planned": lambda row: cell(row["planned_iteration_time_s"], format_duration),
        "Simulated": lambda row: cell(
            row["simulated_iteration_time_s"], format_duration
        ),
        "Differs": _differs,
        "Memory": lambda row: cell(row["simulated_peak_memory_bytes"], format_size),
        "Verdict": lambda row: (
            row["verdict"] + " *" * (row["planner_rank"] == reported_rank)
        ),
        "Placement": lambda row: row["placement"],
    }


def _degree(row: Row, heading: str) -> int:
    name = _DEGREES[heading]
    degree: int = row["parallel"].get(name, row.get(name, 1))
    return degree


def _degree_cell(heading: str) -> Callable[[Row], Cell | str]:
    return lambda row: cell(_degree(row, heading), _count)


def _degrees(row: Row) -> str:
    """Write the degrees of a plan in short: ``tp2 pp4 dp8 b1``."""
    shown = [
        f"{heading.lower()}{_degree(row, heading)}"
        for heading in _DEGREES
        if heading in _ALWAYS or _degree(row, heading) != 1
    ]
    return " ".join([*shown, f"b{row['micro_batch_size']}"])


def _count(value: float) -> str:
    return f"{value:,}"


def _differs(row: Row) -> Cell:
    share = difference(
        row["planned_iteration_time_s"], row["simulated_iteration_time_s"]
    )
    return Cell(signed_percent(share), share if math.isfinite(share) else 0.0)
