"""A few points near the Pareto front of a stage's two times.

Of all strategies those are kept that are best for one of 30 weights of steady time
and delta: ``alpha / (1 - alpha) t + delta / G`` with ``alpha = j / 31`` (public
implementation of Mist).
"""

import numpy as np

from topologies.arrays import FloatArray, IntArray

NUM_SAMPLES = 30
"""Weights that are tried."""

_SHARES = np.arange(1, NUM_SAMPLES + 1) / (NUM_SAMPLES + 1)

WEIGHTS = _SHARES / (1.0 - _SHARES)
"""Weights of the steady time, rising."""


def pareto_samples(steady: FloatArray, delta: FloatArray) -> IntArray:
    """Return which points are best for a weight, each once, from small weights on.

    What is best for two weights is best for all between them: halves of the list of
    weights whose ends agree are not looked at. O(n) for each point that is found.

    Parameters
    ----------
    steady, delta
        The two times, shape ``(n,)``; ties go to the first point [s].
    """
    if not len(steady):
        return np.zeros(0, dtype=np.int64)
    best = {k: _best(steady, delta, k) for k in (0, NUM_SAMPLES - 1)}
    open_ends = [(0, NUM_SAMPLES - 1)]
    while open_ends:
        low, high = open_ends.pop()
        if best[low] == best[high] or high - low < 2:
            continue
        middle = (low + high) // 2
        best[middle] = _best(steady, delta, middle)
        open_ends += [(low, middle), (middle, high)]
    return np.array(list(dict.fromkeys(best[k] for k in sorted(best))), dtype=np.int64)


def _best(steady: FloatArray, delta: FloatArray, weight: int) -> int:
    return int(np.argmin(WEIGHTS[weight] * steady + delta))
