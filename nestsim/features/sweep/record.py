"""A sweep as JSON, and the folder of its results.

Beside ``sweep.sqlite``, which grows point by point: ``scenario.toml`` (a copy of the
input), ``points.csv``, ``points.parquet``, ``result.json``, a picture of what was
varied (``sweep.png``), one of throughput over cost where the scenario has prices
(``pareto.png``), and ``manifest.json`` with the hash of each. None of these depends on
the number of workers, or on interruptions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from nestsim.document.dumps import ABSENT, Of, Record
from nestsim.features.sweep.axes import Axis
from nestsim.features.sweep.job import (
    STORE,
    ScenarioSweepResult,
    best_first,
    currency_of,
    front_of,
    throughput_of,
)
from nestsim.running.store import Outcome, plain_json
from topologies.arrays import FloatArray
from topologies.errors import InputError
from topologies.units import BASE_UNITS, parse_quantity


class AxisRecord(Record):
    """A setting that has more than one value."""

    path: str
    """Dotted path of the setting."""

    name: str
    """Last parts of the path that tell the setting from others."""

    labels: tuple[str, ...]
    """Values of the setting, for people."""

    positions: tuple[float, ...] | None
    """Place of each value on an axis of numbers, in base units; None for words."""


class SweptPoint(Record):
    """What became of one point."""

    number: int
    """Number of the point."""

    settings: Annotated[Mapping[str, object], Of("point")]
    """Dotted path of a setting -> its value at the point."""

    label: str
    """What tells the point from others."""

    tokens_per_s: float | None
    """Throughput; None without a plan [token/s]."""

    state: str
    """``"done"`` or ``"failed"``."""

    failure: Annotated[str | None, Of("reason")]
    """Reason why the point failed; None if it did not."""

    pareto: bool = False
    """Whether no point is both cheaper and faster."""

    result: Annotated[Mapping[str, Any] | None, Of("row")]
    """Results of the point by column; None if it failed."""


class SweepRecord(Record):
    """What a document says of ``result.json`` of a sweep."""

    headline: str
    """The answer."""

    done: str
    """What was done at each point."""

    scenario: Annotated[str, Of("scenario_name")]
    """Name of the scenario."""

    what: str
    """``"simulate"``, ``"plan"`` or ``"run"``."""

    settings: Mapping[str, tuple[object, ...]]
    """Dotted path of a setting -> its values."""

    varied: tuple[AxisRecord, ...]
    """Settings that have more than one value."""

    num_points: int
    """Number of the points."""

    num_failed: int
    """Points that failed."""

    best: int | None
    """Number of the fastest point; None without any."""

    pareto: tuple[int, ...] = ()
    """Numbers of the points that no other one dominates; empty without prices."""

    currency: str | None = None
    """Currency of all prices; None without."""

    points: tuple[SweptPoint, ...]
    """What became of each point."""


_DONE = {
    "simulate": "the plan replayed",
    "plan": "planned, not replayed",
    "run": "planned and replayed",
}
"""Mode of a sweep -> what was done at each point."""


def value_label(value: object) -> str:
    """Write a setting's value for people."""
    return value if isinstance(value, str) else plain_json(value)


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them from each other."""
    parts = [path.split(".") for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = [".".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return list(paths)


def varied_axes(result: ScenarioSweepResult) -> list[Axis]:
    """Return the settings that have more than one value."""
    return [axis for axis in result.axes if len(axis.values) > 1]


def point_label(result: ScenarioSweepResult, outcome: Outcome) -> str:
    """Return what tells a point from the others; empty if nothing is varied."""
    paths = [axis.path for axis in varied_axes(result)]
    names = short_names(paths) if paths else []
    return ", ".join(
        f"{name} {value_label(outcome.point[path])}"
        for name, path in zip(names, paths, strict=True)
    )


def sweep_headline(result: ScenarioSweepResult) -> str:
    """Say which point is the fastest, and what lies between it and the slowest."""
    ranked = best_first(result.outcomes)
    if not ranked:
        return "No point has a plan that fits"
    best, worst = (throughput_of(outcome) or 0.0 for outcome in (ranked[0], ranked[-1]))
    at = point_label(result, ranked[0])
    if not at:
        return f"{best:,.0f} tokens/s at the only point"
    less = f"{100 * (1 - worst / best):.1f} %"
    return f"{best:,.0f} tokens/s at {at}; {less} less at the slowest"


def positions(values: Sequence[object]) -> "FloatArray | None":
    """Return where values stand on an axis of numbers, in base units; None if none."""
    if all(
        isinstance(value, int | float) and not isinstance(value, bool)
        for value in values
    ):
        return np.array(values, dtype=np.float64)
    for dimension in BASE_UNITS:
        try:
            return np.array([parse_quantity(value, dimension) for value in values])
        except InputError:
            continue
    return None


def sweep_json(result: ScenarioSweepResult) -> dict[str, object]:
    """Return everything that a sweep found, for programs."""
    best, front = best_first(result.outcomes), front_of(result.outcomes)
    axes = varied_axes(result)
    names = short_names([axis.path for axis in axes]) if axes else []
    return SweepRecord.dump(
        result,
        headline=sweep_headline(result),
        done=_DONE[result.what],
        settings={axis.path: axis.values for axis in result.axes},
        varied=[
            AxisRecord.dump(
                axis,
                name=name,
                labels=[value_label(value) for value in axis.values],
                positions=positions(axis.values),
            )
            for axis, name in zip(axes, names, strict=True)
        ],
        num_points=len(result.outcomes),
        num_failed=sum(outcome.row is None for outcome in result.outcomes),
        best=best[0].number if best else None,
        pareto=sorted(front) if front else ABSENT,
        currency=currency_of(result.outcomes) if front else ABSENT,
        points=[
            SweptPoint.dump(
                outcome,
                label=point_label(result, outcome),
                tokens_per_s=throughput_of(outcome),
                state="failed" if outcome.row is None else "done",
                pareto=outcome.number in front if front else ABSENT,
            )
            for outcome in result.outcomes
        ],
    )


def sweep_facts(
    result: ScenarioSweepResult, scenario_bytes: bytes
) -> dict[str, object]:
    """Return what the manifest says beside the hash of each file."""
    return {
        "scenario": result.scenario_name,
        "scenario_sha256": hashlib.sha256(scenario_bytes).hexdigest(),
        "store": STORE,
    }
