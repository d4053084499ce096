"""A map of numbers: rows in groups, columns, each number written in its cell.

The stronger the colour the larger the number, which is there to read in any case.
"""

from typing import Any

from nestsim.document.figures import HeatMap
from nestsim.document.paints import line_colour
from nestsim.document.vega.drawing import (
    Drawing,
    drawing,
    plain_field,
    rounded,
    rows_of,
)

_ROW = 28
"""Height of a row [pixel]."""

_LETTER = 7.2
"""Width of a letter in a cell [pixel]."""

_NAMES = 130
"""Most that names of rows take at the left [pixel]."""

_SHORT = 5
"""Letters of a column's name that stand level above it."""

_APART = "|"
"""Between a number, by which rows and columns differ, and their label."""


def heat_drawing(heat: HeatMap) -> Drawing:
    """Return a map of rows in groups."""
    columns, rows = heat.columns, _rows(heat)
    count = len({row["row"] for row in rows})
    down: Drawing = {
        "field": "row",
        "type": "nominal",
        "sort": None,
        "scale": {"padding": 0},
        "axis": {**_axis(), "title": None, "labelLimit": _NAMES},
    }
    across: Drawing = {
        "field": "column",
        "type": "nominal",
        "sort": None,
        "scale": {"padding": 0},
        "axis": {
            **_axis(),
            "title": heat.across,
            "orient": "top",
            "labelAngle": -35 if max(map(len, columns), default=0) > _SHORT else 0,
            "labelLimit": 110,
            "labelOverlap": True,
        },
    }
    return drawing(
        {
            "mark": {"type": "rect"},
            "encoding": {
                "x": across,
                "y": down,
                "fill": plain_field("fill"),
                "stroke": plain_field("stroke"),
                "fillOpacity": {
                    "field": "strength",
                    "type": "quantitative",
                    "scale": None,
                    "legend": None,
                },
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        },
        {
            # On a telephone there may be no room; then the table has the numbers.
            "transform": [
                {"filter": f"width / {len(columns)} > {_LETTER} * length(datum.words)"}
            ],
            "mark": {"type": "text", "tooltip": None},
            "encoding": {"x": across, "y": down, "text": {"field": "words"}},
        },
        {
            "transform": [{"filter": "datum.group !== ''"}],
            "mark": {
                "type": "text",
                "align": "left",
                "fontWeight": "bold",
                "tooltip": None,
            },
            "encoding": {
                "x": {"value": 0},
                "y": down,
                "text": {"field": "group"},
            },
        },
        height=_ROW * count,
        data=rows_of({name: [one[name] for one in rows] for name in _KEYS}),
    )


_KEYS = ("row", "column", "fill", "stroke", "strength", "words", "tip", "group")


def _axis() -> Drawing:
    return {
        "ticks": False,
        "domain": False,
        "labelExpr": f"slice(datum.value, indexof(datum.value, '{_APART}') + 1)",
    }


def _rows(heat: HeatMap) -> list[dict[str, Any]]:
    """Return the rows of the drawing: names of groups, and cells."""
    scale = heat.strength()
    named = [f"{number}{_APART}{name}" for number, name in enumerate(heat.columns)]
    marks: list[dict[str, Any]] = []
    place = 0
    for group in heat.groups:
        if group.name:
            heading = {"row": f"{place}{_APART}", "stroke": "transparent"}
            marks += [
                {**_EMPTY, **heading, "column": column, "group": name}
                for column, name in zip(
                    named, (group.name, *[""] * len(named[1:])), strict=True
                )
            ]
            place += 1
        for row in group.rows:
            for column, cell in zip(named, row.cells, strict=True):
                here = {"row": f"{place}{_APART}{row.name}", "column": column}
                marks.append({**_EMPTY, **here})
                if cell is not None:
                    series, strength = scale.of(cell.value)
                    marks[-1] |= {
                        "fill": line_colour(series),
                        "strength": rounded(strength, 3),
                        "words": cell.words,
                        "tip": cell.tip,
                    }
            place += 1
    return marks


_EMPTY = {
    "fill": "transparent",
    "stroke": "var(--rule-strong)",
    "strength": 0.0,
    "words": "",
    "tip": "",
    "group": "",
}
"""A cell without a number."""
