"""Compare planners on scenarios: every pair once, the same evaluator and replay.

A comparison is a sweep: a point is a scenario and a planner, a row its entry. The
planner searches; its plan is priced, replayed and judged.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import tomli

from nestsim.evaluate.cluster import build_job, priced_cluster
from nestsim.evaluate.evaluator import Evaluator, progress_of
from nestsim.evaluate.results import Candidate
from nestsim.features.compare.own import OwnPlanner
from nestsim.features.compare.results import (
    BestPlan,
    Comparison,
    PlannerEntry,
    ScenarioEntries,
)
from nestsim.features.sweep.executors.protocol import Executor
from nestsim.features.sweep.runner import run_sweep
from nestsim.features.sweep.scenario_task import scenario_digest
from nestsim.running.store import Outcome, Point, Row, Store, content_key
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import SweepSpec
from planner.rivals import PLANNERS
from planner.rivals.protocol import PlannerSettings
from planner.work import Progress
from topologies.errors import InputError
from topologies.network import Network


def for_comparison(scenario: Scenario) -> Scenario:
    """Return a scenario as it is compared: replayed folded.

    Folding is exact. What other commands do with it is left out.
    """
    simulation = scenario.simulation
    return replace(
        scenario,
        sweep=SweepSpec(),
        assertions=(),
        simulation=replace(simulation, trace="representatives", folding=True),
    )


class ReplayedEntry(NamedTuple):
    """What became of one planner on one scenario."""

    entry: PlannerEntry
    """What is kept of it."""

    candidate: Candidate | None
    """Its plan with the whole replay; None without one."""

    network: Network
    """Where it was replayed."""


def measure(
    scenario: Scenario,
    planner: str | OwnPlanner,
    settings: PlannerSettings,
    *,
    progress: Progress | None = None,
) -> ReplayedEntry:
    """Return what a planner finds for a scenario, and what becomes of it.

    Network and prices are made anew, so that no planner profits from what another one
    has looked up. Each planner answers for the best replayed one of the plans that it
    proposes.

    Parameters
    ----------
    scenario
        As `for_comparison` returns it.
    planner
        A name of `planner.rivals.PLANNERS`, or a planner of the user.
    settings
        Seeds, budgets and the like.
    progress
        Called with every step.

    Raises
    ------
    InputError
        If parts of the scenario do not go together. What a planner refuses is a
        result.
    """
    evaluator = Evaluator.of(scenario, progress)
    name = planner if isinstance(planner, str) else planner.name
    asked = planner if isinstance(planner, str) else planner.of(scenario)
    progress_of(progress, name)
    try:
        outcome = evaluator.find(asked, settings, progress=progress)
    except InputError as error:
        refused = PlannerEntry(planner=name, why_not=_refusal(error))
        return ReplayedEntry(refused, None, evaluator.network)
    made = candidate = None
    if outcome.plans:
        named_progress = progress_of(progress, f"{name}: replay")
        best = outcome.plans[0]
        first = evaluator.evaluate(best, 1, named_progress, confirm=True)
        candidate = evaluator.explain(first, is_confirmed=True)
        made = BestPlan(
            plan=best.plan,
            planned=candidate.planned,
            simulated=candidate.simulated,
            planned_terms=dict(best.terms),
            gap_terms=dict(candidate.verdict.gap.terms),
            verdict=candidate.verdict.kind,
            reason=candidate.verdict.reason,
            broken_rules=tuple(
                f"{rule.rule} ({rule.found})" for rule in candidate.broken_rules
            ),
        )
    bound = outcome.lower_bound
    entry = PlannerEntry(
        planner=name,
        sees=outcome.sees,
        belief=outcome.belief,
        evaluations=int(outcome.evaluations),
        lower_bound=float("nan") if bound is None else bound,
        spent=outcome.spent,
        spread=tuple(outcome.spread),
        search_time=outcome.search_time,
        launchable_time=outcome.launchable_time,
        free_time=outcome.free_time,
        notes=outcome.notes,
        found=made,
        why_not=outcome.why_not if made is None else "",
    )
    return ReplayedEntry(entry, candidate, evaluator.network)


def _refusal(error: InputError) -> str:
    """Say in a sentence what a planner asks for."""
    where = "" if error.where in {"", "planner"} else f"{error.where}: "
    expected = f"; expected: {error.expected}" if error.expected else ""
    return f"Refused: {where}{error.problem}{expected}."


class Details:
    """Shows what happens inside a point beside how many points are done.

    It stays behind when a task travels to another process, where nobody looks.
    """

    def __init__(self, progress: Progress | None, num_points: int) -> None:
        self._progress, self._num_points = progress, num_points
        self._doing, self._share = "", 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return Details, (None, self._num_points)

    def point(self, doing: str, share: float | None) -> None:
        """Take what the sweep says of itself."""
        self._doing, self._share = doing, share or 0.0
        self._say(doing, self._share)

    def detail(self, doing: str, share: float | None) -> None:
        """Take what a point says of itself."""
        inside = (share or 0.0) / self._num_points
        self._say(f"{self._doing}: {doing}", min(self._share + inside, 1.0))

    @property
    def listener(self) -> Progress | None:
        """What points tell, None where nobody listens."""
        return None if self._progress is None else self.detail

    def _say(self, doing: str, share: float) -> None:
        if self._progress is not None:
            self._progress(doing, share)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTask:
    """Takes a planner through a scenario."""

    scenarios: Mapping[str, Scenario]
    """By the label that points name them by, as `for_comparison` returns them."""

    time_limit: float | None
    """Of each search; None for the scenario's own [s]."""

    details: Details = field(default_factory=lambda: Details(None, 1))
    """Shows progress inside a point."""

    brought: Mapping[str, OwnPlanner] = field(default_factory=dict)
    """Planners of the user, by name."""

    def __call__(self, point: Point) -> Row:
        """Return the row of the entry."""
        scenario, planner = self.scenarios[point["scenario"]], point["planner"]
        settings, listener = self.settings(scenario), self.details.listener
        known = self.brought.get(planner, planner)
        replayed = measure(scenario, known, settings, progress=listener)
        return self.entry(scenario, replayed).to_row()

    def entry(self, scenario: Scenario, replayed: ReplayedEntry) -> PlannerEntry:  # noqa: ARG002
        """Return what is kept of a point."""
        return replayed.entry

    def files(self, _: Sequence[Point]) -> tuple[Path, ...]:
        """Return the files that points read, which travel to other machines."""
        scenarios = self.scenarios.values()
        return tuple(file for scenario in scenarios for file in scenario.files())

    def key(self, point: Point) -> str:
        """Return a hash of the planner's name and all that it is told."""
        scenario = self.scenarios[point["scenario"]]
        parts = [dict(point), scenario_digest(scenario), repr(self.settings(scenario))]
        planner = self.brought.get(point["planner"])
        return content_key(parts if planner is None else [*parts, planner.digest()])

    def settings(self, scenario: Scenario) -> PlannerSettings:
        """Return what planners are told beside the space."""
        return replace(
            scenario.planner_settings, time_limit=self.time_limit, fixed=scenario.plan
        )


def compared_entries(
    task: CompareTask,
    planners: Sequence[str],
    *,
    store: Store | None,
    workers: int | None,
    executor: Executor | None,
    progress: Progress | None,
) -> dict[str, tuple[PlannerEntry, ...]]:
    """Return what each planner finds, by the label of the scenario.

    Parameters
    ----------
    task
        What is done with each scenario and planner.
    planners
        Names, in the order of the entries.
    store, workers, executor, progress
        As `compare_job` takes them.
    """
    labels = list(task.scenarios)
    points = [
        {"scenario": label, "planner": planner}
        for label in labels
        for planner in planners
    ]
    details = Details(progress, len(points))
    listener = None if progress is None else details.point
    swept = run_sweep(
        points,
        replace(task, details=details),
        store,
        workers=workers,
        executor=executor,
        progress=listener,
    )
    entries: dict[str, list[PlannerEntry]] = {label: [] for label in labels}
    for outcome in swept.outcomes:
        entries[outcome.point["scenario"]].append(_entry_of(outcome))
    return {label: tuple(of_label) for label, of_label in entries.items()}


NOT_BY_DEFAULT = ("exhaustive", "fixed")
"""Planners that refuse large spaces, or need a plan."""


SPACES = ("launchable", "free")
"""Names of what planners may be held to: the framework's rules, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """Who is compared with whom."""

    planners: tuple[str, ...] = ()
    """Names, in the order of reports; empty for all of `default_planners`."""

    brought: Mapping[str, OwnPlanner] = field(default_factory=dict)
    """Those of them that the user brings, by name."""

    base: str = ""
    """Whose throughput is 1; empty for ``nest``, or the first one without it."""

    time_limit: float | None = None
    """Of each search; None for the scenario's own [s]."""

    space: str = ""
    """What all planners are held to, one of `SPACES`; empty for what each scenario's
    ``search.launchable`` says."""


_DEFAULT = CompareSettings()


def default_planners(scenarios: Sequence[Scenario]) -> tuple[str, ...]:
    """Return all planners that any scenario can have, ``fixed`` with a plan each."""
    has_plans = all(scenario.plan is not None for scenario in scenarios)
    return tuple(
        name
        for name in PLANNERS
        if name not in NOT_BY_DEFAULT or (name == "fixed" and has_plans)
    )


def checked_settings(
    settings: CompareSettings, scenarios: Sequence[Scenario]
) -> CompareSettings:
    """Return the settings with everything filled in.

    Raises
    ------
    InputError
        If a planner is unknown, named twice, or needs a plan that is not there; or
        the base is not among them.
    """
    planners = settings.planners or default_planners(scenarios)
    _check_names(planners, settings.brought)
    for scenario in scenarios:
        if "fixed" in planners and scenario.plan is None:
            raise InputError(
                "there is no plan for the planner fixed",
                where=f"{scenario.path}: plan",
                expected="a table [plan], or a comparison without fixed",
            )
    if settings.space not in {"", *SPACES}:
        raise InputError(
            "is not a space of plans",
            where="--space",
            got=settings.space,
            expected=" or ".join(SPACES),
        )
    base = settings.base or ("nest" if "nest" in planners else planners[0])
    if base not in planners:
        raise InputError(
            "is not one of the planners that are compared",
            where="--base",
            got=base,
            expected=" or ".join(planners),
        )
    return replace(settings, planners=planners, base=base)


def _check_names(planners: Sequence[str], brought: Mapping[str, OwnPlanner]) -> None:
    for name, times in Counter(planners).items():
        problem = "" if times == 1 else "is named twice"
        if name not in PLANNERS and name not in brought:
            problem = "is not a planner"
        if problem:
            raise InputError(
                problem,
                where="--planners",
                got=name,
                expected=f"names out of {', '.join(PLANNERS)}, each once; or a file "
                "of your own, mine.py",
            )


def store_facts(
    scenarios: Sequence[Scenario], settings: CompareSettings
) -> dict[str, str]:
    """Return what a store must agree in to be taken up, as names and hashes."""
    return {
        "version of nestsim": version("nestsim"),
        "scenarios": content_key(
            [scenario_digest(for_comparison(scenario)) for scenario in scenarios]
        ),
        "planners": ", ".join(settings.planners),
        "time limit": str(settings.time_limit),
        "space": settings.space,
    }


def compare_job(
    scenarios: Sequence[Scenario],
    settings: CompareSettings = _DEFAULT,
    *,
    store: Store | None = None,
    workers: int | None = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Take every planner through every scenario.

    Parameters
    ----------
    scenarios
        Different ones; each is a group of the comparison.
    settings
        Who is compared.
    store
        Where finished pairs are kept, so that a comparison that was interrupted goes
        on; None for memory alone.
    workers
        Processes; 1 for this one alone, None for one for each core.
    executor
        Who evaluates pairs; None for so many processes.
    progress
        Told about every step.

    Returns
    -------
    Comparison
        The same, search times aside, whatever the number of workers, unless a time
        limit ended a search.

    Raises
    ------
    InputError
        If parts of a scenario do not go together, two scenarios are the same, or the
        settings are wrong. What stops a single planner is part of the comparison.
    """
    settings = checked_settings(settings, scenarios)
    scenarios = [in_space(scenario, settings.space) for scenario in scenarios]
    labels = scenario_labels(scenarios)
    for number, scenario in enumerate(scenarios):
        if progress is not None:
            progress(f"check: {labels[number]}", number / len(scenarios))
        _check(scenario)
    task = CompareTask(
        scenarios=dict(zip(labels, map(for_comparison, scenarios), strict=True)),
        time_limit=settings.time_limit,
        brought=settings.brought,
    )
    entries = compared_entries(
        task,
        settings.planners,
        store=store,
        workers=workers,
        executor=executor,
        progress=progress,
    )
    return Comparison(
        planners=settings.planners,
        base=settings.base,
        groups=tuple(
            _group(scenario, label, settings.base, entries[label])
            for scenario, label in zip(scenarios, labels, strict=True)
        ),
    )


def in_space(scenario: Scenario, space: str) -> Scenario:
    """Return a scenario whose planners are held to a space; "" for its own."""
    if not space:
        return scenario
    held = replace(scenario.search, launchable=space == SPACES[0])
    return replace(scenario, search=held)


def _check(scenario: Scenario) -> None:
    """Refuse parts that do not go together, before hours of work."""
    try:
        priced_cluster(scenario)
        build_job(scenario, None)
    except InputError as error:
        raise error.at(str(scenario.path), ": ") from None


def _entry_of(outcome: Outcome) -> PlannerEntry:
    """Return the entry of a point; without a plan where it failed."""
    if outcome.row is None:
        return PlannerEntry(planner=outcome.point["planner"], why_not=outcome.reason)
    return PlannerEntry.from_row(outcome.row)


def _group(
    scenario: Scenario, label: str, base: str, entries: tuple[PlannerEntry, ...]
) -> ScenarioEntries:
    network, workload = build_job(scenario, None)
    return ScenarioEntries(
        scenario=label,
        model=model_label(scenario),
        num_devices=network.num_devices,
        device_memory=workload.smallest_of().memory_bytes,
        base=base,
        entries=entries,
        launchable=scenario.search.keeps_rules,
        framework=scenario.search.rules.framework if scenario.search.rules else "",
        cost=priced_cluster(scenario),
    )


def scenario_labels(scenarios: Sequence[Scenario]) -> list[str]:
    """Return a label for each: its name, with the file's where names are the same.

    Raises
    ------
    InputError
        If two scenarios of one name stand in files of one name.
    """
    often = Counter(scenario.name for scenario in scenarios)
    labels = [
        scenario.name
        if often[scenario.name] == 1
        else f"{scenario.name} ({scenario.path.stem})"
        for scenario in scenarios
    ]
    label, times = Counter(labels).most_common(1)[0]
    if times > 1:
        raise InputError(
            "scenarios cannot be told apart",
            where="SCENARIO",
            got=label,
            expected="files of different names, each once",
        )
    return labels


def model_label(scenario: Scenario) -> str:
    """Return what the scenario calls its model: a name, a file, or its size."""
    table: dict[str, Any] = tomli.loads(scenario.text.decode("utf-8-sig"))["model"]
    for key in ("name", "config", "module"):
        if key in table:
            return str(table[key])
    spec = scenario.spec
    return f"{spec.family} ({spec.num_layers} layers of {spec.hidden_size})"
