"""From devices to rates: what collectives and transfers cost at each stage.

All groups of one kind, of all stages and replicas, are priced as communicating at the
same time, so that groups that share links share them in the price. Where replicas
differ, the slowest counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import (
    ALGORITHMS,
    RING_OPERATIONS,
    collective_rates,
    edge_costs,
)
from topologies import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementRates:
    """Latency [s] and inverse bandwidth [s/byte] of a placement, by stage."""

    tensor: Mapping[str, FloatArray]
    """Operation -> shape ``(p, 2)``: tensor-parallel collectives; the inverse
    bandwidth is per byte of the full tensor."""

    data: Mapping[str, FloatArray]
    """Operation -> shape ``(p, 2)``: data-parallel collectives."""

    activation: FloatArray
    """Forward over the boundary after each stage, per byte and lane, ``(p - 1, 2)``."""

    gradient: FloatArray
    """Backward over the boundary after each stage, likewise."""

    tied: FloatArray
    """All-reduce between the first and the last stage, shape ``(2,)``."""

    tensor_algorithm: str
    """The cheaper of `ALGORITHMS` for the tensor-parallel collectives."""

    gradient_algorithm: str
    """The cheaper of `ALGORITHMS` for the data-parallel collectives."""

    @property
    def boundary(self) -> FloatArray:
        """One way over each boundary, mean of both directions, shape ``(p - 1, 2)``."""
        return 0.5 * (self.activation + self.gradient)


class AlgorithmChoice(NamedTuple):
    """A collective algorithm, or what it is chosen by."""

    name: str
    """A key of `ALGORITHMS`, or ``"auto"``: the cheapest, as NCCL chooses by size."""
    num_bytes: float
    """Typical size of the full tensor that ``"auto"`` goes by [byte]."""


def placement_rates(
    network: Network,
    devices: IntArray,
    *,
    tensor: AlgorithmChoice,
    gradient: AlgorithmChoice,
) -> PlacementRates:
    """Price a placement.

    Parameters
    ----------
    network
        The cluster.
    devices
        Device numbers, shape ``(p, d, t)``.
    tensor, gradient
        How the tensor-parallel and the data-parallel collectives are done.
    """
    tensor_algorithm, tensor_rates = _chosen(network, devices, tensor)
    gradient_algorithm, data_rates = _chosen(
        network, np.swapaxes(devices, 1, 2), gradient
    )
    return PlacementRates(
        tensor=tensor_rates,
        data=data_rates,
        activation=_boundary_rates(network, devices[:-1], devices[1:]),
        gradient=_boundary_rates(network, devices[1:], devices[:-1]),
        tied=_tied_rate(network, devices),
        tensor_algorithm=tensor_algorithm,
        gradient_algorithm=gradient_algorithm,
    )


def group_rates(
    network: Network, groups: IntArray, algorithm: str
) -> dict[str, FloatArray]:
    """Return ``(stages, 2)`` rates of each operation for groups of given shape.

    ``groups`` has shape ``(stages, groups, n)``. An all-reduce is a reduce-scatter
    and an all-gather over the same links, and those two cost the same.
    """
    rates = np.array(collective_rates(network, "all_gather", groups, algorithm))
    both = np.array(collective_rates(network, "all_reduce", groups, algorithm))
    assert set(RING_OPERATIONS) == {"all_reduce", "all_gather", "reduce_scatter"}
    return {"all_gather": rates, "reduce_scatter": rates, "all_reduce": both}


def _chosen(
    network: Network, groups: IntArray, choice: AlgorithmChoice
) -> tuple[str, dict[str, FloatArray]]:
    names = list(ALGORITHMS) if choice.name == "auto" else [choice.name]
    if groups.shape[2] == 1:
        free = np.zeros((groups.shape[0], 2))
        return names[0], dict.fromkeys(RING_OPERATIONS, free)
    priced = {name: group_rates(network, groups, name) for name in names}

    def slowest(name: str) -> float:
        rates = priced[name]["all_reduce"]
        return float((rates[:, 0] + rates[:, 1] * choice.num_bytes).max())

    best = min(names, key=slowest)
    return best, priced[best]


def _boundary_rates(
    network: Network, senders: IntArray, receivers: IntArray
) -> FloatArray:
    """Price the transfers of each boundary, all replicas and lanes at the same time.

    Different boundaries are priced apart: the schedule staggers them.
    """
    num_boundaries = len(senders)
    if num_boundaries == 0:
        return np.zeros((0, 2))
    boundary = np.repeat(np.arange(num_boundaries), senders[0].size)
    costs = edge_costs(network, senders.ravel(), receivers.ravel(), boundary)
    return np.stack(
        [values.reshape(num_boundaries, -1).max(axis=1) for values in costs], axis=1
    )


def _tied_rate(network: Network, devices: IntArray) -> FloatArray:
    if devices.shape[0] == 1:
        return np.zeros(2)
    pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
    return np.array(collective_rates(network, "all_reduce", pairs[None], "ring")[0])
