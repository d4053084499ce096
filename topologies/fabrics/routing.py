"""Rules of routing as arrays, shortest routes, and detours round removed links.

A table says the same as `Network.routes`, link for link, in a form in which one route
costs a few reads: no arrays over all pairs and no loop in Python. There is one form
for each family of rules; integers are 32 bits wide where they come in numbers, so
that the table of 16,384 devices stays in a core's cache.

Shortest routes and largest flows on small directed graphs, deterministic.

Letters: ``S`` sources, ``V`` vertices, ``E`` links, ``h`` hops.

Rules by arithmetic, and what becomes of them where links have been removed.

A route that avoids what was removed stays as it was built. Where a hash picks one of
several parallel links (`topologies.fabrics.trees`) and that one is gone, the
pair is hashed again among those that are left. Every other pair takes the shortest way
through what is left: the least hops, then the least latency, then the lowest number of
the last link; devices pass on what is not for them.

Letters: ``N`` devices, ``V`` vertices, ``E`` links.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import NamedTuple, Self

import numpy as np

from topologies.arrays import BoolArray, FloatArray, Int32Array, IntArray
from topologies.network import Level, Links, Rerouted, Routes, Routing, Tier

_ALL = np.empty(0, dtype=np.bool_)
"""Which links are kept where none was removed."""

_NO_TAILS = np.empty(0, dtype=np.int32)
"""Where links start, in tables of which routes are not walked back."""


class TreeTable(NamedTuple):
    """Up to the lowest common switch, and down again, for ``K`` tiers."""

    rows: Int32Array
    """Each device's link up into every tier, the first one where there are several,
    then its block at every tier, shape ``(N, 2 K)``."""

    down: IntArray
    """What a link down from a tier has added to the link up, shape ``(K,)``."""

    num_planes: int
    """Number of rails; 1 without rails."""

    relay: bool
    """Whether traffic to another rail crosses the sender's node first (PXN)."""

    nic_per_device: bool
    """Whether routes out of a node leave its own switch aside."""

    num_choices: tuple[int, ...]
    """Parallel links of each tier, spines or cables, among which a hash picks."""

    seeds: tuple[int, ...]
    """Seed of the hash that picks parallel links, of each tier, below ``2**64``."""

    longest: int
    """Number of links of the longest route, or more."""

    @property
    def numbers(self) -> list[int]:
        """Everything but the rows, in the order in which kernels read it."""
        return [
            len(self.down),
            self.num_planes,
            int(self.relay),
            int(self.nic_per_device),
            int(max(self.num_choices) > 1),
            len(self.rows),
            *self.down.tolist(),
            *self.num_choices,
            *(seed - 2**64 if seed >= 2**63 else seed for seed in self.seeds),
        ]

    @property
    def tails(self) -> Int32Array:
        """No vertices: routes are not walked back."""
        return _NO_TAILS

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


class TorusTable(NamedTuple):
    """Dimension by dimension, each the shorter way round, for ``A`` dimensions."""

    rows: Int32Array
    """Each device's position along every dimension, then for every dimension its link
    in the positive and in the negative direction, -1 for none, shape ``(N, 3 A)``."""

    shape: IntArray
    """Devices along each dimension, shape ``(A,)``."""

    strides: IntArray
    """Difference of neighbours' numbers along each dimension, shape ``(A,)``."""

    wrap: IntArray
    """Whether a dimension's ends are joined, 1 or 0, shape ``(A,)``."""

    longest: int
    """Number of links of the longest route."""

    @property
    def numbers(self) -> list[int]:
        """Everything but the rows, in the order in which kernels read it."""
        axes = np.stack([self.shape, self.strides, self.wrap], axis=1)
        return [len(axes), *axes.ravel().tolist()]

    @property
    def tails(self) -> Int32Array:
        """No vertices: routes are not walked back."""
        return _NO_TAILS

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


class PathTable(NamedTuple):
    """Any fixed routes, one tree of them per source."""

    rows: Int32Array
    """Last link of the route from a device to a vertex, shape ``(N, V)``."""

    tails: Int32Array
    """Vertex where each link starts, shape ``(E,)``."""

    longest: int
    """Number of links of the longest route, or more."""

    @property
    def numbers(self) -> list[int]:
        """Nothing: the rows and the tails say it all."""
        return []

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


SingleTable = TreeTable | TorusTable | PathTable
"""A table of one network, not of copies that are joined."""

_KINDS = {TreeTable: 0, TorusTable: 1, PathTable: 2}
"""Kind of a table in the kernels, as of the families of rules."""


class JoinedTable(NamedTuple):
    """Copies of a network with a way out each, and a graph between the ways' ends."""

    rows: Int32Array
    """What the copy's own rule has of each of its devices, then the links of the
    device's way out, and those of its way in, shape ``(M, ..)``."""

    inner: SingleTable
    """Table of one copy by itself."""

    head: tuple[int, ...]
    """What `estimators.collectives.walks` reads first."""

    graph: IntArray
    """Links by where they end: first ones, numbers, starts, weights; then distances,
    and for each copy and part the vertex where Valiant's routes turn."""

    longest: int
    """Number of links of the longest route, or more."""

    @property
    def numbers(self) -> IntArray:
        """Everything but the rows, in the order in which kernels read it."""
        inner = self.inner.numbers
        head = [_KINDS[type(self.inner)], len(inner), *self.head, *inner]
        return np.concatenate([np.array(head, dtype=np.int64), self.graph])

    @property
    def tails(self) -> Int32Array:
        """Vertex where each link of one copy starts, if its routes are walked back."""
        return self.inner.tails

    @property
    def kept(self) -> BoolArray:
        """Links that are still there; empty where none was removed."""
        return _ALL


BuiltTable = SingleTable | JoinedTable
"""A table of a network of which no link has been removed."""


class DetourTable(NamedTuple):
    """The rule that a network was built with, of which links have been removed.

    Routes over removed links are others, which no table holds: `Network.routes` finds
    them, pair by pair.
    """

    built: BuiltTable
    """Table of the undisturbed network."""

    kept: BoolArray
    """Links that are still there, shape ``(E,)``."""

    @property
    def rows(self) -> Int32Array:
        """Rows of the undisturbed network."""
        return self.built.rows

    @property
    def numbers(self) -> list[int] | IntArray:
        """Numbers of the undisturbed network."""
        return self.built.numbers

    @property
    def tails(self) -> Int32Array:
        """Vertex where each link starts, if the undisturbed network's table has it."""
        return self.built.tails

    @property
    def longest(self) -> int:
        """Links of the longest route that avoids what was removed, or more."""
        return self.built.longest


_CHUNK = 2**22
"""States (source, vertex) that are searched together, to bound the memory."""


PairEnds = tuple[IntArray, IntArray]
"""Sources and targets of pairs, of one length."""


class PathTrees(NamedTuple):
    """Best routes from ``S`` vertices to each vertex, shape ``(S, V)``."""

    last_link: Int32Array
    """Last link of the route; -1 at the source itself and where there is none."""

    latency: FloatArray
    """Sum of the latencies along the route; infinite where there is none [s]."""

    bandwidth: FloatArray
    """Bandwidth of the route's narrowest link; infinite at the source, 0 where there is
    no route [byte/s]."""


def shortest_paths(
    links: Links,
    num_vertices: int,
    sources: IntArray,
    kept: BoolArray | None = None,
) -> PathTrees:
    """Find the best route from each of some vertices to each vertex.

    Best is the least number of hops, then the smallest sum of latencies, then the
    lowest index of the last link, over the links that are ``kept``: all of them if that
    is None. A breadth-first search of all sources at once, one layer of hops after the
    other; O(S E) work in O(h) array operations.
    """
    usable = np.arange(len(links)) if kept is None else np.flatnonzero(kept)
    order = usable[np.argsort(links.source[usable], kind="stable")]
    first = np.searchsorted(links.source[order], np.arange(num_vertices + 1))
    step = max(1, _CHUNK // num_vertices)
    chunks = [
        _search(sources[at : at + step], links, order, first)
        for at in range(0, len(sources), step)
    ]
    return PathTrees(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)))


def walk_back(
    last_link: Int32Array, rows: IntArray, ends: PairEnds, links: Links
) -> Routes:
    """Return routes from the trees that hold them, all walked back at once.

    Parameters
    ----------
    last_link
        `PathTrees.last_link`, shape ``(S, V)``.
    rows
        The row of each pair's source.
    ends
        Sources and targets of the pairs.
    links
        The links that the trees consist of.
    """
    sources, targets = ends
    hops = np.zeros(len(sources) + 1, dtype=np.int64)
    backwards: list[tuple[IntArray, IntArray]] = []
    walking = np.arange(len(sources))
    vertex = np.array(targets, dtype=np.int64)
    while (walking := walking[vertex[walking] != sources[walking]]).size:
        link = last_link[rows[walking], vertex[walking]].astype(np.int64)
        backwards.append((walking, link))
        hops[walking + 1] += 1
        vertex[walking] = links.source[link]
    indptr = np.cumsum(hops)
    route = np.empty(int(indptr[-1]), dtype=np.int64)
    for step, (pairs, link) in enumerate(backwards, start=1):
        route[indptr[pairs + 1] - step] = link
    return Routes(indptr=indptr, links=route)


def _search(
    sources: IntArray, links: Links, order: IntArray, first: IntArray
) -> PathTrees:
    num_vertices = first.shape[0] - 1
    num_states = sources.shape[0] * num_vertices
    last_link = np.full(num_states, len(links), dtype=np.int64)
    latency = np.full(num_states, np.inf)
    bandwidth = np.zeros(num_states)
    layer = np.arange(sources.shape[0]) * num_vertices + sources
    latency[layer], bandwidth[layer] = 0.0, np.inf
    while layer.size:
        vertex = layer % num_vertices
        degree = first[vertex + 1] - first[vertex]
        origin = np.repeat(layer, degree)
        nth = np.arange(origin.shape[0]) - np.repeat(np.cumsum(degree) - degree, degree)
        link = order[np.repeat(first[vertex], degree) + nth]
        state = origin - origin % num_vertices + links.target[link]
        new = np.isinf(latency[state])
        origin, link, state = origin[new], link[new], state[new]
        arrival = latency[origin] + links.latency[link]
        np.minimum.at(latency, state, arrival)
        best = arrival == latency[state]
        np.minimum.at(last_link, state[best], link[best])
        taken = best & (link == last_link[state])
        layer, chosen = state[taken], link[taken]
        parent = layer - layer % num_vertices + links.source[chosen]
        bandwidth[layer] = np.minimum(bandwidth[parent], links.bandwidth[chosen])
    last_link[last_link == len(links)] = -1
    shape = (-1, num_vertices)
    return PathTrees(
        last_link=last_link.reshape(shape).astype(np.int32),
        latency=latency.reshape(shape),
        bandwidth=bandwidth.reshape(shape),
    )


def max_flow(
    links: Links, num_vertices: int, sources: IntArray, targets: IntArray
) -> float:
    """Return the largest flow from one set of vertices to another [byte/s].

    References
    ----------
    .. [1] Dinic, "Algorithm for solution of a problem of maximum flow in networks
       with power estimation", Soviet Mathematics Doklady 1970.
    """
    graph = _ResidualGraph(links, num_vertices, sources, targets)
    total = 0.0
    while graph.find_layers():
        total += graph.block()
    return total


class _ResidualGraph:
    """Dinic's layered network, with one vertex before and one behind the sets."""

    def __init__(
        self, links: Links, num_vertices: int, sources: IntArray, targets: IntArray
    ) -> None:
        self.start, self.end = num_vertices, num_vertices + 1
        self.heads: list[int] = []
        self.capacity: list[float] = []
        self.edges: list[list[int]] = [[] for _ in range(num_vertices + 2)]
        self.layer: list[int] = []
        self.next_edge: list[int] = []
        ends = zip(links.source.tolist(), links.target.tolist(), strict=True)
        for (tail, head), room in zip(ends, links.bandwidth.tolist(), strict=True):
            self._add(tail, head, room)
        for vertex in sources.tolist():
            self._add(self.start, vertex, float("inf"))
        for vertex in targets.tolist():
            self._add(vertex, self.end, float("inf"))

    def _add(self, tail: int, head: int, capacity: float) -> None:
        for at, to, room in ((tail, head, capacity), (head, tail, 0.0)):
            self.edges[at].append(len(self.heads))
            self.heads.append(to)
            self.capacity.append(room)

    def find_layers(self) -> bool:
        """Measure distances from the start; return whether the end has one."""
        self.layer = [-1] * len(self.edges)
        self.layer[self.start] = 0
        queue = deque([self.start])
        while queue:
            vertex = queue.popleft()
            for edge in self.edges[vertex]:
                head = self.heads[edge]
                if self.capacity[edge] > 0 and self.layer[head] < 0:
                    self.layer[head] = self.layer[vertex] + 1
                    queue.append(head)
        self.next_edge = [0] * len(self.edges)
        return self.layer[self.end] >= 0

    def block(self) -> float:
        """Send along paths of rising layers until none is left; return the sum."""
        total, path = 0.0, list[int]()
        vertex = self.start
        while True:
            if vertex == self.end:
                room = min(self.capacity[edge] for edge in path)
                total += room
                vertex = self._send(path, room)
            elif (edge := self._open_edge(vertex)) is not None:
                path.append(edge)
                vertex = self.heads[edge]
            elif path:
                vertex = self.heads[path.pop() ^ 1]
                self.next_edge[vertex] += 1
            else:
                return total

    def _send(self, path: list[int], room: float) -> int:
        """Move ``room`` along the path, cut it at its first full edge, and go there."""
        for edge in path:
            self.capacity[edge] -= room
            self.capacity[edge ^ 1] += room
        full = next(i for i, edge in enumerate(path) if self.capacity[edge] <= 0)
        vertex = self.heads[path[full] ^ 1]
        del path[full:]
        return vertex

    def _open_edge(self, vertex: int) -> int | None:
        edges = self.edges[vertex]
        while self.next_edge[vertex] < len(edges):
            edge = edges[self.next_edge[vertex]]
            rises = self.layer[self.heads[edge]] == self.layer[vertex] + 1
            if rises and self.capacity[edge] > 0:
                return edge
            self.next_edge[vertex] += 1
        return None


def flow_of_halves(links: Links, num_vertices: int, num_devices: int) -> float:
    """Return the largest flow from the first half of the devices to the second."""
    devices, half = np.arange(num_devices), num_devices // 2
    if half == 0:
        return 0.0
    return max_flow(links, num_vertices, devices[:half], devices[half:])


_MOST_ENTRIES = 2**24
"""Entries of the trees of detours that are held at a time, to bound the memory."""


class PlainRouting(ABC):
    """What rules answer of which nothing is picked by a hash, and nothing was cut."""

    @property
    def built(self) -> Self:
        """The rule itself."""
        return self

    @abstractmethod
    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the route of each pair; empty where source equals target."""

    def rehashed_routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray
    ) -> Routes:
        """Return the routes as built: no hash picks any part of them."""
        del kept
        return self.routes(sources, targets)

    def cut_pairs(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return no pairs: none is cut."""
        del sources, targets
        return np.empty(0, dtype=np.int64)


class BuiltRouting(PlainRouting, Routing):
    """A rule by arithmetic, which stays as it is where links are slowed or removed."""

    num_devices: int
    num_vertices: int

    @property
    def kept(self) -> BoolArray:
        """Whether each link is still there: all are, shape ``(E,)``."""
        return np.ones(self.built_bandwidths().shape, dtype=np.bool_)

    @abstractmethod
    def levels_left(
        self, levels: tuple[Level, ...], links: Links, capacity: FloatArray
    ) -> tuple[Level, ...]:
        """Return levels with what is left of their bandwidths.

        ``capacity`` is that of each link, 0 where it was removed [byte/s].
        """

    @abstractmethod
    def table(self) -> BuiltTable:
        """Return the rule as plain arrays, for kernels."""

    def reroute(
        self, levels: tuple[Level, ...], links: Links, kept: BoolArray
    ) -> Rerouted:
        """Return this rule with detours, and what is left of the levels."""
        capacity = np.where(kept, links.bandwidth, 0.0)
        return Rerouted(
            routing=DegradedRouting(self, links, kept),
            links=links,
            levels=self.levels_left(levels, links, capacity),
        )


class DegradedRouting:
    """The rule that a network was built with, and detours where that is cut.

    Parameters
    ----------
    built
        The rule of the undisturbed network.
    links
        All links, removed ones included, with what bandwidth is left.
    kept
        Which of them are still there, shape ``(E,)``. Every device reaches every other
        over them.
    """

    def __init__(self, built: BuiltRouting, links: Links, kept: BoolArray) -> None:
        self.built = built
        self.family = built.family
        self.links = links
        self.kept = kept
        self.num_vertices = built.num_vertices
        self.num_devices = built.num_devices
        self._trees: dict[int, Int32Array] = {}

    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link as it was built [byte/s]."""
        return self.built.built_bandwidths()

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the level that each pair was built to have."""
        return self.built.levels(sources, targets)

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the routes: as built in O(links on them), and detours where cut.

        A detour costs a search from its source, O(E), unless it has been done before.
        """
        sources = np.asarray(sources, dtype=np.int64)
        targets = np.asarray(targets, dtype=np.int64)
        routes = self.built.routes(sources, targets)
        cut = self._cut(routes)
        if cut.size:
            hashed = self.built.rehashed_routes(sources[cut], targets[cut], self.kept)
            routes = _spliced(routes, cut, hashed)
            cut = cut[self._cut(hashed)]
        if cut.size:
            routes = _spliced(routes, cut, self._detours(sources[cut], targets[cut]))
        return routes

    def rehashed_routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray
    ) -> Routes:
        """Return the routes of the rule that was built, hashed among links kept."""
        return self.built.rehashed_routes(sources, targets, kept)

    def cut_pairs(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return which pairs, rising, do not have the routes that were built."""
        return self._cut(self.built.routes(sources, targets))

    def _cut(self, routes: Routes) -> IntArray:
        """Return the pairs whose routes use what was removed, rising."""
        gone = ~self.kept[routes.links]
        if not gone.any():
            return np.empty(0, dtype=np.int64)
        before = np.concatenate([[0], np.cumsum(gone)])[routes.indptr]
        return np.flatnonzero(np.diff(before))

    def _detours(self, sources: IntArray, targets: IntArray) -> Routes:
        origins, row = np.unique(sources, return_inverse=True)
        at_a_time = max(1, _MOST_ENTRIES // self.num_vertices)
        order = np.argsort(row, kind="stable")
        hops, links = [], []
        for first in range(0, len(origins), at_a_time):
            trees = self._trees_from(origins[first : first + at_a_time])
            inside = row[order] // at_a_time == first // at_a_time
            pairs = order[inside]
            routes = walk_back(
                trees, row[pairs] - first, (sources[pairs], targets[pairs]), self.links
            )
            hops.append(np.diff(routes.indptr))
            links.append(routes.links)
        indptr = np.concatenate([[0], np.cumsum(np.concatenate(hops))])
        return Routes(indptr, np.concatenate(links)).take(np.argsort(order))

    def _trees_from(self, origins: IntArray) -> Int32Array:
        """Return the last links of the shortest ways from devices, one row for each."""
        held = self._trees
        if (len(held) + len(origins)) * self.num_vertices > _MOST_ENTRIES:
            held = self._trees = {}
        new = np.array(
            [origin for origin in origins.tolist() if origin not in held], np.int64
        )
        if new.size:
            trees = shortest_paths(self.links, self.num_vertices, new, self.kept)
            held.update(zip(new.tolist(), trees.last_link, strict=True))
        return np.stack([held[origin] for origin in origins.tolist()])

    def bisection_bandwidth(self) -> float:
        """Return the largest flow from the first half of the numbers to the second."""
        present = self.links.only(self.kept)
        return flow_of_halves(present, self.num_vertices, self.num_devices)

    def tiers(self) -> tuple[Tier, ...]:
        """Return the tiers as they were built."""
        return self.built.tiers()

    def reroute(
        self, levels: tuple[Level, ...], links: Links, kept: BoolArray
    ) -> Rerouted:
        """Return the rule that was built, with detours round all that is gone."""
        return self.built.reroute(levels, links, kept)

    def table(self) -> BuiltTable | DetourTable:
        """Return the built rule's table, and which links are left if some are gone."""
        table = self.built.table()
        return table if self.kept.all() else DetourTable(table, self.kept)


def _spliced(routes: Routes, pairs: IntArray, others: Routes) -> Routes:
    """Return routes with those of some pairs, rising, replaced by others."""
    hops = np.diff(routes.indptr)
    stays = np.ones(len(hops), dtype=np.bool_)
    stays[pairs] = False
    new_hops = hops.copy()
    new_hops[pairs] = np.diff(others.indptr)
    indptr = np.concatenate([[0], np.cumsum(new_hops)])
    links = np.empty(int(indptr[-1]), dtype=np.int64)
    as_before = np.repeat(stays, new_hops)
    links[as_before] = routes.links[np.repeat(stays, hops)]
    links[~as_before] = others.links
    return Routes(indptr=indptr, links=links)
