"""Phaze's dynamic program over suffixes of a chain, on a network of one bandwidth.

Letters: ``L`` layers, ``K`` interval classes, ``s`` stages counted from the *end*,
``i`` the first layer of a suffix, ``c`` the time of a boundary in one direction. With
``fw`` and ``bw`` the passes of the interval ``i .. j - 1`` and ``again`` its repeated
forward pass, which hides the gradient that comes in::

    load(i, j, s) = [i > 0] c + fw + bw + max(again, [j < L] c)
    g[s, i] = min over j > i of max( load(i, j, s), g[s - 1, j] ),   g[0, L] = 0

over the intervals that memory allows at ``s``. Every stage has the same devices, so
that devices need no index of their own. Ties go to the earliest cut.

References
----------
.. [1] Wang et al., "Phaze", ICML 2024: the dynamic program; Tarnawski et al., "Piper",
   NeurIPS 2021, which it follows.
"""

import numpy as np

from topologies.arrays import FloatArray, FloatMatrix, IntArray, IntMatrix
from topologies.compiling import kernel


@kernel
def phaze_tables(
    class_of: IntMatrix,
    passes: FloatMatrix,
    again: FloatMatrix,
    most: IntMatrix,
    transfer: float,
    max_stages: int,
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return the bottleneck and the cut of every suffix, and loads of first stages.

    Shapes: ``class_of (L + 1, L + 1)``; row 0 for the last stage and row 1 for the
    others: ``passes`` and ``again (2, K)`` [s], ``most (2, K)`` the largest ``s`` that
    memory allows. All results ``(max_stages + 1, L + 1)``: bottlenecks, infinite where
    nothing fits; first layers of the following stage; loads of ``0 .. j - 1`` at ``s``.
    O(L^2 max_stages).
    """
    num_layers = class_of.shape[0] - 1
    shape = (max_stages + 1, num_layers + 1)
    bottleneck = np.full(shape, np.inf)
    following = np.zeros(shape, dtype=np.int64)
    leading = np.full(shape, np.inf)
    bottleneck[0, num_layers] = 0.0
    for s in range(1, max_stages + 1):
        row = 0 if s == 1 else 1
        for i in range(num_layers - s + 1):
            entering = transfer if i > 0 else 0.0
            first = i + 1 if s > 1 else num_layers
            for j in range(first, num_layers - s + 2):
                k = class_of[i, j]
                if s > most[row, k]:
                    continue
                leaving = transfer if j < num_layers else 0.0
                load = entering + passes[row, k] + max(again[row, k], leaving)
                if i == 0:
                    leading[s, j] = load
                value = max(load, bottleneck[s - 1, j])
                if value < bottleneck[s, i]:
                    bottleneck[s, i] = value
                    following[s, i] = j
    return bottleneck, following, leading
