"""The pictures of a stress test; its maps are in `nestsim.report.stress_maps`."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nestsim.report.canvas import figure_with_headline, save_figure
from nestsim.report.panels import INK, Colours
from nestsim.report.stress_maps import draw_map, draw_matrix, matrix_names
from nestsim.report.stress_words import headline
from nestsim.report.wording import percent
from nestsim.stress.conditions import AS_BUILT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nestsim.stress.results import StressResult


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
