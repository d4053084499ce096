"""What Mist's formulas read, from this project's cost model and network.

Layers are those of the layer tables: the blocks' mean, what is before them, and what is
after them. Where Mist measures the links of each shape of group, the table is made of
two bandwidths: that inside a node, and what a node's devices send out of it together.
"""

import numpy as np

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerTable
from planner.rivals.mist.interference import NVLINK_FACTORS, PCIE_FACTORS
from planner.rivals.mist.layers import LayerProfile, ModelProfile
from planner.rivals.mist.links import (
    GATHER,
    NO_HOST,
    REDUCE,
    SCATTER,
    DeviceRates,
    HostTransfers,
    LinkTable,
    Mesh,
)
from planner.step.execution import Workload
from planner.step.virtual import block_span
from topologies import Network
from topologies.arrays import FloatArray

PCIE_BANDWIDTH = 64e9
"""Bandwidth of PCIe 5.0 with 16 lanes in one direction (PCI-SIG: 32 GT/s a lane):
devices of a node that reach more of each other have links of their own [byte/s]."""

FACTORS = {"all_gather": GATHER, "reduce_scatter": SCATTER, "all_reduce": REDUCE}
"""Operation of tensor parallelism -> factor of the link table."""

ENTRIES = (1, 2, 4, 8)
"""Nodes and devices of a node that a link table has entries for."""


def cluster_mesh(network: Network) -> Mesh:
    """Return the cluster as nodes of devices."""
    rules = network.rules
    size = network.block_sizes[0] if rules is None else rules.node_size
    if network.num_devices % size:
        size = 1
    return Mesh(network.num_devices // size, size)


def device_rates(network: Network) -> DeviceRates:
    """Return what Mist sees of a network: two bandwidths, and the host's."""
    inside = _levels(network)[0]
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
    near, far = _levels(network)
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


def _levels(network: Network) -> tuple[int, int]:
    """Return the outermost level inside a node, and the next one if there is one."""
    rules = network.rules
    inside = 0 if rules is None else rules.node_levels - 1
    return inside, min(inside + 1, len(network.levels) - 1)


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
