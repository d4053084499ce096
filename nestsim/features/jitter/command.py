"""``nestsim jitter``: what it is called with, and what it returns."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    reported,
    scenario_from,
    with_settings,
)
from nestsim.commands.report import DocumentReport, Parts, ScenarioReport
from nestsim.commands.task import FileOutput, Task
from nestsim.document.dumps import csv_of
from nestsim.document.folder import json_writer, writer_of
from nestsim.document.wording import plan_label
from nestsim.features.jitter.document import fit_document, jitter_document
from nestsim.features.jitter.fit import JitterFit, fit_jitter, fit_json, fit_toml
from nestsim.features.jitter.job import JitterResult, jitter_job
from nestsim.features.jitter.record import jitter_json, run_rows, scale_rows
from nestsim.features.jitter.step_times import read_step_times
from nestsim.features.sweep.command import chosen_executor  # noqa: F401 - its description names it
from nestsim.features.sweep.executors.protocol import Executor
from topologies.errors import check_count


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JitterReport(ScenarioReport):
    """How long steps take that differ at random, and what scale does to it."""

    result: JitterResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan fits."""
        return self.result.steps is not None

    def facts(self) -> dict[str, object]:
        """Return the plan, the loss and the quantiles of the step."""
        result = self.result
        facts: dict[str, object] = {"scenario": result.scenario_name}
        if result.steps is None or result.priced is None:
            return {**facts, "reason": result.shortfall}
        p50, p95, p99 = (band.value for band in result.steps.bands())
        return {
            **facts,
            "plan": plan_label(result.priced.plan),
            "loss": result.steps.loss,
            "plain_time_s": result.steps.plain_time,
            "mean_s": result.steps.simulated.mean,
            "p50_s": p50,
            "p95_s": p95,
            "p99_s": p99,
        }

    def parts(self) -> Parts:
        """Return record, runs, a row for each number of replicas, figure and page."""
        record, rows = jitter_json(self.result), scale_rows(self.result)
        return Parts(
            record=record,
            rows=rows,
            document=partial(jitter_document, record),
            files={
                "jitter.json": json_writer(record),
                "jitter.csv": csv_of(run_rows(self.result)),
                "scale.csv": csv_of(rows),
            },
            pictures={"jitter": ()},
            manifest=self.manifest(),
        )


def jitter(
    scenario: ScenarioSource,
    *,
    runs: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: ProgressTarget = None,
) -> JitterReport:
    """Replay steps whose operators and messages take random times.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; its table [jitter] says what differs. The plan is
        the one in its table [plan], or the one that replays fastest.
    runs
        Steps that are replayed; None for what the scenario says.
    seed
        Seed of all draws; None for what the scenario says.
    workers
        Processes; None for one for each core. Results do not depend on it.
    executor
        As `nestsim.sweep` takes it.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    if workers is not None:
        check_count("workers", workers)
    values = {"jitter.runs": ("runs", runs), "jitter.seed": ("seed", seed)}
    given = {key: value for key, value in values.items() if value[1] is not None}
    changed = with_settings(scenario_from(scenario), given)
    return reported(
        JitterReport, jitter_job, changed, progress, workers=workers, executor=executor
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JitterFitReport(DocumentReport):
    """The table [jitter] that fits compute times, and ranks that are always slow."""

    result: JitterFit
    """Everything that was found."""

    def facts(self) -> dict[str, object]:
        """Return the parameters, and whom to drain."""
        fit = self.result
        return {
            "source": fit.times.source,
            "cv": fit.cv.value,
            "slow_fraction": fit.fraction and fit.fraction.value,
            "slow_factor": fit.factor and fit.factor.value,
            "always_slow": [rank.rank for rank in fit.slow],
        }

    def parts(self) -> Parts:
        """Return the record, and a row for each rank that is always slow."""
        fit = self.result
        return Parts(
            record=fit_json(fit),
            rows=[rank._asdict() for rank in fit.slow],
            document=partial(fit_document, fit),
        )

    def to_toml(self) -> str:
        """Return the tables to paste into a scenario."""
        return fit_toml(self.result)


def jitter_fit(
    times: str | os.PathLike[str], *, progress: ProgressTarget = None
) -> JitterFitReport:
    """Fit the table [jitter] to what ranks took, and say which to drain.

    Parameters
    ----------
    times
        A CSV file with the columns ``rank``, ``step`` and ``time``, or a folder of
        traces of ``torch.profiler`` or of JSON dumps of the NCCL flight recorder, a
        file for each rank.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If it is none of these, or has too few ranks or steps.
    """
    with calling(progress) as call:
        fit = fit_jitter(read_step_times(Path(times)))
    return JitterFitReport(result=fit, notices=tuple(call.notices))


def fit_task(times: Path, output: Path | None) -> Task:
    """Return the task of fitting the table [jitter] to what ranks took."""
    file = FileOutput(
        path=output or Path(),
        is_ours=lambda content: content.startswith(b"# Fitted to "),
        title="The table is in",
        writer=lambda report: writer_of(report.to_toml()),
    )
    return Task(
        call=partial(jitter_fit, times),
        inputs=[] if times.is_dir() else [times],
        file=None if output is None else file,
    )
