"""One scenario: plan it, explain a configuration, run it, or replay a given plan.

The folder of results of a run has everything about it, complete or not there at all:
``scenario.toml`` (a copy of the input), ``plan.json``, ``result.json``,
``summary.csv``, ``report.txt``, ``trace.json``, ``figures/*.png``, ``page.html`` where
it was asked for, beside it ``candidates.json`` of a search, and ``manifest.json`` with
the hash of each. No file holds a time
stamp: the same scenario gives the same folder.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    plan_of,
    reported,
    request_of,
    scenario_from,
)
from nestsim.commands.report import DocumentReport, Parts, ScenarioReport
from nestsim.commands.task import Printable, Reply, Task
from nestsim.document.folder import PAGE, REPORT, Writer, json_writer, writer_of
from nestsim.document.parts import Document, Section
from nestsim.document.wording import plan_label
from nestsim.evaluate.cost import RunCost
from nestsim.evaluate.job import explain_job, plan_job, run_job, simulate_job
from nestsim.evaluate.results import (
    C,
    Candidate,
    Checked,
    ExplainResult,
    JobResult,
    PlanResult,
    ReplayedResult,
    check_assertions,
    exit_status,
)
from nestsim.features.certificate.command import (
    CertifiedReport,
    certificate_output,
)
from nestsim.features.certificate.job import leaves_trail, trail_for
from nestsim.features.run.cost import cost_cells
from nestsim.features.run.document import (
    BEFORE_GOODPUT,
    launch_section,
    plan_document,
    run_document,
    run_goodput,
)
from nestsim.features.run.explain import (
    explain_document,
    explain_json,
    explanation_sentences,
)
from nestsim.features.run.figures import hottest_link_use
from nestsim.features.run.nest import scores_json, solution_document, solution_json
from nestsim.features.run.record import (
    assertions_json,
    candidate_rows,
    plan_json,
    plan_rows,
    reported_candidate,
    result_facts,
    result_json,
    summary_csv,
    summary_rows,
    written_plan,
)
from nestsim.features.run.timeline_picture import draw_timeline
from nestsim.features.run.whatif import (
    CANDIDATES,
    candidates_json,
    candidates_section,
)
from nestsim.features.topology.picture import draw_topology
from nestsim.scenario.load import Scenario, load_scenario
from nestsim.simulator.trace import write_chrome_trace
from planner.explain.request import Request
from planner.rivals.nest_artifact import read_instance, score_baselines, solve
from planner.step.plan import Plan
from planner.work import Progress
from topologies.errors import InputError, naming

PICTURES = {
    "figures/memory": ("memory", "memory-parts"),
    "figures/links": ("links", "levels"),
    "figures/gap": ("planned", "gap", "plans"),
}
"""Picture -> figures of the document that it shows."""

FILES = (
    *("scenario.toml", "plan.json", "result.json", "summary.csv", REPORT),
    *("trace.json", "figures/timeline.png", "figures/topology.png"),
    *(f"{name}.png" for name in PICTURES),
    CANDIDATES,
    PAGE,
)
"""Files of the folder, but the manifest; without a plan, figures or the page there are
fewer."""


def run_writers(
    result: ReplayedResult, record: Mapping[str, object], scenario_bytes: bytes
) -> dict[str, Writer]:
    """Return what writes each file that no document makes, by its name in the folder.

    Parameters
    ----------
    result
        What was found.
    record
        `result_json` of it.
    scenario_bytes
        The scenario's file.
    """
    best, network = reported_candidate(result), result.network
    writers: dict[str, Writer] = {
        "scenario.toml": writer_of(scenario_bytes),
        "result.json": json_writer(record),
        "summary.csv": _text(lambda: summary_csv(result)),
    }
    if best is not None:
        writers |= {
            "plan.json": json_writer(written_plan(best.priced.plan)),
            "trace.json": lambda path: write_chrome_trace(
                best.replay,
                path,
                max_events=result.max_trace_events,
                link_use=hottest_link_use(best.replay, network),
            ),
            "figures/timeline.png": lambda path: draw_timeline(best, path),
        }
    writers["figures/topology.png"] = lambda path: draw_topology(network, path)
    return writers


def _text(content: Callable[[], str]) -> Writer:
    """Return what writes a text that is made when it is written."""
    return lambda path: path.write_text(content(), encoding="utf-8", newline="")


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JobReport(CertifiedReport, ScenarioReport):
    """A plan that was replayed and judged: of `run`, or of `simulate`."""

    result: ReplayedResult
    """Everything that was found."""

    candidates: Callable[[], dict[str, object]] | None = None
    """Function that prices the best candidates of the search; None where the search
    notes none."""

    @property
    def best(self) -> Candidate | None:
        """The plan that is reported: confirmed if any is; None if nothing fits."""
        return reported_candidate(self.result)

    @property
    def cost(self) -> RunCost | None:
        """What the reported plan costs; None without one or without a table [cost]."""
        best = self.best
        return None if best is None else self.result.cost_of(best)

    @property
    def confirmed(self) -> bool:
        """Whether the replay confirms the plan."""
        return self.result.chosen is not None

    @property
    def assertions(self) -> tuple[Checked, ...]:
        """What the scenario's table [assert] asks, held against what was found."""
        return _checked(self.scenario, self.result)

    @property
    def succeeded(self) -> bool:
        """Whether a plan is confirmed and all assertions hold."""
        return _is_success(self.confirmed, self.assertions)

    def facts(self) -> dict[str, object]:
        """Return verdict, plan, time and memory of what is reported."""
        best, data = self.best, self.written.record
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

    def printed_dict(self) -> dict[str, object]:
        """Return everything with what became of the assertions."""
        return {**self.written.record, **assertions_json(self.assertions)}

    def parts(self) -> Parts:
        """Return the plan, the trace, a row for each replayed plan, and figures."""
        result, text = self.result, self.scenario.text
        record = result_json(result)
        return Parts(
            record=record,
            rows=summary_rows(result),
            document=self._document,
            files=run_writers(result, record, text),
            pictures=PICTURES,
            has_report=True,
            page=self._page,
            beside_page={CANDIDATES: self._write_candidates}
            if self.candidates is not None
            else {},
            manifest={**result_facts(result, text), **self.scenario.module_facts()},
        )

    def _document(self) -> Document:
        """Return what the terminal and the report say."""
        document = run_document(self.result, self.assertions)
        return document.with_section(self._goodput, BEFORE_GOODPUT)

    @cached_property
    def _goodput(self) -> Section:
        """What the reported plan trains through failures."""
        return run_goodput(self.scenario, self.result)

    @cached_property
    def _candidates(self) -> dict[str, object] | None:
        """The best candidates of the search, priced when a page asks for them."""
        return None if self.candidates is None else self.candidates()

    def _write_candidates(self, path: Path) -> None:
        json_writer(self._candidates)(path)

    def _page(self) -> Document:
        """Return what can be said from the folder of results, and what launches it."""
        best = self.best
        page = run_document(self.result, rows=candidate_rows(self.result))
        page = page.with_section(self._goodput, BEFORE_GOODPUT)
        page = page.with_section(candidates_section(self._candidates), "candidates")
        if best is None:
            return page
        # All formats of launches: a tenth of a second that other commands do not wait.
        from nestsim.launch.command import launch_snippets

        snippets = launch_snippets(self.scenario, best.priced.plan)
        return page.with_section(launch_section(snippets))


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class PlanReport(CertifiedReport, DocumentReport):
    """The k best plans of a search, not replayed."""

    result: PlanResult
    """Everything that was found."""

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans, best first."""
        return tuple(candidate.priced.plan for candidate in self.result.candidates)

    @property
    def assertions(self) -> tuple[Checked, ...]:
        """What the scenario's table [assert] asks, held against what was found."""
        return _checked(self.scenario, self.result)

    @property
    def succeeded(self) -> bool:
        """Whether there is a plan and all assertions hold."""
        return _is_success(bool(self.plans), self.assertions)

    def facts(self) -> dict[str, object]:
        """Return the best plan and its planned time."""
        facts: dict[str, object] = {"scenario": self.scenario.name}
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

    def parts(self) -> Parts:
        """Return the plans, what became of the assertions, and of the search."""
        return Parts(
            record={**plan_json(self.result), **assertions_json(self.assertions)},
            rows=plan_rows(self.result.candidates),
            document=partial(plan_document, self.result, self.assertions),
        )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class ExplainReport(DocumentReport):
    """A configuration beside the best plan; whatever came of it is the answer."""

    result: ExplainResult
    """Everything that was found."""

    def facts(self) -> dict[str, object]:
        """Return the verdict and its reasons."""
        explanation = self.result.explanation
        return {
            "scenario": self.result.scenario_name,
            "named": str(explanation.request),
            "verdict": explanation.verdict,
            "reason": " ".join(explanation_sentences(self.result)),
        }

    def parts(self) -> Parts:
        """Return the explanation, and the iteration time of both plans by cause [s]."""
        record = explain_json(self.result)
        plans = {name: record[name] for name in ("named_plan", "winner")}
        terms = {name: plan["terms_s"] for name, plan in plans.items() if plan}
        causes = dict.fromkeys(cause for times in terms.values() for cause in times)
        rows = [
            {
                "cause": cause,
                **{name: times.get(cause) for name, times in terms.items()},
            }
            for cause in causes
        ]
        document = partial(explain_document, self.result)
        return Parts(record=record, rows=rows, document=document)


def _checked(scenario: Scenario, result: Any) -> tuple[Checked, ...]:
    return check_assertions(scenario.assertions, result)


def _is_success(is_done: bool, assertions: Sequence[Checked]) -> bool:
    return exit_status(0 if is_done else 1, assertions) == 0


def plan(
    scenario: ScenarioSource, *, certify: bool = False, progress: ProgressTarget = None
) -> PlanReport:
    """Search the k best plans of a scenario, and price them.

    Parameters
    ----------
    scenario
        A `Scenario`, the path of its file, or a dictionary.
    certify
        Whether to keep what closed what, for `PlanReport.save_certificate`.
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
        trail = trail_for(loaded) if certify else None
        result = plan_job(loaded, trail=trail, progress=call.progress)
        result = _explained(loaded, result, call.progress)
    notices = (*_unread_plan(loaded), *call.notices)
    return PlanReport(scenario=loaded, trail=trail, result=result, notices=notices)


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
    request = request_of(configuration, "configuration")
    with calling(progress, loaded.path, loaded.notes) as call:
        result = explain_job(loaded, request, progress=call.progress)
    return ExplainReport(result=result, notices=tuple(call.notices))


def run(
    scenario: ScenarioSource, *, certify: bool = False, progress: ProgressTarget = None
) -> JobReport:
    """Plan a scenario, replay the best plans link by link, judge and report.

    Parameters
    ----------
    scenario
        As `plan` takes it.
    certify
        Whether to keep what closed what, for `JobReport.save_certificate`.
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
        noted = trail_for(loaded) if certify or leaves_trail(loaded) else None
        result = run_job(loaded, trail=noted, progress=call.progress)
        result = _explained(loaded, result, call.progress)
    return JobReport(
        scenario=loaded,
        trail=noted if certify else None,
        candidates=None if noted is None else partial(candidates_json, result, noted),
        result=result,
        notices=tuple(call.notices),
    )


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
    given, source = plan_of(plan)
    return reported(
        JobReport, _explained_simulation, scenario, progress, plan=given, source=source
    )


def _explained_simulation(
    scenario: Scenario, *, progress: Progress | None, **settings: Any
) -> ReplayedResult:
    """Return the replay of a given plan, and why its step takes as long as it does."""
    result = simulate_job(scenario, progress=progress, **settings)
    return _explained(scenario, result, progress)


def _explained(
    scenario: Scenario, result: JobResult[C], progress: Progress | None
) -> JobResult[C]:
    """Return a result that says why; see `nestsim.features.run.why.explained`."""
    # All formats of launches: a tenth of a second that other commands do not wait.
    from nestsim.features.run.why import explained

    return explained(scenario, result, progress)


def _unread_plan(scenario: Scenario) -> tuple[str, ...]:
    """Say that a search does not read the scenario's plan, if it has one."""
    if scenario.plan is None or scenario.planner == "fixed":
        return ()
    return (
        f"{scenario.path}: [plan] is for nestsim simulate and run; the search does not "
        "read it",
    )


def run_task(
    scenarios: list[Path],
    output: Path | None,
    certificate: Path | None,
    made: Scenario | None,
) -> list[Task]:
    """Return a task for each scenario, all of them read and checked.

    Or for the one that was made of a few words.
    """
    file = certificate_output(certificate, several=len(scenarios) > 1)
    loaded = [load_scenario(path) for path in scenarios] if made is None else [made]
    places = run_folders([scenario.path for scenario in loaded], output)
    return [
        Task(
            call=partial(run, scenario, certify=file is not None),
            inputs=scenario.files(),
            folder=folder,
            files=FILES,
            file=file,
        )
        for scenario, folder in zip(loaded, places, strict=True)
    ]


def markdown(report: ScenarioReport) -> str:
    """Return a report as Markdown, e.g. for a pull request."""
    return report.to_markdown()


def run_folders(scenarios: Sequence[Path], output: Path | None) -> list[Path]:
    """Return where the results of each scenario go.

    Raises
    ------
    InputError
        If two would go into the same folder.
    """
    if output is not None and len(scenarios) == 1:
        return [output]
    stems = [path.stem for path in scenarios]
    stem, count = Counter(stems).most_common(1)[0]
    if count > 1:
        raise InputError(
            "several scenarios would write into the same folder",
            where="SCENARIO",
            got=stem,
            expected="files of different names",
            hint="run them one by one, each with its own --output",
        )
    return [(output or Path("results")) / stem for stem in stems]


def plan_task(
    scenario: Path | None,
    made: Scenario | None,
    explain: str | None,
    nest_instance: Path | None,
    score: bool,
    certificate: Path | None,
) -> Task:
    """Return the task of searching plans, of explaining or of solving an instance."""
    expected = "either a scenario file or --nest-instance FILE"
    source = made or scenario
    if source is None and nest_instance is None:
        raise InputError("nothing to plan", where="SCENARIO", expected=expected)
    if source is not None and nest_instance is not None:
        raise InputError(
            "does not go with a scenario",
            where="--nest-instance",
            got=str(scenario or "--model"),
            expected=expected,
        )
    if score and nest_instance is None:
        raise InputError(
            "needs an instance that stores baselines",
            where="--score",
            expected="--nest-instance FILE",
        )
    if certificate is not None and (explain is not None or source is None):
        raise InputError(
            "is of the search of a scenario",
            where="--certificate",
            expected="a scenario file, without --explain or --nest-instance",
        )
    if explain is not None:
        return Task(call=_explanation(source, explain))
    if nest_instance is not None:
        return Task(call=partial(_solved_instance, nest_instance, score))
    assert source is not None
    file = certificate_output(certificate)
    return Task(
        call=partial(plan, source, certify=file is not None),
        inputs=[] if scenario is None else [scenario],
        file=file,
    )


def _explanation(scenario: Scenario | Path | None, text: str) -> partial[ExplainReport]:
    """Return what explains a configuration of a scenario, both read."""
    if scenario is None:
        raise InputError(
            "needs a scenario to search", where="--explain", expected="a scenario file"
        )
    loaded = scenario_from(scenario)
    return partial(explain, loaded, request_of(text, "--explain"))


def _solved_instance(path: Path, score: bool, progress: Progress | None) -> Printable:
    """Solve an instance of the published NEST artifact, and score its baselines."""
    instance = read_instance(path)
    if progress is not None:
        progress(f"solve {path.name}", None)
    with naming(path):
        solution = solve(instance)
    scored = score_baselines(instance) if score else None
    return Reply(
        record=partial(solution_json, solution)
        if scored is None
        else partial(scores_json, solution, scored),
        document=partial(solution_document, solution, path.name, scored),
        succeeded=bool(solution.plan),
    )
