"""What an engine runs, and what it gives back: actors, channels, flows on links.

Nothing here knows of stages, replicas or devices. An *actor* runs a program, a static
list of steps. A *channel* carries messages, one at a time, first in, first out, each a
flow over links; sending never blocks the sender. An actor, a channel or a link may
stand for many that are alike: a class of flows is a flow with a larger weight.

Letters: ``A`` actors, ``S`` slots, ``C`` channels, ``L`` links.

The clock's tick: durations are rounded to it, so that sums of them are exact.

A float64 has 53 bits: multiples of 2**-40 s below 2**13 s are all representable, and
so are their sums and differences. Moments that should coincide then do, and the same
state at another time evolves bit for bit alike.

Which programs post to which slots, and how often.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import FloatArray, IntArray

NONE = -1
"""No slot, no channel in a slot, or no span."""

OPENS = 1
"""Flag of a step: a span begins when it begins to work."""

CLOSES = 2
"""Flag of a step: a span ends when it ends."""

WHOLE = OPENS | CLOSES
"""Flags of a step that is a span of its own."""


class Step(NamedTuple):
    """One step of a program: wait, work, post."""

    duration: float
    """A multiple of the tick [s]."""

    source: int
    """Slot of the channel to wait for, or `NONE`."""

    need: int
    """Messages that must have arrived there."""

    target: int
    """Slot of the channel to post to at the end, or `NONE`."""

    span: int
    """`OPENS`, `CLOSES`, `WHOLE`, or 0 for a step that only waits, works or posts as
    part of a span that is open, or outside of any."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A program: the fields of `Step` as columns of one length."""

    duration: FloatArray
    source: IntArray
    need: IntArray
    target: IntArray
    span: IntArray

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Steps":
        """Return a program that is written down step by step."""
        # All whole numbers in the steps are exact as floats.
        table = np.array([*steps], np.float64).reshape(-1, len(Step._fields)).T
        rest = (column.astype(np.int64) for column in table[1:])
        return cls(np.ascontiguousarray(table[0]), *rest)

    def __len__(self) -> int:
        return self.duration.size

    def __iter__(self) -> Iterator[Step]:
        columns = (self.duration, self.source, self.need, self.target, self.span)
        return map(Step._make, zip(*(one.tolist() for one in columns), strict=True))


class Incidence(NamedTuple):
    """Which flow crosses which link with what weight, in compressed rows by flow."""

    indptr: IntArray
    """Shape ``(C + 1,)``."""

    links: IntArray
    """Rising within a flow."""

    weights: FloatArray
    """Lanes of the flow on the link; positive, integer or a multiple of 2**-20."""

    def restricted(self, links: IntArray, num_links: int) -> "Incidence":
        """Keep the given links of ``num_links``, numbered from 0 in their order."""
        number = np.full(num_links, -1, dtype=np.int64)
        number[links] = np.arange(links.size)
        kept = number[self.links] >= 0
        running = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
        return Incidence(
            running[self.indptr], number[self.links[kept]], self.weights[kept]
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class System:
    """Everything that an engine needs."""

    programs: tuple[Steps, ...]
    """The distinct programs."""

    program: IntArray
    """Which program each actor runs, shape ``(A,)``."""

    slots: IntArray
    """Channel in each slot of each actor, `NONE` where there is none; rows shorter
    than the longest are filled up with `NONE`, shape ``(A, S)``."""

    num_sources: IntArray
    """Posts before a message of each channel is complete: one from each sender, shape
    ``(C,)``. No sender posts for the next message before all have posted for this."""

    latency: FloatArray
    """Between leaving and arriving, a multiple of the tick, shape ``(C,)`` [s]."""

    num_bytes: FloatArray
    """Of a message, per lane, shape ``(C,)`` [byte]; 0 needs no time on a link."""

    incidence: Incidence
    """Links that can limit each channel's flow; a message whose flow has none, because
    it stays on one device, needs no time on a link."""

    capacity: FloatArray
    """Of each link, shape ``(L,)``; positive [byte/s]."""

    tick: float
    """Unit of the clock [s]."""

    num_recorded: int
    """Rows that the recorded traffic will be spread over: bounds its time bins."""

    @property
    def wired(self) -> NDArray[np.bool_]:
        """Whether a channel's messages need time on a link, shape ``(C,)``."""
        return np.asarray((self.num_bytes > 0) & (np.diff(self.incidence.indptr) > 0))


class Skip(NamedTuple):
    """Periods in a row that were not simulated."""

    begin: float
    """When the period before them ended [s]."""

    period: float
    """What each of them takes [s]."""

    num_periods: int
    """How many they are."""

    num_spans: int
    """Spans that ended in them."""

    num_events: int
    """Events in them, counted as in `Run.num_events`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What happened."""

    end: float
    """When the last actor was done [s]."""

    span_starts: tuple[FloatArray, ...]
    """Of each actor, in order of its program [s]."""

    span_ends: tuple[FloatArray, ...]
    """Of each actor, in order of its program [s]."""

    posts: tuple[FloatArray, ...]
    """When each message of each channel was complete at its senders [s]."""

    departures: tuple[FloatArray, ...]
    """When its first byte left [s]."""

    arrivals: tuple[FloatArray, ...]
    """When the receivers had it [s]."""

    bins: FloatArray
    """Bytes that each channel's flow moved per lane in each time bin, shape
    ``(C, K)``."""

    bin_width: float
    """Of a time bin [s]."""

    num_events: int
    """Steps, messages that left, messages that arrived, and instants at which rates
    were solved; without those that were skipped."""

    skips: tuple[Skip, ...] = ()
    """What was not simulated, because whole periods repeat exactly; in order."""

    @property
    def num_skipped(self) -> int:
        """Spans that were not simulated."""
        return sum(skip.num_spans for skip in self.skips)


TICK = 2.0**-40
"""The finest tick, 0.9 ps [s]."""

_MANTISSA_BITS = 53


def tick_for(horizon: float) -> float:
    """Return the tick of a run that ends before ``horizon`` [s].

    `TICK` up to 8,192 s, about 2.3 hours; beyond, the finest power of two whose
    multiples up to the horizon are exact.
    """
    _, exponent = math.frexp(horizon)
    return max(TICK, 2.0 ** (exponent - _MANTISSA_BITS))


@overload
def quantise(duration: float, tick: float) -> float: ...
@overload
def quantise(duration: NDArray[np.float64], tick: float) -> NDArray[np.float64]: ...
def quantise(
    duration: float | NDArray[np.float64], tick: float
) -> float | NDArray[np.float64]:
    """Return the nearest multiple of the tick, halves downwards [s]."""
    # Adding 0 turns the -0 of a duration of 0 into 0.
    rounded = np.ceil(np.asarray(duration) / tick - 0.5) * tick + 0.0
    return float(rounded) if np.ndim(duration) == 0 else rounded


def num_posts(programs: Sequence[Steps], num_slots: int) -> IntArray:
    """Return the messages that each program posts to each slot, shape ``(P, S)``."""
    counts = np.zeros((len(programs), num_slots), np.int64)
    for number, steps in enumerate(programs):
        posted = steps.target[steps.target != NONE]
        counts[number] = np.bincount(posted, minlength=num_slots)
    return counts
