"""Rates that no placement can beat: what admissible bounds are made of.

A tensor group stands on consecutive device numbers in every placement, so its best
rate is that of the best window of the cluster, alone. Everything else is bounded by
the fastest link and the smallest latency: a member of a ring sends over one port, and
an all-reduce over ``n`` members sends at least ``2 (n - 1) / n`` of the tensor through
each of them. Replicas that do not fit into a node of a tree must send gradients out of
each node that they touch: how much depends on how many of them a node can hold.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import RING_OPERATIONS, rates_by_algorithm
from estimators.parallelism import Sizes
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
    exit_link_inverse: float
    """The same over the fastest single link out of a node [s/byte]."""
    has_racks: bool
    """Whether there are blocks larger than a node and smaller than the cluster."""

    @classmethod
    def of(cls, network: Network) -> "Relaxation":
        """Read the bounds off a network."""
        links = network.links
        hop = np.zeros(2)
        if len(links):
            hop = np.array([links.latency.min(), 1.0 / links.bandwidth.max()])
        node = network.levels[0]
        has_racks = len(network.block_sizes) > 2
        if network.kind not in TREES or node.num_blocks == 1:
            return cls(hop, network.num_devices, 0.0, 0.0, has_racks)
        outside = links.bandwidth[links.level == 1]
        return cls(
            hop,
            node.block_size,
            1.0 / node.uplink_bandwidth,
            1.0 / float(outside.max()),
            has_racks,
        )

    def pass_inverse(
        self, tp: int, num_replicas: FloatArray, groups: int = 1
    ) -> FloatArray:
        """Return seconds per byte that a reduce-scatter or all-gather takes, at least.

        Over ``n`` replicas of ``tp`` lanes of which a node holds at most ``k``; twice
        this for an all-reduce. A member sends ``(n - 1) / n`` of the tensor through
        its port. If the replicas span nodes, a flat ring sends that much over a link
        out of each node, and the ring of every lane shares the node's ways out; a
        hierarchical algorithm with ``j <= k`` members in a node sends ``(j - 1) / j``
        inside first, then each node's lanes ``1 - j / n`` outside, which is least for
        ``j = 1`` or ``j = k``. Where ``groups`` groups have members in a node, they
        share its places and its ways out. Tensor groups that straddle nodes get the
        port's bound.
        """
        n = np.asarray(num_replicas, dtype=np.float64)
        port = (n - 1.0) / n * self.hop[1]
        if self.block_size % tp and tp % self.block_size:
            return np.asarray(port)
        lanes = min(tp, self.block_size)
        room = max(self.block_size // tp, 1)
        k = max(room // groups, 1)
        out = lanes * groups * self.exit_inverse
        alone = max(out, self.exit_link_inverse)
        inside = (1.0 - 1.0 / k) * self.hop[1]
        levels = inside + (1.0 - room / (groups * n)) * out
        spanning = np.maximum(port, np.minimum((n - 1.0) / n * alone, levels))
        return np.asarray(np.where(n * tp > self.block_size, spanning, port))

    def exchange_inverse(self, tp: int, ep: int, together: int) -> float:
        """Return seconds per byte held that an all-to-all over ``ep`` ranks takes.

        At least, if ``together`` of them stand in one node of a tree: each sends the
        share of the others out of it.
        """
        inside = (ep - 1) / ep * float(self.hop[1])
        lanes = min(tp, self.block_size)
        leaving = max(together * lanes * self.exit_inverse, self.exit_link_inverse)
        return max(inside, (ep - together) / ep * leaving)


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


def expert_spreads(relaxation: Relaxation, sizes: Sizes) -> tuple[int, ...]:
    """Return how many expert-parallel ranks a node may hold: the cases to bound.

    Few make the all-to-all leave the node, many leave little room for replicas of the
    same expert, whose gradients then leave it.
    """
    room = max(relaxation.block_size // sizes.tp, 1)
    if sizes.ep == 1 or relaxation.exit_inverse == 0.0:
        return (1,)
    return tuple(range(1, min(sizes.ep, room) + 1))


def relaxed_rates(
    relaxation: Relaxation,
    tensor: Mapping[str, FloatArray],
    sizes: Sizes,
    together: int = 1,
) -> PlacementRates:
    """Return rates elementwise at most those of any placement of these sizes.

    ``together`` is one of `expert_spreads`: the least over all of them bounds every
    placement.
    """
    tp, cp, ep, dp, pp = sizes
    hop, n = relaxation.hop, dp * cp
    whole = float(relaxation.pass_inverse(tp, np.array(n)))
    shardings = [Sharding(n, _passes(pp, whole), free_rates(pp))]
    if ep == 1 and n > 2:
        shardings += _hybrid_shardings(relaxation, sizes)
    members = n // ep
    exchange = relaxation.exchange_inverse(tp, ep, together)
    expert = (hop[0] * (ep > 1), exchange * (ep > 1))
    boundary = np.broadcast_to(hop * (pp > 1), (pp, 1, 2))
    return PlacementRates(
        tensor={name: np.repeat(rate, pp, axis=0) for name, rate in tensor.items()},
        context=np.broadcast_to(hop * (cp > 1), (pp, 2)),
        expert=np.broadcast_to(expert, (pp, 2)),
        data=_passes(pp, whole),
        expert_data=_passes(
            pp, float(relaxation.pass_inverse(tp, np.array(members), together))
        ),
        shardings=tuple(shardings),
        activation=boundary,
        gradient=boundary,
        tied=hop * (2.0, 1.0) if pp > 1 else np.zeros(2),
        tensor_algorithm="",
        gradient_algorithm="",
    )


def _hybrid_shardings(relaxation: Relaxation, sizes: Sizes) -> list[Sharding]:
    """Return bounds of sharding inside a node, and inside larger blocks.

    Shards are as small as those of the whole group, and what is shared is as cheap as
    between two ranks. The all-reduce across groups of ``g`` out of ``n`` replicas takes
    twice ``k / g (1 - g / n)`` of the gradients out of each node, of ``k`` replicas:
    all of it where groups stay inside nodes (``g <= k``), at least ``2 k / n`` where
    they do not (``g <= n / 2``); then sharing takes half of the tensor out, too.
    """
    tp, cp, _, dp, pp = sizes
    n, port = dp * cp, relaxation.hop[1]
    aligned = relaxation.block_size % tp == 0 or tp % relaxation.block_size == 0
    if n * tp <= relaxation.block_size or not aligned:
        return [Sharding(n, _passes(pp, 0.5 * port), free_rates(pp))]
    lanes = min(tp, relaxation.block_size)
    k = max(relaxation.block_size // tp, 1)
    out = lanes * relaxation.exit_inverse
    # Rates are per byte of a shard, 1 / n of the gradients.
    across = n * max(1.0 - k / n, 0.0) * out
    options = [Sharding(n, _passes(pp, 0.5 * port), _passes(pp, across))]
    if relaxation.has_racks:
        inside = max(0.5 * port, 0.5 * out)
        options.append(Sharding(n, _passes(pp, inside), _passes(pp, k * out)))
    return options


def _passes(num_stages: int, inverse: float) -> dict[str, FloatArray]:
    """Return rates without latency; an all-reduce is two passes."""
    one = np.broadcast_to((0.0, inverse), (num_stages, 2))
    return {"all_reduce": 2.0 * one, "all_gather": one, "reduce_scatter": one}
