"""Rules by arithmetic, and what becomes of them where links have been removed.

A route that avoids what was removed stays as it was built. Where a hash picks one of
several parallel links (`topologies.fabrics.tree_routing`) and that one is gone, the
pair is hashed again among those that are left. Every other pair takes the shortest way
through what is left: the least hops, then the least latency, then the lowest number of
the last link; devices pass on what is not for them.

Letters: ``N`` devices, ``V`` vertices, ``E`` links.
"""

from abc import ABC, abstractmethod

import numpy as np

from topologies.arrays import BoolArray, FloatArray, Int32Array, IntArray
from topologies.fabrics.route_tables import BuiltTable, DetourTable
from topologies.fabrics.shortest_paths import max_flow, shortest_paths, walk_back
from topologies.network import Family, Level, Links, Rerouted, Routes, Tier

_MOST_ENTRIES = 2**24
"""Entries of the trees of detours that are held at a time, to bound the memory."""


class BuiltRouting(ABC):
    """A rule by arithmetic, which stays as it is where links are slowed or removed."""

    family: Family
    num_devices: int
    num_vertices: int

    @abstractmethod
    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the route of each pair; empty where source equals target."""

    @abstractmethod
    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the level of each pair; 0 where source equals target."""

    @abstractmethod
    def bisection_bandwidth(self) -> float:
        """Return the capacity between two halves of the devices [byte/s]."""

    @abstractmethod
    def tiers(self) -> tuple[Tier, ...]:
        """Return the physical tiers, from the inside out."""

    @abstractmethod
    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link before any was slowed [byte/s]."""

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

    @property
    def built(self) -> "BuiltRouting":
        """The rule itself."""
        return self

    @property
    def kept(self) -> BoolArray:
        """Whether each link is still there: all are, shape ``(E,)``."""
        return np.ones(self.built_bandwidths().shape, dtype=np.bool_)

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
        devices = np.arange(self.num_devices)
        half = self.num_devices // 2
        if half == 0:
            return 0.0
        present = self.links.only(self.kept)
        return max_flow(present, self.num_vertices, devices[:half], devices[half:])

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
