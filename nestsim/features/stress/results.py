"""What a stress test found: plans crossed with conditions, and what follows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from nestsim.document.wording import percent, signed_percent
from nestsim.evaluate.cost import ClusterCost, RunCost, pareto_front
from nestsim.features.stress.conditions import AS_BUILT, canonical, ratio_condition
from nestsim.features.stress.evaluator import ConditionResult, limiting_term
from nestsim.features.stress.thresholds import BestPlanChange, InverseRequest
from nestsim.scenario.stress import ConditionSpec
from planner.step.plan import Plan
from topologies.arrays import FloatArray
from topologies.errors import short_repr
from topologies.network import Network

SAME = 1e-9
"""Regrets that differ by less are the same; the plan that comes first is taken."""


class RobustChoice(NamedTuple):
    """A plan and its regret."""

    plan: int
    """Its row."""

    worst: float
    """The largest regret over the conditions."""

    worst_condition: int
    """Where it has it, the first of equals."""

    mean: float
    """The mean regret over the conditions, all of equal weight."""


def regrets(times: FloatArray) -> FloatArray:
    """Return how much slower each plan is than the best one under each condition.

    Parameters
    ----------
    times
        Iteration times, shape ``(P, C)`` [s].
    """
    return np.asarray(times / times.min(axis=0) - 1.0)


def least_worst(times: FloatArray) -> RobustChoice:
    """Return the plan with the least worst-case regret (Savage's minimax regret)."""
    of_plans = regrets(times)
    return _choice(of_plans, of_plans.max(axis=1))


def least_mean(times: FloatArray) -> RobustChoice:
    """Return the plan with the least mean regret."""
    of_plans = regrets(times)
    return _choice(of_plans, of_plans.mean(axis=1))


def _choice(all_regrets: FloatArray, score: FloatArray) -> RobustChoice:
    plan = int(np.flatnonzero(score <= score.min() + SAME)[0])
    of_plan = all_regrets[plan]
    worst = int(np.flatnonzero(of_plan >= of_plan.max() - SAME)[0])
    return RobustChoice(plan, float(of_plan.max()), worst, float(of_plan.mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """Where the best plan changes."""

    planner: str
    level: str
    change: BestPlanChange

    __repr__ = short_repr


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseAnswer:
    """How far a level can be worsened."""

    policy: str
    """A name of `nestsim.features.stress.thresholds.POLICIES`."""

    kept: float | None
    """A worsening that keeps the share; None if none does."""

    lost: float | None
    """The lowest that was tried beyond it and does not; None if all do."""

    bandwidths: tuple[float | None, float | None]
    """What both leave of the level [byte/s]."""

    tried: tuple[tuple[float, float], ...]
    """Worsening and share of the throughput, rising."""

    is_monotone: bool
    """Whether throughput never rose where the network got worse, as far as tried."""

    base_time: float
    """Simulated time of a step before anything is worsened, of which shares are [s]."""

    costs: tuple[ClusterCost, ClusterCost] | None = None
    """What the cluster costs before anything is worsened, and with the worsening
    `kept`; None without prices, or where nothing is saved, as links are only slow."""

    __repr__ = short_repr


@dataclass(frozen=True, kw_only=True)
class CrossedPlans:
    """Plans made for conditions, and what becomes of them under all."""

    plans: Mapping[str, Plan]
    """The distinct plans, by key."""

    made: Mapping[tuple[str, str], str]
    """Planner and condition -> key of the plan made for it."""

    why_not: Mapping[tuple[str, str], str]
    """Planner and condition -> why there is none."""

    stopped: frozenset[tuple[str, str]]
    """Planners and conditions whose search a limit ended, with its best so far."""

    cells: Mapping[str, Mapping[str, ConditionResult]]
    """Condition -> plan -> what becomes of it."""

    failed: Mapping[str, str]
    """Condition -> why plans could not be run under it."""


@dataclass(frozen=True, kw_only=True)
class StressResult(CrossedPlans):
    """Plans, conditions, and what becomes of every plan under every condition."""

    scenario_name: str
    network: Network
    """As it was built."""

    built: Mapping[str, float]
    """Ratio of each level that has one, from the inside out."""

    axes: Mapping[str, tuple[float, ...]]
    """Ratios of each level that varies, rising, from the inside out."""

    conditions: tuple[ConditionSpec, ...]
    """The first is the scenario as it is."""

    planners: tuple[str, ...]
    """Names; the first one's plans answer the questions."""

    objective: str
    """What plans were chosen by, one of `planner.search.space.OBJECTIVES`."""

    is_reproducible: bool
    """Whether searches had no limit of wall time: the same is found in every run."""

    changes: tuple[PlanChange, ...]
    """By planner and level, ratios rising."""

    asked: InverseRequest | None
    """The inverse question."""

    answers: tuple[InverseAnswer, ...]
    """Its answers, one for each policy; none if nothing was asked."""

    tokens: int
    """Of one step."""

    costs: Mapping[str, ClusterCost] = field(default_factory=dict)
    """Condition -> what its cluster costs; empty if the scenario does not say."""

    __repr__ = short_repr

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the conditions."""
        return tuple(condition.name for condition in self.conditions)

    def cell(
        self, planner: str, planned_for: str, run_at: str
    ) -> ConditionResult | None:
        """Return what a planner's plan for one condition does under another."""
        key = self.made.get((planner, planned_for))
        return None if key is None else self.cells.get(run_at, {}).get(key)

    def regret(self, planner: str, name: str, *, planned: bool = False) -> float | None:
        """Return what it costs to keep the healthy plan under a condition.

        Its time over that of the plan that the same planner makes for the condition,
        minus 1: in the replay, or planned. Negative where the re-made plan is slower.
        """
        kept = self.cell(planner, AS_BUILT, name)
        fresh = self.cell(planner, name, name)
        if kept is None or fresh is None:
            return None
        if planned:
            return kept.planned / fresh.planned - 1.0
        return kept.simulated / fresh.simulated - 1.0

    def term(self, planner: str, planned_for: str, run_at: str) -> str:
        """Name the term that limits a plan: what grew most from the healthy network."""
        cell = self.cell(planner, planned_for, run_at)
        assert cell is not None
        healthy = self.cell(planner, planned_for, AS_BUILT)
        is_healthy = run_at == AS_BUILT or healthy is None
        return limiting_term(cell.causes, None if is_healthy else healthy.causes)  # type: ignore[union-attr]

    def throughput(self, cell: ConditionResult) -> float:
        """Return the replay's [token/s]."""
        return self.tokens / cell.simulated

    def cost_of(self, name: str, cell: ConditionResult | None) -> RunCost | None:
        """Return what a plan costs under a condition; None without plan or prices."""
        if cell is None or name not in self.costs:
            return None
        return RunCost(
            cluster=self.costs[name],
            iteration_time=cell.simulated,
            tokens_per_second=self.throughput(cell),
        )

    @property
    def currency(self) -> str:
        """Of all costs; empty without any, or where a cluster costs nothing."""
        if not self.costs or not all(cost.rate for cost in self.costs.values()):
            return ""
        return self.costs[AS_BUILT].currency

    def saved(self, name: str) -> float | None:
        """Return the share of the cluster's cost that a condition's network saves.

        Of that of the cluster as built; None without prices.
        """
        if not self.currency:
            return None
        built, now = self.costs[AS_BUILT].rate, self.costs[name].rate
        assert built is not None
        assert now is not None
        return 1.0 - now / built

    def front(self) -> frozenset[tuple[str, str]]:
        """Return planners and conditions that nothing dominates; none without prices.

        By the replayed throughput of the plan re-made there, and the cluster's cost.
        """
        if not self.currency:
            return frozenset()
        made = list(self.made)
        runs = [self.cost_of(name, self.cell(who, name, name)) for who, name in made]
        costs = np.array([math.nan if r is None else r.cluster.rate for r in runs])
        gains = np.array([math.nan if r is None else r.tokens_per_second for r in runs])
        front = pareto_front(costs, gains)
        return frozenset(point for point, on in zip(made, front, strict=True) if on)

    def at(self, ratios: Mapping[str, float]) -> str:
        """Return the name of the condition of some ratios."""
        return ratio_condition(canonical(self.built, ratios)).name

    def line(self, level: str) -> tuple[str, ...]:
        """Return the conditions along a level's ratios, the others as built."""
        return tuple(self.at({level: ratio}) for ratio in self.axes[level])

    def robust(self) -> "tuple[RobustChoice, RobustChoice] | None":
        """Return the plans with the least worst and the least mean regret.

        Over the conditions under which all plans ran; their numbers are positions in
        `plans` and `run_names`.
        """
        names = self.run_names
        if not names or not self.plans:
            return None
        times = np.array(
            [[self.cells[name][key].simulated for name in names] for key in self.plans]
        )
        return least_worst(times), least_mean(times)

    @property
    def run_names(self) -> tuple[str, ...]:
        """Conditions under which plans ran."""
        return tuple(name for name in self.names if name in self.cells)

    @property
    def combined(self) -> frozenset[str]:
        """Conditions that are combinations of several levels' ratios."""
        return frozenset(
            condition.name
            for condition in self.conditions
            if len(condition.oversubscription) > 1
            and condition == ratio_condition(tuple(condition.oversubscription.items()))
        )


MOST_ROWS = 24
"""Conditions that the text and figures show."""

_MOST_BARS = 14
"""Links that are named."""


class Matrix(NamedTuple):
    """Plans made for some conditions, run at the same ones."""

    names: tuple[str, ...]
    regret: FloatArray
    """Of the plan made for the row's condition under the column's, over that of the
    plan made there; NaN where there is none."""


class LinkBar(NamedTuple):
    """A link and the condition under which it is busiest."""

    link: str
    level: str
    share: float
    condition: str


def shown_conditions(result: StressResult) -> tuple[str, ...]:
    """Return the conditions that tables and figures show.

    All, if they are few; else without combinations of ratios; then the first ones.
    """
    if len(result.names) <= MOST_ROWS:
        return result.names
    simple = [name for name in result.names if name not in result.combined]
    return tuple(simple[:MOST_ROWS])


def throughput_map(result: StressResult, planner: str) -> FloatArray:
    """Return throughput over the ratios of the two outermost levels that vary.

    Of a planner's plans, re-made for each combination; rows are the ratios of the
    inner level; NaN where there is no plan [token/s].
    """
    inner, outer = list(result.axes)[-2:]
    rows = []
    for first in result.axes[inner]:
        names = [
            result.at({inner: first, outer: second}) for second in result.axes[outer]
        ]
        cells = [result.cell(planner, name, name) for name in names]
        rows.append([math.nan if c is None else result.throughput(c) for c in cells])
    return np.array(rows)


def matrix_names(result: StressResult) -> tuple[str, ...]:
    """Return the conditions that are crossed in the picture."""
    if result.axes:
        return result.line([*result.axes][-1])
    return tuple(name for name in shown_conditions(result) if name in result.cells)


def regret_matrix(result: StressResult, planner: str) -> Matrix:
    """Cross a planner's plans: each one made for a condition, run at all."""
    names = matrix_names(result)
    regret = np.full((len(names), len(names)), math.nan)
    for column, run_at in enumerate(names):
        best = result.cell(planner, run_at, run_at)
        for row, planned_for in enumerate(names):
            cell = result.cell(planner, planned_for, run_at)
            if cell is not None and best is not None:
                regret[row, column] = cell.simulated / best.simulated - 1.0
    return Matrix(names, regret)


def matrix_title(result: StressResult) -> str:
    """Say what a plan costs at worst where it was not made for."""
    matrices = [regret_matrix(result, planner) for planner in result.planners]
    worst, where = _worst(result, matrices)
    title = f"Planned for one network, run on another: at worst {signed_percent(worst)}"
    return f"{title}{where}"


def _worst(result: StressResult, matrices: Sequence[Matrix]) -> tuple[float, str]:
    """Return the largest regret, and whose it is."""
    peaks = [float(np.nanmax(matrix.regret, initial=0.0)) for matrix in matrices]
    number = int(np.argmax(peaks))
    if peaks[number] <= 0.0:
        return 0.0, ""
    matrix = matrices[number]
    row, column = np.argwhere(matrix.regret == peaks[number])[0].tolist()
    return peaks[number], (
        f", {result.planners[number]}'s plan for {matrix.names[row]} at "
        f"{matrix.names[column]}"
    )


def share_to_keep(result: StressResult) -> tuple[float, str] | None:
    """Return the throughput that is to be kept [token/s], and what it is.

    None if no share is to be kept, or there is no plan.
    """
    asked = result.asked
    if asked is None or not result.answers:
        return None
    whole = result.tokens / result.answers[0].base_time
    best = "1:1" if asked.quantity == "oversubscription" else "its full bandwidth"
    words = f"to keep: {percent(asked.keep)} of {result.planners[0]}'s"
    return asked.keep * whole, f"{words}, level {asked.level} at {best}"


def hottest_bars(result: StressResult) -> tuple[LinkBar, ...]:
    """Return the links that the first planner's healthy plan keeps busiest.

    Each with the condition where it is, the busiest first.
    """
    planner = result.planners[0]
    bars: dict[str, LinkBar] = {}
    for name in result.run_names:
        cell = result.cell(planner, AS_BUILT, name)
        for link in cell.hottest if cell is not None else ():
            if link.name not in bars or link.share > bars[link.name].share:
                bars[link.name] = LinkBar(link.name, link.level, link.share, name)
    order = sorted(bars.values(), key=lambda bar: (-bar.share, bar.link))
    return tuple(order[:_MOST_BARS])


def hottest_title(bars: Sequence[LinkBar]) -> str:
    """Name the busiest link of all."""
    if not bars:
        return "Nothing was sent over the network"
    first = bars[0]
    return (
        f"The busiest link, {first.link}, is busy {percent(first.share)} of the "
        f"step under {first.condition}"
    )
