"""Which of several parallel links a pair of devices takes.

Switches spread pairs over links of equal cost by a hash of source and target, and a
pair keeps to one link (equal-cost multi-path, ECMP [1]_). Pairs whose link is gone
are hashed again, among the links that are left; all others stay where they were, as
with resilient hashing [2]_.

Letters: ``P`` pairs, ``C`` parallel links.

References
----------
.. [1] Hopps, "Analysis of an equal-cost multi-path algorithm", RFC 2992, 2000.
.. [2] Cumulus Linux documentation, "Equal cost multipath: resilient hashing".
.. [3] Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014, Figure 16.
"""

import numpy as np
from numpy.typing import NDArray

from topologies.network import BoolArray, IntArray

UInt64Array = NDArray[np.uint64]


def scramble(values: UInt64Array) -> UInt64Array:
    """Scramble 64-bit integers with the finaliser of SplitMix64 [3]_."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def tier_seeds(seed: int, num_tiers: int) -> tuple[int, ...]:
    """Return one seed per tier, below ``2**64``: tiers draw apart from each other.

    The outermost tier's is the seed scrambled once, each tier further in once more.
    """
    seeds = [np.array([seed % 2**64], dtype=np.uint64)]
    for _ in range(num_tiers):
        seeds.append(scramble(seeds[-1]))
    return tuple(int(value[0]) for value in reversed(seeds[1:]))


def hash_pairs(
    sources: IntArray, targets: IntArray, num_devices: int, seed: int
) -> UInt64Array:
    """Return a hash of each pair, of which the order of its devices matters."""
    pairs = (sources * num_devices + targets).astype(np.uint64)
    return scramble(pairs ^ np.uint64(seed))


def pick(hashes: UInt64Array, count: int) -> IntArray:
    """Return which of ``count`` parallel links each pair takes."""
    return (hashes % np.uint64(count)).astype(np.int64)


def pick_among(hashes: UInt64Array, usable: BoolArray) -> IntArray:
    """Return which link each pair takes if it can use some of them only.

    Parameters
    ----------
    hashes
        Of the pairs, shape ``(P,)``.
    usable
        Which of the links each pair can use, shape ``(P, C)``.

    Returns
    -------
    IntArray
        What `pick` returns where that is usable; elsewhere one of the usable links,
        by the hash scrambled once more, as the hash itself is not spread over what is
        left; what `pick` returns where none is usable.
    """
    picks = pick(hashes, usable.shape[1])
    left = usable.sum(axis=1)
    moves = np.flatnonzero(~usable[np.arange(len(picks)), picks] & (left > 0))
    nth = scramble(hashes[moves]) % left[moves].astype(np.uint64)
    rank = np.cumsum(usable[moves], axis=1)
    picks[moves] = np.argmax(rank > nth.astype(np.int64)[:, None], axis=1)
    return picks
