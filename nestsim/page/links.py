"""Use of links over a step: the hottest ones of each level, and each level's mean."""

from typing import TYPE_CHECKING

import numpy as np

from nestsim.document.paints import Swatch, line_colour, line_dash
from nestsim.document.parts import DataTable, FigureBlock
from nestsim.document.vega.drawing import (
    AXIS_ROOM,
    TITLED_AXIS_ROOM,
    Drawing,
    drawing,
    rounded,
    rows_of,
    window_axis,
    window_params,
)
from nestsim.page.tables import data_table
from nestsim.report.figures.data import (
    LinkRows,
    level_rows,
    link_rows,
    links_title,
    time_unit,
)
from nestsim.report.tables import add_row, new_table
from nestsim.report.wording import percent
from topologies.network import Network

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate

_ROW, _LEAST = 34, 96
"""Height of a link's row, and of the smallest figure [pixel]."""

_MEANS = 170
"""Height of the lines of levels [pixel]."""


def link_figures(candidate: "Candidate", network: Network) -> tuple[FigureBlock, ...]:
    """Return the figures of link use; none if nothing was sent."""
    replay = candidate.replay
    rows = link_rows(replay, network)
    if not rows.names:
        return ()
    return (
        FigureBlock(
            name="links",
            title=links_title(replay, network),
            about="Rows of links, the outermost level on top; the stronger the colour, "
            "the more of a link is in use.",
            drawing=_heat(rows),
            table=_table(rows, "Link"),
            follows_window=True,
            note="The stronger the colour, the more of a link is in use; (x8): so many "
            "links carry the same.",
        ),
        _means_figure(level_rows(replay, network)),
    )


def _means_figure(levels: LinkRows) -> FigureBlock:
    mean = levels.utilisation.mean(axis=1)
    hottest = int(np.argmax(mean))
    return FigureBlock(
        name="levels",
        title=f"Links of level {levels.names[hottest]} are used most: to "
        f"{percent(float(mean[hottest]))} on average",
        about="Lines of the mean use of each level's links over the step.",
        drawing=_means(levels),
        table=_table(levels, "Level"),
        legend=tuple(
            Swatch(name=name, paint=str(place), line=True)
            for place, name in enumerate(levels.names)
        ),
        follows_window=True,
    )


def _table(rows: LinkRows, heading: str) -> DataTable:
    numbers = ("Mean use", "Highest use")
    table = new_table(heading, *numbers, numbers=numbers)
    for name, values in zip(rows.names, rows.utilisation, strict=True):
        highest = min(float(values.max()), 1.0)
        add_row(table, name, percent(float(values.mean())), percent(highest))
    return data_table(table, f"Use of each {heading.lower()} over the step")


def _columns(rows: LinkRows, *, corners: bool = False) -> dict[str, list[object]]:
    """Return a row for each link and interval; of lines the last end, too."""
    scale, unit = time_unit(float(rows.bin_edges[-1]))
    edges = [rounded(edge) for edge in (rows.bin_edges / scale).tolist()]
    columns: dict[str, list[object]] = {
        name: [] for name in ("row", "from", "to", "use", "tip")
    }
    for place, (name, values) in enumerate(
        zip(rows.names, rows.utilisation.tolist(), strict=True)
    ):
        if corners:
            values = [*values, values[-1]]  # noqa: PLW2901 - a line ends somewhere
        for first, last, value in zip(
            edges, [*edges[1:], edges[-1]], values, strict=False
        ):
            if not value and not corners:
                continue
            columns["row"].append(place)
            columns["from"].append(first)
            columns["to"].append(last)
            columns["use"].append(rounded(min(100 * value, 100.0), 3))
            columns["tip"].append(
                f"{name}: {percent(min(value, 1.0))} from {first:g} to {last:g} {unit}"
            )
    return columns


def _heat(rows: LinkRows) -> Drawing:
    scale, unit = time_unit(float(rows.bin_edges[-1]))
    total = rounded(float(rows.bin_edges[-1]) / scale)
    count = len(rows.names)
    across = window_axis("from", unit)
    place = {
        "field": "top",
        "type": "quantitative",
        "scale": {"domain": [-0.5, count - 0.5], "reverse": True, "nice": False},
        "axis": {
            # No labels, but as much room as other figures' axes take.
            "labels": False,
            "title": None,
            "grid": False,
            "ticks": False,
            "domain": False,
            **AXIS_ROOM,
        },
    }
    borders = [
        row - 0.5 for row in range(1, count) if rows.levels[row] != rows.levels[row - 1]
    ]
    layers: list[Drawing] = [
        {
            "transform": [
                {"calculate": "datum.row", "as": "top"},
                {"calculate": "datum.row + 0.45", "as": "bottom"},
                # As in the printed figure: a few percent must not look like nothing.
                {"calculate": "sqrt(datum.use / 100)", "as": "strength"},
            ],
            "mark": {"type": "rect", "clip": True, "fill": line_colour(0)},
            "encoding": {
                "x": across,
                "x2": {"field": "to"},
                "y": place,
                "y2": {"field": "bottom"},
                "fillOpacity": {
                    "field": "strength",
                    "type": "quantitative",
                    "scale": None,
                    "legend": None,
                },
                "tooltip": {"field": "tip", "type": "nominal"},
            },
        }
    ]
    layers.append(_names(rows))
    layers += [
        {
            "data": {"values": [{}]},
            "mark": {"type": "rule", "stroke": "var(--rule-strong)"},
            "encoding": {"y": {"datum": border, "type": "quantitative"}},
        }
        for border in borders
    ]
    return drawing(
        *layers,
        height=max(_LEAST, _ROW * count),
        params=window_params(total),
        data=rows_of(_columns(rows)),
    )


def _names(rows: LinkRows) -> Drawing:
    """Return each link's name above its row, with how much of it is in use."""
    mean = rows.utilisation.mean(axis=1).tolist()
    return {
        "data": rows_of(
            {
                "row": [place - 0.06 for place in range(len(rows.names))],
                "name": [
                    f"{name}, mean {percent(use)}"
                    for name, use in zip(rows.names, mean, strict=True)
                ],
            }
        ),
        "mark": {
            "type": "text",
            "align": "left",
            "baseline": "bottom",
            "fontSize": 11,
            "fill": "var(--ink-soft)",
            "tooltip": None,
        },
        "encoding": {
            "x": {"value": 0},
            "y": {"field": "row", "type": "quantitative"},
            "text": {"field": "name"},
        },
    }


def _means(levels: LinkRows) -> Drawing:
    scale, unit = time_unit(float(levels.bin_edges[-1]))
    total = rounded(float(levels.bin_edges[-1]) / scale)
    highest = max(115 * float(levels.utilisation.max()), 1.0)
    layers: list[Drawing] = [
        {
            "transform": [{"filter": f"datum.row === {place}"}],
            "mark": {
                "type": "line",
                "interpolate": "step-after",
                "clip": True,
                "stroke": line_colour(place),
                "strokeDash": line_dash(place),
                "strokeWidth": 1.8,
            },
            "encoding": {
                "x": window_axis("from", unit),
                "y": {
                    "field": "use",
                    "type": "quantitative",
                    "scale": {"domain": [0, rounded(highest, 3)]},
                    "axis": {
                        "title": "mean use [%]",
                        "tickCount": 4,
                        **TITLED_AXIS_ROOM,
                    },
                },
            },
        }
        for place in range(len(levels.names))
    ]
    columns = _columns(levels, corners=True)
    kept = {name: columns[name] for name in ("row", "from", "use")}
    return drawing(
        *layers, height=_MEANS, params=window_params(total), data=rows_of(kept)
    )
