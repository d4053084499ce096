"""The parts that text reports are made of: lines, sections and tables.

Tables are rich renderables that stay whole in a pipe. Cells are `rich.text.Text`, never
markup: names of scenarios, layers and switches may contain brackets. Columns of numbers
never wrap; those of words break between words.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nestsim.report.statistics import HotLink, LevelUse, stage_breakdowns
from nestsim.report.wording import (
    device_ranges,
    difference,
    layer_span,
    number,
    percent,
    plan_label,
    saving_label,
    signed_duration,
    signed_percent,
    size_of_limit,
    stage_devices,
    without_rounding,
)
from planner.cost.objective import PricedPlan, StageCost
from planner.step.plan import Plan
from topologies.units import format_duration, format_size

if TYPE_CHECKING:
    from nestsim.evaluate.results import Candidate, PlannedCandidate, Throughput

VERDICT_STYLES: Mapping[str, str] = {
    "confirmed": "bold green",
    "slower": "bold yellow",
    "doubtful": "bold red",
    "infeasible": "bold red",
}
"""Verdict -> style; the word says the same without colour."""

_MIN_WIDTHS: Mapping[str, int] = {"Layers": 12, "Plan": 16, "Saving": 9}
"""Columns of words that must not become narrower than their longest word."""


def new_table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; columns in ``numbers`` stand right and never wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        is_number = column in numbers
        table.add_column(
            Text(column),
            justify="right" if is_number else "left",
            no_wrap=is_number,
            overflow="fold",
            min_width=max(map(len, column.split("\n")))
            if is_number
            else _MIN_WIDTHS.get(column),
        )
    return table


def add_row(table: Table, *cells: str, style: str = "") -> None:
    """Add a row of plain text."""
    table.add_row(*(Text(cell) for cell in cells), style=style)


def facts(rows: Mapping[str, str]) -> Table:
    """Return names and values, one pair a line."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(f"  {name}"), Text(value))
    return table


def throughput_table(candidate: "Candidate", device_memory: float) -> Table:
    """Return planned beside simulated."""
    numbers = ("Planned", "Simulated", "Difference")
    table = new_table("", *numbers, numbers=numbers)
    planned, simulated = candidate.planned, candidate.simulated
    for name, values in _throughput_rows(planned, simulated, device_memory):
        add_row(table, name, *values)
    return table


def _throughput_rows(
    planned: "Throughput", simulated: "Throughput", device_memory: float
) -> list[tuple[str, tuple[str, str, str]]]:
    def row(field: str, write: object, scale: float = 1.0) -> tuple[str, str, str]:
        assert callable(write)
        a, b = getattr(planned, field), getattr(simulated, field)
        return write(a / scale), write(b / scale), signed_percent(difference(a, b))

    def memory(used: float) -> str:
        return size_of_limit(used, device_memory)

    mfu = [("MFU", row("mfu", percent))]
    if simulated.mfu_causal != simulated.mfu:
        mfu.append(("MFU, causal", row("mfu_causal", percent)))
    return [
        ("Iteration time", row("iteration_time", format_duration)),
        ("Tokens/s", row("tokens_per_second", number)),
        ("Tokens/s/device", row("tokens_per_second_per_device", number)),
        ("TFLOP/s/device", row("flops_per_device", number, 1e12)),
        *mfu,
        ("Peak memory", row("peak_memory", memory)),
    ]


def gap_table(candidate: "Candidate") -> Table:
    """Return the difference between plan and replay by cause."""
    numbers = ("Time", "Of planned")
    table = new_table("Cause", *numbers, numbers=numbers)
    planned = candidate.planned.iteration_time
    gap = candidate.verdict.gap
    for cause, exact in (*gap.terms.items(), ("total", gap.total)):
        if cause == "total":
            table.add_section()
        seconds = without_rounding(exact, planned)
        share = seconds / planned if planned else math.nan
        add_row(table, cause, signed_duration(seconds), signed_percent(share))
    return table


def causes_table(causes: Mapping[str, float], total: float) -> Table:
    """Return a time by cause, without the causes that take none."""
    numbers = ("Time", "Share")
    table = new_table("Cause", *numbers, numbers=numbers)
    for cause, exact in causes.items():
        seconds = without_rounding(exact, total)
        if seconds:
            share = seconds / total if total else math.nan
            add_row(table, cause, format_duration(seconds), percent(share))
    table.add_section()
    add_row(table, "total", format_duration(total), percent(1.0))
    return table


def stage_table(candidate: "Candidate", layer_names: Sequence[str]) -> Table:
    """Return what each stage holds, how long it works and how full it gets."""
    plan = candidate.priced.plan
    numbers = ("Stage", *_pass_columns(candidate.priced), "Memory", "Busy")
    table = new_table(*_stage_columns(plan), *numbers[1:], numbers=numbers)
    rows = stage_breakdowns(candidate.replay)
    total = candidate.replay.iteration_time
    stages = zip(candidate.priced.stages, rows, candidate.replay.memory, strict=True)
    for index, (cost, row, memory) in enumerate(stages):
        add_row(
            table,
            *_stage_cells(plan, index, layer_names),
            *_pass_cells(candidate.priced, cost),
            format_size(memory.peak),
            percent(row.passes / total if total else math.nan),
        )
    return table


def planned_stage_table(priced: PricedPlan, layer_names: Sequence[str]) -> Table:
    """Return what each stage holds, and its planned times and memory."""
    numbers = ("Stage", *_pass_columns(priced), "Tail", "Memory")
    table = new_table(*_stage_columns(priced.plan), *numbers[1:], numbers=numbers)
    for index, cost in enumerate(priced.stages):
        add_row(
            table,
            *_stage_cells(priced.plan, index, layer_names),
            *_pass_cells(priced, cost),
            format_duration(cost.step_end_time),
            format_size(cost.peak_memory),
        )
    return table


def _pass_columns(priced: PricedPlan) -> tuple[str, ...]:
    """Return the kinds of passes; those of weights alone only where there are any."""
    splits = any(cost.weight_gradient_time > 0.0 for cost in priced.stages)
    return ("Forward", "Backward", "Weight") if splits else ("Forward", "Backward")


def _pass_cells(priced: PricedPlan, cost: StageCost) -> tuple[str, ...]:
    """Return what `_pass_columns` announces for one stage."""
    times = cost.forward_time, cost.backward_time, cost.weight_gradient_time
    return tuple(map(format_duration, times[: len(_pass_columns(priced))]))


def _savings_differ(plan: Plan) -> bool:
    """Return whether the stages save memory in different ways."""
    return len({saving_label(stage) for stage in plan.stages}) > 1


def _stage_columns(plan: Plan) -> tuple[str, ...]:
    columns = ("Stage", "Layers", "Devices")
    return (*columns, "Saving") if _savings_differ(plan) else columns


def _stage_cells(plan: Plan, index: int, layer_names: Sequence[str]) -> tuple[str, ...]:
    """Return what `_stage_columns` announces for one stage."""
    stage = plan.stages[index]
    cells = (
        str(index),
        layer_span(layer_names, stage),
        device_ranges(stage_devices(stage), most=2),
    )
    if not _savings_differ(plan):
        return cells
    return (*cells, saving_label(stage) or "none")


def candidates_table(candidates: "Sequence[Candidate]", shown: int) -> Table:
    """Return the replayed plans in re-ranked order, the one shown marked."""
    numbers = ("Planned", "Simulated", "Differs", "Memory")
    table = new_table(
        "#", "Rank", "Plan", *numbers, "Verdict", numbers=("#", "Rank", *numbers)
    )
    for index, candidate in enumerate(candidates):
        planned, simulated = candidate.planned, candidate.simulated
        mark = " *" if index == shown else ""
        add_row(
            table,
            str(index + 1),
            str(candidate.rank),
            plan_label(candidate.priced.plan),
            format_duration(planned.iteration_time),
            format_duration(simulated.iteration_time),
            signed_percent(
                difference(planned.iteration_time, simulated.iteration_time)
            ),
            format_size(simulated.peak_memory),
            candidate.verdict.kind + mark,
            style="bold" if index == shown else "",
        )
    table.columns[-1].no_wrap = True
    return table


def plans_table(candidates: "Sequence[PlannedCandidate]") -> Table:
    """Return the k best plans of the search, best first."""
    numbers = ("#", "Iteration", "Tokens/s", "MFU", "Memory")
    table = new_table("#", "Plan", "Placement", *numbers[1:], numbers=numbers)
    for candidate in candidates:
        planned = candidate.planned
        add_row(
            table,
            str(candidate.rank),
            plan_label(candidate.priced.plan),
            candidate.priced.plan.placement,
            format_duration(planned.iteration_time),
            number(planned.tokens_per_second),
            percent(planned.mfu),
            format_size(planned.peak_memory),
        )
    return table


def links_table(links: Sequence[HotLink]) -> Table:
    """Return the hottest links."""
    numbers = ("Carried", "Use")
    table = new_table("Link", "Level", *numbers, numbers=numbers)
    for link in links:
        add_row(
            table,
            link.name,
            link.level,
            format_size(link.num_bytes),
            percent(link.utilisation),
        )
    return table


def levels_table(uses: Sequence[LevelUse]) -> Table:
    """Return the traffic of each level."""
    numbers = ("Links used", "Carried", "Mean use", "Highest use")
    table = new_table("Level", *numbers, numbers=numbers)
    for use in uses:
        add_row(
            table,
            use.name,
            f"{number(use.num_used)} of {number(use.num_links)}",
            format_size(use.num_bytes),
            percent(use.mean_utilisation),
            percent(use.max_utilisation),
        )
    return table


_WIDTH = 100
"""Columns of a report that is kept as a text."""


def print_line(console: Console, headline: Text, subject: str) -> None:
    """Print what stands out, and beside it what it is about."""
    console.print(Text.assemble(headline, "  ", subject), highlight=False)


def print_section(console: Console, title: str, body: RenderableType) -> None:
    """Print a title and what stands below it."""
    console.print()
    console.print(Text(title, style="bold underline"), highlight=False)
    console.print(body, highlight=False)


def plain_text(print_to: Callable[[Console], object]) -> str:
    """Return what is printed as a terminal without colours would show it."""
    buffer = io.StringIO()
    print_to(
        Console(
            file=buffer,
            width=_WIDTH,
            color_system=None,
            force_terminal=False,
            legacy_windows=False,
        )
    )
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return "\n".join(lines) + "\n"
