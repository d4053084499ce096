"""Drawing trees of switches: tiers from the devices upwards.

A node's switch is drawn above its devices if it is on the way out, and below them if
every device has a link of its own to the outside. Labels stand beside tiers; what is
slow or gone is marked, in networks of every kind.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.document.paints import level_colour
from nestsim.document.wording import percent
from topologies.fabrics.trees import TreeRouting
from topologies.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from topologies.arrays import FloatArray
    from topologies.network import Network, Tier


def blocks_label(routing: "TreeRouting", tier: int) -> str:
    """Say what one tier consists of."""
    facts = routing.switch_tiers[tier]
    blocks, size = routing.num_blocks[tier], routing.block_sizes[tier]
    lines = [f"{blocks:,} x {facts.name}"]
    if facts.num_planes > 1:
        lines.append(f"{facts.num_planes} rail switches each")
    if facts.num_spines > 1:
        lines[0] = f"{facts.num_spines} x {facts.name}"
    if tier > 1 and facts.num_planes > 1:
        lines[1] = f"for each of {facts.num_planes} rails"
    if blocks > 1:
        lines.append(f"of {size:,} devices")
    return "\n".join(lines)


def links_label(routing: "TreeRouting", tier: int, row: "Tier", *, inside: int) -> str:
    """Say what the links into one tier are, as built, and what of it is reached.

    Of switches outside of nodes, which so many tiers are inside of, the
    oversubscription, too: a NIC is slower than links inside, and not shared.
    """
    facts = routing.switch_tiers[tier]
    lines = [f"{row.num_links:,} x {format_bandwidth(row.link_bandwidth)}"]
    if row.efficiency < 1.0:
        lines.append(f"{percent(row.efficiency)} of it reached")
    if facts.num_parallel > 1:
        trunk = format_bandwidth(facts.bandwidth)
        lines.append(f"in trunks of {trunk}")
    lines.append(f"{format_duration(facts.latency)} a hop")
    if tier > inside:
        ratio = routing.tiers()[tier - 1].oversubscription
        lines.append(f"oversubscription {ratio:.3g}:1")
    return "\n".join(lines)


if TYPE_CHECKING:
    Point = tuple[float, float] | FloatArray

Wear = dict[tuple[int, int], float]
"""Two neighbours, the lower vertex first -> which part of the bandwidth between them is
left, in the worse direction; only those with less than they were built with."""

_COLOUR = "#c1121f"
"""Of all that is degraded: darker than the tiers' colours, and the only red."""

_DASHES = (0, (3, 2))

NOTE = "Red: slowed down; red and dashed: removed."


def find_wear(network: "Network") -> Wear:
    """Return what is left between neighbours. Custom networks tell only what is gone.

    O(E log E).
    """
    links, routing = network.links, network.routing
    ends = links.source * len(network.vertex_names) + links.target
    pairs, which = np.unique(ends, return_inverse=True)
    left = np.bincount(which, links.bandwidth * routing.kept)
    part = left / np.bincount(which, routing.built_bandwidths())
    wear: Wear = {}
    worn = np.flatnonzero(part < 1.0)
    sources, targets = np.divmod(pairs[worn], len(network.vertex_names))
    for a, b, rest in zip(
        sources.tolist(), targets.tolist(), part[worn].tolist(), strict=True
    ):
        pair = (min(a, b), max(a, b))
        wear[pair] = min(rest, wear.get(pair, 1.0))
    return wear


def draw_worn(
    axes: "Axes", lines: "Iterable[tuple[Point, Point, float]]", width: float
) -> None:
    """Draw links that are slow, or dashed those that are gone.

    Parameters
    ----------
    lines
        Both ends, and which part of the bandwidth is left.
    width
        Of a line [point].
    """
    from matplotlib.collections import LineCollection

    texts = list(lines)
    style: dict[str, Any] = {"colors": _COLOUR, "linewidths": width, "zorder": 2.5}
    slow = [(a, b) for a, b, left in texts if left > 0.0]
    gone = [(a, b) for a, b, left in texts if left == 0.0]
    if slow:
        axes.add_collection(LineCollection(_segments(slow), **style))
    if gone:
        axes.add_collection(
            LineCollection(_segments(gone), linestyles=_DASHES, **style)
        )


def _segments(ends: "list[tuple[Point, Point]]") -> "list[FloatArray]":
    return [np.array(pair, dtype=np.float64) for pair in ends]


_MOST_DEVICES = 64
"""Devices that are drawn before some are left out."""

_MOST_SWITCHES = 6
"""Switches of one block that are drawn before some are left out."""

_DEVICE_COLOUR = "#444444"

_GROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""Below words that stand among links."""

_PIXELS = 900
"""Of the tree's width, about."""


@dataclass
class _TreeLayout:
    """Where what is shown stands; x from 0 to 1, y in tiers."""

    x: dict[int, float] = field(default_factory=dict)
    """Vertex -> x."""

    gaps: list[tuple[int, float, int]] = field(default_factory=list)
    """Row (a tier, or -1 for devices), x, and how many are left out there."""

    step: float = 1.0
    """Distance of two devices of a node."""

    names: dict[int, str] = field(default_factory=dict)
    """Names of the switches that are shown."""


def draw_tree(
    axes: "Axes", routing: TreeRouting, wear: Wear, spines: str, inside: int
) -> None:
    """Draw the tiers, their links, and what each link can carry.

    Parameters
    ----------
    routing
        The rule that the network was built with.
    wear
        What is slow or gone.
    spines
        What the outermost switch is called if it stands for several.
    inside
        Tiers inside of nodes.
    """
    shown = _shown_children([tier.fan_out for tier in routing.switch_tiers])
    layout = _place_devices(routing, shown)
    switches = _place_switches(routing, layout)
    names = routing.vertex_names()
    layout.names = {v: names[v] for members in switches for v in members}
    heights = _heights(routing)
    axes.set_xlim(-0.24, 1.26)
    axes.set_ylim(min(heights) - 0.55, max(heights) + 0.6)
    _draw_links(axes, routing, layout, switches, heights, wear)
    xs = [x for v, x in layout.x.items() if v < routing.num_devices]
    size = min(8.0, 430 * layout.step)
    axes.plot(xs, [heights[-1]] * len(xs), "s", color=_DEVICE_COLOUR, ms=size, zorder=3)
    for tier in range(len(switches)):
        _draw_switches(axes, routing, layout, (tier, switches[tier]), heights[tier])
    for tier, x, missing in layout.gaps:
        text = f"+{missing}\n· · ·" if missing and tier >= 0 else "···"
        style: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 5}
        axes.text(x, heights[tier], text, size=9, bbox=_GROUND, **style)
    _write_tiers(axes, routing, heights, spines, inside)


def _heights(routing: TreeRouting) -> list[float]:
    """Return the y of every tier's switches, and last that of the devices."""
    count = len(routing.switch_tiers)
    if routing.nic_per_device:
        return [0.0, *(float(k + 1) for k in range(1, count)), 1.0]
    return [*(float(k + 1) for k in range(count)), 0.0]


def _shown_children(fan_outs: list[int]) -> list[int]:
    """Return how many children of a block to draw, the outermost thinned first."""
    shown = list(fan_outs)
    for most in (8, 4, 3, 2):
        for tier in reversed(range(len(shown))):
            if np.prod(shown) > _MOST_DEVICES:
                shown[tier] = min(shown[tier], most)
    return shown


def _kept(total: int, shown: int) -> list[int]:
    """Return the children to draw: the first ones and the last."""
    return list(range(total)) if shown == total else [*range(shown - 1), total - 1]


def _place_devices(routing: TreeRouting, shown: list[int]) -> _TreeLayout:
    layout = _TreeLayout()
    pen = 0.0

    def place(tier: int, first: int) -> None:
        nonlocal pen
        if tier < 0:
            layout.x[first] = pen
            pen += 1.0
            return
        total = routing.switch_tiers[tier].fan_out
        kept = _kept(total, shown[tier])
        size = routing.block_sizes[tier - 1] if tier else 1
        for child in kept:
            if child == kept[-1] and shown[tier] < total:
                width = 1.3 + 2 * tier
                middle = pen + (width - 1) / 2
                layout.gaps.append((tier - 1, middle, total - len(kept)))
                pen += width
            place(tier - 1, first + child * size)
            pen += 0.7 * tier

    place(len(routing.switch_tiers) - 1, 0)
    scale = 1 / max(*layout.x.values(), 1.0)
    layout.step = scale
    layout.x = {device: x * scale for device, x in layout.x.items()}
    layout.gaps = [
        (row, x * scale, missing if _PIXELS * scale * (row + 1) > 14 else 0)
        for row, x, missing in layout.gaps
    ]
    return layout


def _place_switches(routing: TreeRouting, layout: _TreeLayout) -> list[list[int]]:
    """Place the switches that the shown devices hang below; return them by tier."""
    links = routing.links()
    first = routing.num_devices
    devices = sorted(layout.x)
    tiers = []
    for tier, facts in enumerate(routing.switch_tiers):
        upwards = (links.level == tier) & (links.source < links.target)
        below = np.isin(links.source, list(layout.x))
        switches = np.unique(links.target[upwards & below]).tolist()
        per_block = facts.num_planes * facts.num_spines
        blocks: dict[int, list[int]] = {}
        for switch in switches:
            blocks.setdefault((switch - first) // per_block, []).append(switch)
        first += routing.num_blocks[tier] * per_block
        kept_all = []
        for block, members in blocks.items():
            size = routing.block_sizes[tier]
            xs = [layout.x[d] for d in devices if d // size == block]
            spread = (max(xs) - min(xs)) * (0.8 if facts.num_spines > 1 else 1.0)
            kept = _kept(len(members), min(len(members), _MOST_SWITCHES))
            low = (max(xs) + min(xs) - spread) / 2
            for place, index in enumerate(kept):
                part = (place + 0.5) / len(kept)
                layout.x[members[index]] = low + spread * part
            kept_all += [members[index] for index in kept]
            _leave_out(layout, tier, [members[index] for index in kept])
        tiers.append(kept_all)
    return tiers


def _leave_out(layout: _TreeLayout, tier: int, members: list[int]) -> None:
    """Note what is missing before the last of a block's switches."""
    if len(members) < 2 or members[-1] == members[-2] + 1:
        return
    left, right = layout.x[members[-2]], layout.x[members[-1]]
    roomy = _PIXELS * (right - left) > 70
    missing = members[-1] - members[-2] - 1 if roomy else 0
    layout.gaps.append((tier, (left + right) / 2, missing))


def _draw_links(
    axes: "Axes",
    routing: TreeRouting,
    layout: _TreeLayout,
    switches: list[list[int]],
    heights: list[float],
    wear: Wear,
) -> None:
    from matplotlib.collections import LineCollection

    links = routing.links()
    tier_of = {vertex: t for t, members in enumerate(switches) for vertex in members}
    for tier, facts in enumerate(routing.switch_tiers):
        shown = (links.level == tier) & (links.source < links.target)
        shown &= np.isin(links.source, list(layout.x))
        shown &= np.isin(links.target, list(layout.x))
        ends = zip(
            links.source[shown].tolist(), links.target[shown].tolist(), strict=True
        )
        lines = [
            (
                (layout.x[low], heights[tier_of.get(low, -1)]),
                (layout.x[high], heights[tier]),
                wear.get((low, high), 1.0),
            )
            for low, high in ends
        ]
        whole = [(low, high) for low, high, left in lines if left == 1.0]
        thick = 1.1 if facts.num_parallel == 1 else min(1.5 + facts.num_parallel / 2, 6)
        axes.add_collection(
            LineCollection(
                whole, colors=level_colour(tier), linewidths=thick, alpha=0.65
            )
        )
        draw_worn(axes, [line for line in lines if line[2] < 1.0], max(thick, 2.0))


def _draw_switches(
    axes: "Axes",
    routing: TreeRouting,
    layout: _TreeLayout,
    tier_switches: tuple[int, list[int]],
    y: float,
) -> None:
    """Draw boxes, with names if there is room."""
    tier, members = tier_switches
    facts = routing.switch_tiers[tier]
    room = _PIXELS * min(np.diff(sorted(layout.x[v] for v in members)), default=1.0)
    names = [layout.names[vertex] for vertex in members]
    longest = max(len(name) for name in names)
    if facts.num_planes > 1 or room < 8 * longest + 16:
        names = [name.rsplit(" ", 1)[-1] for name in names]
        longest = max(len(name) for name in names)
    size = min(10.0, room / (0.9 * longest + 1.3))
    for vertex, name in zip(members, names, strict=True):
        axes.text(
            layout.x[vertex],
            y,
            name if size >= 6 else "",
            size=max(size, 3.0),
            ha="center",
            va="center",
            color="white",
            zorder=4,
            parse_math=False,
            bbox={"boxstyle": "round,pad=0.4", "fc": level_colour(tier), "ec": "white"},
        )


def _write_tiers(
    axes: "Axes",
    routing: TreeRouting,
    heights: list[float],
    spines: str,
    inside: int,
) -> None:
    """Write the tiers' names and counts at the left, the links' speeds at the right."""
    style: dict[str, Any] = {"va": "center", "parse_math": False, "linespacing": 1.35}
    total = f"{routing.num_devices:,} device{'s' * (routing.num_devices > 1)}"
    axes.text(-0.235, heights[-1], total, size=12, weight="bold", **style)
    below = heights[-1]
    for tier, row in enumerate(routing.tiers()):
        colour = level_colour(tier)
        blocks = spines if tier + 2 == len(heights) and spines else ""
        blocks = blocks or blocks_label(routing, tier)
        axes.text(-0.235, heights[tier], blocks, size=12, color=colour, **style)
        if routing.nic_per_device and tier == 1:
            below = heights[-1]
        middle = (below + heights[tier]) / 2
        axes.text(
            1.03,
            middle,
            links_label(routing, tier, row, inside=inside),
            size=11,
            color=colour,
            **style,
        )
        below = heights[tier]
