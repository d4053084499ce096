"""A sweep as text and as JSON: the points, the best of them, and what failed."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from nestsim.report.cost import HOUR
from nestsim.report.tables import add_row, new_table, print_line, print_section
from nestsim.report.wording import percent, plural
from nestsim.store import Outcome, plain_json
from nestsim.sweep.job import ScenarioSweepResult
from nestsim.sweep.ranking import (
    best_first,
    currency_of,
    front_of,
    rate_of,
    throughput_of,
)
from topologies.units import format_duration, format_size

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


def sweep_json(result: ScenarioSweepResult) -> dict[str, Any]:
    """Return everything that a sweep found, for programs."""
    best = best_first(result.outcomes)
    front = front_of(result.outcomes)
    return {
        "scenario": result.scenario_name,
        "what": result.what,
        "settings": {axis.path: list(axis.values) for axis in result.axes},
        "num_points": len(result.outcomes),
        "num_failed": sum(one.row is None for one in result.outcomes),
        "best": best[0].number if best else None,
        **({"pareto": sorted(front)} if front else {}),
        "points": [
            {
                "number": one.number,
                "settings": dict(one.point),
                "state": "failed" if one.row is None else "done",
                "failure": one.reason or None,
                **({"pareto": one.number in front} if front else {}),
                "result": None if one.row is None else dict(one.row),
            }
            for one in result.outcomes
        ],
    }


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
