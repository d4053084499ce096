"""What a placement's collectives and transfers cost with the links to themselves.

The planner prices all groups of a kind as communicating at the same time. In a replay
stages reduce their gradients one after another, and transfers of different replicas
meet or do not: a bound must take each with nothing else under way. The groups of one
stage move in lock-step there, and so do the lanes of a replica: those are priced
together.
"""

from dataclasses import dataclass

import numpy as np

from estimators.collectives.cost import rates_by_algorithm
from estimators.collectives.messages import slowest_edges
from planner.kernels import tables as columns
from planner.rates import dense_groups, expert_data_groups
from planner.stage_rates import PlacementRates
from topologies import Network
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AloneRates:
    """Latency [s] and inverse bandwidth [s/byte] of what a stage sends alone."""

    ends: FloatArray
    """Of the step's end, columns as in `planner.kernels.tables`, ``(p, rates)``."""

    boundary: FloatArray
    """Over the boundary after each stage: distinct replicas, stages, activation or
    gradient, latency or inverse bandwidth, shape ``(R, p, 2, 2)``."""


def alone_rates(network: Network, grid: IntArray, placed: PlacementRates) -> AloneRates:
    """Price a placement under the algorithms, and for the shardings, of its prices.

    Parameters
    ----------
    network
        The cluster.
    grid
        Device numbers, shape ``(pp, dp, ep, cp, tp)``.
    placed
        The prices of all groups at the same time.
    """
    return AloneRates(
        ends=_ends(network, grid, placed), boundary=_boundaries(network, grid)
    )


def _ends(network: Network, grid: IntArray, placed: PlacementRates) -> FloatArray:
    """Price the collectives of the step's end."""
    pp, _, ep, _, _ = grid.shape
    options = len(placed.shardings)
    found = np.zeros((pp, columns.NUM_FIXED_RATES + 4 * options))
    name = placed.gradient_algorithm
    dense = dense_groups(grid)
    reduced, passed = _both(network, dense, name)
    experts = reduced, passed
    if ep > 1:
        experts = _both(network, expert_data_groups(grid), name)
    found[:, columns.DENSE_REDUCE : columns.DENSE_REDUCE + 2] = reduced
    found[:, columns.EXPERT_REDUCE : columns.EXPERT_REDUCE + 2] = experts[0]
    found[:, columns.EXPERT_PASS : columns.EXPERT_PASS + 2] = experts[1]
    for option, sharding in enumerate(placed.shardings):
        inside = columns.SHARD_PASS + 4 * option
        if option == 0:
            found[:, inside : inside + 2] = passed
            continue
        part, size = sharding.group_size, dense.shape[2]
        parts = np.sort(dense, axis=2).reshape(pp, dense.shape[1], -1, part)
        _, within = _both(network, parts.reshape(pp, -1, part), name)
        across = np.swapaxes(parts, 2, 3).reshape(pp, -1, size // part)
        found[:, inside : inside + 2] = within
        found[:, inside + 2 : inside + 4] = _both(network, across, name)[0]
    return found


def _both(
    network: Network, groups: IntArray, algorithm: str
) -> tuple[FloatArray, FloatArray]:
    """Return the rates of an all-reduce, and of the cheaper of its halves."""
    if groups.shape[2] == 1:
        free = np.zeros((len(groups), 2))
        return free, free
    rates = rates_by_algorithm(network, groups, (algorithm,), together=False)
    found = rates[algorithm]
    halves = np.minimum(found["all_gather"], found["reduce_scatter"])
    return found["all_reduce"], halves


def _boundaries(network: Network, grid: IntArray) -> FloatArray:
    """Price the transfers of each replica over each boundary."""
    pp, dp, ep, cp, tp = grid.shape
    lanes = grid.reshape(pp, dp * ep, cp * tp)
    if pp == 1:
        return np.zeros((1, 1, 2, 2))
    following = np.roll(lanes, -1, axis=0)
    shape = (pp * dp * ep, 1, cp * tp)
    found = np.stack(
        [
            slowest_edges(
                network, senders.reshape(shape), receivers.reshape(shape)
            ).reshape(pp, dp * ep, 2)
            for senders, receivers in ((lanes, following), (following, lanes))
        ],
        axis=2,
    )
    return np.unique(np.swapaxes(found, 0, 1), axis=0)
