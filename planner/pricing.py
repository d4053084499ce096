"""Price any plan term by term, from its devices alone.

The iteration time of a schedule that the search chooses from is the search's objective,
a closed form over the loads of the stages. That of any other schedule is the exact
timeline of its instructions, which no closed form is needed for.

Links are those of the network that is given, slowed and removed ones included. Devices
are all taken to be equally fast; what slow ones cost, only a replay shows.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import LayerTable
from estimators.layer_work import Degrees
from planner.kernels.timeline import timeline
from planner.loads import iteration_weights, stage_transfers
from planner.objective import PART_NAMES, PricedPlan, StageCost
from planner.plan import Plan
from planner.rates import placement_rates
from planner.schedules import SCHEDULES
from planner.stage_cost import stage_cost
from planner.stage_rates import AlgorithmChoice, PlacementRates
from planner.workload import Workload
from topologies import InputError, Network

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LOAD_SCHEDULES = frozenset({"1f1b", "interleaved-1f1b"})
"""Schedules whose price is a closed form: those that the search chooses from."""


def plan_degrees(plan: Plan) -> Degrees:
    """Return what the plan's layer tables depend on."""
    sizes = plan.parallel.sizes()
    return Degrees(
        tp=sizes.tp,
        cp=sizes.cp,
        ep=sizes.ep,
        micro_batch_size=plan.micro_batch_size,
        sequence_parallel=plan.parallel.sequence_parallel,
    )


def device_grid(plan: Plan) -> IntArray:
    """Return the plan's device numbers, shape ``(pp, dp, ep, cp, tp)``.

    ``dp`` counts the replicas of each expert here.
    """
    sizes = plan.parallel.sizes()
    devices = np.array([stage.devices for stage in plan.stages], dtype=np.int64)
    return devices.reshape(
        len(plan.stages), sizes.dp // sizes.ep, sizes.ep, sizes.cp, sizes.tp
    )


def rates_of(network: Network, workload: Workload, plan: Plan) -> PlacementRates:
    """Price the plan's placement under the plan's algorithms."""
    table = workload.table(plan_degrees(plan))
    tensor, gradient = placement_choices(table, workload, len(plan.stages))
    return placement_rates(
        network,
        device_grid(plan),
        tensor=tensor._replace(name=plan.tensor_algorithm),
        gradient=gradient._replace(name=plan.gradient_algorithm),
    )


def placement_choices(
    table: LayerTable, workload: Workload, num_stages: int
) -> tuple[AlgorithmChoice, AlgorithmChoice]:
    """Return how tensor and data collectives choose their algorithm.

    By the mean tensor collective and the mean stage's gradients: the choice must not
    depend on the split that the search is looking for.
    """
    tensor = [item for item in table.traffic if item.group == "tensor"]
    num_bytes = sum(float(item.forward_bytes.sum()) for item in tensor)
    count = sum(float(item.forward_count.sum()) for item in tensor)
    gradients = float(table.parameters.sum()) * workload.parameter_bytes.reduce
    return (
        AlgorithmChoice("auto", num_bytes / count if count else 0.0),
        AlgorithmChoice("auto", gradients / num_stages),
    )


def price_plan(network: Network, workload: Workload, plan: Plan) -> PricedPlan:
    """Return what the planner's model says of a plan.

    Raises
    ------
    InputError
        If the plan's stages do not cover the model's chain.
    """
    table = workload.table(plan_degrees(plan))
    _check_cover(plan, table.num_layers)
    rates = rates_of(network, workload, plan)
    costs = [
        stage_cost(workload, table, rates, plan, index)
        for index in range(len(plan.stages))
    ]
    v, m = plan.virtual_pipeline_model_parallel_size, plan.num_microbatches
    weights = iteration_weights(m, v)
    work = np.array([cost.work_time for cost in costs])
    transfers = stage_transfers(rates, costs[0].boundary_bytes, v)
    loads = work + transfers
    times = weights.sum * loads.sum(axis=1) + weights.max * loads.max(axis=1)
    pace = int(np.argmax(times))
    stages = tuple(
        replace(cost, transfer_time=float(transfer))
        for cost, transfer in zip(costs, transfers[pace], strict=True)
    )
    tails = np.array([stage.tail_time for stage in stages])
    directions = np.stack([rates.activation, rates.gradient], axis=-1)
    ends = _stage_ends(plan, stages, directions)
    timeline_time = float((ends + tails).max())
    if plan.schedule in LOAD_SCHEDULES:
        iteration_time = float(times.max() + tails.max())
        slowest = int(np.argmax(loads[pace]))
        others = float(loads[pace].sum() - loads[pace, slowest])
        waits = {
            "transfers": m * stages[slowest].transfer_time,
            "bubble": weights.sum * others,
            "tail": float(tails.max()),
        }
    else:
        iteration_time = timeline_time
        slowest = int(np.argmax(work))
        alone = _stage_ends(plan, stages, 0.0 * directions[:, :1])
        waits = _waits(m * work[slowest], alone.max(), ends.max(), timeline_time)
    return PricedPlan(
        plan=plan,
        stages=stages,
        iteration_time=iteration_time,
        terms={
            **{name: m * stages[slowest].parts[name] for name in PART_NAMES},
            **waits,
        },
        timeline_pipeline_time=float(ends.max()),
        timeline_time=timeline_time,
    )


def _waits(
    busy: float, alone: float, pipeline: float, whole: float
) -> dict[str, float]:
    """Split what the slowest stage does not work [s].

    From its work over all microbatches to the pipeline without transfers, with them,
    and to the end of the step.
    """
    return {
        "transfers": float(pipeline - alone),
        "bubble": float(alone - busy),
        "tail": float(whole - pipeline),
    }


def _check_cover(plan: Plan, num_layers: int) -> None:
    """Refuse chunks that do not join up to the whole chain, virtual stage by stage."""
    v = plan.virtual_pipeline_model_parallel_size
    expected = 0
    counts = {len(stage.chunks) for stage in plan.stages}
    order = [
        stage.chunks[c] for c in range(v) for stage in plan.stages if counts == {v}
    ]
    for first, last in order:
        if first != expected or last < first:
            break
        expected = last + 1
    else:
        if order and expected == num_layers:
            return
    raise InputError(
        "stages do not cover the chain of layers",
        where="stages",
        got=[[list(chunk) for chunk in stage.chunks] for stage in plan.stages],
        expected=f"closed intervals that join up from 0 to {num_layers - 1}, "
        f"{v} for each stage",
    )


def _stage_ends(
    plan: Plan, stages: tuple[StageCost, ...], directions: FloatArray
) -> FloatArray:
    """Return when each stage ends its last pass without contention [s].

    Parameters
    ----------
    plan, stages
        Schedule and durations.
    directions
        Latency [s] and inverse bandwidth [s/byte] of activations and of gradients over
        the boundary after each stage, by replica, shape ``(p, d, 2, 2)``.
    """
    p, v = len(stages), plan.virtual_pipeline_model_parallel_size
    program = SCHEDULES[plan.schedule].program(p, plan.num_microbatches, v)
    order = [(c, s) for c in range(v) for s in range(p)]
    durations = np.array([stages[s].chunk_times[c] for c, s in order]).T.copy()
    ends = np.zeros(p)
    # Replicas with the same transfers have the same timeline.
    for boundary in np.unique(np.swapaxes(directions, 0, 1), axis=0):
        # Shape (p, 2, directions), once for each round but the last wrap-around.
        laid = np.tile(boundary, (v, 1, 1))[:-1]
        wire = laid[:, 1] * stages[0].boundary_bytes
        status, _, _, found = timeline(
            *program,
            plan.num_microbatches,
            durations,
            np.ascontiguousarray(wire[:, 0]),
            np.ascontiguousarray(wire[:, 1]),
            np.ascontiguousarray(laid[:, 0, 0]),
            np.ascontiguousarray(laid[:, 0, 1]),
        )
        assert status == 0, "a schedule's instructions wait for each other"
        ends = np.maximum(ends, found)
    return ends
