"""Figures of a document as Vega-Lite, which the page draws in the browser.

Colours are CSS variables of ``assets/page.css``, which follow the reader's choice of
light or dark; Vega writes them into SVG as they are.

References
----------
.. [1] Satyanarayan, Moritz, Wongsuphasawat, Heer, "Vega-Lite: A Grammar of Interactive
   Graphics", IEEE TVCG 23 (1), 2017.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nestsim.document.drawing import (
    AXIS_ROOM,
    OUTLINED,
    SOFT,
    TIP,
    TITLED_AXIS_ROOM,
    Drawing,
    drawing,
    number_field,
    plain_field,
    records,
    rounded,
    rule,
    text_layer,
    window_axis,
    window_params,
)
from nestsim.document.figures import (
    BarGroups,
    CostFront,
    Curves,
    FrontPoint,
    GroupedBar,
    HeatMap,
    Scatter,
    Shape,
    StackPart,
    Stacks,
    Strips,
)
from nestsim.document.paints import fill, line_colour, line_dash
from nestsim.document.scatter import scatter_drawing

_APART = "|"
"""Between the number of a row or column, by which they differ, and its label."""

_LABEL: Drawing = {
    "ticks": False,
    "domain": False,
    "labelExpr": f"slice(datum.value, indexof(datum.value, '{_APART}') + 1)",
}
"""Axis of rows or columns that `_row_name` names."""

_ROW_AXIS: Drawing = {"title": None, "labelLimit": 130, **_LABEL}

_HEIGHT, _WINDOW_HEIGHT = 300, 220
"""Height of curves and fronts, and of curves over the common window [pixel]."""

_BAR, _STACK, _CELL, _STRIP = 30, 34, 28, 34
"""Height of a row of bars, of stacks, of a map, and of strips [pixel]."""

_LETTER = 7.5
"""Width of a letter of the words beside bars and in cells [pixel]."""

_SHORT = 5
"""Letters of a column's name that stand level above it."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
"""Shapes of the points of curves."""


def specification(shape: Shape | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a figure in Vega-Lite, as the page draws it."""
    return shape if isinstance(shape, Mapping) else _DRAWN[type(shape)](shape)


def _row_name(number: int, label: str) -> str:
    """Return a name of a row that no other one has."""
    return f"{number}{_APART}{label}"


def _rows_across(
    words: Sequence[str], low: float, high: float, title: str
) -> tuple[Drawing, Drawing]:
    """Return the scale and the axis of bars with a column of words at their right.

    The column is as wide on a telephone as on a wall.
    """
    room = 12 + _LETTER * max(map(len, words), default=0)
    reach = rounded(high - low)
    end = f"{rounded(low)} + {reach} * width / max(width - {room:g}, 40)"
    scale = {"domain": [rounded(low), {"expr": end}], "nice": False}
    return scale, {"title": title, "tickCount": 5}


def _row_marks(rows: Drawing) -> tuple[Drawing, Drawing]:
    """Return the layers of what rows have beside bars: a mark, words at the right."""
    return (
        {
            "mark": {"type": "tick", "thickness": 3, "tooltip": None},
            "encoding": {
                "y": rows,
                "x": number_field("mark"),
                "color": {"value": "var(--ink)"},
            },
        },
        text_layer(
            {"align": "right"}, y=rows, x={"value": "width"}, text={"field": "words"}
        ),
    )


def _group_names(rows: Drawing) -> Drawing:
    """Return the layer of the names of groups of rows."""
    return text_layer(
        {"align": "left", "fontWeight": "bold"},
        transform=[{"filter": "datum.group !== ''"}],
        x={"value": 0},
        y=rows,
        text={"field": "group"},
    )


def _curves(figure: Curves) -> Drawing:
    """Return curves with their bands, and lines to read them by."""
    stepped = figure.stepped
    lowest, highest = figure.heights
    down = number_field(
        "y",
        scale={"domain": [rounded(lowest, 4), rounded(highest, 4)]},
        axis={
            "title": figure.up,
            "tickCount": 5,
            **(TITLED_AXIS_ROOM if stepped else {}),
        },
    )
    across = _window_across(figure) if stepped else _points_across(figure)
    rows: list[Drawing] = []
    layers: list[Drawing] = []
    for number, (curve, width, colour) in enumerate(
        zip(figure.curves, figure.widths(), figure.colours, strict=True)
    ):
        for point in curve.points:
            row: Drawing = {
                "curve": number,
                "x": rounded(point.x),
                "y": rounded(point.y),
            }
            if not stepped:
                row |= {"x": point.x, "tip": point.tip}
            if curve.has_band:
                row |= {
                    name: None if end is None else rounded(end)
                    for name, end in (("low", point.low), ("high", point.high))
                }
            rows.append(row)
        if curve.has_band:
            layers.append(_band(number, colour, across, down))
        line: Drawing = {"stroke": "var(--rule-strong)"}
        if curve.name or not stepped:
            line = {"stroke": line_colour(colour), "strokeDash": line_dash(number)}
        line["strokeWidth"] = rounded(width, 3)
        line |= (
            {"interpolate": "step-after", "clip": True}
            if stepped
            else _points(number, colour)
        )
        layers.append(
            {
                "transform": [{"filter": f"datum.curve === {number}"}],
                "mark": {"type": "line", "tooltip": None, **line},
                "encoding": {"x": across, "y": down}
                | ({} if stepped else {"tooltip": TIP}),
            }
        )
    layers += [rule("x", place) for place in figure.marks.upright]
    layers += [rule("y", place) for place in figure.marks.level]
    layers += [
        _level_name(place, name, number)
        for number, (place, name) in enumerate(
            zip(figure.marks.level, figure.marks.names, strict=False)
        )
    ]
    return drawing(
        *layers,
        height=_WINDOW_HEIGHT if stepped else _HEIGHT,
        params=window_params(rounded(figure.places[-1])) if stepped else (),
        data=records(rows),
    )


def _points_across(figure: Curves) -> Drawing:
    xs, reach = figure.places, figure.reach
    kind = {"type": "log", "base": 2} if figure.logarithmic else {"zero": False}
    scale: Drawing = {"nice": False, "padding": 8, **kind}
    if reach is not None:
        scale["domain"] = [*reach]
    axis: Drawing = {"title": figure.across, "grid": False, "labelOverlap": "greedy"}
    # A place alone has its own number, which is hardly a round one.
    is_round = figure.round_ticks and reach is not None
    axis |= {"tickCount": 6} if is_round else {"values": xs}
    axis |= {"format": "~g"} if figure.names is None else _named(figure.names)
    return number_field("x", scale=scale, axis=axis)


def _window_across(figure: Curves) -> Drawing:
    across = window_axis("x", "")
    return {**across, "axis": {**across["axis"], "title": figure.across}}


def _points(number: int, colour: int) -> Drawing:
    """Return the points of a curve."""
    return {
        "point": {
            "filled": False,
            "fill": "var(--ground)",
            "stroke": line_colour(colour),
            "shape": _SHAPES[number % len(_SHAPES)],
            "size": 60,
            "tooltip": True,
        }
    }


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


def _named(names: Mapping[float, str]) -> Drawing:
    """Return what writes names at places, as literals of the grammar."""
    places, words = (json.dumps(list(texts)) for texts in (names, names.values()))
    return {"labelExpr": f"{words}[indexof({places}, datum.value)]", "labelLimit": 110}


def _level_name(place: float, name: str, number: int) -> Drawing:
    """Return the name of a level line, at the left and at the right in turn."""
    is_left = number % 2 == 0
    look = {"baseline": "bottom", "dy": -3, "stroke": "var(--ground)", "strokeWidth": 4}
    return text_layer(
        {**look, "align": "left" if is_left else "right"},
        data={"values": [{}]},
        y={"datum": place, "type": "quantitative"},
        x={"value": 4 if is_left else "width"},
        text={"value": name},
    )


def _bars(figure: BarGroups) -> Drawing:
    """Return groups of bars, from top to bottom: a group's name, then its bars."""
    rows: list[Drawing] = []
    for group in figure.groups:
        heading = [GroupedBar("", None, "", "idle")] if group.name else []
        for number, bar in enumerate((*heading, *group.bars)):
            name = "" if number else group.name
            rows.append(_bar(len(rows), bar, name, figure.reach))
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
        "axis": _ROW_AXIS,
    }
    words = [row["words"] for row in rows]
    scale, axis = _rows_across(words, 0.0, figure.reach, figure.across)
    has_dots = any(bar.dot is not None for bar in figure.bars)
    has_whiskers = any(bar.whisker is not None for bar in figure.bars)
    return drawing(
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": place,
                "x": number_field("length", scale=scale, axis=axis),
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--rule-strong)"},
                "tooltip": TIP,
            },
        },
        *_row_marks(place),
        *((_diamonds(place),) if has_dots else ()),
        *((_whiskers(place),) if has_whiskers else ()),
        _group_names(place),
        height=_BAR * max(2, len(rows)),
        data=records(rows),
    )


def _diamonds(rows: Drawing) -> Drawing:
    """Return the diamonds; those off the axis are triangles at its end."""
    return {
        "transform": [{"filter": "isValid(datum.dot)"}],
        "mark": {"type": "point", "filled": True, "size": 90, "tooltip": None},
        "encoding": {
            "y": rows,
            "x": number_field("dot"),
            "shape": {"field": "dotShape", "type": "nominal", "scale": None},
            "fill": {"value": "var(--ground)"},
            "stroke": {"value": "var(--ink)"},
        },
    }


def _whiskers(rows: Drawing) -> Drawing:
    """Return the lines from one end of a bar's range to the other."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "strokeWidth": 2, "tooltip": None},
        "encoding": {"y": rows, "x": number_field("low"), "x2": {"field": "high"}},
    }


def _bar(number: int, bar: GroupedBar, group: str, reach: float) -> Drawing:
    row: Drawing = {
        "row": _row_name(number, bar.name),
        "length": None if bar.length is None else rounded(bar.length),
        "mark": None if bar.mark is None else rounded(bar.mark),
        "words": bar.words,
        "fill": fill(bar.paint),
        "group": group,
        "tip": bar.tip,
    }
    if bar.dot is not None:
        shape = "triangle-right" if bar.dot > reach else "diamond"
        row |= {"dot": rounded(min(bar.dot, reach)), "dotShape": shape}
    if bar.whisker is not None:
        row |= dict(zip(("low", "high"), map(rounded, bar.whisker), strict=True))
    return row


def _stacks(figure: Stacks) -> Drawing:
    """Return bars of parts, from top to bottom."""
    bars, (low, high) = figure.bars, figure.reach
    scale, axis = _rows_across([bar.words for bar in bars], low, high, figure.across)
    across = number_field("from", scale=scale, axis=axis)
    down: Drawing = {
        "field": "row",
        "type": "nominal",
        "sort": None,
        "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
        "axis": {**_ROW_AXIS, "labelOverlap": True},
    }
    rows: list[Drawing] = []
    for number, bar in enumerate(bars):
        reached = bar.start
        for place, part in enumerate(bar.parts or (StackPart("", 0.0, "idle", ""),)):
            is_first = place == 0
            rows.append(
                {
                    "row": _row_name(number, bar.name),
                    "from": rounded(reached),
                    "to": rounded(reached + part.length),
                    "fill": fill(part.paint),
                    "words": bar.words if is_first else "",
                    "mark": None
                    if bar.mark is None or not is_first
                    else rounded(bar.mark),
                    "part": f"{part.length:.3g}" if len(bar.parts) > 1 else "",
                    "tip": part.tip,
                }
            )
            reached += part.length
    return drawing(
        {
            "mark": {"type": "bar", "strokeWidth": 0.8},
            "encoding": {
                "y": down,
                "x": across,
                "x2": {"field": "to"},
                "fill": plain_field("fill"),
                "stroke": {"value": "var(--rule-strong)"},
                "tooltip": TIP,
            },
        },
        _part_words(down, across, high - low),
        *_row_marks(down),
        *(rule("x", rounded(limit), (5, 3)) for limit in figure.limits),
        height=max(3 * _STACK, (_STACK if len(bars) <= 32 else 10) * len(bars)),
        data=records(rows),
    )


def _part_words(rows: Drawing, across: Drawing, reach: float) -> Drawing:
    """Return the layer of the lengths of parts that have room for them."""
    room = f"(datum.to - datum.from) / {rounded(reach)} * 0.8 * width"
    fits = f"{room} > 8 + 7 * length(datum.part)"
    return text_layer(
        OUTLINED,
        transform=[
            {"filter": f"datum.part !== '' && {fits}"},
            {"calculate": "(datum.from + datum.to) / 2", "as": "middle"},
        ],
        y=rows,
        x={**across, "field": "middle"},
        text={"field": "part"},
    )


def _heat(figure: HeatMap) -> Drawing:
    """Return a map: rows in groups, columns, each number written in its cell.

    The stronger the colour the larger the number, which is there to read in any case.
    """
    columns, rows = figure.columns, _cells(figure)
    down: Drawing = {
        "field": "row",
        "type": "nominal",
        "sort": None,
        "scale": {"padding": 0},
        "axis": _ROW_AXIS,
    }
    across: Drawing = {
        "field": "column",
        "type": "nominal",
        "sort": None,
        "scale": {"padding": 0},
        "axis": {
            **_LABEL,
            "title": figure.across,
            "orient": "top",
            "labelAngle": -35 if max(map(len, columns), default=0) > _SHORT else 0,
            "labelLimit": 110,
            "labelOverlap": True,
        },
    }
    room = f"width / {len(columns)} > {_LETTER} * length(datum.words)"
    return drawing(
        {
            "mark": {"type": "rect"},
            "encoding": {
                "x": across,
                "y": down,
                "fill": plain_field("fill"),
                "stroke": plain_field("stroke"),
                "fillOpacity": number_field("strength", scale=None, legend=None),
                "tooltip": TIP,
            },
        },
        # On a telephone there may be no room; then the table has the numbers.
        text_layer(
            {}, transform=[{"filter": room}], x=across, y=down, text={"field": "words"}
        ),
        _group_names(down),
        height=_CELL * len({row["row"] for row in rows}),
        data=records(rows),
    )


def _cells(figure: HeatMap) -> list[Drawing]:
    """Return the cells of a map, and those of the names of groups."""
    scale = figure.strength()
    columns = [_row_name(number, name) for number, name in enumerate(figure.columns)]
    empty: Drawing = {
        "row": "",
        "column": "",
        "fill": "transparent",
        "stroke": "var(--rule-strong)",
        "strength": 0.0,
        "words": "",
        "tip": "",
        "group": "",
    }
    marks: list[Drawing] = []
    place = 0
    for group in figure.groups:
        if group.name:
            heading = {"row": _row_name(place, ""), "stroke": "transparent"}
            marks += [{**empty, **heading, "column": column} for column in columns]
            marks[-len(columns)]["group"] = group.name
            place += 1
        for row in group.rows:
            for column, cell in zip(columns, row.cells, strict=True):
                marks.append(
                    {**empty, "row": _row_name(place, row.name), "column": column}
                )
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


def _front(figure: CostFront) -> Drawing:
    """Return points, and a line through those of the Pareto front."""
    front = [point for point in figure.points if point.on_front]
    others = [point for point in figure.points if not point.on_front]

    def axis(field: str, ends: tuple[float, float], title: str, **more: Any) -> Drawing:
        scale = {"domain": [*map(rounded, ends)], "nice": False, "zero": False}
        words = {"title": title, "tickCount": 5, **more}
        return number_field(field, scale=scale, axis=words)

    places = {
        "x": axis("x", figure.reach, figure.across, grid=False),
        "y": axis("y", figure.heights, figure.up),
    }

    def layer(points: Sequence[FrontPoint], mark: Drawing, **encoding: Any) -> Drawing:
        rows = [
            {**point._asdict(), "x": rounded(point.x), "y": rounded(point.y)}
            for point in points
        ]
        return {
            "data": records(rows),
            "mark": mark,
            "encoding": {**places, **encoding},
        }

    line = {"type": "line", "interpolate": "step-after", "stroke": line_colour(0)}
    hollow = {"type": "point", "shape": "square", "filled": False, "size": 60}
    dot = {"type": "point", "filled": True, "size": 110, "opacity": 1}
    words = {"type": "text", "dx": 11, "dy": 11, "tooltip": None}
    return drawing(
        layer(front, {**line, "strokeWidth": 2, "tooltip": None}),
        layer(others, {**hollow, "stroke": "var(--ink-soft)"}, tooltip=TIP),
        layer(front, dot, fill={"value": line_colour(0)}, tooltip=TIP),
        layer(front, words, text={"field": "label"}),
        height=_HEIGHT,
    )


def _strips(figure: Strips) -> Drawing:
    """Return rows of shares over the common window of time, with names above them."""
    edges = [rounded(edge) for edge in figure.edges]
    count = len(figure.rows)
    cells = [
        {
            "top": place,
            "bottom": place + 0.45,
            "from": first,
            "to": last,
            "strength": rounded(share**0.5, 3),
            "tip": f"{row.name}: {100 * share:.1f} % from {first:g} to {last:g} "
            f"{figure.unit}",
        }
        for place, row in enumerate(figure.rows)
        for first, last, share in zip(edges, edges[1:], row.shares, strict=False)
        if share
    ]
    place = number_field(
        "top",
        scale={"domain": [-0.5, count - 0.5], "reverse": True, "nice": False},
        axis={
            # No labels, but as much room as other figures' axes take.
            **dict.fromkeys(("labels", "grid", "ticks", "domain"), False),
            "title": None,
            **AXIS_ROOM,
        },
    )
    names = [
        {"top": number - 0.06, "name": row.name}
        for number, row in enumerate(figure.rows)
    ]
    return drawing(
        {
            "mark": {"type": "rect", "clip": True, "fill": line_colour(0)},
            "encoding": {
                "x": window_axis("from", figure.unit),
                "x2": {"field": "to"},
                "y": place,
                "y2": {"field": "bottom"},
                "fillOpacity": number_field("strength", scale=None, legend=None),
                "tooltip": TIP,
            },
        },
        text_layer(
            {**SOFT, "align": "left", "baseline": "bottom"},
            data=records(names),
            x={"value": 0},
            y=place,
            text={"field": "name"},
        ),
        *(
            {
                "data": {"values": [{}]},
                "mark": {"type": "rule", "stroke": "var(--rule-strong)"},
                "encoding": {"y": {"datum": row - 0.5, "type": "quantitative"}},
            }
            for row in range(1, count)
            if figure.rows[row].group != figure.rows[row - 1].group
        ),
        height=max(96, _STRIP * count),
        params=window_params(edges[-1]),
        data=records(cells),
    )


_DRAWN: Mapping[type[Shape], Callable[..., Drawing]] = MappingProxyType(
    {
        Curves: _curves,
        BarGroups: _bars,
        Stacks: _stacks,
        HeatMap: _heat,
        CostFront: _front,
        Strips: _strips,
        Scatter: scatter_drawing,
    }
)
"""Kind of figure -> what writes it in Vega-Lite."""
