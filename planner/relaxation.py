"""Rates that no placement can beat: what admissible bounds are made of.

A tensor group stands on consecutive device numbers in every placement, so its best
rate is that of the best window of the cluster, alone. Everything else is bounded by
the fastest link and the smallest latency: a member of a ring sends over one port, and
every algorithm for an all-reduce over ``n`` members sends at least ``2 (n - 1) / n``
of the tensor through each of them.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import ALGORITHMS, RING_OPERATIONS, collective_rates
from planner.rates import PlacementRates
from topologies import Network

FloatArray = NDArray[np.float64]


def best_tensor_rates(network: Network, tp: int) -> Mapping[str, FloatArray]:
    """Return per operation the least latency and inverse bandwidth, shape ``(1, 2)``.

    Over all windows of ``tp`` consecutive devices and all algorithms, each alone.
    """
    if tp == 1:
        return dict.fromkeys(RING_OPERATIONS, np.zeros((1, 2)))
    starts = np.arange(network.num_devices - tp + 1)
    windows = (starts[:, None] + np.arange(tp))[:, None, :]
    return {
        operation: np.concatenate(
            [
                np.array(
                    collective_rates(
                        network, operation, windows, algorithm, together=False
                    )
                )
                for algorithm in ALGORITHMS
            ]
        ).min(axis=0, keepdims=True)
        for operation in RING_OPERATIONS
    }


def fastest_hop(network: Network) -> FloatArray:
    """Return the least latency [s] and inverse bandwidth [s/byte] of any one link.

    A transfer between two devices crosses at least one link.
    """
    links = network.links
    if len(links) == 0:
        return np.zeros(2)
    return np.array([links.latency.min(), 1.0 / links.bandwidth.max()])


def relaxed_rates(
    network: Network, tensor: Mapping[str, FloatArray], *, dp: int, pp: int
) -> PlacementRates:
    """Return rates elementwise at most those of any placement of these sizes."""
    hop = fastest_hop(network)
    # Latency 0: a hierarchical collective has fewer rounds than one ring.
    data = {
        operation: np.tile((0.0, turn(dp).fraction * hop[1]), (pp, 1))
        for operation, turn in RING_OPERATIONS.items()
    }
    return PlacementRates(
        tensor={name: np.repeat(rate, pp, axis=0) for name, rate in tensor.items()},
        data=data,
        activation=np.tile(hop, (pp - 1, 1)),
        gradient=np.tile(hop, (pp - 1, 1)),
        tied=hop * (2.0, 1.0) if pp > 1 else np.zeros(2),
        tensor_algorithm="",
        gradient_algorithm="",
    )
