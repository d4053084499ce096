"""Throughput over what a cluster costs, and what is on the Pareto front."""

from collections.abc import Sequence
from typing import Any

from nestsim.page.drawing import Drawing, drawing, rounded, rows_of
from nestsim.page.paints import line_colour
from nestsim.page.parts import Cell, DataTable, PageFigure, Swatch
from nestsim.report.cost import HOUR, hourly
from nestsim.report.figures.data import axis_ends
from nestsim.report.figures.pareto import PricedPoint, front_headline, front_points
from nestsim.report.wording import number

_HEIGHT = 300
"""Of the drawing [pixel]."""


def front_figure(
    points: Sequence[PricedPoint], currency: str, heading: str
) -> PageFigure:
    """Return the figure of points with prices.

    Parameters
    ----------
    points
        At least one.
    currency
        Of all costs.
    heading
        What the names of points are.
    """
    front = front_points(points)
    return PageFigure(
        name="pareto",
        title=front_headline(points, currency),
        about=f"{len(front)} of {len(points)} points are on the Pareto front of "
        "throughput and cost: no other is both no dearer and no slower.",
        drawing=_drawing(points, front, currency),
        table=DataTable(
            caption="Cost of the cluster and throughput; the front first",
            columns=(heading, "Cost", "Throughput", f"tokens/{currency}", "Front"),
            rows=tuple(
                (
                    one.name or "the only point",
                    Cell(hourly(one.rate, currency), one.rate),
                    Cell(f"{number(one.throughput)} tokens/s", one.throughput),
                    Cell(number(one.tokens_per_money), one.tokens_per_money),
                    "on it" if one.on_front else "",
                )
                for one in (*front, *(one for one in points if not one.on_front))
            ),
            numbers=("Cost", "Throughput", f"tokens/{currency}"),
            sortable=True,
        ),
        legend=(Swatch(name="on the front", paint="0", line=True),),
        note="Filled: on the Pareto front. Hollow: another is no dearer and no slower.",
    )


def _drawing(
    points: Sequence[PricedPoint], front: Sequence[PricedPoint], currency: str
) -> Drawing:
    rates = [HOUR * one.rate for one in points]
    low, high = axis_ends(min(rates), max(rates))
    room = 0.06 * ((high - low) or 1.0)
    across: Drawing = {
        "field": "rate",
        "type": "quantitative",
        "scale": {
            "domain": [
                rounded(max(low - room, 0.0), 4),
                rounded(high + room, 4),
            ],
            "nice": False,
            "zero": False,
        },
        "axis": {
            "title": f"cost of the cluster [{currency}/h]",
            "tickCount": 5,
            "grid": False,
        },
    }
    down: Drawing = {
        "field": "throughput",
        "type": "quantitative",
        "axis": {"title": "thousand tokens/s", "tickCount": 5},
    }
    tip = {"field": "tip", "type": "nominal"}
    shown = {"x": across, "y": down}
    return drawing(
        {
            "data": _rows(front, currency),
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "stroke": line_colour(0),
                "strokeWidth": 2,
                "tooltip": None,
            },
            "encoding": shown,
        },
        {
            "data": _rows([one for one in points if not one.on_front], currency),
            "mark": {
                "type": "point",
                "shape": "square",
                "filled": False,
                "stroke": "var(--ink-soft)",
                "size": 60,
            },
            "encoding": {**shown, "tooltip": tip},
        },
        {
            "data": _rows(front, currency),
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {**shown, "fill": {"value": line_colour(0)}, "tooltip": tip},
        },
        height=_HEIGHT,
    )


def _rows(points: Sequence[PricedPoint], currency: str) -> Drawing:
    columns: dict[str, list[Any]] = {
        "rate": [rounded(HOUR * one.rate) for one in points],
        "throughput": [rounded(one.throughput / 1e3) for one in points],
        "tip": [
            f"{one.name or 'the only point'}: {number(one.throughput)} tokens/s, "
            f"{hourly(one.rate, currency)}"
            for one in points
        ],
    }
    return rows_of(columns)
