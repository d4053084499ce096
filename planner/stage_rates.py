"""Latency and inverse bandwidth of everything that a placement's stages send.

Types only; `planner.rates` fills them in, `planner.relaxation` and
`planner.placement_bounds` bound them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from planner.kernels import tables as columns
from topologies.arrays import FloatArray, IntArray

Rates = Mapping[str, FloatArray]
"""Operation -> latency [s] and inverse bandwidth [s/byte] of each stage, ``(p, 2)``."""


class AlgorithmChoice(NamedTuple):
    """A collective algorithm, or what it is chosen by."""

    name: str
    """One of `estimators.collectives.algorithms.ALGORITHM_NAMES`, or ``"auto"``: the
    cheapest of `ALGORITHMS`, as NCCL chooses by size."""
    num_bytes: float
    """Typical size of the full tensor that ``"auto"`` goes by [byte]."""


class StageRates(NamedTuple):
    """The rates of a placement, or bounds of them, as the split reads them."""

    rows: FloatArray
    """Distinct rows of rates, columns as in `planner.kernels.tables`, ``(sig, R)``."""
    signature: IntArray
    """Row of each stage, first to last, shape ``(p,)``."""
    group_sizes: FloatArray
    """Ranks of each sharding option."""
    boundary: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of the boundary after each stage, the
    mean of both directions, by replica, shape ``(p, d, 2)``."""
    tied: FloatArray
    """All-reduce between the first and the last stage, shape ``(2,)``."""
    senders: FloatArray
    """Ranks that each option sends shards from one by one, where software does; in
    bounds of several placements at most as many as any of them."""


class Sharding(NamedTuple):
    """Rates of one way to share ZeRO's shards."""

    group_size: int
    """Data-parallel ranks that share the shards."""
    inside: Rates
    """All-gather and reduce-scatter among them."""
    across: Rates
    """All-reduce of a shard among those that hold the same one; 0 if nobody does."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementRates:
    """Latency [s] and inverse bandwidth [s/byte] of a placement, by stage."""

    tensor: Rates
    """Tensor-parallel collectives, per byte of the full tensor."""

    context: FloatArray
    """One hop of the context-parallel ring, shape ``(p, 2)``."""

    expert: FloatArray
    """All-to-all of expert-parallel ranks, per byte that a rank holds, ``(p, 2)``."""

    data: Rates
    """Collectives over the replicas of dense parameters."""

    expert_data: Rates
    """Collectives over the replicas of experts."""

    shardings: tuple[Sharding, ...]
    """Ways to share ZeRO's shards; the first is the whole group."""

    activation: FloatArray
    """Forward over the boundary after each stage, per byte and lane, by replica,
    shape ``(p, d, 2)``; the last one is the wrap-around to the first stage."""

    gradient: FloatArray
    """Backward over the same boundary, likewise."""

    tied: FloatArray
    """All-reduce between the first and the last stage, shape ``(2,)``."""

    tensor_algorithm: str
    """Of the tensor-parallel collectives."""

    gradient_algorithm: str
    """Of the data-parallel collectives."""

    @cached_property
    def signatures(self) -> tuple[FloatArray, IntArray]:
        """The distinct rows of `packed`, and which one each stage has."""
        packed = self.packed()
        if (packed == packed[0]).all():
            return packed[:1], np.zeros(len(packed), dtype=np.int64)
        rows, signature = np.unique(packed, axis=0, return_inverse=True)
        return rows, signature.ravel()

    @cached_property
    def group_sizes(self) -> FloatArray:
        """Ranks of each sharding option."""
        return np.array([float(option.group_size) for option in self.shardings])

    @cached_property
    def stage_rates(self) -> StageRates:
        """What the split reads."""
        boundary = 0.5 * (self.activation + self.gradient)
        sizes = self.group_sizes
        return StageRates(*self.signatures, sizes, boundary, self.tied, sizes)

    def packed(self) -> FloatArray:
        """Return the rates as the kernels read them, one row per stage."""
        num_stages = len(self.context)
        packed = np.zeros(
            (num_stages, columns.NUM_FIXED_RATES + 4 * len(self.shardings))
        )
        pairs = {
            columns.TENSOR_REDUCE: self.tensor["all_reduce"],
            columns.TENSOR_PASS: self.tensor["all_gather"],
            columns.CONTEXT: self.context,
            columns.EXPERT: self.expert,
            columns.DENSE_REDUCE: self.data["all_reduce"],
            columns.EXPERT_REDUCE: self.expert_data["all_reduce"],
            columns.EXPERT_PASS: self.expert_data["all_gather"],
        }
        for option, sharding in enumerate(self.shardings):
            inside = columns.SHARD_PASS + 4 * option
            pairs[inside] = sharding.inside["all_gather"]
            pairs[inside + 2] = sharding.across["all_reduce"]
        for column, rates in pairs.items():
            packed[:, column : column + 2] = rates
        return packed
