"""Moments that follow from others by sums and maxima, exactly or as random numbers.

A graph of moments is a list of *operations*, each after those that it reads: the moment
``k`` is the later one of two earlier moments, and a duration after that. Moments are
kept in *slots* for as long as somebody reads them.

Letters: ``O`` operations, ``S`` slots, ``E`` ends, ``P`` points, ``A`` actors.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5 (timed event graphs).
.. [2] Clark, "The greatest of a finite set of random variables", Operations Research
   9(2) 1961, equations 2 to 7.
"""

import math
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatMatrix, FloatVector, IntVector
from topologies.compiling import kernel


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

    The larger of two correlated normal variates has the mean and the variance of [2]_,
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
