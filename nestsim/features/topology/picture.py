"""A picture of a network: its tiers, how they are linked, and how fast.

matplotlib is imported when a picture is drawn, and only its canvas for files is
used. Pictures hold no date and no version: the same network gives the same bytes.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nestsim.document.canvas import empty_figure, save_figure
from topologies.units import format_bandwidth

if TYPE_CHECKING:
    from topologies.fabrics.tori import TorusRouting
    from topologies.fabrics.trees import TreeRouting
    from topologies.network import Network

_WIDTH, _HEIGHT = 14.0, 9.0

_METADATA: dict[str, dict[str, object]] = {
    ".png": {"Software": "nestsim"},
    ".pdf": {"CreationDate": None, "Producer": None, "Creator": "nestsim"},
    ".svg": {"Date": None, "Creator": "nestsim"},
}
_MARKS = (b"Software\0nestsim", b"/Creator (nestsim)", b"<dc:title>nestsim</dc:title>")


def is_topology(ends: bytes) -> bool:
    """Return whether a file of this beginning and end is one of `draw_topology`."""
    return any(mark in ends for mark in _MARKS)


def draw_topology(network: "Network", path: Path) -> None:
    """Draw the network into a file; large ones in part, with what is left out counted.

    Trees: tiers from the devices upwards. Tori and meshes: the grid, in perspective
    if it has three dimensions. Custom networks, pods, and switches that are joined
    among each other: a circle of devices around the switches. What is slow or gone is
    marked, but slow links of custom networks, which stand among the levels.
    """
    with empty_figure(_WIDTH, _HEIGHT, {"svg.hashsalt": "nestsim"}) as figure:
        from nestsim.features.topology.graphs import draw_custom, draw_torus
        from nestsim.features.topology.trees import NOTE, draw_tree, find_wear

        network = network.without_host()
        _write_title(figure, network)
        axes = figure.add_axes((0.01, 0.01, 0.98, 0.89))
        axes.set_axis_off()
        built, wear = network.routing.built, find_wear(network)
        match network.routing.family:
            case "tree":
                inside = network.rules.node_levels if network.rules else 0
                tree = cast("TreeRouting", built)
                draw_tree(axes, tree, wear, _spines(network), inside)
            case "torus":
                draw_torus(axes, cast("TorusRouting", built), wear)
            case "custom" | "joined":
                draw_custom(axes, network, wear)
        if wear:
            figure.text(0.015, 0.908, NOTE, size=12, color="#c1121f", va="top")
        save_figure(figure, path, metadata=_METADATA.get(path.suffix.lower()))


def _write_title(figure: Any, network: "Network") -> None:
    num_switches = len(network.vertex_names) - network.num_devices
    parts = [_count(network.num_devices, "device")]
    if num_switches:
        parts.append(_count(num_switches, "switch", "switches"))
    bisection = format_bandwidth(network.bisection_bandwidth())
    parts.append(f"bisection bandwidth {bisection} one way")
    style: dict[str, object] = {"va": "top", "parse_math": False}
    title = f"{network.kind} network"
    figure.text(0.015, 0.98, title, size=18, weight="bold", **style)
    figure.text(0.015, 0.937, ", ".join(parts), size=13, color="0.3", **style)


def _spines(network: "Network") -> str:
    """Say how many spines an ideal trunk's one spine stands for."""
    cables = int(network.links.num_parallel[-1])
    several = network.kind in {"spine-leaf", "rail"} and cables > 1
    return f"{cables} x spine\ndrawn as one" if several else ""


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
