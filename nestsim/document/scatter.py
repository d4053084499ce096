"""Clouds of points over logarithmic axes, lines, and bands around equality."""

from nestsim.document.drawing import (
    TIP,
    Drawing,
    drawing,
    number_field,
    plain_field,
    records,
    rounded,
)
from nestsim.document.figures import Scatter
from nestsim.document.paints import line_colour, line_dash

_HEIGHT = 360
"""Of the drawing [pixel]."""


def scatter_drawing(figure: Scatter) -> Drawing:
    """Return the points, with lines and shaded bands below them."""
    across = _axis("x", figure.across, figure.reach)
    down = _axis("y", figure.up, figure.heights)
    points = [
        {
            "x": rounded(point.x),
            "y": rounded(point.y),
            "low": rounded(point.y if point.low is None else point.low),
            "high": rounded(point.y if point.high is None else point.high),
            "colour": line_colour(number),
            "tip": point.tip,
        }
        for number, cloud in enumerate(figure.clouds)
        for point in cloud.points
    ]
    places, colour = {"x": across, "y": down}, plain_field("colour")
    return drawing(
        *_equality(figure, across, down),
        {
            "mark": {"type": "rule", "opacity": 0.25, "tooltip": None},
            "encoding": {
                "x": across,
                "y": {**down, "field": "low"},
                "y2": {"field": "high"},
                "stroke": colour,
            },
        },
        *(
            {
                "data": records(
                    [{"x": rounded(x), "y": rounded(y)} for x, y in cloud.line]
                ),
                "mark": {
                    "type": "line",
                    "stroke": line_colour(number),
                    "strokeDash": line_dash(number),
                    "tooltip": None,
                },
                "encoding": places,
            }
            for number, cloud in enumerate(figure.clouds)
            if cloud.line
        ),
        {
            "mark": {"type": "point", "filled": True, "size": 36, "opacity": 0.75},
            "encoding": {
                **places,
                "fill": colour,
                "tooltip": TIP,
            },
        },
        height=_HEIGHT,
        data=records(points),
    )


def _axis(field: str, title: str, ends: tuple[float, float]) -> Drawing:
    domain = [*map(rounded, ends)]
    return number_field(
        field,
        scale={"type": "log", "domain": domain, "nice": False, "clamp": True},
        axis={"title": title, "tickCount": 6, "format": "~g", "grid": False},
    )


def _equality(figure: Scatter, across: Drawing, down: Drawing) -> list[Drawing]:
    """Return the bands around equality, and its line."""
    if not figure.bands:
        return []
    ends = figure.reach
    layers: list[Drawing] = []
    for band in (*figure.bands, 0.0):
        rows = records(
            [
                {
                    "x": rounded(end),
                    "y": rounded(end * (1.0 - band)),
                    "high": rounded(end * (1.0 + band)),
                }
                for end in ends
            ]
        )
        mark: Drawing = {"type": "line", "stroke": "var(--ink)", "strokeWidth": 1}
        shown: Drawing = {"x": across, "y": down}
        if band:
            mark = {"type": "area", "fill": "var(--ink)", "fillOpacity": 0.07}
            shown["y2"] = {"field": "high"}
        layers.append(
            {"data": rows, "mark": {**mark, "tooltip": None}, "encoding": shown}
        )
    return layers
