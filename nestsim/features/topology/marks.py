"""What is marked in a drawn network: labels beside tiers, and what is slow or gone."""

from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.document.wording import percent
from topologies.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes

    from topologies.arrays import FloatArray
    from topologies.fabrics.trees import TreeRouting
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

    found = list(lines)
    style: dict[str, Any] = {"colors": _COLOUR, "linewidths": width, "zorder": 2.5}
    slow = [(a, b) for a, b, left in found if left > 0.0]
    gone = [(a, b) for a, b, left in found if left == 0.0]
    if slow:
        axes.add_collection(LineCollection(_segments(slow), **style))
    if gone:
        axes.add_collection(
            LineCollection(_segments(gone), linestyles=_DASHES, **style)
        )


def _segments(ends: "list[tuple[Point, Point]]") -> "list[FloatArray]":
    return [np.array(pair, dtype=np.float64) for pair in ends]
