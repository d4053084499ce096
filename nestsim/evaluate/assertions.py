"""What a scenario asserts, held against what was found."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from nestsim.evaluate.results import (
    Candidate,
    PlannedCandidate,
    PlanResult,
    ReplayedResult,
)
from nestsim.scenario.assertions import Assertion
from planner.step.plan import Plan

_HOLDS: Mapping[str, Callable[[Any, Any], bool]] = MappingProxyType(
    {
        "<=": operator.le,
        ">=": operator.ge,
        "<": operator.lt,
        ">": operator.gt,
        "==": operator.eq,
    }
)
"""Operator -> whether a value stands in this relation to the asserted one."""

NO_PLAN = "no plan"
"""Value found where nothing fits."""

NO_REPLAY = "no replay"
"""Value found where no replay was asked for."""

_OF_REPLAY = ("verdict", "gap")
"""Quantities that only a replay has."""

FAILED = 1
"""Exit status when an assertion of the scenario does not hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One assertion, checked."""

    assertion: Assertion
    """Assertion of the scenario."""

    value: float | str
    """Value found, in base units; `NO_PLAN` where nothing fits, `NO_REPLAY` where no
    replay was asked for."""

    holds: bool | None
    """Whether it is as asserted; None for what only a replay could tell."""


def check_assertions(
    assertions: Sequence[Assertion], result: PlanResult | ReplayedResult
) -> tuple[Checked, ...]:
    """Return each assertion with what was found, in their order."""
    values = found_values(result)
    return tuple(
        _checked(assertion, values.get(assertion.quantity, NO_PLAN))
        for assertion in assertions
    )


def _checked(assertion: Assertion, value: float | str) -> Checked:
    if value == NO_REPLAY:
        return Checked(assertion=assertion, value=value, holds=None)
    compare = _HOLDS[assertion.operator]
    holds = value != NO_PLAN and compare(value, assertion.value)
    return Checked(assertion=assertion, value=value, holds=holds)


def found_values(
    result: PlanResult | ReplayedResult,
) -> dict[str, float | str]:
    """Return every quantity that may be asserted, of the plan that is reported.

    Numbers are those of the replay where there is one, else those of the plan. Of
    no plan there is but the verdict: nothing fits. Of a search that does not
    prove it there is not even that.
    """
    if not result.candidates:
        if result.kind == "plan":
            return {"verdict": NO_REPLAY}
        return {"verdict": result.no_plan if result.covers_space else NO_PLAN}
    best = result.candidates[result.chosen or 0]
    if isinstance(best, PlannedCandidate):
        found = dict.fromkeys(_OF_REPLAY, NO_REPLAY)
        peaks = [stage.peak_memory for stage in best.priced.stages]
        return {**found, **_numbers(best, _fraction(result, best.priced.plan, peaks))}
    peaks = [timeline.peak for timeline in best.replay.memory]
    gap = best.simulated.iteration_time / best.planned.iteration_time - 1.0
    return {
        "verdict": best.verdict.kind,
        "gap": gap,
        **_numbers(best, _fraction(result, best.priced.plan, peaks)),
    }


def _fraction(
    result: PlanResult | ReplayedResult, plan: Plan, peaks: Sequence[float]
) -> float:
    """Return the largest part of their memory that devices of a stage need."""
    return max(
        peak / result.memory_of(stage.devices)
        for peak, stage in zip(peaks, plan.stages, strict=True)
    )


def _numbers(
    candidate: Candidate | PlannedCandidate, memory_fraction: float
) -> dict[str, float | str]:
    reached = (
        candidate.simulated if isinstance(candidate, Candidate) else candidate.planned
    )
    plan = candidate.priced.plan
    return {
        "iteration_time": reached.iteration_time,
        "throughput": reached.tokens_per_second,
        "mfu": reached.mfu,
        "peak_memory": reached.peak_memory,
        "memory_fraction": memory_fraction,
        "virtual_pipeline_model_parallel_size": (
            plan.virtual_pipeline_model_parallel_size
        ),
        "micro_batch_size": plan.micro_batch_size,
        "schedule": plan.schedule,
        **plan.settings_json()["parallel"],
    }


def exit_status(status: int, checked: Sequence[Checked]) -> int:
    """Return the exit status that assertions make of a command's own.

    Parameters
    ----------
    status
        0 done and confirmed, or 1.
    checked
        What was asserted.

    Returns
    -------
    int
        `FAILED` if one does not hold; 0 if the verdict, or that there is none, is what
        was asserted; else ``status``.
    """
    if any(one.holds is False for one in checked):
        return FAILED
    named = any(one.assertion.name == "verdict" and one.holds for one in checked)
    return 0 if named else status
