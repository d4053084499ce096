"""Rates that no placement can beat: what admissible bounds are made of.

A tensor group stands on consecutive device numbers in every placement, so its best
rate is that of the best window of the cluster, alone. Everything else is bounded by
the fastest link and the smallest latency: a member of a ring sends over one port, and
every algorithm for an all-reduce over ``n`` members sends at least ``2 (n - 1) / n``
of the tensor through each of them. Replicas that do not fit into one block of a tree
must send every gradient of their stage out of each block that they touch.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import RING_OPERATIONS, rates_by_algorithm
from planner.rates import PlacementRates, Sharding, free_rates
from topologies import Network

FloatArray = NDArray[np.float64]

TREES = ("fat-tree", "spine-leaf", "rail")
"""Kinds of networks whose level 0 is blocks of consecutive devices with one way out."""


class Relaxation(NamedTuple):
    """What bounds need to know of a network."""

    hop: FloatArray
    """Least latency [s] and inverse bandwidth [s/byte] of any one link: a transfer
    between two devices crosses at least one."""
    block_size: int
    """Devices of a node of a tree; all of them elsewhere."""
    exit_inverse: float
    """Seconds for a byte to leave a node, all its ways out together [s/byte]."""

    @classmethod
    def of(cls, network: Network) -> "Relaxation":
        """Read the bounds off a network."""
        links = network.links
        hop = np.zeros(2)
        if len(links):
            hop = np.array([links.latency.min(), 1.0 / links.bandwidth.max()])
        node = network.levels[0]
        if network.kind not in TREES or node.num_blocks == 1:
            return cls(hop, network.num_devices, 0.0)
        return cls(hop, node.block_size, 1.0 / node.uplink_bandwidth)

    def gradient_inverse(self, tp: int, num_replicas: FloatArray) -> FloatArray:
        """Return seconds per byte of a device's gradients that an all-reduce takes.

        At least; halves of it bound a reduce-scatter and an all-gather. ``n`` replicas
        of ``tp`` lanes that span several nodes send ``tp`` gradients out of each.
        """
        n = np.asarray(num_replicas, dtype=np.float64)
        port = 2.0 * (n - 1.0) / n * self.hop[1]
        spans = n * tp > self.block_size
        return np.asarray(
            np.where(spans, np.maximum(port, tp * self.exit_inverse), port)
        )


def best_group_rates(network: Network, size: int) -> Mapping[str, FloatArray]:
    """Return per operation the least latency and inverse bandwidth, shape ``(1, 2)``.

    Over all windows of consecutive devices and all algorithms, each alone.
    """
    if size == 1:
        return free_rates(1)
    starts = np.arange(network.num_devices - size + 1)
    windows = (starts[:, None] + np.arange(size))[:, None, :]
    priced = rates_by_algorithm(network, windows, together=False)
    return {
        operation: np.concatenate([rates[operation] for rates in priced.values()]).min(
            axis=0, keepdims=True
        )
        for operation in RING_OPERATIONS
    }


class GroupSizes(NamedTuple):
    """Sizes of the groups of a configuration."""

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int


def relaxed_rates(
    relaxation: Relaxation, tensor: Mapping[str, FloatArray], sizes: GroupSizes
) -> PlacementRates:
    """Return rates elementwise at most those of any placement of these sizes.

    The second sharding option stands for all hybrid ones: its shards are as small as
    those of the whole group, its collectives as cheap as those of two ranks.
    """
    tp, cp, ep, dp, pp = sizes
    hop, n = relaxation.hop, dp * cp
    whole = float(relaxation.gradient_inverse(tp, np.array(n)))
    shardings = [Sharding(n, _halves(pp, whole), free_rates(pp))]
    if ep == 1 and n > 2:
        spans = n * tp > relaxation.block_size
        # At least two groups share the replicas, so a node's ranks hold at least this
        # much of what crosses between the groups.
        leaving = min(n * tp, 2 * relaxation.block_size) * relaxation.exit_inverse
        across = leaving if spans else 0.0
        inside = _halves(pp, hop[1])
        shardings.append(Sharding(n, inside, _halves(pp, across)))
    members = n // ep
    experts = _halves(pp, 2.0 * (members - 1) / members * hop[1])
    return PlacementRates(
        tensor={name: np.repeat(rate, pp, axis=0) for name, rate in tensor.items()},
        context=np.tile(hop * (cp > 1), (pp, 1)),
        expert=np.tile(hop * ((ep > 1), (ep - 1) / ep), (pp, 1)),
        data=_halves(pp, whole),
        expert_data=experts,
        shardings=tuple(shardings),
        activation=np.tile(hop * (pp > 1), (pp, 1, 1)),
        gradient=np.tile(hop * (pp > 1), (pp, 1, 1)),
        tied=hop * (2.0, 1.0) if pp > 1 else np.zeros(2),
        tensor_algorithm="",
        gradient_algorithm="",
    )


def _halves(num_stages: int, inverse: float) -> dict[str, FloatArray]:
    """Return rates without latency: an all-reduce, and its two halves."""
    half = np.tile((0.0, 0.5 * inverse), (num_stages, 1))
    return {"all_reduce": 2.0 * half, "all_gather": half, "reduce_scatter": half}
