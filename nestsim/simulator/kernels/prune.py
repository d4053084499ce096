"""Which links can never limit a flow."""

import numpy as np

from topologies.arrays import BoolArray, BoolMatrix, FloatVector, IntVector
from topologies.compiling import kernel


@kernel
def binding_links(
    order: IntVector,
    capacity: FloatVector,
    inner: BoolMatrix,
    before_indptr: IntVector,
    before: IntVector,
    after_indptr: IntVector,
    after: IntVector,
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
    before_indptr, before, after_indptr, after
        Compressed rows: links directly before and after each link, each once.

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
            indptr = before_indptr if side == 0 else after_indptr
            neighbours = before if side == 0 else after
            total = 0.0
            for e in range(indptr[link], indptr[link + 1]):
                total += capacity[neighbours[e]]
            if total > capacity[link] or indptr[link] == indptr[link + 1]:
                continue
            kept[link] = False
            for e in range(indptr[link], indptr[link + 1]):
                if kept[neighbours[e]]:
                    locked[neighbours[e]] = True
    return kept
