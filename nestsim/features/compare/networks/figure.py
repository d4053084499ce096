"""The picture of networks side by side: the step, throughput for what, the parts.

One row for each network, in three panels that share it: where the replayed step of its
best plan goes; throughput relative to the first network, as it is, for each port and
for money; its ports by tier, with the bisection. An X stands where nothing valid is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.document.canvas import PLAIN_BARS, WIDTH, figure_with_headline, save_figure
from nestsim.document.lettering import DPI, shortened, widest, wrapped
from nestsim.document.paints import DISTINCT, INK, ink_on, level_colour
from nestsim.document.wording import number, plan_label
from nestsim.features.compare.networks.equality import equality_sentence
from nestsim.features.compare.networks.record import (
    ComparedNetwork,
    NetworkComparison,
    StepParts,
    step_parts,
)
from nestsim.features.compare.networks.text import networks_title, relative
from nestsim.features.compare.text import format_ratio
from topologies.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORK, _EXPOSED, _SPEED, _PER_PORT = DISTINCT[0], DISTINCT[1], DISTINCT[0], DISTINCT[2]
_PER_MONEY, _BUBBLE, _NICS = DISTINCT[4], DISTINCT[7], "#5c6670"

_LETTERS = 12.0
"""Size of names and numbers [point]."""

_LEAST_NAMES, _MOST_NAMES = 2.2, 4.0
"""Width of the names at the left [inch]."""

_LEGEND = 0.5
"""Distance of the legend from the axis [inch]."""

_ROOM = 1.3
"""End of an axis over its longest bar: numbers stand behind bars."""


def draw_networks(comparison: NetworkComparison, path: Path) -> None:
    """Draw all networks."""
    rows = len(comparison.networks)
    height = max(5.0, 2.6 + 0.95 * rows)
    labels = [network.label for network in comparison.networks]
    room = min(max(widest(labels, _LETTERS) + 0.3, _LEAST_NAMES), _MOST_NAMES)
    title = networks_title(comparison)
    subtitle = equality_sentence(comparison, comparison.asked or "ports")
    with figure_with_headline(title, subtitle, height) as (figure, _):
        grid = figure.add_gridspec(
            1,
            3,
            left=room / WIDTH,
            right=0.985,
            top=1 - 1.45 / height,
            bottom=1.1 / height,
            wspace=0.07,
        )
        panels = [figure.add_subplot(grid[0, column]) for column in range(3)]
        for axes in panels:
            axes.set_ylim(rows - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.set_yticks(range(rows), [""] * rows)
            axes.spines[["top", "right"]].set_visible(False)
        names = [_name(network, room - 0.3) for network in comparison.networks]
        panels[0].set_yticklabels(names, size=_LETTERS, parse_math=False)
        _draw_steps(panels[0], comparison)
        _draw_speeds(panels[1], comparison)
        _draw_ports(panels[2], comparison)
        save_figure(figure, path)


def _name(network: ComparedNetwork, room: float) -> str:
    """Return a network's name and its plan, as wide as there is room [inch]."""
    made = network.best.entry.found
    plan = "nothing valid" if made is None else plan_label(made.plan)
    label = shortened(network.label, _LETTERS, room)
    return f"{label}\n{wrapped(plan, _LETTERS, room, most_lines=2)}"


def _draw_steps(axes: "Axes", comparison: NetworkComparison) -> None:
    """Draw where each step goes."""
    axes.set_title("Replayed step of the best plan", loc="left", size=14)
    found = [step_parts(network) for network in comparison.networks]
    names = ("compute, optimizer", "exposed communication", "bubble")
    for place, parts in enumerate(found):
        if parts is None:
            _cross(axes, place)
            continue
        start = 0.0
        for name, width, colour in zip(
            names, parts, (_WORK, _EXPOSED, _BUBBLE), strict=True
        ):
            label = name if place == _first(found) else None
            axes.barh([place], [width], 0.6, left=start, color=colour, label=label)
            start += width
        _behind(axes, start, place, format_duration(start))
    longest = max((sum(parts) for parts in found if parts), default=1.0)
    axes.set_xlim(0, _ROOM * longest)
    axes.set_xlabel("time [s]")
    _legend(axes, 2)


def _first(found: Sequence[StepParts | None]) -> int:
    """Return the first row that has bars."""
    return next((place for place, parts in enumerate(found) if parts), 0)


def _draw_speeds(axes: "Axes", comparison: NetworkComparison) -> None:
    """Draw throughput as it is, for each port, and for money."""
    import pandas as pd
    import seaborn as sns
    from matplotlib.patches import Rectangle

    axes.set_title("Throughput in the replay", loc="left", size=14)
    kinds = {"as it is": _SPEED, "per port": _PER_PORT}
    if comparison.currency:
        kinds[f"per {comparison.currency}"] = _PER_MONEY
    rows = [relative(comparison, one, one.best) for one in comparison.networks]
    ratios = pd.DataFrame(rows).iloc[:, : len(kinds)].set_axis([*kinds], axis=1)
    bars = ratios.fillna(0.0).melt(ignore_index=False).reset_index()
    sns.barplot(
        bars,
        x="value",
        y="index",
        hue="variable",
        orient="h",
        palette=kinds,
        width=0.72,
        gap=0.1,
        ax=axes,
        **PLAIN_BARS,
    )
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        if ratio := patch.get_width():
            middle = patch.get_y() + patch.get_height() / 2
            _behind(axes, ratio, middle, format_ratio(ratio))
    for place in map(float, np.flatnonzero(ratios.isna().all(axis=1))):
        _cross(axes, place)
    longest = max(1.0, float(np.nanmax(bars["value"].to_numpy(np.float64))))
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=0)
    axes.set_xlim(0, _ROOM * longest)
    room = axes.get_window_extent().width / DPI - 0.4
    label = shortened(comparison.base.label, 14.0, room)
    axes.set_xlabel(f"{label} = 1", parse_math=False)
    _legend(axes, 3)


def _draw_ports(axes: "Axes", comparison: NetworkComparison) -> None:
    """Draw ports of NICs, and of switches by tier, and write the bisection."""
    axes.set_title("Ports outside of nodes; bisection", loc="left", size=14)
    most = max(network.inventory.num_ports for network in comparison.networks)
    for place, network in enumerate(comparison.networks):
        parts = network.inventory
        start = 0
        pieces = [("NICs", parts.num_nic_ports, _NICS)]
        pieces += [
            (tier.name, tier.num_switch_ports, level_colour(index))
            for index, tier in enumerate(parts.fabric)
        ]
        for name, width, colour in pieces:
            if not width:
                continue
            axes.barh([place], [width], 0.6, left=start, color=colour)
            words = f"{name}\n{number(width)}"
            if width > 0.12 * most:
                axes.text(
                    start + width / 2,
                    place,
                    words,
                    ha="center",
                    va="center",
                    size=10,
                    color=ink_on(colour),
                    parse_math=False,
                )
            start += width
        text = f"{number(parts.num_ports)} ports\n{format_bandwidth(network.bisection)}"
        _behind(axes, start, place, text)
    axes.set_xlim(0, 1.42 * max(most, 1))
    axes.set_xlabel("ports, by the tier whose cables are in them")


def _behind(axes: "Axes", x: float, y: float, words: str) -> None:
    """Write something behind the end of a bar."""
    axes.annotate(
        words,
        (x, y),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        size=_LETTERS,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        parse_math=False,
    )


def _cross(axes: "Axes", place: float) -> None:
    style: dict[str, Any] = {"marker": "x", "markersize": 12, "markeredgewidth": 3}
    axes.plot([0.02], [place], color=INK, linestyle="none", clip_on=False, **style)


def _legend(axes: "Axes", columns: int) -> None:
    """Write what colours mean, below the axis."""
    inches = axes.get_window_extent().height / DPI
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(-0.02, -_LEGEND / inches),
            ncols=columns,
            frameon=False,
            fontsize=11,
        )
