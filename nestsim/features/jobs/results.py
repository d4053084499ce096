"""What jobs on one fabric do to each other: everything that reports need."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.features.jobs.orbits import Shifts
from nestsim.features.jobs.plans import TenantPlan
from nestsim.features.jobs.replay import SharedReplay, lost_devices
from nestsim.features.jobs.scenario import Tenant
from nestsim.features.jobs.steady import Steady
from nestsim.features.run.statistics import link_name
from planner.cost.objective import PricedPlan
from topologies.arrays import FloatArray, IntArray
from topologies.errors import short_repr
from topologies.network import Network

_DIGITS = 6
"""Digits of shares of links by which links are told apart."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Meeting:
    """Jobs on their devices, replayed alone and together on one network."""

    replay: SharedReplay
    """All jobs together."""

    alone: tuple[float, ...]
    """Time of a step of each job by itself in the long run [s]."""

    together: tuple[float, ...]
    """Time of a step of each job in the long run while all are running [s]."""

    slowdowns: tuple[float, ...]
    """What the other jobs multiply each job's step time by."""

    ranges: tuple[tuple[float, float], ...]
    """From where to where that may be, for each job; alone itself if it is known."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TenantOutcome:
    """What becomes of one job among the others."""

    tenant: Tenant
    """The job."""

    devices: IntArray
    """Devices that it runs on, rising."""

    made: TenantPlan
    """Its plan."""

    priced: PricedPlan
    """The same with its planned times."""

    alone: float
    """Step time by itself on these devices [s]."""

    together: float
    """Step time beside the other jobs [s]."""

    slowdown: float
    """What the others multiply its step time by."""

    slowdown_range: tuple[float, float]
    """From where to where that may be in the long run; no range if it is known."""

    steady: Steady
    """How its step beside the other jobs is known."""

    by_seed: tuple[float, ...]
    """The same for each ECMP seed."""

    __repr__ = short_repr

    @property
    def is_known(self) -> bool:
        """Whether what it takes in the long run is known."""
        return self.steady.is_settled

    def tokens_per_second(self, step_time: float) -> float:
        """Return the throughput with steps of this length [token/s]."""
        return self.made.tokens / step_time

    @property
    def seed_range(self) -> tuple[float, float, float]:
        """Least, median and largest slow-down over the seeds."""
        slowdowns = np.array(self.by_seed)
        return (
            float(slowdowns.min()),
            float(np.median(slowdowns)),
            float(slowdowns.max()),
        )


class LinkMeeting(NamedTuple):
    """A link over which several jobs send."""

    link: str
    """Its ends, ``"leaf 0 -> spine 1"``."""

    level: str
    """Name of its level."""

    num_alike: int
    """Links of the level that each job keeps as busy, itself included."""

    shares: tuple[float, ...]
    """Part of its capacity that each job takes, in the mean of its steps."""

    @property
    def total(self) -> float:
        """Part of its capacity that all jobs take."""
        return sum(self.shares)


class LevelMeeting(NamedTuple):
    """The links of one level."""

    level: str
    """Name of the level."""

    num_links: int
    """Links that any job uses."""

    num_shared: int
    """Links that two jobs or more use."""

    busiest: tuple[float, ...]
    """Part of its capacity that each job takes of the link that it keeps busiest."""

    total: float
    """Part of its capacity that all jobs take of the busiest link."""


class JudgedPlacement(NamedTuple):
    """One of the placements that were tried, of all jobs that are placed best."""

    labels: tuple[str, ...]
    """How the devices of each job were chosen."""

    devices: tuple[IntArray, ...]
    """The devices of each, rising."""

    step_times: tuple[float, ...]
    """Step time of each beside the others [s]."""

    slowdowns: tuple[float, ...]
    """Of the jobs that stood already, and of these jobs against the placements where
    they are fastest by themselves, in the order of the file."""

    lost: float
    """Throughput that all of them lose, in devices of theirs: the sum of
    ``devices x (1 - 1 / slow-down)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacementChoice:
    """The placements that were tried of jobs with placement "best"."""

    tenants: tuple[Tenant, ...]
    """The jobs, in the order of the file."""

    others: tuple[str, ...]
    """Names of the jobs that the slow-downs are of, these included."""

    judged: tuple[JudgedPlacement, ...]
    """In the order in which equals win."""

    chosen: int
    """Which one it is."""

    is_complete: bool
    """Whether all placements in whole units were tried, alike ones once."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TenancyResult:
    """Everything that was found out about jobs on one fabric."""

    name: str
    """What the user calls it."""

    network: Network
    """The shared network."""

    outcomes: tuple[TenantOutcome, ...]
    """The jobs, in the order of the file; empty if one of them has no plan."""

    shortfall: str
    """Which job has no plan, and why; empty if all have."""

    links: tuple[LinkMeeting, ...]
    """Links that several jobs use, the busiest first; alike ones once."""

    levels: tuple[LevelMeeting, ...]
    """Levels that carry anything, the innermost first."""

    choice: PlacementChoice | None
    """Where jobs with placement "best" were tried; None if there was no choice."""

    shifts: tuple[Shifts, ...]
    """What other starts make of jobs that meet; empty if nobody asked."""

    seeds: tuple[int, ...]
    """ECMP seeds of `TenantOutcome.by_seed`."""

    notes: tuple[str, ...]
    """What to know, one sentence each."""

    __repr__ = short_repr

    @property
    def worst(self) -> TenantOutcome:
        """The job that the others slow down most, the first of equals."""
        return max(self.outcomes, key=lambda outcome: outcome.slowdown)

    @property
    def lost(self) -> float:
        """Throughput that all jobs lose, in devices of theirs."""
        return lost_devices(
            [len(outcome.devices) for outcome in self.outcomes],
            [outcome.slowdown for outcome in self.outcomes],
        )


def meeting_links(network: Network, shares: FloatArray) -> tuple[LinkMeeting, ...]:
    """Return the links that several jobs use, the busiest first, alike ones once.

    Parameters
    ----------
    network
        Of the links.
    shares
        Part of each link's capacity that each job takes, shape ``(J, E)``.
    """
    shared = np.flatnonzero(np.count_nonzero(shares, axis=0) > 1)
    alike: dict[object, list[int]] = {}
    for link in shared.tolist():
        key = tuple(f"{share:.{_DIGITS}g}" for share in shares[:, link].tolist())
        alike.setdefault((int(network.links.level[link]), key), []).append(link)
    meetings = [
        LinkMeeting(
            link=link_name(network, links[0]),
            level=network.level_name(int(network.links.level[links[0]])),
            num_alike=len(links),
            shares=tuple(shares[:, links[0]].tolist()),
        )
        for links in alike.values()
    ]
    return tuple(sorted(meetings, key=lambda one: -one.total))


def meeting_levels(network: Network, shares: FloatArray) -> tuple[LevelMeeting, ...]:
    """Return what jobs take of each level that carries anything, the innermost first.

    Parameters
    ----------
    network, shares
        As `meeting_links` takes them.
    """
    jobs_on = np.count_nonzero(shares, axis=0)
    meetings = []
    for level in range(int(network.links.level.max(initial=-1)) + 1):
        here = (network.links.level == level) & (jobs_on > 0)
        if not here.any():
            continue
        of_level = shares[:, here]
        meetings.append(
            LevelMeeting(
                level=network.level_name(level),
                num_links=int(here.sum()),
                num_shared=int((jobs_on[here] > 1).sum()),
                busiest=tuple(of_level.max(axis=1).tolist()),
                total=float(of_level.sum(axis=0).max()),
            )
        )
    return tuple(meetings)
