"""The memory of a whole plan, and whether there is as much.

Nothing here needs a network: plans are outlines (`planner.plans.build.outline_plan`).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from estimators.layers.adapters import with_adapters
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.frameworks.rules import LaunchRules
from planner.plans.build import outline_plan
from planner.plans.spec import PlanSpec
from planner.step.execution import Workload
from planner.step.memory import StageAccount, is_within, memory_of_stage
from planner.step.plan import Plan
from topologies.errors import InputError


class MemoryLimits(NamedTuple):
    """What there is for one device of the job."""

    device: float
    """What tensors may take of the device's memory [byte]."""

    host: float
    """What its host may keep for it [byte]."""


class PlanMemory(NamedTuple):
    """What each stage of a plan holds on one device and on its host."""

    plan: Plan
    """Plan that it is of; its stages have no devices."""

    stages: tuple[StageAccount, ...]
    """Accounts, from the first stage to the last."""

    @property
    def peaks(self) -> tuple[float, ...]:
        """Peak of tensors of each stage [byte]."""
        return tuple(sum(stage.device.values()) for stage in self.stages)

    @property
    def fullest(self) -> int:
        """Number of the stage that holds most, the first of equals."""
        return int(np.argmax(self.peaks))

    @property
    def needed(self) -> float:
        """Peak of the fullest stage [byte]."""
        return max(self.peaks)

    @property
    def host(self) -> float:
        """Most that a host keeps for a device [byte]."""
        return max(sum(stage.host.values()) for stage in self.stages)

    def fits(self, limits: MemoryLimits) -> bool:
        """Tell whether all stages have room, on devices and on hosts."""
        return is_within(self.needed, limits.device) and is_within(
            self.host, limits.host
        )


def plan_memory(workload: Workload, plan: Plan) -> PlanMemory:
    """Return what each stage of a plan holds."""
    table = workload.table(plan.degrees)
    stages = range(len(plan.stages))
    return PlanMemory(
        plan, tuple(memory_of_stage(workload, table, plan, stage) for stage in stages)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryJob:
    """A job whose memory is asked for."""

    workload: Workload
    """Model, batch and device."""

    rules: LaunchRules
    """What the framework can launch."""

    num_devices: int
    """Devices of the cluster."""

    limits: MemoryLimits
    """What each device has."""

    retraces: bool = True
    """Whether the model can be traced with sequences of another length."""

    def memory(self, spec: PlanSpec) -> PlanMemory:
        """Return what a plan needs.

        Raises
        ------
        InputError
            If the sizes do not go with the model, the batch or the cluster.
        """
        plan = outline_plan(self.workload, spec, self.num_devices)
        _check_sharding(plan)
        return plan_memory(self.workload, plan)

    def with_training(self, training: TrainingSpec) -> "MemoryJob":
        """Return the job with other settings of what is trained."""
        return replace(self, workload=self.workload.trained_as(training))

    def with_length(self, length: int) -> "MemoryJob":
        """Return the job with sequences of another length [token].

        Each length is traced, and learned positions grow with it.
        """
        workload = self.workload
        model = workload.graph.spec
        positions = max(model.max_position_embeddings, length)
        graph = trace_model(
            replace(model, sequence_length=length, max_position_embeddings=positions)
        )
        adapted = with_adapters(graph, workload.training)
        return replace(self, workload=replace(workload, graph=adapted))


def _check_sharding(plan: Plan) -> None:
    """Refuse sharding groups that the replicas cannot be dealt out to."""
    sizes = plan.parallel.sizes()
    ranks = sizes.dp * sizes.cp
    for stage in plan.stages:
        if ranks % stage.sharding_group_size:
            raise InputError(
                "the replicas do not form groups of that size",
                where="sharding_group_size",
                got=stage.sharding_group_size,
                expected=f"a divisor of {ranks}, the data- times the context-parallel "
                "size",
            )
