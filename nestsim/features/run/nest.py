"""Answers to instances of the published NEST artifact: a document, and JSON.

Times are in the unit of the instance file, which nobody here knows: the published
files mix milliseconds of compute with seconds of communication.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from nestsim.document.parts import (
    DataTable,
    Document,
    FactList,
    Headline,
    Section,
    Sentences,
)
from nestsim.document.wording import number, plural, size_of_limit
from planner.rivals.nest_artifact.costs import ArtifactStageCost, PricedSplit
from planner.rivals.nest_artifact.instance import NestInstance
from planner.rivals.nest_artifact.solver import WHY, NestSolution, ScoredBaseline
from topologies.units import format_duration


def solution_json(solution: NestSolution) -> dict[str, object]:
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
) -> dict[str, object]:
    """Return the answer with the stored baselines beside it, for programs."""
    optimum = _optimum(solution)
    return solution_json(solution) | {
        "baselines": [
            {
                "name": score.baseline.name,
                "tensor": score.baseline.tensor,
                "pipeline": score.baseline.pipeline,
                "data": score.baseline.data,
                "as_scored": _score_json(score.as_scored, optimum),
                "true_order": _score_json(score.true_order, optimum),
                "best_cuts": _score_json(score.best_cuts, optimum),
            }
            for score in scored
        ],
        "explanation": WHY,
    }


def solution_document(
    solution: NestSolution, name: str, scored: Sequence[ScoredBaseline] | None = None
) -> Document:
    """Return what became of an instance.

    Parameters
    ----------
    solution
        The best plan, or what is missing for it.
    name
        Name of the instance's file.
    scored
        The baselines that the file stores, each priced three ways; None to say more of
        the best plan instead.
    """
    plan, instance = solution.plan, solution.instance
    no_baselines = scored is not None and not scored
    return Document(
        subject=f"{name}: {plural(instance.num_nodes, 'node')}, "
        f"{plural(instance.num_devices, 'device')}",
        doing="plan",
        headline=Headline(
            verdict="NO PLAN FITS"
            if plan is None
            else f"{_time(plan.time_per_batch)} per batch",
            tone="bad" if plan is None else "plain",
            sentences=(
                *([f"{solution.reason}."] if plan is None else []),
                *(["The file stores no baselines."] if no_baselines else []),
            ),
        ),
        sections=tuple(_sections(solution, scored)),
    )


def _sections(
    solution: NestSolution, scored: Sequence[ScoredBaseline] | None
) -> Iterator[Section]:
    if scored:
        title = "Stored baselines: time per batch, and its ratio to the best plan's"
        blocks = (
            _scores_table(solution, scored),
            Sentences((WHY, *_missing(scored))),
        )
        yield Section("baselines", title, blocks)
    if scored is None and solution.plan is not None:
        facts = _plan_facts(solution, solution.plan)
        yield Section("plan", "Plan", (facts,))
        yield Section(
            "stages",
            "Stages, first to last",
            (_stages_table(solution.instance, solution.plan),),
        )


def _plan_facts(solution: NestSolution, plan: PricedSplit) -> FactList:
    instance = solution.instance
    widths = ", ".join(str(t) for t in instance.chains)
    used = plan.data * sum(stage.devices for stage in plan.stages)
    microbatches = -(-instance.num_microbatches // plan.data)
    return FactList(
        {
            "time per batch": f"{_time(plan.time_per_batch)} in the file's unit",
            "tensor width": f"{plan.tensor} (of {widths})",
            "replicas": f"{plan.data} of {plural(microbatches, 'microbatch')}",
            "stages": str(len(plan.stages)),
            "devices": f"{number(used)} of {number(instance.num_devices)}",
            "solved in": format_duration(solution.solve_seconds),
        }
    )


def _stages_table(instance: NestInstance, plan: PricedSplit) -> DataTable:
    columns: dict[str, Callable[[tuple[int, ArtifactStageCost]], str]] = {
        "#": lambda row: str(row[0]),
        "Nodes": lambda row: _span(instance, row[1]),
        "Devices": lambda row: str(row[1].devices),
        "Load": lambda row: _time(row[1].load),
        "Memory": lambda row: size_of_limit(row[1].memory_bytes, instance.memory_bytes),
        "Link in": lambda row: _level(row[1].incoming_level),
        "Recompute": lambda row: "yes" if row[1].recomputes else "no",
    }
    return DataTable.of(
        "Stages, first to last",
        enumerate(plan.stages, start=1),
        columns,
        numbers=("#", "Devices", "Load", "Memory", "Link in"),
    )


def _level(level: int | None) -> str:
    return "-" if level is None else f"level {level}"


def _scores_table(
    solution: NestSolution, scored: Sequence[ScoredBaseline]
) -> DataTable:
    optimum = _optimum(solution)
    names = ("tp", "pp", "dp", "As scored", "Ratio", "True order", "Ratio", "Best cuts")
    rows: list[tuple[str, ...]] = []
    if solution.plan is not None:
        plan = solution.plan
        sizes = (str(plan.tensor), str(len(plan.stages)), str(plan.data))
        best = (_time(optimum, 8), _ratio(optimum, optimum))
        rows.append(("(best plan)", *sizes, *best, *best, best[1]))
    for scored_plan in scored:
        baseline = scored_plan.baseline
        cells = [str(baseline.tensor), str(baseline.pipeline), str(baseline.data)]
        for score in (scored_plan.as_scored, scored_plan.true_order):
            time = score.time_per_batch
            cells += [_time(time, 8), _ratio(time, optimum)]
        cells.append(_ratio(scored_plan.best_cuts.time_per_batch, optimum))
        rows.append((baseline.name, *cells))
    return DataTable(
        caption="Stored baselines",
        columns=("Baseline", *names),
        rows=tuple(rows),
        numbers=names,
    )


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


def _score_json(score: PricedSplit, optimum: float) -> dict[str, object]:
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
