"""A comparison of planners as text, for a person at a terminal."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.compare.record import Comparison, Group
from nestsim.report.compare_wording import sentences
from nestsim.report.sections import print_line, print_section
from nestsim.report.tables import add_row, facts, new_table
from nestsim.report.wording import difference, plan_label, plural, signed_percent
from topologies.units import format_duration, format_size

NOTHING = "X"
"""Stands where nothing valid was found."""


def print_comparison(
    comparison: Comparison, console: Console, *, with_times: bool = True
) -> None:
    """Print each group's tables and sentences, and all groups in one table.

    Parameters
    ----------
    comparison
        What was found.
    console
        Where to.
    with_times
        Whether to print how long the searches took.
    """
    for number, group in enumerate(comparison.groups):
        if number:
            console.print()
        _print_group(group, console, with_times=with_times)
    if len(comparison.groups) > 1:
        title = f"Simulated throughput, {comparison.base} = 1"
        print_section(console, title, _overview(comparison))


def _print_group(group: Group, console: Console, *, with_times: bool) -> None:
    headline = Text(f"{plural(len(group.entries), 'planner')} compared", style="bold")
    subject = f"{group.scenario}: {plural(group.num_devices, 'device')}, {group.model}"
    print_line(console, headline, subject)
    title = (
        "Iteration time: believed by the planner, planned by one evaluator, replayed"
    )
    print_section(console, title, _times_table(group, with_times=with_times))
    print_section(console, "Plans", _plans_table(group))
    obstacles = {
        entry.planner: entry.obstacle for entry in group.entries if entry.obstacle
    }
    if obstacles:
        print_section(console, f"{NOTHING}: nothing valid was found", facts(obstacles))
    body = Table.grid(padding=(0, 1, 0, 0))
    for sentence in sentences(group):
        body.add_row(Text("  -"), Text(sentence))
    print_section(console, "What decides", body)


def _times_table(group: Group, *, with_times: bool) -> Table:
    versus = f"Vs {group.base}"
    numbers = ["Search", "Belief", "Planned", "Simulated", "Differs", versus]
    if not with_times:
        numbers.remove("Search")
    table = new_table("Planner", *numbers, numbers=numbers)
    best = group.best
    for entry in group.entries:
        cells = [format_time(entry.search_time)] if with_times else []
        found = entry.found
        planned = found.planned.iteration_time if found else math.nan
        simulated = found.simulated.iteration_time if found else math.nan
        ratio = group.simulated_ratio(entry)
        cells += [
            format_time(entry.belief),
            format_time(planned),
            format_time(simulated),
            signed_percent(difference(planned, simulated)),
            format_ratio(ratio) if entry.is_valid else NOTHING,
        ]
        add_row(table, entry.planner, *cells, style="bold" if entry is best else "")
    return table


def _plans_table(group: Group) -> Table:
    numbers = ("Planned memory", "Simulated memory")
    table = new_table("Planner", "Plan", *numbers, "Verdict", numbers=numbers)
    for entry in group.entries:
        found = entry.found
        if found is None:
            add_row(table, entry.planner, NOTHING, "-", "-", "none")
            continue
        add_row(
            table,
            entry.planner,
            plan_label(found.plan),
            format_size(found.planned.peak_memory),
            format_size(found.simulated.peak_memory),
            found.verdict,
        )
    table.columns[-1].no_wrap = True
    return table


def _overview(comparison: Comparison) -> Table:
    planners = comparison.planners
    table = new_table("Scenario", "Devices", *planners, numbers=("Devices", *planners))
    for group in comparison.groups:
        ratios = (
            format_ratio(group.simulated_ratio(entry)) if entry.is_valid else NOTHING
            for entry in group.entries
        )
        add_row(table, group.scenario, str(group.num_devices), *ratios)
    return table


def format_time(seconds: float) -> str:
    """Write a time, ``-`` if there is none."""
    return format_duration(seconds) if math.isfinite(seconds) else "-"


def format_ratio(ratio: float) -> str:
    """Write a ratio of throughputs, ``-`` if there is none."""
    return f"{ratio:.3f}" if math.isfinite(ratio) else "-"
