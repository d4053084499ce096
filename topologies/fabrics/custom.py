"""Networks listed link by link in a file.

Routes are shortest: least hops, then least latency, then the lowest number of the
last link. Devices pass on what is not for them. Levels are classes of pairs whose
routes have an equally wide narrowest link.
"""

import itertools
import math
from dataclasses import replace

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.errors import InputError, located
from topologies.fabrics.routing import (
    PathTable,
    PlainRouting,
    flow_of_halves,
    max_flow,
    shortest_paths,
    walk_back,
)
from topologies.link_file import LinkList
from topologies.network import (
    Family,
    Level,
    Links,
    Network,
    Rerouted,
    Routes,
    Tier,
)
from topologies.specs import CustomSpec
from topologies.units import format_bandwidth

MAX_LEVELS = 5
"""Classes of pairs, at most."""

SAME_CLASS = 0.05
"""Largest relative difference to the fastest pair of the class."""


class CustomRouting(PlainRouting):
    """Routes and classes of all pairs, found once.

    Parameters
    ----------
    links
        All links, of any level: the classes are found here.
    kept
        Which of them may be used.
    num_vertices, num_devices
        Of the network.
    """

    family: Family = "custom"

    def __init__(
        self, links: Links, kept: BoolArray, num_vertices: int, num_devices: int
    ) -> None:
        sources = np.arange(num_devices)
        paths = shortest_paths(links, num_vertices, sources, kept)
        widths = paths.bandwidth[:, :num_devices]
        floors = class_floors(widths[np.isfinite(widths)])
        self.floors = floors if floors.size else np.array([math.inf])
        level = classify(links.bandwidth, self.floors)
        self.links = replace(links, level=level)
        self.kept = kept
        self.present = self.links.only(kept)
        self.num_devices = num_devices
        self.last_link = paths.last_link
        self.latency = paths.latency[:, :num_devices]
        self.pair_class = classify(widths, self.floors)

    @property
    def num_vertices(self) -> int:
        """Devices and switches."""
        return int(self.last_link.shape[1])

    def built_bandwidths(self) -> FloatArray:
        """Return what is left of each link: what there was is not known [byte/s]."""
        return self.links.bandwidth

    def reroute(
        self, levels: tuple[Level, ...], links: Links, kept: BoolArray
    ) -> Rerouted:
        """Return shortest routes and classes of pairs anew, over what is left."""
        del levels
        routing = CustomRouting(links, kept, self.num_vertices, self.num_devices)
        return Rerouted(routing, routing.links, routing.planner_levels())

    def table(self) -> PathTable:
        """Return the routes as plain arrays, for kernels."""
        return PathTable(
            rows=self.last_link,
            tails=self.links.source.astype(np.int32),
            longest=self.num_vertices,
        )

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the class of each pair."""
        classes: IntArray = self.pair_class[sources, targets]
        return classes

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the routes, walked back from the targets all at once."""
        sources = np.asarray(sources, dtype=np.int64)
        ends = (sources, np.asarray(targets, dtype=np.int64))
        return walk_back(self.last_link, sources, ends, self.links)

    def bisection_bandwidth(self) -> float:
        """Return the largest flow from the first half of the numbers to the second."""
        return flow_of_halves(self.present, self.num_vertices, self.num_devices)

    def members(self, level: int) -> IntArray:
        """Return what the device with the widest reach has within a level."""
        near = self.pair_class <= level
        return np.flatnonzero(near[np.argmax(near.sum(axis=1))])

    def aligned_size(self, level: int) -> int:
        """Return the size of a level's blocks, 0 if they are not equal and in a row."""
        near = self.pair_class <= level
        size = int(near[0].sum())
        block = np.arange(self.num_devices) // size
        equal = self.num_devices % size == 0
        return size if equal and np.array_equal(near, block[:, None] == block) else 0

    def planner_levels(self) -> tuple[Level, ...]:
        """Return one level per class, from wide to narrow."""
        return tuple(self._level(index) for index in range(len(self.floors)))

    def _level(self, level: int) -> Level:
        members = self.members(level)
        width = float(self.floors[level])
        others = np.setdiff1d(np.arange(self.num_devices), members)
        uplink, ratio = math.inf, 1.0
        if others.size:
            uplink = max_flow(self.present, self.num_vertices, members, others)
            leaves = np.isin(self.present.source, members)
            sending = self.present.bandwidth[leaves].sum()
            ratio = float(sending) / uplink
        of_class = (self.pair_class == level) & ~np.eye(self.num_devices, dtype=bool)
        return Level(
            name=format_bandwidth(width) if math.isfinite(width) else "alone",
            block_size=len(members),
            num_blocks=-(-self.num_devices // len(members)),
            bandwidth=width,
            latency=float(self.latency[of_class].max(initial=0.0)),
            uplink_bandwidth=uplink,
            oversubscription=ratio,
        )

    def tiers(self) -> tuple[Tier, ...]:
        """Return one row per class; how many links leave a block is not said."""
        links = self.present
        ends = np.sort(np.stack([links.source, links.target]), axis=0)
        rows = []
        for index, level in enumerate(self.planner_levels()):
            of_class = links.level == index
            cables = np.unique(ends[:, of_class], axis=1)
            rows.append(
                Tier(
                    name=level.name,
                    fan_out=level.block_size,
                    bandwidth=level.bandwidth,
                    latency=float(links.latency[of_class].max(initial=0.0)),
                    joins_devices=True,
                    num_blocks=level.num_blocks,
                    block_size=level.block_size,
                    num_links=cables.shape[1],
                    uplink_bandwidth=level.uplink_bandwidth,
                    oversubscription=level.oversubscription,
                )
            )
        return tuple(rows)


def class_floors(bandwidths: FloatArray) -> FloatArray:
    """Return the smallest bandwidth of each class, falling.

    A class goes on while a value is within `SAME_CLASS` of its largest; then the
    neighbours with the smallest gap are joined until `MAX_LEVELS` are left.
    """
    classes: list[tuple[float, float]] = []
    for value in np.unique(bandwidths)[::-1].tolist():
        if classes and value >= (1 - SAME_CLASS) * classes[-1][0]:
            classes[-1] = (classes[-1][0], value)
        else:
            classes.append((value, value))
    while len(classes) > MAX_LEVELS:
        gaps = [lower[0] / upper[1] for upper, lower in itertools.pairwise(classes)]
        at = gaps.index(max(gaps))
        classes[at : at + 2] = [(classes[at][0], classes[at + 1][1])]
    return np.array([floor for _, floor in classes])


def classify(bandwidths: FloatArray, floors: FloatArray) -> IntArray:
    """Return the class of each bandwidth; below all floors counts as the last."""
    classes = np.searchsorted(-floors, -bandwidths, side="left")
    return np.minimum(classes, len(floors) - 1).astype(np.int64)


def build_custom(spec: CustomSpec) -> Network:
    """Build the network that a file lists.

    Raises
    ------
    InputError
        If the file is wrong, or some device cannot reach some other.
    """
    listed = spec.links()
    columns = np.array(listed.links, dtype=np.float64).reshape(-1, 4).T
    links = Links(
        source=columns[0].astype(np.int64),
        target=columns[1].astype(np.int64),
        bandwidth=columns[2],
        latency=columns[3],
        level=np.zeros(columns.shape[1], dtype=np.int64),
        num_parallel=np.ones(columns.shape[1], dtype=np.int64),
    )
    kept = np.ones(len(links), dtype=np.bool_)
    num_devices, names = listed.num_devices, listed.vertex_names
    routing = CustomRouting(links, kept, len(names), num_devices)
    with located(str(spec.path), ": "):
        _refuse_cut_off(listed, routing)
    aligned = {routing.aligned_size(level) for level in range(len(routing.floors))}
    sizes = {size for size in aligned if size > 1} | {num_devices}
    return Network(
        kind=spec.kind,
        num_devices=num_devices,
        vertex_names=names,
        links=routing.links,
        levels=routing.planner_levels(),
        block_sizes=tuple(sorted(sizes)),
        routing=routing,
    )


def _refuse_cut_off(listed: LinkList, routing: CustomRouting) -> None:
    missing = np.isinf(routing.latency)
    if not missing.any():
        return
    source = int(np.argmax(missing.any(axis=1)))
    cut_off = [listed.vertex_names[t] for t in np.flatnonzero(missing[source])]
    shown = ", ".join(cut_off[:5])
    more = f" and {len(cut_off) - 5} more" if len(cut_off) > 5 else ""
    raise InputError(
        "some devices cannot be reached",
        where="links",
        got=f"no route from {listed.vertex_names[source]} to {shown}{more}",
        expected="links that join every device with every other, both ways",
    )
