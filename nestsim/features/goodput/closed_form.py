"""How often to save by formulas of others, and how many spare nodes are enough.

References
----------
.. [1] Young, "A first order approximation to the optimum checkpoint interval",
   Communications of the ACM, 1974.
.. [2] Daly, "A higher order estimate of the optimum checkpoint interval for restart
   dumps", Future Generation Computer Systems, 2006, equation (37).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, pdtr

from topologies.arrays import FloatArray


def young_interval(stall: float, mtti: float) -> float:
    """Return Young's interval: ``sqrt(2 C M)`` of training [1]_ [s]."""
    return math.sqrt(2.0 * stall * mtti) if stall else 0.0


def daly_interval(stall: float, mtti: float) -> float:
    """Return Daly's interval of training, his equation (37) [2]_ [s]."""
    if stall >= 2.0 * mtti:
        return mtti
    if not stall or math.isinf(mtti):
        return young_interval(stall, mtti)
    half = stall / (2.0 * mtti)
    series = 1.0 + math.sqrt(half) / 3.0 + half / 9.0
    return young_interval(stall, mtti) * series - stall


class NodeLoss(NamedTuple):
    """What takes nodes out."""

    rate: float
    """How often [1/s]."""

    nodes: int = 1
    """Nodes at once."""

    repair: float | None = None
    """Time of their repair; None for that of all others [s]."""

    def broken(self, repair: float) -> float:
        """Return how many of such failures are in repair on average."""
        return self.rate * (repair if self.repair is None else self.repair)


MOST_COUNTED = 2**22
"""Longest distribution of broken nodes that is computed; beyond, it is a normal one."""


def enough_nodes(
    losses: Sequence[NodeLoss], repair: float, spares: FloatArray
) -> FloatArray:
    """Return the share of the time in which at most so many nodes are broken.

    Nodes that are repaired side by side are a queue with as many servers as there are
    nodes: the number of broken ones is Poisson, whatever the distribution of the repair
    (Palm's theorem). Where failures take several nodes at once, it is a sum of such
    numbers, each times the nodes of its failure.

    Parameters
    ----------
    losses
        What takes nodes of the job.
    repair
        Time of a repair where a loss has none of its own [s].
    spares
        Numbers of spare nodes.
    """
    if all(loss.nodes == 1 for loss in losses):
        return np.asarray(pdtr(spares, _mean(losses, repair)), dtype=np.float64)
    mean, deviation, length = _spread(losses, repair)
    if length > MOST_COUNTED:
        return np.asarray(ndtr((spares + 0.5 - mean) / deviation))
    shares = np.cumsum(broken_nodes(losses, repair, length))
    return np.asarray(shares[np.minimum(spares, length - 1).astype(np.int64)])


def broken_nodes(losses: Sequence[NodeLoss], repair: float, length: int) -> FloatArray:
    """Return the share of the time in which 0, 1, .. nodes are broken.

    By the transform of the compound Poisson distribution: that of ``n`` nodes at once
    which fail ``m`` times in a repair is ``exp(m (z**n - 1))``.

    Parameters
    ----------
    losses, repair
        As for `enough_nodes`.
    length
        Numbers of nodes that are told apart; more are rare.
    """
    roots = np.exp(-2j * np.pi * np.arange(length // 2 + 1) / length)
    exponent = np.zeros_like(roots)
    for loss in losses:
        exponent += loss.broken(repair) * (roots**loss.nodes - 1.0)
    return np.asarray(np.fft.irfft(np.exp(exponent), length))


def _mean(losses: Sequence[NodeLoss], repair: float) -> float:
    return sum(loss.broken(repair) * loss.nodes for loss in losses)


def _spread(losses: Sequence[NodeLoss], repair: float) -> tuple[float, float, int]:
    """Return mean and deviation of the broken nodes, and how many are never broken."""
    mean = _mean(losses, repair)
    variance = sum(loss.broken(repair) * loss.nodes**2 for loss in losses)
    most = 40 * max((loss.nodes for loss in losses), default=1)
    deviation = math.sqrt(variance)
    return mean, deviation, 2 * math.ceil(mean / 2 + 6.0 * deviation + most)


def spares_for(losses: Sequence[NodeLoss], repair: float, share: float) -> int:
    """Return how many spare nodes are enough for a share of the time below 1."""
    least, most = 0, _spread(losses, repair)[2]
    while least < most:
        middle = (least + most) // 2
        if enough_nodes(losses, repair, np.array([float(middle)]))[0] >= share:
            most = middle
        else:
            least = middle + 1
    return least
