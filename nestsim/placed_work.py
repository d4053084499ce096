"""Turn a priced plan into what the simulator runs: placed work, ring by ring."""

import numpy as np

from estimators.collectives import ALGORITHMS
from nestsim.simulator.work import PipelineWork, RingPhase, StageMemory
from planner.objective import PricedPlan, StageCost
from planner.pricing import activation_bytes, device_array, plan_degrees
from planner.workload import Workload
from topologies import Network


def place_work(
    network: Network, workload: Workload, priced: PricedPlan
) -> PipelineWork:
    """Return one training step of the plan, ready for the replay.

    Compute, tensor-parallel collectives and what ZeRO-2 and 3 send in every
    microbatch are part of the durations; stage-to-stage transfers, gradient and
    parameter collectives of the step's end and the tied embedding are traffic.
    """
    plan = priced.plan
    devices = device_array(plan)
    table = workload.table(plan_degrees(plan))
    each = workload.parameter_bytes
    reduce: list[tuple[RingPhase, ...]] = []
    gather: list[tuple[RingPhase, ...]] = []
    for index, stage in enumerate(plan.stages):
        span = slice(stage.layers[0], stage.layers[1] + 1)
        parameters = float(table.parameters[span].sum())
        if len(plan.stages) == 1:
            parameters -= table.tied_parameters
        groups = devices[index].T
        operation = {0: "all_reduce", 1: "reduce_scatter"}.get(stage.zero_stage)
        size = parameters * each.gradients
        reduce.append(
            _phases(network, operation, groups, plan.gradient_algorithm, size)
        )
        operation = "all_gather" if stage.zero_stage in {1, 2} else None
        size = parameters * each.weights
        gather.append(
            _phases(network, operation, groups, plan.gradient_algorithm, size)
        )
    tied: tuple[RingPhase, ...] = ()
    if table.tied_parameters > 0 and len(plan.stages) > 1:
        pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
        size = table.tied_parameters * each.gradients
        tied = _phases(network, "all_reduce", pairs, "ring", size)
    return PipelineWork(
        schedule=plan.schedule,
        num_microbatches=plan.num_microbatches,
        devices=devices,
        forward_time=np.array([stage.forward_time for stage in priced.stages]),
        backward_time=np.array([stage.backward_time for stage in priced.stages]),
        boundary_bytes=np.array([stage.boundary_bytes for stage in priced.stages[:-1]]),
        reduce_phases=tuple(reduce),
        optimizer_time=np.array([stage.optimizer_time for stage in priced.stages]),
        gather_phases=tuple(gather),
        tied_phases=tied,
        memory=tuple(
            _memory(cost, *activation_bytes(table, stage))
            for cost, stage in zip(priced.stages, plan.stages, strict=True)
        ),
        folded=_folded(priced),
    )


def _phases(
    network: Network,
    operation: str | None,
    groups: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    algorithm: str,
    num_bytes: float,
) -> tuple[RingPhase, ...]:
    """Return the phases of one collective over groups of shape ``(groups, n)``."""
    if operation is None:
        return ()
    return tuple(
        RingPhase(phase.rings, phase.fraction * num_bytes, phase.num_steps)
        for phase in ALGORITHMS[algorithm](operation, groups, network.block_sizes)
    )


def _memory(cost: StageCost, saved: float, working: float) -> StageMemory:
    static = ("weights", "gradients", "optimizer", "buffers")
    return StageMemory(
        static={name: cost.memory[name] for name in static},
        saved_per_microbatch=saved,
        forward_working=working,
        backward_working=working,
    )


def _folded(priced: PricedPlan) -> tuple[str, ...]:
    sentences = []
    if priced.plan.parallel.tensor_model_parallel_size > 1:
        sentences.append(
            "Tensor-parallel collectives are part of the stage times, priced with all "
            "groups active at once."
        )
    if any(stage.parts["zero gathers"] > 0 for stage in priced.stages):
        sentences.append(
            "What ZeRO-2 and ZeRO-3 send in every microbatch is part of the stage "
            "times, not hidden behind compute."
        )
    return tuple(sentences)
