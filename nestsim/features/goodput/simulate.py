"""A job through failures, seed by seed: what it trains, and what took the rest.

The same seeds give the same numbers in any order: no seed knows of the others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nestsim.features.goodput.draws import (
    TICK,
    Drawing,
    FailureKind,
    SlowNodes,
    draw_events,
)
from nestsim.features.goodput.kernels import (
    COPYING,
    DETECTING,
    INTERRUPTIONS,
    MAINTAINING,
    NUM_COUNTS,
    NUM_STATES,
    RESTARTING,
    SAVING_TO_PEERS,
    SLOWED,
    SPEED,
    TRAINING,
    WAITING,
    WRITING,
    JobHabits,
    Ledger,
    run_job,
)
from planner.work import Progress
from topologies.arrays import FloatArray, IntArray

CAUSES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "lost work": (TRAINING,),
        "checkpoints": (COPYING, WRITING),
        "checkpoints in memory": (SAVING_TO_PEERS,),
        "slow nodes": (SLOWED,),
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


class PeerHabits(NamedTuple):
    """Checkpoints in the memory of peers."""

    interval: float
    """Training between two of them [s]."""

    stall: float
    """Time for which one stops the training [s]."""

    write: float
    """From the copy until the peers have it, beside the training [s]."""

    read: float
    """To go on from it, at a restart [s]."""

    kept: tuple[float, ...]
    """Chance that memory still has all of it when the k-th node is lost before the job
    trains again, if it had with one less; for 0, 1, .. nodes."""

    @property
    def speed(self) -> float:
        """Training over the time that it takes with the stalls."""
        return self.interval / (self.interval + self.stall)


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

    peers: PeerHabits | None = None
    """Checkpoints in the memory of peers; None without."""

    detection: float
    """From a failure until the job is stopped [s]."""

    hang_detection: float
    """The same where the job hangs [s]."""

    diagnosis: float = 0.0
    """From there until it is known what failed [s]."""

    hang_share: float
    """Share of the failures that make the job hang."""

    restart: float
    """From enough nodes until a job that is launched anew reads its checkpoint [s]."""

    hot_restart: float | None = None
    """The same where spare nodes have their processes ready; None as without [s]."""

    warm_restart: float = 0.0
    """The same in the processes that are there, for failures that say so [s]."""

    read: float = 0.0
    """To read a checkpoint from the storage [s]."""

    repair: float
    """Until a broken node is a spare, where its failure does not say [s]."""

    slow: SlowNodes | None = None
    """Nodes that are slow before they fail; None without."""

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
    def on_spares(self) -> float:
        """Time of a restart where spare nodes took over, without reading [s]."""
        return self.restart if self.hot_restart is None else self.hot_restart

    @property
    def stopped(self) -> float:
        """Share of the time that planned stops take."""
        stop = self.write + self.maintenance + self.restart + self.read
        return stop / self.maintenance_every

    @property
    def drawing(self) -> Drawing:
        """What is drawn beside the failures themselves."""
        return Drawing(
            repair=self.repair,
            hang_share=self.hang_share,
            planned_every=self.maintenance_every,
            slow=self.slow,
            has_peers=self.peers is not None,
        )

    def ticks(self) -> JobHabits:
        """Return the habits as the kernel takes them."""
        spares = _UNLIMITED if self.spares is None else self.spares
        peers = self.peers or _NO_PEERS
        slowness = 1.0 if self.slow is None else self.slow.speed
        return JobHabits(
            # A checkpoint after every tick would not be a number of times any more.
            interval=max(1, _ticks(self.interval)),
            copy=_ticks(self.copy),
            write=_ticks(self.write),
            is_asynchronous=int(self.is_asynchronous),
            peer_interval=_ticks(peers.interval) if self.peers else 0,
            peer_write=_ticks(peers.write * peers.speed),
            speed=round(peers.speed * SPEED),
            slow_speed=round(peers.speed * slowness * SPEED),
            detection=_ticks(self.detection),
            hang_detection=_ticks(self.hang_detection),
            diagnosis=_ticks(self.diagnosis),
            restart=_ticks(self.restart),
            hot_restart=_ticks(self.on_spares),
            warm_restart=_ticks(self.warm_restart),
            read=_ticks(self.read),
            peer_read=_ticks(peers.read),
            maintenance=_ticks(self.maintenance),
            num_nodes=self.num_nodes + spares,
            nodes_per_replica=max(1, self.num_nodes // self.num_replicas),
            num_replicas=self.num_replicas,
            fewest_replicas=self.fewest_replicas,
            outlook=_ticks(self.outlook),
        )


_NO_PEERS = PeerHabits(interval=1.0, stall=0.0, write=0.0, read=0.0, kept=(1.0,))


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
    """What the kernel counts, shape ``(S, NUM_COUNTS)``."""

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
    kept = np.array((habits.peers or _NO_PEERS).kept)
    length = _ticks(duration)
    # Not length * number: that is no 64-bit number for runs of millennia.
    numbers, (whole, rest) = np.arange(1, num_marks + 1), divmod(length, num_marks)
    marks = numbers * whole + numbers * rest // num_marks
    ledgers, failures = [], []
    for number, seed in enumerate(seeds):
        if progress is not None:
            progress(f"seed {number + 1:,} of {len(seeds):,}", number / len(seeds))
        events, counts = draw_events(kinds, seed, duration, habits.drawing)
        ledger = Ledger(
            causes=np.zeros(NUM_STATES, np.int64),
            trained=np.zeros(len(speeds), np.int64),
            counts=np.zeros(NUM_COUNTS, np.int64),
            progress=np.zeros(num_marks),
        )
        run_job(ticks, events, kept, marks, speeds, ledger)
        assert ledger.trained.sum() + ledger.causes.sum() == length
        ledgers.append(ledger)
        failures.append(counts)
    return GoodputRuns(
        duration=length * TICK,
        speeds=speeds,
        trained=np.array([ledger.trained for ledger in ledgers]),
        causes=np.array([ledger.causes for ledger in ledgers]),
        counts=np.array([ledger.counts for ledger in ledgers]),
        failures=np.array(failures, dtype=np.int64),
        progress=np.array([ledger.progress for ledger in ledgers]) * TICK,
    )
