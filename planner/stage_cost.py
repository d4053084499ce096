"""What one stage of a plan costs: times by cause, tail, memory.

This evaluator shares rates and layer tables with the search but none of its interval
classes, folded chains and kernels: tests hold one against the other.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.memory import Sharded, optimizer_step_bytes, static_bytes
from estimators.training import ParameterBytes
from planner.class_table import recompute_shares
from planner.objective import PART_NAMES, StageCost
from planner.plan import Plan, Stage
from planner.rates import PlacementRates, Sharding
from planner.schedules import SCHEDULES
from planner.workload import Workload
from topologies import InputError

FloatArray = NDArray[np.float64]

PART_OF_GROUP = {
    "tensor": "tensor collectives",
    "context": "context ring",
    "expert": "expert all-to-all",
}


class Share(NamedTuple):
    """Parameters of a stage on one device."""

    dense: float
    expert: float
    num_layers: int


class Activations(NamedTuple):
    """Memory of a stage's passes [byte]."""

    saved: tuple[float, ...]
    """Kept by each chunk for each microbatch in flight."""
    forward_working: float
    backward_working: float


def stage_cost(
    workload: Workload,
    table: LayerTable,
    rates: PlacementRates,
    plan: Plan,
    index: int,
) -> StageCost:
    """Price one stage; transfers are left at 0 for the caller to fill in."""
    stage = plan.stages[index]
    share = stage_share(table, stage, plan)
    parts = dict.fromkeys(PART_NAMES, 0.0)
    each = workload.parameter_bytes
    sharding = sharding_of(rates, stage)
    gathered = _zero_times(rates, sharding, each, stage, share, index)
    chunk_times = tuple(
        _chunk_time(table, rates, stage, chunk, index, parts) for chunk in stage.chunks
    )
    # What ZeRO sends goes by layers: each chunk has its part of it.
    parts["zero gathers"] = gathered[0] + gathered[1]
    weights = [(last - first + 1) / share.num_layers for first, last in stage.chunks]
    chunk_times = tuple(
        (forward + weight * gathered[0], backward + weight * gathered[1])
        for (forward, backward), weight in zip(chunk_times, weights, strict=True)
    )
    boundary = float(table.boundary_bytes[1:-1].max(initial=0.0))
    return StageCost(
        forward_time=sum(forward for forward, _ in chunk_times),
        backward_time=sum(backward for _, backward in chunk_times),
        chunk_times=chunk_times,
        parts=parts,
        boundary_bytes=boundary if len(plan.stages) > 1 else 0.0,
        transfer_time=0.0,
        memory=_memory(workload, table, plan, index, share),
        **_tail(workload, table, rates, plan, index),
    )


def stage_share(table: LayerTable, stage: Stage, plan: Plan) -> Share:
    """Return what a stage's device holds, a tied embedding once."""
    held = [slice(first, last + 1) for first, last in stage.chunks]
    expert = sum(float(table.expert_parameters[span].sum()) for span in held)
    total = sum(float(table.parameters[span].sum()) for span in held)
    if len(plan.stages) == 1:
        total -= table.tied_parameters
    return Share(
        dense=total - expert,
        expert=expert,
        num_layers=sum(last - first + 1 for first, last in stage.chunks),
    )


def sharding_of(rates: PlacementRates, stage: Stage) -> Sharding:
    """Return the rates of the stage's sharding group.

    Raises
    ------
    InputError
        If the placement has no such group.
    """
    if stage.zero_stage == 0:
        return rates.shardings[0]
    for option in rates.shardings:
        if option.group_size == stage.sharding_group_size:
            return option
    raise InputError(
        "replicas do not form such groups on this network",
        where="sharding_group_size",
        got=stage.sharding_group_size,
        expected=f"one of {[option.group_size for option in rates.shardings]}",
    )


def _line(rate: FloatArray, count: float, num_bytes: float) -> float:
    """Time of ``count`` collectives of together ``num_bytes`` [s]."""
    return float(count * rate[0] + num_bytes * rate[1])


def _group_rate(rates: PlacementRates, item: InLayerTraffic, index: int) -> FloatArray:
    rate = rates.context if item.group == "context" else rates.expert
    if item.group == "tensor":
        rate = rates.tensor[item.operation]
    return np.asarray(rate[index])


def _chunk_time(
    table: LayerTable,
    rates: PlacementRates,
    stage: Stage,
    chunk: tuple[int, int],
    index: int,
    parts: dict[str, float],
) -> tuple[float, float]:
    """Return forward and backward time of a chunk, and add to the causes [s]."""
    span = slice(chunk[0], chunk[1] + 1)
    forward = float(table.forward_time[span].sum())
    backward = float(table.backward_time[span].sum())
    parts["compute"] += forward + backward
    again = 0.0
    if stage.recompute != "none":
        again = float(table.recompute_time[stage.recompute][span].sum())
    for item in table.traffic:
        rate = _group_rate(rates, item, index)
        there = _line(
            rate, item.forward_count[span].sum(), item.forward_bytes[span].sum()
        )
        back = _line(
            rate, item.backward_count[span].sum(), item.backward_bytes[span].sum()
        )
        forward, backward = forward + there, backward + back
        parts[PART_OF_GROUP[item.group]] += there + back
        if stage.recompute != "none":
            share = recompute_shares(item, table)[stage.recompute][span]
            count = float(share @ item.forward_count[span])
            again += _line(rate, count, float(share @ item.forward_bytes[span]))
    parts["recompute"] += again
    return forward, backward + again


def _zero_times(
    rates: PlacementRates,
    sharding: Sharding,
    each: ParameterBytes,
    stage: Stage,
    share: Share,
    index: int,
) -> tuple[float, float]:
    """Return what ZeRO-2 and 3 send in each forward and backward pass [s]."""

    def both(width: int) -> float:
        rate = sharding.inside["all_gather"][index]
        time = _line(rate, share.num_layers, share.dense * width)
        if share.expert > 0:
            experts = rates.expert_data["all_gather"][index]
            time += _line(experts, share.num_layers, share.expert * width)
        return time

    reduce = both(each.gradients) if stage.zero_stage >= 2 else 0.0
    gather = both(each.weights) if stage.zero_stage == 3 else 0.0
    return gather, gather + reduce


def _tail(
    workload: Workload,
    table: LayerTable,
    rates: PlacementRates,
    plan: Plan,
    index: int,
) -> dict[str, float]:
    """Return what follows the stage's last backward pass [s]."""
    each = workload.parameter_bytes
    stage = plan.stages[index]
    share = stage_share(table, stage, plan)
    group = sharding_of(rates, stage)
    sharded = stage.zero_stage >= 1
    reduce = _reduce_time(rates, group, each, stage, share, index)
    gather = 0.0
    if stage.zero_stage in {1, 2}:
        gather = _line(group.inside["all_gather"][index], 1, share.dense * each.weights)
        if share.expert > 0:
            rate = rates.expert_data["all_gather"][index]
            gather += _line(rate, 1, share.expert * each.weights)
    tied = 0.0
    if len(plan.stages) > 1 and index in {0, len(plan.stages) - 1}:
        tied = _line(rates.tied, 1, table.tied_parameters * each.gradients)
    held = share.dense / (group.group_size if sharded else 1)
    held += share.expert / (expert_group_size(plan) if sharded else 1)
    return {
        "reduce_time": reduce,
        "tied_time": tied if table.tied_parameters > 0 else 0.0,
        "optimizer_time": held * optimizer_step_bytes(each) / workload.memory_rate,
        "gather_time": gather,
    }


def _reduce_time(
    rates: PlacementRates,
    group: Sharding,
    each: ParameterBytes,
    stage: Stage,
    share: Share,
    index: int,
) -> float:
    dense, expert = share.dense * each.gradients, share.expert * each.gradients
    if stage.zero_stage == 0:
        time = _line(rates.data["all_reduce"][index], 1, dense)
        operation = "all_reduce"
    else:
        across = group.across["all_reduce"][index]
        time = _line(across, 1, dense / group.group_size)
        operation = "reduce_scatter"
        if stage.zero_stage == 1:
            time += _line(group.inside["reduce_scatter"][index], 1, dense)
    if share.expert > 0 and stage.zero_stage <= 1:
        time += _line(rates.expert_data[operation][index], 1, expert)
    return time


def expert_group_size(plan: Plan) -> int:
    """Return how many ranks hold the same experts."""
    sizes = plan.parallel.sizes()
    return sizes.dp * sizes.cp // sizes.ep


def _memory(
    workload: Workload, table: LayerTable, plan: Plan, index: int, share: Share
) -> Mapping[str, float]:
    """Return the stage's peak by what it is for [byte]."""
    stage = plan.stages[index]
    held = [slice(first, last + 1) for first, last in stage.chunks]
    sizes = plan.parallel.sizes()
    group = stage.sharding_group_size if stage.zero_stage else sizes.dp * sizes.cp
    static = static_bytes(
        Sharded(share.dense, group),
        Sharded(share.expert, expert_group_size(plan)),
        max(float(table.parameters[span].max(initial=0.0)) for span in held),
        each=workload.parameter_bytes,
        zero_stage=stage.zero_stage,
    )
    activations = stage_activations(table, stage)
    return {
        "weights": float(static.weights),
        "gradients": float(static.gradients),
        "optimizer": float(static.optimizer),
        "buffers": float(static.buffers),
        "activations": _activations_in_flight(table, plan, index, activations),
        "working": activations.backward_working,
    }


def _activations_in_flight(
    table: LayerTable, plan: Plan, index: int, activations: Activations
) -> float:
    """Bound what the passes in flight keep [byte].

    With virtual stages any mixture of chunks may be in flight, so each block counts by
    the largest of its rounds; final norm and head run their backward pass at once.
    """
    v = plan.virtual_pipeline_model_parallel_size
    count = SCHEDULES[plan.schedule].in_flight(
        index, len(plan.stages), plan.num_microbatches, v
    )
    if v == 1:
        return count * activations.saved[0]
    column = table.saved_bytes[plan.stages[index].recompute]
    chunks = [slice(first, last + 1) for first, last in plan.stages[index].chunks]
    ends = [column[chunk] * (1.0 - table.is_block[chunk]) for chunk in chunks]
    blocks = [column[chunk][table.is_block[chunk] > 0] for chunk in chunks]
    # The embedding belongs to the first chunk, final norm and head to the last.
    each = float(np.max(blocks, axis=0).sum())
    leads = float(ends[0].sum()) if chunks[0].start == 0 else 0.0
    trails = float(sum(end.sum() for end in ends)) - leads
    return count * (each + leads) + trails


def stage_activations(table: LayerTable, stage: Stage) -> Activations:
    """Return what passes keep, and what is alive inside one [byte]."""
    held = [slice(first, last + 1) for first, last in stage.chunks]
    if stage.recompute == "stage":
        entering = float(table.boundary_bytes[1:-1].max(initial=0.0))
        working = max(float(table.working_bytes["none"][span].max()) for span in held)
        redone = max(float(table.saved_bytes["none"][span].sum()) for span in held)
        return Activations(
            saved=tuple(0.0 if first == 0 else entering for first, _ in stage.chunks),
            forward_working=working,
            backward_working=redone + working,
        )
    kept, beside = (
        columns[stage.recompute] for columns in (table.saved_bytes, table.working_bytes)
    )
    largest = max(float(beside[span].max()) for span in held)
    return Activations(
        saved=tuple(float(kept[span].sum()) for span in held),
        forward_working=largest,
        backward_working=largest,
    )
