"""Programs as columns: written down block by block, and read for what repeats.

Letters: ``B`` blocks, ``K`` rows of all kinds of blocks, ``T`` steps.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatVector,
    IntArray,
    IntCube,
    IntVector,
)
from topologies.compiling import kernel, subkernel

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

FORWARD = 0
"""Kind of the forward passes."""

RUNNING = -1
"""Need of a step that waits for all that was posted to its source so far."""

LEAST_REPEATS = 4
"""Fewer would save nothing: a state must come twice, and then some remain to skip."""


class StepColumns(NamedTuple):
    """Steps, as in `nestsim.simulator.system.Step`, shape ``(T,)`` each."""

    duration: FloatVector
    """How long the step works [s]."""

    source: IntVector
    """Port of the channel to wait for, negative for none."""

    need: IntVector
    """Messages that must have arrived there."""

    target: IntVector
    """Port of the channel to post to, negative for none."""

    span: IntVector
    """Whether a span begins and ends with the step, as bits."""


class Passes(NamedTuple):
    """The passes of a stage, in order, shape ``(n,)`` each."""

    kind: IntVector
    """Forward, backward or weight gradients."""

    microbatch: IntVector
    """Microbatch of the pass."""

    chunk: IntVector
    """Chunk of the stage that the pass goes through."""


class BlockRules(NamedTuple):
    """What a stage does beside its passes."""

    completing: int
    """Kind of the passes that complete gradients."""

    fills: bool
    """Whether they fill buckets."""

    rendezvous: bool
    """Whether a message leaves when its receiver is ready, which then waits for it."""

    blocking: bool
    """Whether senders wait for the arrival of their messages."""


class BlockCodes(NamedTuple):
    """What tells blocks apart, shape ``(U,)`` each."""

    block: IntVector
    """`PASS`, `RECEIVE`, `SEND` or `END`."""

    kind: IntVector
    """Kind of the pass."""

    chunk: IntVector
    """Chunk of the pass."""

    place: IntVector
    """`PLAIN`, `FIRST` or `LAST`."""

    filling: IntVector
    """1 if the stage has sent a bucket of gradients."""

    before: IntVector
    """Kind of the pass before, -1 if there is none."""

    paired: IntVector
    """1 if the pass has another one beside it."""


class BlockOrder(NamedTuple):
    """What a program is put together of, shape ``(B,)`` each."""

    block: IntVector
    """Number of the block that comes next."""

    need: IntVector
    """Need of its first step, or `RUNNING` if it is what the step says."""


@kernel
def number_passes(
    passes: Passes,
    num_kinds: int,
    num_chunks: int,
    num_microbatches: int,
) -> IntArray:
    """Return which pass of its kind and chunk that of each microbatch is.

    Counted from 1 in the order given; 0 for none. O(passes + size of what is returned).
    """
    numbers = np.zeros((num_kinds, num_chunks, num_microbatches), np.int64)
    count = np.zeros((num_kinds, num_chunks), np.int64)
    kind, microbatch, chunk = passes
    for i in range(kind.shape[0]):
        count[kind[i], chunk[i]] += 1
        numbers[kind[i], chunk[i], microbatch[i]] = count[kind[i], chunk[i]]
    return numbers


@kernel
def order_blocks(
    passes: Passes,
    beside: IntVector,
    ports: IntCube,
    arrivals: IntCube,
    rules: BlockRules,
) -> tuple[BlockCodes, BlockOrder]:
    """Return the distinct blocks of a program, and their order in it. O(n).

    Parameters
    ----------
    passes
        What the stage does.
    beside
        1 for passes that have another one beside them, shape ``(n,)``.
    ports
        Ports that passes receive from and send to, by kind and chunk, negative for
        none, shape ``(2, 3, v)``.
    arrivals
        Messages that have come to a pass when its own has, by kind, chunk and
        microbatch, shape ``(3, v, m)``.
    rules
        What the stage does beside its passes.

    Returns
    -------
    tuple[BlockCodes, BlockOrder]
        For ``U`` distinct blocks and ``B`` places of the program.
    """
    kind, microbatch, chunk = passes
    num_passes, num_chunks = kind.shape[0], ports.shape[2]
    first = np.full(num_chunks, num_passes)
    last = np.full(num_chunks, -1)
    for i in range(num_passes):
        if kind[i] == FORWARD:
            first[chunk[i]] = min(first[chunk[i]], i)
        if kind[i] == rules.completing:
            last[chunk[i]] = i
    filled_from = last.min() if rules.fills else num_passes
    number = np.full((4, 3, num_chunks, 3, 2, 4, 2), -1)
    codes = BlockCodes(
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
        np.empty(number.size, np.int64),
    )
    order = BlockOrder(
        np.empty(3 * num_passes + 1, np.int64), np.empty(3 * num_passes + 1, np.int64)
    )
    num_codes, num_blocks = 0, 0
    for i in range(num_passes + 1):
        for block in (RECEIVE, PASS, SEND, END):
            k, c, place, filling, before, paired = 0, 0, PLAIN, 0, -1, 0
            need = RUNNING
            if (block == END) != (i == num_passes):
                continue
            if i < num_passes:
                k, c = kind[i], chunk[i]
                receives, sends = ports[0, k, c] >= 0, ports[1, k, c] >= 0
                if block == RECEIVE:
                    if not (rules.rendezvous and receives):
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
                    paired = beside[i]
                elif block == SEND:
                    if not (rules.blocking and sends):
                        continue
                    if (
                        rules.rendezvous
                        and i + 1 < num_passes
                        and ports[0, kind[i + 1], chunk[i + 1]] >= 0
                    ):
                        # What it has sent is waited for when the next one receives.
                        continue
            code = (block, k, c, place, filling, before + 1, paired)
            if number[code] < 0:
                number[code] = num_codes
                codes.block[num_codes] = block
                codes.kind[num_codes] = k
                codes.chunk[num_codes] = c
                codes.place[num_codes] = place
                codes.filling[num_codes] = filling
                codes.before[num_codes] = before
                codes.paired[num_codes] = paired
                num_codes += 1
            order.block[num_blocks] = number[code]
            order.need[num_blocks] = need
            num_blocks += 1
    kept = BlockCodes(
        codes.block[:num_codes].copy(),
        codes.kind[:num_codes].copy(),
        codes.chunk[:num_codes].copy(),
        codes.place[:num_codes].copy(),
        codes.filling[:num_codes].copy(),
        codes.before[:num_codes].copy(),
        codes.paired[:num_codes].copy(),
    )
    program = BlockOrder(
        order.block[:num_blocks].copy(), order.need[:num_blocks].copy()
    )
    return kept, program


@kernel
def write_blocks(
    order: BlockOrder, indptr: IntVector, rows: StepColumns, num_ports: int
) -> StepColumns:
    """Write blocks down one after another, and count what each step has to wait for.

    O(T).

    Parameters
    ----------
    order
        Which block comes next.
    indptr
        Compressed rows: the rows of each kind of block.
    rows
        Steps of all kinds of blocks, shape ``(K,)``; a need may be `RUNNING`.
    num_ports
        Ports that sources and targets are numbers of.
    """
    num_steps = 0
    for block in order.block:
        num_steps += indptr[block + 1] - indptr[block]
    steps = StepColumns(
        np.empty(num_steps),
        np.empty(num_steps, np.int64),
        np.empty(num_steps, np.int64),
        np.empty(num_steps, np.int64),
        np.empty(num_steps, np.int64),
    )
    posted = np.zeros(num_ports, np.int64)
    i = 0
    for b in range(order.block.shape[0]):
        begin = indptr[order.block[b]]
        for k in range(begin, indptr[order.block[b] + 1]):
            source, target, need = rows.source[k], rows.target[k], rows.need[k]
            if k == begin and order.need[b] != RUNNING:
                need = order.need[b]
            if need == RUNNING:
                need = posted[source] if source >= 0 else 0
            if target >= 0:
                posted[target] += 1
            steps.duration[i] = rows.duration[k]
            steps.source[i] = source
            steps.need[i] = need
            steps.target[i] = target
            steps.span[i] = rows.span[k]
            i += 1
    return steps


@kernel
def further_needs(first: IntVector, source: IntVector, need: IntVector) -> IntArray:
    """Return how many messages more each step needs than the last use of its port.

    All that it needs if its program did not use the port before; 0 for steps that wait
    for nothing. O(T + programs x ports).

    Parameters
    ----------
    first
        First step of each program, and behind the last one.
    source, need
        Of all steps, shape ``(T,)``.
    """
    num_ports = 0
    for port in source:
        num_ports = max(num_ports, port + 1)
    further = np.zeros(source.shape[0], np.int64)
    before = np.empty(num_ports, np.int64)
    for program in range(first.shape[0] - 1):
        before[:] = 0
        for i in range(first[program], first[program + 1]):
            if source[i] >= 0:
                further[i] = need[i] - before[source[i]]
                before[source[i]] = need[i]
    return further


@subkernel
def _common_prefixes(symbols: IntVector, begin: int, end: int, out: IntVector) -> None:
    """Write how far the list from each ``begin + j`` agrees with that from ``begin``.

    The Z-algorithm [1]_, O(end - begin).
    """
    left, right = 0, 0
    out[0] = end - begin
    for j in range(1, end - begin):
        length = 0
        if j < right:
            length = min(right - j, out[j - left])
        while (
            begin + j + length < end
            and symbols[begin + length] == symbols[begin + j + length]
        ):
            length += 1
        out[j] = length
        if j + length > right:
            left, right = j, j + length


@kernel
def find_repeats(symbols: IntVector) -> IntArray:
    """Return disjoint stretches of a list that repeat a unit, shape ``(n, 3)``.

    Rows are ``begin, end, unit``: ``symbols[i] == symbols[i + unit]`` for all ``i``
    from ``begin`` to before ``end - unit``, and ``end - begin`` is at least
    `LEAST_REPEATS` units. Divide and conquer, as in [2]_: from the middle of the list,
    the unit that repeats furthest to the right is taken, the shortest of equals, and
    what it repeats is extended to both sides; then the same is done with what is left
    before and behind it. So a loop is preferred to the loops inside it. A stretch may
    be found a little shorter than it is, if the middle falls near its end. O(n log n).

    References
    ----------
    .. [1] Gusfield, "Algorithms on Strings, Trees, and Sequences", Cambridge University
       Press 1997, section 1.4.
    .. [2] Main, Lorentz, "An O(n log n) algorithm for finding all repetitions in a
       string", Journal of Algorithms 5 (1984).
    """
    size = symbols.shape[0]
    prefixes = np.zeros(size + 1, np.int64)
    repeats = np.zeros((size // LEAST_REPEATS + 1, 3), np.int64)
    num_found = 0
    todo = np.zeros((size + 2, 2), np.int64)
    todo[0, 1] = size
    num_todo = 1
    while num_todo > 0:
        num_todo -= 1
        low, high = todo[num_todo, 0], todo[num_todo, 1]
        if high - low < LEAST_REPEATS:
            continue
        middle = (low + high) // 2
        _common_prefixes(symbols, middle, high, prefixes)
        unit, reach = 0, 0
        for j in range(1, high - middle):
            if prefixes[j] >= j and j + prefixes[j] > reach:
                unit, reach = j, j + prefixes[j]
        begin, end = middle, middle + reach
        while (
            unit > 0
            and begin > low
            and symbols[begin - 1] == (symbols[begin - 1 + unit])
        ):
            begin -= 1
        if unit > 0 and end - begin >= LEAST_REPEATS * unit:
            repeats[num_found, 0] = begin
            repeats[num_found, 1] = end
            repeats[num_found, 2] = unit
            num_found += 1
        else:
            begin, end = middle, middle
        todo[num_todo, 0], todo[num_todo, 1] = low, begin
        todo[num_todo + 1, 0], todo[num_todo + 1, 1] = end, high
        num_todo += 2
    return repeats[:num_found]
