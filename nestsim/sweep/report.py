"""A sweep as text and as JSON: the points, the best of them, and what failed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from nestsim.report.cost import HOUR
from nestsim.report.tables import add_row, new_table, print_line, print_section
from nestsim.report.wording import percent, plural
from nestsim.store import Outcome, plain_json
from nestsim.sweep.axes import Axis
from nestsim.sweep.job import ScenarioSweepResult
from nestsim.sweep.ranking import (
    best_first,
    currency_of,
    front_of,
    rate_of,
    throughput_of,
)
from topologies.arrays import FloatArray
from topologies.errors import InputError
from topologies.units import (
    BASE_UNITS,
    format_duration,
    format_size,
    parse_quantity,
)

MOST_SHOWN = 20
"""Points in the text; all of them are in points.csv."""

_MOST_REASONS = 5
"""Reasons of failures that a report names."""

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
        names = [".".join(one[-length:]) for one in parts]
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
    best, worst = (throughput_of(one) or 0.0 for one in (ranked[0], ranked[-1]))
    at = point_label(result, ranked[0])
    if not at:
        return f"{best:,.0f} tokens/s at the only point"
    less = f"{100 * (1 - worst / best):.1f} %"
    return f"{best:,.0f} tokens/s at {at}; {less} less at the slowest"


def positions(values: Sequence[object]) -> "FloatArray | None":
    """Return where values stand on an axis of numbers, in base units; None if none."""
    if all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in values
    ):
        return np.array(values, dtype=np.float64)
    for dimension in BASE_UNITS:
        try:
            return np.array([parse_quantity(one, dimension) for one in values])
        except InputError:
            continue
    return None


def sweep_json(result: ScenarioSweepResult) -> dict[str, Any]:
    """Return everything that a sweep found, for programs."""
    best = best_first(result.outcomes)
    front = front_of(result.outcomes)
    return {
        "headline": sweep_headline(result),
        "done": _DONE[result.what],
        "scenario": result.scenario_name,
        "what": result.what,
        "settings": {axis.path: list(axis.values) for axis in result.axes},
        "varied": _varied_json(result),
        "num_points": len(result.outcomes),
        "num_failed": sum(one.row is None for one in result.outcomes),
        "best": best[0].number if best else None,
        **(
            {"pareto": sorted(front), "currency": currency_of(result.outcomes)}
            if front
            else {}
        ),
        "points": [
            {
                "number": one.number,
                "settings": dict(one.point),
                "label": point_label(result, one),
                "tokens_per_s": throughput_of(one),
                "state": "failed" if one.row is None else "done",
                "failure": one.reason or None,
                **({"pareto": one.number in front} if front else {}),
                "result": None if one.row is None else dict(one.row),
            }
            for one in result.outcomes
        ],
    }


def _varied_json(result: ScenarioSweepResult) -> list[dict[str, Any]]:
    """Return the settings that have more than one value, and how these are called."""
    axes = varied_axes(result)
    found = []
    for axis, name in zip(
        axes, short_names([axis.path for axis in axes]) if axes else [], strict=True
    ):
        places = positions(axis.values)
        found.append(
            {
                "path": axis.path,
                "name": name,
                "labels": [value_label(value) for value in axis.values],
                "positions": None if places is None else places.tolist(),
            }
        )
    return found


def print_sweep(result: ScenarioSweepResult, console: Console) -> None:
    """Print the points of a sweep, or the best of many, and what failed."""
    failed = [one for one in result.outcomes if one.row is None]
    headline = Text(plural(len(result.outcomes), "point").upper(), style="bold green")
    if failed:
        headline.append(f", {len(failed):,} FAILED", style="bold red")
    print_line(console, headline, f"{result.scenario_name}, {_DONE[result.what]}")
    ranked = best_first(result.outcomes)
    done = [one for one in result.outcomes if one.row is not None]
    shown = done if len(done) <= MOST_SHOWN else ranked[:MOST_SHOWN]
    if shown:
        title = "Points" if shown is done else f"The fastest {len(shown)}"
        best = ranked[0].number if ranked else None
        print_section(console, title, _table(result, shown, best))
    front = front_of(result.outcomes)
    if front:
        title = "The Pareto front: no other point is both no dearer and no slower"
        print_section(console, title, _front_table(result, front))
    if failed:
        print_section(console, "Failed", _failures(failed))


def _table(
    result: ScenarioSweepResult, shown: Sequence[Outcome], best: int | None
) -> Any:
    paths = [axis.path for axis in result.axes]
    names = ["point", *short_names(paths)]
    numbers = ["tokens/s", "iteration", "MFU", "peak memory"]
    table = new_table(*names, *numbers, "verdict", numbers=("point", *numbers))
    for outcome in shown:
        assert outcome.row is not None
        whose = "planned" if result.what == "plan" else "simulated"
        row = {
            name.removeprefix(f"{whose}_"): value for name, value in outcome.row.items()
        }
        add_row(
            table,
            str(outcome.number),
            *(value_label(outcome.point[path]) for path in paths),
            f"{row['tokens_per_s']:,.0f}",
            format_duration(row["iteration_time_s"]),
            percent(row["mfu"]),
            format_size(row["peak_memory_bytes"]),
            row.get("verdict", "planned")
            + (", best" if outcome.number == best else ""),
            style="bold" if outcome.number == best else "",
        )
    return table


def _front_table(result: ScenarioSweepResult, front: frozenset[int]) -> Any:
    """Return what the points of the Pareto front cost, the cheapest first."""
    paths, code = [axis.path for axis in result.axes], currency_of(result.outcomes)
    numbers = ("tokens/s", f"{code}/h", f"tokens/{code}")
    names = ("point", *short_names(paths))
    table = new_table(*names, *numbers, numbers=("point", *numbers))
    chosen = [one for one in result.outcomes if one.number in front]
    chosen.sort(key=lambda one: (rate_of(one), throughput_of(one), one.number))
    for outcome in chosen[:MOST_SHOWN]:
        rate, speed = rate_of(outcome) or 0.0, throughput_of(outcome) or 0.0
        add_row(
            table,
            str(outcome.number),
            *(value_label(outcome.point[path]) for path in paths),
            f"{speed:,.0f}",
            f"{HOUR * rate:,.4g}",
            f"{speed / rate:,.0f}" if rate else "-",
        )
    return table


def _failures(failed: Sequence[Outcome]) -> Any:
    """Return how often each reason was met, the most frequent first."""
    table = new_table("points", "reason", numbers=("points",))
    reasons = Counter(one.reason for one in failed).most_common()
    for reason, count in reasons[:_MOST_REASONS]:
        add_row(table, f"{count:,}", reason)
    others = sum(count for _, count in reasons[_MOST_REASONS:])
    if others:
        add_row(table, f"{others:,}", "other reasons, which points.csv has")
    return table
