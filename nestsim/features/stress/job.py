"""The stress test of a scenario: make plans, cross them, ask the questions.

Each step is a task of `nestsim.sweep`: plans to make, plans to run, brackets to narrow
are points, which go to all cores and to a store.
"""

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nestsim.evaluate.cluster import priced_cluster
from nestsim.evaluate.cost import ClusterCost
from nestsim.features.stress.conditions import (
    all_conditions,
    apply_condition,
    axes_of,
    canonical,
    network_ratios,
    ratio_condition,
)
from nestsim.features.stress.evaluator import (
    ConditionEvaluator,
    ConditionResult,
    plan_key,
)
from nestsim.features.stress.results import (
    CrossedPlans,
    InverseAnswer,
    PlanChange,
    StressResult,
)
from nestsim.features.stress.thresholds import (
    POLICIES,
    BestPlanChange,
    InverseRequest,
    narrow,
    plan_changes,
    quantity_of,
)
from nestsim.features.sweep.executors.protocol import Executor, Shared
from nestsim.features.sweep.runner import SweepResult, run_sweep
from nestsim.features.sweep.scenario_task import scenario_digest
from nestsim.running.store import (
    Point,
    PointFailedError,
    PointTask,
    Row,
    Store,
    content_key,
)
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import ConditionSpec, StressSpec
from planner.rivals import PLANNERS
from planner.step.plan import Plan
from planner.work import Progress
from topologies.builders import build_network
from topologies.errors import InputError
from topologies.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithEvaluator:
    """Something done by the evaluator of a scenario."""

    scenario: Scenario
    """Scenario as it is, without a condition."""

    evaluator: Shared[ConditionEvaluator]
    """Evaluator of the scenario."""

    def files(self, _: Sequence[Point]) -> tuple[Path, ...]:
        """Return the files that points read."""
        return self.scenario.files()

    def key(self, point: Point) -> str:
        """Return a hash of the point, the scenario and what else it depends on."""
        return content_key(
            [type(self).__name__, self.evaluator.key, self.content(point)]
        )

    def content(self, point: Point) -> object:
        """Return what the point means beside the scenario."""
        return dict(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlans(_WithEvaluator):
    """Point: a condition and a planner. Row: the plan that it makes for it."""

    conditions: Mapping[str, ConditionSpec]
    """By name."""

    def __call__(self, point: Point) -> Row:
        """Return the plan, or why there is none."""
        made = self.evaluator().make(
            self.conditions[point["condition"]], point["planner"]
        )
        if made.plan is None:
            raise PointFailedError(made.why_not)
        return {"plan": made.plan.to_json(), "stopped": made.stopped}

    def content(self, point: Point) -> object:
        """Return the condition and the planner."""
        return [repr(self.conditions[point["condition"]]), dict(point)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlans(_WithEvaluator):
    """Point: a condition. Row: what becomes of every plan under it."""

    conditions: Mapping[str, ConditionSpec]
    """By name."""

    plans: Mapping[str, Mapping[str, object]]
    """By key, as JSON."""

    def __call__(self, point: Point) -> Row:
        """Return one cell for each plan, by its key."""
        evaluator, condition = self.evaluator(), self.conditions[point["condition"]]
        return {
            key: ConditionResult.dump(evaluator.run(condition, Plan.from_json(plan)))
            for key, plan in self.plans.items()
        }

    def content(self, point: Point) -> object:
        """Return the condition and the plans."""
        return [repr(self.conditions[point["condition"]]), sorted(self.plans)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FindChanges(_WithEvaluator):
    """Point: a planner, a level and two ratios. Row: where its plan changes between."""

    def __call__(self, point: Point) -> Row:
        """Return every change that was found."""
        changes = plan_changes(
            self.evaluator(),
            point["planner"],
            point["level"],
            point["low"],
            point["high"],
        )
        return {"changes": [BestPlanChange.dump(change) for change in changes]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrow(_WithEvaluator):
    """Point: what is asked, and whether plans are re-made. Row: the bracket."""

    planner: str

    def __call__(self, point: Point) -> Row:
        """Return the bracket, and all that was tried."""
        asked = InverseRequest(point["level"], point["quantity"], point["keep"])
        return narrow(self.evaluator(), self.planner, asked, point["policy"])

    def content(self, point: Point) -> object:
        """Return the point and the planner."""
        return [self.planner, dict(point)]


STORE_NAMES = ("plans", "replays", "changes", "answers")
"""One store for each sweep of a stress test, in their order."""


class _Sweeps:
    """Runs the sweeps of one stress test, one after the other."""

    def __init__(
        self,
        scenario: Scenario,
        folder: Path | None,
        restart: bool,
        executor: Executor | None,
        progress: Progress | None,
    ) -> None:
        key, make = scenario_digest(scenario), partial(ConditionEvaluator.of, scenario)
        self.evaluator = Shared(key, make)
        self._executor = executor
        self._workers, self._folder = scenario.stress.workers, folder
        self._restart, self._progress = restart, progress

    def run(self, name: str, points: Sequence[Point], task: PointTask) -> SweepResult:
        """Evaluate points; take up what an earlier run of the same points left."""
        with ExitStack() as stack:
            store = None
            if self._folder is not None and points:
                path = self._folder / f"{name}.sqlite"
                facts = {"points": content_key([*map(task.key, points)])}
                store = stack.enter_context(Store(path, facts, restart=self._restart))
            workers = 1 if len(points) < _FEW else self._workers
            return run_sweep(
                points,
                task,
                store,
                workers=workers,
                executor=self._executor,
                progress=self._named_progress(name),
            )

    def _named_progress(self, name: str) -> Progress | None:
        progress = self._progress
        if progress is None:
            return None
        return lambda doing, share: progress(f"{name}: {doing}", share)


_FEW = 4
"""So few points are done before other processes have started."""


def stress_job(
    scenario: Scenario,
    *,
    stores: Path | None = None,
    restart: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> StressResult:
    """Put plans under the scenario's conditions.

    Parameters
    ----------
    scenario
        With what `Scenario.stress` asks.
    stores
        Folder in which finished points are kept, so that a killed test goes on where
        it stopped; None for memory alone.
    restart
        Forget what is kept there.
    executor
        Who evaluates points; None for processes of this machine.
    progress
        Told about every point.

    Raises
    ------
    InputError
        If a condition does not go with the cluster, a setting is wrong, or the stores
        are of another test.
    """
    spec = scenario.stress
    _check_planners(scenario)
    built = network_ratios(scenario)
    network = build_network(scenario.network_spec)
    axes = axes_of(spec, built)
    conditions = all_conditions(spec, axes, built)
    asked = _asked(spec, network, built)
    costs = _costs(scenario, conditions)
    sweeps = _Sweeps(scenario, stores, restart, executor, progress)
    # What one process would say later of each point is said once, and at once.
    evaluator = sweeps.evaluator()
    for number, condition in enumerate(conditions):
        if progress is not None:
            progress(f"conditions: {condition.name}", number / len(conditions))
        try:
            evaluator.under(condition)
        except InputError as error:
            raise error.at("stress", ": ") from None
    crossed = _crossed(sweeps, scenario, conditions)
    return StressResult(
        scenario_name=scenario.name,
        network=network,
        built=built,
        axes=axes,
        conditions=conditions,
        planners=spec.planners,
        objective=spec.ranked(scenario.search).objective,
        **vars(crossed),
        is_reproducible=scenario.search.time_limit is None,
        changes=_changes(sweeps, scenario, axes, crossed),
        asked=asked,
        answers=_answers(sweeps, scenario, asked),
        tokens=scenario.training.global_batch_size * scenario.spec.sequence_length,
        costs=costs,
    )


def _costs(
    scenario: Scenario, conditions: Sequence[ConditionSpec]
) -> dict[str, ClusterCost]:
    """Return what the cluster costs under each condition; nothing without prices.

    Only networks with other ratios are other networks to buy.
    """
    costs: dict[str, ClusterCost] = {}
    for condition in conditions if scenario.cost is not None else ():
        try:
            cost = priced_cluster(apply_condition(scenario, condition))
        except InputError as error:
            raise error.at("stress", ": ") from None
        assert cost is not None
        costs[condition.name] = cost
    return costs


def _check_planners(scenario: Scenario) -> None:
    for index, name in enumerate(scenario.stress.planners):
        where = f"stress.planners[{index}]"
        if name not in PLANNERS:
            names = ", ".join(f'"{planner}"' for planner in PLANNERS)
            raise InputError("no such planner", where=where, got=name, expected=names)
        if name == "fixed" and scenario.plan is None:
            raise InputError(
                "there is no plan to take",
                where=where,
                got=name,
                expected="a table [plan] in the scenario",
            )


def _asked(
    spec: StressSpec, network: Network, built: Mapping[str, float]
) -> InverseRequest | None:
    if spec.keep is None:
        return None
    level = spec.level or ([*built] or [network.levels[-1].name])[-1]
    return InverseRequest(level, quantity_of(network, level, spec.quantity), spec.keep)


def _crossed(
    sweeps: _Sweeps, scenario: Scenario, conditions: Sequence[ConditionSpec]
) -> CrossedPlans:
    """Make every planner's plan for every condition, and run all under all."""
    by_name = {condition.name: condition for condition in conditions}
    points = [
        {"condition": name, "planner": planner}
        for planner in scenario.stress.planners
        for name in by_name
    ]
    made = sweeps.run(
        "plans",
        points,
        MakePlans(scenario=scenario, evaluator=sweeps.evaluator, conditions=by_name),
    )
    plans: dict[str, Any] = {}
    keys: dict[tuple[str, str], str] = {}
    why_not: dict[tuple[str, str], str] = {}
    stopped = set()
    for outcome in made.outcomes:
        where = outcome.point["planner"], outcome.point["condition"]
        if outcome.row is None:
            why_not[where] = outcome.reason
            continue
        key = plan_key(Plan.from_json(outcome.row["plan"]))
        plans[key] = outcome.row["plan"]
        keys[where] = key
        if outcome.row["stopped"]:
            stopped.add(where)
    task = RunPlans(
        scenario=scenario, evaluator=sweeps.evaluator, conditions=by_name, plans=plans
    )
    runs = [{"condition": name} for name in by_name] if plans else []
    done = sweeps.run("replays", runs, task)
    cells = {
        outcome.point["condition"]: {
            key: ConditionResult.read(outcome.row[key]) for key in plans
        }
        for outcome in done.outcomes
        if outcome.row is not None
    }
    failed = {lost.point["condition"]: lost.reason for lost in done.failed}
    known = {key: Plan.from_json(data) for key, data in plans.items()}
    return CrossedPlans(
        plans=known,
        made=keys,
        why_not=why_not,
        stopped=frozenset(stopped),
        cells=cells,
        failed=failed,
    )


def _changes(
    sweeps: _Sweeps,
    scenario: Scenario,
    axes: Mapping[str, Sequence[float]],
    crossed: CrossedPlans,
) -> tuple[PlanChange, ...]:
    """Find where each planner's plan changes along each level's ratios."""
    built = network_ratios(scenario)

    def key(planner: str, level: str, ratio: float) -> str:
        condition = ratio_condition(canonical(built, {level: ratio}))
        return crossed.made.get((planner, condition.name), "")

    points = [
        {"planner": planner, "level": level, "low": low, "high": high}
        for planner in scenario.stress.planners
        for level, ratios in axes.items()
        for low, high in itertools.pairwise(ratios)
        if key(planner, level, low) != key(planner, level, high)
    ]
    swept = sweeps.run(
        "changes", points, FindChanges(scenario=scenario, evaluator=sweeps.evaluator)
    )
    return tuple(
        PlanChange(
            planner=outcome.point["planner"],
            level=outcome.point["level"],
            change=BestPlanChange.read(change),
        )
        for outcome in swept.outcomes
        for change in (outcome.row or {"changes": ()})["changes"]
    )


def _answers(
    sweeps: _Sweeps, scenario: Scenario, asked: InverseRequest | None
) -> tuple[InverseAnswer, ...]:
    if asked is None:
        return ()
    planner = scenario.stress.planners[0]
    points = [{**asked._asdict(), "policy": policy} for policy in POLICIES]
    swept = sweeps.run(
        "answers",
        points,
        Narrow(scenario=scenario, evaluator=sweeps.evaluator, planner=planner),
    )
    return tuple(
        _answer(outcome.point["policy"], outcome.row, scenario, asked)
        for outcome in swept.outcomes
        if outcome.row is not None
    )


def _answer(
    policy: str, row: Mapping[str, Any], scenario: Scenario, asked: InverseRequest
) -> InverseAnswer:
    low, high = row["bandwidths"]
    costs: tuple[ClusterCost, ClusterCost] | None = None
    kept: float | None = row["kept"]
    if asked.quantity == "oversubscription" and kept is not None:
        built = network_ratios(scenario)
        ends = [
            ratio_condition(canonical(built, {asked.level: ratio}))
            for ratio in (1.0, kept)
        ]
        known = _costs(scenario, ends)
        if known:
            costs = known[ends[0].name], known[ends[1].name]
    return InverseAnswer(
        policy=policy,
        kept=row["kept"],
        lost=row["lost"],
        bandwidths=(low, high),
        tried=tuple((worsening, share) for worsening, share in row["tried"]),
        is_monotone=row["is_monotone"],
        base_time=row["base_s"],
        costs=costs,
    )
