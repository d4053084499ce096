"""The two binary trees of an all-reduce, as NCCL builds them.

Letters: ``n`` members at places ``0 .. n - 1``.

References
----------
.. [1] P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth
   broadcast, reduction and scan", Parallel Computing 35, 2009.
.. [2] NCCL, ``src/graph/trees.cc``: ``ncclGetBtree`` and ``ncclGetDtree``.
"""

import numpy as np

from topologies.arrays import IntArray


def parents_of_both(size: int) -> tuple[IntArray, IntArray]:
    """Return each place's parent in either tree, -1 for the root [2]_.

    The second tree is the first one seen from the other end if ``n`` is even, and
    shifted by one place if it is odd, so that no place has children in both [1]_ but
    one where ``n`` is odd.
    """
    first = _parents(size)
    places = np.arange(size)
    image = size - 1 - places if size % 2 == 0 else (places + 1) % size
    second = np.full(size, -1, dtype=np.int64)
    inner = first >= 0
    second[image[inner]] = image[first[inner]]
    return first, second


def _parents(size: int) -> IntArray:
    """Return the tree whose root is place 0 and whose odd places are leaves [2]_.

    The parent of a place clears its lowest set bit and sets the next one, or only
    clears it where there is no such place.
    """
    places = np.arange(size, dtype=np.int64)
    bit = places & -places
    parents = (places ^ bit) | (bit << 1)
    outside = parents >= size
    parents[outside] = (places ^ bit)[outside]
    parents[0] = -1
    return parents


def depth(parents: IntArray) -> int:
    """Return the most edges from a place to the root."""
    levels = 0
    above = parents
    while (above >= 0).any():
        levels += 1
        above = np.where(above >= 0, parents[above], -1)
    return levels
