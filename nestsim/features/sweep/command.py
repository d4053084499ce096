"""``nestsim sweep``: what it is called with, and what it returns."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nestsim.commands.calls import (
    ProgressTarget,
    ScenarioSource,
    calling,
    scenario_from,
    store_folder,
)
from nestsim.commands.report import Parts, ScenarioReport
from nestsim.document.folder import json_writer
from nestsim.features.sweep.axes import Axis, axes_of_texts, axis
from nestsim.features.sweep.document import sweep_document
from nestsim.features.sweep.executors.protocol import Executor
from nestsim.features.sweep.job import (
    ScenarioSweepResult,
    csv_text,
    frame_of,
    run_scenario_sweep,
    scenario_sweep,
    write_csv,
    write_parquet,
)
from nestsim.features.sweep.record import sweep_facts, sweep_json
from nestsim.scenario.load import Scenario
from nestsim.scenario.stress import SWEPT
from topologies.errors import InputError, check_choice, has_packages, naming

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class SweepReport(ScenarioReport):
    """What became of every point."""

    result: ScenarioSweepResult
    """Everything that was found."""

    @property
    def succeeded(self) -> bool:
        """Whether some point has a result."""
        return any(outcome.row for outcome in self.result.outcomes)

    def facts(self) -> dict[str, object]:
        """Return what was varied, and how many points there are."""
        outcomes = self.result.outcomes
        return {
            "scenario": self.result.scenario_name,
            "what": self.result.what,
            "settings": tuple(axis.path for axis in self.result.axes),
            "num_points": len(outcomes),
            "num_failed": sum(outcome.row is None for outcome in outcomes),
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the table of ``points.parquet``, each column of one type."""
        return frame_of(self.result.outcomes)

    def parts(self) -> Parts:
        """Return record, points, figures and page."""
        record, text = sweep_json(self.result), self.scenario.text
        outcomes = self.result.outcomes
        return Parts(
            record=record,
            document=partial(sweep_document, record),
            files={
                "scenario.toml": text,
                "points.csv": partial(write_csv, outcomes),
                **(
                    {"points.parquet": partial(write_parquet, outcomes)}
                    if has_packages("pyarrow")
                    else {}
                ),
                "result.json": json_writer(record),
            },
            pictures={"sweep": ["sweep"], "pareto": ["pareto"]},
            manifest={
                **sweep_facts(self.result, text),
                **self.scenario.module_facts(),
            },
        )


def sweep(  # noqa: PLR0913 - one for each thing that can be asked
    scenario: ScenarioSource,
    settings: Mapping[str, Sequence[object]] | Sequence[Axis] = (),
    *,
    what: str | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
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
    if what is not None:
        check_choice("what", what, SWEPT)
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


def _axes(settings: Mapping[str, Sequence[object]]) -> tuple[Axis, ...]:
    try:
        return tuple(axis(path, values) for path, values in settings.items())
    except InputError as error:
        raise error.at("settings", ": ") from None


def arguments(
    loaded: Scenario, settings: Sequence[str], what: str | None, progress: Any
) -> dict[str, object]:
    """Return the axes, all their points checked."""
    if what is not None:
        check_choice("--what", what, SWEPT)
    if progress is not None:
        progress("points: check", None)
    with naming(loaded.path):
        axes = axes_of_texts(settings)
        scenario_sweep(loaded, axes, what=what)
    return {"settings": axes, "what": what}


def csv(report: SweepReport) -> str:
    """Return the table of points as CSV."""
    return csv_text(report.result.outcomes)


EXECUTORS = ("processes", "dask")
"""Values of ``--executor``."""


@contextmanager
def chosen_executor(
    executor: str, scheduler: str | None, workers: int | None, quiet: bool
) -> Iterator[dict[str, object]]:
    """Give who evaluates points as an argument of the call, for a while.

    Parameters
    ----------
    executor, scheduler, workers
        Values of ``--executor``, ``--scheduler`` and ``--workers``.
    quiet
        Do not tell of the scheduler.

    Raises
    ------
    InputError
        If they do not go together, or the scheduler cannot be reached.
    """
    check_choice("--executor", executor, EXECUTORS)
    if executor == "processes":
        if scheduler is not None:
            raise InputError(
                "processes of this machine have no scheduler",
                where="--scheduler",
                got=scheduler,
                hint="--executor dask has one",
            )
        yield {"executor": None}
        return
    if scheduler is None:
        raise InputError(
            "--executor dask needs a scheduler",
            where="--scheduler",
            expected="its address, such as tcp://host:8786",
        )
    if workers is not None:
        raise InputError(
            "the workers are those of the scheduler",
            where="--workers",
            got=workers,
            hint="leave it out",
        )
    from nestsim.features.sweep.executors.dask import DaskWorkers
    from nestsim.running.progress import tell

    def note(text: str) -> None:
        if not quiet:
            tell(f"{text}\n")

    with DaskWorkers(scheduler, tell=note) as dask:
        yield {"executor": dask}
