"""The text report of a stress test."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from nestsim.report.sections import print_line, print_section
from nestsim.report.stress_words import (
    answer_in_words,
    change_in_words,
    headline,
    limits_in_words,
    plan_names,
    robust_in_words,
    shown_conditions,
)
from nestsim.report.wording import UNREPEATABLE, number, plural, signed_percent
from nestsim.stress.conditions import AS_BUILT

if TYPE_CHECKING:
    from rich.console import Console

    from nestsim.stress.results import StressResult

_TOLD = 1e-3
"""A negative regret of so much is explained."""

_NEGATIVE = (
    "Negative: the re-made plan is faster as planned, but slower in the replay; with "
    'search.objective = "replayed" the replay chooses.'
)


def print_stress(result: "StressResult", console: "Console") -> None:
    """Print the report."""
    print_line(console, Text(headline(result), style="bold"), result.scenario_name)
    names = plan_names(result)
    shown = shown_conditions(result)
    title = f"Conditions, by {result.planners[0]}"
    if len(shown) < len(result.names):
        title += f" ({len(shown)} of {len(result.names)})"
    print_section(console, title, _condition_table(result, shown))
    if any((result.regret(result.planners[0], name) or 0.0) < -_TOLD for name in shown):
        console.print(Text(_NEGATIVE), highlight=False)
    legend = [
        f"{made}: {names[result.made[result.planners[0], made]]}"
        for made in _first_of_each(result)
    ]
    print_section(
        console,
        "Plans, and the first condition each is made for",
        Text("\n".join(legend)),
    )
    print_section(console, "All planners", _planner_table(result, shown))
    print_section(console, "Where the best plan changes", _changes_text(result))
    if result.asked is not None:
        print_section(console, "How far it can go", _answers_text(result))
    print_section(console, "The robust choice", _robust_text(result, names))
    problems = _problems(result)
    if problems:
        print_section(console, "Without results", Text("\n".join(problems)))


def _first_of_each(result: "StressResult") -> list[str]:
    """Return for each plan of the first planner the first condition it is made for."""
    seen: dict[str, str] = {}
    for name in result.names:
        key = result.made.get((result.planners[0], name))
        if key is not None:
            seen.setdefault(key, name)
    return list(seen.values())


def _condition_table(result: "StressResult", shown: tuple[str, ...]) -> Table:
    planner = result.planners[0]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("condition")
    for heading in ("tokens/s kept", "re-made", "regret", "planned"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("what limits the kept plan: term; link; stage")
    for name in shown:
        kept = result.cell(planner, AS_BUILT, name)
        fresh = result.cell(planner, name, name)
        table.add_row(
            name,
            "-" if kept is None else number(result.throughput(kept)),
            "-" if fresh is None else number(result.throughput(fresh)),
            _signed(result.regret(planner, name)),
            _signed(result.regret(planner, name, planned=True)),
            limits_in_words(result, planner, AS_BUILT, name),
        )
    return table


def _planner_table(result: "StressResult", shown: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tokens/s, plan re-made")
    for planner in result.planners:
        table.add_column(planner, justify="right", no_wrap=True)
    for name in shown:
        cells = [result.cell(planner, name, name) for planner in result.planners]
        table.add_row(
            name,
            *("-" if c is None else number(result.throughput(c)) for c in cells),
        )
    return table


def _signed(regret: float | None) -> str:
    return "-" if regret is None else signed_percent(regret)


def _changes_text(result: "StressResult") -> Text:
    lines = [change_in_words(one) for one in result.changes]
    if not lines:
        lines = ["At none of the ratios" if result.axes else "No ratios were varied"]
    return Text("\n".join(lines))


def _answers_text(result: "StressResult") -> Text:
    if not result.answers:
        return Text("No plan was found")
    return Text("\n".join(answer_in_words(result, one) for one in result.answers))


def _robust_text(result: "StressResult", names: dict[str, str]) -> Text:
    about = (
        f"Of {plural(len(result.plans), 'plan')} by all planners under "
        f"{plural(len(result.run_names), 'condition')} of equal weight, by the replay"
    )
    return Text("\n".join((about, *robust_in_words(result, names))))


def _problems(result: "StressResult") -> list[str]:
    lines = [
        f"{planner}, {name}: {why}" for (planner, name), why in result.why_not.items()
    ]
    lines += [f"{name}: {why}" for name, why in result.failed.items()]
    if result.stopped:
        count = plural(len(result.stopped), "search")
        lines.append(
            f"{count} stopped by search.work_limit or search.time_limit: plans are the "
            "best found so far"
        )
    if not result.is_reproducible:
        lines.append(UNREPEATABLE)
    return lines
