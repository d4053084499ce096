"""Times by cause as waterfalls: of the plan, and of what lies between it and replay."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nestsim.document.paints import Swatch, fill
from nestsim.document.parts import DataTable, FigureBlock
from nestsim.document.vega.drawing import (
    Drawing,
    drawing,
    plain_field,
    rounded,
    rows_of,
)
from nestsim.page.tables import data_table
from nestsim.report.figures.data import (
    WaterfallStep,
    gap_steps,
    gap_title,
    time_unit,
    waterfall,
    waterfall_ends,
)
from nestsim.report.tables import add_row, gap_table, new_table
from nestsim.report.wording import signed_duration
from topologies.units import format_duration

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

_ROW, _LEAST = 30, 80
"""Height of a bar, and of the smallest figure [pixel]."""

_WORDS = 78
"""Width of the column of words at the right [pixel]."""

Painted = tuple[WaterfallStep, str]
"""A bar and the name of its paint."""


def planned_figure(candidate: "Candidate") -> FigureBlock:
    """Return the planned time by cause, with the simulated time below it."""
    planned = candidate.planned.iteration_time
    simulated = candidate.simulated.iteration_time
    bars = [(step, "cause") for step in waterfall(candidate)]
    bars += [
        (WaterfallStep("planned", 0.0, planned), "planned"),
        (WaterfallStep("simulated", 0.0, simulated), "simulated"),
    ]
    largest = max(waterfall(candidate), key=lambda step: step.length)
    return FigureBlock(
        name="planned",
        title=f"Planned: {format_duration(planned)}, most of it {largest.name}",
        about="Bars of the causes of the planned time, one after the other, and below "
        "them the planned and the simulated time.",
        drawing=waterfall_drawing(bars, format_duration),
        table=_table([bar for bar, _ in bars], "Planned time by cause"),
        legend=(
            Swatch(name="a cause", paint="cause"),
            Swatch(name="planned", paint="planned"),
            Swatch(name="simulated", paint="simulated"),
        ),
    )


def gap_figure(candidate: "Candidate") -> FigureBlock | None:
    """Return simulated minus planned time by cause; None where they do not differ."""
    steps = gap_steps(candidate)
    if not steps:
        return None
    total = WaterfallStep("difference", 0.0, sum(step.length for step in steps))
    bars = [
        (step, "longer" if step.length > 0 else "shorter") for step in (*steps, total)
    ]
    return FigureBlock(
        name="gap",
        title=gap_title(candidate),
        about="Bars of what makes the replay longer or shorter than the plan.",
        drawing=waterfall_drawing(
            bars, signed_duration, candidate.planned.iteration_time
        ),
        table=data_table(gap_table(candidate), "Simulated minus planned, by cause"),
        legend=(
            Swatch(name="longer", paint="longer"),
            Swatch(name="shorter", paint="shorter"),
        ),
    )


def _table(bars: Sequence[WaterfallStep], caption: str) -> DataTable:
    table = new_table("Cause", "Time", numbers=("Time",))
    for bar in bars:
        add_row(table, bar.name, format_duration(bar.length))
    return data_table(table, caption)


def waterfall_drawing(
    bars: Sequence[Painted], words: Callable[[float], str], whole: float = 0.0
) -> Drawing:
    """Return bars from top to bottom, their lengths in words at the right.

    The axis is as `waterfall_ends` has it.
    """
    low, high = waterfall_ends([bar for bar, _ in bars], whole)
    scale, unit = time_unit((high - low) or 1e-9)
    columns: dict[str, list[Any]] = {
        "name": [bar.name for bar, _ in bars],
        "from": [rounded(bar.start / scale) for bar, _ in bars],
        "to": [rounded((bar.start + bar.length) / scale) for bar, _ in bars],
        "fill": [fill(paint) for _, paint in bars],
        "words": [words(bar.length) for bar, _ in bars],
        "tip": [f"{bar.name}: {words(bar.length)}" for bar, _ in bars],
    }
    reach = rounded((high - low) / scale)
    # The column of words is as wide on a telephone as on a wall.
    end = f"{rounded(low / scale)} + {reach} * width / max(width - {_WORDS}, 40)"
    row = {
        "field": "name",
        "type": "nominal",
        "sort": None,
        "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
        "axis": {"title": None, "ticks": False, "domain": False, "labelLimit": 150},
    }
    return drawing(
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": row,
                "x": {
                    "field": "from",
                    "type": "quantitative",
                    "scale": {
                        "domain": [rounded(low / scale), {"expr": end}],
                        "nice": False,
                    },
                    "axis": {"title": f"time [{unit}]", "tickCount": 5},
                },
                "x2": {"field": "to"},
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--rule-strong)"},
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        {
            "mark": {"type": "text", "align": "right", "tooltip": None},
            "encoding": {
                "y": row,
                "x": {"value": "width"},
                "text": {"field": "words"},
            },
        },
        height=max(_LEAST, _ROW * len(bars)),
        data=rows_of(columns),
    )
