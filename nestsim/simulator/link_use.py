"""What a run sends over each link of the network, and when.

Letters: ``E`` links, ``F`` flows, ``R`` rows of flows between the same devices.
"""

from typing import NamedTuple

import numpy as np

from nestsim.simulator.folding import Classes, fold_links
from nestsim.simulator.kernels.fluid import spread
from nestsim.simulator.system import Incidence, LinkUse, Run
from topologies.arrays import FloatArray, IntArray
from topologies.network import Links


class CrossedLinks(NamedTuple):
    """Which links flows cross; those between the same devices are known once."""

    incidence: Incidence
    """Links of the network that the flows of each row cross, in ``R`` rows."""

    row: IntArray
    """Row of each flow, shape ``(F,)``."""

    classes: Classes
    """Classes of rows: flows of alike rows are alike, but for those of other families
    of flows."""


class Traffic:
    """Links in use, those with the same load at all times together.

    Links that were left out of the rates carry traffic as well: every link of every
    flow's route is counted.

    Parameters
    ----------
    links
        Of the network.
    num_bytes
        Bytes between each pair of devices in a transfer of each flow, ``(F,)`` [byte].
    channels
        Classes of the flows: members move the same bytes at the same times.
    crossings
        The links of the flows.
    """

    def __init__(
        self,
        links: Links,
        num_bytes: FloatArray,
        channels: Classes,
        crossings: CrossedLinks,
    ) -> None:
        incidence, self._row, rows = crossings
        sent = np.bincount(self._row, num_bytes, incidence.indptr.size - 1)
        sends = np.repeat(sent > 0, np.diff(incidence.indptr))
        self._num_links = len(links)
        self._used = np.flatnonzero(
            np.bincount(incidence.links[sends], minlength=len(links))
        )
        self._channels = channels
        self._num_bytes = num_bytes
        self._incidence = incidence.restricted(self._used, len(links))
        level, bandwidth = links.level[self._used], links.bandwidth[self._used]
        self._alike, of_rows = fold_links(self._incidence, rows, level, bandwidth)
        self._of_classes = of_rows.taken(rows.of[self._row[channels.first]])

    @property
    def num_rows(self) -> int:
        """Classes of links."""
        return self._alike.first.size

    def record(self, run: Run) -> LinkUse:
        """Return the traffic of a finished run of one channel of each class."""
        counts = np.array([arrivals.size for arrivals in run.arrivals], np.int64)
        incidence = self._incidence
        carried = np.bincount(
            self._row,
            self._num_bytes * counts[self._channels.of],
            incidence.indptr.size - 1,
        )
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
