"""What a plan, its training and its software say and MaxText has no words for."""

from collections.abc import Iterator
from typing import Any

from nestsim.launch.formats.maxtext.mesh import AxisMesh, placed_factors
from nestsim.launch.formats.maxtext.sources import OPTIONS, TABLE, blocks_of_layer
from nestsim.launch.formats.usual import (
    is_llama,
    order_cases,
    sizes_in_words,
    stated_gaps,
    training_gaps,
)
from nestsim.launch.job import LaunchGap, LaunchJob
from planner.frameworks.framework import FRAMEWORKS
from planner.search.placements import name_parts
from planner.step.plan import Offload


def find_gaps(job: LaunchJob, mesh: AxisMesh, name: str | None) -> Iterator[LaunchGap]:
    """Yield what cannot be expressed.

    Parameters
    ----------
    job
        The job.
    mesh
        The mesh that is written for it.
    name
        MaxText's name of its model, None if it has none.
    """
    optimizer = job.training.optimizer
    known = {*OPTIONS["opt_type"].words.values(), "adam-bf16"}
    usual = {
        "optimizer": optimizer if optimizer in known else "adam",
        "weights_in_fp32": optimizer != "adam-bf16",
    }
    products = OPTIONS["quantization"].words.values()
    yield from training_gaps(job, "MaxText", products, usual)
    nesting, nodes = name_parts(job.plan.placement)
    blocks, size = job.blocks_by_virtual_stage(), blocks_of_layer(name)
    is_usual = not nodes and mesh.factors == placed_factors(nesting)
    cases = {
        "model": name is None and not is_llama(job.model, tied=True),
        "pipeline_model_parallel_size": any(count % size for count in blocks),
        **_plan_cases(job),
        **_offload_cases(job),
        **_sharding_cases(job),
        **order_cases(job, is_usual=is_usual),
    }
    values = {
        "model": job.model.family,
        "sizes": sizes_in_words(job.model),
        "num_microbatches": job.plan.num_microbatches,
        "num_stages": len(job.plan.stages),
        "blocks_of_layer": size,
        "blocks_of_stage": blocks[0],
    }
    yield from stated_gaps(job, TABLE, cases, values)


def _plan_cases(job: LaunchJob) -> dict[str, bool]:
    plan, parallel = job.plan, job.plan.parallel
    count, pp = plan.num_microbatches, len(plan.stages)
    rules = FRAMEWORKS["maxtext"].rules
    known = rules.schedules
    ways = rules.on(job.workload.accelerator.name).context_parallel
    return {
        "training.matmul_precision: in rounds": pp == 1 < count
        and job.training.matmul_precision == "fp8",
        "num_microbatches: not of the stages": pp > 1 and count % pp > 0,
        "schedule": pp > 1 and plan.schedule not in known,
        "overlap_moe_expert_parallel_comm": plan.overlap_moe_expert_parallel_comm,
        "cp_comm_type": parallel.context_parallel_size > 1
        and parallel.cp_comm_type not in ways,
    }


def _offload_cases(job: LaunchJob) -> dict[str, bool]:
    kept = {"weights", "optimizer"}
    if job.settings.recompute == "full":
        kept.add("activations")
    values = {
        part: getattr(job.settings, f"offload_{part}") for part in Offload._fields
    }
    return {
        f"offload_{part}": value != 0.0 and not (value == 1.0 and part in kept)
        for part, value in values.items()
    }


def _sharding_cases(job: LaunchJob) -> dict[str, bool]:
    """Return which ZeRO stages and groups cannot be had; the first one is said."""
    parallel, stage = job.plan.parallel, job.plan.stages[0]
    cp, dp = parallel.context_parallel_size, parallel.data_parallel_size
    ep, zero = parallel.placed_expert_size, stage.zero_stage
    group = stage.sharding_group_size
    if isinstance(job.settings.zero_stage, tuple):
        return {}
    cases: dict[str, Any] = {
        "zero_stage: alone": zero and dp * cp == 1,
        "zero_stage: in groups": zero == 1 and cp * ep == 1 and group < dp,
        "zero_stage: low": zero < 2 and cp * ep > 1,
        "zero_stage: 2": zero == 2 and len(job.plan.stages) == 1,
        "zero_stage: in groups of one": zero > 1 and group == 1,
    }
    first = next((name for name, holds in cases.items() if holds), "")
    return {first: True, "sharding_group_size": zero > 1 and group % (cp * ep) > 0}
