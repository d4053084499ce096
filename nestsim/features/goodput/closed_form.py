"""How often to save, and what failures leave of the training: closed forms.

Failures are a Poisson process of mean time between failures ``M`` that also hits the
job while it restarts. After each one the job needs the time ``d`` to notice, then ``R``
without a failure to go on. A checkpoint stops the training for ``c`` every ``t`` of
training and counts once it has been written for another ``w`` beside it (0 where the
job waits for all of it, then ``c`` is all of it). Cycles from one restart to the next
are renewals: one lasts ``1/L + G`` on average, with ``L = 1/M`` and

    G = (d + M) exp(L R) - M,

and leaves ``floor((X - w) / (t + c))`` checkpoints of the exponential time ``X`` that
it trained, so that of all time

    t exp(-L w) / ((exp(L (t + c)) - 1) (M + G))

is training that is kept. With ``w = d = 0`` this is Daly's complete model [2]_ (his
equation for the total time). Its largest value is where ``L t = 1 - exp(-L (t + c))``,
which Lambert's function solves: it depends on neither ``R``, ``d`` nor ``w``.

References
----------
.. [1] Young, "A first order approximation to the optimum checkpoint interval",
   Communications of the ACM, 1974.
.. [2] Daly, "A higher order estimate of the optimum checkpoint interval for restart
   dumps", Future Generation Computer Systems, 2006, equation (37) and section 4.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import lambertw, ndtr, pdtr

from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What repeats between failures."""

    mtti: float
    """Mean time from one failure to the next; infinite without failures [s]."""

    stall: float
    """Time for which a checkpoint stops the training [s]."""

    background: float
    """Time for which it is written beside the training after that [s]."""

    detection: float
    """Mean time from a failure until the job is stopped [s]."""

    restart: float
    """Time from there until training goes on, if nothing fails [s]."""

    stopped: float = 0.0
    """Share of the time that planned stops take."""

    def training(self, interval: float) -> float:
        """Return the training between two checkpoints [s].

        The next one does not begin before the last one is written.
        """
        return max(interval, self.background)

    def recovery(self) -> float:
        """Return the mean time from a failure until training goes on [s]."""
        if math.isinf(self.mtti):
            return 0.0
        grown = _grown(self.restart / self.mtti)
        return self.detection + (self.detection + self.mtti) * grown

    def goodput(self, interval: float) -> float:
        """Return the share of the time that is training which is kept.

        Exact in the long run; planned stops are taken off as if failures did not meet
        them.
        """
        training = self.training(interval)
        period = training + self.stall
        share = training / period
        if math.isfinite(self.mtti):
            first = interval + self.stall + self.background
            others = training / _grown(period / self.mtti)
            kept = math.exp(-first / self.mtti) * (interval + others)
            share = kept / (self.mtti + self.recovery())
        return share * max(0.0, 1.0 - self.stopped)

    def best_interval(self) -> float:
        """Return the training between two checkpoints that keeps most [s].

        Infinite without failures; 0 where a checkpoint costs nothing.
        """
        if math.isinf(self.mtti):
            return math.inf
        inverse = float(lambertw(-math.exp(-1.0 - self.stall / self.mtti)).real)
        # 1 + W(-1/e - 0) is 0 but for rounding.
        best = self.mtti * max(0.0, 1.0 + inverse)
        if best >= self.background:
            return best
        # One after the other; the first one after a restart may well come earlier.
        others = _grown((self.background + self.stall) / self.mtti)
        return min(self.background, self.mtti - self.background / others)


def _grown(exponent: float) -> float:
    """Return ``exp(x) - 1``, infinite where no number is as large."""
    return math.expm1(exponent) if exponent < 700.0 else math.inf


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
        Time of a repair [s].
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
        exponent += loss.rate * repair * (roots**loss.nodes - 1.0)
    return np.asarray(np.fft.irfft(np.exp(exponent), length))


def _mean(losses: Sequence[NodeLoss], repair: float) -> float:
    return repair * sum(loss.rate * loss.nodes for loss in losses)


def _spread(losses: Sequence[NodeLoss], repair: float) -> tuple[float, float, int]:
    """Return mean and deviation of the broken nodes, and how many are never broken."""
    mean = _mean(losses, repair)
    variance = repair * sum(loss.rate * loss.nodes**2 for loss in losses)
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
