"""One scenario: plan it, explain a configuration, run it, or replay a given plan."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import frame_of
from nestsim.document.parts import Document
from nestsim.document.wording import plan_label
from nestsim.evaluate.cost import RunCost
from nestsim.evaluate.job import explain_job, plan_job, run_job, simulate_job
from nestsim.evaluate.results import (
    Candidate,
    Checked,
    ExplainResult,
    PlanResult,
    ReplayedResult,
    check_assertions,
    exit_status,
)
from nestsim.face.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
)
from nestsim.face.report import Contents, DocumentReport, PagedReport
from nestsim.features.run.cost import cost_cells
from nestsim.features.run.document import (
    launch_section,
    plan_document,
    run_document,
)
from nestsim.features.run.explain import (
    explain_document,
    explain_json,
    explanation_sentences,
)
from nestsim.features.run.files import run_writers
from nestsim.features.run.record import (
    assertions_json,
    candidate_rows,
    plan_json,
    plan_rows,
    reported_candidate,
    result_facts,
    result_json,
    summary_rows,
)
from nestsim.scenario.load import Scenario
from planner.explain.request import Request
from planner.plans.written import read_plan
from planner.step.plan import Plan
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JobReport(PagedReport):
    """A plan that was replayed and judged: of `run`, or of `simulate`."""

    scenario: Scenario
    """What was asked."""

    result: ReplayedResult
    """Everything that was found."""

    @property
    def best(self) -> Candidate | None:
        """The plan that is reported: confirmed if any is; None if nothing fits."""
        return reported_candidate(self.result)

    @property
    def cost(self) -> RunCost | None:
        """What the reported plan costs; None without one or without a table [cost]."""
        best = self.best
        return None if best is None else self.result.cost_of(best.simulated)

    @property
    def confirmed(self) -> bool:
        """Whether the replay confirms the plan."""
        return self.result.chosen is not None

    @property
    def assertions(self) -> tuple[Checked, ...]:
        """What the scenario's table [assert] asks, held against what was found."""
        return check_assertions(self.scenario.assertions, self.result)

    @property
    def succeeded(self) -> bool:
        """Whether a plan is confirmed and all assertions hold."""
        return exit_status(0 if self.confirmed else 1, self.assertions) == 0

    def facts(self) -> dict[str, Any]:
        """Return verdict, plan, time and memory of what is reported."""
        best, data = self.best, self.to_dict()
        facts = {"scenario": self.scenario.name, "verdict": data["verdict"]}
        if best is None:
            return {**facts, "reason": data["reason"]}
        return {
            **facts,
            "plan": plan_label(best.priced.plan),
            "planned_iteration_time_s": best.planned.iteration_time,
            "iteration_time_s": best.simulated.iteration_time,
            "tokens_per_s": best.simulated.tokens_per_second,
            "mfu": best.simulated.mfu,
            "peak_memory_bytes": best.simulated.peak_memory,
            "num_plans_replayed": len(self.result.candidates),
            **cost_cells(self.cost),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``result.json``."""
        return result_json(self.result)

    def printed_dict(self) -> dict[str, Any]:
        """Return the same with what became of the assertions."""
        return {**self.to_dict(), **assertions_json(self.assertions)}

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each replayed plan, fastest first."""
        return frame_of(summary_rows(self.result))

    def contents(self) -> Contents:
        """Return the plan, the trace, tables and figures."""
        text = self.scenario.text
        return Contents(
            writers={
                **run_writers(self.result, text, self.document()),
                **self.page_writers(),
            },
            manifest={
                **result_facts(self.result, text),
                **self.scenario.module_facts(),
            },
        )

    def document(self) -> Document:
        """Return what text, pictures and page say."""
        return self._document

    @cached_property
    def _document(self) -> Document:
        return run_document(self.result, self.assertions)

    def page(self) -> Document:
        """Return what can be said from the folder of results, and what launches it."""
        best = self.best
        page = run_document(self.result, rows=candidate_rows(self.result))
        if best is None:
            return page
        # All formats of launches: a tenth of a second that other commands do not wait.
        from nestsim.face.launch import launch_snippets

        snippets = launch_snippets(self.scenario, best.priced.plan)
        return page.with_section(launch_section(snippets))

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PlanReport(DocumentReport):
    """The k best plans of a search, not replayed."""

    scenario: Scenario
    """What was asked."""

    result: PlanResult
    """Everything that was found."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, best first."""
        return tuple(one.priced.plan for one in self.result.candidates)

    @property
    def assertions(self) -> tuple[Checked, ...]:
        """What the scenario's table [assert] asks, held against what was found."""
        return check_assertions(self.scenario.assertions, self.result)

    @property
    def succeeded(self) -> bool:
        """Whether there is a plan and all assertions hold."""
        return exit_status(0 if self.plans else 1, self.assertions) == 0

    def facts(self) -> dict[str, Any]:
        """Return the best plan and its planned time."""
        facts: dict[str, Any] = {"scenario": self.scenario.name}
        if not self.result.candidates:
            return {**facts, "reason": self.result.shortfall}
        best = self.result.candidates[0]
        return {
            **facts,
            "num_plans": len(self.plans),
            "plan": plan_label(best.priced.plan),
            "planned_iteration_time_s": best.planned.iteration_time,
            "planned_tokens_per_s": best.planned.tokens_per_second,
            "planned_peak_memory_bytes": best.planned.peak_memory,
            "lower_bound_s": self.result.lower_bound,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the plans, what became of the assertions, and of the search."""
        return {**plan_json(self.result), **assertions_json(self.assertions)}

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each plan, best first."""
        return frame_of(plan_rows(self.result.candidates))

    def document(self) -> Document:
        """Return what the plans are, and what became of the assertions."""
        return plan_document(self.result, self.assertions)


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExplainReport(DocumentReport):
    """A configuration beside the best plan."""

    result: ExplainResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Always: whatever came of it is the answer."""
        return True

    def facts(self) -> dict[str, Any]:
        """Return the verdict and its reasons."""
        found = self.result.explanation
        return {
            "scenario": self.result.scenario_name,
            "named": str(found.request),
            "verdict": found.verdict,
            "reason": " ".join(explanation_sentences(self.result)),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation."""
        return explain_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return the iteration time by cause: of the named plan and of the best [s]."""
        found = self.to_dict()
        plans = {name: found[name] for name in ("named_plan", "winner")}
        terms = {name: one["terms_s"] for name, one in plans.items() if one}
        causes = dict.fromkeys(cause for one in terms.values() for cause in one)
        return frame_of(
            [
                {
                    "cause": cause,
                    **{name: one.get(cause) for name, one in terms.items()},
                }
                for cause in causes
            ]
        )

    def document(self) -> Document:
        """Return the verdict, and both plans term by term."""
        return explain_document(self.result)


def plan(scenario: ScenarioSource, *, progress: ProgressTarget = None) -> PlanReport:
    """Search the k best plans of a scenario, and price them.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of its file, or a dictionary.
    progress
        A function that is called with what is being done and the share of it that is
        done (None if unknown); True to show it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    loaded = scenario_from(scenario)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = plan_job(loaded, progress=call.progress)
    notices = (*_unread_plan(loaded), *call.notices)
    return PlanReport(scenario=loaded, result=result, notices=notices)


def explain(
    scenario: ScenarioSource,
    configuration: str | Request,
    *,
    progress: ProgressTarget = None,
) -> ExplainReport:
    """Say why a configuration is not the best plan, or does not fit.

    Parameters
    ----------
    scenario
        As `plan` takes it.
    configuration
        Values that are fixed, the others are searched: ``"tp=4,pp=2"``. Keys: tp, pp,
        dp, cp, ep, b (micro-batch), v (virtual stages), recompute, zero.
    progress
        As `plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or the configuration is none.
    """
    loaded = scenario_from(scenario)
    request = _request(configuration)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = explain_job(loaded, request, progress=call.progress)
    return ExplainReport(result=result, notices=tuple(call.notices))


def run(scenario: ScenarioSource, *, progress: ProgressTarget = None) -> JobReport:
    """Plan a scenario, replay the best plans link by link, judge and report.

    Parameters
    ----------
    scenario
        As `plan` takes it.
    progress
        As `plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together. That nothing fits or
        nothing is confirmed is a result.
    """
    loaded = scenario_from(scenario)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = run_job(loaded, progress=call.progress)
    notices = (*_unread_plan(loaded), *call.notices)
    return JobReport(scenario=loaded, result=result, notices=notices)


def simulate(
    scenario: ScenarioSource,
    plan: Plan | str | os.PathLike[str] | None = None,
    *,
    progress: ProgressTarget = None,
) -> JobReport:
    """Replay one given plan, judge and report it; nothing is searched.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it.
    plan
        A plan, or the path of one in JSON such as ``plan.json`` of a folder of
        results; None for the one in the scenario's table [plan].
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or the plan does not go with it. Too little memory is
        a result.
    """
    loaded = scenario_from(scenario)
    source = "plan"
    if plan is not None and not isinstance(plan, Plan):
        source, plan = str(plan), read_plan(Path(plan))
    with calling(progress, loaded.path, loaded.notes) as call:
        result = simulate_job(loaded, plan=plan, source=source, progress=call.progress)
    return JobReport(scenario=loaded, result=result, notices=tuple(call.notices))


def _unread_plan(scenario: Scenario) -> tuple[str, ...]:
    """Say that a search does not read the scenario's plan, if it has one."""
    if scenario.plan is None or scenario.planner == "fixed":
        return ()
    return (
        f"{scenario.path}: [plan] is for nestsim simulate; the search does not read it",
    )


def _request(configuration: str | Request) -> Request:
    """Return what is asked for, read if it is written."""
    if isinstance(configuration, Request):
        return configuration
    try:
        return Request.parse(configuration)
    except InputError as error:
        raise error.at("configuration") from None
