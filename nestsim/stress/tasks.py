"""What a stress test sweeps over: plans to make, plans to run, brackets to narrow.

Each is a task of `nestsim.sweep`: points go to all cores, and to a store.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nestsim.scenario.settings import Scenario
from nestsim.scenario.stress_settings import ConditionSpec
from nestsim.stress.bench import Bench, bench_of, scenario_digest
from nestsim.stress.crossover import plan_changes
from nestsim.stress.inverse import Asked, narrow
from nestsim.sweep.points import Point, PointFailedError, Row, content_key
from planner.step.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnBench:
    """Something done on the bench of a scenario."""

    scenario: Scenario
    digest: str

    @classmethod
    def subject(cls, scenario: Scenario) -> dict[str, Any]:
        """Return the fields above."""
        return {"scenario": scenario, "digest": scenario_digest(scenario)}

    def bench(self) -> Bench:
        """Return this process's bench."""
        return bench_of(self.scenario, self.digest)

    def key(self, point: Point) -> str:
        """Return a hash of the point, the scenario and what else it depends on."""
        return content_key([type(self).__name__, self.digest, self.content(point)])

    def content(self, point: Point) -> object:
        """Return what the point means beside the scenario."""
        return dict(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlans(_OnBench):
    """Point: a condition and a planner. Row: the plan that it makes for it."""

    conditions: Mapping[str, ConditionSpec]
    """By name."""

    def __call__(self, point: Point) -> Row:
        """Return the plan, or why there is none."""
        made = self.bench().make(self.conditions[point["condition"]], point["planner"])
        if made.plan is None:
            raise PointFailedError(made.why_not)
        return {"plan": made.plan.to_json(), "stopped": made.stopped}

    def content(self, point: Point) -> object:
        """Return the condition and the planner."""
        return [repr(self.conditions[point["condition"]]), dict(point)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlans(_OnBench):
    """Point: a condition. Row: what becomes of every plan under it."""

    conditions: Mapping[str, ConditionSpec]
    """By name."""

    plans: Mapping[str, Any]
    """By key, as JSON."""

    def __call__(self, point: Point) -> Row:
        """Return one cell for each plan, by its key."""
        bench, condition = self.bench(), self.conditions[point["condition"]]
        return {
            key: bench.run(condition, Plan.from_json(plan)).to_json()
            for key, plan in self.plans.items()
        }

    def content(self, point: Point) -> object:
        """Return the condition and the plans."""
        return [repr(self.conditions[point["condition"]]), sorted(self.plans)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindChanges(_OnBench):
    """Point: a planner, a level and two ratios. Row: where its plan changes between."""

    def __call__(self, point: Point) -> Row:
        """Return every change that was found."""
        found = plan_changes(
            self.bench(), point["planner"], point["level"], point["low"], point["high"]
        )
        return {"changes": [one.to_json() for one in found]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow(_OnBench):
    """Point: what is asked, and whether plans are re-made. Row: the bracket."""

    planner: str

    def __call__(self, point: Point) -> Row:
        """Return the bracket, and all that was tried."""
        asked = Asked(point["level"], point["quantity"], point["keep"])
        return narrow(self.bench(), self.planner, asked, point["policy"])

    def content(self, point: Point) -> object:
        """Return the point and the planner."""
        return [self.planner, dict(point)]
