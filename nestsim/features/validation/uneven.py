"""Time of a pipeline whose stages no plan of ours expresses.

Each stage is priced by the planner in plans of like stages, all of its sizes, with one
and with two blocks each, which shows what a block costs, and what the ends of the chain
do. As many blocks as the stage has, under its mixture of recompute modes, make its
passes, and the planner's exact timeline of the schedule runs them. Boundaries are those
of the first stage's sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from nestsim.features.validation.columns import RowRefusedError
from nestsim.features.validation.stages import SizedStage
from planner.cost.objective import ChunkTimes, StageCost
from planner.cost.pricing import price_plan, rates_of
from planner.cost.stage import StagePrice
from planner.cost.timeline import AlikeReplicas, PlanTimeline, step_ends
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.execution import Workload
from planner.step.plan import Plan
from topologies.network import Network
from topologies.specs import FatTreeSpec

Deepened = Callable[[int], Workload]
"""Number of blocks -> the job with a model of that depth."""

Built = Callable[[FatTreeSpec], Network]
"""Description of a network -> as the job's library sees it."""


def uneven_step_time(
    deepened: Deepened,
    built: Built,
    network: FatTreeSpec,
    stages: Sequence[SizedStage],
) -> float:
    """Return the time of a step of a 1F1B pipeline [s].

    Parameters
    ----------
    deepened
        The job with as many blocks as asked for.
    built
        Makes networks.
    network
        What the job runs on.
    stages
        From the first to the last.

    Raises
    ------
    RowRefusedError
        If stages hide communication, have microbatches of unlike sizes, or unlike
        sizes on several nodes.
    """
    most = len(stages) * max(sized.degrees.tp * sized.dp for sized in stages)
    cluster = built(_with_devices(network, most))
    _check(deepened(len(stages)), stages)
    prices = [
        _stage_price(deepened, cluster, sized, index, len(stages))
        for index, sized in enumerate(stages)
    ]
    workload = deepened(len(stages))
    plan = _like_plan(workload, cluster, stages[0], len(stages), "none", blocks=1)
    rates = rates_of(cluster, workload, plan)
    directions = np.stack([rates.activation, rates.gradient], axis=-1)
    timeline = PlanTimeline(plan, prices, slowdown=1.0)
    replicas = np.unique(np.swapaxes(directions, 0, 1), axis=0)
    return step_ends([AlikeReplicas(timeline, one) for one in replicas]).step


def _with_devices(network: FatTreeSpec, count: int) -> FatTreeSpec:
    """Return a node with as many devices as plans of like stages have."""
    if count <= network.num_devices:
        return network
    if len(network.levels) > 1:
        raise RowRefusedError(
            "uneven-plan", "stages of unlike sizes are spread over several nodes"
        )
    return FatTreeSpec(levels=(replace(network.levels[0], fan_out=count),))


def _check(workload: Workload, stages: Sequence[SizedStage]) -> None:
    execution = workload.execution
    hidden = (
        execution.overlap_grad_reduce,
        execution.overlap_param_gather,
        execution.tp_comm_overlap,
    )
    if any(hidden):
        raise RowRefusedError("uneven-plan", "stages differ and hide communication")
    rounds = {sized.degrees.micro_batch_size * sized.dp for sized in stages}
    if len(rounds) > 1:
        raise RowRefusedError(
            "uneven-plan", f"stages work on {sorted(rounds)} sequences at once"
        )


def _like_plan(
    workload: Workload,
    network: Network,
    sized: SizedStage,
    num_stages: int,
    recompute: str,
    *,
    blocks: int,
) -> Plan:
    """Return the plan whose stages all have one stage's sizes, and so many blocks."""
    spec = PlanSpec(
        micro_batch_size=sized.degrees.micro_batch_size,
        tensor_model_parallel_size=sized.degrees.tp,
        data_parallel_size=sized.dp,
        pipeline_model_parallel_size=num_stages,
        recompute=recompute,
        zero_stage=sized.blocks.zero_stage,
        num_layers_per_pipeline_stage=(blocks,) * num_stages,
    )
    return build_plan(network, workload, spec)


def _stage_price(
    deepened: Deepened,
    network: Network,
    sized: SizedStage,
    index: int,
    num_stages: int,
) -> StagePrice:
    """Return the price of a stage with parts of blocks and a mixture of recompute."""

    def costs(recompute: str) -> tuple[StageCost, StageCost]:
        found = []
        for blocks in (1, 2):
            workload = deepened(blocks * num_stages)
            plan = _like_plan(
                workload, network, sized, num_stages, recompute, blocks=blocks
            )
            found.append(price_plan(network, workload, plan).stages[index])
        return found[0], found[1]

    held = sized.blocks
    first, second = costs("none")

    def total(of: Callable[[StageCost], float], count: float) -> float:
        return of(first) + (count - 1.0) * (of(second) - of(first))

    repeated = 0.0
    for mode, count in (("selective", held.selective), ("full", held.recomputed)):
        if count:
            fewer, more = costs(mode)
            block = more.backward_time - fewer.backward_time
            plain = second.backward_time - first.backward_time
            repeated += count * (block - plain)
    forward = total(lambda cost: cost.forward_time, held.num_blocks)
    backward = total(lambda cost: cost.backward_time, held.num_blocks) + repeated
    reduce_time = total(lambda cost: cost.reduce_time, held.num_weights)
    gather_time = total(lambda cost: cost.gather_time, held.num_weights)
    cost = replace(
        first,
        forward_time=forward,
        backward_time=backward,
        chunk_times=(ChunkTimes(forward, backward),),
        reduce_time=reduce_time,
        gather_time=gather_time,
        optimizer_time=total(lambda cost: cost.optimizer_time, held.num_weights),
    )
    return StagePrice(cost, (), (), (), reduce_time, gather_time)
