"""Random numbers by what they are drawn for, and moments as sums and maxima.

Philox-4x64-10 [1]_ turns a counter of four words and a key of two into four random
words, without any state: so what one actor or channel draws does not depend on what
others do, on the order, or on who computes it. The words are those of
``numpy.random.Philox``; here they are drawn for all owners in one call.

Moments that follow from others by sums and maxima, exactly or as random numbers.

A graph of moments is a list of *operations*, each after those that it reads: the moment
``k`` is the later one of two earlier moments, and a duration after that. Moments are
kept in *slots* for as long as somebody reads them.

Letters: ``O`` operations, ``S`` slots, ``E`` ends, ``P`` points, ``A`` actors.

References
----------
.. [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
   2011, section 4.3 and Table 2; constants as in Random123's ``philox.h``.
.. [2] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5 (timed event graphs).
.. [3] Clark, "The greatest of a finite set of random variables", Operations Research
   9(2) 1961, equations 2 to 7.
"""

import math
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, FloatMatrix, FloatVector, IntVector
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


class Operations(NamedTuple):
    """Moments that follow from others, each in a slot."""

    first: IntVector
    """Slot of a moment that each one waits for, shape ``(O,)``."""

    second: IntVector
    """Slot of another moment that it waits for, or the same, shape ``(O,)``."""

    target: IntVector
    """Slot that it is written to, shape ``(O,)``."""

    ends: IntVector
    """Slots of the moments whose latest is asked for, shape ``(E,)``."""

    num_slots: int
    """Slots ``S``; the first moment, 0, is in slot 0."""


@kernel
def latest_moments(
    operations: Operations,
    durations: FloatVector,
    stretched: FloatVector,
    actor: IntVector,
    factors: FloatMatrix,
) -> FloatVector:
    """Return the latest end for each of some points, shape ``(P,)`` [s]. O(O P).

    Parameters
    ----------
    operations
        The graph.
    durations
        The part of each operation's duration that is always the same, shape ``(O,)``
        [s].
    stretched
        The part that an actor's factor multiplies, shape ``(O,)`` [s].
    actor
        Whose factor it is, shape ``(O,)``.
    factors
        Factor of each actor at each point, shape ``(P, A)``.
    """
    first, second, target, ends, num_slots = operations
    latest = np.zeros(factors.shape[0])
    moments = np.zeros(num_slots)
    for point in range(factors.shape[0]):
        for o in range(first.shape[0]):
            moments[target[o]] = (
                max(moments[first[o]], moments[second[o]])
                + durations[o]
                + stretched[o] * factors[point, actor[o]]
            )
        for end in ends:
            latest[point] = max(latest[point], moments[end])
        moments[:] = 0.0
    return latest


@kernel
def latest_cumulants(
    operations: Operations,
    durations: FloatVector,
    variances: FloatVector,
    thirds: FloatVector,
) -> FloatVector:
    """Return the first three cumulants of the latest end [s, s^2, s^3].

    The larger of two correlated normal variates has the mean and the variance of [3]_,
    and covariances with all others; it is taken to be normal again. The third cumulant
    is that of either, by how probably it is the larger one. O(O S).

    Parameters
    ----------
    operations
        The graph.
    durations
        Mean of each operation's duration, shape ``(O,)`` [s].
    variances
        Variance of each, independent of all others, shape ``(O,)`` [s^2].
    thirds
        Third cumulant of each, shape ``(O,)`` [s^3].
    """
    first, second, target, ends, num_slots = operations
    num_operations = first.shape[0]
    means = np.zeros(num_slots)
    third = np.zeros(num_slots)
    joint = np.zeros((num_slots, num_slots))
    row = np.zeros(num_slots)
    # Behind the operations, the latest end is gathered in the slot of the first one.
    for o in range(num_operations + ends.shape[0] - 1):
        if o < num_operations:
            a, b, out = first[o], second[o], target[o]
            duration, variance, skew = durations[o], variances[o], thirds[o]
        else:
            a, b = ends[0], ends[o - num_operations + 1]
            out, duration, variance, skew = a, 0.0, 0.0, 0.0
        spread = math.sqrt(max(joint[a, a] + joint[b, b] - 2.0 * joint[a, b], 0.0))
        ahead = means[a] - means[b]
        if spread <= 1e-9 * abs(ahead) or spread == 0.0:
            winner = a if ahead >= 0.0 else b
            mean, of_larger = means[winner], joint[winner, winner]
            skew += third[winner]
            for k in range(num_slots):
                row[k] = joint[winner, k]
        else:
            z = ahead / spread
            share = 0.5 * math.erfc(-z / math.sqrt(2.0))
            skew += share * third[a] + (1.0 - share) * third[b]
            density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
            over = ahead * share + spread * density
            mean = means[b] + over
            # Of the larger one less the second, whose variance is added: no squares of
            # moments cancel.
            square = (ahead * ahead + spread * spread) * share
            square += ahead * spread * density
            of_larger = (
                joint[b, b]
                + 2.0 * share * (joint[a, b] - joint[b, b])
                + square
                - over * over
            )
            for k in range(num_slots):
                row[k] = share * joint[a, k] + (1.0 - share) * joint[b, k]
        for k in range(num_slots):
            joint[out, k] = row[k]
            joint[k, out] = row[k]
        joint[out, out] = max(of_larger, 0.0) + variance
        means[out] = mean + duration
        third[out] = skew
    cumulants = np.zeros(3)
    cumulants[0] = means[ends[0]]
    cumulants[1] = joint[ends[0], ends[0]]
    cumulants[2] = third[ends[0]]
    return cumulants
