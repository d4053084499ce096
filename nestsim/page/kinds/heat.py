"""A map of numbers: rows in groups, columns, each number written in its cell.

The stronger the colour the larger the number, which is there to read in any case.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from nestsim.page.drawing import Drawing, drawing, plain_field, rounded, rows_of
from nestsim.page.paints import line_colour

_ROW = 28
"""Height of a row [pixel]."""

_STRONGEST = 0.55
"""Opacity of the largest number: words on it can be read in the light and the dark."""

_LETTER = 7.2
"""Width of a letter in a cell [pixel]."""

_NAMES = 130
"""Most that names of rows take at the left [pixel]."""

ORDINARY, WORSE, _BETTER = 0, 3, 2
"""Series whose colours stand for numbers: any, those that are bad, those below 0."""

_SHORT = 5
"""Letters of a column's name that stand level above it."""

_APART = "|"
"""Between a number, by which rows and columns differ, and their label."""


class HeatCell(NamedTuple):
    """A number of the map."""

    value: float
    words: str
    """Stands in the cell."""

    tip: str
    """What is told of it where somebody points at it."""


class HeatRow(NamedTuple):
    """A row of the map."""

    name: str
    cells: tuple[HeatCell | None, ...]
    """One for each column; None for no number."""


class HeatGroup(NamedTuple):
    """Rows below one name."""

    name: str
    """Of the group; empty for none."""

    rows: tuple[HeatRow, ...]


def heat_map(
    groups: Sequence[HeatGroup],
    columns: Sequence[str],
    title: str,
    *,
    series: int = ORDINARY,
) -> Drawing:
    """Return a map of rows in groups.

    Parameters
    ----------
    groups
        From top to bottom.
    columns
        Names, from left to right.
    title
        What the columns are.
    series
        Whose colour stands for numbers above 0.
    """
    rows = _rows(groups, columns, series)
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
            "title": title,
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


def _rows(
    groups: Sequence[HeatGroup], columns: Sequence[str], series: int
) -> list[dict[str, Any]]:
    """Return the rows of the drawing: names of groups, and cells."""
    sizes = [
        abs(cell.value)
        for group in groups
        for row in group.rows
        for cell in row.cells
        if cell is not None
    ]
    low, high = min(sizes, default=0.0), max(sizes, default=0.0)
    reach = (high - low) or 1.0
    named = [f"{number}{_APART}{name}" for number, name in enumerate(columns)]
    found: list[dict[str, Any]] = []
    place = 0
    for group in groups:
        if group.name:
            heading = {"row": f"{place}{_APART}", "stroke": "transparent"}
            found += [
                {**_EMPTY, **heading, "column": column, "group": name}
                for column, name in zip(
                    named, (group.name, *[""] * len(named[1:])), strict=True
                )
            ]
            place += 1
        for row in group.rows:
            for column, cell in zip(named, row.cells, strict=True):
                here = {"row": f"{place}{_APART}{row.name}", "column": column}
                found.append({**_EMPTY, **here})
                if cell is not None:
                    number = series if cell.value > 0 else _BETTER
                    share = (abs(cell.value) - low) / reach
                    found[-1] |= {
                        "fill": line_colour(number),
                        "strength": rounded(_STRONGEST * share, 3),
                        "words": cell.words,
                        "tip": cell.tip,
                    }
            place += 1
    return found


_EMPTY = {
    "fill": "transparent",
    "stroke": "var(--rule-strong)",
    "strength": 0.0,
    "words": "",
    "tip": "",
    "group": "",
}
"""A cell without a number."""
