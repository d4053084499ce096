"""Programs as columns: written down block by block, and read for what repeats.

Letters: ``B`` blocks, ``K`` rows of all kinds of blocks, ``T`` steps.
"""

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatVector,
    IntArray,
    IntCube,
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

# Blocks: a pass, being ready for its input, waiting for its output's arrival, and the
# end of the step.
PASS = 0
RECEIVE = 1
SEND = 2
END = 3

# Passes that wait for no bucket and fill none; the first forward pass of a chunk, which
# may wait for buckets; and the pass that completes its gradients.
PLAIN = 0
FIRST = 1
LAST = 2

# What tells blocks apart: which block, kind, chunk and place of the pass, whether a
# bucket has been filled, and the kind of the pass before.
BEFORE = 5
NUM_CODE_COLUMNS = 6

FORWARD = 0
"""Kind of the forward passes."""

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
def order_blocks(
    kind: IntVector,
    microbatch: IntVector,
    chunk: IntVector,
    ports: IntCube,
    arrivals: IntCube,
    completing: int,
    fills: bool,
    rendezvous: bool,
    blocking: bool,
) -> tuple[IntArray, IntArray]:
    """Return the distinct blocks of a program, and their order in it. O(n).

    Parameters
    ----------
    kind, microbatch, chunk
        Of each pass, shape ``(n,)``.
    ports
        Slots that passes receive from and send to, by kind and chunk, negative for
        none, shape ``(2, 3, v)``.
    arrivals
        Messages that have come to a pass when its own has, by kind, chunk and
        microbatch, shape ``(3, v, m)``.
    completing
        Kind of the passes that complete gradients.
    fills
        Whether they fill buckets.
    rendezvous
        Whether a message leaves when its receiver is ready, which then waits for it.
    blocking
        Whether senders wait for the arrival of their messages.

    Returns
    -------
    tuple[IntArray, IntArray]
        What tells each block apart, shape ``(U, NUM_CODE_COLUMNS)``; and of each place
        in the program the number of its block and the need of its first step, or
        `RUNNING`, shape ``(2, B)``.
    """
    num_passes, num_chunks = kind.shape[0], ports.shape[2]
    first = np.full(num_chunks, num_passes)
    last = np.full(num_chunks, -1)
    for i in range(num_passes):
        if kind[i] == FORWARD:
            first[chunk[i]] = min(first[chunk[i]], i)
        if kind[i] == completing:
            last[chunk[i]] = i
    filled_from = last.min() if fills else num_passes
    number = np.full((4, 3, num_chunks, 3, 2, 4), -1)
    codes = np.empty((number.size, NUM_CODE_COLUMNS), np.int64)
    order = np.empty((2, 3 * num_passes + 1), np.int64)
    num_codes, num_blocks = 0, 0
    for i in range(num_passes + 1):
        for block in (RECEIVE, PASS, SEND, END):
            k, c, place, filling, before = 0, 0, PLAIN, 0, -1
            need = RUNNING
            if (block == END) != (i == num_passes):
                continue
            if i < num_passes:
                k, c = kind[i], chunk[i]
                receives, sends = ports[0, k, c] >= 0, ports[1, k, c] >= 0
                if block == RECEIVE:
                    if not (rendezvous and receives):
                        continue
                    before = kind[i - 1] if i > 0 else -1
                elif block == PASS:
                    if receives:
                        need = arrivals[k, c, microbatch[i]]
                    if i == first[c]:
                        place = FIRST
                    elif i == last[c]:
                        place = LAST
                    filling = 1 if i > filled_from else 0
                elif block == SEND:
                    if not (blocking and sends):
                        continue
                    if (
                        rendezvous
                        and i + 1 < num_passes
                        and ports[0, kind[i + 1], chunk[i + 1]] >= 0
                    ):
                        # What it has sent is waited for when the next one receives.
                        continue
            code = (block, k, c, place, filling, before + 1)
            if number[code] < 0:
                number[code] = num_codes
                for column in range(NUM_CODE_COLUMNS):
                    codes[num_codes, column] = code[column]
                codes[num_codes, BEFORE] = before
                num_codes += 1
            order[0, num_blocks] = number[code]
            order[1, num_blocks] = need
            num_blocks += 1
    return codes[:num_codes].copy(), order[:, :num_blocks].copy()


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
