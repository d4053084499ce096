"""Which of many points nobody would leave out: none is both cheaper and better."""

import numpy as np

from topologies.arrays import BoolArray, FloatArray


def pareto_front(costs: FloatArray, gains: FloatArray) -> BoolArray:
    """Tell which points no other dominates.

    A point dominates another that costs no less and gains no more, unless both are
    equal. By sorting: O(n log n).

    Parameters
    ----------
    costs, gains
        Of each point, shape ``(n,)``; NaN for a point that is none.

    Returns
    -------
    BoolArray
        Shape ``(n,)``; points that are equal are on the front together.
    """
    front = np.zeros(len(costs), dtype=np.bool_)
    known = np.flatnonzero(~(np.isnan(costs) | np.isnan(gains)))
    order = known[np.lexsort((-gains[known], costs[known]))]
    best = last_cost = -np.inf
    for point in order.tolist():
        # Of one cost the first gains most; only its equals come with it.
        if gains[point] > best or (gains[point] == best and costs[point] == last_cost):
            front[point] = True
            best, last_cost = gains[point], costs[point]
    return front
