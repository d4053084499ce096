"""Drawing networks that are no trees: tori, meshes, and lists of links."""

import cmath
import math
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nestsim.document.paints import level_colour
from nestsim.document.wording import percent
from nestsim.features.topology.trees import Wear, draw_worn
from topologies.units import format_bandwidth, format_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from topologies.arrays import FloatArray, IntArray
    from topologies.fabrics.joined import JoinedRouting
    from topologies.fabrics.tori import TorusRouting
    from topologies.network import Network

_COLOURS = ("#0173b2", "#de8f05", "#029e73", "#cc78bc", "#ca9161")
"""Of dimensions; from seaborn's colour-blind palette."""

_MOST_PER_AXIS = 9
"""Devices along a dimension that are drawn before some are left out."""

_MOST_ON_CIRCLE = 40
"""Devices of a custom network that are drawn before some are left out."""

_HUB = 0.15
"""How near to the middle of the circle the devices of a central switch balance."""

_DEVICE_COLOUR = "#444444"

_NOTE: dict[str, Any] = {
    "va": "top",
    "size": 12,
    "linespacing": 1.4,
    "parse_math": False,
}


def draw_torus(axes: "Axes", routing: "TorusRouting", wear: Wear) -> None:
    """Draw the grid; links that wrap around are dashed stubs that leave it."""
    kept = [_kept(size) for size in routing.shape]
    steps = _steps([len(k) for k in kept])
    grid = axes.inset_axes((0.0, 0.02, 0.72, 0.96))
    grid.set_axis_off()
    grid.set_aspect("equal")
    places = np.stack(
        np.meshgrid(*[np.arange(len(k)) for k in kept], indexing="ij"), axis=-1
    ).reshape(-1, len(kept))
    spots = places @ steps
    each = [np.array(k)[places[:, axis]] for axis, k in enumerate(kept)]
    numbers = np.stack(each, axis=1) @ np.array(routing.strides)
    for axis in range(len(kept)):
        _draw_axis(grid, routing, axis, (places, steps, numbers), wear)
    _draw_devices(grid, spots, numbers, named=len(kept) < 3)
    grid.margins(0.06)
    if len(kept) == 1:
        grid.set_ylim(-1.0, 1.0)
    _describe_torus(axes, routing)


def _kept(size: int) -> list[int]:
    """Return the positions along a dimension to draw: the first ones and the last."""
    if size <= _MOST_PER_AXIS:
        return list(range(size))
    return [*range(_MOST_PER_AXIS - 2), size - 2, size - 1]


def _steps(counts: list[int]) -> "FloatArray":
    """Return the step on paper along each dimension; the last one goes right."""
    if len(counts) == 1:
        return np.array([[1.0, 0.0]])
    if len(counts) == 2:
        return np.array([[0.0, -1.0], [1.0, 0.0]])
    depth = 0.8 / max(counts[0], 2)
    return np.array([[depth, 0.72 * depth], [0.0, -1.0], [1.0, 0.0]])


def _draw_axis(
    grid: "Axes",
    routing: "TorusRouting",
    axis: int,
    shown: "tuple[IntArray, FloatArray, IntArray]",
    wear: Wear,
) -> None:
    """Draw the links along one dimension: whole, cut short, or leaving the grid.

    ``shown`` are the devices' places, the steps on paper, and the devices' numbers.
    """
    from matplotlib.collections import LineCollection

    places, steps, numbers = shown
    size, step = routing.shape[axis], steps[axis]
    kept = _kept(size)
    spots = places @ steps
    position = places[:, axis]
    whole: list[tuple[FloatArray, FloatArray]] = []
    dashed: list[tuple[FloatArray, FloatArray]] = []
    worn: list[tuple[FloatArray, FloatArray, float]] = []
    stride = routing.strides[axis]
    stub = 0.8 if steps.shape[0] == 3 and axis == 0 else 0.42
    for spot, at, device in zip(
        spots, position.tolist(), numbers.tolist(), strict=True
    ):
        if at + 1 < len(kept):
            adjacent = kept[at + 1] == kept[at] + 1
            left = wear.get((device, device + stride), 1.0) if adjacent else 1.0
            if left < 1.0:
                worn.append((spot, spot + step, left))
            else:
                (whole if adjacent else dashed).append((spot, spot + step))
        if routing.spec.wrap[axis] and size > 2 and at in {0, len(kept) - 1}:
            first = device - stride * kept[at]
            left = wear.get((first, first + stride * (size - 1)), 1.0)
            end = spot + step * (stub if at else -stub)
            if left < 1.0:
                worn.append((spot, end, left))
            else:
                dashed.append((spot, end))
    style: dict[str, Any] = {"colors": _COLOURS[axis], "linewidths": 1.6, "alpha": 0.75}
    grid.add_collection(LineCollection(whole, **style))
    grid.add_collection(LineCollection(dashed, linestyles=(0, (2, 1.5)), **style))
    draw_worn(grid, worn, 2.4)


def _draw_devices(
    grid: "Axes", spots: "FloatArray", numbers: "IntArray", *, named: bool
) -> None:
    """Draw the devices; with their numbers if nothing stands in front of them."""
    size = 20 if named else 5.5
    grid.plot(
        spots[:, 0],
        spots[:, 1],
        "o",
        color=_DEVICE_COLOUR,
        ms=size,
        mec="white",
        zorder=3,
    )
    if named:
        for (x, y), number in zip(spots, numbers.tolist(), strict=True):
            style: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "color": "white",
                "zorder": 4,
            }
            grid.text(x, y, f"{number}", size=9 if number < 1000 else 6.5, **style)


def _describe_torus(axes: "Axes", routing: "TorusRouting") -> None:
    top = 0.93
    spec = routing.spec
    hop = f"{format_bandwidth(spec.bandwidth)} each way"
    if spec.efficiency < 1.0:
        hop += f", {percent(spec.efficiency)} of it reached"
    text = f"Every link: {hop},\n{format_duration(spec.latency)} a hop"
    axes.text(0.74, top, text, transform=axes.transAxes, **_NOTE)
    for axis, tier in enumerate(reversed(routing.tiers())):
        top -= 0.13
        depth = " (into the page)" if axis == 0 and len(spec.dimensions) == 3 else ""
        form = "ring" if spec.wrap[axis] else "line"
        form += "s" * (tier.num_blocks > 1)
        text = (
            f"Dimension {axis}{depth}:\n{tier.num_blocks:,} {form} "
            f"of {tier.block_size}, {tier.num_links:,} links"
        )
        axes.text(
            0.74, top, text, transform=axes.transAxes, color=_COLOURS[axis], **_NOTE
        )
    notes = []
    if any(
        wraps and s > 2 for wraps, s in zip(spec.wrap, spec.dimensions, strict=True)
    ):
        notes.append("Dashed at the edges: wraps around.")
    if max(spec.dimensions) > _MOST_PER_AXIS:
        notes.append("Dashed inside: devices left out.")
    notes.append(f"Farthest two devices: {routing.diameter} hops.")
    text = "\n".join(notes)
    axes.text(0.74, top - 0.16, text, transform=axes.transAxes, color="0.35", **_NOTE)


def draw_custom(axes: "Axes", network: "Network", wear: Wear) -> None:
    """Draw the devices on a circle, the switches inside it, links by level."""
    from matplotlib.collections import LineCollection

    links = network.links
    shown = _shown_vertices(network)
    spots = _circle(network, shown)
    graph = axes.inset_axes((0.0, 0.0, 0.72, 0.97))
    graph.set_axis_off()
    graph.set_aspect("equal")
    graph.set_xlim(-1.32, 1.32)
    graph.set_ylim(-1.2, 1.2)
    for level in reversed(range(len(network.levels))):
        ends = zip(
            links.source[links.level == level].tolist(),
            links.target[links.level == level].tolist(),
            strict=True,
        )
        shown_ends = [(a, b) for a, b in ends if a in spots and b in spots]
        parts = [wear.get((min(a, b), max(a, b)), 1.0) for a, b in shown_ends]
        pairs = [(spots[a], spots[b]) for a, b in shown_ends]
        lines = [pair for pair, left in zip(pairs, parts, strict=True) if left == 1.0]
        width = max(1.0, 3.2 - 0.7 * level)
        colour = level_colour(level)
        graph.add_collection(
            LineCollection(lines, colors=colour, linewidths=width, alpha=0.7)
        )
        worn = zip(pairs, parts, strict=True)
        draw_worn(graph, [(*pair, left) for pair, left in worn if left < 1.0], width)
    _draw_vertices(graph, network, spots)
    _describe_custom(axes, network, shown)


def _shown_vertices(network: "Network") -> list[int]:
    """Return the first devices and all switches on the routes between them.

    Of copies that a graph joins the first devices of each.
    """
    devices = np.arange(min(network.num_devices, _MOST_ON_CIRCLE))
    if network.routing.family == "joined":
        routing = cast("JoinedRouting", network.routing.built)
        number = max(1, min(routing.size, _MOST_ON_CIRCLE // routing.num_copies))
        copies = np.arange(min(routing.num_copies, _MOST_ON_CIRCLE))[:, None]
        devices = (copies * routing.size + np.arange(number)).ravel()
    sources, targets = (a.ravel() for a in np.meshgrid(devices, devices))
    used = np.unique(network.routes(sources, targets).links)
    between = np.unique(network.links.target[used])
    switches = between[between >= network.num_devices]
    return [*devices.tolist(), *switches.tolist()[:_MOST_ON_CIRCLE]]


def _circle(network: "Network", shown: list[int]) -> dict[int, tuple[float, float]]:
    """Place devices on a circle, clockwise from the top, and switches inside it."""
    devices = [v for v in shown if v < network.num_devices]
    switches = [v for v in shown if v >= network.num_devices]
    spots = {}
    for place, device in enumerate(devices):
        angle = math.pi / 2 - 2 * math.pi * (place + 0.5) / len(devices)
        spots[device] = (math.cos(angle), math.sin(angle))
    towards = {v: _centre_of_devices(network, v, spots) for v in switches}
    hubs = [v for v in switches if abs(towards[v]) < _HUB]
    if len(hubs) == 1 or len(switches) == 1:
        spots[hubs[0] if hubs else switches[0]] = (0.0, 0.0)
    order = [v for v in switches if v not in spots]
    order.sort(key=lambda v: (-cmath.phase(towards[v]), v))
    radius = 0.3 if len(order) <= 4 else 0.5
    for place, switch in enumerate(order):
        angle = cmath.phase(towards[order[0]]) - 2 * math.pi * place / len(order)
        spots[switch] = (radius * math.cos(angle), radius * math.sin(angle))
    return spots


def _centre_of_devices(
    network: "Network", switch: int, spots: dict[int, tuple[float, float]]
) -> complex:
    """Return the mean place of a switch's devices, as x + iy."""
    neighbours = network.links.source[network.links.target == switch].tolist()
    around = [complex(*spots[v]) for v in neighbours if v in spots]
    return sum(around) / max(len(around), 1)


def _draw_vertices(
    graph: "Axes", network: "Network", spots: dict[int, tuple[float, float]]
) -> None:
    style: dict[str, Any] = {"va": "center", "parse_math": False, "size": 10}
    few = sum(v >= network.num_devices for v in spots) <= 16
    for vertex, (x, y) in spots.items():
        name = network.vertex_names[vertex]
        name = name if len(name) <= 14 else name[:13] + "…"
        if vertex < network.num_devices:
            graph.plot(x, y, "o", color=_DEVICE_COLOUR, ms=13, mec="white", zorder=3)
            side = "center" if abs(x) < 0.2 else "left" if x > 0 else "right"
            graph.text(1.08 * x, 1.08 * y, name, ha=side, zorder=4, **style)
        else:
            box = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": _DEVICE_COLOUR}
            label = name if few else name[-4:]
            graph.text(x, y, label, ha="center", zorder=4, bbox=box, **style)


def _describe_custom(axes: "Axes", network: "Network", shown: list[int]) -> None:
    top = 0.93
    joined = network.routing.family == "joined"
    counts = np.bincount(network.links.level, minlength=len(network.levels)) // 2
    if not joined:
        counts = np.array([tier.num_links for tier in network.tiers()])
    for index, (level, count) in enumerate(
        zip(network.levels, counts.tolist(), strict=True)
    ):
        links = f", {count:,} links" if count else ""
        text = (
            f"Level {index}: {format_bandwidth(level.bandwidth)}\n"
            f"between two devices{links},\n"
            f"{level.block_size:,} devices within reach,\n"
            f"at most {format_duration(level.latency)} away"
        )
        colour = level_colour(index)
        axes.text(0.74, top, text, transform=axes.transAxes, color=colour, **_NOTE)
        top -= min(0.15, 0.8 / len(network.levels))
    if len(shown) < len(network.vertex_names):
        left_out = len(network.vertex_names) - len(shown)
        text = f"{left_out:,} devices and switches\nare not drawn."
        axes.text(0.74, top, text, transform=axes.transAxes, color="0.35", **_NOTE)
