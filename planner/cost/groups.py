"""The groups of ranks that a plan's devices form, stage by stage.

The grid of a plan's devices has an axis for each parallel dimension. Most groups are
the devices along one or two of its axes. Where experts have a tensor-parallel size of
their own, and in most frameworks where sequences are shared, too
(`estimators.grouping.Grouping`), their groups count the ranks of a stage anew, tensor-
and context-parallel ranks first: ``etp`` neighbours share each expert, ``ep`` of those
share all experts, and what is left holds the same ones [1]_ [2]_. Two levels of context
parallelism divide that axis, the ranks that exchange heads next to each other.

Groups have shape ``(stages, groups, members)``.

References
----------
.. [1] Liu et al., "MoE Parallel Folding", 2025, section 3.
.. [2] Megatron-LM, ``initialize_model_parallel`` of ``megatron/core/
   parallel_state.py``: the generator of the experts' ranks.
"""

from typing import NamedTuple

import numpy as np

from estimators.grouping import PLAIN_GROUPING, Grouping
from topologies.arrays import IntArray


class StageGroups(NamedTuple):
    """The groups of every stage of a grid of devices."""

    grid: IntArray
    """Device numbers, shape ``(pp, dp, ep, cp, tp)``; ``ep`` is 1 where expert groups
    count ranks in their own way."""

    grouping: Grouping = PLAIN_GROUPING
    """How ranks form groups beside what the axes say."""

    folded_ep: int = 1
    """Expert-parallel size where expert groups count ranks in their own way."""

    @property
    def spreads_experts(self) -> bool:
        """Whether experts have other replicas than the rest of a layer."""
        return self.grid.shape[2] > 1 or self.grouping.is_folded

    @property
    def ep(self) -> int:
        """Expert-parallel size."""
        return self.folded_ep if self.grouping.is_folded else self.grid.shape[2]

    def dense(self) -> IntArray:
        """Return the ranks that hold the same dense parameters."""
        return dense_groups(self.grid)

    def tensor(self) -> IntArray:
        """Return the ranks that share the matrices of a layer."""
        return self.grid.reshape(len(self.grid), -1, self.grid.shape[4])

    def context(self) -> IntArray:
        """Return the ranks that share a sequence."""
        grid = self.grid
        return np.moveaxis(grid, 3, -1).reshape(len(grid), -1, grid.shape[3])

    def exchanges(self) -> IntArray:
        """Return the ranks that exchange heads for tokens."""
        context = self.context()
        size = self.grouping.exchanging(context.shape[2])
        return context.reshape(len(context), -1, size)

    def rings(self) -> IntArray:
        """Return the ranks that keys and values go round."""
        context = self.context()
        stages, groups, cp = context.shape
        size = self.grouping.ring(cp)
        levels = context.reshape(stages, groups, size, cp // size)
        return np.swapaxes(levels, 2, 3).reshape(stages, -1, size)

    def experts(self) -> IntArray:
        """Return the ranks that share the experts of a layer."""
        grid = self.grid
        if not self.grouping.is_folded:
            return np.moveaxis(grid, 2, -1).reshape(len(grid), -1, grid.shape[2])
        return np.swapaxes(self._folded(), 2, 3).reshape(len(grid), -1, self.ep)

    def expert_tensor(self) -> IntArray:
        """Return the ranks that share the matrices of an expert."""
        return self.grid.reshape(len(self.grid), -1, self._etp)

    def expert_data(self) -> IntArray:
        """Return the ranks that hold the same experts."""
        pp, dp, ep, cp, tp = self.grid.shape
        if not self.grouping.is_folded:
            held = np.transpose(self.grid, (0, 2, 4, 1, 3))
            return held.reshape(pp, ep * tp, dp * cp)
        folded = self._folded()
        return np.moveaxis(folded, 1, -1).reshape(pp, -1, folded.shape[1])

    def _folded(self) -> IntArray:
        """Return the devices as experts count them, ``(pp, edp, ep, etp)``."""
        return self.grid.reshape(len(self.grid), -1, self.folded_ep, self._etp)

    @property
    def _etp(self) -> int:
        """Expert-tensor-parallel size."""
        return self.grouping.etp or self.grid.shape[4]


def dense_groups(grid: IntArray) -> IntArray:
    """Return the ranks that hold the same dense parameters, ``(pp, tp, dp ep cp)``."""
    pp, tp = grid.shape[0], grid.shape[4]
    return np.moveaxis(grid.reshape(pp, -1, tp), 2, 1)
