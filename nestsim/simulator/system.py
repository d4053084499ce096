"""What an engine runs, and what the simulator gives back.

Nothing here knows of stages, replicas or devices. An *actor* runs a program, a static
list of steps, which names the actor's channels by their *ports*. A *channel* carries
messages, one at a time, first in, first out, each a flow over links; sending never
blocks the sender. An actor, a channel or a link may stand for many that are alike: a
class of flows is a flow with a larger weight.

Durations are rounded to the clock's tick, so that sums of them are exact. A float64 has
53 bits: multiples of 2**-40 s below 2**13 s are all representable, and so are their
sums and differences. Moments that should coincide then do, and the same state at
another time evolves bit for bit alike.

Letters: ``A`` actors, ``S`` ports, ``C`` channels, ``L`` links.

What a replay is asked, and what it gives back: all that happened in a step, and on
every link.

Letters: ``p`` stages, ``d`` replicas of each, ``E`` links. Where actors (stages of
replicas), channels or links are alike, what one of them did is recorded, and how many
it stands for.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import FloatArray, IntArray
from topologies.errors import short_repr
from topologies.settings import NameChoice, Seed, Spec

NONE = -1
"""No port, no channel in a port, or no span."""

OPENS = 1
"""Flag of a step: a span begins when it begins to work."""

CLOSES = 2
"""Flag of a step: a span ends when it ends."""

WHOLE = OPENS | CLOSES
"""Flags of a step that is a span of its own."""


ROUND = 4
"""Unit of the flags behind the others, which number the rounds of a program that does
the same again and again. It is then no loop of rounds, and the loops inside of each are
found, in which the state of a run repeats far sooner."""


class Step(NamedTuple):
    """One step of a program: wait, work, post."""

    duration: float
    """Duration of the work, a multiple of the tick [s]."""

    source: int
    """Port of the channel to wait for, or `NONE`."""

    need: int
    """Messages that must have arrived in the source."""

    target: int
    """Port of the channel to post to at the end, or `NONE`."""

    span: int
    """`OPENS`, `CLOSES`, `WHOLE`, or 0 for a step that only waits, works or posts as
    part of a span that is open, or outside of any; perhaps plus a multiple of
    `ROUND`."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A program: the fields of `Step` as columns of one length."""

    duration: FloatArray
    """Duration of each step's work, a multiple of the tick [s]."""

    source: IntArray
    """Port of the channel that each step waits for, or `NONE`."""

    need: IntArray
    """Messages that must have arrived in the source of each step."""

    target: IntArray
    """Port of the channel that each step posts to at its end, or `NONE`."""

    span: IntArray
    """Flags of each step: `OPENS`, `CLOSES`, `WHOLE` or 0."""

    @classmethod
    def of(cls, steps: Iterable[tuple[float, int, int, int, int]]) -> "Steps":
        """Return a program that is written down step by step, as of `Step`."""
        columns = [*zip(*steps, strict=True)] or [()] * len(Step._fields)
        duration, *rest = columns
        return cls(
            np.array(duration, np.float64),
            *(np.array(column, np.int64) for column in rest),
        )

    def __len__(self) -> int:
        return self.duration.size

    @property
    def columns(self) -> tuple[FloatArray, IntArray, IntArray, IntArray, IntArray]:
        """Return the columns in the order of the fields."""
        return self.duration, self.source, self.need, self.target, self.span

    def __iter__(self) -> Iterator[Step]:
        columns = (column.tolist() for column in self.columns)
        return map(Step._make, zip(*columns, strict=True))

    def followed_by(self, others: "Steps") -> "Steps":
        """Return these steps and then others."""
        pairs = zip(self.columns, others.columns, strict=True)
        joined: list[NDArray[Any]] = [np.concatenate(pair) for pair in pairs]
        return Steps(*joined)


def entries_of_rows(
    indptr: IntArray, rows: IntArray, *columns: IntArray
) -> tuple[IntArray, ...]:
    """Return the entries of some compressed rows, and before them their row's place."""
    sizes = indptr[rows + 1] - indptr[rows]
    place = np.repeat(np.arange(rows.size), sizes)
    begin = np.cumsum(sizes) - sizes
    entries = np.arange(place.size) + (indptr[rows] - begin)[place]
    return place, *(column[entries] for column in columns)


def row_pointers(counts: IntArray) -> IntArray:
    """Return where rows of so many entries begin, and behind them where they end."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


class Incidence(NamedTuple):
    """Which flow crosses which link with what weight, in compressed rows by flow."""

    indptr: IntArray
    """First entry of each flow, and behind the last one, shape ``(C + 1,)``."""

    links: IntArray
    """Links that flows cross, rising within a flow."""

    weights: FloatArray
    """Pairs of devices of the flow on the link; positive, integer or a multiple of
    2**-20."""

    def restricted(self, links: IntArray, num_links: int) -> "Incidence":
        """Keep the given links of ``num_links``, numbered from 0 in their order."""
        number = np.full(num_links, -1, dtype=np.int64)
        number[links] = np.arange(links.size)
        kept = number[self.links] >= 0
        running = np.zeros(kept.size + 1, dtype=np.int64)
        np.cumsum(kept, out=running[1:])
        return Incidence(
            running[self.indptr], number[self.links[kept]], self.weights[kept]
        )

    def taken(self, rows: IntArray) -> "Incidence":
        """Return the given rows, some of them perhaps more than once."""
        every = np.arange(self.links.size)
        _, entries = entries_of_rows(self.indptr, rows, every)
        indptr = row_pointers(np.diff(self.indptr)[rows])
        return Incidence(indptr, self.links[entries], self.weights[entries])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class System:
    """Everything that an engine needs."""

    programs: tuple[Steps, ...]
    """Distinct programs of the actors."""

    program: IntArray
    """Program that each actor runs, shape ``(A,)``."""

    ports: IntArray
    """Channel in each port of each actor, `NONE` where there is none and behind the
    last, shape ``(A, S)``."""

    num_sources: IntArray
    """Posts before a message of each channel is complete: one from each sender, shape
    ``(C,)``. No sender posts for the next message before all have posted for this."""

    latency: FloatArray
    """Time from a message's leaving to its arrival in each channel, a multiple of the
    tick, shape ``(C,)`` [s]."""

    num_bytes: FloatArray
    """Bytes of a message of each channel, between each pair of its devices; 0 needs no
    time on a link. Shape ``(C,)`` [byte]."""

    incidence: Incidence
    """Links that can limit each channel's flow; a message whose flow has none, because
    it stays on one device, needs no time on a link."""

    capacity: FloatArray
    """Capacity of each link, positive, shape ``(L,)`` [byte/s]."""

    tick: float
    """Unit of the clock [s]."""

    num_recorded: int
    """Rows that the recorded traffic will be spread over: bounds its time bins."""

    delays: FloatArray = field(default_factory=lambda: np.zeros(0))
    """What each message needs beyond its channel's latency, in order, channel by
    channel, multiples of the tick; empty if none needs more. Messages do not overtake
    each other: none arrives before the one ahead of it in its channel [s]."""

    __repr__ = short_repr

    @property
    def wired(self) -> NDArray[np.bool_]:
        """Whether a channel's messages need time on a link, shape ``(C,)``."""
        return np.asarray((self.num_bytes > 0) & (np.diff(self.incidence.indptr) > 0))

    @property
    def is_delayed(self) -> bool:
        """Whether messages have delays of their own: then no state comes again."""
        return self.delays.size > 0


class Skip(NamedTuple):
    """Periods in a row that were not simulated."""

    begin: float
    """Moment at which the period before them ended [s]."""

    period: float
    """Duration of each of the periods [s]."""

    num_periods: int
    """Number of periods skipped."""

    num_spans: int
    """Spans that ended in the periods."""

    num_events: int
    """Events in the periods, counted as in `Run.num_events`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What happened in the run of a system."""

    end: float
    """Moment at which the last actor was done [s]."""

    span_starts: tuple[FloatArray, ...]
    """Moments at which the spans of each actor began, in order of its program [s]."""

    span_ends: tuple[FloatArray, ...]
    """Moments at which the spans of each actor ended, in order of its program [s]."""

    posts: tuple[FloatArray, ...]
    """Moments at which the messages of each channel were complete at their senders
    [s]."""

    departures: tuple[FloatArray, ...]
    """Moments at which the first bytes of the messages of each channel left [s]."""

    arrivals: tuple[FloatArray, ...]
    """Moments at which the receivers had the messages of each channel [s]."""

    bins: FloatArray
    """Bytes that each channel's flow moved between each pair of devices in each time
    bin, shape ``(C, K)`` [byte]."""

    bin_width: float
    """Width of a time bin [s]."""

    num_events: int
    """Steps, messages that left, messages that arrived, and instants at which rates
    were solved; without those that were skipped."""

    skips: tuple[Skip, ...] = ()
    """Periods that were not simulated, because they repeat exactly; in order."""

    @property
    def num_skipped(self) -> int:
        """Spans that were not simulated."""
        return sum(skip.num_spans for skip in self.skips)


def is_same_run(first: Run, other: Run) -> bool:
    """Tell whether two runs are the same, bit for bit."""
    numbers = operator.attrgetter("end", "bin_width", "num_events", "skips")
    logs = operator.attrgetter(
        "span_starts", "span_ends", "posts", "departures", "arrivals"
    )
    pairs = [(first.bins, other.bins)]
    for ours, theirs in zip(logs(first), logs(other), strict=True):
        pairs += zip(ours, theirs, strict=True)
    return bool(numbers(first) == numbers(other)) and all(
        np.array_equal(mine, its) for mine, its in pairs
    )


TICK = 2.0**-40
"""The finest tick, 0.9 ps [s]."""

_MANTISSA_BITS = 53
"""Bits of a float64's fraction, the leading one included."""


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


def num_posts(programs: Sequence[Steps], num_ports: int) -> IntArray:
    """Return the messages that each program posts to each port, shape ``(P, S)``."""
    counts = np.zeros((len(programs), num_ports), np.int64)
    for number, steps in enumerate(programs):
        posted = steps.target[steps.target != NONE]
        counts[number] = np.bincount(posted, minlength=num_ports)
    return counts


class Spans(NamedTuple):
    """Work on compute streams, in order of start: read-only arrays of one length."""

    stage: IntArray
    """Stage that works."""
    replica: IntArray
    """Replica that works."""
    kind: IntArray
    """Kind of work, an index into `SPAN_KINDS`."""
    microbatch: IntArray
    """Microbatch worked on, -1 where there is none."""
    chunk: IntArray
    """Chunk worked on, -1 where there is none."""
    start: FloatArray
    """Moment at which the work begins [s]."""
    end: FloatArray
    """Moment at which the work ends [s]."""


SPAN_KINDS = ("forward", "backward", "weight", "optimizer")
"""Names of the kinds of work on a compute stream."""


class Transfers(NamedTuple):
    """Stage-to-stage messages and collectives, in order of start."""

    kind: IntArray
    """Kind of message, an index into `TRANSFER_KINDS`."""
    stage: IntArray
    """Stage that sends, or that a collective belongs to."""
    replica: IntArray
    """Replica that sends, -1 for collectives."""
    microbatch: IntArray
    """Microbatch that a message belongs to, -1 for collectives."""
    chunk: IntArray
    """Chunk that sends, -1 for collectives."""
    posted: FloatArray
    """Moment at which the sender had the message ready [s]."""
    start: FloatArray
    """Moment at which the first byte left (a channel sends one message at a time)
    [s]."""
    end: FloatArray
    """Moment at which the receiver had the message, latency included [s]."""
    num_bytes: FloatArray
    """Bytes between each pair of devices, or of each ring member [byte]."""


TRANSFER_KINDS = (
    "activation",
    "gradient",
    "reduce",
    "gather",
    "tied",
    "tensor",
    "context",
    "expert",
    "layer gather",
    "layer reduce",
    "to device",
    "to host",
    "expert tensor",
)
"""Names of the kinds of messages. The last eight are sent inside of passes: by tensor-,
context- and expert-parallel groups, by ZeRO-2 and 3 for each layer, between devices and
their hosts, and by the ranks that share each expert where those are no tensor-parallel
groups."""


MOST_SIMPY_EVENTS = 3_000_000
"""Events up to which SimPy confirms a replay, however busy the machine is: about a
minute at 10 to 20 us each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory of one device of a stage over the step (replicas are alike in bytes)."""

    times: tuple[float, ...]
    """Moments of change, rising [s]."""

    total: tuple[float, ...]
    """Memory held from each moment of `times` on [byte]."""

    peak: float
    """Largest value of `total` [byte]."""

    peak_time: float
    """First moment at which `peak` is reached [s]."""

    peak_parts: Mapping[str, float]
    """What the peak is made of [byte]: the static parts, ``"activations"``,
    ``"working"``."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkUse:
    """Traffic on every link of the network."""

    num_bytes: FloatArray
    """Bytes that each link carried in the step, shape ``(E,)`` [byte]."""

    bin_edges: FloatArray
    """Edges of the time bins, shape ``(K + 1,)`` [s]."""

    rates: FloatArray
    """Mean load of the links in `link_ids` per bin, shape ``(H, K)`` [byte/s]."""

    link_ids: IntArray
    """The links that `rates` describes, rising: of links of one level and bandwidth
    that carried the same at all times the first, shape ``(H,)``."""

    row: IntArray
    """Row of `rates` that holds for each link, -1 for links that carried nothing,
    shape ``(E,)``."""

    __repr__ = short_repr

    @property
    def num_alike(self) -> IntArray:
        """Links that each row of `rates` stands for, shape ``(H,)``."""
        used = self.row[self.row >= 0]
        return np.bincount(used, minlength=self.link_ids.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """Everything that happened in one simulated training step."""

    schedule: str
    """Name of the pipeline's schedule, of `planner.step.schedules.SCHEDULES`."""

    iteration_time: float
    """Time until the last stage has finished its last duty [s]."""

    pipeline_time: float
    """Time until the last backward pass has ended [s]."""

    spans: Spans
    """Compute: of each class of alike actors the first one's, in order of stages."""

    span_multiplicity: IntArray
    """Actors that each row of `spans` stands for, itself included."""

    transfers: Transfers
    """Communication: of each class of alike channels the first one's."""

    transfer_multiplicity: IntArray
    """Channels that each row of `transfers` stands for, itself included."""

    representative: IntArray
    """Replica whose records hold for each actor: the first one of its stage that is
    alike, the actor's own where all are recorded. Messages between stages have the
    replica of their sender's representative. Shape ``(p, d)``."""

    memory: tuple[MemoryTimeline, ...]
    """Memory of a device of each stage, in the replica with the largest peak, the first
    one of equals; empty if it was not asked for."""

    links: LinkUse
    """Traffic on every link of the network."""

    engine: str
    """Engine that made the records: ``"simpy"`` or ``"compiled"``."""
    host_time: FloatArray | None = None
    """Part of passes and optimizer steps in which devices wait for their hosts, as
    `nestsim.simulator.work.PipelineWork` has it [s]."""

    num_events: int
    """Events that the engine processed."""

    num_skipped: int
    """Passes that were not simulated, because whole periods repeat exactly."""

    notes: tuple[str, ...]
    """What was not simulated event by event, one sentence each."""

    system: System | None = None
    """What the engine ran; None where nobody says."""

    __repr__ = short_repr

    @property
    def num_actors(self) -> int:
        """Stages of replicas."""
        return self.representative.size

    @property
    def num_classes(self) -> int:
        """Actors that stand for themselves, and for all others."""
        return int(
            (self.representative == np.arange(self.representative.shape[1])).sum()
        )


GRANULARITIES = ("stage", "layer")
"""Values of `ReplaySettings.granularity`."""

ENGINES = ("auto", "simpy", "compiled")
"""Values of `ReplaySettings.engine`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings(Spec):
    """What the replay simulates event by event, and what it may leave out exactly.

    What the framework hides behind compute is part of the job instead:
    `planner.step.execution`.
    """

    granularity: Annotated[str, NameChoice(GRANULARITIES)] = "stage"
    """Whether collectives inside layers are part of the stages' times ("stage"), priced
    with all groups active at once, or each a flow over the links ("layer")."""

    folding: bool = True
    """Whether one of each class of devices that are provably alike is simulated for all
    of them; the result is exact."""

    skipping: bool = True
    """Whether whole periods are skipped once the state of the pipeline repeats; the
    result is exact."""

    engine: Annotated[str, NameChoice(ENGINES)] = "auto"
    """What runs the events: "simpy", "compiled", or "auto", which compiles long runs.
    The results are the same to the bit."""

    seed: Seed = 0
    """Seed of everything that is drawn at random."""
