"""What figures share as Vega-Lite: the library, its look, axes, rows."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from topologies.errors import import_extra

PAGES = ("vl_convert", "html")
"""What pages need: a package, and the extra of nestsim that brings it."""

Drawing = dict[str, Any]
"""A Vega-Lite specification, or a part of one."""


_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
"""Names the version of the grammar; nothing is read from there."""


_EXPORTS = "window.vegaEmbed = vegaEmbed;"
"""All of the library that a page calls."""


_LOOK: Mapping[str, Any] = {
    "aria": False,
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "domainColor": "var(--rule-strong)",
        "gridColor": "var(--rule)",
        "labelColor": "var(--ink-soft)",
        "labelFontSize": 12,
        "tickColor": "var(--rule-strong)",
        "titleColor": "var(--ink-soft)",
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    },
    "text": {"fill": "var(--ink)", "fontSize": 12},
    "rule": {"stroke": "var(--ink)"},
}
"""Of every drawing. The picture is one image to a screen reader, hence no marks are
announced: the table behind it says what they say."""


@cache
def vega_library() -> str:
    """Return the source of Vega, Vega-Lite and Vega-Embed as one script.

    It can interpret expressions without evaluating any text as code, so that a page can
    forbid that.
    """
    script: str = import_extra(*PAGES).javascript_bundle(_EXPORTS)
    return script


def drawing(
    *layers: Drawing,
    height: int,
    params: Sequence[Drawing] = (),
    data: Drawing | None = None,
) -> Drawing:
    """Return a specification of layers that is as wide as its place.

    Parameters
    ----------
    layers
        Marks with their encodings.
    height
        Of the drawing without its axes [pixel].
    params
        Variables that expressions name.
    data
        Of all layers.
    """
    return {
        "$schema": _SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": {"left": 2, "right": 8, "top": 6, "bottom": 2},
        "config": dict(_LOOK),
        **({"params": list(params)} if params else {}),
        **({"data": data} if data is not None else {}),
        "layer": list(layers),
    }


def rounded(value: float, digits: int = 6) -> float:
    """Return a number with so many significant digits: figures need no more."""
    return float(f"{value:.{digits}g}")


WINDOW_PARAMS = ("from", "to")
"""Names of the ends of the page's common window of time."""


def window_params(total: float) -> list[Drawing]:
    """Return the ends of the window that is shown, the whole time at first."""
    return [
        {"name": name, "value": value}
        for name, value in zip(WINDOW_PARAMS, (0.0, total), strict=True)
    ]


def window_axis(field: str, unit: str) -> Drawing:
    """Return the horizontal axis of a figure that shows the common window."""
    low, high = ({"expr": name} for name in WINDOW_PARAMS)
    return {
        "field": field,
        "type": "quantitative",
        "scale": {"domain": [low, high], "nice": False},
        "axis": {"title": f"time [{unit}]", "tickCount": 6, "grid": False},
    }


AXIS_ROOM = {"minExtent": 54, "maxExtent": 54}


TITLED_AXIS_ROOM = {"minExtent": 33, "maxExtent": 33}
"""Of vertical axes beside the common window, without and with a title: the same moment
stands at the same place in all figures."""


def plain_field(field: str) -> Drawing:
    """Return an encoding that takes paints, colours or numbers as they are."""
    return {"field": field, "type": "nominal", "scale": None, "legend": None}


TIP: Drawing = {"field": "tip", "type": "nominal"}
"""Encoding of the words that a mark shows where somebody points at it."""


def number_field(field: str, **more: Any) -> Drawing:
    """Return an encoding of numbers."""
    return {"field": field, "type": "quantitative", **more}


def rule(axis: str, place: float, dash: Sequence[int] = (2, 3)) -> Drawing:
    """Return a dotted line across the drawing."""
    return {
        "data": {"values": [{}]},
        "mark": {"type": "rule", "strokeDash": list(dash), "strokeWidth": 1.2},
        "encoding": {axis: {"datum": place, "type": "quantitative"}},
    }


def records(rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Return rows as the data of a drawing."""
    return {"values": list(rows)}


def text_layer(
    look: Drawing,
    *,
    transform: Sequence[Drawing] = (),
    data: Drawing | None = None,
    **encoding: Any,
) -> Drawing:
    """Return a layer of words, which have no tips.

    Parameters
    ----------
    look
        How the words look.
    transform
        What their rows go through; nothing for none.
    data
        Their rows; None for those of the drawing.
    encoding
        Channels.
    """
    return {
        **({} if data is None else {"data": data}),
        **({"transform": list(transform)} if transform else {}),
        "mark": {"type": "text", "tooltip": None, **look},
        "encoding": encoding,
    }


OUTLINED: Drawing = {
    "fontSize": 11,
    "fill": "#000000",
    "stroke": "#ffffff",
    "strokeWidth": 3,
    "strokeJoin": "round",
}
"""Look of words on any colour."""

SOFT: Drawing = {"fontSize": 11, "fill": "var(--ink-soft)"}
"""Look of names inside a drawing."""
