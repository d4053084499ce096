"""A job through failures, seed by seed: what it trains, and what took the rest.

The same seeds give the same numbers in any order: no seed knows of the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nestsim.features.goodput.kernels import (
    COPYING,
    DETECTING,
    HANGS,
    INTERRUPTIONS,
    MAINTAINING,
    NUM_COUNTS,
    NUM_STATES,
    PLANNED,
    RESTARTING,
    TAKES_NODE,
    TRAINING,
    WAITING,
    WRITING,
    JobHabits,
    Ledger,
    run_job,
)
from planner.work import Progress
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

    def hangs(self, seed: int, count: int, share: float) -> IntArray:
        """Return 1 for each of the first failures that is a hang, else 0."""
        key = np.array([seed, _HANG_STREAM + self.stream], dtype=np.uint64)
        return (_uniform(np.random.Philox(key=key), count) < share).astype(np.int64)


class Events(NamedTuple):
    """Failures and planned stops of a job, by time."""

    times: IntArray
    """When, ascending, shape ``(E,)`` [tick]."""

    kinds: IntArray
    """Bits of `nestsim.features.goodput.kernels`, shape ``(E,)``."""

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
    counts: list[int] = []
    for kind in kinds:
        failed = kind.draw(seed, duration)
        counts.append(len(failed))
        hangs = kind.hangs(seed, len(failed), hang_share)
        # Behind the node that stops the job, others of its domain fail in that tick.
        of_nodes = np.full((len(failed), kind.nodes), TAKES_NODE)
        of_nodes[:, 0] = HANGS * hangs + TAKES_NODE * kind.breaks_node
        moments.append(np.repeat(failed, kind.nodes))
        bits.append(of_nodes.ravel())
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
        counts=tuple(counts),
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


CAUSES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "lost work": (TRAINING,),
        "checkpoints": (COPYING, WRITING),
        "detection and diagnosis": (DETECTING,),
        "restart": (RESTARTING,),
        "waiting for repair": (WAITING,),
        "maintenance": (MAINTAINING,),
    }
)
"""What takes time from the training -> states of the kernel."""

NUM_MARKS = 52
"""Moments at which progress is noted, the end the last one: weeks of a year."""

_UNLIMITED = 1_000_000
"""Spare nodes of a job that always has one."""

_LONGEST = 2**60
"""For times that are never reached [tick]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryHabits:
    """What a job does about failures, in seconds."""

    interval: float
    """Training between two checkpoints [s]."""

    copy: float
    """Stall of a checkpoint that is written beside the training [s]."""

    write: float
    """From the beginning of a checkpoint until it counts, at least `copy` [s]."""

    is_asynchronous: bool
    """Whether checkpoints are written beside the training."""

    detection: float
    """From a failure until the job is stopped and it is known why [s]."""

    hang_detection: float
    """The same where the job hangs [s]."""

    hang_share: float
    """Share of the failures that make the job hang."""

    restart: float
    """From enough nodes until training goes on [s]."""

    repair: float
    """Until a broken node is a spare [s]."""

    spares: int | None
    """Spare nodes; None for as many as are ever needed."""

    num_nodes: int
    """Nodes of the job."""

    num_replicas: int = 1
    """Replicas of the model."""

    fewest_replicas: int = 1
    """Replicas that the job goes on with; all of them unless it is elastic."""

    speeds: tuple[float, ...] = (0.0, 1.0)
    """Throughput of 0, 1, .. replicas over that of all."""

    outlook: float = math.inf
    """Mean time to the next failure; the job takes replicas back if what they give in
    it is more than a restart [s]."""

    maintenance_every: float = math.inf
    """Time from one planned stop to the next [s]."""

    maintenance: float = 0.0
    """Length of a planned stop, without the restart [s]."""

    @property
    def is_elastic(self) -> bool:
        """Whether the job goes on with fewer replicas."""
        return self.fewest_replicas < self.num_replicas

    @property
    def stall(self) -> float:
        """Time for which a checkpoint stops the training [s]."""
        return self.copy if self.is_asynchronous else self.write

    @property
    def background(self) -> float:
        """Time for which it is written beside the training after that [s]."""
        return self.write - self.copy if self.is_asynchronous else 0.0

    @property
    def mean_detection(self) -> float:
        """Mean time from a failure until the job is stopped [s]."""
        late = self.hang_share * self.hang_detection
        return (1.0 - self.hang_share) * self.detection + late

    @property
    def stopped(self) -> float:
        """Share of the time that planned stops take."""
        stop = self.write + self.maintenance + self.restart
        return stop / self.maintenance_every

    def ticks(self) -> JobHabits:
        """Return the habits as the kernel takes them."""
        spares = _UNLIMITED if self.spares is None else self.spares
        return JobHabits(
            # A checkpoint after every tick would not be a number of times any more.
            interval=max(1, _ticks(self.interval)),
            copy=_ticks(self.copy),
            write=_ticks(self.write),
            is_asynchronous=int(self.is_asynchronous),
            detection=_ticks(self.detection),
            hang_detection=_ticks(self.hang_detection),
            restart=_ticks(self.restart),
            repair=_ticks(self.repair),
            maintenance=_ticks(self.maintenance),
            num_nodes=self.num_nodes + spares,
            nodes_per_replica=max(1, self.num_nodes // self.num_replicas),
            num_replicas=self.num_replicas,
            fewest_replicas=self.fewest_replicas,
            outlook=_ticks(self.outlook),
        )


def _ticks(seconds: float) -> int:
    return round(min(seconds, _LONGEST * TICK) / TICK)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GoodputRuns:
    """What became of the job under each seed, shapes ``(S, ..)``; times in seconds.

    ``trained.sum(1) + causes.sum(1)`` is the duration in ticks, exactly.
    """

    duration: float
    """Length of each run [s]."""

    speeds: FloatArray
    """Throughput by number of replicas over that of all, shape ``(R + 1,)``."""

    trained: IntArray = field(repr=False)
    """Training that was kept, by number of replicas, shape ``(S, R + 1)`` [tick]."""

    causes: IntArray = field(repr=False)
    """What took the rest, by state of the job, shape ``(S, NUM_STATES)`` [tick]."""

    counts: IntArray = field(repr=False)
    """Interruptions, checkpoints, planned stops, growths, shape ``(S, 4)``."""

    failures: IntArray = field(repr=False)
    """Failures by kind, shape ``(S, K)``."""

    progress: FloatArray = field(repr=False)
    """Training of the whole job that is there at each mark, shape ``(S, M)`` [s]."""

    @property
    def goodput(self) -> FloatArray:
        """Return what each run trained, of a healthy one, shape ``(S,)``."""
        whole = self.trained.astype(np.float64) @ self.speeds
        return np.asarray(whole * TICK / self.duration)

    @property
    def effective_time(self) -> FloatArray:
        """Return the share of the time that is useful training, shape ``(S,)``.

        Llama 3's effective training time: time spent on useful training over the
        elapsed time, however many replicas train.
        """
        return np.asarray(self.trained.sum(1) * TICK / self.duration)

    @property
    def interruptions(self) -> FloatArray:
        """Return how often each run was interrupted by failures, shape ``(S,)``."""
        return self.counts[:, INTERRUPTIONS].astype(np.float64)

    def shares(self) -> dict[str, FloatArray]:
        """Return what took which share of the time of each run, shape ``(S,)`` each.

        With fewer replicas, what is missing of the throughput is "degraded"; with
        "training" everything sums to 1.
        """
        taken = {
            cause: self.causes[:, list(states)].sum(1) * TICK / self.duration
            for cause, states in CAUSES.items()
        }
        degraded = self.effective_time - self.goodput
        return {"training": self.goodput, **taken, "degraded": degraded}


def run_seeds(
    habits: RecoveryHabits,
    kinds: Sequence[FailureKind],
    seeds: Sequence[int],
    duration: float,
    *,
    num_marks: int = NUM_MARKS,
    progress: Progress | None = None,
) -> GoodputRuns:
    """Run the job once for each seed.

    Parameters
    ----------
    habits
        What the job does.
    kinds
        What fails.
    seeds
        Of the random numbers.
    duration
        Of each run [s].
    num_marks
        Moments at equal distances at which progress is noted.
    progress
        Told about every seed.
    """
    ticks, speeds = habits.ticks(), np.array(habits.speeds)
    length = _ticks(duration)
    # Not length * number: that is no 64-bit number for runs of millennia.
    numbers, (whole, rest) = np.arange(1, num_marks + 1), divmod(length, num_marks)
    marks = numbers * whole + numbers * rest // num_marks
    ledgers, failures = [], []
    for number, seed in enumerate(seeds):
        if progress is not None:
            progress(f"seed {number + 1:,} of {len(seeds):,}", number / len(seeds))
        events = draw_events(
            kinds,
            seed,
            duration,
            hang_share=habits.hang_share,
            planned_every=habits.maintenance_every,
        )
        ledger = Ledger(
            causes=np.zeros(NUM_STATES, np.int64),
            trained=np.zeros(len(speeds), np.int64),
            counts=np.zeros(NUM_COUNTS, np.int64),
            progress=np.zeros(num_marks),
        )
        run_job(ticks, events.times, events.kinds, marks, speeds, ledger)
        assert ledger.trained.sum() + ledger.causes.sum() == length
        ledgers.append(ledger)
        failures.append(events.counts)
    return GoodputRuns(
        duration=length * TICK,
        speeds=speeds,
        trained=np.array([ledger.trained for ledger in ledgers]),
        causes=np.array([ledger.causes for ledger in ledgers]),
        counts=np.array([ledger.counts for ledger in ledgers]),
        failures=np.array(failures, dtype=np.int64),
        progress=np.array([ledger.progress for ledger in ledgers]) * TICK,
    )
