"""What one stage of a plan costs: times by cause, passes, and the end of the step.

Causes are charged in full. What passes hide of them, where the framework sends it
beside compute, is missing from the times of the passes (`planner.step.exposure`).

This evaluator shares rates and layer tables with the search but none of its interval
classes, interleaved chains and kernels: tests hold one against the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from estimators.platform import optimizer_step_bytes
from estimators.training import ParameterBytes
from planner.cost.crowding import CrowdedTraffic, SentTimes, crowding_time
from planner.cost.objective import (
    HOST,
    HOST_TRANSFERS,
    PART_NAMES,
    ChunkTimes,
    HostWaits,
    StageCost,
)
from planner.cost.passes import (
    Passes,
    PassPrices,
    group_rate,
    host_times,
    neighbours_of,
    sharding_of,
)
from planner.cost.rates import PlacementRates, ShardingRates
from planner.step import instructions, recompute
from planner.step.execution import Execution, Workload
from planner.step.exposure import (
    PassProgress,
    PassTimes,
    TimedBucket,
    bucket_parameters,
    timed_buckets,
)
from planner.step.ledger import (
    ACROSS,
    AFTER_OPTIMIZER,
    BACKWARD,
    BEFORE_OPTIMIZER,
    FORWARD,
    GRADIENT,
    GRADIENTS,
    INSIDE,
    NEARBY,
    OPTIMIZER,
    PASSES,
    REPLICAS,
    WEIGHTS,
    Sent,
    ZeroStage,
    ledger_of,
    wire_bytes,
)
from planner.step.memory import (
    ParameterShare,
    expert_group_size,
    memory_of_stage,
    stage_share,
)
from planner.step.offload import (
    StepTransfers,
    is_beside_passes,
    step_transfers,
)
from planner.step.plan import Plan, Stage
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray

PART_OF_GROUP = {
    "tensor": "tensor collectives",
    "context": "context ring",
    "expert": "expert all-to-all",
    "expert tensor": "tensor collectives",
}


class StagePrice(NamedTuple):
    """A stage, and what its step's ends are made of."""

    cost: StageCost
    """Costs of the stage as reports have them."""

    passes: Passes
    """Passes of each chunk; none where nothing is hidden, and passes last as
    charged."""

    gathers: tuple[TimedBucket, ...]
    """Parameters that the first forward pass of each chunk waits for, in the order in
    which they are sent; none without overlap."""

    reduces: tuple[TimedBucket, ...]
    """Gradients that are reduced behind the last passes, in the order in which they are
    sent; none without overlap."""

    reduce_time: float
    """Gradient collective after the last pass, without overlap, and what is exchanged
    with the host before the optimizer step [s]."""

    gather_time: float
    """Parameter gather after the optimizer step, without overlap, and what comes from
    the host before it [s]."""


def stage_price(
    workload: Workload,
    rates: PlacementRates,
    plan: Plan,
    index: int,
    kinds: tuple[int, ...] = (),
    *,
    whole: bool = True,
) -> StagePrice:
    """Price one stage; transfers are left at 0 for the caller to fill in.

    Parameters
    ----------
    workload, rates
        What is trained, and what sending costs.
    plan, index
        Whose stage it is.
    kinds
        Kinds of the devices that it works on, as of `Workload.table`.
    whole
        Without it only what a replay takes from the price: nothing is hidden, there are
        no passes, and nothing is known of memory.
    """
    table, stage = workload.table(plan.degrees, kinds), plan.stages[index]
    parts = dict.fromkeys(PART_NAMES, 0.0)
    traffic = _ParameterTraffic.of(workload, table, rates, plan, index)
    zero = traffic.in_passes()
    parts["zero gathers"] = zero.forward + zero.backward + zero.gradient
    lead = workload.messages_time(len(plan.stages))
    chunks = [
        _chunk_time(table, rates, stage, chunk, index, parts).behind(lead)
        for chunk in stage.chunks
    ]
    waits = _host_waits(workload, table, plan, stage, parts)
    compute = parts["compute"] + parts["recompute"]
    if is_beside_passes(stage):
        parts[HOST_TRANSFERS] = _exposed_time(workload, table, rates, plan, index)
    charged_time = sum(parts.values())
    # What ZeRO sends goes by layers: each chunk has its part of it.
    layers = [
        (last - first + 1) / traffic.share.num_layers for first, last in stage.chunks
    ]
    chunk_times = _charged_times(plan, chunks, zero, layers)
    execution = workload.execution
    passes: Passes = ()
    gathers: tuple[TimedBucket, ...] = ()
    reduces: tuple[TimedBucket, ...] = ()
    by_layer = passes_differ(workload, plan)
    buckets = execution.overlap_grad_reduce or execution.overlap_param_gather
    if whole and (by_layer or buckets):
        prices = PassPrices(workload, rates, plan, index, kinds)
        passes = prices.passes()
        if by_layer:
            chunk_times = tuple(map(_chunk_times, passes))
            busy = sum(
                times.worked
                for by_kind in passes
                for kind, times in by_kind.items()
                if kind not in instructions.USUAL_KIND
            )
            plain = sum(_chunk_compute(table, stage, chunk) for chunk in stage.chunks)
            plain += 2.0 * lead * len(stage.chunks)
            parts["compute"] += busy - plain
        else:
            passes = tuple(map(_stretch_passes, passes, chunk_times))
        gathers, reduces = _buckets(prices, passes, traffic)
    boundary = float(table.boundary_bytes[1:-1].max(initial=0.0))
    reduce_time, gather_time = traffic.ends(execution)
    sent, end = _step_end(workload, plan, traffic, kinds)
    before, after = sent.times(rates.host)
    cost = StageCost(
        forward_time=sum(times.forward for times in chunk_times),
        backward_time=sum(times.backward for times in chunk_times),
        weight_gradient_time=sum(times.weight_gradient for times in chunk_times),
        chunk_times=chunk_times,
        parts=parts,
        host_waits=waits,
        first_gathers=zero.first - zero.forward,
        charged_time=charged_time,
        boundary_bytes=boundary if len(plan.stages) > 1 else 0.0,
        transfer_time=0.0,
        crowding_time=crowding_time(workload, plan, traffic.crowded(), compute),
        memory={},
        host_memory={},
        tied_time=_tied_time(workload, table, rates, plan, index),
        host_time=before + after,
        step_transfers=sent,
        **end,
    )
    if whole:
        cost = with_memory(cost, workload, plan, index, kinds)
    return StagePrice(
        cost, passes, gathers, reduces, reduce_time + before, gather_time + after
    )


def with_memory(
    cost: StageCost,
    workload: Workload,
    plan: Plan,
    index: int,
    kinds: tuple[int, ...] = (),
) -> StageCost:
    """Return the cost of a stage with what it holds."""
    table = workload.table(plan.degrees, kinds)
    held = memory_of_stage(workload, table, plan, index)
    return replace(cost, memory=held.device, host_memory=held.host)


def _buckets(
    prices: PassPrices, passes: Passes, traffic: "_ParameterTraffic"
) -> tuple[tuple[TimedBucket, ...], tuple[TimedBucket, ...]]:
    """Return what is gathered and what is reduced in buckets behind passes."""
    execution, plan = prices.workload.execution, prices.plan
    gathers: tuple[TimedBucket, ...] = ()
    reduces: tuple[TimedBucket, ...] = ()
    if execution.overlap_param_gather:
        order = prices.progress(passes, instructions.FORWARD)
        gathers = traffic.buckets(order, plan, AFTER_OPTIMIZER)
    if execution.overlap_grad_reduce:
        kind = instructions.WEIGHT if prices.splits else instructions.BACKWARD
        # The last chunk is the first one through the backward pass.
        order = [*reversed(prices.progress(passes, kind))]
        reduces = traffic.buckets(order, plan, BEFORE_OPTIMIZER)
    return gathers, reduces


def passes_differ(workload: Workload, plan: Plan) -> bool:
    """Return whether passes last other than what they send and compute adds up to.

    Then they are written layer by layer; else what ZeRO sends in them is that of a
    mean layer.
    """
    sent = {
        collective.tensor
        for stage in plan.stages
        for collective in ledger_of(stage).sent_at(*PASSES)
    }
    execution = workload.execution
    return (
        passes_overlap(workload, plan.schedule, plan.parallel.sizes().ep)
        or (execution.overlap_param_gather and WEIGHTS in sent)
        or (execution.overlap_grad_reduce and GRADIENTS in sent)
        or any(map(is_beside_passes, plan.stages))
    )


def passes_overlap(workload: Workload, schedule: str, ep: int) -> bool:
    """Return whether passes hide what layers send, with or without ZeRO."""
    execution = workload.execution
    return (
        execution.tp_comm_overlap
        or (workload.overlaps_shared_experts and ep > 1)
        or SCHEDULES[schedule].pairs_passes
    )


def _host_waits(
    workload: Workload,
    table: LayerTable,
    plan: Plan,
    stage: Stage,
    parts: dict[str, float],
) -> HostWaits:
    """Return what devices wait for their hosts, and take it out of other causes [s]."""
    once, lead = workload.iteration_time, workload.messages_time(len(plan.stages))
    forward = backward = repeated = 0.0
    for first, last in stage.chunks:
        span = slice(first, last + 1)
        forward += float(table.waited("forward")[span].sum())
        backward += float(table.waited("backward")[span].sum())
        repeated += float(recompute.repeated_wait(table, stage)[span].sum())
    parts["compute"] -= forward + backward
    parts["recompute"] -= repeated
    messages = lead * len(stage.chunks)
    waits = HostWaits(forward + messages, backward + repeated + messages, once)
    parts[HOST] = waits.forward + waits.backward
    return waits


def _chunk_times(passes: Mapping[int, PassTimes]) -> ChunkTimes:
    """Return how long the passes of a chunk last [s]."""
    times = {kind: pass_times.whole for kind, pass_times in passes.items()}
    return ChunkTimes(
        times[instructions.FORWARD],
        times[instructions.BACKWARD],
        times.get(instructions.WEIGHT, 0.0),
        times.get(instructions.PAIRED_FORWARD, 0.0),
        times.get(instructions.PAIRED_BACKWARD, 0.0),
        times.get(instructions.FIRST_FORWARD, 0.0),
    )


def _stretch_passes(
    passes: Mapping[int, PassTimes], times: ChunkTimes
) -> Mapping[int, PassTimes]:
    """Return passes that last as long as they are charged for."""
    return {
        kind: pass_times._replace(whole=times[kind])
        for kind, pass_times in passes.items()
    }


def _chunk_compute(table: LayerTable, stage: Stage, chunk: tuple[int, int]) -> float:
    """Return the compute of a microbatch in a chunk [s]."""
    span = slice(chunk[0], chunk[1] + 1)
    time = float(table.forward_time[span].sum() + table.backward_time[span].sum())
    if stage.recompute != "none":
        time += float(recompute.repeated_time(table, stage)[span].sum())
    return time


def _exposed_time(
    workload: Workload, table: LayerTable, rates: PlacementRates, plan: Plan, index: int
) -> float:
    """Return by how much exchanges with the host outlast the layers' compute [s].

    Layer by layer and pass by pass, collectives left aside.
    """
    stage = plan.stages[index]
    host = host_times(workload, table, rates, plan, index)
    again = table.backward_time + recompute.repeated_time(table, stage)
    forward = np.maximum(host[instructions.FORWARD] - table.forward_time, 0.0)
    backward = np.maximum(host[instructions.BACKWARD] - again, 0.0)
    both = forward + backward
    return sum(float(both[first : last + 1].sum()) for first, last in stage.chunks)


def _line(rate: FloatArray, count: float, num_bytes: float) -> float:
    """Time of ``count`` collectives of together ``num_bytes`` [s]."""
    return float(count * rate[0] + num_bytes * rate[1])


def _chunk_time(
    table: LayerTable,
    rates: PlacementRates,
    stage: Stage,
    chunk: tuple[int, int],
    index: int,
    parts: dict[str, float],
) -> "_Passes":
    """Return the passes of a chunk without ZeRO, and add to the causes [s].

    Nor with messages; what devices wait for their hosts is still in the other causes.
    """
    span = slice(chunk[0], chunk[1] + 1)
    forward = float(table.forward_time[span].sum())
    backward = float(table.backward_time[span].sum())
    parts["compute"] += forward + backward
    again = 0.0
    if stage.recompute != "none":
        again = float(recompute.repeated_time(table, stage)[span].sum())
    for item in table.traffic:
        rate = group_rate(rates, item, index)
        there = _line(
            rate, item.forward_count[span].sum(), item.forward_bytes[span].sum()
        )
        back = _line(
            rate, item.backward_count[span].sum(), item.backward_bytes[span].sum()
        )
        forward, backward = forward + there, backward + back
        parts[PART_OF_GROUP[item.group]] += there + back
        if stage.recompute != "none":
            count, num_bytes = recompute.repeated_traffic(item, table, stage)
            again += _line(rate, count[span].sum(), num_bytes[span].sum())
    parts["recompute"] += again
    weight = float(table.weight_gradient_time[span].sum())
    return _Passes(forward, backward + again, weight)


class _Passes(NamedTuple):
    """Times of one microbatch through one chunk without ZeRO [s]."""

    forward: float
    """Forward pass of a microbatch [s]."""

    backward: float
    """Backward pass of a microbatch, with weight gradients [s]."""

    weight: float
    """Part of the backward pass that weight gradients are [s]. They are computed only:
    the collectives of a backward pass, that which gathers a product's input again
    included, belong to the gradients of activations."""

    def behind(self, lead: float) -> "_Passes":
        """Return passes that begin with what the host takes for messages [s]."""
        return _Passes(self.forward + lead, self.backward + lead, self.weight)


class _ZeroTimes(NamedTuple):
    """What parameters have passes send in every microbatch [s]."""

    forward: float
    """Collectives of ZeRO in a forward pass [s]."""

    backward: float
    """Collectives of ZeRO in a backward pass [s]."""

    gradient: float
    """Collectives of ZeRO once gradients are there [s]."""

    first: float
    """Collectives of ZeRO in the forward pass of the first microbatch [s]."""


def _charged_times(
    plan: Plan, whole: Sequence[_Passes], zero: _ZeroTimes, parts: Sequence[float]
) -> tuple[ChunkTimes, ...]:
    """Return the passes of each chunk, which sends a part of what the stage does."""
    splits = SCHEDULES[plan.schedule].splits_backward
    arrange = _split_times if splits else _joined_times
    times = (
        arrange(passes, zero, part) for passes, part in zip(whole, parts, strict=True)
    )
    if not plan.has_second_copies:
        return tuple(times)
    return tuple(
        usual._replace(first_forward=passes.forward + part * zero.first)
        for usual, passes, part in zip(times, whole, parts, strict=True)
    )


def _joined_times(passes: _Passes, zero: _ZeroTimes, part: float) -> ChunkTimes:
    """Return the times with weight gradients as part of the backward pass."""
    forward = passes.forward + part * zero.forward
    backward = passes.backward + part * (zero.backward + zero.gradient)
    return ChunkTimes(forward, backward)


def _split_times(passes: _Passes, zero: _ZeroTimes, part: float) -> ChunkTimes:
    """Return the times with weight gradients by themselves."""
    return ChunkTimes(
        passes.forward + part * zero.forward,
        passes.backward - passes.weight + part * zero.backward,
        passes.weight + part * zero.gradient,
    )


@dataclass(frozen=True, slots=True)
class _ParameterTraffic:
    """What the parameters of one stage have it send, at the rates of a placement."""

    rates: PlacementRates
    """Rates of the placement's collectives."""
    sharding: ShardingRates
    """Rates of the stage's sharding group."""
    neighbours: ShardingRates
    """Rates of the ranks that share its second copy of weights."""
    ledger: ZeroStage
    """What the stage of ZeRO sends and shards."""
    each: ParameterBytes
    """Bytes of one parameter by use."""
    share: ParameterShare
    """Parameters that a device of the stage holds."""
    index: int
    """Number of the stage."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        table: LayerTable,
        rates: PlacementRates,
        plan: Plan,
        index: int,
    ) -> "_ParameterTraffic":
        """Return what a stage of a plan sends."""
        stage = plan.stages[index]
        return cls(
            rates,
            sharding_of(rates, stage),
            neighbours_of(rates, stage),
            ledger_of(stage),
            workload.parameter_bytes,
            stage_share(table, stage, plan),
            index,
        )

    def in_passes(self) -> _ZeroTimes:
        """Return what is sent layer by layer in each kind of pass [s]."""
        layers = self.share.num_layers
        return _ZeroTimes(
            self.time(FORWARD, layers),
            self.time(BACKWARD, layers),
            self.time(GRADIENT, layers),
            self.time(self.ledger.first_moment, layers),
        )

    def time(self, moment: str, parts: int = 1) -> float:
        """Return the time of what is sent at a moment, in so many parts [s]."""
        sent = self.ledger.sent_at(moment)
        return sum((self._time(collective, parts) for collective in sent), start=0.0)

    def crowded(self) -> CrowdedTraffic:
        """Return what crowding depends on: collectives layer by layer, or once."""

        def times(collective: Sent) -> SentTimes:
            once = collective.moment in {BEFORE_OPTIMIZER, AFTER_OPTIMIZER}
            return self.times(collective, 1 if once else self.share.num_layers)

        size = self.rates.node_size
        return CrowdedTraffic(self.index, size, self.share.num_layers, times)

    def ends(self, execution: Execution) -> tuple[float, float]:
        """Return what is not in buckets before and after the optimizer step [s]."""
        share = self.share
        return (
            0.0
            if execution.overlap_grad_reduce
            else self.once(BEFORE_OPTIMIZER, share.dense, share.expert),
            0.0
            if execution.overlap_param_gather
            else self.once(AFTER_OPTIMIZER, share.dense, share.expert),
        )

    def once(self, moment: str, dense: float, expert: float) -> float:
        """Return the time of what some parameters have it send at a moment [s].

        Nothing is sent of none.
        """
        return sum(
            (
                self._once(collective, dense, expert)
                for collective in self.ledger.sent_at(moment)
            ),
            start=0.0,
        )

    def _once(self, collective: Sent, dense: float, expert: float) -> float:
        width = wire_bytes(collective, self.each)
        shards = self.sharding.group_size if collective.is_divided else 1
        time = 0.0
        if dense != 0.0:
            time += _line(self._dense_rate(collective), 1, dense * width / shards)
        if expert != 0.0 and collective.group != ACROSS:
            rate = self.rates.expert_data[collective.operation][self.index]
            time += _line(rate, 1, expert * width)
        return time

    def buckets(
        self, chunks: Sequence[PassProgress], plan: Plan, moment: str
    ) -> tuple[TimedBucket, ...]:
        """Return what chunks have it send in buckets at a moment, in their order."""
        size = bucket_parameters(plan.parallel.sizes().dp * plan.parallel.sizes().cp)
        once = partial(self.once, moment)
        return timed_buckets(chunks, size, once, first=moment == AFTER_OPTIMIZER)

    def _time(self, collective: Sent, parts: int) -> float:
        return sum(self.times(collective, parts))

    def times(self, collective: Sent, parts: int) -> SentTimes:
        """Return what one collective takes in so many parts."""
        width = wire_bytes(collective, self.each)
        shards = self.sharding.group_size if collective.is_divided else 1
        rate = self._dense_rate(collective)
        dense, expert = _line(rate, parts, self.share.dense * width / shards), 0.0
        if self.share.expert > 0 and collective.group != ACROSS:
            rate = self.rates.expert_data[collective.operation][self.index]
            expert = _line(rate, parts, self.share.expert * width)
        return SentTimes(dense, expert)

    def _dense_rate(self, collective: Sent) -> FloatArray:
        rates = {
            REPLICAS: self.rates.data,
            INSIDE: self.sharding.inside,
            NEARBY: self.neighbours.inside,
            ACROSS: self.sharding.across,
        }
        return np.asarray(rates[collective.group][collective.operation][self.index])


def _step_end(
    workload: Workload, plan: Plan, traffic: _ParameterTraffic, kinds: tuple[int, ...]
) -> tuple[StepTransfers, dict[str, float]]:
    """Return what parameters exchange with the host after the last backward pass.

    And what else they add there, by the fields of `StageCost` [s].
    """
    parameter_bytes, share, group = (
        traffic.each,
        traffic.share,
        traffic.sharding.group_size,
    )
    sharded = OPTIMIZER in traffic.ledger.sharded
    apart = group * len(traffic.ledger.sent_at(AFTER_OPTIMIZER))
    held = share.dense / (group if sharded else 1)
    held += share.expert / (expert_group_size(plan) if sharded else 1)
    offload, host = plan.stages[traffic.index].offload, traffic.rates.host
    sent = step_transfers(
        offload, held, parameter_bytes, cpu_adam=workload.execution.cpu_adam
    )
    on_host = sent.on_host * host.adam_time if sent.on_host else 0.0
    times = {
        "reduce_time": traffic.time(BEFORE_OPTIMIZER),
        "optimizer_time": (held - sent.on_host)
        * optimizer_step_bytes(parameter_bytes)
        / workload.memory_rate(kinds)
        + (held - sent.on_host) * workload.orthogonalisation_time(kinds)
        + workload.iteration_time
        + workload.shard_time * apart
        + on_host,
        "gather_time": traffic.time(AFTER_OPTIMIZER),
    }
    return sent, times


def _tied_time(
    workload: Workload, table: LayerTable, rates: PlacementRates, plan: Plan, index: int
) -> float:
    """Return what the ends of a chain send for an embedding that they share [s]."""
    ends = {0, len(plan.stages) - 1}
    if index not in ends or table.tied_parameters <= 0 or plan.joins_ends:
        return 0.0
    width = workload.parameter_bytes.reduce
    return _line(rates.tied, 1, table.tied_parameters * width)
