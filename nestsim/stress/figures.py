"""The pictures of a stress test; its maps are in `nestsim.stress.figures`.

The heat-maps of a stress test: throughput over two ratios, and plans crossed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.panels import INK, Colours
from nestsim.report.wording import percent, signed_percent
from nestsim.stress.conditions import AS_BUILT
from nestsim.stress.report import headline, shown_conditions
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nestsim.stress.results import StressResult

_MOST_ANNOTATED = 12
"""Cells a side whose numbers can be read."""


class Matrix(NamedTuple):
    """Plans made for some conditions, run at the same ones."""

    names: tuple[str, ...]
    regret: FloatArray
    """Of the plan made for the row's condition under the column's, over that of the
    plan made there; NaN where there is none."""


def draw_map(result: "StressResult", path: Path) -> None:
    """Draw throughput over the ratios of the two outermost levels, by planner."""
    inner, outer = list(result.axes)[-2:]
    maps = [_throughputs(result, planner, inner, outer) for planner in result.planners]
    best = float(np.nanmax(np.stack(maps)))
    title = f"Throughput over the oversubscription of {inner} and {outer}"
    subtitle = (
        "Simulated throughput of the plan re-made for each combination, as a share of "
        f"the highest, {best / 1e3:,.0f} thousand tokens/s"
    )
    labels = [
        tuple(f"{ratio:g}" for ratio in result.axes[level]) for level in (inner, outer)
    ]
    with figure_with_headline(title, subtitle) as (figure, colours):
        grid = figure.add_gridspec(
            1, len(maps), left=0.07, right=0.985, top=0.78, bottom=0.12, wspace=0.16
        )
        for column, values in enumerate(maps):
            axes = figure.add_subplot(grid[column])
            _heat(axes, 100.0 * values / best, labels, colours.ordered, (None, 100.0))
            axes.set_title(result.planners[column], loc="left", size=14)
            axes.set_xlabel(f"oversubscription of {outer}")
            if column == 0:
                axes.set_ylabel(f"oversubscription of {inner}")
        save_figure(figure, path)


def _throughputs(
    result: "StressResult", planner: str, inner: str, outer: str
) -> FloatArray:
    rows = []
    for first in result.axes[inner]:
        names = [
            result.at({inner: first, outer: second}) for second in result.axes[outer]
        ]
        cells = [result.cell(planner, name, name) for name in names]
        rows.append([math.nan if c is None else result.throughput(c) for c in cells])
    return np.array(rows)


def matrix_names(result: "StressResult") -> tuple[str, ...]:
    """Return the conditions that are crossed in the picture."""
    if result.axes:
        return result.line([*result.axes][-1])
    return tuple(name for name in shown_conditions(result) if name in result.cells)


def regret_matrix(result: "StressResult", planner: str) -> Matrix:
    """Cross a planner's plans: each one made for a condition, run at all."""
    names = matrix_names(result)
    regret = np.full((len(names), len(names)), math.nan)
    for column, run_at in enumerate(names):
        own = result.cell(planner, run_at, run_at)
        for row, planned_for in enumerate(names):
            cell = result.cell(planner, planned_for, run_at)
            if cell is not None and own is not None:
                regret[row, column] = cell.simulated / own.simulated - 1.0
    return Matrix(names, regret)


def draw_matrix(result: "StressResult", path: Path) -> None:
    """Draw how much slower plans are where they were not made for."""
    found = [regret_matrix(result, planner) for planner in result.planners]
    most = max(0.01, float(np.nanmax([np.nanmax(np.abs(one.regret)) for one in found])))
    worst, where = _worst(result, found)
    subtitle = (
        "Simulated time of the plan made for the row's condition, over that of the "
        "plan made for the column's [%]; below 0 the re-made plan is the slower one"
    )
    labels, what = found[0].names, ""
    if result.axes:
        level = [*result.axes][-1]
        labels = tuple(f"{ratio:g}" for ratio in result.axes[level])
        what = f"oversubscription of {level}"
    title = f"Planned for one network, run on another: at worst {signed_percent(worst)}"
    with figure_with_headline(f"{title}{where}", subtitle) as (figure, _):
        grid = figure.add_gridspec(
            1, len(found), left=0.1, right=0.985, top=0.78, bottom=0.2, wspace=0.08
        )
        limits = (-100.0 * most, 100.0 * most)
        for column, one in enumerate(found):
            axes = figure.add_subplot(grid[column])
            _heat(axes, 100.0 * one.regret, (labels, labels), "RdBu_r", limits)
            axes.set_title(result.planners[column], loc="left", size=14)
            axes.set_xlabel(f"run at {what}")
            axes.tick_params(axis="x", rotation=0 if result.axes else 60)
            if column:
                axes.set_yticks([])
            else:
                axes.set_ylabel(f"planned for {what}")
        save_figure(figure, path)


def _worst(result: "StressResult", found: Sequence[Matrix]) -> tuple[float, str]:
    """Return the largest regret, and whose it is."""
    peaks = [float(np.nanmax(one.regret, initial=0.0)) for one in found]
    number = int(np.argmax(peaks))
    if peaks[number] <= 0.0:
        return 0.0, ""
    one = found[number]
    row, column = np.argwhere(one.regret == peaks[number])[0].tolist()
    return peaks[number], (
        f", {result.planners[number]}'s plan for {one.names[row]} at "
        f"{one.names[column]}"
    )


def _heat(
    axes: "Axes",
    values: FloatArray,
    labels: Sequence[Sequence[str]],
    colours: Any,
    limits: tuple[float | None, float | None],
) -> None:
    """Draw a matrix, row 0 at the bottom, with its numbers where they can be read."""
    low, high = limits
    mesh = axes.pcolormesh(
        values, cmap=colours, vmin=low, vmax=high, edgecolors="white", linewidth=0.8
    )
    for axis, names in ((axes.yaxis, labels[0]), (axes.xaxis, labels[1])):
        axis.set_ticks(np.arange(len(names)) + 0.5, labels=list(names), size=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if max(values.shape) > _MOST_ANNOTATED:
        return
    shades = mesh.to_rgba(values)
    for (row, column), value in np.ndenumerate(values):
        red, green, blue = shades[row, column, :3]
        is_dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
        axes.text(
            column + 0.5,
            row + 0.5,
            "-"
            if math.isnan(value)
            else f"{value:.0f}".replace("-0", "0", 1)
            if abs(value) < 0.5
            else f"{value:.0f}",
            ha="center",
            va="center",
            size=10,
            color="white" if is_dark else INK,
        )


_MOST_BARS = 14


class LinkBar(NamedTuple):
    """A link and the condition under which it is busiest."""

    link: str
    level: str
    share: float
    condition: str


def stress_figures(result: "StressResult") -> Mapping[str, Callable[[Path], None]]:
    """Return what draws each picture that the test has data for, by file name."""
    figures: dict[str, Callable[[Path], None]] = {}
    if not result.made or not result.cells:
        return figures
    if result.axes:
        figures["throughput.png"] = lambda path: draw_throughput(result, path)
    if len(result.axes) > 1:
        figures["map.png"] = lambda path: draw_map(result, path)
    if len(matrix_names(result)) > 1:
        figures["matrix.png"] = lambda path: draw_matrix(result, path)
    figures["links.png"] = lambda path: draw_hottest(result, path)
    return figures


def draw_throughput(result: "StressResult", path: Path) -> None:
    """Draw throughput against each level's ratio: plans re-made, and kept."""
    levels = list(result.axes)
    subtitle = (
        "Simulated throughput against the oversubscription of each level, the others "
        "as built. Solid: the plan re-made for the ratio; dashed: the healthy plan kept"
    )
    with figure_with_headline(headline(result), subtitle) as (figure, colours):
        grid = figure.add_gridspec(
            1, len(levels), left=0.07, right=0.985, top=0.84, bottom=0.17, wspace=0.18
        )
        for column, level in enumerate(levels):
            axes = figure.add_subplot(grid[column])
            _draw_line(axes, result, level, colours)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="lower center",
            ncols=max(len(labels) // 2, 1),
            frameon=False,
            fontsize=12,
        )
        save_figure(figure, path)


def _draw_line(
    axes: "Axes", result: "StressResult", level: str, colours: Colours
) -> None:
    ratios = result.axes[level]
    names = result.line(level)
    for planner, colour in zip(result.planners, colours.distinct, strict=False):
        for words, style in (("re-made", "-"), ("kept", "--")):
            made_for = names if words == "re-made" else [AS_BUILT] * len(names)
            cells = [
                result.cell(planner, one, name)
                for one, name in zip(made_for, names, strict=True)
            ]
            axes.plot(
                ratios,
                [math.nan if c is None else result.throughput(c) / 1e3 for c in cells],
                color=colour,
                linestyle=style,
                linewidth=2.4 if style == "-" else 1.6,
                marker="o" if style == "-" else None,
                label=f"{planner}, plan {words}",
            )
    axes.axvline(result.built[level], color=INK, linewidth=0.9, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(ratios), [f"{ratio:g}" for ratio in ratios])
    axes.minorticks_off()
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(f"oversubscription of level {level} (dotted: as built)")
    axes.set_ylabel("thousand tokens/s")
    axes.spines[["top", "right"]].set_visible(False)


def hottest_bars(result: "StressResult") -> tuple[LinkBar, ...]:
    """Return the links that the first planner's healthy plan keeps busiest.

    Each with the condition where it is, the busiest first.
    """
    planner = result.planners[0]
    bars: dict[str, LinkBar] = {}
    for name in result.run_names:
        cell = result.cell(planner, AS_BUILT, name)
        for link in cell.hottest if cell is not None else ():
            if link.name not in bars or link.share > bars[link.name].share:
                bars[link.name] = LinkBar(link.name, link.level, link.share, name)
    order = sorted(bars.values(), key=lambda bar: (-bar.share, bar.link))
    return tuple(order[:_MOST_BARS])


def draw_hottest(result: "StressResult", path: Path) -> None:
    """Draw the busiest links under any condition, with the condition beside them."""
    bars = hottest_bars(result)
    title = "Nothing was sent over the network"
    if bars:
        first = bars[0]
        title = (
            f"The busiest link, {first.link}, is busy {percent(first.share)} of the "
            f"step under {first.condition}"
        )
    subtitle = (
        f"{result.planners[0]}'s plan for the healthy network: each link under the "
        "condition that keeps it busiest; links that are alike once"
    )
    with figure_with_headline(title, subtitle) as (figure, colours):
        axes = figure.add_subplot(
            figure.add_gridspec(left=0.2, top=0.86, bottom=0.1)[0]
        )
        levels = list(dict.fromkeys(bar.level for bar in bars))
        for level, colour in zip(levels, colours.distinct, strict=False):
            chosen = [n for n, bar in enumerate(bars) if bar.level == level]
            shares = [100.0 * bars[n].share for n in chosen]
            axes.barh(chosen, shares, color=colour, label=f"level {level}")
        for row, bar in enumerate(bars):
            axes.annotate(
                f"{percent(bar.share)}, {bar.condition}",
                (100.0 * bar.share, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                size=11,
            )
        axes.set_yticks(range(len(bars)), [bar.link for bar in bars], size=11)
        axes.set_ylim(max(len(bars), 4) - 0.5, -0.5)
        axes.set_xlim(0.0, 135.0 * max([bar.share for bar in bars], default=1.0))
        axes.set_xlabel("busy at full bandwidth, share of the step [%]")
        axes.spines[["top", "right"]].set_visible(False)
        if bars:
            axes.legend(frameon=False, loc="lower right", fontsize=12)
        save_figure(figure, path)
