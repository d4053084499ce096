"""The configuration that needs the least memory, and the fewest devices that hold any.

What is tried is what a framework can launch (`LaunchableSpace`), blocks shared out as
evenly as it does, one recompute mode and one stage of ZeRO for all stages. Of two sizes
only the smallest is tried that the space allows: the micro-batch and the chunks of a
stage, which more memory is never saved by (`planner.search.thriftiest`).

Parts that all stages hold together are divided by the number of stages for a lower
bound of the fullest one; what the bound leaves over is counted stage by stage, in the
order of the bound::

    bound = (W + G + O + activations of one microbatch) / p

Letters: ``W``, ``G``, ``O`` weights, gradients and optimizer states of a replica on one
rank, sharded as ZeRO does; ``p`` stages.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

from estimators.layers.work import Degrees
from planner.explain.infeasibility import SIZE_SETTINGS
from planner.memory.account import MemoryJob, PlanMemory, plan_memory
from planner.plans.build import outline_plan
from planner.plans.spec import PlanSpec
from planner.search.replayed.space import LaunchableSpace
from planner.search.space import Configuration, SearchSpec
from planner.step.execution import Workload
from planner.step.memory import Sharded, has_room, static_bytes
from planner.step.plan import Offload, Plan

MOST_DEVICES = 16_384
"""Largest cluster that is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThriftyWay:
    """One configuration, and a lower bound of what it needs."""

    spec: PlanSpec
    """Sizes and settings."""

    devices: int
    """How many it takes."""

    bound: float
    """The fullest stage needs at least as much [byte]."""


class ThriftyPlan(NamedTuple):
    """A plan that was looked for."""

    spec: PlanSpec
    """Sizes and settings."""

    memory: PlanMemory
    """What it needs."""


def least_memory(job: MemoryJob, spec: SearchSpec) -> ThriftyPlan | None:
    """Return the plan of a space that needs the least memory; None if it is empty.

    Of equals the one with the lowest bound, then the first in the order of the space.
    """
    best: ThriftyPlan | None = None
    for way in sorted(ways(job, spec, job.num_devices), key=attrgetter("bound")):
        if best is not None and way.bound >= best.memory.needed:
            break
        plan = outline_plan(job.workload, way.spec, way.devices)
        # As little as the best so far does not do.
        most = math.inf if best is None else best.memory.needed * _LESS
        if has_room(job.workload, plan, _rooms(plan, most), job.limits.host):
            best = ThriftyPlan(way.spec, plan_memory(job.workload, plan))
    return best


def fewest_devices(job: MemoryJob, spec: SearchSpec) -> ThriftyPlan | None:
    """Return a plan that fits on as few devices as any does.

    The batch stays as it is, and every size is free; what hosts may keep is what
    the space allows. None if more than `MOST_DEVICES` are needed.
    """
    sizes: dict[str, Any] = dict.fromkeys(SIZE_SETTINGS.values())
    free = replace(
        spec,
        **sizes,
        zero_stages=job.rules.usual_zero_stages,
        recompute=tuple(dict.fromkeys((*_MODES, *spec.recompute))),
        idle_devices=True,
    )
    tried, most = 0, 1
    while tried < MOST_DEVICES:
        fitting = [
            way
            for way in ways(job, free, most)
            if way.devices > tried and way.bound <= job.limits.device
        ]
        for way in sorted(fitting, key=attrgetter("devices", "bound")):
            plan = outline_plan(job.workload, way.spec, way.devices)
            rooms = _rooms(plan, job.limits.device)
            if has_room(job.workload, plan, rooms, job.limits.host):
                return ThriftyPlan(way.spec, plan_memory(job.workload, plan))
        tried, most = most, 2 * most
    return None


def _rooms(plan: Plan, room: float) -> list[float]:
    return [room] * len(plan.stages)


_LESS = 1.0 - 2e-9
"""Part of a memory that is less of it: `planner.step.memory` calls a 1e-9 equal."""

_MODES = ("none", "selective", "full")


def ways(job: MemoryJob, spec: SearchSpec, num_devices: int) -> Iterator[ThriftyWay]:
    """Yield every configuration of a space that may need the least memory."""
    space = LaunchableSpace(
        workload=job.workload,
        spec=_thrifty(spec),
        rules=job.rules,
        num_devices=num_devices,
    )
    families, _ = space.families()
    for family in families:
        terms = _Terms.of(job.workload, family.degrees)
        for index in range(len(family.pp)):
            yield from _ways_of(space, terms, family.configuration(index))


def _ways_of(
    space: LaunchableSpace, terms: "_Terms", configuration: Configuration
) -> Iterator[ThriftyWay]:
    """Yield all ways to save memory that go with the sizes of a configuration."""
    tp, cp, ep, b, v, pp, dp, grouping, pairs = configuration
    if pairs:
        return  # which keep a layer more
    groups = grouping.settings(cp, ep)
    zeros = space.zero_stages(pp, configuration)
    if dp * cp == 1:
        zeros = zeros[:1]  # there is nobody to share with
    for zero, recompute, offload in product(
        zeros, space.recompute_modes(v), space.offloads(pp)
    ):
        if not space.rules.keeps_beside(offload, recompute, zero):
            continue
        plan = PlanSpec(
            micro_batch_size=b,
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            virtual_pipeline_model_parallel_size=v,
            schedule=space.rules.usual_schedule(v) if pp > 1 else None,
            data_parallel_size=dp,
            context_parallel_size=cp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=groups["expert_tensor_parallel_size"],
            cp_comm_type=groups["cp_comm_type"],
            hierarchical_context_parallel_sizes=(
                groups["hierarchical_context_parallel_sizes"]
            ),
            sequence_parallel=terms.degrees.sequence_parallel,
            recompute=recompute,
            zero_stage=zero,
            **layout_settings(space.layouts(pp, v)[0], pp, v),
            **offload_settings(offload),
        )
        bound = terms.bound(configuration, zero, recompute, offload)
        yield ThriftyWay(spec=plan, devices=configuration.devices, bound=bound)


def layout_settings(counts: tuple[int, ...], p: int, v: int) -> dict[str, Any]:
    """Return the settings that share blocks out so, none where that is even."""
    if len(set(counts)) == 1:
        return {}
    if v == 1 and p > 1:
        return {"num_layers_per_pipeline_stage": counts}
    return {"pipeline_model_parallel_layout": counts}


def offload_settings(offload: Offload) -> dict[str, Any]:
    """Return the settings that have hosts keep so much."""
    return {f"offload_{name}": part for name, part in offload._asdict().items()}


def _thrifty(spec: SearchSpec) -> SearchSpec:
    """Return the part of a space in which micro-batches and chunks are smallest."""
    batches = spec.micro_batch_sizes or (1,)
    chunks = spec.virtual_pipeline_model_parallel_sizes or (1,)
    return replace(
        spec,
        micro_batch_sizes=(min(batches),),
        virtual_pipeline_model_parallel_sizes=(min(chunks),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """What the layers of a chain need together under some degrees."""

    workload: Workload
    degrees: Degrees
    dense: float
    expert: float
    tied: float
    saved: dict[str, float]

    @classmethod
    def of(cls, workload: Workload, degrees: Degrees) -> "_Terms":
        """Add up the layers."""
        table = workload.table(degrees)
        expert = float(table.expert_parameters.sum())
        return cls(
            workload=workload,
            degrees=degrees,
            dense=float(table.parameters.sum()) - expert,
            expert=expert,
            tied=float(table.tied_parameters),
            saved={mode: float(c.sum()) for mode, c in table.saved_bytes.items()},
        )

    def bound(
        self,
        configuration: Configuration,
        zero: int,
        recompute: str,
        offload: Offload,
    ) -> float:
        """Return the mean over the stages of what none can do without [byte]."""
        pp, group = configuration.pp, configuration.dp * configuration.cp
        static = static_bytes(
            Sharded(self.dense - (self.tied if pp == 1 else 0.0), group),
            Sharded(self.expert, configuration.expert_data_size),
            0.0,
            parameter_bytes=self.workload.parameter_bytes,
            zero_stage=zero,
        )
        kept = (1.0 - offload.weights) * float(static.weights)
        kept += (1.0 - offload.gradients) * float(static.gradients)
        kept += (1.0 - offload.optimizer) * float(static.optimizer)
        if recompute != "stage":
            kept += (1.0 - offload.activations) * self.saved[recompute]
        # Sums of the same numbers in another order differ in their last bits.
        return kept / pp * (1.0 - 1e-12)
