"""What one stage of a plan costs: times by cause, and the tail.

This evaluator shares rates and layer tables with the search but none of its interval
classes, folded chains and kernels: tests hold one against the other.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import InLayerTraffic, LayerTable
from estimators.memory import optimizer_step_bytes
from estimators.training import ParameterBytes
from planner.class_table import recompute_shares
from planner.objective import PART_NAMES, ChunkTimes, StageCost
from planner.plan import Plan, Stage
from planner.schedules import SCHEDULES
from planner.stage_memory import (
    Share,
    expert_group_size,
    stage_memory,
    stage_share,
)
from planner.stage_rates import PlacementRates, Sharding
from planner.workload import Workload
from topologies import InputError

__all__ = ["PART_OF_GROUP", "Share", "sharding_of", "stage_cost", "stage_share"]

FloatArray = NDArray[np.float64]

PART_OF_GROUP = {
    "tensor": "tensor collectives",
    "context": "context ring",
    "expert": "expert all-to-all",
}


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
    zero = _zero_times(rates, sharding, each, stage, share, index)
    parts["zero gathers"] = 2 * zero.gather + zero.reduce
    whole = [
        _chunk_time(table, rates, stage, chunk, index, parts) for chunk in stage.chunks
    ]
    # What ZeRO sends goes by layers: each chunk has its part of it.
    layers = [(last - first + 1) / share.num_layers for first, last in stage.chunks]
    arrange = _split if SCHEDULES[plan.schedule].splits_backward else _joined
    chunk_times = tuple(
        arrange(passes, zero, part) for passes, part in zip(whole, layers, strict=True)
    )
    boundary = float(table.boundary_bytes[1:-1].max(initial=0.0))
    return StageCost(
        forward_time=sum(times.forward for times in chunk_times),
        backward_time=sum(times.backward for times in chunk_times),
        weight_gradient_time=sum(times.weight_gradient for times in chunk_times),
        chunk_times=chunk_times,
        parts=parts,
        boundary_bytes=boundary if len(plan.stages) > 1 else 0.0,
        transfer_time=0.0,
        memory=stage_memory(workload, table, plan, index),
        **_tail(workload, table, rates, plan, index),
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
) -> "_Passes":
    """Return the passes of a chunk without ZeRO, and add to the causes [s]."""
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
    weight = float(table.weight_gradient_time[span].sum())
    return _Passes(forward, backward + again, weight)


class _Passes(NamedTuple):
    """Times of one microbatch through one chunk without ZeRO [s]."""

    forward: float

    backward: float

    weight: float
    """The part of `backward` that weight gradients are. They are computed only: the
    collectives of a backward pass, that which gathers a product's input again
    included, belong to the gradients of activations."""


class _ZeroTimes(NamedTuple):
    """What ZeRO sends in every microbatch [s]."""

    gather: float
    """Weights, in each forward and each backward pass."""

    reduce: float
    """Gradients, once they are there."""


def _joined(passes: _Passes, zero: _ZeroTimes, part: float) -> ChunkTimes:
    """Return the times with weight gradients as part of the backward pass."""
    forward = passes.forward + part * zero.gather
    return ChunkTimes(forward, passes.backward + part * (zero.gather + zero.reduce))


def _split(passes: _Passes, zero: _ZeroTimes, part: float) -> ChunkTimes:
    """Return the times with weight gradients by themselves."""
    return ChunkTimes(
        passes.forward + part * zero.gather,
        passes.backward - passes.weight + part * zero.gather,
        passes.weight + part * zero.reduce,
    )


def _zero_times(
    rates: PlacementRates,
    sharding: Sharding,
    each: ParameterBytes,
    stage: Stage,
    share: Share,
    index: int,
) -> _ZeroTimes:
    """Return what ZeRO-2 and 3 send in each forward and backward pass [s]."""

    def both(width: int) -> float:
        rate = sharding.inside["all_gather"][index]
        time = _line(rate, share.num_layers, share.dense * width)
        if share.expert > 0:
            experts = rates.expert_data["all_gather"][index]
            time += _line(experts, share.num_layers, share.expert * width)
        return time

    reduce = both(each.reduce) if stage.zero_stage >= 2 else 0.0
    gather = both(each.gather) if stage.zero_stage == 3 else 0.0
    return _ZeroTimes(gather, reduce)


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
        gather = _line(group.inside["all_gather"][index], 1, share.dense * each.gather)
        if share.expert > 0:
            rate = rates.expert_data["all_gather"][index]
            gather += _line(rate, 1, share.expert * each.gather)
    tied = 0.0
    if len(plan.stages) > 1 and index in {0, len(plan.stages) - 1}:
        tied = _line(rates.tied, 1, table.tied_parameters * each.reduce)
    apart = group.group_size if stage.zero_stage in {1, 2} else 0
    held = share.dense / (group.group_size if sharded else 1)
    held += share.expert / (expert_group_size(plan) if sharded else 1)
    return {
        "reduce_time": reduce,
        "tied_time": tied if table.tied_parameters > 0 else 0.0,
        "optimizer_time": held * optimizer_step_bytes(each) / workload.memory_rate
        + workload.iteration_time
        + workload.shard_time * apart,
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
    dense, expert = share.dense * each.reduce, share.expert * each.reduce
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
