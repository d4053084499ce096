"""Turn a priced plan into what the simulator runs: placed work, ring by ring."""

import numpy as np
from numpy.typing import NDArray

from estimators.collectives import ALGORITHMS
from nestsim.simulator.work import PipelineWork, RingPhase, StageMemory
from planner.objective import PricedPlan, StageCost
from planner.plan import Plan, Stage
from planner.pricing import device_grid, plan_degrees
from planner.rates import dense_groups, expert_data_groups
from planner.stage_cost import Activations, Share, stage_activations, stage_share
from planner.workload import Workload
from topologies import Network

IntArray = NDArray[np.int64]
Phases = tuple[RingPhase, ...]


def place_work(
    network: Network, workload: Workload, priced: PricedPlan
) -> PipelineWork:
    """Return one training step of the plan, ready for the replay.

    Compute, in-layer collectives and what ZeRO-2 and 3 send in every microbatch are
    part of the durations; stage-to-stage transfers, gradient and parameter collectives
    of the step's end and the tied embedding are traffic.
    """
    plan = priced.plan
    grid = device_grid(plan)
    table = workload.table(plan_degrees(plan))
    tails = [
        _StageTail(network, workload, plan, grid[index : index + 1], stage)
        for index, stage in enumerate(plan.stages)
    ]
    shares = [stage_share(table, stage, plan) for stage in plan.stages]
    p, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    order = [(c, s) for c in range(v) for s in range(p)]
    times = np.array([priced.stages[s].chunk_times[c] for c, s in order])
    lanes = grid.reshape(p, grid.shape[1] * grid.shape[2], -1)
    tied: Phases = ()
    if table.tied_parameters > 0 and p > 1:
        pairs = np.stack([lanes[0].ravel(), lanes[-1].ravel()], axis=1)
        size = table.tied_parameters * workload.parameter_bytes.gradients
        tied = _phases(network, "all_reduce", pairs, "ring", size)
    return PipelineWork(
        schedule=plan.schedule,
        num_chunks=v,
        num_microbatches=plan.num_microbatches,
        devices=lanes,
        forward_time=times[:, 0].copy(),
        backward_time=times[:, 1].copy(),
        boundary_bytes=np.full(p * v - 1, priced.stages[0].boundary_bytes),
        reduce_phases=tuple(
            tail.reduce(share) for tail, share in zip(tails, shares, strict=True)
        ),
        optimizer_time=np.array([stage.optimizer_time for stage in priced.stages]),
        gather_phases=tuple(
            tail.gather(share) for tail, share in zip(tails, shares, strict=True)
        ),
        tied_phases=tied,
        memory=tuple(
            _memory(cost, stage_activations(table, stage))
            for cost, stage in zip(priced.stages, plan.stages, strict=True)
        ),
        folded=_folded(priced),
    )


class _StageTail:
    """The collectives of one stage at the end of the step."""

    def __init__(
        self,
        network: Network,
        workload: Workload,
        plan: Plan,
        grid: IntArray,
        stage: Stage,
    ) -> None:
        self.network, self.stage = network, stage
        self.each = workload.parameter_bytes
        self.algorithm = plan.gradient_algorithm
        self.dense = dense_groups(grid)[0]
        self.experts = expert_data_groups(grid)[0]

    def reduce(self, share: Share) -> Phases:
        """Return what comes between the last backward pass and the optimizer step."""
        dense = share.dense * self.each.gradients
        expert = share.expert * self.each.gradients
        if self.stage.zero_stage == 0:
            whole = self._over(self.dense, "all_reduce", dense)
            return whole + self._over(self.experts, "all_reduce", expert)
        group = self.stage.sharding_group_size
        inside, across = self._sharded(group)
        phases: Phases = ()
        if self.stage.zero_stage == 1:
            phases = self._over(inside, "reduce_scatter", dense)
            phases += self._over(self.experts, "reduce_scatter", expert)
        return phases + self._over(across, "all_reduce", dense / group)

    def gather(self, share: Share) -> Phases:
        """Return what follows the optimizer step."""
        if self.stage.zero_stage not in {1, 2}:
            return ()
        inside, _ = self._sharded(self.stage.sharding_group_size)
        dense = self._over(inside, "all_gather", share.dense * self.each.weights)
        expert = share.expert * self.each.weights
        return dense + self._over(self.experts, "all_gather", expert)

    def _sharded(self, group: int) -> tuple[IntArray, IntArray]:
        """Return the ranks that share shards, and those that hold the same one."""
        size = self.dense.shape[1]
        parts = np.sort(self.dense, axis=1).reshape(len(self.dense), -1, group)
        across = np.swapaxes(parts, 1, 2).reshape(-1, size // group)
        return parts.reshape(-1, group), across

    def _over(self, groups: IntArray, operation: str, num_bytes: float) -> Phases:
        if num_bytes == 0.0:
            return ()
        return _phases(self.network, operation, groups, self.algorithm, num_bytes)


def _phases(
    network: Network,
    operation: str,
    groups: IntArray,
    algorithm: str,
    num_bytes: float,
) -> Phases:
    """Return the phases of one collective over groups of shape ``(groups, n)``."""
    return tuple(
        RingPhase(phase.rings, phase.fraction * num_bytes, phase.num_steps)
        for phase in ALGORITHMS[algorithm](operation, groups, network.block_sizes)
    )


def _memory(cost: StageCost, activations: Activations) -> StageMemory:
    static = ("weights", "gradients", "optimizer", "buffers")
    return StageMemory(
        static={name: cost.memory[name] for name in static},
        saved_per_microbatch=activations.saved,
        forward_working=activations.forward_working,
        backward_working=activations.backward_working,
    )


def _folded(priced: PricedPlan) -> tuple[str, ...]:
    sentences = []
    names = {
        "tensor collectives": "Tensor-parallel collectives",
        "context ring": "The context-parallel ring",
        "expert all-to-all": "The expert-parallel all-to-all",
    }
    for part, name in names.items():
        if any(stage.parts[part] > 0 for stage in priced.stages):
            verb = "are" if name.endswith("s") else "is"
            sentences.append(
                f"{name} {verb} part of the stage times, priced with all groups active "
                "at once."
            )
    if any(stage.parts["zero gathers"] > 0 for stage in priced.stages):
        sentences.append(
            "What ZeRO-2 and ZeRO-3 send in every microbatch is part of the stage "
            "times, not hidden behind compute."
        )
    return tuple(sentences)
