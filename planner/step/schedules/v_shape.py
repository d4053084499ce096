"""Schedules of two chunks whose chain goes down the stages and comes back: a V.

The first stage holds both ends of the chain. Lists are written as words that repeat,
such as ``F1 B1 W1``: kind of pass and chunk; each pass is of the next microbatch of its
kind and chunk.

References
----------
.. [1] Qi, Wan, Nie, Li, "Pipeline Parallelism with Controllable Memory", NeurIPS
   2024, section 3.
"""

from collections.abc import Iterable

import numpy as np

from planner.step.schedules.language import Instructions
from topologies.arrays import IntArray

NUM_CHUNKS = 2
"""Chunks of each stage: down and back."""

_KINDS = "FBW"


def down_and_back(virtual_stage: int, num_stages: int) -> int:
    """Return the stage of a virtual stage: down to the last one, and back [1]_."""
    return min(virtual_stage, 2 * num_stages - 1 - virtual_stage)


def write_words(
    phases: Iterable[tuple[str, int]], num_microbatches: int
) -> Instructions:
    """Return the passes of words, each repeated so many times, in their order.

    Passes of microbatches that do not exist are left out.
    """
    parts = [np.tile(_passes_of(word), (times, 1)) for word, times in phases]
    kind, chunk = np.concatenate(parts).T
    microbatch = np.zeros(kind.size, dtype=np.int64)
    for one in np.unique(kind):
        for half in range(NUM_CHUNKS):
            which = (kind == one) & (chunk == half)
            microbatch[which] = np.arange(np.count_nonzero(which))
    exists = microbatch < num_microbatches
    return Instructions(kind[exists], microbatch[exists], chunk[exists])


def _passes_of(word: str) -> IntArray:
    """Return kind and chunk of each pass of a word, shape ``(n, 2)``."""
    passes = [(_KINDS.index(one[0]), int(one[1])) for one in word.split()]
    return np.array(passes, dtype=np.int64)
