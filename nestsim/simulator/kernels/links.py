"""The links that flows cross, from their routes, and those that can limit them."""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    BoolArray,
    BoolMatrix,
    FloatArray,
    FloatVector,
    IntArray,
    IntVector,
)
from topologies.compiling import kernel


class Neighbours(NamedTuple):
    """Links next to each link on routes, each once, in compressed rows."""

    indptr: IntVector
    """Where the neighbours of each link begin, shape ``(E + 1,)``."""

    links: IntVector
    """The neighbours of all links."""


@kernel
def add_lanes(
    counts: IntVector,
    weights: FloatVector,
    indptr: IntVector,
    links: IntVector,
    num_links: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Add up the lanes of each flow on each link.

    O(hops of all lanes + k log k for each flow on k links).

    Parameters
    ----------
    counts
        Lanes of each flow, flow by flow, shape ``(F,)``.
    weights
        Of each lane, positive, shape ``(N,)``; all 1 if there are none.
    indptr, links
        Compressed rows: the route of each lane.
    num_links
        Of the network.

    Returns
    -------
    tuple[IntArray, IntArray, FloatArray]
        Compressed rows by flow: links, rising, and their total weights.
    """
    num_flows = counts.shape[0]
    rows = np.zeros(num_flows + 1, np.int64)
    found = np.empty(links.shape[0], np.int64)
    totals = np.empty(links.shape[0])
    total = np.zeros(num_links)
    lane, end = 0, 0
    for f in range(num_flows):
        begin = end
        for n in range(lane, lane + counts[f]):
            weight = weights[n] if weights.shape[0] > 0 else 1.0
            for e in range(indptr[n], indptr[n + 1]):
                if total[links[e]] == 0.0:
                    found[end] = links[e]
                    end += 1
                total[links[e]] += weight
        lane += counts[f]
        found[begin:end].sort()
        for e in range(begin, end):
            totals[e] = total[found[e]]
            total[found[e]] = 0.0
        rows[f + 1] = end
    return rows, found[:end].copy(), totals[:end].copy()


@kernel
def binding_links(
    order: IntVector,
    capacity: FloatVector,
    inner: BoolMatrix,
    before: Neighbours,
    after: Neighbours,
) -> BoolArray:
    """Return for each link whether it can limit a flow that the others do not.

    Let ``H`` be the links that come directly before link ``l`` on the routes through
    it. If no route starts with ``l``, the weight of any flow on ``l`` is at most the
    sum of its weights on ``H``; so if the capacities of ``H`` add up to at most that
    of ``l``, the constraint of ``l`` follows from those of ``H`` and never changes the
    max-min fair rates. The same holds for the links directly after ``l`` if no route
    ends with it. A constraint is dropped only if it follows from links that were
    dropped earlier or that are kept for good (``locked``), so no two links can be
    dropped on account of each other. O(links + pairs of consecutive links).

    Parameters
    ----------
    order
        Links in the order in which they are tried: by rising capacity, so that a
        tree is pruned from the inside out; it decides ties.
    capacity
        Shape ``(E,)`` [byte/s].
    inner
        Shape ``(2, E)``: whether no route starts, and whether none ends, with a link.
    before, after
        Links directly before and after each link.

    Returns
    -------
    BoolArray
        Shape ``(E,)``.
    """
    num_links = capacity.shape[0]
    kept = np.ones(num_links, dtype=np.bool_)
    locked = np.zeros(num_links, dtype=np.bool_)
    for link in order:
        for side in range(2):
            if locked[link] or not kept[link] or not inner[side, link]:
                continue
            near = before if side == 0 else after
            first, end = near.indptr[link], near.indptr[link + 1]
            total = 0.0
            for e in range(first, end):
                total += capacity[near.links[e]]
            if total > capacity[link] or first == end:
                continue
            kept[link] = False
            for e in range(first, end):
                if kept[near.links[e]]:
                    locked[near.links[e]] = True
    return kept
