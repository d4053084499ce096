"""A layer table summed over the interval classes of its chain, for the kernels.

A chain of ``L`` layers has ``L (L + 1) / 2`` intervals, but every cost of a stage
except its boundaries depends only on how many layers of each kind it holds. A model
with a hundred equal blocks has a few hundred such classes, so tables are kept per
class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from estimators.layers.work import LayerTable
from planner.kernels import tables as rows
from planner.step.recompute import recompute_shares
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalClasses:
    """The classes of all intervals of one chain."""

    class_of: IntArray
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``; -1 if empty."""

    counts: IntArray
    """Number of layers of each kind in an interval of each class, shape ``(K,
    kinds)``."""

    whole: int
    """Class of the whole chain."""

    first_of_kind: IntArray
    """First layer of each kind, shape ``(kinds,)``."""

    def sums(self, values: FloatArray) -> FloatArray:
        """Add up a per-kind quantity over the interval, shape ``(K,)``."""
        return np.asarray(self.counts @ values, dtype=np.float64)

    def maxima(self, values: FloatArray) -> FloatArray:
        """Return the largest per-kind quantity in the interval, shape ``(K,)``."""
        present = np.where(self.counts > 0, values, -np.inf)
        return np.asarray(present.max(axis=1), dtype=np.float64)


def interval_classes(kinds: IntArray) -> IntervalClasses:
    """Group the intervals of a chain whose layer ``l`` is of kind ``kinds[l]``.

    Cost O(L^2) in numpy, once for chains of the same kinds.
    """
    return _interval_classes(tuple(kinds.tolist()))


@lru_cache(maxsize=256)
def _interval_classes(chain: tuple[int, ...]) -> IntervalClasses:
    kinds = np.array(chain, dtype=np.int64)
    num_layers = len(kinds)
    one_hot = np.eye(int(kinds.max()) + 1, dtype=np.int64)[kinds]
    prefix = np.vstack([np.zeros_like(one_hot[:1]), np.cumsum(one_hot, axis=0)])
    first, last = np.triu_indices(num_layers + 1, k=1)
    counts, class_ids = np.unique(
        prefix[last] - prefix[first], axis=0, return_inverse=True
    )
    class_of = np.full((num_layers + 1, num_layers + 1), -1, dtype=np.int64)
    class_of[first, last] = class_ids.ravel()
    return IntervalClasses(
        class_of=class_of,
        counts=counts,
        whole=int(class_of[0, num_layers]),
        first_of_kind=np.unique(kinds, return_index=True)[1],
    )


RECOMPUTE_MODES: Mapping[str, int] = MappingProxyType(
    {
        "none": rows.NONE,
        "selective": rows.SELECTIVE,
        "full": rows.FULL,
        "stage": rows.STAGE,
    }
)
"""Recompute mode -> its number in the kernels, cheapest in time first."""

RATE_COLUMNS: Mapping[tuple[str, str], int] = MappingProxyType(
    {
        ("tensor", "all_reduce"): rows.TENSOR_REDUCE,
        ("tensor", "all_gather"): rows.TENSOR_PASS,
        ("tensor", "reduce_scatter"): rows.TENSOR_PASS,
        ("context", "send_recv"): rows.CONTEXT,
        ("context", "all_gather"): rows.CONTEXT_PASS,
        ("context", "reduce_scatter"): rows.CONTEXT_PASS,
        ("context", "all_to_all"): rows.CONTEXT_EXCHANGE,
        ("expert tensor", "all_gather"): rows.EXPERT_TENSOR,
        ("expert tensor", "reduce_scatter"): rows.EXPERT_TENSOR,
        ("expert", "all_to_all"): rows.EXPERT,
    }
)
"""(Group, operation) of an in-layer collective -> its column of the rates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassTable:
    """One chain under one set of degrees, ready for the kernels."""

    classes: IntervalClasses
    sums: rows.ClassSums
    """What the intervals of each class take and hold."""

    has_block: NDArray[np.bool_]
    """Whether intervals of the class hold a transformer block, shape ``(K,)``."""

    traffic: rows.ClassTraffic
    """What they send inside of layers."""


def class_table(table: LayerTable, *, num_chunks: int = 1) -> ClassTable:
    """Sum the table of a chain over its interval classes. O(L^2 + K kinds)."""
    classes = interval_classes(table.kinds)
    first_of_kind = classes.first_of_kind
    num_classes = len(classes.counts)

    def total(values: FloatArray) -> FloatArray:
        return classes.sums(values[first_of_kind])

    recompute = np.zeros((rows.NUM_MODES, num_classes))
    for mode in ("selective", "full", "stage"):
        recompute[RECOMPUTE_MODES[mode]] = total(table.recompute_time[mode])
    saved, working, once = _memory(table, classes, num_chunks)
    parameters = total(table.parameters - table.expert_parameters)
    parameters[classes.whole] -= table.tied_parameters
    sums = rows.ClassSums(
        compute=total(table.forward_time + table.backward_time),
        recompute=recompute,
        saved=saved,
        working=working,
        once=once,
        num_layers=total(np.where(table.is_block > 0, num_chunks, 1.0)),
        parameters=parameters,
        expert_parameters=total(table.expert_parameters),
        largest_layer=classes.maxima(table.largest_parameters[first_of_kind]),
        most_saved=_most_saved(table, classes, num_chunks),
    )
    return ClassTable(
        classes=classes,
        sums=sums,
        has_block=total(table.is_block) > 0,
        traffic=_traffic(table, total, num_classes),
    )


def _most_saved(
    table: LayerTable, classes: IntervalClasses, num_chunks: int
) -> FloatArray:
    """Return the most that a layer keeps by recompute mode, shape ``(R, K)`` [byte].

    A block of an interleaved chain is as many layers as there are chunks.
    """
    most = np.zeros((rows.NUM_MODES, len(classes.counts)))
    each = np.where(table.is_block > 0, 1.0 / num_chunks, 1.0)
    for mode in ("none", "selective", "full"):
        saved = (table.saved_bytes[mode] * each)[classes.first_of_kind]
        most[RECOMPUTE_MODES[mode]] = classes.maxima(saved)
    return most


def _memory(
    table: LayerTable, classes: IntervalClasses, num_chunks: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return what a pass in flight keeps, what one works with, what is kept once.

    With virtual stages a pass is one chunk: it keeps its part of the blocks; the ends
    of the chain belong to one chunk, the last of which runs its backward pass at
    once.
    """
    num_classes = len(classes.counts)
    saved, working = np.zeros((2, rows.NUM_MODES, num_classes))
    once = np.zeros(num_classes)
    first_of_kind = classes.first_of_kind
    is_block = table.is_block[first_of_kind]
    leading = (np.arange(len(table.kinds)) < table.is_block.argmax())[first_of_kind]
    trailing = (is_block == 0) & ~leading
    present = classes.counts > 0
    behind = _ends_behind(table, classes)
    if num_chunks > 1:
        # The largest of the other chunks' blocks, which have no end behind them.
        behind[:, is_block > 0] = 0.0
    for mode in ("none", "selective", "full"):
        row = RECOMPUTE_MODES[mode]
        kept = table.saved_bytes[mode][first_of_kind]
        if num_chunks > 1:
            # One number for all modes: the most of any.
            here = classes.sums(np.where(trailing, kept, 0.0))
            once = np.maximum(once, here)
            kept = np.where(trailing, 0.0, np.where(leading, kept, kept / num_chunks))
        saved[row] = classes.sums(kept)
        works = table.working_bytes[mode][first_of_kind]
        working[row] = (np.where(present, works, -np.inf) - behind).max(axis=1)
    # Recompute of the whole stage: its input, and everything while it is redone.
    entering = float(table.boundary_bytes[1:-1].max(initial=0.0))
    start = classes.counts[:, table.kinds[0]] > 0
    saved[rows.STAGE] = np.where(start, 0.0, entering)
    everything = classes.sums(table.saved_bytes["none"][first_of_kind])
    working[rows.STAGE] = everything + working[rows.NONE]
    return saved, working, once


def _ends_behind(table: LayerTable, classes: IntervalClasses) -> FloatArray:
    """Return what ends of the chain save behind layers, shape ``(K, kinds)`` [byte].

    Of those that follow all layers of a kind (`planner.step.recompute.alive_inside`).
    """
    kinds, first = table.kinds, classes.first_of_kind
    last = len(kinds) - 1 - np.unique(kinds[::-1], return_index=True)[1]
    ends = (table.saved_bytes["none"] * (1.0 - table.is_block))[first]
    follows = first[:, None] > last[None, :]
    return np.asarray((classes.counts * ends) @ follows, dtype=np.float64)


def _traffic(
    table: LayerTable, total: Callable[[FloatArray], FloatArray], num_classes: int
) -> rows.ClassTraffic:
    shape = len(table.traffic), rows.NUM_MODES, num_classes
    columns = [RATE_COLUMNS[item.group, item.operation] for item in table.traffic]
    traffic = rows.ClassTraffic(
        rate=np.array(columns, dtype=np.int64),
        num_calls=np.zeros((shape[0], num_classes)),
        num_bytes=np.zeros((shape[0], num_classes)),
        recompute_count=np.zeros(shape),
        recompute_bytes=np.zeros(shape),
    )
    for j, item in enumerate(table.traffic):
        traffic.num_calls[j] = total(item.forward_count + item.backward_count)
        traffic.num_bytes[j] = total(item.forward_bytes + item.backward_bytes)
        for mode, share in recompute_shares(item, table).items():
            row = RECOMPUTE_MODES[mode]
            traffic.recompute_count[j, row] = total(item.forward_count * share)
            traffic.recompute_bytes[j, row] = total(item.forward_bytes * share)
    return traffic
