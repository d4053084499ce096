"""Plans put under worse networks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.dumps import csv_of, frame_of, plain_values
from nestsim.document.folder import writer_of
from nestsim.document.parts import Document
from nestsim.face.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
    store_folder,
)
from nestsim.face.report import Contents, PagedReport
from nestsim.features.stress.document import stress_document
from nestsim.features.stress.job import stress_job
from nestsim.features.stress.record import matrix_rows, stress_json, stress_rows
from nestsim.features.stress.results import StressResult
from nestsim.scenario.load import Scenario

if TYPE_CHECKING:
    import pandas as pd

    from nestsim.features.sweep.executors.protocol import Executor


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class StressReport(PagedReport):
    """Plans, conditions, and what becomes of every plan under every condition."""

    scenario: Scenario
    """What was asked."""

    result: StressResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether some planner found a plan."""
        return bool(self.result.plans)

    def facts(self) -> dict[str, Any]:
        """Return how many conditions and plans there are, and the worst regret."""
        found, chosen = self.result, self.result.robust()
        facts: dict[str, Any] = {
            "scenario": found.scenario_name,
            "planners": found.planners,
            "num_conditions": len(found.conditions),
            "num_plans": len(found.plans),
            "num_failed": len(found.failed),
        }
        if chosen is not None:
            facts["least_worst_regret"] = chosen[0].worst
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``stress.json``."""
        return stress_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row for each planner and condition."""
        return frame_of(plain_values(stress_rows(self.result)))

    def contents(self) -> Contents:
        """Return tables, figures and the page."""
        result = self.result
        lines = [f"line-{place}" for place in range(len(result.axes))] or ["line-0"]
        return Contents(
            writers={
                "stress.json": writer_of(self.to_json()),
                "stress.csv": writer_of(csv_of(stress_rows(result))),
                "matrix.csv": writer_of(csv_of(matrix_rows(result))),
                **self.picture_writers("throughput", *lines),
                **self.picture_writers("map", "map"),
                **self.picture_writers("matrix", "crossed"),
                **self.picture_writers("pareto", "pareto"),
                **self.picture_writers("links", "links"),
                **self.page_writers(),
            },
            manifest={
                "scenario": result.scenario_name,
                **self.scenario.module_facts(),
            },
        )

    def document(self) -> Document:
        """Return what text, pictures and page say."""
        return stress_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


def stress(
    scenario: ScenarioSource,
    *,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    executor: "Executor | None" = None,
    progress: ProgressTarget = None,
) -> StressReport:
    """Put plans under the conditions of the scenario's table [stress].

    Other conditions: ``scenario.replace({"stress.keep": 0.95})``.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it.
    keep_in
        Folder in which finished points are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    executor
        As `nestsim.sweep` takes it.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If the scenario is wrong, or a condition does not go with its cluster.
    """
    loaded, stores = scenario_from(scenario), store_folder(keep_in)
    with calling(progress, loaded.path, loaded.notes) as call:
        result = stress_job(
            loaded,
            stores=stores,
            restart=restart,
            executor=executor,
            progress=call.progress,
        )
    return StressReport(scenario=loaded, result=result, notices=tuple(call.notices))
