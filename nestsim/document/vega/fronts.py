"""What is gained over what it costs, and the Pareto front of both."""

from collections.abc import Sequence

from nestsim.document.figures import CostFront, FrontPoint
from nestsim.document.paints import line_colour
from nestsim.document.vega.drawing import Drawing, drawing, rounded, rows_of

_HEIGHT = 300
"""Of the drawing [pixel]."""


def front_drawing(figure: CostFront) -> Drawing:
    """Return points, and a line through those of the front."""
    front = [point for point in figure.points if point.on_front]
    across: Drawing = {
        "field": "rate",
        "type": "quantitative",
        "scale": _scale(figure.reach),
        "axis": {"title": figure.across, "tickCount": 5, "grid": False},
    }
    down: Drawing = {
        "field": "throughput",
        "type": "quantitative",
        "scale": _scale(figure.heights),
        "axis": {"title": figure.up, "tickCount": 5},
    }
    tip = {"field": "tip", "type": "nominal"}
    shown = {"x": across, "y": down}
    return drawing(
        {
            "data": _rows(front),
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
            "data": _rows([point for point in figure.points if not point.on_front]),
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
            "data": _rows(front),
            "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
            "encoding": {**shown, "fill": {"value": line_colour(0)}, "tooltip": tip},
        },
        {
            "data": _rows(front),
            "mark": {"type": "text", "dx": 11, "dy": 11, "tooltip": None},
            "encoding": {**shown, "text": {"field": "label"}},
        },
        height=_HEIGHT,
    )


def _scale(ends: tuple[float, float]) -> Drawing:
    return {"domain": [*map(rounded, ends)], "nice": False, "zero": False}


def _rows(points: Sequence[FrontPoint]) -> Drawing:
    return rows_of(
        {
            "rate": [rounded(point.x) for point in points],
            "throughput": [rounded(point.y) for point in points],
            "label": [point.label for point in points],
            "tip": [point.tip for point in points],
        }
    )
