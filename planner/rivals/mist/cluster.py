"""What Mist sees of machines and models.

Interference is how much work, transfers between devices and with the host slow each
other down.

Four channels of one device: compute ``C``, collectives ``G``, transfers from the host
``c2g`` and to the host ``g2c``. While a set of them is busy, each is slowed by a factor
of that set and channel; the set lasts until its first channel is done. Sets are gone
through from the largest to the smallest, and what is left of one channel takes its own
time (Mist, section 4.3: the interference model; its order of sets is that of the public
implementation).

What Mist knows of links: a bandwidth for nodes by devices, and those of hosts.

A collective of ``n = inter x intra`` devices of ``V`` bytes takes::

    (V / k[inter, intra] (n - 1) / n + bias[inter, intra]) f

with ``f`` 1 for all-gather, 1.1 for reduce-scatter and 2.1 for all-reduce. Groups of
more than 8 take the entry of 8 (public implementation of Mist). Nothing else of the
network is seen: no hierarchy above the node, no oversubscription, no placement.

Layers are those of the layer tables: the blocks' mean, what is before them, and what is
after them. Where Mist measures the links of each shape of group, the table is made of
two bandwidths: that inside a node, and what a node's devices send out of it together.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerTable
from planner.rivals.protocol import node_levels
from planner.step.execution import Workload
from planner.step.virtual import block_span
from topologies import Network
from topologies.arrays import FloatArray

CHANNEL_SETS = (
    (0, 1, 2, 3),
    (0, 1, 2),
    (0, 1, 3),
    (0, 2, 3),
    (1, 2, 3),
    (0, 1),
    (0, 2),
    (0, 3),
    (1, 2),
    (1, 3),
    (2, 3),
)
"""Channels of each set in the order in which sets are gone through: 0 compute, 1
collectives, 2 from the host, 3 to the host."""

DONE = 1e-12
"""Time below which nothing is left of a channel [s]."""


@dataclass(frozen=True, slots=True)
class Interference:
    """Slowdown of each channel in each set of busy channels."""

    factors: tuple[float, ...]
    """28 factors, those of a set's channels after each other, sets in the order of
    `CHANNEL_SETS`; at least 1."""

    def __post_init__(self) -> None:
        assert len(self.factors) == sum(map(len, CHANNEL_SETS))

    def time(
        self,
        compute: FloatArray | float,
        collectives: FloatArray | float,
        from_host: FloatArray | float,
        to_host: FloatArray | float,
    ) -> FloatArray:
        """Return how long the four take together [s].

        Parameters
        ----------
        compute, collectives, from_host, to_host
            Time of each alone; numbers or arrays that broadcast to one vector [s].
        """
        parts = np.broadcast_arrays(compute, collectives, from_host, to_host)
        left = np.array(parts, dtype=np.float64).reshape(4, -1)
        total = np.zeros(left.shape[1])
        start = 0
        busy = (left > 0.0).T @ (1 << np.arange(4))
        for channels in CHANNEL_SETS:
            factors = np.array(self.factors[start : start + len(channels)])[:, None]
            start += len(channels)
            (where,) = np.nonzero(busy == sum(1 << channel for channel in channels))
            if not where.size:
                continue
            place = np.array(channels)[:, None], where
            slowed = left[place] * factors
            together = slowed.min(axis=0)
            total[where] += together
            rest = left[place] - together / factors
            rest[rest < DONE] = 0.0
            left[place] = rest
            busy[where] = (left[:, where] > 0.0).T @ (1 << np.arange(4))
        return np.asarray(total + left.sum(axis=0))


PCIE_FACTORS = Interference(
    (
        *(18.9356, 1.2639, 50.0, 1.6046),
        *(2.0865, 1.0009, 2.393),
        *(2.4146, 1.0869, 2.6637),
        *(1.9381, 3.2653, 1.0),
        *(1.234, 50.0, 1.6883),
        *(1.1676, 1.0),
        *(1.0152, 1.0005),
        *(1.0179, 1.0022),
        *(1.0, 2.1383),
        *(1.078, 2.438),
        *(2.4327, 1.0974),
    )
)
"""Factors measured on L4 cards, whose collectives go over PCIe: Mist's public
configurations ``tuned_configs/l4-24gb``, ``interference_model_params``."""

NVLINK_FACTORS = Interference(
    (
        *(1.307, 2.6325, 2.4097, 2.5898),
        *(1.2264, 2.8078, 1.466),
        *(1.3202, 2.2295, 1.932),
        *(1.0309, 1.9929, 1.0438),
        *(5.4986, 1.2915, 1.7303),
        *(1.2856, 1.0393),
        *(1.0081, 1.0099),
        *(1.0125, 1.0251),
        *(1.5508, 1.0972),
        *(1.1336, 1.2723),
        *(1.5186, 1.2665),
    )
)
"""Factors measured on A100 cards with NVLink: Mist's public configurations
``tuned_configs/a100-40gb``, ``interference_model_params``."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer type on one device: the embedding, a block, or the head."""

    forward_time: float
    """Compute of a forward pass [s]."""

    backward_time: float
    """Compute of a backward pass without recompute [s]."""

    accumulation_time: float = 0.0
    """Time to add a microbatch's gradients to those before it [s]."""

    tensor_forward_time: float = 0.0
    """Tensor-parallel collectives of a forward pass, which nothing hides [s]."""

    tensor_backward_time: float = 0.0
    """Tensor-parallel collectives of a backward pass, which nothing hides [s]."""

    weights: float
    """Weights [byte]."""

    gradients: float
    """Gradients [byte]."""

    optimizer: float
    """Optimizer states [byte]."""

    saved: float
    """Activations kept for the backward pass [byte]."""

    saved_recomputed: float
    """Activations kept where the layer is recomputed: its input [byte]."""

    forward_peak: float
    """Most that a forward pass holds at once [byte]."""

    backward_peak: float
    """Most that a backward pass holds at once [byte]."""

    output: float
    """Activation that goes on to the next layer [byte]."""

    def backward(self, num_steps: int) -> float:
        """Return the backward compute of ``G`` steps' mean, accumulation included [s].

        The first microbatch has nothing to be added to.
        """
        return self.backward_time + self.accumulation_time * (
            (num_steps - 1) / num_steps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """A chain of equal blocks between an embedding and a head."""

    embedding: LayerProfile
    """What comes before the blocks."""

    block: LayerProfile
    """One block."""

    head: LayerProfile
    """What comes after the blocks."""

    num_layers: int
    """Number of blocks."""

    hidden_size: int
    """Hidden size of the model."""

    seq_length: int
    """Tokens of a sequence."""

    micro_batch_size: int
    """Sequences of a microbatch."""

    tensor_size: int
    """Tensor-parallel size."""

    attention_maps: float
    """What attention scores take beside everything else; 0 with flash attention
    [byte]."""


PCIE_BANDWIDTH = 64e9
"""Bandwidth of PCIe 5.0 with 16 lanes in one direction (PCI-SIG: 32 GT/s a lane):
devices of a node that reach more of each other have links of their own [byte/s]."""

FACTORS = {"all_gather": GATHER, "reduce_scatter": SCATTER, "all_reduce": REDUCE}
"""Operation of tensor parallelism -> factor of the link table."""

ENTRIES = (1, 2, 4, 8)
"""Nodes and devices of a node that a link table has entries for."""


def cluster_mesh(network: Network) -> Mesh:
    """Return the cluster as nodes of devices."""
    size, *_ = node_levels(network)
    if network.num_devices % size:
        size = 1
    return Mesh(network.num_devices // size, size)


def device_rates(network: Network) -> DeviceRates:
    """Return what Mist sees of a network: two bandwidths, and the host's."""
    _, inside, _ = node_levels(network)
    has_ports = network.levels[inside].bandwidth > PCIE_BANDWIDTH
    host = host_transfers(network)
    return DeviceRates(
        links=link_table(network),
        interference=NVLINK_FACTORS if has_ports else PCIE_FACTORS,
        host=NO_HOST if host is None else host,
    )


def link_table(network: Network) -> LinkTable:
    """Return bandwidths by nodes and devices of a node.

    Devices of a node send out together, up to what leaves the node, and no faster than
    they pass on to each other.
    """
    _, near, far = node_levels(network)
    inside, outside = network.levels[near], network.levels[far]
    bandwidths, biases = np.ones((4, 4)), np.zeros((4, 4))
    for row, nodes in enumerate(ENTRIES):
        for column, devices in enumerate(ENTRIES):
            reached = inside.bandwidth
            if nodes > 1:
                sent = min(devices * outside.bandwidth, inside.uplink_bandwidth)
                reached = min(sent, reached) if devices > 1 else outside.bandwidth
            latency = outside.latency if nodes > 1 else inside.latency
            bandwidths[row, column] = reached
            biases[row, column] = (nodes * devices - 1) * latency
    return LinkTable(bandwidths, biases)


def host_transfers(network: Network) -> HostTransfers | None:
    """Return the links between devices and hosts, None where there are none.

    Devices that share a link use it at once.
    """
    host = network.host
    if host is None:
        return None
    return HostTransfers(
        to_device=host.to_device / host.devices_per_link,
        to_host=host.to_host / host.devices_per_link,
        to_device_bias=host.latency,
        to_host_bias=host.latency,
    )


def model_profile(
    workload: Workload, links: LinkTable, degrees: Degrees
) -> ModelProfile | None:
    """Return the model at a micro-batch and tensor-parallel size.

    None where the model does not split by it. Embedding and head are split by tensor
    parallelism as the blocks are.
    """
    model, tensor_size = workload.graph.spec, degrees.tp
    micro_batch_size = degrees.micro_batch_size
    if divisibility_problem(model, degrees) is not None:
        return None
    table = workload.table(degrees)
    first, last = block_span(table.is_block)
    reader = _Reader(workload, table, links, tensor_size)
    maps = 2.0 * micro_batch_size * model.num_attention_heads / tensor_size
    maps *= float(model.sequence_length) ** 2
    return ModelProfile(
        embedding=reader.layer(slice(0, first)),
        block=reader.layer(slice(first, last), last - first),
        head=reader.layer(slice(last, table.num_layers)),
        num_layers=last - first,
        hidden_size=model.hidden_size,
        seq_length=model.sequence_length,
        micro_batch_size=micro_batch_size,
        tensor_size=tensor_size,
        attention_maps=0.0 if model.attention_implementation == "flash" else maps,
    )


class _Reader:
    """Reads layer types from a layer table."""

    def __init__(
        self,
        workload: Workload,
        table: LayerTable,
        links: LinkTable,
        tensor_size: int,
    ) -> None:
        self._sizes = workload.parameter_bytes
        self._table, self._links = table, links
        self._group = Mesh(1, tensor_size)

    def layer(self, span: slice, count: int = 1) -> LayerProfile:
        """Return layers taken together, or the mean of ``count`` layers."""
        table, sizes = self._table, self._sizes
        parameters = float(table.parameters[span].sum()) / count

        def total(values: FloatArray) -> float:
            return float(values[span].sum()) / count

        saved, again = (total(table.saved_bytes[mode]) for mode in ("none", "full"))
        working = float(table.working_bytes["none"][span].max(initial=0.0))
        redone = float(table.working_bytes["full"][span].max(initial=0.0))
        peak = max(saved + working, again + redone)
        forward, backward = self._collectives(span)
        return LayerProfile(
            forward_time=total(table.forward_time),
            backward_time=total(table.backward_time),
            tensor_forward_time=forward / count,
            tensor_backward_time=backward / count,
            weights=parameters * sizes.weights,
            gradients=parameters * sizes.gradients,
            optimizer=parameters * sizes.optimizer,
            saved=saved,
            saved_recomputed=again,
            forward_peak=peak,
            backward_peak=peak,
            output=float(table.boundary_bytes[span].max(initial=0.0)),
        )

    def _collectives(self, span: slice) -> tuple[float, float]:
        """Return what tensor parallelism takes in both passes of some layers [s]."""
        times = np.zeros(2)
        for item in self._table.traffic:
            if item.group != "tensor" or item.operation not in FACTORS:
                continue
            counts = item.forward_count, item.backward_count
            sizes = item.forward_bytes, item.backward_bytes
            for way, (count, size) in enumerate(zip(counts, sizes, strict=True)):
                times[way] += sum(
                    number * self._time(num_bytes / number, item.operation)
                    for number, num_bytes in zip(count[span], size[span], strict=True)
                    if number
                )
        return float(times[0]), float(times[1])

    def _time(self, num_bytes: float, operation: str) -> float:
        return self._links.collective_time(num_bytes, self._group, FACTORS[operation])
