"""What Mist knows of links: a bandwidth for nodes by devices, and those of hosts.

A collective of ``n = inter x intra`` devices of ``V`` bytes takes::

    (V / k[inter, intra] (n - 1) / n + bias[inter, intra]) f

with ``f`` 1 for all-gather, 1.1 for reduce-scatter and 2.1 for all-reduce. Groups of
more than 8 take the entry of 8 (public implementation of Mist). Nothing else of the
network is seen: no hierarchy above the node, no oversubscription, no placement.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.rivals.mist.interference import Interference
from topologies.arrays import FloatArray

GATHER, SCATTER, REDUCE = 1.0, 1.1, 2.1
"""Factors of all-gather, reduce-scatter and all-reduce."""

GIGABYTE = 2.0**30
"""What Mist's constants call a gigabyte [byte]."""

NEGLIGIBLE = 1e-5 * GIGABYTE
"""Bytes below which a transfer takes no time [byte]."""

LARGEST_ENTRY = 8
"""Largest number of nodes, and of devices of a node, that a table has an entry for."""


class Mesh(NamedTuple):
    """Devices of one stage."""

    nodes: int
    """Number of nodes."""
    devices: int
    """Number of devices of each node."""

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices


@dataclass(frozen=True, slots=True, eq=False)
class LinkTable:
    """Bandwidth and bias of collectives by the shape of their group."""

    bandwidths: FloatArray
    """Bandwidth of groups over 1, 2, 4 and 8 nodes (rows) with 1, 2, 4 and 8 devices in
    each, shape ``(4, 4)`` [byte/s]."""

    biases: FloatArray
    """Time that a collective of such a group takes beside its bytes, shape ``(4, 4)``
    [s]."""

    @classmethod
    def of_pairs(cls, pairs: FloatArray) -> "LinkTable":
        """Read Mist's list of 16 pairs of gigabytes a second and seconds.

        Parameters
        ----------
        pairs
            Shape ``(32,)``, as ``gpu_gpu_comm_params`` of Mist's files.
        """
        values = np.asarray(pairs, dtype=np.float64).reshape(4, 4, 2)
        return cls(values[..., 0] * GIGABYTE, values[..., 1].copy())

    def collective_time(self, num_bytes: float, group: Mesh, factor: float) -> float:
        """Return the time of a collective [s].

        Parameters
        ----------
        num_bytes
            Size of the full tensor [byte].
        group
            How many nodes it spans, and how many devices of each.
        factor
            `GATHER`, `SCATTER` or `REDUCE`.
        """
        n = group.size
        if n == 1 or num_bytes < NEGLIGIBLE:
            return 0.0
        entry = tuple((min(count, LARGEST_ENTRY) - 1).bit_length() for count in group)
        sent = num_bytes / float(self.bandwidths[entry]) * (n - 1) / n
        return (sent + float(self.biases[entry])) * factor


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTransfers:
    """Transfers between one device and its host."""

    to_device: float
    """Bandwidth from the host to the device [byte/s]."""

    to_host: float
    """Bandwidth from the device to the host [byte/s]."""

    to_device_bias: float
    """Time of a transfer to the device beside its bytes [s]."""

    to_host_bias: float
    """Time of a transfer to the host beside its bytes [s]."""

    def fetch_time(self, num_bytes: FloatArray) -> FloatArray:
        """Return the time of transfers to the device, alone [s]."""
        return _host_time(num_bytes, self.to_device, self.to_device_bias)

    def store_time(self, num_bytes: FloatArray) -> FloatArray:
        """Return the time of transfers to the host, alone [s]."""
        return _host_time(num_bytes, self.to_host, self.to_host_bias)


NO_HOST = HostTransfers(
    to_device=1.0, to_host=1.0, to_device_bias=0.0, to_host_bias=0.0
)
"""Stands where nothing is offloaded: no transfer ever asks for its rates."""


def _host_time(num_bytes: FloatArray, bandwidth: float, bias: float) -> FloatArray:
    times = num_bytes / bandwidth + bias
    return np.where(num_bytes < NEGLIGIBLE, 0.0, times)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceRates:
    """Everything that stage times read of the machines."""

    links: LinkTable
    """Collectives between devices."""

    interference: Interference
    """How channels of a device slow each other down."""

    host: HostTransfers = NO_HOST
    """Transfers with the host."""
