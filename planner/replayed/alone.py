"""What a placement's collectives and transfers cost with the links to themselves.

The planner prices all groups of a kind as communicating at the same time. In a replay
stages reduce their gradients one after another, and transfers of different replicas
meet or do not: a bound must take each with nothing else under way. The groups of one
stage move in lock-step there, and so do the lanes of a replica: those are priced
together.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import rates_by_algorithm
from estimators.messages import slowest_edges
from planner.kernels import tables as columns
from planner.rates import dense_groups, expert_data_groups
from planner.stage_rates import PlacementRates
from topologies import Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AloneRates:
    """Latency [s] and inverse bandwidth [s/byte] of what a stage sends alone."""

    ends: FloatArray
    """Of the step's end, columns as in `planner.kernels.tables`, ``(p, rates)``."""

    boundary: FloatArray
    """Over the boundary after each stage: distinct replicas, stages, activation or
    gradient, latency or inverse bandwidth, shape ``(R, p, 2, 2)``."""


@dataclass(slots=True, kw_only=True, eq=False)
class AloneGrid:
    """The same of one placement under every algorithm, worked out when asked for."""

    network: Network
    """The cluster."""

    grid: IntArray
    """Device numbers, shape ``(pp, dp, ep, cp, tp)``."""

    _boundary: FloatArray | None = None
    _known: dict[str, AloneRates] = field(default_factory=dict)

    def rates(self, placed: PlacementRates) -> AloneRates:
        """Return the rates under the algorithms, and for the shardings, of prices."""
        name = placed.gradient_algorithm
        if name not in self._known:
            if self._boundary is None:
                self._boundary = self._boundaries()
            self._known[name] = AloneRates(
                ends=self._ends(placed), boundary=self._boundary
            )
        return self._known[name]

    def _ends(self, placed: PlacementRates) -> FloatArray:
        """Price the collectives of the step's end."""
        pp, _, ep, _, _ = self.grid.shape
        options = len(placed.shardings)
        found = np.zeros((pp, columns.NUM_FIXED_RATES + 4 * options))
        name = placed.gradient_algorithm
        dense = dense_groups(self.grid)
        reduced, passed = self._both(dense, name)
        experts = reduced, passed
        if ep > 1:
            experts = self._both(expert_data_groups(self.grid), name)
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
            _, within = self._both(parts.reshape(pp, -1, part), name)
            across = np.swapaxes(parts, 2, 3).reshape(pp, -1, size // part)
            found[:, inside : inside + 2] = within
            found[:, inside + 2 : inside + 4] = self._both(across, name)[0]
        return found

    def _both(self, groups: IntArray, algorithm: str) -> tuple[FloatArray, FloatArray]:
        """Return the rates of an all-reduce, and of the cheaper of its halves."""
        if groups.shape[2] == 1:
            free = np.zeros((len(groups), 2))
            return free, free
        rates = rates_by_algorithm(self.network, groups, (algorithm,), together=False)
        found = rates[algorithm]
        halves = np.minimum(found["all_gather"], found["reduce_scatter"])
        return found["all_reduce"], halves

    def _boundaries(self) -> FloatArray:
        """Price the transfers of each replica over each boundary."""
        pp, dp, ep, cp, tp = self.grid.shape
        lanes = self.grid.reshape(pp, dp * ep, cp * tp)
        if pp == 1:
            return np.zeros((1, 1, 2, 2))
        following = np.roll(lanes, -1, axis=0)
        shape = (pp * dp * ep, 1, cp * tp)
        found = np.stack(
            [
                slowest_edges(
                    self.network, senders.reshape(shape), receivers.reshape(shape)
                ).reshape(pp, dp * ep, 2)
                for senders, receivers in ((lanes, following), (following, lanes))
            ],
            axis=2,
        )
        return np.unique(np.swapaxes(found, 0, 1), axis=0)
