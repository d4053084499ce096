"""Bars in groups, from top to bottom: a group's name, then a bar for each member."""

from typing import Any

from nestsim.document.figures import BarGroups, GroupedBar
from nestsim.document.paints import fill
from nestsim.document.vega.drawing import (
    ROW_AXIS,
    Drawing,
    drawing,
    plain_field,
    rounded,
    row_marks,
    row_name,
)

_ROW = 30
"""Height of a bar [pixel]."""

_LETTER = 7.5
"""Width of a letter of the words at the right [pixel]."""


def bars_drawing(bars: BarGroups) -> Drawing:
    """Return groups of bars, from top to bottom."""
    rows = _rows(bars)
    has_dots = any(bar.dot is not None for bar in bars.bars)
    has_whiskers = any(bar.whisker is not None for bar in bars.bars)
    top = rounded(bars.reach)
    place: Drawing = {
        "field": "row",
        "type": "nominal",
        "sort": None,
        # Named one by one: rows without a bar would come last.
        "scale": {
            "domain": [row["row"] for row in rows],
            "paddingInner": 0.25,
            "paddingOuter": 0.15,
        },
        "axis": ROW_AXIS,
    }
    # The column of words is as wide on a telephone as on a wall.
    room = 12 + _LETTER * max((len(row["words"]) for row in rows), default=0)
    end = f"{top} * width / max(width - {room:g}, 40)"
    across = {
        "field": "length",
        "type": "quantitative",
        "scale": {"domain": [0, {"expr": end}], "nice": False},
        "axis": {"title": bars.across, "tickCount": 5},
    }
    return drawing(
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": place,
                "x": across,
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--rule-strong)"},
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        *row_marks(place),
        *((_dots(place),) if has_dots else ()),
        *((_whiskers(place),) if has_whiskers else ()),
        {
            "transform": [{"filter": "datum.group != ''"}],
            "mark": {
                "type": "text",
                "align": "left",
                "fontWeight": "bold",
                "tooltip": None,
            },
            "encoding": {
                "y": place,
                "x": {"value": 0},
                "text": {"field": "group"},
            },
        },
        height=max(2 * _ROW, _ROW * len(rows)),
        data={"values": rows},
    )


def _dots(place: Drawing) -> Drawing:
    """Return the diamonds; those off the axis are triangles at its end."""
    return {
        "transform": [{"filter": "isValid(datum.dot)"}],
        "mark": {"type": "point", "filled": True, "size": 90, "tooltip": None},
        "encoding": {
            "y": place,
            "x": {"field": "dot", "type": "quantitative"},
            "shape": {"field": "dotShape", "type": "nominal", "scale": None},
            "fill": {"value": "var(--ground)"},
            "stroke": {"value": "var(--ink)"},
        },
    }


def _whiskers(place: Drawing) -> Drawing:
    """Return the lines from one end of a bar's range to the other."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "tooltip": None},
        "encoding": {
            "y": place,
            "x": {"field": "low", "type": "quantitative"},
            "x2": {"field": "high"},
        },
    }


def _rows(bars: BarGroups) -> list[dict[str, Any]]:
    """Return the rows of the drawing: names of groups, and bars."""
    rows: list[dict[str, Any]] = []
    for group in bars.groups:
        if group.name:
            heading = GroupedBar("", None, "", "idle")
            rows.append(_row(len(rows), heading, group.name, bars.reach))
        rows += [
            _row(len(rows) + place, bar, "", bars.reach)
            for place, bar in enumerate(group.bars)
        ]
    return rows


def _row(number: int, bar: GroupedBar, group: str, reach: float) -> dict[str, Any]:
    marks: dict[str, Any] = {}
    if bar.dot is not None:
        shape = "triangle-right" if bar.dot > reach else "diamond"
        marks = {"dot": rounded(min(bar.dot, reach)), "dotShape": shape}
    if bar.whisker is not None:
        marks |= dict(zip(("low", "high"), map(rounded, bar.whisker), strict=True))
    return {
        **marks,
        "row": row_name(number, bar.name),
        "length": None if bar.length is None else rounded(bar.length),
        "mark": None if bar.mark is None else rounded(bar.mark),
        "words": bar.words,
        "fill": fill(bar.paint),
        "group": group,
        "tip": bar.tip,
    }
