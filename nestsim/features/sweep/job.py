"""A sweep over the settings of a scenario, from its file to a table of its points.

The table has the same bytes however it came about: one line for each point, in their
order, with its number, its settings, ``state`` (``done`` or ``failed``), why it failed,
and its results. Lists and tables are written as JSON.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nestsim.evaluate.cost import pareto_front
from nestsim.evaluate.verdict import NO_ROOM
from nestsim.features.sweep.axes import Axis, merged, product
from nestsim.features.sweep.runner import run_sweep
from nestsim.features.sweep.scenario_task import ScenarioTask
from nestsim.running.store import Outcome, Point, Store, plain_json
from topologies.errors import short_repr

if TYPE_CHECKING:
    import pandas as pd

    from nestsim.features.sweep.executors.protocol import Executor
    from nestsim.scenario.load import Scenario
    from planner.work import Progress

STORE = "sweep.sqlite"
"""Name of the store in a folder of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSweep:
    """What is to be done: every point, and what with each."""

    scenario_name: str
    """Name of the scenario."""

    axes: tuple[Axis, ...]
    """Settings that are varied; the last one changes fastest."""

    points: tuple[Point, ...]
    """Points to evaluate."""

    task: ScenarioTask
    """Task that evaluates a point."""

    workers: int | None
    """Processes; None for one for each core."""

    time_limit: float | None
    """Limit on the time of one point [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioSweepResult:
    """Everything that a report on a sweep needs."""

    scenario_name: str
    """Name of the scenario."""

    what: str
    """One of `nestsim.scenario.stress.SWEPT`."""

    axes: tuple[Axis, ...]
    """Settings that vary, with their values."""

    outcomes: tuple[Outcome, ...]
    """One for each point, in their order."""

    __repr__ = short_repr


def scenario_sweep(
    scenario: "Scenario",
    given: Sequence[Axis] = (),
    *,
    what: str | None = None,
    workers: int | None = None,
) -> ScenarioSweep:
    """Return the sweep that a scenario and its caller ask for, checked.

    Parameters
    ----------
    scenario
        With or without a table [sweep].
    given
        Settings and their values, over those of the table.
    what, workers
        Over the table's, where not None.

    Raises
    ------
    InputError
        If there is nothing to vary, or no point of it is a scenario.
    """
    axes = merged(scenario.sweep.set, given)
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
    executor: "Executor | None" = None,
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
    executor
        Who evaluates points; None for processes of this machine.
    progress
        Called with every finished point.

    Raises
    ------
    InputError
        If the store is of another sweep or cannot be written, or there is nobody to
        evaluate points.
    """
    path = None if folder is None else folder / STORE
    facts = sweep.task.facts(sweep.axes, sweep.time_limit)
    with Store(path, facts, restart=restart) as store:
        outcomes = run_sweep(
            sweep.points,
            sweep.task,
            store,
            workers=sweep.workers,
            executor=executor,
            time_limit=sweep.time_limit,
            progress=progress,
        )
    return ScenarioSweepResult(
        scenario_name=sweep.scenario_name,
        what=sweep.task.what,
        axes=sweep.axes,
        outcomes=outcomes.outcomes,
    )


def columns_of(outcomes: Sequence[Outcome]) -> dict[str, list[object]]:
    """Return the columns of the table, None where a point has no such value."""
    settings = _names(outcome.point for outcome in outcomes)
    results = _names(outcome.row or {} for outcome in outcomes)
    front = front_of(outcomes)
    columns: dict[str, list[object]] = {
        "number": [outcome.number for outcome in outcomes],
        **{
            name: [_cell(outcome.point, name) for outcome in outcomes]
            for name in settings
        },
        "state": ["failed" if outcome.row is None else "done" for outcome in outcomes],
        "failure": [outcome.reason or None for outcome in outcomes],
        **(
            {"pareto": [outcome.number in front for outcome in outcomes]}
            if front
            else {}
        ),
    }
    for name in results:
        column = f"result.{name}" if name in columns else name
        columns[column] = [_cell(outcome.row or {}, name) for outcome in outcomes]
    return columns


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """Return the table as CSV (RFC 4180, but for its line ends), numbers exactly."""
    return frame_of(outcomes).to_csv(index=False, lineterminator="\n")


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table as CSV."""
    path.write_text(csv_text(outcomes), encoding="utf-8")


def write_parquet(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table as Parquet."""
    frame_of(outcomes).to_parquet(path, engine="pyarrow", index=False)


def frame_of(outcomes: Sequence[Outcome]) -> "pd.DataFrame":
    """Return the table, each column of one type."""
    import pandas as pd

    columns = {name: _typed(cells) for name, cells in columns_of(outcomes).items()}
    return pd.DataFrame(columns)


def _typed(cells: Sequence[object]) -> "pd.Series[Any]":
    """Return a column of one type; text where the values have several."""
    import pandas as pd

    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        cells = [cell if cell is None else _text(cell) for cell in cells]
    names: Mapping[type, str] = {int: "Int64", float: "Float64", bool: "boolean"}
    dtype = names.get(next(iter(kinds)), "string") if len(kinds) == 1 else "string"
    return pd.Series(cells, dtype=dtype)


def _names(rows: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(row: Mapping[str, object], name: str) -> object:
    value = row.get(name)
    return plain_json(value) if isinstance(value, list | dict) else value


def _text(cell: object) -> str:
    return cell if isinstance(cell, str) else plain_json(cell)


def throughput_of(outcome: Outcome) -> float | None:
    """Return the throughput of a point, simulated if it was [token/s]; None if none.

    A plan that does not fit into memory has none.
    """
    row = outcome.row
    if row is None or row.get("verdict") in NO_ROOM:
        return None
    rate = row.get("simulated_tokens_per_s", row.get("planned_tokens_per_s"))
    return None if rate is None else float(rate)


def best_first(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the points with a throughput, fastest first, ties in their order."""
    known = [outcome for outcome in outcomes if throughput_of(outcome) is not None]
    return sorted(
        known, key=lambda outcome: (-(throughput_of(outcome) or 0.0), outcome.number)
    )


def rate_of(outcome: Outcome) -> float | None:
    """Return what a point's cluster costs [currency/s]; None if nothing is said."""
    rate = (outcome.row or {}).get("cost_per_s")
    return float(rate) if rate else None


def currency_of(outcomes: Sequence[Outcome]) -> str:
    """Return the one currency of all points that cost something; empty without one."""
    priced = [outcome.row or {} for outcome in outcomes if rate_of(outcome) is not None]
    codes = {str(row["currency"]) for row in priced}
    return codes.pop() if len(codes) == 1 else ""


def front_of(outcomes: Sequence[Outcome]) -> frozenset[int]:
    """Return the numbers of the points that no other one dominates.

    None is both no dearer and no slower. Empty where points have no costs, or several
    currencies.
    """
    if not currency_of(outcomes):
        return frozenset()
    known = partial(np.array, dtype=np.float64)
    costs = known([_number(rate_of(outcome)) for outcome in outcomes])
    gains = known([_number(throughput_of(outcome)) for outcome in outcomes])
    front = pareto_front(costs, gains)
    return frozenset(
        outcome.number for outcome, on in zip(outcomes, front, strict=True) if on
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value
