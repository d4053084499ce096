"""What happens to a job under a seed: failures, nodes that are slow first, stops.

Random numbers depend on the seed and the kind of failure alone: other habits meet the
same failures. A kind has numbers of its own for each question about its failures.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nestsim.features.goodput.kernels import (
    DRAINS,
    ENDS_SLOW,
    HANGS,
    LOSES_MEMORY,
    PLANNED,
    SLOWS,
    TAKES_NODE,
    WARM,
    Events,
)
from topologies.arrays import FloatArray, IntArray

TICK = 1e-6
"""What the kernel counts time in [s]."""

GIVEN = "goodput.rates"
"""Source of a rate that the scenario gives."""

HANG, WARMTH, LUCK, SLOWNESS = 1000, 100_000, 200_000, 300_000
"""Streams from here on say which failures of a kind are hangs, restart in their
processes, take the last copy in memory, and are preceded by a slow node."""


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

    nodes: int = 1
    """Nodes that it takes out together, if it does."""

    source: str
    """Where the rate was published, `GIVEN`, or the file of a log."""

    counted: int | None = None
    """Failures that a log has of it; None where there is none."""

    rate_band: tuple[float, float] | None = None
    """What the log says of `rate`, in 90 of 100 logs [1/s]."""

    shape_band: tuple[float, float] = (1.0, 1.0)
    """What it says of `shape`."""

    repair: float | None = None
    """Until a node that it takes is a spare; None as for all others [s]."""

    warm_share: float = 0.0
    """Share of its failures after which the job restarts in its processes."""

    memory_loss: float = 0.0
    """Share of its failures that take a whole group of peers, if it takes several
    nodes."""

    moments: tuple[float, ...] | None = field(default=None, repr=False)
    """When they fail, ascending, in place of at random [s]."""

    @property
    def total_rate(self) -> float:
        """How often any of them fails [1/s]."""
        return self.count * self.rate

    def draw(self, seed: int, duration: float) -> FloatArray:
        """Return when they fail, ascending, before ``duration`` [s]."""
        if self.moments is not None:
            logged = np.array(self.moments)
            return logged[logged < duration]
        if self.total_rate == 0.0:
            return np.empty(0)
        numbers = np.random.Philox(key=np.array([seed, self.stream], dtype=np.uint64))
        if self.shape == 1.0:
            return _poisson(numbers, self.total_rate, duration)
        scale = 1.0 / (self.rate * math.gamma(1.0 + 1.0 / self.shape))
        return _renewals(numbers, self, scale, duration)

    @property
    def may_be_slow(self) -> bool:
        """Whether its failures may be those of nodes that are slow first."""
        return self.breaks_node and self.nodes == 1

    def luck(self, seed: int, question: int, count: int) -> FloatArray:
        """Return a random number below 1 for each of the first failures."""
        key = np.array([seed, question + self.stream], dtype=np.uint64)
        return _uniform(np.random.Philox(key=key), count)


class SlowNodes(NamedTuple):
    """Nodes that are slow before they fail."""

    share: float
    """Of the failures of single nodes."""

    time: float
    """From there until the node fails [s]."""

    speed: float
    """Of the whole job meanwhile, over that without a slow node."""

    detection: float
    """Until it is noticed, and the node left out; at least `time` if never [s]."""

    @property
    def is_drained(self) -> bool:
        """Whether the node is left out before it fails."""
        return self.detection < self.time

    @property
    def window(self) -> float:
        """Time for which the node is slow [s]."""
        return min(self.time, self.detection)


class Drawing(NamedTuple):
    """What is drawn beside the failures themselves."""

    repair: float
    """Until a node is a spare where its kind does not say [s]."""

    hang_share: float
    """Share of the failures that are noticed by a time limit alone."""

    planned_every: float = math.inf
    """Time from one planned stop to the next [s]."""

    slow: SlowNodes | None = None
    """Nodes that are slow first; None without."""

    has_peers: bool = False
    """Whether it matters which nodes fail together."""


def draw_events(
    kinds: Sequence[FailureKind], seed: int, duration: float, drawing: Drawing
) -> tuple[Events, tuple[int, ...]]:
    """Return what happens to a job, and the number of failures of each kind.

    Parameters
    ----------
    kinds
        What fails.
    seed
        Of all random numbers.
    duration
        Of the job [s].
    drawing
        What else is drawn.
    """
    drawn = [_drawn(kind, seed, duration, drawing) for kind in kinds]
    if math.isfinite(drawing.planned_every):
        number = math.ceil(duration / drawing.planned_every)
        stops: FloatArray = np.arange(1.0, number) * drawing.planned_every
        none = np.zeros(len(stops))
        drawn.append(
            _DrawnEvents(stops, np.full(len(stops), PLANNED), none, none, none)
        )
    nothing = np.empty(0)
    times = np.concatenate([*(rows.times for rows in drawn), nothing])
    order = np.argsort(times, kind="stable")
    order = order[times[order] < duration]
    kinds_of = np.concatenate([*(rows.kinds for rows in drawn), nothing])
    repairs = np.concatenate([*(rows.repairs for rows in drawn), nothing])
    luck = np.concatenate([*(rows.luck for rows in drawn), nothing])
    events = Events(
        times=np.floor(times[order] / TICK).astype(np.int64),
        kinds=kinds_of[order].astype(np.int64),
        repairs=np.round(repairs[order] / TICK).astype(np.int64),
        luck=luck[order],
    )
    failed = (rows.failed < duration for rows in drawn[: len(kinds)])
    return events, tuple(int(those.sum()) for those in failed)


class _DrawnEvents(NamedTuple):
    """Events before they are sorted; times in seconds."""

    times: FloatArray
    kinds: IntArray
    repairs: FloatArray
    luck: FloatArray
    failed: FloatArray
    """When components fail, or would if they were not left out before."""


def _drawn(
    kind: FailureKind, seed: int, duration: float, drawing: Drawing
) -> "_DrawnEvents":
    slow = drawing.slow if kind.may_be_slow else None
    failed = kind.draw(seed, duration + (0.0 if slow is None else slow.time))
    count = len(failed)
    bits = np.full(count, TAKES_NODE * kind.breaks_node)
    bits += HANGS * (kind.luck(seed, HANG, count) < drawing.hang_share)
    if kind.warm_share:
        bits += WARM * (kind.luck(seed, WARMTH, count) < kind.warm_share)
    luck = kind.luck(seed, LUCK, count) if drawing.has_peers else np.zeros(count)
    if kind.nodes > 1:
        bits += LOSES_MEMORY * (luck < kind.memory_loss)
        luck = np.full(count, -1.0)
    times, begun = failed, np.empty(0)
    if slow is not None:
        is_slow = kind.luck(seed, SLOWNESS, count) < slow.share
        begin = np.maximum(failed - slow.time, 0.0)
        end = np.minimum(begin + slow.detection, failed)
        bits += is_slow * (ENDS_SLOW + DRAINS * (end < failed))
        times, begun = np.where(is_slow, end, failed), begin[is_slow]
    # Behind the node that stops the job, others of its domain fail in that tick.
    of_nodes = np.full((count, kind.nodes), TAKES_NODE)
    of_nodes[:, 0] = bits
    repair = drawing.repair if kind.repair is None else kind.repair
    return _DrawnEvents(
        times=np.concatenate([np.repeat(times, kind.nodes), begun]),
        kinds=np.concatenate([of_nodes.ravel(), np.full(len(begun), SLOWS)]),
        repairs=np.full(count * kind.nodes + len(begun), repair),
        luck=np.concatenate([np.repeat(luck, kind.nodes), np.zeros(len(begun))]),
        failed=failed,
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
    renewals = []
    while len(last):
        last = last + scale * _exponential(numbers, len(last)) ** (1.0 / kind.shape)
        last = last[last < duration]
        renewals.append(last)
    return np.sort(np.concatenate(renewals))
