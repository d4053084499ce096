"""Every combination of some settings, evaluated."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.document.parts import Document
from nestsim.face.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
    store_folder,
)
from nestsim.face.report import Contents, PagedReport
from nestsim.features.sweep.axes import Axis, axis
from nestsim.features.sweep.document import sweep_document
from nestsim.features.sweep.job import (
    ScenarioSweepResult,
    frame_of,
    run_scenario_sweep,
    scenario_sweep,
)
from nestsim.features.sweep.record import sweep_facts, sweep_json, sweep_writers
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import SWEPT
from topologies.errors import InputError, naming

if TYPE_CHECKING:
    import pandas as pd

    from nestsim.features.sweep.executors.protocol import Executor


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SweepReport(PagedReport):
    """What became of every point."""

    scenario: Scenario
    """What was asked."""

    result: ScenarioSweepResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether some point has a result."""
        return any(one.row for one in self.result.outcomes)

    def facts(self) -> dict[str, Any]:
        """Return what was varied, and how many points there are."""
        outcomes = self.result.outcomes
        return {
            "scenario": self.result.scenario_name,
            "what": self.result.what,
            "settings": tuple(one.path for one in self.result.axes),
            "num_points": len(outcomes),
            "num_failed": sum(one.row is None for one in outcomes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything that stands in ``result.json``."""
        return sweep_json(self.result)

    def to_frame(self) -> "pd.DataFrame":
        """Return the table of ``points.parquet``, each column of one type."""
        return frame_of(self.result.outcomes)

    def contents(self) -> Contents:
        """Return tables, the figure, if it is drawn, and the page."""
        text = self.scenario.text
        return Contents(
            writers={
                **sweep_writers(self.result, text),
                **self.picture_writers("sweep", "sweep"),
                **self.picture_writers("pareto", "pareto"),
                **self.page_writers(),
            },
            manifest={
                **sweep_facts(self.result, text),
                **self.scenario.module_facts(),
            },
        )

    def document(self) -> Document:
        """Return what text, pictures and page say."""
        return sweep_document(self.to_dict())

    def inputs(self) -> Sequence[Path]:
        """Return the scenario's files."""
        return self.scenario.files()


def sweep(  # noqa: PLR0913 - one for each thing that can be asked
    scenario: ScenarioSource,
    settings: Mapping[str, Sequence[Any]] | Sequence[Axis] = (),
    *,
    what: str | None = None,
    workers: int | None = None,
    executor: "Executor | None" = None,
    keep_in: str | os.PathLike[str] | None = None,
    restart: bool = False,
    progress: ProgressTarget = None,
) -> SweepReport:
    """Evaluate every combination of some settings, on all cores.

    Parameters
    ----------
    scenario
        As `nestsim.plan` takes it.
    settings
        Dotted path of a setting -> its values, as in TOML; over those of the
        scenario's table [sweep.set]. The last one changes fastest.
    what
        ``"simulate"``, ``"plan"`` or ``"run"``; None for sweep.what of the scenario,
        else simulate where it has a [plan], else run.
    workers
        Processes; None for sweep.workers, else one for each core.
    executor
        Who evaluates points, such as `nestsim.DaskWorkers`; None for processes of this
        machine. Results do not depend on it.
    keep_in
        Folder in which finished points are kept, so that a call that was interrupted
        goes on there; None for memory alone.
    restart
        Forget what is kept there.
    progress
        As `nestsim.plan` takes it.

    Raises
    ------
    InputError
        If there is nothing to vary, no point of it is a scenario, or there is nobody
        to evaluate points. A point that fails is recorded with its reason.
    """
    loaded = scenario_from(scenario)
    _check_what(what)
    axes = _axes(settings) if isinstance(settings, Mapping) else tuple(settings)
    with calling(progress, notes=loaded.notes) as call:
        if call.progress is not None:
            call.progress("points: check", None)
        with naming(loaded.path):
            asked = scenario_sweep(loaded, axes, what=what, workers=workers)
        result = run_scenario_sweep(
            asked,
            store_folder(keep_in),
            restart=restart,
            executor=executor,
            progress=call.progress,
        )
    return SweepReport(scenario=loaded, result=result, notices=tuple(call.notices))


def _check_what(what: str | None) -> None:
    if what is not None and what not in SWEPT:
        raise InputError(
            "unknown choice", where="what", got=what, expected=" or ".join(SWEPT)
        )


def _axes(settings: Mapping[str, Sequence[Any]]) -> tuple[Axis, ...]:
    try:
        return tuple(axis(path, values) for path, values in settings.items())
    except InputError as error:
        raise error.at("settings", ": ") from None
