"""The picture of a comparison: throughput of each planner, cluster by cluster.

One panel for each model, in it one group of bars for each scenario, by size. Solid bars
are the replay; a line shows what was planned, a diamond what the planner believed; an X
stands where nothing valid was found.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nestsim.compare.record import Comparison, PlannerEntry, ScenarioEntries
from nestsim.compare.text import fastest, format_ratio, listed
from nestsim.report.figures.canvas import figure_with_headline, save_figure
from nestsim.report.figures.panels import INK, Colours
from nestsim.report.wording import percent, plural
from nestsim.validation.metrics import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_NUMBERS = 40
"""Bars of a figure that are labelled with their heights."""

LEAST_LEAD = 5e-4
"""A lead that a title names."""

_MOST_COLUMNS = 3
_LETTERS = 140
"""Of labels, on a line across the whole figure."""

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


def comparison_title(comparison: Comparison) -> str:
    """Say who is fastest in the replay, and by how much or how often."""
    groups = comparison.groups
    wins = [name for group in groups for name in fastest(group)]
    most = max((wins.count(name) for name in comparison.planners), default=0)
    if most == 0:
        return "No planner has a plan that the replay finds room for"
    winners = [name for name in comparison.planners if wins.count(name) == most]
    title = f"Fastest in the replay: {listed(winners)}"
    if len(groups) > 1:
        return f"{title}, in {most} of {len(groups)} scenarios"
    times = [entry.simulated_time for entry in groups[0].entries if entry.is_valid]
    lead = max(times) / min(times) - 1.0
    return f"{title}, up to {percent(lead)} ahead" if lead >= LEAST_LEAD else title


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """Draw all groups."""
    panels = grouped((group.model, group) for group in comparison.groups)
    columns = 2 if len(panels) == 4 else min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    height = max(9.0, 2.5 + 3.2 * rows)
    base = comparison.base
    subtitle = (
        f"Throughput relative to {base} in the replay; bar: replay, line: planned, "
        "diamond: the planner's own belief, X: nothing valid"
    )
    title = comparison_title(comparison)
    with figure_with_headline(title, subtitle, height) as (figure, colours):
        grid = figure.add_gridspec(
            rows,
            columns,
            left=0.055,
            right=0.985,
            top=1 - 1.44 / height,
            bottom=1.35 / height,
            wspace=0.14,
            hspace=0.42,
        )
        num_bars = len(comparison.groups) * len(comparison.planners)
        for number, (model, groups) in enumerate(panels.items()):
            axes = figure.add_subplot(grid[number // columns, number % columns])
            drawn = bar_groups(groups)
            letters = max(8, _LETTERS // (columns * len(drawn)))
            numbers = num_bars <= _MOST_NUMBERS
            _draw_panel(axes, drawn, colours, letters=letters, numbers=numbers)
            axes.set_title(model, loc="left", size=14, parse_math=False)
            if number % columns == 0:
                axes.set_ylabel(f"throughput, {base} = 1")
        figure.legend(
            handles=_handles(comparison.planners, colours),
            loc="lower center",
            ncols=len(comparison.planners) + 3,
            frameon=False,
        )
        save_figure(figure, path)


def _wrapped(label: str, letters: int) -> str:
    """Break a label into lines, after so many letters each."""
    lines = [
        part
        for line in label.split("\n")
        for part in textwrap.wrap(line, letters, break_long_words=False)
    ]
    return "\n".join(lines)


def _draw_panel(
    axes: "Axes",
    groups: Sequence[BarGroup],
    colours: Colours,
    *,
    letters: int,
    numbers: bool,
) -> None:
    """Draw one model's groups of bars, labels that many letters wide."""
    count = len(groups[0].bars)
    width = min(_BARS_WIDTH / count, 0.2)
    heights = [
        height
        for group in groups
        for bar in group.bars
        for height in bar[1:]
        if math.isfinite(height)
    ]
    top = 1.12 * max(heights, default=1.0)
    for place, group in enumerate(groups):
        for number, bar in enumerate(group.bars):
            x = place + (number - (count - 1) / 2) * width
            colour = colours.distinct[number % len(colours.distinct)]
            _draw_bar(axes, bar, x, width, colour)
            if numbers and math.isfinite(bar.simulated):
                _write_height(axes, bar, x)
    axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=0)
    axes.set_ylim(0, top)
    axes.set_xlim(-0.6, len(groups) - 0.4)
    axes.set_xticks(
        range(len(groups)),
        [_wrapped(group.label, letters) for group in groups],
        size=11,
        parse_math=False,
    )
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_bar(axes: "Axes", bar: Bar, x: float, width: float, colour: Any) -> None:
    if not math.isfinite(bar.simulated):
        axes.plot([x], [0.03], marker="x", color=colour, **_CROSS)
        return
    axes.bar([x], [bar.simulated], 0.92 * width, color=colour, zorder=2)
    half = 0.46 * width
    axes.hlines(bar.planned, x - half, x + half, color=INK, linewidth=2, zorder=3)
    if math.isfinite(bar.belief):
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


def _write_height(axes: "Axes", bar: Bar, x: float) -> None:
    """Write the height of a bar into its foot, where no mark is."""
    axes.annotate(
        format_ratio(bar.simulated),
        (x, 0.02),
        ha="center",
        va="bottom",
        size=11,
        color="white",
        zorder=5,
        rotation=90,
    )


def _handles(planners: Sequence[str], colours: Colours) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown: list[Any] = [
        Patch(color=colours.distinct[number % len(colours.distinct)], label=name)
        for number, name in enumerate(planners)
    ]
    planned = Line2D([], [], color=INK, linewidth=2, label="planned")
    belief = Line2D([], [], label="own belief", **_DIAMOND)
    nothing = Line2D([], [], color=INK, marker="x", label="nothing valid", **_CROSS)
    return [*shown, planned, belief, nothing]
