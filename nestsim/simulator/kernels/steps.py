"""Programs as columns: written down block by block, and read for what repeats.

Letters: ``B`` blocks, ``K`` rows of all kinds of blocks, ``T`` steps.
"""

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel

# Rows of the steps' integers, as in `nestsim.simulator.system.Step`.
SOURCE = 0
NEED = 1
TARGET = 2
SPAN = 3
NUM_STEP_ROWS = 4

RUNNING = -1
"""Need of a step that waits for all that was posted to its source so far."""


@kernel
def number_passes(
    kind: IntVector,
    microbatch: IntVector,
    chunk: IntVector,
    num_kinds: int,
    num_chunks: int,
    num_microbatches: int,
) -> IntArray:
    """Return which pass of its kind and chunk that of each microbatch is.

    Counted from 1 in the order given; 0 for none. O(passes + size of what is returned).
    """
    numbers = np.zeros((num_kinds, num_chunks, num_microbatches), np.int64)
    count = np.zeros((num_kinds, num_chunks), np.int64)
    for i in range(kind.shape[0]):
        count[kind[i], chunk[i]] += 1
        numbers[kind[i], chunk[i], microbatch[i]] = count[kind[i], chunk[i]]
    return numbers


@kernel
def write_blocks(
    blocks: IntVector,
    first_need: IntVector,
    indptr: IntVector,
    duration: FloatVector,
    rows: IntMatrix,
    num_slots: int,
) -> tuple[FloatArray, IntArray]:
    """Write blocks down one after another, and count what each step has to wait for.

    O(T).

    Parameters
    ----------
    blocks
        Which block comes next, shape ``(B,)``.
    first_need
        Need of the first step of each, if it is not what its row says, or `RUNNING`,
        shape ``(B,)``.
    indptr
        Compressed rows: the rows of each kind of block.
    duration
        Shape ``(K,)`` [s].
    rows
        The rest of each step, shape ``(NUM_STEP_ROWS, K)``; a need may be `RUNNING`.
    num_slots
        Slots that sources and targets are numbers of; both are negative for none.

    Returns
    -------
    tuple[FloatArray, IntArray]
        The columns of all steps, shapes ``(T,)`` and ``(NUM_STEP_ROWS, T)``.
    """
    num_steps = 0
    for block in blocks:
        num_steps += indptr[block + 1] - indptr[block]
    durations = np.empty(num_steps)
    steps = np.empty((NUM_STEP_ROWS, num_steps), np.int64)
    posted = np.zeros(num_slots, np.int64)
    i = 0
    for b in range(blocks.shape[0]):
        begin = indptr[blocks[b]]
        for k in range(begin, indptr[blocks[b] + 1]):
            source, target, need = rows[SOURCE, k], rows[TARGET, k], rows[NEED, k]
            if k == begin and first_need[b] != RUNNING:
                need = first_need[b]
            if need == RUNNING:
                need = posted[source] if source >= 0 else 0
            if target >= 0:
                posted[target] += 1
            durations[i] = duration[k]
            steps[SOURCE, i] = source
            steps[NEED, i] = need
            steps[TARGET, i] = target
            steps[SPAN, i] = rows[SPAN, k]
            i += 1
    return durations, steps


@kernel
def further_needs(first: IntVector, source: IntVector, need: IntVector) -> IntArray:
    """Return how many messages more each step needs than the last use of its slot.

    All that it needs if its program did not use the slot before; 0 for steps that wait
    for nothing. O(T + programs x slots).

    Parameters
    ----------
    first
        First step of each program, and behind the last one.
    source, need
        Of all steps, shape ``(T,)``.
    """
    num_slots = 0
    for slot in source:
        num_slots = max(num_slots, slot + 1)
    further = np.zeros(source.shape[0], np.int64)
    before = np.empty(num_slots, np.int64)
    for program in range(first.shape[0] - 1):
        before[:] = 0
        for i in range(first[program], first[program + 1]):
            if source[i] >= 0:
                further[i] = need[i] - before[source[i]]
                before[source[i]] = need[i]
    return further
