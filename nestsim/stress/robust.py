"""The robust choice: the plan whose regret over all conditions is the least.

Letters: ``P`` plans, ``C`` conditions.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray

SAME = 1e-9
"""Regrets that differ by less are the same; the plan that comes first is taken."""


class Choice(NamedTuple):
    """A plan and its regret."""

    plan: int
    """Its row."""

    worst: float
    """The largest regret over the conditions."""

    worst_condition: int
    """Where it has it, the first of equals."""

    mean: float
    """The mean regret over the conditions, all of equal weight."""


def regrets(times: FloatArray) -> FloatArray:
    """Return how much slower each plan is than the best one under each condition.

    Parameters
    ----------
    times
        Iteration times, shape ``(P, C)`` [s].
    """
    return np.asarray(times / times.min(axis=0) - 1.0)


def least_worst(times: FloatArray) -> Choice:
    """Return the plan with the least worst-case regret (Savage's minimax regret)."""
    found = regrets(times)
    return _choice(found, found.max(axis=1))


def least_mean(times: FloatArray) -> Choice:
    """Return the plan with the least mean regret."""
    found = regrets(times)
    return _choice(found, found.mean(axis=1))


def _choice(found: FloatArray, score: FloatArray) -> Choice:
    plan = int(np.flatnonzero(score <= score.min() + SAME)[0])
    own = found[plan]
    worst = int(np.flatnonzero(own >= own.max() - SAME)[0])
    return Choice(plan, float(own.max()), worst, float(own.mean()))
