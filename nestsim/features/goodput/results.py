"""What was found about training through failures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.features.goodput.cycle import Cycle
from nestsim.features.goodput.draws import FailureKind
from nestsim.features.goodput.kernels import INTERRUPTIONS, MEMORY_LOST
from nestsim.features.goodput.simulate import GoodputRuns, RecoveryHabits
from planner.work import Spent
from topologies.arrays import FloatArray
from topologies.errors import short_repr

DAY = 86400.0
"""Length of a day [s]."""


class SeedBand(NamedTuple):
    """Percentiles over seeds, and their mean."""

    p5: float
    p50: float
    p95: float
    mean: float

    @classmethod
    def of(cls, values: FloatArray) -> "SeedBand":
        """Return the band of numbers, one for each seed."""
        p5, p50, p95 = np.percentile(values, [5.0, 50.0, 95.0])
        return cls(float(p5), float(p50), float(p95), float(values.mean()))

    def times(self, factor: float) -> "SeedBand":
        """Return the band in another unit."""
        return SeedBand(*(factor * value for value in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthyStep:
    """What the job does when nothing fails."""

    step_time: float
    """Time of one step [s]."""

    tokens: float
    """Tokens of one step."""

    source: str
    """Where the time is from, in words."""

    @property
    def tokens_per_day(self) -> float:
        """Tokens of a day without failures and checkpoints."""
        return self.tokens / self.step_time * DAY


class PeerFacts(NamedTuple):
    """Where checkpoints in memory are."""

    group: int
    """Nodes that keep each part."""

    jump: int
    """Nodes from one of them to the next."""

    size: float
    """In the memory of each node [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What a checkpoint is, and how long it takes."""

    size: float
    """All of it [byte]."""

    bytes_per_parameter: float | None
    """What each parameter adds; None where the size was given [byte]."""

    copy: float
    """Into the memory of the hosts [s]."""

    upload: float
    """From there to the storage [s]."""

    read: float
    """From the storage, at a restart [s]."""

    write_limit: str
    """What limits the upload: ``"storage"`` or ``"nodes"``."""

    peers: PeerFacts | None = None
    """Those in memory; None without."""


class IntervalPoint(NamedTuple):
    """What one interval between checkpoints gives."""

    interval: float
    """Training between two checkpoints [s]."""

    expected: float
    """Goodput by the closed form."""

    simulated: SeedBand | None
    """Goodput of the runs; None where only the closed form was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputResult:
    """Everything that was found; without a plan only why there is none."""

    scenario_name: str
    """What the user calls the scenario."""

    num_devices: int
    """Devices of the job."""

    device_name: str
    """Their name, or those of all groups."""

    shortfall: str = ""
    """Why there is no plan; empty if there is one."""

    spent: Spent | None = None
    """The work of a search; None without one."""

    findings: "GoodputFindings | None" = None
    """What was found; None without a plan."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputFindings:
    """What a job trains through failures, by closed forms and by simulation."""

    healthy: HealthyStep
    """The job when nothing fails."""

    kinds: tuple[FailureKind, ...]
    """What fails."""

    habits: RecoveryHabits
    """What the job does about it."""

    checkpoint: CheckpointFacts
    """What its checkpoints are."""

    cycle: Cycle
    """The same as the closed forms take it."""

    interval_is_given: bool
    """Whether the user said how often checkpoints are written."""

    least_interval: float
    """Least interval that was allowed where the user did not say [s]."""

    young: float
    """Young's interval [s]."""

    daly: float
    """Daly's interval [s]."""

    best: float
    """The best interval by the closed form [s]."""

    enough_nodes: float
    """Share of the time in which at most the spare nodes are broken."""

    spares_needed: int
    """Spare nodes for 99.9 % of the time."""

    runs: GoodputRuns
    """The runs at the job's own interval."""

    seeds: tuple[int, ...]
    """Their seeds."""

    curve: tuple[IntervalPoint, ...]
    """Goodput over intervals."""

    without: Mapping[str, float]
    """Habit that not every job has -> goodput by the closed form without it."""

    @property
    def expected(self) -> float:
        """Goodput by the closed form, waiting for nodes included.

        As if it were independent of all else; without the throughput of fewer replicas.
        """
        waited = 1.0 if self.habits.is_elastic else self.enough_nodes
        return self.cycle.goodput(self.habits.interval) * waited

    @property
    def goodput(self) -> SeedBand:
        """Share of the healthy throughput."""
        return SeedBand.of(self.runs.goodput)

    @property
    def effective_time(self) -> SeedBand:
        """Share of the time that is useful training."""
        return SeedBand.of(self.runs.effective_time)

    @property
    def tokens_per_day(self) -> SeedBand:
        """Tokens of a day on average [token]."""
        return self.goodput.times(self.healthy.tokens_per_day)

    @property
    def interruptions(self) -> SeedBand:
        """How often failures interrupt a run."""
        return SeedBand.of(self.runs.interruptions)

    @property
    def mtti(self) -> float:
        """Mean time to an interruption over all runs [s]."""
        count = float(self.runs.interruptions.sum())
        total = self.runs.duration * len(self.seeds)
        return total / count if count else math.inf

    @property
    def memory_lost(self) -> float:
        """Share of the interruptions of all runs that took the memory of peers."""
        counts = self.runs.counts.sum(0)
        return float(counts[MEMORY_LOST] / max(1, counts[INTERRUPTIONS]))

    @property
    def checkpoint_bytes_per_day(self) -> float:
        """Bytes that checkpoints write in a day without failures [byte/day]."""
        training = self.cycle.training(self.habits.interval)
        return self.checkpoint.size * DAY / (training + self.habits.stall)

    def shares(self) -> Mapping[str, SeedBand]:
        """Return what takes which share of the time."""
        return {name: SeedBand.of(share) for name, share in self.runs.shares().items()}

    def failures(self) -> Mapping[str, SeedBand]:
        """Return how often what fails in a run, by component."""
        counts = self.runs.failures.astype(np.float64)
        return {
            kind.name: SeedBand.of(counts[:, place])
            for place, kind in enumerate(self.kinds)
        }

    def weekly_tokens(self) -> FloatArray:
        """Return tokens that are there at each mark: p5, p50, p95, shape ``(3, M)``."""
        done = np.percentile(self.runs.progress, [5.0, 50.0, 95.0], axis=0)
        return np.asarray(done * self.healthy.tokens / self.healthy.step_time)
