"""Answers to instances of the published NEST artifact, as text and as JSON.

Times are in the unit of the instance file, which nobody here knows: the published
ones mix milliseconds of compute with seconds of communication.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.report.tables import add_row, facts, new_table
from nestsim.report.wording import number, plural, size_of_limit
from planner.rivals.nest_artifact.costs import ArtifactStageCost, PricedSplit
from planner.rivals.nest_artifact.instance import NestInstance
from planner.rivals.nest_artifact.solver import WHY, NestSolution, Score, ScoredBaseline
from topologies.units import format_duration


def solution_json(solution: NestSolution) -> dict[str, Any]:
    """Return the answer for programs; stages from the first to the last."""
    plan = solution.plan
    ids = solution.instance.ids
    return {
        "time_per_batch": plan.time_per_batch if plan else None,
        "tensor": plan.tensor if plan else None,
        "data": plan.data if plan else None,
        "stages": [
            {"nodes": list(ids[stage.first : stage.end]), "devices": stage.devices}
            for stage in (plan.stages if plan else ())
        ],
        "solve_seconds": solution.solve_seconds,
        "reason": solution.reason or None,
    }


def scores_json(
    solution: NestSolution, scored: Sequence[ScoredBaseline]
) -> dict[str, Any]:
    """Return the answer with the stored baselines beside it, for programs."""
    optimum = _optimum(solution)
    return solution_json(solution) | {
        "baselines": [
            {
                "name": one.baseline.name,
                "tensor": one.baseline.tensor,
                "pipeline": one.baseline.pipeline,
                "data": one.baseline.data,
                "as_scored": _score_json(one.as_scored, optimum),
                "true_order": _score_json(one.true_order, optimum),
                "best_cuts": _score_json(one.best_cuts, optimum),
            }
            for one in scored
        ],
        "explanation": WHY,
    }


def print_solution(solution: NestSolution, name: str, console: Console) -> None:
    """Print the best plan of an instance, or what is missing for one."""
    _print_headline(solution, name, console)
    if solution.plan is None:
        return
    console.print()
    console.print(_plan_facts(solution, solution.plan), highlight=False)
    _print_titled("Stages, first to last", _stages_table(solution), console)


def print_scores(
    solution: NestSolution,
    scored: Sequence[ScoredBaseline],
    name: str,
    console: Console,
) -> None:
    """Print the stored baselines beside the best plan, each priced three ways."""
    _print_headline(solution, name, console)
    if not scored:
        console.print(Text("The file stores no baselines."), highlight=False)
        return
    title = "Stored baselines: time per batch, and its ratio to the best plan's"
    _print_titled(title, _scores_table(solution, scored), console)
    console.print()
    console.print(Text(WHY), highlight=False)
    for line in _missing(scored):
        console.print(Text(line), highlight=False)


def _print_headline(solution: NestSolution, name: str, console: Console) -> None:
    plan, instance = solution.plan, solution.instance
    subject = (
        f"{name}: {plural(instance.num_nodes, 'node')}, "
        f"{plural(instance.num_devices, 'device')}"
    )
    if plan is None:
        headline = Text("NO PLAN FITS", style="bold red")
    else:
        headline = Text(f"{_time(plan.time_per_batch)} per batch", style="bold")
    console.print(Text.assemble(headline, "  ", subject), highlight=False)
    if plan is None:
        console.print(Text(f"{solution.reason}."), highlight=False)


def _print_titled(title: str, table: Table, console: Console) -> None:
    console.print()
    console.print(Text(title, style="bold underline"), highlight=False)
    console.print(table, highlight=False)


def _plan_facts(solution: NestSolution, plan: PricedSplit) -> Table:
    instance = solution.instance
    widths = ", ".join(str(t) for t in instance.chains)
    used = plan.data * sum(stage.devices for stage in plan.stages)
    microbatches = -(-instance.num_microbatches // plan.data)
    return facts(
        {
            "time per batch": f"{_time(plan.time_per_batch)} in the file's unit",
            "tensor width": f"{plan.tensor} (of {widths})",
            "replicas": f"{plan.data} of {plural(microbatches, 'microbatch')}",
            "stages": str(len(plan.stages)),
            "devices": f"{number(used)} of {number(instance.num_devices)}",
            "solved in": format_duration(solution.solve_seconds),
        }
    )


def _stages_table(solution: NestSolution) -> Table:
    instance, plan = solution.instance, solution.plan
    numbers = ("#", "Devices", "Load", "Memory", "Link in")
    table = new_table("#", "Nodes", *numbers[1:], "Recompute", numbers=numbers)
    for k, stage in enumerate(plan.stages if plan else (), start=1):
        level = stage.incoming_level
        add_row(
            table,
            str(k),
            _span(instance, stage),
            str(stage.devices),
            _time(stage.load),
            size_of_limit(stage.memory_bytes, instance.memory_bytes),
            "-" if level is None else f"level {level}",
            "yes" if stage.recomputes else "no",
        )
    return table


def _scores_table(solution: NestSolution, scored: Sequence[ScoredBaseline]) -> Table:
    optimum = _optimum(solution)
    numbers = (
        *("tp", "pp", "dp"),
        *("As scored", "Ratio", "True order", "Ratio", "Best cuts"),
    )
    table = new_table("Baseline", *numbers, numbers=numbers)
    if solution.plan is not None:
        plan = solution.plan
        sizes = (str(plan.tensor), str(len(plan.stages)), str(plan.data))
        best = (_time(optimum, 8), _ratio(optimum, optimum))
        add_row(table, "(best plan)", *sizes, *best, *best, best[1])
    for scored_plan in scored:
        baseline = scored_plan.baseline
        cells = [str(baseline.tensor), str(baseline.pipeline), str(baseline.data)]
        for score in (scored_plan.as_scored, scored_plan.true_order):
            time = score.time_per_batch
            cells += [_time(time, 8), _ratio(time, optimum)]
        cells.append(_ratio(scored_plan.best_cuts.time_per_batch, optimum))
        add_row(table, baseline.name, *cells)
    return table


def _missing(scored: Sequence[ScoredBaseline]) -> list[str]:
    """Return a line for each price that a baseline does not have."""
    lines = []
    for score in scored:
        ways = {
            "as scored": score.as_scored.reason,
            "in true order": score.true_order.reason,
            "with the best cuts": score.best_cuts.reason,
        }
        for reason in dict.fromkeys(filter(None, ways.values())):
            named = " and ".join(way for way, why in ways.items() if why == reason)
            lines.append(f"{score.baseline.name} has no price {named}: {reason}.")
    return lines


def _score_json(score: Score, optimum: float) -> dict[str, Any]:
    return {
        "time_per_batch": score.time_per_batch,
        "ratio": score.time_per_batch / optimum if optimum > 0 else math.nan,
        "reason": score.reason or None,
    }


def _optimum(solution: NestSolution) -> float:
    """Return the best time per batch, NaN if there is no plan."""
    return solution.plan.time_per_batch if solution.plan else math.nan


def _span(instance: NestInstance, stage: ArtifactStageCost) -> str:
    """Write the nodes of a stage by the ids of the file: ``-1 .. 5``."""
    first, last = instance.ids[stage.first], instance.ids[stage.end - 1]
    return str(first) if first == last else f"{first} .. {last}"


def _time(value: float, digits: int = 10) -> str:
    """Write a time that has no known unit."""
    return f"{value:,.{digits}g}" if math.isfinite(value) else "-"


def _ratio(value: float, optimum: float) -> str:
    ratio = value / optimum if optimum > 0 else math.nan
    return f"{ratio:.4f}" if math.isfinite(ratio) else "-"
