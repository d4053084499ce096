"""The pictures of a stress test.

Lines of throughput and of links; heat-maps of throughput over two ratios, and of plans
crossed with conditions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.report.figures.canvas import WIDTH, figure_with_headline, save_figure
from nestsim.report.figures.data import LEAST_SPAN
from nestsim.report.figures.heat_maps import (
    draw_heat_map,
    draw_scale,
    one_decimal,
    two_digits,
)
from nestsim.report.figures.lettering import DPI, shortened, spaced, widest
from nestsim.report.figures.palette import INK, level_colour, planner_colours
from nestsim.report.figures.panels import PLAIN_BARS, write_beside
from nestsim.report.figures.pareto import PricedPoint, draw_pareto
from nestsim.report.wording import percent, signed_percent
from nestsim.stress.conditions import AS_BUILT
from nestsim.stress.report import headline, shown_conditions
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nestsim.stress.results import StressResult

_BOTTOM, _TOP = 0.12, 0.84
"""Of the maps, as parts of the figure."""

_SCALE = (0.935, _BOTTOM, 0.012, _TOP - _BOTTOM)
"""Where the scale of the colours stands, as parts of the figure."""

_NAMES_WIDTH = 3.0
"""Most that names of conditions take at the left [inch]."""


class Matrix(NamedTuple):
    """Plans made for some conditions, run at the same ones."""

    names: tuple[str, ...]
    regret: FloatArray
    """Of the plan made for the row's condition under the column's, over that of the
    plan made there; NaN where there is none."""


def draw_map(result: "StressResult", path: Path) -> None:
    """Draw throughput over the ratios of the two outermost levels, by planner."""
    inner, outer = list(result.axes)[-2:]
    maps = [throughput_map(result, planner) for planner in result.planners]
    best = float(np.nanmax(np.stack(maps)))
    title = f"Throughput over the oversubscription of {inner} and {outer}"
    subtitle = (
        "Simulated throughput of the plan re-made for each combination, as a share of "
        f"the highest, {best / 1e3:,.0f} thousand tokens/s"
    )
    labels = (_ratio_names(result, inner), _ratio_names(result, outer))
    shares = [100.0 * values / best for values in maps]
    most = 100.0 * (1.0 - LEAST_SPAN)
    low = min(float(np.nanmin(one, initial=most)) for one in shares)
    with figure_with_headline(title, subtitle) as (figure, colours):
        grid = figure.add_gridspec(
            1, len(maps), left=0.07, right=0.92, top=_TOP, bottom=_BOTTOM, wspace=0.1
        )
        for column, values in enumerate(shares):
            axes = figure.add_subplot(grid[column])
            mesh = draw_heat_map(
                axes,
                values,
                labels,
                colours=colours.ordered,
                limits=(low, 100.0),
                words=one_decimal,
            )
            axes.set_title(result.planners[column], loc="left", size=14)
            axes.set_xlabel(f"oversubscription of {outer}", parse_math=False)
            if column == 0:
                axes.set_ylabel(f"oversubscription of {inner}", parse_math=False)
            else:
                axes.set_yticks([])
        draw_scale(figure, mesh, _SCALE, "throughput, share of the highest [%]")
        save_figure(figure, path)


def throughput_map(result: "StressResult", planner: str) -> FloatArray:
    """Return throughput over the ratios of the two outermost levels that vary.

    Of a planner's plans, re-made for each combination; rows are the ratios of the
    inner level; NaN where there is no plan [token/s].
    """
    inner, outer = list(result.axes)[-2:]
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
    # A planner without any plan has nothing but NaN.
    most = max(0.01, *(float(np.nan_to_num(abs(one.regret)).max()) for one in found))
    subtitle = (
        "How much longer the plan made for the row's condition takes at the column's "
        "than the plan made for the column's; below 0 it is the faster one"
    )
    with figure_with_headline(matrix_title(result), subtitle) as (figure, _):
        rows, columns, what = _matrix_names(result, found[0].names)
        left = 0.6 / WIDTH + 0.012 + widest(rows, 10.0) / WIDTH
        grid = figure.add_gridspec(
            1, len(found), left=left, right=0.92, top=_TOP, bottom=_BOTTOM, wspace=0.08
        )
        for column, one in enumerate(found):
            axes = figure.add_subplot(grid[column])
            mesh = draw_heat_map(
                axes,
                100.0 * one.regret,
                (rows, columns),
                colours="RdBu_r",
                limits=(-100.0 * most, 100.0 * most),
                words=two_digits,
            )
            axes.set_title(result.planners[column], loc="left", size=14)
            axes.set_xlabel(f"run at {what}", parse_math=False)
            if column:
                axes.set_yticks([])
            else:
                axes.set_ylabel(f"planned for {what}", parse_math=False)
        draw_scale(figure, mesh, _SCALE, "longer than the plan made there [%]")
        save_figure(figure, path)


def _ratio_names(result: "StressResult", level: str) -> tuple[str, ...]:
    return tuple(f"{ratio:g}" for ratio in result.axes[level])


def _matrix_names(
    result: "StressResult", names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Return the names of rows and of columns, and what they are.

    Ratios have their number. Other conditions are numbered: their names stand at the
    rows, where there is room for them.
    """
    if result.axes:
        level = [*result.axes][-1]
        ratios = _ratio_names(result, level)
        return ratios, ratios, f"oversubscription of {level}"
    numbers = tuple(str(number) for number in range(1, len(names) + 1))
    rows = tuple(
        f"{shortened(name, 10.0, _NAMES_WIDTH)}  {number}"
        for name, number in zip(names, numbers, strict=True)
    )
    return rows, numbers, "condition"


def matrix_title(result: "StressResult") -> str:
    """Say what a plan costs at worst where it was not made for."""
    found = [regret_matrix(result, planner) for planner in result.planners]
    worst, where = _worst(result, found)
    title = f"Planned for one network, run on another: at worst {signed_percent(worst)}"
    return f"{title}{where}"


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
    if priced_points(result):
        figures["pareto.png"] = lambda path: _draw_front(result, path)
    figures["links.png"] = lambda path: draw_hottest(result, path)
    return figures


def priced_points(result: "StressResult") -> list[PricedPoint]:
    """Return what each planner's re-made plans cost and reach; none without prices."""
    front, points = result.front(), []
    for planner in result.planners if result.currency else ():
        for name in result.names:
            run = result.cost_of(name, result.cell(planner, name, name))
            if run is None or run.cluster.rate is None:
                continue
            on_front = (planner, name) in front
            label = f"{planner}, {name}"
            points.append(
                PricedPoint(label, run.cluster.rate, run.tokens_per_second, on_front)
            )
    return points


def _draw_front(result: "StressResult", path: Path) -> None:
    subject = f"{result.scenario_name}, plans re-made"
    heading = "planner, condition"
    points = priced_points(result)
    draw_pareto(points, result.currency, subject, path, heading=heading)


def draw_throughput(result: "StressResult", path: Path) -> None:
    """Draw throughput against each level's ratio: plans re-made, and kept.

    Where a share of the throughput is to be kept, a line shows it.
    """
    levels = list(result.axes)
    subtitle = (
        "Simulated throughput against the oversubscription of each level, the others "
        "as built. Solid: the plan re-made for the ratio; dashed: the healthy plan kept"
    )
    with figure_with_headline(headline(result), subtitle) as (figure, _):
        grid = figure.add_gridspec(
            1, len(levels), left=0.07, right=0.985, top=0.84, bottom=0.2, wspace=0.18
        )
        for column, level in enumerate(levels):
            axes = figure.add_subplot(grid[column])
            _draw_level(axes, result, level)
            _draw_share_to_keep(axes, result)
            if column == 0:
                axes.set_ylabel("thousand tokens/s")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="lower center",
            ncols=min(math.ceil(len(labels) / 2), 4),
            frameon=False,
            fontsize=12,
        )
        save_figure(figure, path)


def share_to_keep(result: "StressResult") -> tuple[float, str] | None:
    """Return the throughput that is to be kept [token/s], and what it is.

    None if no share is to be kept, or there is no plan.
    """
    asked = result.asked
    if asked is None or not result.answers:
        return None
    whole = result.tokens / result.answers[0].base_time
    best = "1:1" if asked.quantity == "oversubscription" else "its full bandwidth"
    words = f"to keep: {percent(asked.keep)} of {result.planners[0]}'s"
    return asked.keep * whole, f"{words}, level {asked.level} at {best}"


def _draw_share_to_keep(axes: "Axes", result: "StressResult") -> None:
    found = share_to_keep(result)
    if found is not None:
        throughput, label = found
        style: dict[str, Any] = {"color": INK, "linewidth": 1.4, "zorder": 1}
        axes.axhline(throughput / 1e3, linestyle=(0, (8, 3)), label=label, **style)


def _draw_level(axes: "Axes", result: "StressResult", level: str) -> None:
    """Draw the lines of one level. Equal ones lie over each other: later, thinner."""
    import pandas as pd
    import seaborn as sns

    names = result.line(level)
    rows, widths, colours = [], {}, {}
    for number, (planner, colour) in enumerate(
        zip(result.planners, planner_colours(result.planners), strict=True)
    ):
        width = max(6.0 - 2.0 * number, 1.2)
        for words, thickness in (("re-made", width), ("kept", max(0.6 * width, 1.2))):
            label = f"{planner}, plan {words}"
            colours[label], widths[label] = colour, thickness
            for ratio, name in zip(result.axes[level], names, strict=True):
                made_for = name if words == "re-made" else AS_BUILT
                cell = result.cell(planner, made_for, name)
                rate = math.nan if cell is None else result.throughput(cell) / 1e3
                rows.append({"ratio": ratio, "rate": rate, "plan": label})
    frame = pd.DataFrame(rows)
    looks: Any = {"re-made": {"marker": "o", "markersize": 8}, "kept": {"ls": "--"}}
    for words, look in looks.items():
        sns.lineplot(
            frame[frame["plan"].str.endswith(words)],
            x="ratio",
            y="rate",
            hue="plan",
            size="plan",
            palette=colours,
            sizes=widths,
            estimator=None,
            ax=axes,
            **look,
        )
    _without_legend(axes)
    axes.set_ylabel("")
    ratios = result.axes[level]
    built = result.built[level]
    axes.axvline(built, color=INK, linewidth=1.2, linestyle=":")
    axes.set_xscale("log", base=2)
    low, high = min(*ratios, built), max(*ratios, built)
    if high > low:
        room = (high / low) ** 0.05
        axes.set_xlim(low / room, high * room)
    _name_ratios(axes, sorted({*ratios, built}))
    axes.minorticks_off()
    axes.margins(y=0.08)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel(
        f"oversubscription of level {level} (dotted: as built, {built:g})",
        parse_math=False,
    )
    axes.spines[["top", "right"]].set_visible(False)


def _name_ratios(axes: "Axes", ratios: Sequence[float]) -> None:
    """Write the ratios below an axis, those that do not touch one another."""
    width = axes.get_window_extent().width / DPI
    low, high = axes.get_xlim()
    places = [width * math.log(one / low) / math.log(high / low) for one in ratios]
    names = [f"{ratio:g}" for ratio in ratios]
    kept = spaced(places, names, 12.0)
    axes.set_xticks([ratios[n] for n in kept], [names[n] for n in kept])


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


def hottest_title(bars: Sequence[LinkBar]) -> str:
    """Name the busiest link of all."""
    if not bars:
        return "Nothing was sent over the network"
    first = bars[0]
    return (
        f"The busiest link, {first.link}, is busy {percent(first.share)} of the "
        f"step under {first.condition}"
    )


def draw_hottest(result: "StressResult", path: Path) -> None:
    """Draw the busiest links under any condition, with the condition beside them."""
    import seaborn as sns

    bars = hottest_bars(result)
    title = hottest_title(bars)
    subtitle = (
        f"{result.planners[0]}'s plan for the healthy network: each link under the "
        "condition that keeps it busiest; links that are alike once"
    )
    with figure_with_headline(title, subtitle) as (figure, _):
        left = (0.35 + widest([bar.link for bar in bars], 11.0)) / WIDTH
        grid = figure.add_gridspec(
            left=min(left, 0.45), right=0.97, top=0.86, bottom=0.17
        )
        axes = figure.add_subplot(grid[0])
        numbers = [level.name for level in result.network.levels]
        levels = sorted({bar.level for bar in bars}, key=numbers.index)
        colours = {f"level {one}": level_colour(numbers.index(one)) for one in levels}
        sns.barplot(
            x=[100.0 * bar.share for bar in bars],
            y=[*range(len(bars))],
            hue=[f"level {bar.level}" for bar in bars],
            hue_order=[*colours],
            palette=colours,
            orient="h",
            dodge=False,
            legend="full",
            ax=axes,
            **PLAIN_BARS,
        )
        axes.set_ylim(max(len(bars), 4) - 0.5, -0.5)
        write_beside(
            axes,
            [100.0 * bar.share for bar in bars],
            range(len(bars)),
            [f"{percent(bar.share)}, {bar.condition}" for bar in bars],
        )
        names = [bar.link for bar in bars]
        axes.set_yticks(range(len(bars)), names, size=11, parse_math=False)
        axes.set_xlabel("busy at full bandwidth, share of the step [%]")
        axes.spines[["top", "right"]].set_visible(False)
        if bars:
            handles, labels = axes.get_legend_handles_labels()
            _without_legend(axes)
            style: dict[str, Any] = {"frameon": False, "fontsize": 12}
            figure.legend(
                handles, labels, loc="lower center", ncols=len(levels), **style
            )
        save_figure(figure, path)


def _without_legend(axes: "Axes") -> None:
    """Take a legend away that seaborn has drawn."""
    legend = axes.get_legend()
    assert legend is not None
    legend.remove()
