"""Turn a priced plan into what the simulator runs: placed work, ring by ring.

What one device of a stage holds, and from when to when.

The amounts are those of the planner's bound (`planner.step.memory`), chunk by chunk
and by name. The planner takes them all to be there at once; here

- activations, and the logits that the head saves, are held from the forward pass to the
  backward pass; what weight gradients need in their place until those are done;
- gathered layers are there in forward and backward passes, the gradients of a layer
  that are not reduced yet in passes that complete gradients (`planner.step.ledger`);
- working memory, with what recompute brings back, in the pass that needs it.

Buckets of other collectives are views of weights and gradients, and cost nothing
(Megatron-LM, ``_ParamAndGradBuffer``).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from estimators.layers.table import LayerTable
from estimators.training import ParameterBytes
from nestsim.lowering.notes import (
    folded_sentences,
    left_out_sentences,
    slow_device_sentences,
)
from nestsim.lowering.passes import Experts, Pass, StagePasses
from nestsim.lowering.step_end import (
    StageTail,
    collective_phases,
    gather_buckets,
    reduce_buckets,
)
from nestsim.lowering.traffic import StageTraffic
from nestsim.simulator.replay import ReplaySettings
from nestsim.simulator.work import (
    Bucket,
    Held,
    LayerTraffic,
    Phase,
    PipelineWork,
    StageMemory,
    slowest_lanes,
)
from planner.cost.objective import PricedPlan, StageCost
from planner.cost.pricing import device_grid, plan_degrees, rates_of
from planner.cost.rates import PlacementRates
from planner.cost.stage import passes_differ
from planner.step.execution import Execution, Workload
from planner.step.exposure import Progress, bucket_parameters
from planner.step.ledger import LEDGER
from planner.step.memory import STEP_END, stage_activations, stage_share
from planner.step.plan import Plan, Stage
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, find_schedule
from topologies import Network
from topologies.arrays import FloatArray, IntArray

_STATIC = ("weights", "gradients", "optimizer")


def stage_account(
    table: LayerTable, plan: Plan, index: int, cost: StageCost, each: ParameterBytes
) -> StageMemory:
    """Return the memory of a stage's devices by what it is for."""
    stage = plan.stages[index]
    splits = SCHEDULES[plan.schedule].splits_backward
    held: list[Held] = []
    for chunk, layers in enumerate(stage.chunks):
        alone = replace(stage, chunks=(layers,))
        held += _kept(table, alone, chunk, splits=splits)
        held += _working(table, alone, chunk, splits=splits)
        held += _parameters(stage, chunk, cost.memory["buffers"], each, splits=splits)
    copies = cost.memory["optimizer"] * each.copies / each.optimizer
    return StageMemory(
        static={name: cost.memory[name] for name in _STATIC},
        held=tuple(one for one in held if one.num_bytes > 0.0),
        step_end={STEP_END: copies} if copies else {},
    )


def _kept(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool
) -> Iterator[Held]:
    """Return what one pass leaves to another.

    While a backward pass runs, what was saved and what weight gradients will need come
    and go layer by layer: the larger of the two is charged.
    """
    found = stage_activations(table, stage, splits_backward=splits)
    (saved,), (kept,) = found.saved, found.kept
    logits = 0.0
    if stage.recompute != "stage" and stage.chunks[0][1] == table.num_layers - 1:
        logits = float(table.saved_bytes[stage.recompute][-1])
        # A head whose input outlives its logits is not told apart.
        logits = logits if kept + logits <= saved else 0.0
    rest = saved - logits
    yield Held("logits", chunk, FORWARD, BACKWARD, logits)
    if splits:
        yield Held("activations", chunk, FORWARD, WEIGHT, min(rest, kept))
        yield Held("activations", chunk, BACKWARD, WEIGHT, max(0.0, kept - rest))
    yield Held("activations", chunk, FORWARD, BACKWARD, max(0.0, rest - kept))


def _working(
    table: LayerTable, stage: Stage, chunk: int, *, splits: bool
) -> Iterator[Held]:
    """Return what is alive inside of a pass only: of its largest layer."""
    found = stage_activations(table, stage, splits_backward=splits)
    mode = "none" if stage.recompute == "stage" else stage.recompute
    first, last = stage.chunks[0]
    span = slice(first, last + 1)
    layer = first + int(np.argmax(table.working_bytes[mode][span]))
    part = "logits" if layer == table.num_layers - 1 else "working"
    yield Held(part, chunk, FORWARD, FORWARD, found.forward_working)
    added = max(0.0, found.kept[0] - found.saved[0])
    working = found.backward_working - added
    again = working - found.forward_working
    if stage.recompute != "stage":
        again = float(table.saved_bytes["none"][layer] - table.saved_bytes[mode][layer])
    yield Held("recomputed", chunk, BACKWARD, BACKWARD, again)
    yield Held(part, chunk, BACKWARD, BACKWARD, working - again)


def _parameters(
    stage: Stage, chunk: int, buffers: float, each: ParameterBytes, *, splits: bool
) -> Iterator[Held]:
    """Return the whole layers that ZeRO has on a device (`static_bytes`)."""
    ledger = LEDGER[stage.zero_stage]
    gradients = ledger.whole_gradients * each.gradients
    gathered = ledger.whole_weights * each.gather
    if gradients + gathered == 0:
        return
    reduced = buffers * gradients / (gradients + gathered)
    completing = WEIGHT if splits else BACKWARD
    yield Held("gradient bucket", chunk, completing, completing, reduced)
    for kind in (FORWARD, BACKWARD):
        yield Held("gathered layers", chunk, kind, kind, buffers - reduced)


Phases = tuple[Phase, ...]

_DEFAULT = ReplaySettings()


class _StageWork(NamedTuple):
    """One stage of a plan, placed."""

    traffic: StageTraffic
    passes: tuple[dict[int, Pass], ...]
    """Of each chunk by kind."""
    reduce_buckets: tuple[Bucket, ...]
    reduce_phases: Phases
    gather_phases: Phases
    gather_buckets: tuple[Bucket, ...]


def place_work(
    network: Network,
    workload: Workload,
    priced: PricedPlan,
    settings: ReplaySettings = _DEFAULT,
    *,
    slowdown: FloatArray | None = None,
    memory: bool = True,
) -> PipelineWork:
    """Return one training step of the plan, ready for the replay.

    Parameters
    ----------
    network, workload, priced
        The plan, and what it was made for.
    settings
        Whether what layers send is simulated event by event.
    slowdown
        What the compute times of each device of the network are multiplied by, shape
        ``(N,)``; all 1 if None.
    memory
        Whether to say what each stage holds; without it `PipelineWork.memory` is empty.

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
    copies, slow = 1, tuple[str, ...]()
    if slowdown is None:
        slowdown = np.ones(network.num_devices)
    else:
        copies = np.unique(slowdown).size
        slow = slow_device_sentences(priced, slowdown)
    find_schedule(plan.schedule).check_length(
        len(plan.stages),
        plan.num_microbatches,
        plan.virtual_pipeline_model_parallel_size,
        where="training.global_batch_size",
        copies=copies,
    )
    grid = device_grid(plan)
    table = workload.table(plan_degrees(plan))
    p, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    lanes = grid.reshape(p, grid.shape[1] * grid.shape[2], -1)
    by_layer = settings.granularity == "layer"
    is_default = not by_layer and not passes_differ(plan, execution)
    rates = None
    if execution.communication_slowdown > 1.0 or not (by_layer or is_default):
        rates = rates_of(network, workload, plan)
    placed = _stages(network, workload, priced, rates)
    virtual = find_schedule(plan.schedule).virtual_stages(p, v)
    order = list(zip(virtual.stage.tolist(), virtual.chunk.tolist(), strict=True))
    passes = [placed[s].passes[c] for s, c in order]
    compute = _pass_times([{k: one.worked for k, one in own.items()} for own in passes])
    times = compute
    if not by_layer:
        times = np.array([priced.stages[s].chunk_times[c] for s, c in order]).T
    if not by_layer and not is_default:
        assert rates is not None
        prices = [one.traffic.times(rates) for one in placed]
        times = _pass_times(
            [
                {kind: one.time(prices[s]) for kind, one in own.items()}
                for own, (s, _) in zip(passes, order, strict=True)
            ]
        )
    layers = None
    if by_layer:
        layers = LayerTraffic(
            teams=tuple(one.traffic.teams() for one in placed),
            passes={
                kind: tuple(own[kind].moves() for own in passes) for kind in passes[0]
            },
        )
    return PipelineWork(
        schedule=plan.schedule,
        num_chunks=v,
        num_microbatches=plan.num_microbatches,
        devices=lanes,
        forward_time=times[FORWARD].copy(),
        backward_time=times[BACKWARD].copy(),
        weight_time=times[WEIGHT].copy(),
        sent_time={kind: times[kind] - compute[kind] for kind in passes[0]},
        layers=layers,
        boundary_bytes=np.full(p * v - 1, priced.stages[0].boundary_bytes),
        blocking_transfers=not execution.overlap_p2p_comm,
        reduce_buckets=tuple(one.reduce_buckets for one in placed),
        reduce_phases=tuple(one.reduce_phases for one in placed),
        optimizer_time=np.array([stage.optimizer_time for stage in priced.stages]),
        gather_phases=tuple(one.gather_phases for one in placed),
        gather_buckets=tuple(one.gather_buckets for one in placed),
        tied_phases=_tied(network, workload, table, lanes),
        slowdown=slowest_lanes(lanes, slowdown),
        interference=execution.communication_slowdown,
        memory=tuple(
            stage_account(table, plan, s, cost, workload.parameter_bytes)
            for s, cost in enumerate(priced.stages)
            if memory
        ),
        folded=(
            *folded_sentences(priced, settings, execution),
            *left_out_sentences(network, plan),
            *slow,
        ),
    )


def _stages(
    network: Network,
    workload: Workload,
    priced: PricedPlan,
    rates: PlacementRates | None,
) -> list[_StageWork]:
    plan, skew = priced.plan, workload.execution.expert_skew
    grid = device_grid(plan)
    experts = Experts(*np.zeros((3, len(workload.graph.names))))
    if skew > 1.0 and grid.shape[2] > 1:
        experts = Experts(*workload.expert_times(plan_degrees(plan)))
    placed = []
    for index in range(len(plan.stages)):
        own = grid[index : index + 1]
        traffic = StageTraffic(network, plan, own, index, skew)
        writer = StagePasses(workload, plan, traffic, experts, rates)
        tail = StageTail(
            network, plan, plan.stages[index], own, workload.parameter_bytes
        )
        placed.append(_stage(writer, tail, workload.execution))
    return placed


def _stage(writer: StagePasses, tail: StageTail, execution: Execution) -> _StageWork:
    plan, stage = writer.plan, writer.stage
    passes = writer.write()
    share = stage_share(writer.table, stage, plan)
    sizes = plan.parallel.sizes()
    size = bucket_parameters(sizes.dp * sizes.cp)
    completing = WEIGHT if SCHEDULES[plan.schedule].splits_backward else BACKWARD
    reduces: tuple[Bucket, ...] = ()
    gathers: tuple[Bucket, ...] = ()
    reduce = gather = Phases()
    if execution.overlap_grad_reduce:
        # The last chunk is the first one through the backward pass.
        order = [*reversed(_progress(writer, passes, completing))]
        reduces = reduce_buckets(tail, order, size)
    else:
        reduce = tail.reduce(share.dense, share.expert)
    if execution.overlap_param_gather:
        gathers = gather_buckets(tail, _progress(writer, passes, FORWARD), size)
    else:
        gather = tail.gather(share.dense, share.expert)
    return _StageWork(writer.traffic, passes, reduces, reduce, gather, gathers)


def _progress(
    writer: StagePasses, passes: tuple[dict[int, Pass], ...], kind: int
) -> list[Progress]:
    """Return where the passes of each chunk are at each layer."""
    found = []
    for chunk, own in enumerate(passes):
        one = own[kind]
        each = [writer.parameters(layer) for layer in one.layers]
        moments = np.array(list(one.layers.values())) / (one.worked or 1.0)
        dense, expert = zip(*each, strict=True)
        begin, end = moments.T.tolist()
        found.append(Progress(chunk, dense, expert, begin, end))
    return found


def _pass_times(passes: list[dict[int, float]]) -> FloatArray:
    """Return the times by kind and virtual stage; 0 where there is no such pass."""
    times = np.zeros((3, len(passes)))
    for virtual, own in enumerate(passes):
        for kind, time in own.items():
            times[kind, virtual] = time
    return times


def _tied(
    network: Network, workload: Workload, table: LayerTable, lanes: IntArray
) -> Phases:
    """Return the collective between both ends of a chain that share an embedding."""
    if table.tied_parameters <= 0 or len(lanes) == 1:
        return ()
    pairs = np.stack([lanes[0].ravel(), lanes[-1].ravel()], axis=1)
    size = table.tied_parameters * workload.parameter_bytes.reduce
    return collective_phases(network, "all_reduce", pairs, "ring", size)
