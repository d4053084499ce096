"""What a search leaves behind for a certificate: what closed what.

A search that is given a `ProofTrail` (`Replays.trail`) notes in it the bounds of all
that it looked at and the plans that it replayed. Without one it keeps nothing.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from planner.cost.objective import PricedPlan
from planner.search.replayed.candidates import LaunchableCandidates, Leaves
from planner.search.space import Configuration
from planner.step.plan import Plan


class RelaxedBound(NamedTuple):
    """Bound of a configuration that was looked at."""

    bound: float
    """Lower bound of its plans, infinite if none fits [s]."""
    cutoff: float
    """Bounds from here on were not worked out in full [s]."""


class OpenedPlans(NamedTuple):
    """All plans of a configuration, by placement."""

    cutoff: float
    """Bounds from here on were not worked out in full [s]."""
    leaves: tuple[Leaves, ...]
    """Plans that fit, by schedule and placement."""


class ReplayTime(NamedTuple):
    """How long a replay took, or at least takes."""

    time: float
    """Iteration time; infinite if it was broken off, or the plan has too many passes to
    be replayed [s]."""
    cutoff: float
    """A time from here on stands for any that is no shorter than this [s]."""

    @property
    def exact(self) -> float | None:
        """Time of a replay, None of one that was broken off [s]."""
        return self.time if self.time < self.cutoff else None


@dataclass(slots=True, kw_only=True)
class ProofTrail:
    """Filled by one search."""

    relaxed: dict[int, RelaxedBound] = field(default_factory=dict)
    """Number of a configuration -> what became of a look at it."""

    opened: dict[Configuration, OpenedPlans] = field(default_factory=dict)
    """Configuration -> its plans, if they were listed."""

    timelines: dict[int, list[float]] = field(default_factory=dict)
    """Identity of `Leaves` of `opened` -> bounds of its first plans by their timelines
    [s]."""

    tried: dict[int, dict[int, Plan]] = field(default_factory=dict)
    """Identity of `Leaves` of `opened` -> the plans of it that were replayed, by their
    positions."""

    replays: dict[Plan, ReplayTime] = field(default_factory=dict)
    """Plan of the space -> its replay."""

    candidates: LaunchableCandidates | None = None
    """The space; None while it is not listed."""

    best: PricedPlan | None = None
    """The answer; None if nothing fits."""

    best_time: float = np.inf
    """Its replayed iteration time, infinite if there is none [s]."""

    lower_bound: float = np.inf
    """Least bound that is left, infinite if nothing fits [s]."""

    stopped_by: str = ""
    """Limit that stopped the search; empty if it ran to its end."""

    def finish(
        self,
        candidates: LaunchableCandidates,
        lower_bound: float,
        stopped_by: str,
        best: PricedPlan | None,
        best_time: float,
    ) -> None:
        """Note how the search ended."""
        self.candidates, self.lower_bound = candidates, lower_bound
        self.stopped_by, self.best, self.best_time = stopped_by, best, best_time

    def note_timeline(self, leaves: Leaves, bound: float) -> None:
        """Note the bound of the next plan of a placement by its timeline [s]."""
        self.timelines.setdefault(id(leaves), []).append(bound)

    def note_tried(self, leaves: Leaves, place: int, plan: Plan) -> None:
        """Note that a plan of a placement was replayed."""
        self.tried.setdefault(id(leaves), {})[place] = plan

    def replays_of(self, leaves: Leaves) -> dict[int, ReplayTime]:
        """Return the replays of plans of a placement, by their positions."""
        tried = self.tried.get(id(leaves), {})
        return {place: self.replays[tried[place]] for place in sorted(tried)}
