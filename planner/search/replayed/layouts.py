"""Layouts in which every virtual stage holds about as many blocks as any other.

The embedding and the head count as blocks where they are worth some, as Megatron Core's
``account_for_embedding_in_pipeline_split`` and
``account_for_loss_in_pipeline_split`` have it, or as its
``decoder_first_pipeline_num_layers`` and ``decoder_last_pipeline_num_layers`` say.
Where that does not come out even and the framework takes a layout, some virtual stages
hold one block more. Stages of slower devices may hold fewer
(`planner.search.replayed.unequal`).

Letters as in `planner.search.replayed.space`.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from planner.frameworks.rules import (
    ACCOUNTED,
    BALANCED,
    EARLY,
    ENDS,
    EVEN,
    LATE,
    LAYOUT,
    rounds,
)
from topologies.arrays import IntArray

MOST_SPARED = 4
"""Most blocks that the first and the last stage may have less than the others: the head
of a large vocabulary takes as long as a few blocks."""


@lru_cache(maxsize=4096)
def block_counts(
    num_blocks: int,
    p: int,
    v: int,
    splits: tuple[str, ...],
    *,
    empty_ends: bool = False,
    trailing: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each virtual stage, for each layout, without repetition.

    Parameters
    ----------
    num_blocks, p, v
        Blocks, stages, chunks of each.
    splits
        What the framework has, keys of `planner.frameworks.rules.SPLIT_CHECKS`.
    empty_ends
        Whether, with several chunks, the first one may hold the embedding alone and the
        last one the head.
    trailing
        Layers behind the last block that cost about as much as one, such as those of
        multi-token prediction: the last virtual stage may have as many blocks less.

    Returns
    -------
    tuple
        Equal ones first; empty if there is no layout in which all have a block.
    """
    found: dict[tuple[int, ...], None] = {}
    for first, last in spared_ends(p * v, trailing=trailing):
        over = (num_blocks + first + last) % (p * v)
        more = trailing if p * v > 1 else 0
        if not _is_allowed(first, last, over, v, splits, trailing=more):
            continue
        counts = _counts(num_blocks, p, v, first, last)
        inner = counts[1:-1] if empty_ends and v > 1 else counts
        if min(inner, default=1) >= 1 and min(counts) >= 0:
            found[counts] = None
    for kind in (EARLY, LATE):
        if kind in splits and (dealt := rounds(num_blocks, p, v, kind)) is not None:
            found[dealt] = None
    return tuple(found)


def spared_ends(num_stages: int, *, trailing: int = 0) -> Iterator[tuple[int, int]]:
    """Yield how many blocks less the first and the last virtual stage may have.

    Of so many virtual stages; ``trailing`` as for `block_counts`.
    """
    most = 0 if num_stages == 1 else MOST_SPARED
    more = trailing if num_stages > 1 else 0
    for total in range(2 * most + more + 1):
        for first in range(max(0, total - most - more), min(total, most) + 1):
            yield first, total - first


def _is_allowed(
    first: int,
    last: int,
    over: int,
    v: int,
    splits: tuple[str, ...],
    *,
    trailing: int = 0,
) -> bool:
    """Tell whether a framework has a split.

    Parameters
    ----------
    first, last
        Blocks that the first and the last virtual stage have less than the others.
    over
        Virtual stages that have one block more.
    v, splits, trailing
        As for `block_counts`.
    """
    if LAYOUT in splits:
        return v == 1 or max(first, last - trailing) <= 1
    counts_ends = max(first, last) <= 1
    if over:
        return BALANCED in splits and counts_ends
    if first == last == 0 and EVEN in splits:
        return True
    if counts_ends and (ACCOUNTED in splits or BALANCED in splits):
        return True
    return ENDS in splits and v == 1


def layouts(counts: tuple[tuple[int, ...], ...], before: int, after: int) -> IntArray:
    """Return the first layer of each virtual stage, and their number.

    Parameters
    ----------
    counts
        Blocks of each virtual stage, for each layout; at least one layout.
    before, after
        Layers in front of the first block, and behind the last one.

    Returns
    -------
    numpy.ndarray
        Shape ``(Y, C + 1)``.
    """
    blocks = np.array(counts, dtype=np.int64)
    bounds = np.zeros((blocks.shape[0], blocks.shape[1] + 1), dtype=np.int64)
    np.cumsum(blocks, axis=1, out=bounds[:, 1:])
    bounds[:, 1:] += before
    bounds[:, -1] += after
    return bounds


def _counts(num_blocks: int, p: int, v: int, first: int, last: int) -> tuple[int, ...]:
    """Return the blocks of each virtual stage.

    What is left over goes to late stages, which keep the fewest activations, but to the
    last one only in the end, and to each about as often as to any other.
    """
    even, over = divmod(num_blocks + first + last, p * v)
    counts = np.full(p * v, even, dtype=np.int64)
    order = [*range(p - 2, -1, -1), p - 1]
    for number in range(over):
        turn, place = divmod(number, p)
        counts[(v - 1 - turn) * p + order[place]] += 1
    counts[0] -= first
    counts[-1] -= last
    return tuple(counts.tolist())
