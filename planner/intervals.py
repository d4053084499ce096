"""Intervals of the layer chain, grouped by what they contain.

A chain of ``L`` layers has ``L (L + 1) / 2`` intervals, but every cost of a stage
except its boundaries depends only on how many layers of each kind it holds. A model
with a hundred equal blocks has a few hundred such classes, so tables are kept per
class.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalClasses:
    """The classes of all intervals of one chain."""

    class_of: IntArray
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``; -1 if empty."""

    counts: IntArray
    """Layers of each kind in an interval of the class, shape ``(K, kinds)``."""

    whole: int
    """Class of the whole chain."""

    first_of_kind: IntArray
    """A layer of each kind, shape ``(kinds,)``."""

    def sums(self, values: FloatArray) -> FloatArray:
        """Add up a per-kind quantity over the interval, shape ``(K,)``."""
        return np.asarray(self.counts @ values, dtype=np.float64)

    def maxima(self, values: FloatArray) -> FloatArray:
        """Return the largest per-kind quantity in the interval, shape ``(K,)``."""
        present = np.where(self.counts > 0, values, -np.inf)
        return np.asarray(present.max(axis=1), dtype=np.float64)


def interval_classes(kinds: IntArray) -> IntervalClasses:
    """Group the intervals of a chain whose layer ``l`` is of kind ``kinds[l]``.

    Cost O(L^2) in numpy, once for chains of the same kinds.
    """
    return _interval_classes(tuple(kinds.tolist()))


@lru_cache(maxsize=256)
def _interval_classes(chain: tuple[int, ...]) -> IntervalClasses:
    kinds = np.array(chain, dtype=np.int64)
    num_layers = len(kinds)
    one_hot = np.eye(int(kinds.max()) + 1, dtype=np.int64)[kinds]
    prefix = np.vstack([np.zeros_like(one_hot[:1]), np.cumsum(one_hot, axis=0)])
    first, last = np.triu_indices(num_layers + 1, k=1)
    counts, class_ids = np.unique(
        prefix[last] - prefix[first], axis=0, return_inverse=True
    )
    class_of = np.full((num_layers + 1, num_layers + 1), -1, dtype=np.int64)
    class_of[first, last] = class_ids.ravel()
    return IntervalClasses(
        class_of=class_of,
        counts=counts,
        whole=int(class_of[0, num_layers]),
        first_of_kind=np.unique(kinds, return_index=True)[1],
    )
