"""``nestsim stress``: what it is called with, and what it returns."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    reported,
    scenario_from,
    store_folder,
)
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.document.dumps import csv_of, plain_values
from nestsim.document.folder import json_writer
from nestsim.features.stress.document import stress_document
from nestsim.features.stress.job import stress_job
from nestsim.features.stress.record import matrix_rows, stress_json, stress_rows
from nestsim.features.stress.results import StressResult
from nestsim.features.sweep.command import chosen_executor  # noqa: F401 - its description names it
from nestsim.features.sweep.executors.protocol import Executor
from topologies.errors import InputError


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class StressReport(ScenarioReport):
    """Plans, conditions, and what becomes of every plan under every condition."""

    result: StressResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether some planner found a plan."""
        return bool(self.result.plans)

    def facts(self) -> dict[str, object]:
        """Return how many conditions and plans there are, and the worst regret."""
        result, robust = self.result, self.result.robust()
        facts: dict[str, object] = {
            "scenario": result.scenario_name,
            "planners": result.planners,
            "num_conditions": len(result.conditions),
            "num_plans": len(result.plans),
            "num_failed": len(result.failed),
        }
        if robust is not None:
            facts["least_worst_regret"] = robust[0].worst
        return facts

    def parts(self) -> Parts:
        """Return record, a row for each planner and condition, figures and page."""
        record, rows = stress_json(self.result), stress_rows(self.result)
        lines = [f"line-{place}" for place in range(len(self.result.axes))]
        return Parts(
            record=record,
            rows=plain_values(rows),
            document=partial(stress_document, record),
            files={
                "stress.json": json_writer(record),
                "stress.csv": csv_of(rows),
                "matrix.csv": csv_of(matrix_rows(self.result)),
            },
            pictures={
                "throughput": lines or ["line-0"],
                "map": ["map"],
                "matrix": ["crossed"],
                "pareto": ["pareto"],
                "links": ["links"],
            },
            manifest=self.manifest(),
        )


def stress(
    scenario: ScenarioSource,
    *,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    executor: Executor | None = None,
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
    loaded = scenario_from(scenario)
    return reported(
        StressReport,
        stress_job,
        loaded,
        progress,
        stores=store_folder(keep_in),
        restart=restart,
        executor=executor,
    )


def names(text: str) -> list[str]:
    """Read ``nest,manual``, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word))


def ratios(texts: Sequence[str]) -> dict[str, list[float]]:
    """Read ``leaf=1,2,4``, once for each level."""
    ratios: dict[str, list[float]] = {}
    for text in texts:
        level, _, listed = text.rpartition("=")
        try:
            numbers = [float(part) for part in listed.split(",")]
        except ValueError:
            numbers = []
        if not numbers or not level.strip() or level.strip() in ratios:
            raise InputError(
                "is not a level with ratios, each given once",
                got=text,
                expected="LEVEL=RATIO,.., e.g. leaf=1,2,4,8",
            )
        ratios[level.strip()] = numbers
    return ratios
