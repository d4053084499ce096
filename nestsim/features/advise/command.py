"""``nestsim advise``: what it is called with, and what it returns."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
)
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.commands.task import Task
from nestsim.document.folder import json_writer
from nestsim.document.wording import plan_label
from nestsim.features.advise.document import advice_document
from nestsim.features.advise.job import (
    Advice,
    AdviceResult,
    advise_job,
    with_plan,
)
from nestsim.launch.command import (
    MAX_FILE,
    PLAN,
    SCENARIO,
    cluster_files,
    export,
    import_launch,
)
from nestsim.launch.command import parsed_variables as variables_of
from nestsim.launch.onto.mapping_text import unified
from nestsim.scenario.editing import toml_text
from nestsim.scenario.load import Scenario, load_scenario
from planner.plans.written import read_plan
from topologies.errors import InputError
from topologies.input_file import parse_toml, read_file

RECORD = "advice.json"
"""Everything that was found, in a folder of results."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class AdviceReport(ScenarioReport):
    """What to change in a job, and what each change gains."""

    result: AdviceResult
    """Everything that was found."""

    def facts(self) -> dict[str, object]:
        """Return how long a step takes today, and with the best advice."""
        advice = self.result.advice
        return {
            "scenario": self.scenario.name,
            "today_s": self.result.time,
            "num_advice": len(advice),
            **({"best_advice_s": advice[0].time} if advice else {}),
        }

    def parts(self) -> Parts:
        """Return record, a row and a diff for each advice."""
        record = advice_json(self.result)
        diffs = {
            f"{number:02d}.diff": advice.diff
            for number, advice in enumerate(self.result.advice, start=1)
            if advice.diff
        }
        return Parts(
            record=record,
            rows=advice_rows(self.result),
            document=partial(advice_document, self.result),
            files={RECORD: json_writer(record), **diffs},
            has_report=True,
            manifest=self.manifest(),
        )


def advice_json(result: AdviceResult) -> dict[str, Any]:
    """Return everything that was found, for programs."""
    today = result.today.candidates[0]
    best = None
    if result.best is not None and result.best.chosen is not None:
        chosen = result.best.candidates[result.best.chosen]
        best = {
            "plan": plan_label(chosen.priced.plan),
            "iteration_time_s": chosen.simulated.iteration_time,
            "saves": result.gain(chosen.simulated.iteration_time),
            "lower_bound_s": result.best.lower_bound,
            "peak_memory_bytes": chosen.simulated.peak_memory,
        }
    return {
        "scenario": result.scenario.name,
        "today": {
            "plan": plan_label(today.priced.plan),
            "verdict": today.verdict.kind,
            "iteration_time_s": result.time,
            "tokens_per_second": today.simulated.tokens_per_second,
            "mfu": today.simulated.mfu,
            "peak_memory_bytes": today.simulated.peak_memory,
        },
        "error_of_a_gain": result.error,
        "advice": [_advice_json(result, advice) for advice in result.advice],
        "tried": dict(result.tried),
        "if_everything_may_change": best,
    }


def advice_rows(result: AdviceResult) -> list[dict[str, Any]]:
    """Return one row for each advice, in SI units."""
    return [
        {
            "advice": number,
            "settings": ", ".join(
                f"{path} = {value}"
                for change in advice.changes
                for path, value in change.values().items()
            ),
            "iteration_time_s": advice.time,
            "saves": result.gain(advice.time),
            "is_noise": result.is_noise(advice),
            "memory_bytes": advice.peak,
            "needs_converted_checkpoint": advice.needs_conversion,
        }
        for number, advice in enumerate(result.advice, start=1)
    ]


def _advice_json(result: AdviceResult, advice: Advice) -> dict[str, Any]:
    return {
        "changes": [
            {
                "name": change.lever.name,
                "settings": change.values(),
                "today": change.today,
            }
            for change in advice.changes
        ],
        "plan": plan_label(advice.priced.plan),
        "iteration_time_s": advice.time,
        "saves": result.gain(advice.time),
        "is_noise": result.is_noise(advice),
        "memory_bytes": advice.peak,
        "restart": advice.restart,
        "diff": advice.diff,
        "not_expressed": list(advice.gaps),
    }


def advise(  # noqa: PLR0913 - one for each thing that is given
    job: ScenarioSource,
    *,
    given: Mapping[str, Any] | None = None,
    cluster: ScenarioSource | None = None,
    accelerator: str | None = None,
    search: bool = True,
    trust_code: bool = False,
    progress: ProgressTarget = None,
) -> AdviceReport:
    """Say what to change in a job that runs, and what each change gains.

    Parameters
    ----------
    job
        A launch configuration as `nestsim.import_launch` takes it, a folder of results,
        or a scenario as `nestsim.plan` takes it, with what runs in its table [plan].
    given, cluster, accelerator
        Of a launch configuration, as `nestsim.import_launch` takes them.
    search
        Whether to search for the best plan of all, too.
    trust_code
        Of a folder of results, as `nestsim.export` takes it.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the job cannot be read, or has no plan.
    """
    if isinstance(job, str | os.PathLike) and Path(job).is_dir():
        job = _stored(Path(job), trust_code=trust_code)
    scenario, launch, notes = _read(job, given, cluster, accelerator)
    with calling(progress, scenario.path, (*scenario.notes, *notes)) as call:
        result = advise_job(scenario, search=search, progress=call.progress)
        result = replace(
            result,
            advice=tuple(
                _with_diff(advice, result.scenario, launch, given)
                for advice in result.advice
            ),
        )
    return AdviceReport(scenario=scenario, result=result, notices=tuple(call.notices))


def _read(
    job: ScenarioSource,
    given: Mapping[str, Any] | None,
    cluster: ScenarioSource | None,
    accelerator: str | None,
) -> tuple[Scenario, Path | None, tuple[str, ...]]:
    """Return a job with its plan, its launch file if any, and what was assumed."""
    if not isinstance(job, str | os.PathLike):
        return scenario_from(job), None, ()
    path = Path(job)
    if _is_scenario(path):
        return load_scenario(path), None, ()
    read = import_launch(path, given=given, cluster=cluster, accelerator=accelerator)
    return read.scenario, path, read.notices


def _stored(folder: Path, *, trust_code: bool) -> Scenario:
    """Return the scenario of a folder of results, with its plan."""
    scenario = load_scenario(folder / SCENARIO, trust_code=trust_code)
    plan = read_plan(folder / PLAN)
    return with_plan(scenario, plan, source=str(folder / PLAN))


def _is_scenario(path: Path) -> bool:
    """Tell a scenario from other files in TOML: it has a model and a cluster."""
    if path.suffix.lower() != ".toml":
        return False
    try:
        content = read_file(
            path, expected="a scenario or a launch file", most_bytes=MAX_FILE
        )
        document = parse_toml(content)
    except InputError as error:
        raise error.at(str(path), ": ") from None
    return "cluster" in document


def _with_diff(
    advice: Advice,
    today: Scenario,
    launch: Path | None,
    given: Mapping[str, Any] | None,
) -> Advice:
    """Return advice with what has to change in the user's own file."""
    if launch is None:
        before, after = (
            toml_text(scenario.document()) for scenario in (today, advice.scenario)
        )
        name = today.path.name
        return replace(advice, file=name, diff="".join(unified(name, before, after)))
    try:
        changed = export(advice.scenario, onto=launch, given=given)
    except InputError as error:
        return replace(advice, file=launch.name, gaps=(str(error),))
    gaps = tuple(str(gap) for gap in changed.launch.gaps)
    return replace(advice, file=launch.name, diff=changed.diff, gaps=gaps)


def parsed_variables(values: Sequence[str]) -> dict[str, str]:
    """Return the values of variables by name, as `nestsim import` reads them."""
    return variables_of(values)


def advise_task(  # noqa: PLR0913, PLR0917 - one for each option
    job: Path,
    model: str | None,
    cluster: Path | None,
    accelerator: str | None,
    num_devices: int | None,
    variables: dict[str, str],
    no_search: bool,
    trust_code: bool,
    output: Path | None,
) -> Task:
    """Return the task of giving advice."""
    given = {"model": model, "num_devices": num_devices, "variables": variables}
    call = partial(
        advise,
        job,
        given=given,
        cluster=cluster,
        accelerator=accelerator,
        search=not no_search,
        trust_code=trust_code,
    )
    return Task(
        call=call,
        inputs=[job, *cluster_files(cluster)],
        folder=output,
        files=[
            RECORD,
            "report.txt",
            *(f"{number:02d}.diff" for number in range(1, 40)),
        ],
    )
