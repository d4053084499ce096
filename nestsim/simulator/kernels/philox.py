"""Random numbers that depend on nothing but what they are drawn for.

Philox-4x64-10 [1]_ turns a counter of four words and a key of two into four random
words, without any state: so what one actor or channel draws does not depend on what
others do, on the order, or on who computes it. The words are those of
``numpy.random.Philox``; here they are drawn for all owners in one call.

References
----------
.. [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
   2011, section 4.3 and Table 2; constants as in Random123's ``philox.h``.
"""

import numpy as np

from topologies.arrays import FloatArray, IntVector
from topologies.compiling import kernel, subkernel

_ROUNDS = 10


@subkernel
def _high_product(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of a product of 128."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    crossed = a1 * b0
    middle = ((a0 * b0) >> half) + (crossed & low) + a0 * b1
    return a1 * b1 + (crossed >> half) + (middle >> half)


@kernel
def uniforms(
    seed: int, run: int, purpose: int, owners: IntVector, counts: IntVector
) -> FloatArray:
    """Return random numbers inside of (0, 1), owner by owner. O(their number).

    An owner's are, in order, the words of ``numpy.random.Philox`` with the key ``(seed,
    run)`` that starts at the counter ``(0, owner, purpose, 0)``. The upper 52 bits
    ``x`` of a word give ``(x + 1/2) / 2**52``, which is never 0 or 1.

    Parameters
    ----------
    seed, run
        Not negative.
    purpose
        Keeps draws of different things apart; not negative.
    owners
        What the numbers are drawn for, not negative, shape ``(O,)``.
    counts
        How many of them each owner needs, shape ``(O,)``.
    """
    first_factor, second_factor = (
        np.uint64(0xD2E7470EE14C6C93),
        np.uint64(0xCA5A826395121157),
    )
    first_step, second_step = (
        np.uint64(0x9E3779B97F4A7C15),
        np.uint64(0xBB67AE8584CAA73B),
    )
    drawn = np.empty(counts.sum())
    words = np.empty(4, np.uint64)
    begin = 0
    for k in range(owners.shape[0]):
        end = begin + counts[k]
        block = 0
        while begin < end:
            block += 1
            c0, c1 = np.uint64(block), np.uint64(owners[k])
            c2, c3 = np.uint64(purpose), np.uint64(0)
            k0, k1 = np.uint64(seed), np.uint64(run)
            for _ in range(_ROUNDS):
                high0, low0 = _high_product(first_factor, c0), first_factor * c0
                high1, low1 = _high_product(second_factor, c2), second_factor * c2
                c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
                k0, k1 = k0 + first_step, k1 + second_step
            words[0], words[1], words[2], words[3] = c0, c1, c2, c3
            for i in range(min(4, end - begin)):
                upper = np.float64(words[i] >> np.uint64(12))
                drawn[begin] = (upper + 0.5) * 2.0**-52
                begin += 1
    return drawn
