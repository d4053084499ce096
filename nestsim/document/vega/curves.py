"""Curves over a number: each with its own colour, dash and shape of points."""

import json
from collections.abc import Mapping
from typing import Any

from nestsim.document.figures import Curves
from nestsim.document.paints import line_colour, line_dash
from nestsim.document.vega.drawing import Drawing, drawing, rounded, rows_of

_HEIGHT = 280
"""Of the drawing [pixel]."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")


def curves_drawing(figure: Curves) -> Drawing:
    """Return curves with their bands, and lines to read them by."""
    xs, reach = figure.places, figure.reach
    kind = {"type": "log", "base": 2} if figure.logarithmic else {"zero": False}
    scale: Drawing = {"nice": False, **kind}
    if reach is not None:
        scale["domain"] = [*reach]
    lowest, highest = figure.heights
    across: Drawing = {
        "field": "x",
        "type": "quantitative",
        "scale": {**scale, "padding": 8},
        "axis": {
            "title": figure.across,
            # A place alone has its own number, which is hardly a round one.
            **(
                {"tickCount": 6}
                if figure.round_ticks and "domain" in scale
                else {"values": xs}
            ),
            **({"format": "~g"} if figure.names is None else _named(figure.names)),
            "grid": False,
            "labelOverlap": "greedy",
        },
    }
    down: Drawing = {
        "field": "y",
        "type": "quantitative",
        "scale": {"domain": [rounded(lowest, 4), rounded(highest, 4)]},
        "axis": {"title": figure.up, "tickCount": 5},
    }
    data: dict[str, list[Any]] = {name: [] for name in ("curve", "x", "y", "tip")}
    if figure.has_bands:
        data |= {"low": [], "high": []}
    layers: list[Drawing] = []
    for number, (curve, width, colour) in enumerate(
        zip(figure.curves, figure.widths(), figure.colours, strict=True)
    ):
        for point in curve.points:
            data["curve"].append(number)
            data["x"].append(point.x)
            data["y"].append(rounded(point.y))
            data["tip"].append(point.tip)
            if figure.has_bands:
                for name, end in (("low", point.low), ("high", point.high)):
                    data[name].append(None if end is None else rounded(end))
        if curve.has_band:
            layers.append(_band(number, colour, across, down))
        layers.append(_line(number, colour, width, across, down))
    layers += [_mark("x", place) for place in figure.marks.upright]
    layers += [_mark("y", place) for place in figure.marks.level]
    return drawing(*layers, height=_HEIGHT, data=rows_of(data))


def _band(number: int, colour: int, across: Drawing, down: Drawing) -> Drawing:
    return {
        "transform": [{"filter": f"datum.curve === {number}"}],
        "mark": {
            "type": "area",
            "fill": line_colour(colour),
            "fillOpacity": 0.22,
            "tooltip": None,
        },
        "encoding": {
            "x": across,
            "y": {**down, "field": "low"},
            "y2": {"field": "high"},
        },
    }


def _line(
    number: int, colour: int, width: float, across: Drawing, down: Drawing
) -> Drawing:
    return {
        "transform": [{"filter": f"datum.curve === {number}"}],
        "mark": {
            "type": "line",
            "stroke": line_colour(colour),
            "strokeDash": line_dash(number),
            "strokeWidth": rounded(width, 3),
            "tooltip": None,
            "point": {
                "filled": False,
                "fill": "var(--ground)",
                "stroke": line_colour(colour),
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
