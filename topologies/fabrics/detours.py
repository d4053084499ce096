"""Routes in a network of which links have been removed.

A route that avoids what was removed stays as it was built. Where a hash picks one of
several parallel links (`topologies.fabrics.tree_routing`) and that one is gone, the
pair is hashed again among those that are left. Every other pair takes the shortest way
through what is left: the least hops, then the least latency, then the lowest number of
the last link; devices pass on what is not for them.

Letters: ``N`` devices, ``V`` vertices, ``E`` links.
"""

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import BoolArray, IntArray
from topologies.fabrics.shortest_paths import max_flow, shortest_paths, walk_back
from topologies.fabrics.tree_routing import TreeRouting
from topologies.network import Links, Routes, Routing, Tier

_MOST_ENTRIES = 2**24
"""Entries of the trees of detours that are held at a time, to bound the memory."""


class DegradedRouting:
    """The rule that a network was built with, and detours where that is cut.

    Parameters
    ----------
    built
        The rule of the undisturbed network.
    links
        All links, removed ones included, with what bandwidth is left.
    kept
        Which of them are still there, shape ``(E,)``.
    num_vertices, num_devices
        Of the network. Every device reaches every other over the links that are kept.
    """

    def __init__(
        self,
        built: Routing,
        links: Links,
        kept: BoolArray,
        num_vertices: int,
        num_devices: int,
    ) -> None:
        self.built = built
        self.links = links
        self.kept = kept
        self.num_vertices = num_vertices
        self.num_devices = num_devices
        self._trees: dict[int, NDArray[np.int32]] = {}

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
        if cut.size and isinstance(self.built, TreeRouting):
            hashed = self.built.routes(sources[cut], targets[cut], self.kept)
            routes = _spliced(routes, cut, hashed)
            cut = cut[self._cut(hashed)]
        if cut.size:
            routes = _spliced(routes, cut, self._detours(sources[cut], targets[cut]))
        return routes

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
            found = walk_back(
                trees, row[pairs] - first, (sources[pairs], targets[pairs]), self.links
            )
            hops.append(np.diff(found.indptr))
            links.append(found.links)
        indptr = np.concatenate([[0], np.cumsum(np.concatenate(hops))])
        return Routes(indptr, np.concatenate(links)).take(np.argsort(order))

    def _trees_from(self, origins: IntArray) -> NDArray[np.int32]:
        """Return the last links of the shortest ways from devices, one row for each."""
        held = self._trees
        if (len(held) + len(origins)) * self.num_vertices > _MOST_ENTRIES:
            held = self._trees = {}
        new = np.array([one for one in origins.tolist() if one not in held], np.int64)
        if new.size:
            found = shortest_paths(self.links, self.num_vertices, new, self.kept)
            held.update(zip(new.tolist(), found.last_link, strict=True))
        return np.stack([held[one] for one in origins.tolist()])

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
