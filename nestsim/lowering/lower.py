"""Turn a priced plan into what the simulator runs: work, messages and memory.

Durations and messages come from the passes and the step's end of each stage; what its
devices hold is lowered in `nestsim.lowering.memory`. Alike stages share their passes.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from nestsim.lowering.collectives import (
    KeptPhases,
    StepCollective,
    StepEnd,
    collective_phases,
    gather_buckets,
    reduce_buckets,
)
from nestsim.lowering.memory import held_memory
from nestsim.lowering.notes import (
    execution_notes,
    left_out_level_notes,
    mixed_device_notes,
)
from nestsim.lowering.passes import Pass, StagePasses
from nestsim.lowering.traffic import Message, StageTraffic
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import (
    ActorTimes,
    Bucket,
    LayerTraffic,
    Phase,
    PipelineWork,
)
from planner.cost.objective import ChunkTimes, PricedPlan, StageCost
from planner.cost.pricing import (
    alike_stages,
    device_grid,
    plan_degrees,
    plan_groups,
    plan_kinds,
    rates_of,
)
from planner.cost.rates import PlacementRates, widest_overlap
from planner.cost.stage import passes_differ
from planner.step.execution import Workload
from planner.step.exposure import PassProgress, bucket_parameters
from planner.step.fleet import ActorKinds
from planner.step.instructions import BACKWARD, FORWARD, USUAL_KIND, WEIGHT
from planner.step.ledger import AFTER_OPTIMIZER, BEFORE_OPTIMIZER
from planner.step.memory import (
    ParameterShare,
    stage_share,
)
from planner.step.offload import is_beside_passes
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES, find_schedule
from topologies import Network
from topologies.arrays import FloatArray, IntArray

Phases = tuple[Phase, ...]
"""Phases of a collective, one after another."""

_DEFAULT = ReplaySettings()


class _StageWork(NamedTuple):
    """One stage of a plan, lowered."""

    traffic: StageTraffic
    """Collectives that the passes send."""
    passes: tuple[dict[int, Pass], ...]
    """Passes of each chunk by kind."""
    reduce_buckets: tuple[Bucket, ...]
    """Gradient buckets behind the backward passes."""
    reduce_phases: Phases
    """Gradient collective before the optimizer step, unless in buckets."""
    gather_phases: Phases
    """Parameter gather after the optimizer step, unless in buckets."""
    gather_buckets: tuple[Bucket, ...]
    """Parameter buckets behind the forward passes."""
    cost: StageCost
    """What the planner charges the stage."""


def lower_plan(  # noqa: PLR0913 - what is lowered, and what is said of it
    network: Network,
    workload: Workload,
    priced: PricedPlan,
    settings: ReplaySettings = _DEFAULT,
    *,
    memory: bool = True,
    notes: bool = True,
    known: KeptPhases | None = None,
) -> PipelineWork:
    """Return one training step of the plan, ready for the replay.

    Parameters
    ----------
    network, workload, priced
        The plan, and what it was made for.
    settings
        Whether what layers send is simulated event by event.
    memory
        Whether to say what each stage holds; without it `PipelineWork.memory` is empty.
    notes
        Whether to say what is not simulated.
    known
        Phases of collectives that are known of other plans on this network.

    Returns
    -------
    PipelineWork

    Stage-to-stage transfers, gradient and parameter collectives of the step's end and
    the tied embedding are traffic. With `ReplaySettings.granularity` ``"stage"``
    compute, in-layer collectives and what ZeRO-2 and 3 send in every microbatch are
    part of the durations, at the planner's prices; with ``"layer"`` durations are
    compute alone, and the rest is traffic, too.

    Raises
    ------
    InputError
        If the step has too many passes to be written down.
    """
    plan, execution = priced.plan, workload.execution
    kinds = plan_kinds(workload, plan)
    num_kinds = max(map(len, kinds.sets))
    find_schedule(plan.schedule).check_length(
        len(plan.stages),
        plan.num_microbatches,
        plan.virtual_pipeline_model_parallel_size,
        where="training.global_batch_size",
        copies=num_kinds,
    )
    grid = device_grid(plan)
    table = workload.table(plan_degrees(plan))
    p, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    devices = grid.reshape(p, grid.shape[1] * grid.shape[2], -1)
    # What goes to hosts and back is always simulated.
    beside = any(map(is_beside_passes, plan.stages))
    by_layer = settings.granularity == "layer" or beside
    is_default = not by_layer and not passes_differ(workload, plan)
    rates = None
    slows = (
        execution.communication_slowdown > 1.0
        or SCHEDULES[plan.schedule].pairs_passes
        or workload.overlaps_shared_experts
    )
    if slows or not (by_layer or is_default):
        rates = priced.rates or rates_of(network, workload, plan)
    known = known or KeptPhases(network)
    stages = _stages(known, workload, priced, rates, kinds, by_layer=by_layer)
    lowered = [of_stage[0] for of_stage in stages]
    first, *others = [
        _actor_times(
            priced,
            [of_stage[number if number < len(of_stage) else 0] for of_stage in stages],
            None if by_layer or is_default else rates,
            by_layer=by_layer,
        )
        for number in range(num_kinds)
    ]
    layers = None
    if by_layer:
        assert first.passes is not None
        layers = LayerTraffic(
            collectives=tuple(stage.traffic.collectives() for stage in lowered),
            passes=first.passes,
        )
    return PipelineWork(
        schedule=plan.schedule,
        num_chunks=v,
        num_microbatches=plan.num_microbatches,
        devices=devices,
        forward_time=first.forward_time,
        backward_time=first.backward_time,
        weight_time=first.weight_time,
        unusual_time=first.unusual_time,
        sent_time=first.sent_time,
        segments=_segments(lowered, _order(plan)),
        layers=layers,
        boundary_bytes=np.full(p * v - 1, priced.stages[0].boundary_bytes),
        blocking_transfers=not execution.overlap_p2p_comm,
        reduce_buckets=tuple(stage.reduce_buckets for stage in lowered),
        reduce_phases=tuple(stage.reduce_phases for stage in lowered),
        optimizer_time=first.optimizer_time,
        gather_phases=tuple(stage.gather_phases for stage in lowered),
        gather_buckets=tuple(stage.gather_buckets for stage in lowered),
        host_time=_host_time(priced, kinds),
        tied_phases=()
        if plan.joins_ends
        else tied_phases(network, workload, table, devices),
        kind=kinds.kind,
        others=tuple(others),
        interference=execution.communication_slowdown,
        memory=tuple(
            held_memory(table, plan, s, cost, workload.parameter_bytes)
            for s, cost in enumerate(priced.stages)
            if memory
        ),
        notes=(
            *execution_notes(priced, settings, workload),
            *left_out_level_notes(network, plan),
            *mixed_device_notes(priced, workload.fleet),
        )
        if notes
        else (),
    )


def _actor_times(
    priced: PricedPlan,
    lowered: Sequence[_StageWork],
    rates: PlacementRates | None,
    *,
    by_layer: bool,
) -> ActorTimes:
    """Return the times of one kind of actors.

    Parameters
    ----------
    priced
        The plan.
    lowered
        Each of its stages on the devices of that kind.
    rates
        The planner's prices, where passes last other than what they are charged.
    by_layer
        Whether passes are without what layers send.
    """
    plan = priced.plan
    order = _order(plan)
    passes = [lowered[s].passes[c] for s, c in order]
    compute = _pass_times(
        [
            {kind: written.worked for kind, written in by_kind.items()}
            for by_kind in passes
        ]
    )
    times = compute
    if not by_layer:
        times = np.array([lowered[s].cost.chunk_times[c] for s, c in order]).T
    if rates is not None:
        prices = [stage.traffic.times(rates) for stage in lowered]
        # Chunks of alike layers share what is written.
        known: dict[tuple[int, int], float] = {}
        for by_kind, (s, _) in zip(passes, order, strict=True):
            for written in by_kind.values():
                key = s, id(written.operations)
                if key not in known:
                    known[key] = written.time(prices[s])
        times = _pass_times(
            [
                {kind: known[s, id(w.operations)] for kind, w in by_kind.items()}
                for by_kind, (s, _) in zip(passes, order, strict=True)
            ]
        )
    moves = None
    if by_layer:
        moves = {
            kind: tuple(by_kind[kind].moves() for by_kind in passes)
            for kind in passes[0]
        }
    return ActorTimes(
        forward_time=times[FORWARD].copy(),
        backward_time=times[BACKWARD].copy(),
        weight_time=times[WEIGHT].copy(),
        unusual_time={
            kind: times[kind].copy() for kind in passes[0] if kind in USUAL_KIND
        },
        sent_time={kind: times[kind] - compute[kind] for kind in passes[0]},
        optimizer_time=np.array(
            [stage.cost.optimizer_time + stage.cost.crowding_time for stage in lowered]
        ),
        passes=moves,
        reduce_at=tuple(
            tuple(bucket.at for bucket in stage.reduce_buckets) for stage in lowered
        ),
        gather_at=tuple(
            tuple(bucket.at for bucket in stage.gather_buckets) for stage in lowered
        ),
    )


def _host_time(priced: PricedPlan, kinds: ActorKinds) -> FloatArray:
    """Return what devices wait for their hosts, as `PipelineWork.host_time` has it."""
    times = []
    for stage, which in enumerate(kinds.kind):
        waits = np.array([cost.host_waits for cost in priced.costs_of(stage)])
        times.append(waits[np.minimum(which, len(waits) - 1)].mean(axis=0))
    number = priced.plan.num_microbatches
    return np.asarray(np.array(times) * (number, number, 1))


def _order(plan: Plan) -> list[tuple[int, int]]:
    """Return stage and chunk of each virtual stage."""
    virtual = find_schedule(plan.schedule).virtual_stages(
        len(plan.stages), plan.virtual_pipeline_model_parallel_size
    )
    return list(zip(virtual.stage.tolist(), virtual.chunk.tolist(), strict=True))


def _segments(
    lowered: Sequence[_StageWork], order: Sequence[tuple[int, int]]
) -> dict[int, IntArray]:
    """Return in how many parts compute varies, as `PipelineWork.segments` has it.

    Devices of any kind have the same layers and collectives.
    """
    passes = [lowered[s].passes[c] for s, c in order]
    return {
        kind: np.array([by_kind[kind].segments for by_kind in passes], np.int64)
        for kind in passes[0]
    }


def _stages(
    known: KeptPhases,
    workload: Workload,
    priced: PricedPlan,
    rates: PlacementRates | None,
    kinds: ActorKinds,
    *,
    by_layer: bool = False,
) -> list[list[_StageWork]]:
    """Return each stage, lowered for each of its kinds of actors."""
    plan, stages = priced.plan, []
    table = workload.table(plan_degrees(plan))
    alike: Sequence[Hashable] = range(len(plan.stages))
    if not by_layer:
        alike = alike_stages(table, plan, widest_overlap(known.network), rates)
    written: dict[Hashable, tuple[_WrittenPasses, ...]] = {}
    for index, writers in enumerate(_writers(known, workload, priced, rates, kinds)):
        key = alike[index], kinds.sets[index]
        if key not in written:
            passes = writers.passes()
            if by_layer and len(passes) > 1:
                # Different devices send the same, together.
                for writer in passes:
                    writer.share_delays()
            written[key] = tuple(map(_written_passes, passes))
        share = stage_share(table, plan.stages[index], plan)
        stages.append(
            [
                _stage(passes, workload, plan, share, writers.step_end, cost)
                for passes, cost in zip(
                    written[key], priced.costs_of(index), strict=True
                )
            ]
        )
    return stages


class _Writers(NamedTuple):
    """What writes one stage."""

    passes: Callable[[], tuple[StagePasses, ...]]
    """Returns what writes the passes, for each kind of actors; what they send is the
    same."""

    step_end: StepEnd
    """Writes the end of the step."""


def _writers(
    known: KeptPhases,
    workload: Workload,
    priced: PricedPlan,
    rates: PlacementRates | None,
    kinds: ActorKinds,
) -> Iterator[_Writers]:
    """Yield what writes each stage."""
    plan = priced.plan
    groups = plan_groups(plan)
    for index, sets in enumerate(kinds.sets):
        devices = groups._replace(grid=groups.grid[index : index + 1])
        skew = workload.exchange_skew(plan_degrees(plan))
        traffic = StageTraffic(known.network, plan, devices, index, skew)
        yield _Writers(
            partial(_pass_writers, workload, traffic, rates, sets),
            StepEnd(known, plan, plan.stages[index], devices, workload.parameter_bytes),
        )


def _pass_writers(
    workload: Workload,
    traffic: StageTraffic,
    rates: PlacementRates | None,
    sets: Sequence[tuple[int, ...]],
) -> tuple[StagePasses, ...]:
    """Return what writes the passes of a stage, for each kind of actors."""
    return tuple(
        StagePasses(workload, traffic.plan, traffic, rates, some) for some in sets
    )


class StageCollectives(NamedTuple):
    """What one stage sends, before any algorithm divides it into phases."""

    in_passes: tuple[tuple[Message, IntArray], ...]
    """Messages of its passes as its moves number them, and the devices of each group,
    shape ``(G, n)``."""

    before: tuple[StepCollective, ...]
    """What reduces gradients before the optimizer step."""

    after: tuple[StepCollective, ...]
    """What gathers weights after it."""


def stage_collectives(
    network: Network, workload: Workload, priced: PricedPlan
) -> tuple[StageCollectives, ...]:
    """Return what each stage of a plan sends, as `lower_plan` has it in phases."""
    rates = rates_of(network, workload, priced.plan)
    kinds = plan_kinds(workload, priced.plan)
    collectives = []
    for writers, step_end in _writers(
        KeptPhases(network), workload, priced, rates, kinds
    ):
        writer, *_ = writers()
        writer.write()
        share = stage_share(writer.table, writer.stage, priced.plan)
        traffic = writer.traffic
        collectives.append(
            StageCollectives(
                tuple(
                    (number, traffic.groups_of(number)) for number in traffic.numbers
                ),
                step_end.collectives(BEFORE_OPTIMIZER, share.dense, share.expert),
                step_end.collectives(AFTER_OPTIMIZER, share.dense, share.expert),
            )
        )
    return tuple(collectives)


class _WrittenPasses(NamedTuple):
    """The passes of a stage, and of those that are alike."""

    traffic: StageTraffic
    """Collectives that they send."""
    passes: tuple[dict[int, Pass], ...]
    """Passes of each chunk by kind."""
    completing: list[PassProgress]
    """Where those that complete gradients are at each layer, if that is hidden."""
    forward: list[PassProgress]
    """Where forward passes are at each layer, if what they wait for is hidden."""


def _written_passes(writer: StagePasses) -> _WrittenPasses:
    execution, passes = writer.workload.execution, writer.write()
    kind = WEIGHT if SCHEDULES[writer.plan.schedule].splits_backward else BACKWARD
    reduces, gathers = execution.overlap_grad_reduce, execution.overlap_param_gather
    return _WrittenPasses(
        writer.traffic,
        passes,
        _progress(writer, passes, kind) if reduces else [],
        _progress(writer, passes, FORWARD) if gathers else [],
    )


def _stage(
    written: _WrittenPasses,
    workload: Workload,
    plan: Plan,
    share: ParameterShare,
    step_end: StepEnd,
    cost: StageCost,
) -> _StageWork:
    execution, sizes = workload.execution, plan.parallel.sizes()
    size = bucket_parameters(sizes.dp * sizes.cp)
    reduces: tuple[Bucket, ...] = ()
    gathers: tuple[Bucket, ...] = ()
    reduce = gather = Phases()
    if execution.overlap_grad_reduce:
        # The last chunk is the first one through the backward pass.
        reduces = reduce_buckets(step_end, [*reversed(written.completing)], size)
    else:
        reduce = step_end.reduce(share.dense, share.expert)
    if execution.overlap_param_gather:
        gathers = gather_buckets(step_end, written.forward, size)
    else:
        gather = step_end.gather(share.dense, share.expert)
    sent = cost.step_transfers
    return _StageWork(
        written.traffic,
        written.passes,
        reduces,
        reduce + step_end.to_and_from_host(sent.before_to_host, sent.before_to_device),
        step_end.to_and_from_host(0.0, sent.after_to_device) + gather,
        gathers,
        cost,
    )


def _progress(
    writer: StagePasses, passes: tuple[dict[int, Pass], ...], kind: int
) -> list[PassProgress]:
    """Return where the passes of each chunk are at each layer."""
    progress: list[PassProgress] = []
    # Chunks of alike layers share what is written.
    known: dict[int, PassProgress] = {}
    for chunk, by_kind in enumerate(passes):
        written = by_kind[kind]
        same = known.get(id(written.operations))
        if same is not None:
            progress.append(same._replace(chunk=chunk))
            continue
        parameters = [writer.parameters(layer) for layer in written.layers]
        moments = np.array(list(written.layers.values())) / (written.worked or 1.0)
        dense, expert = zip(*parameters, strict=True)
        begin, end = moments.T.tolist()
        progress.append(PassProgress(chunk, dense, expert, begin, end))
        known[id(written.operations)] = progress[-1]
    return progress


def _pass_times(passes: list[dict[int, float]]) -> FloatArray:
    """Return the times by kind and virtual stage; 0 where there is no such pass."""
    times = np.zeros((len(ChunkTimes._fields), len(passes)))
    for virtual, by_kind in enumerate(passes):
        for kind, time in by_kind.items():
            times[kind, virtual] = time
    return times


def tied_phases(
    network: Network, workload: Workload, table: LayerTable, devices: IntArray
) -> Phases:
    """Return the collective between both ends of a chain that share an embedding."""
    if table.tied_parameters <= 0:
        return ()
    pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
    size = table.tied_parameters * workload.parameter_bytes.reduce
    return collective_phases(network, "all_reduce", pairs, "ring", size)
