"""The picture of measured collectives: bus bandwidth over size."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.collectives.report import (
    CONDITIONS,
    MEANING,
    groups_in_words,
    operation_name,
    title,
)
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.lettering import DPI, shortened, spaced
from nestsim.report.figures.palette import INK
from nestsim.report.figures.panels import Colours
from nestsim.report.wording import percent, plan_label
from topologies.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from nestsim.collectives.job import CollectivesResult, OperationTable

_MOST_PANELS = 12
_HEAD, _PANEL, _BETWEEN, _FOOT = 1.5, 2.35, 1.5, 1.7
"""Heights of the headline with a panel's title, of a panel, between two, and below the
last one [inch]."""

_WIDTHS = {"alone": 4.5, "together": 2.75, "busy": 1.0}
"""Equal lines lie over each other: the later, the thinner [points]."""


def headline(tables: "Sequence[OperationTable]") -> str:
    """Say how much of its bandwidth the operation keeps that loses most."""
    lost, name = 0.0, ""
    for table in tables:
        row = table.rows[-1]
        share = 1.0 - row.busy.bus_bandwidth / row.alone.bus_bandwidth
        if share > lost:
            lost, name = share, title(table.traffic)
    if lost < 0.005:
        return "In the job, collectives reach the bandwidth that they have alone"
    return f"In the job, {name} reaches {percent(1.0 - lost)} of its bandwidth alone"


def draw_collectives(result: "CollectivesResult", path: Path) -> None:
    """Draw one panel for each kind of group and operation, the first twelve."""
    assert result.priced is not None
    tables = result.tables[:_MOST_PANELS]
    columns = min(3, len(tables))
    rows = math.ceil(len(tables) / columns)
    height = _HEAD + _FOOT + rows * _PANEL + (rows - 1) * _BETWEEN
    subtitle = f"{plan_label(result.priced.plan)}: bus bandwidth as nccl-tests has it"
    if len(tables) < len(result.tables):
        subtitle += f"; the first {len(tables)} of {len(result.tables)} operations"
    with figure_with_headline(headline(result.tables), subtitle, height) as (
        figure,
        colours,
    ):
        grid = figure.add_gridspec(
            rows,
            columns,
            left=0.06,
            right=0.985,
            top=1 - _HEAD / height,
            bottom=_FOOT / height,
            wspace=0.2,
            hspace=_BETWEEN / _PANEL,
        )
        for number, table in enumerate(tables):
            axes = figure.add_subplot(grid[number // columns, number % columns])
            _draw_table(axes, table, colours)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            [_legend(label) for label in labels],
            loc="lower center",
            ncols=2,
            frameon=False,
            fontsize=11,
        )
        save_figure(figure, path)


def _legend(label: str) -> str:
    if label not in MEANING:
        return label
    words = MEANING[label].split(";")[0].split(", until")[0]
    return f"{label}: {words}"


def _draw_table(axes: "Axes", table: "OperationTable", colours: Colours) -> None:
    sizes = [row.num_bytes for row in table.rows]
    for condition, colour in zip(CONDITIONS, colours.distinct, strict=False):
        values = [getattr(row, condition).bus_bandwidth / 1e9 for row in table.rows]
        axes.plot(
            sizes,
            values,
            linewidth=_WIDTHS[condition],
            marker="o",
            markersize=2.0 + 1.5 * _WIDTHS[condition],
            color=colour,
            label=condition,
        )
    _mark_plan(axes, table)
    _mark_algorithms(axes, table)
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.5, sizes[-1] * 1.5)
    _name_sizes(axes, sizes)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=10)
    axes.set_ylabel("bus bandwidth [GB/s]", size=11)
    traffic = table.traffic
    name = f"{traffic.kind}: {operation_name(traffic.operation)}"
    axes.set_title(name, loc="left", size=13, pad=20, parse_math=False)
    words: dict[str, Any] = {"transform": axes.transAxes, "color": INK, "size": 10}
    groups = shortened(groups_in_words(traffic), 10.0, 1.04 * _width(axes))
    axes.text(0, 1.03, groups, parse_math=False, **words)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_plan(axes: "Axes", table: "OperationTable") -> None:
    """Show the plan's own size, where it lies within the range."""
    size = float(table.traffic.num_bytes.max())
    label = "size of the plan's own messages"
    inside = table.rows[0].num_bytes <= size <= table.rows[-1].num_bytes
    axes.axvline(
        size if inside else math.nan,
        color=INK,
        linestyle=":",
        linewidth=1.2,
        label=label,
    )


def _width(axes: "Axes") -> float:
    """Return the width of axes [inch]."""
    return float(axes.get_window_extent().width / DPI)


def _name_sizes(axes: "Axes", sizes: "Sequence[float]") -> None:
    """Write measured sizes below the axis: as many as fit, at equal distances."""
    names = [format_size(size) for size in sizes]
    low, high = axes.get_xlim()
    inches = _width(axes) / math.log(high / low)
    places = [inches * math.log(size / low) for size in sizes]
    step = next(
        step
        for step in range(1, len(sizes) + 1)
        if len(spaced(places[::step], names[::step], 10.0)) == len(names[::step])
    )
    axes.set_xticks(sizes[::step], names[::step])
    axes.minorticks_off()


def _mark_algorithms(axes: "Axes", table: "OperationTable") -> None:
    """Write each algorithm below the axis, where its sizes begin, in three lines."""
    before = ""
    sizes = axes.get_xaxis_transform()
    height = axes.get_window_extent().height / DPI
    level = 0
    for row in table.rows:
        if row.algorithm != before:
            axes.text(
                row.num_bytes,
                -(0.5 + 0.18 * level) / height,
                f"| {row.algorithm}",
                transform=sizes,
                size=9,
                color=INK,
                parse_math=False,
            )
            level = (level + 1) % 3
        before = row.algorithm
