"""Where a planner's best plan becomes another one, and how bad a level may become.

The first is a ratio of oversubscription. The second keeps a share of the throughput,
and is found by bisection on the logarithm of a *worsening* of at least 1: the
oversubscription itself, from 1, or what the bandwidth of the level's links is divided
by. Throughput is the replay's, and its share that of the throughput at worsening 1.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from nestsim.document.dumps import Record
from nestsim.features.stress.conditions import (
    built_ratios,
    canonical,
    network_ratios,
    ratio_condition,
    uplinks,
)
from nestsim.features.stress.evaluator import ConditionEvaluator, PlanMade, plan_key
from nestsim.running.store import PointFailedError
from nestsim.scenario.stress import ConditionSpec
from planner.step.plan import Plan
from topologies.degrade import Degradation, SlowLinks, select_links
from topologies.errors import InputError
from topologies.network import Network

CROSSOVER_TOLERANCE = 0.01
"""A bracket is narrow enough if its ends differ by less, relatively."""

MOST_CHANGES = 8
"""Between two neighbouring ratios; more are not looked for."""


class BestPlanChange(Record):
    """Two neighbouring ratios with two best plans."""

    low: float
    """The highest ratio that has the plan `before`."""

    high: float
    """The lowest ratio above it that has the plan `after`."""

    before: dict[str, object]
    """Plan up to the ratio `low`, as JSON."""

    after: dict[str, object]
    """Plan from the ratio `high` on, as JSON."""

    gain: float
    """Part of the old plan's planned time that the new one saves at `high`; negative
    where what the planner minimises disagrees."""

    simulated_gain: float
    """Part of the old plan's simulated time that the new one saves at `high`; negative
    where the replay disagrees."""


def plan_changes(
    evaluator: ConditionEvaluator, planner: str, level: str, low: float, high: float
) -> list[BestPlanChange]:
    """Find where a planner's plan changes between two ratios of a level.

    By bisection on the logarithm of the ratio, from the lower end: each bracket has the
    plan that was best before at its lower end and another one at its upper end. A plan
    that comes and goes within a step of the bisection is not seen.

    Parameters
    ----------
    evaluator
        The scenario; other levels keep the ratio that they have.
    planner, level
        Whose plan, and whose ratio.
    low, high
        Two ratios.
    """
    search = _Line(evaluator, planner, level)
    changes: list[BestPlanChange] = []
    while len(changes) < MOST_CHANGES and search.key(low) != search.key(high):
        below, above = search.bracket(low, high)
        changes.append(search.change(below, above))
        low = above
    return changes


class _Line:
    """The best plan as a function of one level's ratio."""

    def __init__(self, evaluator: ConditionEvaluator, planner: str, level: str) -> None:
        self._evaluator, self._planner, self._level = evaluator, planner, level
        self._built = network_ratios(evaluator.scenario)
        self._made: dict[float, PlanMade] = {}

    def condition(self, ratio: float) -> ConditionSpec:
        return ratio_condition(canonical(self._built, {self._level: ratio}))

    def plan(self, ratio: float) -> Plan | None:
        if ratio not in self._made:
            made = self._evaluator.make(self.condition(ratio), self._planner)
            self._made[ratio] = made
        return self._made[ratio].plan

    def key(self, ratio: float) -> str:
        plan = self.plan(ratio)
        return "" if plan is None else plan_key(plan)

    def bracket(self, low: float, high: float) -> tuple[float, float]:
        first = self.key(low)
        while high / low > 1.0 + CROSSOVER_TOLERANCE:
            middle = math.sqrt(low * high)
            if self.key(middle) == first:
                low = middle
            else:
                high = middle
        return low, high

    def change(self, low: float, high: float) -> BestPlanChange:
        before, after = self.plan(low), self.plan(high)
        # Memory does not depend on the network: with a plan for one, there is for all.
        assert before is not None
        assert after is not None
        condition = self.condition(high)
        old, new = (self._evaluator.run(condition, plan) for plan in (before, after))
        return BestPlanChange(
            low=low,
            high=high,
            before=before.to_json(),
            after=after.to_json(),
            gain=1.0 - new.planned / old.planned,
            simulated_gain=1.0 - new.simulated / old.simulated,
        )


POLICIES = ("kept", "re-made")
"""Whether the plan made for worsening 1 is kept, or every worsening gets one of its
own."""

MOST = 1024.0
"""Largest worsening that is tried."""

THRESHOLD_TOLERANCE = 0.01
"""Relative difference of a bracket's ends below which it is narrow enough."""

RISE = 1e-6
"""Relative rise of the throughput where the network gets worse above which it is
reported."""


class InverseRequest(NamedTuple):
    """What is worsened, and how much must be kept."""

    level: str
    """Name of the level whose links are worsened."""

    quantity: str
    """Quantity that is worsened, one of `nestsim.scenario.stress.QUANTITIES`."""
    keep: float
    """Share of the throughput that must be kept."""


class Bracket(NamedTuple):
    """Where throughput falls below what must be kept."""

    kept: float | None
    """Worsening that keeps the share; None if none does."""

    lost: float | None
    """Lowest worsening tried beyond `kept` that does not keep the share; None if all
    that were tried do."""

    tried: tuple[tuple[float, float], ...]
    """Worsenings that were tried with their shares of the throughput, rising."""

    is_monotone: bool
    """Whether throughput never rose where the network got worse, as far as tried."""


def bracket(
    share: Callable[[float], float],
    keep: float,
    *,
    most: float = MOST,
    tolerance: float = THRESHOLD_TOLERANCE,
) -> Bracket:
    """Bracket the worsening from which on less than a share is kept.

    First by doubling, then by bisection on the logarithm. Where the share does not fall
    all the way, this is one crossing of perhaps several, and `Bracket.is_monotone` says
    so if a value that was tried shows it.

    Parameters
    ----------
    share
        Worsening -> what is kept.
    keep
        What must be kept.
    most
        Largest worsening.
    tolerance
        Relative width of the bracket.
    """
    tried: dict[float, float] = {1.0: share(1.0)}
    low, high = 1.0, 1.0
    while tried[high] >= keep and high < most:
        low, high = high, min(2.0 * high, most)
        tried[high] = share(high)
    if tried[high] >= keep or tried[1.0] < keep:
        known = tuple(sorted(tried.items()))
        kept = high if tried[high] >= keep else None
        return Bracket(kept, None if kept else 1.0, known, _falls(known))
    while high / low > 1.0 + tolerance:
        middle = math.sqrt(low * high)
        tried[middle] = share(middle)
        if tried[middle] >= keep:
            low = middle
        else:
            high = middle
    known = tuple(sorted(tried.items()))
    return Bracket(low, high, known, _falls(known))


def _falls(known: tuple[tuple[float, float], ...]) -> bool:
    values = [share for _, share in known]
    return all(
        after <= before * (1.0 + RISE) for before, after in itertools.pairwise(values)
    )


def quantity_of(network: Network, level: str, quantity: str | None) -> str:
    """Return what of a level is worsened.

    Parameters
    ----------
    network
        As it was built.
    level, quantity
        The level's name; one of `nestsim.scenario.stress.QUANTITIES`, or None
        for the first that the level has.

    Raises
    ------
    InputError
        If there is no such level, or it has no such quantity.
    """
    ratios = built_ratios(network)
    names = [known.name for known in network.levels]
    if level not in names:
        raise InputError(
            "no such level",
            where="stress.level",
            got=level,
            expected=" or ".join(f'"{name}"' for name in names),
        )
    if quantity == "oversubscription" and level not in ratios:
        raise InputError(
            f'level "{level}" has no links to a level above',
            where="stress.quantity",
            got=quantity,
            expected='"bandwidth", or another stress.level',
        )
    return quantity or ("oversubscription" if level in ratios else "bandwidth")


def worsened(
    evaluator: ConditionEvaluator, request: InverseRequest, worsening: float
) -> ConditionSpec:
    """Return the condition of a worsening; other levels stay as they are."""
    if request.quantity == "oversubscription":
        built = network_ratios(evaluator.scenario)
        return ratio_condition(canonical(built, {request.level: worsening}))
    slow = (SlowLinks(links=f"level {request.level}", factor=worsening),)
    return ConditionSpec(
        name=f"{request.level} slower by {worsening:.6g}",
        degraded=Degradation(slow_links=slow if worsening > 1.0 else ()),
    )


def narrow(
    evaluator: ConditionEvaluator, planner: str, request: InverseRequest, policy: str
) -> dict[str, object]:
    """Answer the inverse question for one planner.

    Returns
    -------
    dict[str, object]
        Plain values: the bracket as worsenings, and as bandwidths of the level
        [byte/s]: of one block's links to the level above, or of one link.

    Raises
    ------
    PointFailedError
        If the planner finds no plan.
    """
    first: list[Plan] = []

    def time(worsening: float) -> float:
        condition = worsened(evaluator, request, worsening)
        if not first or policy == "re-made":
            made = evaluator.make(condition, planner)
            if made.plan is None:
                raise PointFailedError(made.why_not)
            first.append(made.plan)
        return evaluator.run(condition, first[-1]).simulated

    base = time(1.0)
    known = {1.0: base}

    def share(worsening: float) -> float:
        if worsening not in known:
            known[worsening] = time(worsening)
        return base / known[worsening]

    limits = bracket(share, request.keep)
    ends = [limits.kept, limits.lost]
    return {
        "kept": limits.kept,
        "lost": limits.lost,
        "bandwidths": [end and _bandwidth(evaluator, request, end) for end in ends],
        "tried": [list(trial) for trial in limits.tried],
        "is_monotone": limits.is_monotone,
        "base_s": base,
    }


def _bandwidth(
    evaluator: ConditionEvaluator, request: InverseRequest, worsening: float
) -> float:
    """Return the bandwidth that a worsening leaves of a level [byte/s]."""
    _, network = evaluator.under(worsened(evaluator, request, worsening))
    if request.quantity == "oversubscription":
        return float(uplinks(network, request.level).uplink_bandwidth)
    chosen = select_links(network, f"level {request.level}")
    return float(network.links.bandwidth[chosen].min())
