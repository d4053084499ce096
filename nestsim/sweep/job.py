"""A sweep over the settings of a scenario, from its file to what became of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nestsim.sweep.axes import Axis, merged, product
from nestsim.sweep.points import Outcome, Point
from nestsim.sweep.runner import run_sweep
from nestsim.sweep.scenario_task import ScenarioTask
from nestsim.sweep.store import Store

if TYPE_CHECKING:
    from nestsim.scenario.settings import Scenario
    from planner.work import Progress

STORE = "sweep.sqlite"
"""Name of the store in a folder of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSweep:
    """What is to be done: every point, and what with each."""

    scenario_name: str
    axes: tuple[Axis, ...]
    """The settings that are varied; the last one changes fastest."""

    points: tuple[Point, ...]
    task: ScenarioTask
    workers: int | None
    """Processes; None for one for each core."""

    time_limit: float | None
    """Of one point [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSweepResult:
    """Everything that a report on a sweep needs."""

    scenario_name: str
    what: str
    """One of `nestsim.scenario.settings.SWEPT`."""

    axes: tuple[Axis, ...]
    outcomes: tuple[Outcome, ...]
    """One for each point, in their order."""


def scenario_sweep(
    scenario: "Scenario",
    texts: Sequence[str] = (),
    *,
    what: str | None = None,
    workers: int | None = None,
) -> ScenarioSweep:
    """Return the sweep that a scenario and ``--set`` ask for, checked.

    Parameters
    ----------
    scenario
        With or without a table [sweep].
    texts
        What ``--set`` was given, over the table.
    what, workers
        Over the table's, where not None.

    Raises
    ------
    InputError
        If there is nothing to vary, or no point of it is a scenario.
    """
    axes = merged(scenario.sweep.values, texts)
    points = product(axes)
    task = ScenarioTask.of(scenario, what)
    task.check(points)
    return ScenarioSweep(
        scenario_name=scenario.name,
        axes=axes,
        points=points,
        task=task,
        workers=workers or scenario.sweep.workers,
        time_limit=scenario.sweep.time_limit,
    )


def run_scenario_sweep(
    sweep: ScenarioSweep,
    folder: Path | None = None,
    *,
    restart: bool = False,
    progress: "Progress | None" = None,
) -> ScenarioSweepResult:
    """Evaluate all points that are not in the folder's store yet.

    Parameters
    ----------
    sweep
        What to do.
    folder
        Of results, which must be there; None to keep points in memory.
    restart
        Forget what the store holds.
    progress
        Told about every finished point.

    Raises
    ------
    InputError
        If the store is of another sweep or cannot be written.
    """
    path = None if folder is None else folder / STORE
    facts = sweep.task.facts(sweep.axes, sweep.time_limit)
    with Store(path, facts, restart=restart) as store:
        found = run_sweep(
            sweep.points,
            sweep.task,
            store,
            workers=sweep.workers,
            time_limit=sweep.time_limit,
            progress=progress,
        )
    return ScenarioSweepResult(
        scenario_name=sweep.scenario_name,
        what=sweep.task.what,
        axes=sweep.axes,
        outcomes=found.outcomes,
    )
