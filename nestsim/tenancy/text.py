"""Jobs on one fabric as text: slow-downs, shared links, placements."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.report.tables import add_row, new_table, print_line, print_section
from nestsim.report.wording import (
    device_ranges,
    number,
    percent,
    plan_label,
    plural,
    seeds_in_words,
)
from nestsim.tenancy.results import PlacementChoice, TenancyResult
from topologies.units import format_duration

_MOST_LINKS = 8
"""Kinds of shared links that are listed."""

_MOST_CANDIDATES = 12
"""Placements of a job that are listed, the chosen one among them."""

_NONE = 5e-4
"""Slow-downs closer to 1 than this are written as none."""


def times(slowdown: float) -> str:
    """Write a slow-down for people: ``1.022x``."""
    return f"{slowdown:.3f}x"


def devices_in_words(lost: float) -> str:
    """Write devices whose throughput is lost, a part of one as well."""
    return f"{lost:,.1f}" if lost >= 10.0 else f"{lost:.2f}"


def headline(result: TenancyResult) -> str:
    """Say what the jobs do to each other at worst, and all together."""
    if not result.outcomes:
        return result.shortfall
    worst = result.worst
    if worst.slowdown < 1.0 + _NONE:
        return "No job slows another one down by as much as 0.1 %"
    longer = percent(worst.slowdown - 1.0)
    if not worst.is_known:
        low, high = (percent(one - 1.0) for one in worst.slowdown_range)
        longer = f"{low} to {high}"
    used = sum(len(one.devices) for one in result.outcomes)
    return (
        f'"{worst.tenant.name}" takes {longer} longer beside the others; all jobs '
        f"together lose {devices_in_words(result.lost)} of {plural(used, 'device')}"
    )


def print_jobs(result: TenancyResult, console: Console) -> None:
    """Print the slow-down of each job, where they meet, and what was tried."""
    if not result.outcomes:
        print_line(console, Text("NO PLAN", style="bold red"), result.name)
        console.print(Text(f"  {result.shortfall}"), highlight=False)
        return
    count = Text(f"{len(result.outcomes)} JOBS", style="bold")
    print_line(console, count, result.name)
    console.print(Text(f"  {headline(result)}."), highlight=False)
    print_section(console, "Each job alone and beside the others", _job_table(result))
    if result.seeds:
        title = f"Slow-down over {seeds_in_words(result.seeds)}"
        print_section(console, title, _seed_table(result))
    print_section(console, "Plans", _plan_table(result))
    for choice in result.choices:
        print_section(console, choice_title(choice), _choice_table(choice))
    if result.levels:
        title = "Busiest link of each level, share of its capacity"
        print_section(console, title, _level_table(result))
    if result.links:
        kinds = plural(sum(one.num_alike for one in result.links), "link")
        title = f"Where jobs meet: {kinds}, alike ones once"
        print_section(console, title, _link_table(result))
    console.print()
    for note in result.notes:
        console.print(Text(f"  {note}"), highlight=False)


def slowdown_in_words(slowdown: float, low: float, high: float) -> str:
    """Write a slow-down, and its range where it has one."""
    if low == high:
        return times(slowdown)
    return f"{times(slowdown)} ({times(low)} to {times(high)})"


def _job_table(result: TenancyResult) -> Table:
    numbers = ("Devices", "Alone", "Together", "Slow-down", "Tokens/s", "alone")
    table = new_table("Job", *numbers, numbers=numbers)
    for one in result.outcomes:
        add_row(
            table,
            one.tenant.name,
            number(len(one.devices)),
            format_duration(one.alone),
            format_duration(one.together),
            slowdown_in_words(one.slowdown, *one.slowdown_range),
            number(one.tokens_per_second(one.together)),
            number(one.tokens_per_second(one.alone)),
        )
    return table


def _seed_table(result: TenancyResult) -> Table:
    numbers = ("Least", "Median", "Largest")
    table = new_table("Job", *numbers, numbers=numbers)
    for one in result.outcomes:
        add_row(table, one.tenant.name, *(times(found) for found in one.seed_range))
    return table


def _plan_table(result: TenancyResult) -> Table:
    table = new_table("Job", "Plan", "Devices")
    for one in result.outcomes:
        words = [plan_label(one.made.plan), "given" if one.made.is_given else "found"]
        if one.tenant.start:
            words.append(f"begins at {format_duration(one.tenant.start)}")
        add_row(
            table,
            one.tenant.name,
            ", ".join(words),
            device_ranges(one.devices.tolist()),
        )
    return table


def choice_title(choice: PlacementChoice) -> str:
    """Say of what a table of placements is, and how many there are."""
    tried = plural(len(choice.judged), "placement")
    all_words = "all that differ" if choice.is_complete else "of those that there are"
    return f'Where "{choice.tenant.name}" hurts least: {tried}, {all_words}'


def shown_candidates(choice: PlacementChoice) -> list[int]:
    """Return the placements that tables show: the best ones, in their order."""
    order = sorted(
        range(len(choice.judged)),
        key=lambda k: (k != choice.chosen, choice.judged[k].lost, k),
    )
    return sorted(order[:_MOST_CANDIDATES])


def _choice_table(choice: PlacementChoice) -> Table:
    numbers = ("Step", *choice.others, "Lost")
    table = new_table("Placement", "Devices", *numbers, numbers=numbers)
    for place in shown_candidates(choice):
        one = choice.judged[place]
        add_row(
            table,
            one.label,
            device_ranges(one.devices.tolist()),
            format_duration(one.step_time),
            *(times(factor) for factor in one.slowdowns),
            devices_in_words(one.lost),
            style="bold" if place == choice.chosen else "",
        )
    return table


def _level_table(result: TenancyResult) -> Table:
    jobs = tuple(one.tenant.name for one in result.outcomes)
    numbers = ("Links used", "Shared", *jobs, "All jobs")
    table = new_table("Level", *numbers, numbers=numbers)
    for one in result.levels:
        add_row(
            table,
            one.level,
            number(one.num_links),
            number(one.num_shared),
            *(percent(share) for share in one.busiest),
            percent(one.total),
        )
    return table


def _link_table(result: TenancyResult) -> Table:
    jobs = tuple(one.tenant.name for one in result.outcomes)
    numbers = ("Alike", *jobs, "All jobs")
    table = new_table("Link", "Level", *numbers, numbers=numbers)
    for one in result.links[:_MOST_LINKS]:
        add_row(
            table,
            one.link,
            one.level,
            number(one.num_alike),
            *(percent(share) for share in one.shares),
            percent(one.total),
        )
    return table
