"""What all planners do with the plans that they propose: price, check, say why not."""

import math
from collections.abc import Iterable

from planner.objective import PricedPlan
from planner.plan import Plan
from planner.pricing import plan_degrees, price_plan
from planner.search_spec import SearchSpec
from planner.shortfall import memory_sentence
from planner.space import configuration_of
from planner.stage_memory import stage_memory
from planner.workload import Workload
from topologies import Network
from topologies.units import format_size

NO_SIZES = "Devices: the search space has no sizes for this cluster and batch."
"""Why a planner finds nothing where the space is empty."""

ROUNDING = 1.0 + 1e-9
"""Memory and times that differ by less are equal."""


def stage_peaks(workload: Workload, plan: Plan) -> list[float]:
    """Return what a device of each stage needs, by the common account [byte]."""
    table = workload.table(plan_degrees(plan))
    return [
        sum(stage_memory(workload, table, plan, index).values())
        for index in range(len(plan.stages))
    ]


def fits(workload: Workload, spec: SearchSpec, plan: Plan) -> bool:
    """Tell whether a plan fits in the memory that plans may use."""
    memory = workload.tensor_memory(spec.memory_reserve)
    return max(stage_peaks(workload, plan)) <= memory * ROUNDING


def priced_best_first(
    network: Network, workload: Workload, plans: Iterable[Plan]
) -> tuple[PricedPlan, ...]:
    """Price plans by the common evaluator; ties go to the smaller configuration."""
    priced = [price_plan(network, workload, plan) for plan in plans]
    return tuple(
        sorted(priced, key=lambda one: (one.iteration_time, configuration_of(one.plan)))
    )


def too_little_memory(
    network: Network, workload: Workload, spec: SearchSpec, plan: Plan
) -> str:
    """Say by how much a plan does not fit, and what fills its fullest stage."""
    priced = price_plan(network, workload, plan)
    needed = max(stage.peak_memory for stage in priced.stages)
    memory = workload.tensor_memory(spec.memory_reserve)
    return (
        f"it needs {format_size(needed)} per device and {workload.accelerator.name} "
        f"has {format_size(max(memory, 0.0))} to give. {memory_sentence(priced)}"
    )


def believed_time(plans: tuple[PricedPlan, ...]) -> float:
    """Return what the planned objective is for the first plan, NaN without one [s]."""
    return plans[0].closed_form_time if plans else math.nan
