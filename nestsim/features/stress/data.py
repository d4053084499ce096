"""A stress test as plain data: JSON and CSV."""

import math
from typing import TYPE_CHECKING, Any

from nestsim.document.folder import PAGE
from nestsim.features.run.cost import cost_sentences
from nestsim.features.stress.conditions import AS_BUILT
from nestsim.features.stress.crossed import (
    hottest_bars,
    hottest_title,
    matrix_names,
    matrix_title,
    regret_matrix,
    share_to_keep,
    throughput_map,
)
from nestsim.features.stress.words import (
    answer_in_words,
    change_in_words,
    headline,
    plan_names,
    problems_in_words,
    robust_in_words,
    shown_conditions,
)
from nestsim.features.topology.document import degraded_json
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from nestsim.features.stress.evaluator import ConditionResult
    from nestsim.features.stress.results import (
        InverseAnswer,
        RobustChoice,
        StressResult,
    )
    from nestsim.scenario.settings import ConditionSpec

FILES = (
    *("stress.json", "stress.csv", "matrix.csv"),
    *(f"{name}.png" for name in ("throughput", "map", "matrix", "pareto", "links")),
    PAGE,
)
"""What is written, beside the stores of finished points."""


def stress_json(result: "StressResult") -> dict[str, Any]:
    """Return everything under stable keys, in SI units."""
    names = plan_names(result)
    return {
        "headline": headline(result),
        "scenario": result.scenario_name,
        "planners": list(result.planners),
        "objective": result.objective,
        "built_oversubscription": dict(result.built),
        "oversubscription": {k: list(v) for k, v in result.axes.items()},
        "conditions": [
            _condition_json(one, result.network.num_devices)
            for one in result.conditions
        ],
        "plans": {
            key: {"name": names[key], **plan.to_json()}
            for key, plan in result.plans.items()
        },
        "made": {
            planner: {name: result.made.get((planner, name)) for name in result.names}
            for planner in result.planners
        },
        "cells": {
            name: {key: _cell_json(result, cell) for key, cell in cells.items()}
            for name, cells in result.cells.items()
        },
        "rows": stress_rows(result),
        "shown": list(shown_conditions(result)),
        "lines": {level: list(result.line(level)) for level in result.axes},
        "map": _map_json(result),
        "crossed": _crossed_json(result),
        "busiest_links": _links_json(result),
        "changes": [
            {
                "planner": one.planner,
                "level": one.level,
                **one.change.to_json(),
                "in_words": change_in_words(one),
            }
            for one in result.changes
        ],
        "inverse": _inverse_json(result),
        "robust": _robust_json(result),
        "why_not": [
            {"planner": planner, "condition": name, "reason": reason}
            for (planner, name), reason in result.why_not.items()
        ],
        **_costs_json(result),
        "failed": dict(result.failed),
        "stopped": [list(one) for one in sorted(result.stopped)],
        "problems": problems_in_words(result),
        "reproducible": result.is_reproducible,
    }


def _map_json(result: "StressResult") -> dict[str, Any] | None:
    """Return throughput over two levels' ratios; None if fewer vary."""
    if len(result.axes) < 2:
        return None
    rows, columns = list(result.axes)[-2:]
    return {
        "rows": rows,
        "columns": columns,
        "tokens_per_s": {
            planner: _numbers(throughput_map(result, planner))
            for planner in result.planners
        },
    }


def _crossed_json(result: "StressResult") -> dict[str, Any]:
    """Return what plans cost where they were not made for: rows made for, run at."""
    return {
        "in_words": matrix_title(result),
        "conditions": list(matrix_names(result)),
        "regret": {
            planner: _numbers(regret_matrix(result, planner).regret)
            for planner in result.planners
        },
    }


def _links_json(result: "StressResult") -> dict[str, Any]:
    """Return the links that the first planner's healthy plan keeps busiest."""
    bars = hottest_bars(result)
    return {
        "in_words": hottest_title(bars),
        "links": [one._asdict() for one in bars],
    }


def _numbers(values: FloatArray) -> list[list[float | None]]:
    """Return rows with None for what is no number."""
    return [
        [None if math.isnan(value) else value for value in row]
        for row in values.tolist()
    ]


def _costs_json(result: "StressResult") -> dict[str, Any]:
    """Return what each condition's cluster costs; nothing without prices."""
    if not result.costs:
        return {}
    front = result.front()
    costs = {
        name: {
            "cost_per_s": cost.rate,
            "saved_share": result.saved(name),
            "capital": cost.capital,
            "power_w": cost.power,
            "network_cost_per_s": cost.network_rate,
            "network_capital": cost.network_capital,
            "network_power_w": cost.network_power,
        }
        for name, cost in result.costs.items()
    }
    return {
        "cost": {
            "currency": result.currency or None,
            "conditions": costs,
            "pareto": [
                {"planner": planner, "condition": name}
                for planner in result.planners
                for name in result.names
                if (planner, name) in front
            ],
            "assumptions": list(cost_sentences(result.costs[AS_BUILT])),
        }
    }


def _condition_json(condition: "ConditionSpec", num_devices: int) -> dict[str, Any]:
    return {
        "name": condition.name,
        "oversubscription": dict(condition.oversubscription),
        "degraded": degraded_json(condition.degradation, num_devices),
        "background": [
            {"links": one.links, "rate_bytes_per_s": one.rate, "share": one.share}
            for one in condition.background
        ],
        "ecmp_seed": condition.ecmp_seed,
    }


def _cell_json(result: "StressResult", cell: "ConditionResult") -> dict[str, Any]:
    return {
        "planned_iteration_time_s": cell.planned,
        "simulated_iteration_time_s": cell.simulated,
        "simulated_tokens_per_s": result.throughput(cell),
        "busiest_stage": cell.stage,
        "hottest_links": [one._asdict() for one in cell.hottest],
        "causes_s": cell.causes,
    }


def _inverse_json(result: "StressResult") -> dict[str, Any] | None:
    if result.asked is None:
        return None
    to_keep = share_to_keep(result)
    return {
        **result.asked._asdict(),
        "to_keep": None
        if to_keep is None
        else {"tokens_per_s": to_keep[0], "in_words": to_keep[1]},
        "answers": [
            {
                "plan": one.policy,
                "kept": one.kept,
                "lost": one.lost,
                "kept_bytes_per_s": one.bandwidths[0],
                "lost_bytes_per_s": one.bandwidths[1],
                "is_monotone": one.is_monotone,
                "tried": [list(pair) for pair in one.tried],
                "in_words": answer_in_words(result, one),
                **_saved_json(one),
            }
            for one in result.answers
        ],
    }


def _saved_json(answer: "InverseAnswer") -> dict[str, Any]:
    """Return what the network costs at 1:1 and where the share is still kept."""
    if answer.costs is None:
        return {}
    before, after = answer.costs
    return {
        "full_cost_per_s": before.rate,
        "kept_cost_per_s": after.rate,
        "full_network_cost_per_s": before.network_rate,
        "kept_network_cost_per_s": after.network_rate,
    }


def _robust_json(result: "StressResult") -> dict[str, Any] | None:
    choices = result.robust()
    if choices is None:
        return None

    words = robust_in_words(result, plan_names(result))

    def plain(choice: "RobustChoice", in_words: str) -> dict[str, Any]:
        return {
            "plan": list(result.plans)[choice.plan],
            "worst_regret": choice.worst,
            "worst_condition": result.run_names[choice.worst_condition],
            "mean_regret": choice.mean,
            "in_words": in_words,
        }

    names = ("least_worst", "least_mean")
    return {
        name: plain(choice, said)
        for name, choice, said in zip(names, choices, words, strict=True)
    }


def stress_rows(result: "StressResult") -> list[dict[str, Any]]:
    """Return one row for each planner and condition, in SI units."""
    return [
        _row(result, planner, name)
        for planner in result.planners
        for name in result.names
    ]


def _row(result: "StressResult", planner: str, name: str) -> dict[str, Any]:
    kept = result.cell(planner, AS_BUILT, name)
    fresh = result.cell(planner, name, name)
    condition = result.conditions[result.names.index(name)]
    ratios = {**result.built, **condition.oversubscription}
    row: dict[str, Any] = {"planner": planner, "condition": name}
    row |= {f"oversubscription_{level}": ratio for level, ratio in ratios.items()}
    for whose, cell, made_for in (
        ("kept", kept, AS_BUILT),
        ("remade", fresh, name),
    ):
        link = cell.hottest[0] if cell is not None and cell.hottest else None
        row |= {
            f"{whose}_plan": result.made.get((planner, made_for)),
            f"{whose}_planned_iteration_time_s": cell and cell.planned,
            f"{whose}_simulated_iteration_time_s": cell and cell.simulated,
            f"{whose}_simulated_tokens_per_s": cell and result.throughput(cell),
            f"{whose}_limiting_term": cell and result.term(planner, made_for, name),
            f"{whose}_busiest_stage": None if cell is None else cell.stage,
            f"{whose}_hottest_link": link and link.name,
            f"{whose}_hottest_link_level": link and link.level,
            f"{whose}_hottest_link_share": link and link.share,
        }
    row["planned_regret"] = result.regret(planner, name, planned=True)
    row["simulated_regret"] = result.regret(planner, name)
    row |= _price_cells(result, planner, name)
    row["reason"] = result.why_not.get((planner, name)) or result.failed.get(name)
    return row


def _price_cells(result: "StressResult", planner: str, name: str) -> dict[str, Any]:
    """Return the cells of a row on what a plan costs; none without prices."""
    if name not in result.costs:
        return {}
    made = {
        "kept": result.cost_of(name, result.cell(planner, AS_BUILT, name)),
        "remade": result.cost_of(name, result.cell(planner, name, name)),
    }
    cost = result.costs[name]
    return {
        "currency": result.currency or None,
        "cost_per_s": cost.rate,
        "saved_share": result.saved(name),
        "network_cost_per_s": cost.network_rate,
        "power_w": cost.power,
        **{
            f"{whose}_tokens_per_currency": run and run.tokens_per_money
            for whose, run in made.items()
        },
        "pareto": (planner, name) in result.front(),
    }


def matrix_rows(result: "StressResult") -> list[dict[str, Any]]:
    """Return one row for each planner, condition planned for and condition run at."""
    rows = []
    for planner in result.planners:
        for planned_for in result.names:
            for run_at in result.run_names:
                cell = result.cell(planner, planned_for, run_at)
                if cell is not None:
                    rows.append(
                        {
                            "planner": planner,
                            "planned_for": planned_for,
                            "run_at": run_at,
                            "plan": result.made[planner, planned_for],
                            "planned_iteration_time_s": cell.planned,
                            "simulated_iteration_time_s": cell.simulated,
                            "simulated_tokens_per_s": result.throughput(cell),
                        }
                    )
    return rows
