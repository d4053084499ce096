"""Turn a priced plan into what the simulator runs: placed work, ring by ring."""

from typing import NamedTuple

import numpy as np

from estimators.layers.table import LayerTable
from nestsim.placing.account import stage_account
from nestsim.placing.moves import Pass
from nestsim.placing.passes import Experts, StagePasses
from nestsim.placing.said import (
    folded_sentences,
    left_out_sentences,
    slow_device_sentences,
)
from nestsim.placing.tail import (
    StageTail,
    collective_phases,
    gather_buckets,
    reduce_buckets,
)
from nestsim.placing.traffic import StageTraffic
from nestsim.simulator.phases import Phase
from nestsim.simulator.settings import ReplaySettings
from nestsim.simulator.work import Bucket, LayerTraffic, PipelineWork, slowest_lanes
from planner.cost.objective import PricedPlan
from planner.cost.pricing import device_grid, plan_degrees, rates_of
from planner.cost.rates import PlacementRates
from planner.cost.stage import passes_differ
from planner.step.execution import Execution, Workload
from planner.step.exposure import Progress, bucket_parameters
from planner.step.memory import stage_share
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, find_schedule
from topologies import Network
from topologies.arrays import FloatArray, IntArray

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
    order = [(c, s) for c in range(v) for s in range(p)]
    passes = [placed[s].passes[c] for c, s in order]
    compute = _pass_times([{k: one.worked for k, one in own.items()} for own in passes])
    times = compute
    if not by_layer:
        times = np.array([priced.stages[s].chunk_times[c] for c, s in order]).T
    if not by_layer and not is_default:
        assert rates is not None
        prices = [one.traffic.times(rates) for one in placed]
        times = _pass_times(
            [
                {kind: one.time(prices[s]) for kind, one in own.items()}
                for own, (_, s) in zip(passes, order, strict=True)
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
