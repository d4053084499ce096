"""The picture of validated collectives: time over size, small multiples of curves."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nestsim.report.canvas import figure_with_headline, save_figure
from nestsim.report.panels import INK, Colours
from nestsim.report.validation_collectives import headline
from nestsim.report.wording import percent, plural
from nestsim.validation.metrics import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nestsim.validation.collective_runner import (
        CollectiveResult,
        CollectivesResult,
        Curve,
    )

_COLUMNS = 4
_MOST_PANELS = 16
_MIB = 2.0**20


class Panel(NamedTuple):
    """Curves that share axes: those of a source, an operation and a node count."""

    title: str
    curves: "tuple[tuple[Curve, list[CollectiveResult]], ...]"


def panels(result: "CollectivesResult") -> tuple[Panel, ...]:
    """Return what is drawn: most points first, curves of a single point left out."""
    keyed = (
        ((curve.source, curve.operation, curve.num_nodes), (curve, rows))
        for curve, rows in result.curves().items()
        if len({row.case.num_bytes for row in rows if row.case}) > 1
    )
    found = [
        Panel(_title(*key), tuple(sorted(curves, key=lambda one: one[0])))
        for key, curves in grouped(keyed).items()
    ]
    found.sort(key=lambda panel: -sum(len(rows) for _, rows in panel.curves))
    return tuple(found[:_MOST_PANELS])


def _title(source: str, operation: str, num_nodes: int) -> str:
    return f"{source}\n{operation}, {plural(num_nodes, 'node')}"


def draw_collectives(result: "CollectivesResult", path: Path) -> None:
    """Draw measured points and predicted lines, a colour for each number of ranks."""
    assert result.scored
    shown = panels(result)
    errors = result.errors()
    subtitle = (
        f"{result.name}: {plural(errors.rows, 'row')}, {len(result.refused):,} more "
        f"refused; {percent(errors.median_ape)} off in the median of all rows; "
        "points measured, lines predicted"
    )
    num_rows = max(1, math.ceil(len(shown) / _COLUMNS))
    with figure_with_headline(
        headline(result), subtitle, height=1.5 + 3.2 * num_rows
    ) as (
        figure,
        colours,
    ):
        height = 1.5 + 3.2 * num_rows
        grid = figure.add_gridspec(
            num_rows,
            _COLUMNS,
            left=0.05,
            right=0.985,
            top=1 - 1.35 / height,
            bottom=0.6 / height,
            hspace=0.45,
            wspace=0.22,
        )
        for number, panel in enumerate(shown):
            axes = figure.add_subplot(grid[number // _COLUMNS, number % _COLUMNS])
            _draw_panel(axes, panel, colours)
            if number % _COLUMNS == 0:
                axes.set_ylabel("time [us]")
            if number + _COLUMNS >= len(shown):
                axes.set_xlabel("size [MiB]")
        save_figure(figure, path)


def _draw_panel(axes: "Axes", panel: Panel, colours: Colours) -> None:
    for number, (curve, rows) in enumerate(panel.curves):
        colour = colours.distinct[number % len(colours.distinct)]
        sizes = [row.case.num_bytes / _MIB for row in rows if row.case]
        measured = [row.measured * 1e6 for row in rows]
        predicted = [row.predicted * 1e6 for row in rows]
        label = f"{curve.num_ranks} ranks"
        axes.plot(sizes, predicted, color=colour, linewidth=1.3, label=label)
        axes.plot(
            sizes,
            measured,
            color=colour,
            marker="o",
            markersize=3.5,
            markeredgewidth=0,
            linestyle="none",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10, color=INK, loc="left")
    axes.tick_params(labelsize=9)
    axes.legend(loc="upper left", fontsize=8, frameon=False, handlelength=1.2)
    axes.spines[["top", "right"]].set_visible(False)
