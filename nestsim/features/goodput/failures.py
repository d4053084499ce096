"""What fails in a job, and when: draws that any order and any worker repeats.

Each component has a counter-based stream of random numbers of its own (Philox [1]_,
keyed by the seed and the component): a rate that is twice as high gives the same
failures in half the time. Failures of one kind at a constant rate are one Poisson
process; where the rate changes with age (Weibull), each component is renewed by its
failures, all of them new at the beginning.

References
----------
.. [1] Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.features.goodput.kernels.run import HANGS, PLANNED, TAKES_NODE
from topologies.arrays import FloatArray, IntArray

TICK = 1e-6
"""What the kernel counts time in [s]."""

GIVEN = "goodput.rates"
"""Source of a rate that the scenario gives."""

_HANG_STREAM = 1000
"""Streams from here on say which failures of a component are hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureKind:
    """Components that fail alike."""

    name: str
    """What they are: one of `COMPONENTS` of the published failures."""

    stream: int
    """Number of their random numbers."""

    count: int
    """How many of them the job needs."""

    rate: float
    """How often one of them fails on average [1/s]."""

    shape: float = 1.0
    """Of the Weibull distribution of times between failures: 1 for a constant rate,
    less where new parts fail more, more where old ones do."""

    breaks_node: bool
    """Whether a failure takes a node out until it is repaired."""

    source: str
    """Where the rate was published, or `GIVEN`."""

    @property
    def total_rate(self) -> float:
        """How often any of them fails [1/s]."""
        return self.count * self.rate

    def draw(self, seed: int, duration: float) -> FloatArray:
        """Return when they fail, ascending, before ``duration`` [s]."""
        if self.total_rate == 0.0:
            return np.empty(0)
        numbers = np.random.Philox(key=np.array([seed, self.stream], dtype=np.uint64))
        if self.shape == 1.0:
            return _poisson(numbers, self.total_rate, duration)
        scale = 1.0 / (self.rate * math.gamma(1.0 + 1.0 / self.shape))
        return _renewals(numbers, self, scale, duration)

    def hangs(self, seed: int, count: int, share: float) -> IntArray:
        """Return 1 for each of the first failures that is a hang, else 0."""
        key = np.array([seed, _HANG_STREAM + self.stream], dtype=np.uint64)
        return (_uniform(np.random.Philox(key=key), count) < share).astype(np.int64)


class Events(NamedTuple):
    """Failures and planned stops of a job, by time."""

    times: IntArray
    """When, ascending, shape ``(E,)`` [tick]."""

    kinds: IntArray
    """Bits of `nestsim.features.goodput.kernels.run`, shape ``(E,)``."""

    counts: tuple[int, ...]
    """Failures of each kind that was given."""


def draw_events(
    kinds: Sequence[FailureKind],
    seed: int,
    duration: float,
    *,
    hang_share: float,
    planned_every: float = math.inf,
) -> Events:
    """Draw what happens to a job.

    Parameters
    ----------
    kinds
        What fails.
    seed
        Of all random numbers.
    duration
        Of the job [s].
    hang_share
        Share of the failures that are noticed by a time limit alone.
    planned_every
        Time from one planned stop to the next [s].
    """
    moments: list[FloatArray] = []
    bits: list[IntArray] = []
    for kind in kinds:
        failed = kind.draw(seed, duration)
        moments.append(failed)
        hangs = kind.hangs(seed, len(failed), hang_share)
        bits.append(HANGS * hangs + TAKES_NODE * kind.breaks_node)
    if math.isfinite(planned_every):
        number = math.ceil(duration / planned_every)
        stops: FloatArray = np.arange(1.0, number) * planned_every
        moments.append(stops)
        bits.append(np.full(len(stops), PLANNED))
    times = np.concatenate([*moments, np.empty(0)])
    order = np.argsort(times, kind="stable")
    return Events(
        times=np.floor(times[order] / TICK).astype(np.int64),
        kinds=np.concatenate([*bits, np.empty(0)]).astype(np.int64)[order],
        counts=tuple(len(one) for one in moments[: len(kinds)]),
    )


def _uniform(numbers: np.random.Philox, count: int) -> FloatArray:
    """Return numbers of at least 0 and below 1, of the upper 53 bits."""
    raw = np.asarray(numbers.random_raw(count), dtype=np.uint64)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def _exponential(numbers: np.random.Philox, count: int) -> FloatArray:
    return np.asarray(-np.log1p(-_uniform(numbers, count)))


def _poisson(numbers: np.random.Philox, rate: float, duration: float) -> FloatArray:
    """Return the moments of a Poisson process [s]."""
    mean = rate * duration
    block = int(mean + 6.0 * math.sqrt(mean) + 16.0)
    waits = _exponential(numbers, block)
    while waits.sum() < mean:
        waits = np.concatenate([waits, _exponential(numbers, block)])
    times: FloatArray = np.cumsum(waits) / rate
    return times[times < duration]


def _renewals(
    numbers: np.random.Philox, kind: FailureKind, scale: float, duration: float
) -> FloatArray:
    """Return the failures of components that are renewed by them, ascending [s]."""
    last = np.zeros(kind.count)
    found = []
    while len(last):
        last = last + scale * _exponential(numbers, len(last)) ** (1.0 / kind.shape)
        last = last[last < duration]
        found.append(last)
    return np.sort(np.concatenate(found))
