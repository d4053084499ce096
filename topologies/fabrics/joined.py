"""Copies of one network, joined by a graph of switches: routes by arithmetic and table.

Every copy has a root, the switch through which all of its devices leave it: the adapter
switch of a pod, or a switch of a dragonfly with the nodes below it. Roots are the first
vertices of a graph; others, such as spines and cores, may stand between them. A route
inside a copy is the copy's own. Another goes up to the root, over the graph, and down.

Pairs of roots take turns over several ways of the graph (`topologies.fabrics.ways`), or
a hash of the two devices picks (ECMP). Valiant's routes [1]_ go by a part of the graph
that the hash picks first.

Letters: ``Q`` copies, ``M`` devices of a copy, ``C`` links of a way out, ``G`` vertices
of the graph, ``E`` its links, ``P`` pairs.

References
----------
.. [1] Valiant, "A scheme for fast parallel communication", SIAM Journal on Computing
   1982.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.fabrics.routing import (
    BuiltRouting,
    JoinedTable,
    SingleTable,
    max_flow,
)
from topologies.fabrics.trees import hash_pairs
from topologies.fabrics.ways import Graph, Hops, Ways, gathered, joined_links
from topologies.network import Family, Level, Links, Network, Routes, Tier

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copy:
    """One copy: a network, and the way from each of its devices to the root."""

    inner: Network
    """The network that is copied."""

    links: Links
    """Links of the copy: those of `inner`, then others of the ways out. Vertices are
    numbered as in `inner`, others of the ways behind; the last one is the root."""

    names: tuple[str, ...]
    """Names of all vertices behind the devices, of all copies, one copy after the
    other."""

    up: IntArray
    """Links of each device's way to the root, shape ``(M, C)``."""

    down: IntArray
    """Links from the root to each device, shape ``(M, C)``."""

    out_bandwidth: float
    """What all devices can send to the root together [byte/s]."""

    tiers: tuple[Tier, ...]
    """Tiers of one copy."""

    @property
    def num_below(self) -> int:
        """Vertices of the copy that are no devices."""
        ends = self.links.source
        return int(ends.max()) + 1 - self.inner.num_devices


class JoinedRouting(BuiltRouting):
    """Routes of copies that a graph joins."""

    family: Family = "joined"

    def __init__(self, copy: Copy, num_copies: int, graph: Graph) -> None:
        self.copy = copy
        self.graph = graph
        self.inner = copy.inner.routing
        self.num_copies = num_copies
        self.size = copy.inner.num_devices
        self.num_devices = num_copies * self.size
        self.num_vertices = (
            self.num_devices
            + num_copies * copy.num_below
            + graph.num_vertices
            - num_copies
        )
        self.first_link = num_copies * len(copy.links)
        self.ways = Ways(graph, num_copies, self.first_link)

    # Levels.

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the inner level of pairs in one copy, and the graph's of others."""
        here, there = sources // self.size, targets // self.size
        inside = self.inner.levels(sources % self.size, targets % self.size)
        outside = np.full(np.shape(sources), len(self.copy.inner.levels))
        for block in self.graph.block_sizes[:-1]:
            outside += here // block != there // block
        return np.where(here == there, inside, outside)

    def planner_levels(self) -> tuple[Level, ...]:
        """Return the copy's levels, then those of the graph."""
        return self._levels(self.copy.inner.levels, self._ends, self.built_bandwidths())

    def levels_left(
        self, levels: tuple[Level, ...], links: Links, capacity: FloatArray
    ) -> tuple[Level, ...]:
        """Return levels with what is left of their bandwidths.

        A level's bandwidth is at most that of the slowest link that is less than it
        was, of those that its routes may cross. What leaves a copy, or a block of the
        graph, is that of the one that has most left; inside of copies it is as built.
        """
        del levels
        built = self.built_bandwidths()
        slow = (capacity < built) & (capacity > 0)
        inside = self._inner_left(capacity)
        first = len(inside)
        bounds = []
        for number, end in enumerate(self._ends):
            used = slow & ((links.level <= first + number) & self._outside)
            narrowest = float(capacity[used].min(initial=end.bandwidth))
            bounds.append(end._replace(bandwidth=narrowest))
        return self._levels(inside, tuple(bounds), capacity)

    def _inner_left(self, capacity: FloatArray) -> tuple[Level, ...]:
        """Return the inner levels, as wide as in the copies that have least left."""
        count = len(self.copy.inner.links)
        inner = self.copy.inner.levels
        for copy in range(self.num_copies):
            part = slice(copy * len(self.copy.links), None)
            left = capacity[part][:count]
            if np.array_equal(left, self.copy.inner.links.bandwidth):
                continue
            inner = self._least(inner, left)
        return inner

    def _least(self, levels: tuple[Level, ...], left: FloatArray) -> tuple[Level, ...]:
        """Return levels at most as wide as one copy's, given what it has left."""
        inner = self.copy.inner
        if isinstance(self.inner, BuiltRouting):
            least = self.inner.levels_left(inner.levels, inner.links, left)
        else:
            narrow = [
                float(left[(inner.links.level <= k) & (left > 0)].min(initial=math.inf))
                for k in range(len(levels))
            ]
            least = tuple(
                replace(level, bandwidth=min(level.bandwidth, width))
                for level, width in zip(levels, narrow, strict=True)
            )
        return tuple(
            replace(level, bandwidth=min(level.bandwidth, other.bandwidth))
            for level, other in zip(levels, least, strict=True)
        )

    def _levels(
        self, inside: tuple[Level, ...], ends: "tuple[_Ends, ...]", left: FloatArray
    ) -> tuple[Level, ...]:
        sizes = (1, *self.graph.block_sizes)
        leaving = [self._leaving(left, number - 1) for number in range(len(sizes) - 1)]
        levels = [
            replace(level, num_blocks=level.num_blocks * self.num_copies)
            for level in inside
        ]
        levels[-1] = self._leaving_level(levels[-1], 1, leaving[0])
        for number, (name, end) in enumerate(
            zip(self.graph.level_names, ends, strict=True)
        ):
            size = sizes[number + 1]
            level = Level(
                name=name,
                block_size=size * self.size,
                num_blocks=self.num_copies // size,
                bandwidth=end.bandwidth,
                latency=end.latency,
                uplink_bandwidth=math.inf,
                oversubscription=1.0,
            )
            if size < self.num_copies:
                level = self._leaving_level(level, size, leaving[number + 1])
            levels.append(level)
        return tuple(levels)

    def _leaving_level(self, level: Level, size: int, leaving: float) -> Level:
        """Return a level of so many copies a block with what can leave one of them."""
        sending = size * self.copy.out_bandwidth
        ratio = sending / leaving if leaving else math.inf
        return replace(level, uplink_bandwidth=leaving, oversubscription=ratio)

    def _leaving(self, capacity: FloatArray, number: int) -> float:
        """Return what leaves a block of a level of the graph, of the widest block.

        Level -1 has the copies for blocks.
        """
        size = 1 if number < 0 else self.graph.block_sizes[number]
        inside = self.graph.lowest <= number
        block = np.where(inside, self.graph.place // size, -1)
        here = block[self.graph.links.source]
        leaves = (here >= 0) & (here != block[self.graph.links.target])
        sums = np.bincount(here[leaves], capacity[self.first_link :][leaves])
        return float(sums.max(initial=0.0))

    @cached_property
    def _outside(self) -> BoolArray:
        """Links that routes between copies may cross, shape ``(links,)``."""
        crossed = np.zeros(len(self.copy.links), dtype=np.bool_)
        crossed[self.copy.up] = crossed[self.copy.down] = True
        graph = np.ones(len(self.graph.links), dtype=np.bool_)
        return np.concatenate([np.tile(crossed, self.num_copies), graph])

    @cached_property
    def _ends(self) -> "tuple[_Ends, ...]":
        """Narrowest link and longest latency between roots, by level of the graph."""
        roots, size = self.num_copies, 1
        narrow, long = self.ways.along()
        if self.graph.spread:
            # By way of any part: the longest there, and the longest on from there.
            there = long[:roots].max(axis=1), long[:, :roots].max()
            widths = np.full((roots, roots), float(narrow.min()))
            latencies = np.maximum(long[:roots, :roots], there[0][:, None] + there[1])
        else:
            widths, latencies = narrow[:roots, :roots], long[:roots, :roots]
        links, copy = self.copy.links, self.copy
        up = links.latency[copy.up].sum(axis=1).max()
        down = links.latency[copy.down].sum(axis=1).max()
        narrowest = min(
            links.bandwidth[copy.up].min(), links.bandwidth[copy.down].min()
        )
        number = np.arange(roots)
        ends = []
        for block in self.graph.block_sizes:
            same = number[:, None] // size == number // size
            here = ~same & (number[:, None] // block == number // block)
            ends.append(
                _Ends(
                    float(min(widths[here].min(initial=math.inf), narrowest)),
                    float(latencies[here].max(initial=0.0) + up + down),
                )
            )
            size = block
        return tuple(ends)

    # Routes.

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the routes; O(pairs x links of a switch), no loop over pairs."""
        return self._routes(sources, targets, None)

    def rehashed_routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray
    ) -> Routes:
        """Return the routes over links that are kept, where ways are equally long."""
        return self._routes(sources, targets, kept)

    def _routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray | None
    ) -> Routes:
        sources = np.asarray(sources, dtype=np.int64)
        targets = np.asarray(targets, dtype=np.int64)
        here, there = sources // self.size, targets // self.size
        steps = list(self._inside(sources, targets, kept))
        apart = np.flatnonzero(here != there)
        if apart.size:
            offset = (here[apart] * len(self.copy.links))[:, None]
            up = self.copy.up[sources[apart] % self.size] + offset
            offset = (there[apart] * len(self.copy.links))[:, None]
            down = self.copy.down[targets[apart] % self.size] + offset
            steps += [Hops(apart, column) for column in up.T]
            steps += self._over_graph(apart, sources, targets, kept)
            steps += [Hops(apart, column) for column in down.T]
        return gathered(steps, len(sources))

    def _inside(
        self, sources: IntArray, targets: IntArray, kept: BoolArray | None
    ) -> "Iterator[Hops]":
        """Yield the links of routes inside copies."""
        here = sources // self.size
        alike = np.flatnonzero(here == targets // self.size)
        if kept is None:
            yield from self._of_copies(alike, here[alike], sources, targets)
            return
        per_copy, inner = len(self.copy.links), len(self.copy.inner.links)
        for copy in np.unique(here[alike]).tolist():
            pairs = alike[here[alike] == copy]
            left = kept[copy * per_copy : copy * per_copy + inner]
            routes = self.inner.rehashed_routes(
                sources[pairs] % self.size, targets[pairs] % self.size, left
            )
            yield Hops.of(pairs, routes, np.full(len(pairs), copy * per_copy))

    def _of_copies(
        self, pairs: IntArray, copies: IntArray, sources: IntArray, targets: IntArray
    ) -> "Iterator[Hops]":
        routes = self.inner.routes(
            sources[pairs] % self.size, targets[pairs] % self.size
        )
        yield Hops.of(pairs, routes, copies * len(self.copy.links))

    def _over_graph(
        self,
        apart: IntArray,
        sources: IntArray,
        targets: IntArray,
        kept: BoolArray | None,
    ) -> "list[Hops]":
        """Return the links over the graph of pairs in two copies, in order."""
        graph, here = self.graph, sources[apart] // self.size
        there = targets[apart] // self.size
        if not graph.hashed:
            draws = (here + there).astype(np.uint64)
        else:
            draws = hash_pairs(
                sources[apart], targets[apart], self.num_devices, graph.seed % 2**64
            )
        if not graph.spread:
            return self.ways.walk(apart, (here, there), draws, kept)
        number = np.uint64(self.ways.landing.shape[1])
        part = (draws % number).astype(np.int64)
        draws //= number
        direct = (part == here // graph.spread) | (part == there // graph.spread)
        middle = np.where(direct, there, self.ways.landing[here, part])
        first = self.ways.walk(apart, (here, middle), draws, kept)
        return [*first, *self.ways.walk(apart, (middle, there), draws, kept)]

    # The whole.

    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link before any was slowed [byte/s]."""
        copies = np.tile(self.copy.links.bandwidth, self.num_copies)
        return np.concatenate([copies, self.graph.links.bandwidth])

    def vertex_names(self) -> tuple[str, ...]:
        """Return devices, then what is in the copies, then the rest of the graph."""
        devices = (f"device {device}" for device in range(self.num_devices))
        return (*devices, *self.copy.names, *self.graph.names)

    def links(self) -> Links:
        """Return the links of all copies, then those of the graph."""
        copy, below = self.copy, self.copy.num_below
        numbers = np.arange(self.num_copies)[:, None]
        switches = self.num_devices + numbers * below

        def vertices(local: IntArray) -> IntArray:
            device = numbers * self.size + local
            return np.where(local < self.size, device, switches + local - self.size)

        behind = self.num_devices + self.num_copies * (below - 1)
        roots = switches[:, 0] + below - 1
        others = np.arange(self.num_copies, self.graph.num_vertices) + behind
        of_graph = np.concatenate([roots, others])
        graph = replace(
            self.graph.links,
            source=of_graph[self.graph.links.source],
            target=of_graph[self.graph.links.target],
            level=self.graph.links.level + len(copy.inner.levels),
        )
        tiled = {
            field.name: np.tile(getattr(copy.links, field.name), self.num_copies)
            for field in fields(copy.links)
        }
        tiled["source"] = vertices(copy.links.source).ravel()
        tiled["target"] = vertices(copy.links.target).ravel()
        return joined_links([Links(**tiled), graph])

    def bisection_bandwidth(self) -> float:
        """Return the largest flow between two halves of the copies [byte/s].

        The smallest of those halves that the graph names. Of an odd number of copies,
        the one in the middle is halved, too, with half of its ways out on either side.
        """
        half = np.arange(self.num_copies // 2)
        flows = (self._flow_from(first) for first in self.graph.halves or (half,))
        rest = self.inner.bisection_bandwidth() if self.num_copies % 2 else 0.0
        return min(flows) + rest

    def _flow_from(self, first: IntArray) -> float:
        """Return the largest flow from some copies to as many of the others.

        Two vertices stand for the devices of each copy, of half its ways out each.
        """
        graph, copies = self.graph, np.arange(self.num_copies)
        roots = np.concatenate([copies, copies])
        devices = graph.num_vertices + np.arange(len(roots))
        out = np.full(len(roots), self.copy.out_bandwidth / 2)
        count = len(graph.links) + 2 * len(roots)
        links = Links(
            source=np.concatenate([graph.links.source, devices, roots]),
            target=np.concatenate([graph.links.target, roots, devices]),
            bandwidth=np.concatenate([graph.links.bandwidth, out, out]),
            latency=np.zeros(count),
            level=np.zeros(count, dtype=np.int64),
            num_parallel=np.ones(count, dtype=np.int64),
        )
        begins = np.isin(roots, first)
        ends = np.isin(roots, np.setdiff1d(copies, first)[-len(first) :])
        if self.num_copies % 2:
            (middle,) = np.flatnonzero(~(begins | ends)).reshape(2, -1).T.tolist()
            begins[middle[0]] = ends[middle[1]] = True
        vertices = graph.num_vertices + len(roots)
        return max_flow(links, vertices, devices[begins], devices[ends])

    def tiers(self) -> tuple[Tier, ...]:
        """Return the tiers of all copies, then those of the graph."""
        inside = (
            replace(
                tier,
                num_blocks=tier.num_blocks * self.num_copies,
                num_links=tier.num_links * self.num_copies,
            )
            for tier in self.copy.tiers
        )
        return (*inside, *self.graph.tiers)

    def table(self) -> JoinedTable:
        """Return the rule as plain arrays, for kernels."""
        inner = cast("SingleTable", self.inner.table())
        ways = [self.copy.up, self.copy.down]
        longest = self.ways.most_hops * (2 if self.graph.spread else 1)
        return JoinedTable(
            rows=np.hstack([inner.rows, *ways]).astype(np.int32),
            inner=inner,
            head=(
                self.size,
                len(self.copy.links),
                self.copy.up.shape[1],
                inner.rows.shape[1],
                self.first_link,
                self.graph.num_vertices,
                int(self.graph.hashed),
                (self.graph.seed + 2**63) % 2**64 - 2**63,
                self.graph.spread,
                self.ways.landing.shape[1],
                self.num_devices,
            ),
            graph=self.ways.numbers(),
            longest=max(inner.longest, 2 * self.copy.up.shape[1] + longest),
        )


class _Ends(NamedTuple):
    """What two devices in copies of one level of the graph have between them."""

    bandwidth: float
    """Narrowest link [byte/s]."""

    latency: float
    """Longest route [s]."""
