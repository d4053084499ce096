"""Bars of parts, one after the other: what makes up each of several things."""

from collections.abc import Sequence
from typing import Any

from nestsim.document.figures import StackedBar, StackPart, Stacks
from nestsim.document.paints import fill
from nestsim.document.vega.drawing import (
    ROW_AXIS,
    Drawing,
    drawing,
    plain_field,
    rounded,
    row_marks,
    row_name,
    rows_of,
)

_ROW = 34
"""Height of a bar [pixel]."""

_LETTER = 8
"""Width of a letter of the words at the right [pixel]."""


def stacks_drawing(stacks: Stacks) -> Drawing:
    """Return bars of parts, from top to bottom."""
    bars, reach = stacks.bars, rounded(stacks.reach)
    room = _LETTER * max(len(bar.words) for bar in bars)
    # The column of words is as wide on a telephone as on a wall.
    end = f"{reach} * width / max(width - {room}, 40)"
    down: Drawing = {
        "field": "row",
        "type": "nominal",
        "sort": None,
        "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
        "axis": ROW_AXIS,
    }
    return drawing(
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": down,
                "x": {
                    "field": "from",
                    "type": "quantitative",
                    "scale": {"domain": [0, {"expr": end}], "nice": False},
                    "axis": {"title": stacks.across, "tickCount": 5},
                },
                "x2": {"field": "to"},
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--rule-strong)"},
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        *row_marks(down),
        height=max(3 * _ROW, _ROW * len(bars)),
        data=_rows(bars),
    )


def _rows(bars: Sequence[StackedBar]) -> Drawing:
    columns: dict[str, list[Any]] = {
        name: [] for name in ("row", "from", "to", "fill", "words", "mark", "tip")
    }
    for number, bar in enumerate(bars):
        reached = 0.0
        for place, part in enumerate(bar.parts or (StackPart("", 0.0, "idle", ""),)):
            columns["row"].append(row_name(number, bar.name))
            columns["from"].append(rounded(reached))
            reached += part.length
            columns["to"].append(rounded(reached))
            columns["fill"].append(fill(part.paint))
            columns["words"].append("" if place else bar.words)
            mark = None if place or bar.mark is None else rounded(bar.mark)
            columns["mark"].append(mark)
            columns["tip"].append(part.tip)
    return rows_of(columns)
