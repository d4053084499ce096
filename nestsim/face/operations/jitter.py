"""What differs from step to step, and what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import csv_of, frame_of
from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Document
from nestsim.document.wording import plan_label
from nestsim.face.calls import ProgressTarget, ScenarioSource, calling, scenario_from
from nestsim.face.report import Contents, PagedReport
from nestsim.features.jitter.document import jitter_document
from nestsim.features.jitter.job import JitterResult, jitter_job
from nestsim.features.jitter.record import jitter_json, run_rows, scale_rows
from nestsim.scenario.jitter import MOST_RUNS
from nestsim.scenario.load import Scenario
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class JitterReport(PagedReport):
    """How long steps take that differ at random, and what scale does to it."""

    scenario: Scenario
    """What was asked."""

    result: JitterResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether a plan fits."""
        return self.result.steps is not None

    def facts(self) -> dict[str, Any]:
        """Return the plan, the loss and the quantiles of the step."""
        found = self.result
        facts: dict[str, Any] = {"scenario": found.scenario_name}
        if found.steps is None or found.priced is None:
            return {**facts, "reason": found.shortfall}
        p50, p95, p99 = (band.value for band in found.steps.bands())
        return {
            **facts,
            "plan": plan_label(found.priced.plan),
            "loss": found.steps.loss,
            "plain_time_s": found.steps.plain_time,
            "mean_s": found.steps.simulated.mean,
            "p50_s": p50,
            "p95_s": p95,
            "p99_s": p99,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``jitter.json``."""
        return jitter_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each number of replicas."""
        return frame_of(scale_rows(self.result))

    def contents(self) -> Contents:
        """Return tables, figure and page; no figure where there is no plan."""
        result = self.result
        writers: dict[str, Writer] = {
            "jitter.json": writer_of(self.to_json()),
            "jitter.csv": writer_of(csv_of(run_rows(result))),
            "scale.csv": writer_of(csv_of(scale_rows(result))),
        }
        facts = {"scenario": result.scenario_name, **self.scenario.module_facts()}
        return Contents(
            writers={
                **writers,
                **self.picture_writers("jitter"),
                **self.page_writers(),
            },
            manifest=facts,
        )

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return jitter_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


def jitter(
    scenario: ScenarioSource,
    *,
    runs: int | None = None,
    seed: int | None = None,
    workers: int | None = None,
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
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    loaded = scenario_from(scenario)
    _check("runs", runs, 1, MOST_RUNS)
    _check("seed", seed, 0, 2**63 - 1)
    _check("workers", workers, 1, None)
    loaded = replace(loaded, jitter=loaded.jitter.with_options(runs=runs, seed=seed))
    with calling(progress, loaded.path, loaded.notes) as call:
        result = jitter_job(loaded, workers=workers, progress=call.progress)
    return JitterReport(scenario=loaded, result=result, notices=tuple(call.notices))


def _check(name: str, value: object, least: int, most: int | None) -> None:
    """Refuse a number that is none of what it may be."""
    if value is None:
        return
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value >= least
        and (most is None or value <= most)
    ):
        return
    limit = f"at least {least}" if most is None else f"{least} to {most:,}"
    raise InputError(
        "is out of range", where=name, got=value, expected=f"a whole number, {limit}"
    )
