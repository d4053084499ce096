"""Advice as JSON and as a table, in SI units."""

from typing import Any

from nestsim.document.wording import plan_label
from nestsim.features.advise.job import Advice, AdviceResult


def advice_json(result: AdviceResult) -> dict[str, Any]:
    """Return everything that was found, for programs."""
    today = result.today.candidates[0]
    best = None
    if result.best is not None and result.best.chosen is not None:
        chosen = result.best.candidates[result.best.chosen]
        best = {
            "plan": plan_label(chosen.priced.plan),
            "iteration_time_s": chosen.simulated.iteration_time,
            "saves": result.gain(chosen.simulated.iteration_time),
            "lower_bound_s": result.best.lower_bound,
            "peak_memory_bytes": chosen.simulated.peak_memory,
        }
    return {
        "scenario": result.scenario.name,
        "today": {
            "plan": plan_label(today.priced.plan),
            "verdict": today.verdict.kind,
            "iteration_time_s": result.time,
            "tokens_per_second": today.simulated.tokens_per_second,
            "mfu": today.simulated.mfu,
            "peak_memory_bytes": today.simulated.peak_memory,
        },
        "error_of_a_gain": result.error,
        "advice": [_advice_json(result, advice) for advice in result.advice],
        "tried": dict(result.tried),
        "if_everything_may_change": best,
    }


def advice_rows(result: AdviceResult) -> list[dict[str, Any]]:
    """Return one row for each advice, in SI units."""
    return [
        {
            "advice": number,
            "settings": ", ".join(
                f"{path} = {value}"
                for change in advice.changes
                for path, value in change.values().items()
            ),
            "iteration_time_s": advice.time,
            "saves": result.gain(advice.time),
            "is_noise": result.is_noise(advice),
            "memory_bytes": advice.peak,
            "needs_converted_checkpoint": advice.needs_conversion,
        }
        for number, advice in enumerate(result.advice, start=1)
    ]


def _advice_json(result: AdviceResult, advice: Advice) -> dict[str, Any]:
    return {
        "changes": [
            {
                "name": change.lever.name,
                "settings": change.values(),
                "today": change.today,
            }
            for change in advice.changes
        ],
        "plan": plan_label(advice.priced.plan),
        "iteration_time_s": advice.time,
        "saves": result.gain(advice.time),
        "is_noise": result.is_noise(advice),
        "memory_bytes": advice.peak,
        "restart": advice.restart,
        "diff": advice.diff,
    }
