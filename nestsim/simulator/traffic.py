"""What every link carried, and when."""

import numpy as np

from nestsim.simulator.flows import Flows
from nestsim.simulator.folding import Classes, fold_links
from nestsim.simulator.kernels.fluid import spread
from nestsim.simulator.outcome import LinkUse
from nestsim.simulator.system import Run
from topologies.arrays import FloatArray
from topologies.network import Links


class Traffic:
    """Links in use, those with the same load at all times together.

    Links that were left out of the rates carry traffic as well: every link of every
    flow's route is counted.

    Parameters
    ----------
    links
        Of the network.
    flows
        All flows and their links.
    channels
        Classes of the flows: members move the same bytes at the same times.
    """

    def __init__(self, links: Links, flows: Flows, channels: Classes) -> None:
        incidence = flows.incidence
        sends = np.repeat(flows.num_bytes > 0, np.diff(incidence.indptr))
        self._num_links = len(links)
        self._used = np.flatnonzero(
            np.bincount(incidence.links[sends], minlength=len(links))
        )
        self._channels = channels
        self._num_bytes = flows.num_bytes
        self._incidence = incidence.restricted(self._used, len(links))
        level, bandwidth = links.level[self._used], links.bandwidth[self._used]
        self._alike, self._of_classes = fold_links(
            self._incidence, channels, level, bandwidth
        )

    @property
    def num_rows(self) -> int:
        """Classes of links."""
        return self._alike.first.size

    def record(self, run: Run) -> LinkUse:
        """Return the traffic of a finished run of one channel of each class."""
        counts = np.array([arrivals.size for arrivals in run.arrivals], np.int64)
        incidence = self._incidence
        carried = self._num_bytes * counts[self._channels.of]
        num_bytes: FloatArray = np.zeros(self._num_links)
        num_bytes[self._used] = np.bincount(
            incidence.links,
            incidence.weights * np.repeat(carried, np.diff(incidence.indptr)),
            minlength=self._used.size,
        )
        row = np.full(self._num_links, -1)
        row[self._used] = self._alike.of
        edges, bins = _bins(run)
        rates = np.zeros((self.num_rows, edges.size - 1))
        spread(*self._of_classes, bins, rates)
        rates /= np.diff(edges)
        link_ids = self._used[self._alike.first]
        for values in (num_bytes, edges, rates, link_ids, row):
            values.flags.writeable = False
        return LinkUse(
            num_bytes=num_bytes,
            bin_edges=edges,
            rates=rates,
            link_ids=link_ids,
            row=row,
        )


def _bins(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return the edges of the time bins, and what each channel moved in each."""
    end, width = run.end, run.bin_width
    num_bins = min(max(1, int(np.ceil(end / width))), run.bins.shape[1])
    bins = run.bins[:, :num_bins].copy()
    # What ended at the very end, on the edge of a bin, belongs before it.
    bins[:, -1] += run.bins[:, num_bins:].sum(axis=1)
    edges: FloatArray = np.arange(num_bins + 1, dtype=np.float64) * width
    if end > 0:
        edges[-1] = end
    return edges, bins
