"""Lanes of flows: their routes, and the links that the flows then cross.

A lane is one sender and one receiver. The lanes of a flow run at one rate; its weight
on a link is the number of lanes there, or the sum of their weights.

Letters: ``F`` flows, ``N`` lanes, ``E`` links.
"""

from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import numbered
from nestsim.simulator.kernels.lanes import add_lanes
from nestsim.simulator.kernels.prune import binding_links
from nestsim.simulator.kernels.refine import first_members
from nestsim.simulator.system import Incidence
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.network import Links, Network, Routes


class Lanes(NamedTuple):
    """The lanes of several flows, flow by flow."""

    counts: IntArray
    """Lanes of each flow, shape ``(F,)``."""

    sources: IntArray
    """Device that sends, shape ``(N,)``."""

    targets: IntArray
    """Device that receives, shape ``(N,)``."""

    weights: FloatArray | None = None
    """Multiples of 2**-20, shape ``(N,)``; all 1 if None."""

    def routes(self, network: Network) -> Routes:
        """Return the route of every lane; there may be none."""
        if not self.sources.size:
            return Routes(np.zeros(1, np.int64), np.zeros(0, np.int64))
        return network.routes(self.sources, self.targets)

    def latencies(self, network: Network, routes: Routes) -> FloatArray:
        """Return the largest route latency among each flow's lanes [s].

        Each route is summed on its own, so that equal routes have bitwise equal
        latencies.
        """
        latency = np.zeros(routes.indptr.size - 1)
        filled = np.diff(routes.indptr) > 0
        if filled.any():
            values = network.links.latency[routes.links]
            latency[filled] = np.add.reduceat(values, routes.indptr[:-1][filled])
        return largest(np.concatenate(([0], np.cumsum(self.counts))), latency)

    def incidence(self, routes: Routes, num_links: int) -> Incidence:
        """Add up the lanes of each flow on each link."""
        # Sums of multiples of 2**-20 are exact, in any order.
        weights = np.zeros(0) if self.weights is None else self.weights
        rows = np.array(routes.indptr), np.array(routes.links)
        return Incidence(*add_lanes(self.counts, weights, *rows, num_links))


def joined(parts: list[Lanes]) -> Lanes:
    """Return the lanes of several lists of flows, one after another."""
    weights = None
    if any(part.weights is not None for part in parts):
        weights = np.concatenate(
            [
                np.ones(part.sources.size) if part.weights is None else part.weights
                for part in parts
            ]
        )
    nothing = np.zeros(0, dtype=np.int64)
    return Lanes(
        np.concatenate([nothing, *(part.counts for part in parts)]),
        np.concatenate([nothing, *(part.sources for part in parts)]),
        np.concatenate([nothing, *(part.targets for part in parts)]),
        weights,
    )


def largest(indptr: IntArray, values: FloatArray) -> FloatArray:
    """Return the largest value of each compressed row, 0 for an empty one."""
    found = np.zeros(indptr.size - 1)
    filled = np.diff(indptr) > 0
    if filled.any():
        found[filled] = np.maximum.reduceat(values, indptr[:-1][filled])
    return found


def binding(routes: Routes, links: Links) -> BoolArray:
    """Find the links whose limits do not follow from their neighbours' on routes."""
    num_links = len(links)
    filled = np.diff(routes.indptr) > 0
    inner = np.ones((2, num_links), dtype=np.bool_)
    inner[0, routes.links[routes.indptr[:-1][filled]]] = False
    inner[1, routes.links[routes.indptr[1:][filled] - 1]] = False
    size = routes.links.size
    consecutive = np.ones(max(0, size - 1), dtype=np.bool_)
    seams = routes.indptr[(routes.indptr > 0) & (routes.indptr < size)]
    consecutive[seams - 1] = False
    # Each pair of consecutive links once: flows share most of them.
    pairs = routes.links[:-1][consecutive] * num_links + routes.links[1:][consecutive]
    pairs = pairs[first_members(numbered(pairs))]
    first, second = np.divmod(pairs, max(1, num_links))
    # A link without neighbours stays.
    joined_links = np.zeros(num_links, dtype=np.bool_)
    joined_links[first] = joined_links[second] = True
    order = np.flatnonzero(joined_links)
    order = order[np.argsort(links.bandwidth[order], kind="stable")]
    kept: BoolArray = binding_links(
        order,
        np.array(links.bandwidth),
        inner,
        *_rows(second, first, num_links),
        *_rows(first, second, num_links),
    )
    return kept


def _rows(
    rows: IntArray, values: IntArray, num_links: int
) -> tuple[IntArray, IntArray]:
    """Return distinct pairs as the rising values of each row, in compressed rows."""
    keys = np.sort(rows * num_links + values)
    indptr = np.searchsorted(keys, np.arange(num_links + 1) * num_links)
    return indptr.astype(np.int64), (keys % max(1, num_links)).astype(np.int64)
