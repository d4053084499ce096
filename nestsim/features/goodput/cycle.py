"""What failures leave of the training in the long run: renewal theory.

Failures are a Poisson process of mean time between failures ``M = 1/L`` that also hits
the job while it restarts. After each one the job needs the time ``d`` to notice, then
``R`` without a failure to go on. A checkpoint stops the training for ``c`` every ``t``
of training and counts once it has been written for another ``w`` beside it (0 where the
job waits for all of it, then ``c`` is all of it). Cycles from one restart to the next
are renewals: one lasts ``M + G`` on average, with

    G = (d + M) exp(L R) - M,

and leaves ``floor((X - w) / (t + c))`` checkpoints of the exponential time ``X`` that
it trained, so that of all time

    t exp(-L w) / ((exp(L (t + c)) - 1) (M + G))

is training that is kept. With ``w = d = 0`` this is Daly's complete model [1]_ (his
equation for the total time). Its largest value is where ``L t = 1 - exp(-L (t + c))``,
which Lambert's function solves: it depends on neither ``R``, ``d`` nor ``w``.

With checkpoints in memory every ``P`` and complete ``v`` later, a failure that leaves
memory whole sends the job back to the last of them. Let ``r`` of them fit between
there and the next checkpoint in the storage, which is ``r P + g`` of time away. The
chance ``F(r)`` to get there before a failure takes the memory, too, obeys

    F(r) = exp(-L (r P + g)) + a E[F(r - j), X < r P + g],
    j = min(r, floor((X - v) / P)), at least 0,

where ``a`` is the chance that a failure leaves the memory whole until training goes
on. It is geometric in ``r`` from 1 on, and so is, but for a constant, the mean time
``T(r)``, which obeys the same equation with other sources. Then

    t exp(-L (1 - s) w) F / T

is kept, ``s`` being the share of failures that leave the memory whole, and the time
after a failure that takes it a part of ``T``.

References
----------
.. [1] Daly, "A higher order estimate of the optimum checkpoint interval for restart
   dumps", Future Generation Computer Systems, 2006, section 4.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import minimize_scalar
from scipy.special import lambertw


class Outage(NamedTuple):
    """What follows upon failures of one kind; the quickest kinds come first.

    If another failure hits its restart, the slower one of both restarts follows.
    """

    detection: float
    """Mean time from a failure until it is known what to do [s]."""

    restart: float
    """Time from there until training goes on from the storage, if nothing fails
    [s]."""

    peer_restart: float = 0.0
    """The same from the memory of peers [s]."""

    share: float = 1.0
    """Of all failures."""

    memory_loss: float = 1.0
    """Share of them that take what is in the memory of peers."""


class PeerCycle(NamedTuple):
    """Checkpoints in the memory of peers."""

    interval: float
    """Training between two of them [s]."""

    stall: float
    """Time for which one stops the training [s]."""

    write: float
    """From the copy until the peers have it [s]."""

    @property
    def period(self) -> float:
        """Time from one to the next [s]."""
        return self.interval + self.stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """What repeats between failures."""

    mtti: float
    """Mean time from one failure to the next; infinite without failures [s]."""

    stall: float
    """Time for which a checkpoint stops the training [s]."""

    background: float
    """Time for which it is written beside the training after that [s]."""

    outages: tuple[Outage, ...]
    """What follows upon failures; their shares sum to 1."""

    peers: PeerCycle | None = None
    """Checkpoints in the memory of peers; None without."""

    stopped: float = 0.0
    """Share of the time that stops without a failure take."""

    slowed: float = 0.0
    """Share of the time of training that slow nodes cost."""

    @property
    def memory_loss(self) -> float:
        """Share of the failures that need a checkpoint of the storage."""
        return sum(outage.share * outage.memory_loss for outage in self.outages)

    def training(self, interval: float) -> float:
        """Return the time of training between two checkpoints [s].

        The next one does not begin before the last one is written.
        """
        if self.peers is not None:
            interval *= self.peers.period / self.peers.interval
        return max(interval, self.background)

    def recovery(self) -> float:
        """Return the mean time from a failure until training goes on [s]."""
        if math.isinf(self.mtti):
            return 0.0
        return _after(self).mean

    def goodput(self, interval: float) -> float:
        """Return the share of the time that is training which is kept.

        Exact in the long run, but for stops, which are taken off as if failures did not
        meet them, for slow nodes, which are taken off all training alike, and for nodes
        that are lost one by one until a group of peers is.
        """
        training = self.training(interval)
        period = training + self.stall
        if math.isinf(self.mtti):
            share = training / period
            if self.peers is not None:
                share *= self.peers.interval / self.peers.period
        elif self.peers is not None:
            share = self._with_peers(self.peers, training)
        else:
            first = interval + self.stall + self.background
            others = training / _grown(period / self.mtti)
            kept = math.exp(-first / self.mtti) * (interval + others)
            share = kept / (self.mtti + self.recovery())
        return share * max(0.0, 1.0 - self.stopped) * (1.0 - self.slowed)

    def _with_peers(self, peers: PeerCycle, training: float) -> float:
        rate, after = 1.0 / self.mtti, _after(self)
        if math.isinf(after.mean):
            return 0.0
        period = peers.period
        number = max(0, math.floor((training - peers.write) / period + 1e-9))
        rest = training - number * period + self.stall
        # exp(-L P), exp(-L v), exp(-L g), and what is missing to 1.
        stays, fails = math.exp(-rate * period), -math.expm1(-rate * period)
        sends = math.exp(-rate * peers.write)
        ends, missed = math.exp(-rate * rest), -math.expm1(-rate * rest)
        back, cost = after.kept, self.mtti + after.mean
        stuck = 1.0 - back * (1.0 - stays * sends)
        if not stuck or back * missed >= 1.0:
            return 0.0
        chance = ends / (1.0 - back * missed)
        time = cost * missed / (1.0 - back * missed)
        if number:
            ratio = stays * (1.0 - back + back * sends) / stuck
            spread = back * stays * (sends - ends)
            chance = (stays * ends + spread * chance) / stuck
            time = (cost * (1.0 - stays * ends) + spread * time) / stuck
            left = ratio ** (number - 1)
            steps = (1.0 - left) / (1.0 - ratio) if ratio < 1.0 else number - 1.0
            chance *= left
            time = time * left + cost * fails / stuck * steps
        written = math.exp(-rate * self.memory_loss * self.background)
        kept = training * peers.interval / period
        return written * kept * chance / time

    def best_interval(self) -> float:
        """Return the training between two checkpoints that keeps most [s].

        Infinite without failures, or without any that takes the memory of peers; 0
        where a checkpoint costs nothing.
        """
        if math.isinf(self.mtti):
            return math.inf
        if self.peers is not None:
            return self._best_with_peers(self.peers)
        inverse = float(lambertw(-math.exp(-1.0 - self.stall / self.mtti)).real)
        # 1 + W(-1/e - 0) is 0 but for rounding.
        best = self.mtti * max(0.0, 1.0 + inverse)
        if best >= self.background:
            return best
        # One after the other; the first one after a restart may well come earlier.
        others = _grown((self.background + self.stall) / self.mtti)
        return min(self.background, self.mtti - self.background / others)

    def _best_with_peers(self, peers: PeerCycle) -> float:
        if not self.memory_loss:
            return math.inf
        most = peers.interval + 20.0 * math.sqrt(
            2.0 * (self.stall + self.background) * self.mtti / self.memory_loss
        )
        looked = minimize_scalar(
            lambda log: -self.goodput(math.exp(log)),
            bounds=(math.log(peers.interval), math.log(most)),
            method="bounded",
            options={"xatol": 1e-4},
        )
        return math.exp(looked.x)


class _After(NamedTuple):
    """What follows upon a failure, on average."""

    mean: float
    """Time until training goes on [s]."""

    kept: float
    """Chance that it goes on from memory."""


def _after(cycle: Cycle) -> _After:
    """Return what follows upon a failure.

    From the slowest kind of restart to the quickest: a failure in a restart makes it no
    quicker.
    """
    rate, outages = 1.0 / cycle.mtti, cycle.outages
    detection = sum(outage.share * outage.detection for outage in outages)
    # From the diagnosis on: time from storage, time from memory, chance of memory.
    stored, remembered, chances = ([0.0] * len(outages) for _ in range(3))
    for place in range(len(outages) - 1, -1, -1):
        outage = outages[place]
        until, beyond = outages[: place + 1], range(place + 1, len(outages))
        hit = -math.expm1(-rate * outage.restart)
        again = sum(other.share for other in until)
        slower = sum(_part(outages[at].share, stored[at]) for at in beyond)
        stored[place] = _ratio(
            hit * (cycle.mtti + detection + slower),
            math.exp(-rate * outage.restart) + hit * max(0.0, 1.0 - again),
        )
        hit = -math.expm1(-rate * outage.peer_restart)
        whole = [other.share * (1.0 - other.memory_loss) for other in outages]
        turned = sum(
            _part(other.share * other.memory_loss, stored[max(place, at)])
            for at, other in enumerate(outages)
        )
        slower = sum(_part(whole[at], remembered[at]) for at in beyond)
        goes_on = 1.0 - hit * sum(whole[: place + 1])
        remembered[place] = _ratio(
            hit * (cycle.mtti + detection + turned + slower), goes_on
        )
        reached = sum(whole[at] * chances[at] for at in beyond)
        chances[place] = (1.0 - hit + hit * reached) / goes_on if goes_on else 0.0
    mean, kept = detection, 0.0
    for place, outage in enumerate(outages):
        lost = outage.share * outage.memory_loss
        mean += _part(lost, stored[place])
        mean += _part(outage.share - lost, remembered[place])
        kept += (outage.share - lost) * chances[place]
    return _After(mean, kept)


def _part(share: float, time: float) -> float:
    """Return the product, 0 where the share is."""
    return share * time if share else 0.0


def _ratio(time: float, chance: float) -> float:
    if not time:
        return 0.0
    return time / chance if chance else math.inf


def _grown(exponent: float) -> float:
    """Return ``exp(x) - 1``, infinite where no number is as large."""
    return math.expm1(exponent) if exponent < 700.0 else math.inf
