"""Price any plan, stage by stage and term by term, from its devices alone.

This evaluator shares rates and layer tables with the search but none of its interval
classes and kernels: tests hold one against the other.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.layer_work import Degrees
from estimators.memory import optimizer_step_bytes, static_bytes
from planner.kernels.timeline import timeline
from planner.objective import PricedPlan, StageCost
from planner.plan import Plan, Stage
from planner.rates import AlgorithmChoice, PlacementRates, placement_rates
from planner.schedules import SCHEDULES
from planner.workload import Workload
from topologies import InputError, Network

FloatArray = NDArray[np.float64]

PART_NAMES = ("compute", "tensor collectives", "recompute", "zero gathers")


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


def device_array(plan: Plan) -> NDArray[np.int64]:
    """Return the plan's device numbers, shape ``(p, d, t)``."""
    return np.array([stage.devices for stage in plan.stages], dtype=np.int64)


def rates_of(network: Network, workload: Workload, plan: Plan) -> PlacementRates:
    """Price the plan's placement under the plan's algorithms."""
    table = workload.table(plan_degrees(plan))
    tensor, gradient = typical_sizes(table, workload, len(plan.stages))
    return placement_rates(
        network,
        device_array(plan),
        tensor=AlgorithmChoice(plan.tensor_algorithm, tensor),
        gradient=AlgorithmChoice(plan.gradient_algorithm, gradient),
    )


def typical_sizes(
    table: LayerTable, workload: Workload, num_stages: int
) -> tuple[float, float]:
    """Return the mean tensor collective's size and the mean stage's gradients [byte].

    They choose the algorithm of the collectives, so they must not depend on the split
    that the search is looking for.
    """
    num_bytes = sum(float(item.forward_bytes.sum()) for item in table.traffic)
    count = sum(float(item.forward_count.sum()) for item in table.traffic)
    gradients = float(table.parameters.sum()) * workload.parameter_bytes.gradients
    return (num_bytes / count if count else 0.0), gradients / num_stages


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
    stages = tuple(
        _stage_cost(workload, table, rates, plan, index)
        for index in range(len(plan.stages))
    )
    loads = _loads(stages)
    slowest = int(np.argmax(loads))
    tails = np.array([stage.tail_time for stage in stages])
    m = plan.num_microbatches
    terms = {name: m * stages[slowest].parts[name] for name in PART_NAMES}
    transfers = stages[slowest].transfer_time
    transfers += stages[slowest - 1].transfer_time if slowest else 0.0
    terms["transfers"] = m * transfers
    terms["bubble"] = float(loads.sum() - loads[slowest])
    terms["tail"] = float(tails.max())
    ends = _stage_ends(plan, stages, rates)
    return PricedPlan(
        plan=plan,
        stages=stages,
        iteration_time=float(loads.sum() + (m - 1) * loads.max() + tails.max()),
        terms=terms,
        timeline_pipeline_time=float(ends.max()),
        timeline_time=float((ends + tails).max()),
    )


def _check_cover(plan: Plan, num_layers: int) -> None:
    expected = 0
    for stage in plan.stages:
        if stage.layers[0] != expected or stage.layers[1] < stage.layers[0]:
            break
        expected = stage.layers[1] + 1
    else:
        if expected == num_layers:
            return
    raise InputError(
        "stages do not cover the chain of layers",
        where="stages",
        got=[list(stage.layers) for stage in plan.stages],
        expected=f"closed intervals that join up from 0 to {num_layers - 1}",
    )


def _loads(stages: Sequence[StageCost]) -> FloatArray:
    """Return ``t_s``: a stage's work and the transfers at both of its boundaries."""
    transfers = np.array([stage.transfer_time for stage in stages])
    work = np.array([stage.forward_time + stage.backward_time for stage in stages])
    return np.asarray(work + transfers + np.concatenate(([0.0], transfers[:-1])))


def _line(rate: FloatArray, count: float, num_bytes: float) -> float:
    """Time of ``count`` collectives of together ``num_bytes`` [s]."""
    return float(count * rate[0] + num_bytes * rate[1])


def _stage_cost(
    workload: Workload,
    table: LayerTable,
    rates: PlacementRates,
    plan: Plan,
    index: int,
) -> StageCost:
    stage = plan.stages[index]
    first, last = stage.layers
    span = slice(first, last + 1)
    boundary = transfer = 0.0
    if index + 1 < len(plan.stages):
        boundary = float(table.boundary_bytes[last + 1])
        transfer = _line(rates.boundary[index], 1, boundary)
    forward, backward, parts = _pass_times(workload, table, rates, stage, index)
    parameters = float(table.parameters[span].sum())
    if first == 0 and last == table.num_layers - 1:
        parameters -= table.tied_parameters
    return StageCost(
        forward_time=forward,
        backward_time=backward,
        parts=parts,
        boundary_bytes=boundary,
        transfer_time=transfer,
        memory=_memory(workload, table, plan, index, parameters),
        **_tail(workload, table, rates, plan, index, parameters),
    )


def _pass_times(
    workload: Workload,
    table: LayerTable,
    rates: PlacementRates,
    stage: Stage,
    index: int,
) -> tuple[float, float, Mapping[str, float]]:
    """Return forward time, backward time and their sum by cause [s]."""
    span = slice(stage.layers[0], stage.layers[1] + 1)
    each = workload.parameter_bytes
    every = np.ones(table.num_layers)
    again = np.where(table.recompute_time > 0, 1.0, 0.0)

    def collectives(
        item: InLayerTraffic, which: str, weight: FloatArray = every
    ) -> float:
        count = weight[span] @ getattr(item, f"{which}_count")[span]
        size = weight[span] @ getattr(item, f"{which}_bytes")[span]
        return _line(rates.tensor[item.operation][index], float(count), float(size))

    tensor_forward = sum(collectives(item, "forward") for item in table.traffic)
    tensor_backward = sum(collectives(item, "backward") for item in table.traffic)
    recompute = 0.0
    if stage.recompute == "full":
        recompute = float(table.recompute_time[span].sum())
        recompute += sum(collectives(item, "forward", again) for item in table.traffic)
    parameters = float(table.parameters[span].sum())
    if stage.layers == (0, table.num_layers - 1):
        parameters -= table.tied_parameters
    num_layers = float(stage.layers[1] - stage.layers[0] + 1)
    gather = reduce = 0.0
    if stage.zero_stage >= 2:
        rate = rates.data["reduce_scatter"][index]
        reduce = _line(rate, num_layers, parameters * each.gradients)
    if stage.zero_stage >= 3:
        rate = rates.data["all_gather"][index]
        gather = _line(rate, num_layers, parameters * each.weights)
    forward = float(table.forward_time[span].sum())
    backward = float(table.backward_time[span].sum())
    parts = {
        "compute": forward + backward,
        "tensor collectives": tensor_forward + tensor_backward,
        "recompute": recompute,
        "zero gathers": 2.0 * gather + reduce,
    }
    return (
        forward + tensor_forward + gather,
        backward + tensor_backward + recompute + gather + reduce,
        parts,
    )


def _tail(
    workload: Workload,
    table: LayerTable,
    rates: PlacementRates,
    plan: Plan,
    index: int,
    parameters: float,
) -> dict[str, float]:
    """Return what follows the stage's last backward pass [s]."""
    each = workload.parameter_bytes
    zero = plan.stages[index].zero_stage
    replicas = len(plan.stages[index].devices)
    reduce = gather = tied = 0.0
    if zero <= 1:
        operation = "all_reduce" if zero == 0 else "reduce_scatter"
        rate = rates.data[operation][index]
        reduce = _line(rate, 1, parameters * each.gradients)
    if zero in {1, 2}:
        gather = _line(rates.data["all_gather"][index], 1, parameters * each.weights)
    if len(plan.stages) > 1 and index in {0, len(plan.stages) - 1}:
        tied = _line(rates.tied, 1, table.tied_parameters * each.gradients)
        tied = tied if table.tied_parameters > 0 else 0.0
    shard = parameters / (replicas if zero >= 1 else 1)
    return {
        "reduce_time": reduce,
        "tied_time": tied,
        "optimizer_time": shard * optimizer_step_bytes(each) / workload.memory_rate,
        "gather_time": gather,
    }


def _memory(
    workload: Workload, table: LayerTable, plan: Plan, index: int, parameters: float
) -> Mapping[str, float]:
    """Return the stage's peak by what it is for [byte]."""
    stage = plan.stages[index]
    span = slice(stage.layers[0], stage.layers[1] + 1)
    static = static_bytes(
        np.float64(parameters),  # type: ignore[arg-type]  # scalars work alike
        np.float64(table.parameters[span].max()),  # type: ignore[arg-type]
        each=workload.parameter_bytes,
        zero_stage=stage.zero_stage,
        zero_group=len(stage.devices),
    )
    saved, working = activation_bytes(table, stage)
    in_flight = SCHEDULES[plan.schedule].in_flight(
        index, len(plan.stages), plan.num_microbatches
    )
    return {
        "weights": float(static.weights),
        "gradients": float(static.gradients),
        "optimizer": float(static.optimizer),
        "buffers": float(static.buffers),
        "activations": in_flight * saved,
        "working": working,
    }


def activation_bytes(table: LayerTable, stage: Stage) -> tuple[float, float]:
    """Return what a microbatch keeps, and what is alive inside one pass [byte]."""
    span = slice(stage.layers[0], stage.layers[1] + 1)
    if stage.recompute == "none":
        saved = float(table.saved_bytes[span].sum())
        return saved, float(table.working_bytes[span].max())
    again = np.where(table.recompute_time > 0, table.saved_bytes, 0.0)[span]
    saved = float(table.checkpoint_bytes[span].sum())
    return saved, float((table.working_bytes[span] + again).max())


def _stage_ends(
    plan: Plan, stages: Sequence[StageCost], rates: PlacementRates
) -> FloatArray:
    """Return when each stage ends its last backward pass without contention [s]."""
    program = SCHEDULES[plan.schedule].program(len(stages), plan.num_microbatches)
    num_bytes = np.array([stage.boundary_bytes for stage in stages[:-1]])
    status, _, _, ends = timeline(
        *program,
        plan.num_microbatches,
        np.array([stage.forward_time for stage in stages]),
        np.array([stage.backward_time for stage in stages]),
        num_bytes * rates.activation[:, 1],
        num_bytes * rates.gradient[:, 1],
        np.ascontiguousarray(rates.activation[:, 0]),
        np.ascontiguousarray(rates.gradient[:, 0]),
    )
    assert status == 0, "a schedule's instructions wait for each other"
    return np.asarray(ends, dtype=np.float64)
