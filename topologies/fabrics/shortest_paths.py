"""Shortest routes and largest flows on small directed graphs, deterministic.

Letters: ``S`` sources, ``V`` vertices, ``E`` links, ``h`` hops.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, FloatArray, Int32Array, IntArray
from topologies.network import Links, Routes

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
