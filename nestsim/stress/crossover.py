"""The ratio at which a planner's best plan becomes another one."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from nestsim.scenario.stress_settings import ConditionSpec
from nestsim.stress.bench import Bench, Made, plan_key
from nestsim.stress.conditions import canonical, network_ratios, ratio_condition
from planner.step.plan import Plan

TOLERANCE = 0.01
"""A bracket is narrow enough if its ends differ by less, relatively."""

MOST_CHANGES = 8
"""Between two neighbouring ratios; more are not looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Two neighbouring ratios with two best plans."""

    low: float
    """The highest ratio that has the plan `before`."""

    high: float
    """The lowest ratio above it that has the plan `after`."""

    before: dict[str, Any]
    """A plan, as JSON."""

    after: dict[str, Any]
    """Another one."""

    gain: float
    """What the new plan saves of the old one's planned time at `high`, as a share;
    negative where what the planner minimises disagrees."""

    simulated_gain: float
    """Likewise of the simulated time; negative where the replay disagrees."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def plan_changes(
    bench: Bench, planner: str, level: str, low: float, high: float
) -> list[Change]:
    """Find where a planner's plan changes between two ratios of a level.

    By bisection on the logarithm of the ratio, from the lower end: each bracket has the
    plan that was best before at its lower end and another one at its upper end. A plan
    that comes and goes within a step of the bisection is not seen.

    Parameters
    ----------
    bench
        The scenario; other levels keep the ratio that they have.
    planner, level
        Whose plan, and whose ratio.
    low, high
        Two ratios.
    """
    search = _Line(bench, planner, level)
    changes: list[Change] = []
    while len(changes) < MOST_CHANGES and search.key(low) != search.key(high):
        below, above = search.bracket(low, high)
        changes.append(search.change(below, above))
        low = above
    return changes


class _Line:
    """The best plan as a function of one level's ratio."""

    def __init__(self, bench: Bench, planner: str, level: str) -> None:
        self._bench, self._planner, self._level = bench, planner, level
        self._built = network_ratios(bench.scenario)
        self._made: dict[float, Made] = {}

    def condition(self, ratio: float) -> ConditionSpec:
        return ratio_condition(canonical(self._built, {self._level: ratio}))

    def plan(self, ratio: float) -> Plan | None:
        if ratio not in self._made:
            made = self._bench.make(self.condition(ratio), self._planner)
            self._made[ratio] = made
        return self._made[ratio].plan

    def key(self, ratio: float) -> str:
        plan = self.plan(ratio)
        return "" if plan is None else plan_key(plan)

    def bracket(self, low: float, high: float) -> tuple[float, float]:
        first = self.key(low)
        while high / low > 1.0 + TOLERANCE:
            middle = math.sqrt(low * high)
            if self.key(middle) == first:
                low = middle
            else:
                high = middle
        return low, high

    def change(self, low: float, high: float) -> Change:
        before, after = self.plan(low), self.plan(high)
        # Memory does not depend on the network: with a plan for one, there is for all.
        assert before is not None
        assert after is not None
        condition = self.condition(high)
        old, new = (self._bench.run(condition, plan) for plan in (before, after))
        return Change(
            low=low,
            high=high,
            before=before.to_json(),
            after=after.to_json(),
            gain=1.0 - new.planned / old.planned,
            simulated_gain=1.0 - new.simulated / old.simulated,
        )
