"""Where a list of steps repeats itself."""

import numpy as np

from topologies.arrays import IntArray, IntVector
from topologies.compiling import kernel, subkernel

LEAST_REPEATS = 4
"""Fewer would save nothing: a state must come twice, and then some remain to skip."""


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
    found = np.zeros((size // LEAST_REPEATS + 1, 3), np.int64)
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
            found[num_found, 0] = begin
            found[num_found, 1] = end
            found[num_found, 2] = unit
            num_found += 1
        else:
            begin, end = middle, middle
        todo[num_todo, 0], todo[num_todo, 1] = low, begin
        todo[num_todo + 1, 0], todo[num_todo + 1, 1] = end, high
        num_todo += 2
    return found[:num_found]
