"""The strategies of a stage: what is sharded, and what hosts keep of it."""

from dataclasses import dataclass, fields
from itertools import product

import numpy as np

from planner.step.plan import Offload
from topologies.arrays import FloatArray

STATE_FRACTIONS = (0.0, 0.25, 0.375, 0.5, 0.75, 1.0)
"""Fractions of weights and of gradients that are tried."""

LARGE_FRACTIONS = (0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
"""Fractions of optimizer states and of activations that are tried."""

EVERYTHING = Offload(1.0, 1.0, 1.0, 1.0)
"""Hosts may keep all that there is."""

SHARDED = {0: (0, 0, 0), 1: (0, 0, 1), 2: (0, 1, 1), 3: (1, 1, 1)}
"""Stage of ZeRO -> whether it shards weights, gradients and optimizer states."""


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """Several strategies, a structure of arrays of shape ``(n,)``."""

    shard_weights: FloatArray
    """1 where weights are sharded over the replicas, else 0."""
    shard_gradients: FloatArray
    """1 where gradients are sharded over the replicas, else 0."""
    shard_optimizer: FloatArray
    """1 where optimizer states are sharded over the replicas, else 0."""
    weights: FloatArray
    """Fraction of the weights that the host keeps."""
    gradients: FloatArray
    """Fraction of the gradients that the host keeps."""
    optimizer: FloatArray
    """Fraction of the optimizer states that the host keeps."""
    activations: FloatArray
    """Fraction of the saved activations that the host keeps."""

    @classmethod
    def of_rows(cls, rows: FloatArray) -> "Strategies":
        """Read rows ``(ws, gs, os, WO, GO, OO, AO)``, shape ``(n, 7)``."""
        columns = np.ascontiguousarray(np.atleast_2d(rows).T, dtype=np.float64)
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.weights)

    def row(self, index: int) -> tuple[float, ...]:
        """Return one strategy as ``(ws, gs, os, WO, GO, OO, AO)``."""
        return tuple(float(getattr(self, field.name)[index]) for field in fields(self))


def strategy_space(
    zero_stages: tuple[int, ...], most_offloaded: Offload = EVERYTHING
) -> Strategies:
    """Return every strategy of Mist's space: 5,952 with all that there is.

    Weights on the host without gradients there are left out, as Mist does.

    Parameters
    ----------
    zero_stages
        Stages of ZeRO that may be used.
    most_offloaded
        Largest fractions that hosts may keep.
    """
    lists = (STATE_FRACTIONS, STATE_FRACTIONS, LARGE_FRACTIONS, LARGE_FRACTIONS)
    allowed = [
        [part for part in parts if part <= most]
        for parts, most in zip(lists, most_offloaded, strict=True)
    ]
    rows = [
        (*SHARDED[zero], *parts)
        for zero in zero_stages
        for parts in product(*allowed)
        if parts[1] > 0.0 or parts[0] == 0.0
    ]
    return Strategies.of_rows(np.array(rows))
