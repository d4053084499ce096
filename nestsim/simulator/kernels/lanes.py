"""The links that flows cross, from the routes of their lanes."""

import numpy as np

from topologies.arrays import FloatArray, FloatVector, IntArray, IntVector
from topologies.compiling import kernel


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
