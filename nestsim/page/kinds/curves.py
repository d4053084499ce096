"""Curves over a number: each with its own colour, dash and shape of points."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nestsim.page.drawing import Drawing, drawing, rounded, rows_of
from nestsim.page.paints import line_colour, line_dash
from nestsim.page.parts import Swatch
from nestsim.report.figures.data import axis_ends

_HEIGHT = 280
"""Of the drawing [pixel]."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


class CurvePoint(NamedTuple):
    """A point of a curve."""

    x: float
    y: float
    tip: str
    """What is told of it where somebody points at it."""


class DrawnCurve(NamedTuple):
    """Points joined by lines, from left to right."""

    name: str
    points: tuple[CurvePoint, ...]


class CurveMarks(NamedTuple):
    """Dotted lines across the drawing to read curves by."""

    upright: tuple[float, ...] = ()
    """Where they stand."""

    level: tuple[float, ...] = ()
    """How high they lie."""


def curves_legend(curves: Sequence[DrawnCurve]) -> tuple[Swatch, ...]:
    """Return what the lines stand for."""
    return tuple(
        Swatch(name=curve.name, paint=str(number), line=True)
        for number, curve in enumerate(curves)
    )


def curves_drawing(
    curves: Sequence[DrawnCurve],
    titles: tuple[str, str],
    *,
    names: Mapping[float, str] | None = None,
    logarithmic: bool = False,
    round_ticks: bool = False,
    marks: CurveMarks = CurveMarks(),  # noqa: B008 - a constant
) -> Drawing:
    """Return curves; the vertical axis begins at 0, or below where a curve does.

    Parameters
    ----------
    curves
        In the order of the legend; later ones are thinner, so that equal ones show.
    titles
        Of the horizontal and of the vertical axis.
    names
        What places on the horizontal axis are called; None for their numbers.
    logarithmic
        Whether the horizontal axis is.
    round_ticks
        Whether the horizontal axis has round numbers in place of those of the points.
    marks
        Lines to read curves by.
    """
    xs = sorted({one.x for curve in curves for one in curve.points})
    kind = {"type": "log", "base": 2} if logarithmic else {"zero": False}
    scale: Drawing = {"nice": False, **kind}
    ends = [*xs, *marks.upright]
    if min(ends) < max(ends):
        low, high = min(ends), max(ends)
        scale["domain"] = [*((low, high) if logarithmic else axis_ends(low, high))]
    heights = [*(one.y for curve in curves for one in curve.points), *marks.level, 0.0]
    lowest, highest = min(heights), max(heights)
    across: Drawing = {
        "field": "x",
        "type": "quantitative",
        "scale": {**scale, "padding": 8},
        "axis": {
            "title": titles[0],
            # A place alone has its own number, which is hardly a round one.
            **(
                {"tickCount": 6}
                if round_ticks and "domain" in scale
                else {"values": xs}
            ),
            **({"format": "~g"} if names is None else _named(names)),
            "grid": False,
            "labelOverlap": "greedy",
        },
    }
    down: Drawing = {
        "field": "y",
        "type": "quantitative",
        "scale": {
            "domain": [rounded(1.08 * lowest, 4), rounded(1.08 * highest or 1.0, 4)]
        },
        "axis": {"title": titles[1], "tickCount": 5},
    }
    data: dict[str, list[Any]] = {name: [] for name in ("curve", "x", "y", "tip")}
    layers: list[Drawing] = []
    for number, curve in enumerate(curves):
        for point in curve.points:
            data["curve"].append(number)
            data["x"].append(point.x)
            data["y"].append(rounded(point.y))
            data["tip"].append(point.tip)
        layers.append(_line(number, len(curves), across, down))
    layers += [_mark("x", place) for place in marks.upright]
    layers += [_mark("y", place) for place in marks.level]
    return drawing(*layers, height=_HEIGHT, data=rows_of(data))


def _line(number: int, count: int, across: Drawing, down: Drawing) -> Drawing:
    width = 1.6 + 2.4 * (count - 1 - number) / max(count - 1, 1)
    return {
        "transform": [{"filter": f"datum.curve === {number}"}],
        "mark": {
            "type": "line",
            "stroke": line_colour(number),
            "strokeDash": line_dash(number),
            "strokeWidth": rounded(width, 3),
            "tooltip": None,
            "point": {
                "filled": False,
                "fill": "var(--ground)",
                "stroke": line_colour(number),
                "shape": _SHAPES[number % len(_SHAPES)],
                "size": 60,
                "tooltip": True,
            },
        },
        "encoding": {
            "x": across,
            "y": down,
            "tooltip": {"field": "tip", "type": "nominal"},
        },
    }


def _named(names: Mapping[float, str]) -> Drawing:
    """Return what writes names at places, as literals of the grammar."""
    places, words = (json.dumps(list(one)) for one in (names, names.values()))
    return {"labelExpr": f"{words}[indexof({places}, datum.value)]", "labelLimit": 110}


def _mark(axis: str, place: float) -> Drawing:
    return {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "strokeDash": [2, 3], "strokeWidth": 1.2},
        "encoding": {axis: {"datum": place, "type": "quantitative"}},
    }
