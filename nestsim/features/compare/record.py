"""What a comparison holds, and the plain rows that it is stored as.

A group is one scenario; an entry is what one planner found for it. Ratios of
throughput are inverse ratios of iteration times, as the work is the same.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nestsim.evaluate.cost import ClusterCost, RunCost
from nestsim.evaluate.results import Throughput
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.running.store import Row
from planner.step.plan import Plan
from planner.work import Spent
from topologies.short_repr import short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlan:
    """The plan that a planner proposes first, priced, replayed and judged."""

    plan: Plan

    planned: Throughput
    """By the common evaluator."""

    simulated: Throughput
    """By the replay."""

    planned_terms: Mapping[str, float]
    """`PricedPlan.terms`: the planned iteration time by cause [s]."""

    gap_terms: Mapping[str, float]
    """`Gap.terms`: simulated minus planned iteration time by cause [s]."""

    verdict: str
    """``"confirmed"``, ``"slower"``, ``"doubtful"`` or ``"infeasible"``."""

    reason: str
    """Of the verdict, one sentence."""

    broken_rules: tuple[str, ...] = ()
    """Rules of the framework that it breaks, each with what was found; empty if the
    framework can launch it."""

    __repr__ = short_repr

    @property
    def terms(self) -> dict[str, float]:
        """The simulated iteration time by cause [s]; the terms add up to it."""
        return {**self.planned_terms, **self.gap_terms}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerEntry:
    """What one planner found for one scenario."""

    planner: str
    """Its name."""

    sees: str = ""
    """What it sees of the network, in one sentence; empty if it never ran."""

    belief: float = math.nan
    """Iteration time of its best plan by its own model; NaN if it has none [s]."""

    evaluations: int = 0
    """Plans or parts of plans that it priced."""

    lower_bound: float = math.nan
    """No plan of the space is faster; NaN from planners that prove nothing [s]."""

    spent: Spent = field(default_factory=Spent)
    """The work of its search, and which limit stopped it, if one did."""

    spread: tuple[float, ...] = ()
    """Best iteration time of each seed, infinite where a walk found nothing; empty
    from planners without seeds [s]."""

    search_time: float = math.nan
    """How long the search took: another time in every run; NaN if it failed [s]."""

    launchable_time: float = math.nan
    """Fastest replay of its plans that the framework can launch, NaN without one
    [s]."""

    free_time: float = math.nan
    """Fastest replay of its plans that no rules hold; NaN if it had none but those that
    keep them [s]."""

    notes: tuple[str, ...] = ()
    """What else its planner says of what it found, in sentences."""

    found: BestPlan | None = None
    """Its plan; None if it has none."""

    why_not: str = ""
    """Why it has no plan, in one sentence; empty if it has one."""

    __repr__ = short_repr

    @property
    def is_valid(self) -> bool:
        """Whether there is a plan that the replay finds room for."""
        return self.found is not None and self.found.verdict not in NO_ROOM

    @property
    def obstacle(self) -> str:
        """Why there is nothing valid; empty if there is something."""
        if self.found is None:
            return self.why_not
        if self.found.verdict in NO_ROOM:
            return f"The replay runs out of memory: {self.found.reason}."
        return ""

    @property
    def simulated_time(self) -> float:
        """Of its plan, NaN without a valid one [s]."""
        if self.found is None or not self.is_valid:
            return math.nan
        return self.found.simulated.iteration_time

    @property
    def planned_time(self) -> float:
        """Of its plan, NaN without a valid one [s]."""
        if self.found is None or not self.is_valid:
            return math.nan
        return self.found.planned.iteration_time

    def to_row(self) -> dict[str, Any]:
        """Return plain JSON values; numbers that JSON lacks are None."""
        found = self.found
        return {
            "planner": self.planner,
            "sees": self.sees,
            "belief_s": _finite(self.belief),
            "evaluations": int(self.evaluations),
            "lower_bound_s": _finite(self.lower_bound),
            "spent": asdict(self.spent),
            "spread_s": [_finite(time) for time in self.spread],
            "search_time_s": _finite(self.search_time),
            "launchable_time_s": _finite(self.launchable_time),
            "free_time_s": _finite(self.free_time),
            "notes": list(self.notes),
            "found": None if found is None else _found_row(found),
            "why_not": self.why_not,
        }

    @classmethod
    def from_row(cls, row: Row) -> "PlannerEntry":
        """Read back what `to_row` wrote."""
        found = row["found"]
        return cls(
            planner=row["planner"],
            sees=row["sees"],
            belief=_number(row["belief_s"]),
            evaluations=row["evaluations"],
            lower_bound=_number(row["lower_bound_s"]),
            spent=Spent(**row["spent"]),
            spread=tuple(_number(time, math.inf) for time in row["spread_s"]),
            search_time=_number(row["search_time_s"]),
            launchable_time=_number(row["launchable_time_s"]),
            free_time=_number(row["free_time_s"]),
            notes=tuple(row["notes"]),
            found=None if found is None else _found_of(found),
            why_not=row["why_not"],
        )


def _found_row(found: BestPlan) -> dict[str, Any]:
    return {
        "plan": found.plan.to_json(),
        "planned": asdict(found.planned),
        "simulated": asdict(found.simulated),
        "planned_terms_s": list(found.planned_terms.items()),
        "gap_terms_s": list(found.gap_terms.items()),
        "verdict": found.verdict,
        "reason": found.reason,
        "broken_rules": list(found.broken_rules),
    }


def _found_of(row: Row) -> BestPlan:
    return BestPlan(
        plan=Plan.from_json(row["plan"]),
        planned=Throughput(**row["planned"]),
        simulated=Throughput(**row["simulated"]),
        planned_terms=dict(row["planned_terms_s"]),
        gap_terms=dict(row["gap_terms_s"]),
        verdict=row["verdict"],
        reason=row["reason"],
        broken_rules=tuple(row["broken_rules"]),
    )


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _number(value: float | None, otherwise: float = math.nan) -> float:
    return otherwise if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEntries:
    """One scenario, and what each planner found for it."""

    scenario: str
    """Its name, different from those of the other groups."""

    model: str
    """What is trained."""

    num_devices: int

    device_memory: float
    """Of one device [byte]."""

    base: str
    """Name of the planner that the others are measured by."""

    entries: tuple[PlannerEntry, ...]
    """In the order of the planners, the same in every group."""

    launchable: bool = False
    """Whether planners were held to what the framework can launch."""

    framework: str = ""
    """Whose rules those are, and which version's."""

    cost: ClusterCost | None = None
    """What the cluster costs and draws; None if the scenario does not say."""

    __repr__ = short_repr

    @property
    def launchability_price(self) -> float:
        """What launchability costs: the best launchable replay over the best free one.

        Of the plans that planners had: 1.02 is 2 % of the iteration time, and a lower
        bound where they were held to the rules, of which only a planner's own plan is
        free then. NaN where no plan was free of the rules, or none kept them.
        """
        within = [entry.launchable_time for entry in self.entries]
        free = [entry.free_time for entry in self.entries]
        if not any(map(math.isfinite, within)) or not any(map(math.isfinite, free)):
            return math.nan
        least = min(filter(math.isfinite, within))
        return least / min(least, *filter(math.isfinite, free))

    @property
    def best(self) -> PlannerEntry | None:
        """The entry that is fastest in the replay, the first of equals, if any."""
        valid = [entry for entry in self.entries if entry.is_valid]
        return min(valid, key=lambda entry: entry.simulated_time, default=None)

    @property
    def is_confirmed(self) -> bool:
        """Whether the replay confirms the plan of some planner."""
        return any(
            entry.found is not None and entry.found.verdict == "confirmed"
            for entry in self.entries
        )

    def cost_of(self, entry: PlannerEntry) -> RunCost | None:
        """Return what a planner's plan costs; None without a plan or prices."""
        if self.cost is None or entry.found is None or not entry.is_valid:
            return None
        return RunCost(
            cluster=self.cost,
            iteration_time=entry.found.simulated.iteration_time,
            tokens_per_second=entry.found.simulated.tokens_per_second,
        )

    def simulated_ratio(self, entry: PlannerEntry) -> float:
        """Return simulated throughput relative to the base's, NaN without both."""
        return self._base.simulated_time / entry.simulated_time

    def planned_ratio(self, entry: PlannerEntry) -> float:
        """Return planned throughput relative to the base's, NaN without both."""
        return self._base.planned_time / entry.planned_time

    @property
    def _base(self) -> PlannerEntry:
        (found,) = (entry for entry in self.entries if entry.planner == self.base)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All groups."""

    planners: tuple[str, ...]
    """Names, in the order of every group's entries."""

    base: str
    """Name of the planner that the others are measured by."""

    groups: tuple[ScenarioEntries, ...]
    """In the order of the scenarios."""

    __repr__ = short_repr
