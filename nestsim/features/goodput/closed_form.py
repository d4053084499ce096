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
from dataclasses import dataclass

import numpy as np
from scipy.special import lambertw, pdtr

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


def enough_nodes(failure_rate: float, repair: float, spares: FloatArray) -> FloatArray:
    """Return the share of the time in which at most so many nodes are broken.

    Nodes that are repaired side by side are a queue with as many servers as there are
    nodes: the number of broken ones is Poisson, whatever the distribution of the repair
    (Palm's theorem).

    Parameters
    ----------
    failure_rate
        Of all nodes of the job [1/s].
    repair
        Mean time of a repair [s].
    spares
        Numbers of spare nodes.
    """
    return np.asarray(pdtr(spares, failure_rate * repair), dtype=np.float64)


def spares_for(failure_rate: float, repair: float, share: float) -> int:
    """Return how many spare nodes are enough for a share of the time below 1."""
    mean = failure_rate * repair
    least, most = 0, int(mean + 12.0 * math.sqrt(mean) + 40.0)
    while least < most:
        middle = (least + most) // 2
        if pdtr(middle, mean) >= share:
            most = middle
        else:
            least = middle + 1
    return least
