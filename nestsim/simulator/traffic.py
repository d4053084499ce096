"""What every link carried, and when."""

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.flows import Flows
from nestsim.simulator.kernels.fluid import spread
from nestsim.simulator.outcome import LinkUse
from nestsim.simulator.system import Run

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def link_use(flows: Flows, run: Run, counts: IntArray, num_links: int) -> LinkUse:
    """Return the traffic of a finished run.

    Links that were left out of the rates carry traffic as well: every link of every
    flow's route is counted.

    Parameters
    ----------
    flows
        The flows and their links.
    run
        What happened.
    counts
        Transfers of each flow.
    num_links
        Links of the network.
    """
    incidence = flows.incidence
    carried = np.repeat(flows.num_bytes * counts, np.diff(incidence.indptr))
    num_bytes: FloatArray = np.zeros(num_links)
    num_bytes += np.bincount(
        incidence.links, incidence.weights * carried, minlength=num_links
    )
    used = np.flatnonzero(num_bytes)
    end, width = run.end, run.bin_width
    num_bins = min(max(1, int(np.ceil(end / width))), run.bins.shape[1])
    bins = run.bins[:, :num_bins].copy()
    # What ended at the very end, on the edge of a bin, belongs before it.
    bins[:, -1] += run.bins[:, num_bins:].sum(axis=1)
    edges: FloatArray = np.arange(num_bins + 1, dtype=np.float64) * width
    if end > 0:
        edges[-1] = end
    rates = np.zeros((used.size, num_bins))
    spread(*incidence.restricted(used, num_links), bins, rates)
    rates /= np.diff(edges)
    for values in (num_bytes, edges, rates, used):
        values.flags.writeable = False
    return LinkUse(num_bytes=num_bytes, bin_edges=edges, rates=rates, link_ids=used)
