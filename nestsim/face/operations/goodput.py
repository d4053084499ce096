"""Training through failures."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import dump_json, frame_of
from nestsim.document.folder import Writer, writer_of
from nestsim.document.parts import Document
from nestsim.face.calls import ProgressTarget, ScenarioSource, calling, scenario_from
from nestsim.face.report import Contents, PagedReport
from nestsim.features.goodput.document import goodput_document
from nestsim.features.goodput.job import goodput_job
from nestsim.features.goodput.record import goodput_json, seed_rows
from nestsim.features.goodput.results import GoodputResult
from nestsim.scenario.load import Scenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class GoodputReport(PagedReport):
    """What a job trains through failures, and what takes the rest."""

    scenario: Scenario
    """What was asked."""

    result: GoodputResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether there is a plan to train with."""
        return self.result.found is not None

    def facts(self) -> dict[str, Any]:
        """Return goodput, tokens a day, and the interval between checkpoints."""
        found = self.result.found
        facts: dict[str, Any] = {"scenario": self.result.scenario_name}
        if found is None:
            return {**facts, "reason": self.result.shortfall}
        return {
            **facts,
            "goodput": found.goodput.p50,
            "effective_training_time": found.effective_time.p50,
            "tokens_per_day": found.tokens_per_day.p50,
            "mtti_s": found.mtti,
            "interval_s": found.habits.interval,
            "best_interval_s": found.best,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``goodput.json``."""
        return goodput_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each run, shares of its time by cause."""
        found = self.result.found
        return frame_of([] if found is None else seed_rows(found))

    def contents(self) -> Contents:
        """Return record, runs, figure and page; only the record without a plan."""
        result = self.result
        writers: dict[str, Writer] = {
            "goodput.json": writer_of(dump_json(goodput_json(result)))
        }
        if result.found is not None:
            text = io.StringIO()
            self.to_frame().to_csv(text, index=False, lineterminator="\n")
            writers |= {
                "goodput.csv": writer_of(text.getvalue()),
                **self.picture_writers("goodput"),
                **self.page_writers(),
            }
        facts = {"scenario": result.scenario_name, **self.scenario.module_facts()}
        return Contents(writers=writers, manifest=facts)

    def document(self) -> Document:
        """Return what text, picture and page say."""
        return goodput_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


def goodput(
    scenario: ScenarioSource, *, progress: ProgressTarget = None
) -> GoodputReport:
    """Find what a job trains through failures, checkpoints and restarts.

    Other habits: ``scenario.replace({"goodput.checkpoint.interval": "30 min"})``.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it; its table [goodput] says what fails, and what the
        job does about it.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or its parts do not go together.
    """
    loaded = scenario_from(scenario)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = goodput_job(loaded, progress=call.progress)
    return GoodputReport(scenario=loaded, result=result, notices=tuple(call.notices))
