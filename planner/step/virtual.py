"""Virtual stages: the chain of layers interleaved, so that a plain split cuts it.

With ``v`` virtual stages per device the blocks are dealt out in ``v`` rounds of equal
shape: a device at position ``q`` holds blocks ``q, q + B/v, q + 2 B/v, ..``. An
interval of the interleaved chain is then one device's share, and its cost the sum over
the rounds, exact for unlike blocks too. The embedding stays with the first device,
final norm and head with the last. Free chunk sizes per round are outside the space, and
so are schedules that do not deal virtual stages in turn (`Schedule.stage_of`).

References
----------
.. [1] Narayanan et al., SC 2021, section 2.2: interleaved 1F1B.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from estimators.layers.work import InLayerTraffic, LayerTable
from topologies.arrays import FloatArray, IntArray


def block_span(is_block: FloatArray) -> tuple[int, int]:
    """Return the first block and the one after the last."""
    blocks = np.flatnonzero(is_block)
    if blocks.size == 0:
        return len(is_block), len(is_block)
    return int(blocks[0]), int(blocks[-1]) + 1


def interleave_chain(table: LayerTable, v: int) -> LayerTable:
    """Return the table of the interleaved chain; the same table for ``v`` = 1.

    Times and parameters are sums over the rounds, sizes that only one layer has at a
    time are maxima; saved bytes are ``v`` times the largest round, so that a chunk's
    share of them is an upper bound. Requires contiguous blocks, in a number that ``v``
    divides.
    """
    if v == 1:
        return table
    first, last = block_span(table.is_block)
    assert table.is_block[first:last].all(), "blocks are contiguous"

    def combine_columns(
        values: FloatArray, combine: Callable[..., FloatArray]
    ) -> FloatArray:
        return _combine_rounds(values, table.is_block, v, combine)

    def total(values: FloatArray) -> FloatArray:
        return combine_columns(values, np.sum)

    def largest_round(rounds: FloatArray, axis: int) -> FloatArray:
        return np.asarray(v * rounds.max(axis=axis))

    def by_mode(
        columns: Mapping[str, FloatArray], combine: Callable[..., FloatArray]
    ) -> dict[str, FloatArray]:
        return {
            mode: combine_columns(values, combine) for mode, values in columns.items()
        }

    length = (last - first) // v
    return replace(
        table,
        names=(
            *table.names[:first],
            *(f"{name} and {v - 1} more" for name in table.names[first:][:length]),
            *table.names[last:],
        ),
        kinds=_interleaved_kinds(table.kinds, first, last, v),
        forward_time=total(table.forward_time),
        backward_time=total(table.backward_time),
        weight_gradient_time=total(table.weight_gradient_time),
        recompute_time=by_mode(table.recompute_time, np.sum),
        forward_flops=total(table.forward_flops),
        parameters=total(table.parameters),
        frozen_weights=total(table.frozen_weights),
        expert_parameters=total(table.expert_parameters),
        largest_parameters=combine_columns(table.largest_parameters, np.max),
        is_block=combine_columns(table.is_block, np.max),
        saved_bytes=by_mode(table.saved_bytes, largest_round),
        working_bytes=by_mode(table.working_bytes, np.max),
        weight_gradient_bytes=combine_columns(
            table.weight_gradient_bytes, largest_round
        ),
        boundary_bytes=np.concatenate(
            (table.boundary_bytes[: first + length], table.boundary_bytes[last:])
        ),
        traffic=tuple(_interleaved_traffic(item, total) for item in table.traffic),
    )


def interleave_sums(values: FloatArray, is_block: FloatArray, v: int) -> FloatArray:
    """Add up a per-layer quantity over the rounds, shape of the interleaved chain."""
    return values if v == 1 else _combine_rounds(values, is_block, v, np.sum)


def _combine_rounds(
    values: FloatArray,
    is_block: FloatArray,
    v: int,
    combine: Callable[..., FloatArray],
) -> FloatArray:
    first, last = block_span(is_block)
    rounds = values[first:last].reshape(v, -1)
    return np.concatenate((values[:first], combine(rounds, axis=0), values[last:]))


def _interleaved_traffic(
    item: InLayerTraffic, total: Callable[[FloatArray], FloatArray]
) -> InLayerTraffic:
    return replace(
        item,
        forward_count=total(item.forward_count),
        forward_bytes=total(item.forward_bytes),
        backward_count=total(item.backward_count),
        backward_bytes=total(item.backward_bytes),
        repeated_count=total(item.repeated_count),
        repeated_bytes=total(item.repeated_bytes),
    )


def _interleaved_kinds(kinds: IntArray, first: int, last: int, v: int) -> IntArray:
    """Give equal columns of rounds equal numbers, other than those of the ends."""
    rounds = kinds[first:last].reshape(v, -1)
    _, numbers = np.unique(rounds, axis=1, return_inverse=True)
    offset = int(kinds.max()) + 1
    parts = (kinds[:first], offset + numbers.ravel(), kinds[last:])
    return np.unique(np.concatenate(parts), return_inverse=True)[1].astype(np.int64)


def chunks_of_bounds(
    bounds: IntArray, is_block: FloatArray, v: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Turn a split of the interleaved chain into the chunks of each stage.

    Parameters
    ----------
    bounds
        First layer of each stage in the interleaved chain, and the number of layers,
        shape ``(p + 1,)``.
    is_block
        Whether each layer of the chain is a transformer block.
    v
        Virtual stages.

    Returns
    -------
    tuple
        For each stage its chunks: closed intervals of the chain. Every stage
        must hold a block if ``v`` > 1.
    """
    first, last = block_span(is_block)
    length = (last - first) // v
    stages = []
    for start, end in pairwise(int(bound) for bound in bounds):
        chunks = []
        for turn in range(v):
            low = first + turn * length + max(start - first, 0)
            high = first + turn * length + min(end - first, length)
            if turn == 0:
                low = min(low, start)
            if turn == v - 1:
                high += max(end - first - length, 0)
            chunks.append((low, high - 1))
        stages.append(tuple(chunks))
    return tuple(stages)
