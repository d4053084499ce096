"""The picture of a comparison: throughput of each planner, cluster by cluster.

One panel for each model, in it one group of bars for each scenario, by size. Solid bars
are the replay; a line shows what was planned, a diamond what the planner believed, or a
triangle where that is far above the bars; an X stands where nothing valid was found.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nestsim.document.canvas import PLAIN_BARS, WIDTH, figure_with_headline, save_figure
from nestsim.document.lettering import DPI, shortened, size_that_fits, widest, wrapped
from nestsim.document.paints import INK, ink_on, planner_colours
from nestsim.document.wording import plural
from nestsim.features.compare.record import Comparison, PlannerEntry, ScenarioEntries
from nestsim.features.compare.text import comparison_title, format_ratio
from nestsim.features.validation.metrics import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_COLUMNS = 3
_LARGEST, _SMALLEST = 11.0, 7.0
"""Sizes of the numbers in bars [point]."""

_NAMES = 11.0
"""Size of the names of groups [point]."""

_CEILING, _BEYOND = 1.4, 0.88
"""A belief that is so many times as high as all bars and plans lies beyond the axis: it
is drawn at this part of the axis, with its number."""

_BARS_WIDTH = 0.84
"""Of a group; groups stand 1 apart."""


class Bar(NamedTuple):
    """What is drawn of one entry, relative to the base's replay."""

    planner: str
    simulated: float
    """NaN where nothing valid was found."""
    planned: float
    belief: float


class BarGroup(NamedTuple):
    """What is drawn of one scenario."""

    label: str
    bars: tuple[Bar, ...]


def bar_groups(groups: Sequence[ScenarioEntries]) -> list[BarGroup]:
    """Return the bars of scenarios of one model, by size.

    Without a valid plan of the base a group is drawn relative to its fastest plan, and
    its label says so.
    """
    ordered = sorted(groups, key=lambda group: group.num_devices)
    sizes = [group.num_devices for group in ordered]
    found = []
    for group in ordered:
        # Sizes tell groups apart, or else names do.
        by_size = len(set(sizes)) == len(sizes)
        label = plural(group.num_devices, "device") if by_size else group.scenario
        reference = _reference(group)
        if reference is not None and reference.planner != group.base:
            label = f"{label}\n({reference.planner} = 1)"
        one = math.nan if reference is None else reference.simulated_time
        bars = tuple(_bar(entry, one) for entry in group.entries)
        found.append(BarGroup(label, bars))
    return found


def _reference(group: ScenarioEntries) -> PlannerEntry | None:
    (base,) = (entry for entry in group.entries if entry.planner == group.base)
    return base if base.is_valid else group.best


def _bar(entry: PlannerEntry, one: float) -> Bar:
    belief = entry.belief if entry.is_valid else math.nan
    return Bar(
        entry.planner,
        one / entry.simulated_time,
        one / entry.planned_time,
        one / belief,
    )


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw all groups."""
    panels = grouped((group.model, group) for group in comparison.groups)
    columns = 2 if len(panels) == 4 else min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    height = max(9.0, 2.5 + 3.2 * rows)
    base = comparison.base
    subtitle = (
        f"Throughput relative to {base} in the replay; bar: replay, line: planned, "
        "diamond: the planner's own belief, or triangle: beyond the axis; "
        "X: nothing valid"
    )
    title = comparison_title(comparison)
    with figure_with_headline(title, subtitle, height) as (figure, _):
        grid = figure.add_gridspec(
            rows,
            columns,
            left=0.055,
            right=0.985,
            top=1 - 1.44 / height,
            bottom=1.45 / height,
            wspace=0.14,
            hspace=0.42,
        )
        colours = planner_colours(comparison.planners)
        for number, (model, groups) in enumerate(panels.items()):
            axes = figure.add_subplot(grid[number // columns, number % columns])
            _draw_panel(axes, bar_groups(groups), colours)
            name = shortened(model, 14.0, axes.get_window_extent().width / DPI)
            axes.set_title(name, loc="left", size=14, parse_math=False)
            if number % columns == 0:
                axes.set_ylabel(f"throughput, {base} = 1")
        handles = _handles(comparison.planners, colours)
        # Beside its name each has a mark as wide as about six letters.
        room = sum(widest([handle.get_label()], 12.0) + 0.8 for handle in handles)
        figure.legend(
            handles=handles,
            loc="lower center",
            ncols=math.ceil(len(handles) / math.ceil(room / (0.95 * WIDTH))),
            frameon=False,
            fontsize=12,
        )
        save_figure(figure, path)


def _draw_panel(
    axes: "Axes", groups: Sequence[BarGroup], colours: Sequence[str]
) -> None:
    """Draw one model's groups of bars."""
    import seaborn as sns

    count = len(groups[0].bars)
    width = min(_BARS_WIDTH / count, 0.2)
    bars = [bar for group in groups for bar in group.bars]
    sns.barplot(
        x=[place for place in range(len(groups)) for _ in range(count)],
        y=np.nan_to_num([bar.simulated for bar in bars]),
        hue=[bar.planner for bar in bars],
        palette=list(colours),
        width=count * width,
        gap=0.08,
        legend=False,
        zorder=2,
        ax=axes,
        **PLAIN_BARS,
    )
    axes.set_ylim(0, _top(bars))
    axes.set_xlim(-0.6, len(groups) - 0.4)
    inches = axes.get_window_extent().width / DPI / (len(groups) + 0.2)
    numbers = [format_ratio(b.simulated) for b in bars if math.isfinite(b.simulated)]
    size = size_that_fits(
        numbers, 0.9 * width * inches, largest=_LARGEST, smallest=_SMALLEST
    )
    for place, group in enumerate(groups):
        for number, (bar, colour) in enumerate(zip(group.bars, colours, strict=True)):
            x = place + (number - (count - 1) / 2) * width
            _mark_bar(axes, bar, x, width, colour)
            if size is not None and math.isfinite(bar.simulated):
                _write_height(axes, bar, x, colour, size)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=0)
    axes.set_xticks(
        range(len(groups)),
        [wrapped(group.label, _NAMES, 0.9 * inches) for group in groups],
        size=_NAMES,
        parse_math=False,
    )
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _top(bars: Sequence[Bar]) -> float:
    """Return the end of the axis: above all but beliefs that are far above the rest."""
    heights = [
        height
        for bar in bars
        for height in (bar.simulated, bar.planned)
        if math.isfinite(height)
    ]
    limit = _CEILING * max(heights, default=1.0)
    near = [bar.belief for bar in bars if bar.belief <= limit]
    room = 1.35 if any(bar.belief > limit for bar in bars) else 1.12
    return room * max([*heights, *near], default=1.0)


def _mark_bar(axes: "Axes", bar: Bar, x: float, width: float, colour: str) -> None:
    """Draw what was planned and believed over a bar, or an X where there is none."""
    if not math.isfinite(bar.simulated):
        axes.plot([x], [0.03], marker="x", color=colour, **_CROSS)
        return
    half = 0.46 * width
    axes.hlines(bar.planned, x - half, x + half, color=INK, linewidth=2, zorder=3)
    _, top = axes.get_ylim()
    if bar.belief > top:
        axes.plot([x], [_BEYOND * top], **_TRIANGLE)
        axes.annotate(
            f"{bar.belief:.3g}",
            (x, _BEYOND * top),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            size=9,
        )
    elif math.isfinite(bar.belief):
        axes.plot([x], [bar.belief], **_DIAMOND)


_CROSS: dict[str, Any] = {
    "markersize": 12,
    "markeredgewidth": 3,
    "linestyle": "none",
    "clip_on": False,
}

_DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgecolor": INK,
    "linestyle": "none",
    "zorder": 4,
}


_TRIANGLE: dict[str, Any] = {**_DIAMOND, "marker": "^"}


def _write_height(axes: "Axes", bar: Bar, x: float, colour: str, size: float) -> None:
    """Write the height of a bar into its foot, or above all marks of a low one."""
    _, top = axes.get_ylim()
    letters = size / 72.0 / (axes.get_window_extent().height / DPI) * top
    marks = [bar.simulated, bar.planned]
    marks += [bar.belief] if bar.belief <= top else []
    is_low = min(marks) < 2.5 * letters
    axes.text(
        x,
        max(marks) + letters if is_low else 0.6 * letters,
        format_ratio(bar.simulated),
        ha="center",
        va="bottom",
        size=size,
        color=INK if is_low else ink_on(colour),
        zorder=5,
    )


def _handles(planners: Sequence[str], colours: Sequence[str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: list[Any] = [
        Patch(color=colour, label=name)
        for name, colour in zip(planners, colours, strict=True)
    ]
    planned = Line2D([], [], color=INK, linewidth=2, label="planned")
    belief = Line2D([], [], label="own belief", **_DIAMOND)
    nothing = Line2D([], [], color=INK, marker="x", label="nothing valid", **_CROSS)
    return [*shown, planned, belief, nothing]
