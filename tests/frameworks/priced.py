"""What was priced of a plan, in JSON, as drivers answer what is launched.

Drivers answer with the same names. Of what only the one or only the other has, nothing
is compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nestsim.launch.job import LaunchJob
from planner.cost.pricing import plan_groups
from topologies.arrays import IntArray

Groups = list[list[int]]


def priced_facts(job: LaunchJob) -> Mapping[str, Any]:
    """Return what was priced."""
    settings, plan, parallel = job.settings, job.plan, job.plan.parallel
    groups = planned_groups(job)
    dense = len(groups["dp-cp"][0])
    offload = sorted({tuple(map(float, x)) for x in settings.offload_by_stage()})
    zero = sorted({stage.zero_stage for stage in plan.stages})
    shares = {
        dense // stage.sharding_group_size for stage in plan.stages if stage.zero_stage
    }
    most = max(job.blocks_by_virtual_stage())
    is_split = parallel.context_parallel_size > 1
    facts = {
        **groups,
        "blocks": list(job.blocks_by_virtual_stage()),
        "again": blocks_again(job, ("selective", "full", "stage")),
        "again whole": blocks_again(job, ("full", "stage")),
        "recompute": sorted(set(settings.recompute_by_stage())),
        "recompute_num_layers": sorted(
            {
                None if mode == "selective" and (count or 0) >= most else count
                for mode, count in zip(
                    settings.recompute_by_stage(),
                    settings.recompute_num_layers_by_stage(),
                    strict=True,
                )
            },
            key=str,
        ),
        "zero_stage": zero if dense > 1 else [0],
        "instances": sorted(shares),
        "shards": sharding_groups(job, groups["dp-cp"]),
        "offload": [list(parts) for parts in offload],
        "kept": sorted({any(parts[:3]) for parts in offload}),
        "num_microbatches": plan.num_microbatches,
        "micro_batch_size": plan.micro_batch_size,
        "global_batch_size": job.training.global_batch_size,
        "sequence_parallel": parallel.sequence_parallel,
        "overlap": plan.overlap_moe_expert_parallel_comm,
        "context": [parallel.grouping.cp_comm_type] if is_split else [],
        "schedule": plan.schedule if len(plan.stages) > 1 else "",
    }
    if "expert dp" in groups and shares == {1} and zero != [1]:
        facts["expert shards"] = groups["expert dp"]
    return facts


def planned_groups(job: LaunchJob) -> dict[str, Groups]:
    """Return the groups of devices that a plan is priced and replayed with, by kind."""
    groups = plan_groups(job.plan)
    grid = groups.grid  # stages, replicas, experts, context, tensor
    kinds = {"tp": groups.tensor(), "cp": groups.context(), "dp-cp": groups.dense()}
    if job.plan.parallel.grouping.a2a:
        kinds |= {"exchanges": groups.exchanges(), "rings": groups.rings()}
    if job.model.num_moe_experts:
        kinds |= {
            "ep": groups.experts(),
            "etp": groups.expert_tensor(),
            "expert dp": groups.expert_data(),
        }
    planned = {
        name: sorted_groups(members.reshape(-1, members.shape[-1]).tolist())
        for name, members in kinds.items()
    }
    return planned | {"dp": _rows(grid, 1, 2), "pp": _rows(grid, 0)}


def sorted_groups(groups: Iterable[Iterable[int]]) -> Groups:
    """Return groups without an order among them or inside."""
    return [list(group) for group in sorted({tuple(sorted(ranks)) for ranks in groups})]


def _rows(grid: IntArray, *axes: int) -> Groups:
    """Return the devices along some axes."""
    size = int(np.prod([grid.shape[axis] for axis in axes]))
    last = np.moveaxis(grid, axes, range(-len(axes), 0))
    return sorted_groups(last.reshape(-1, size).tolist())


def sharding_groups(job: LaunchJob, dense: Groups) -> Groups:
    """Return the groups of devices that share the states of dense layers."""
    stage = job.plan.stages[0]
    size = stage.sharding_group_size if stage.zero_stage else 1
    return sorted_groups(
        group[begin : begin + size]
        for group in dense
        for begin in range(0, len(group), size)
    )


def blocks_again(job: LaunchJob, modes: Sequence[str]) -> list[int]:
    """Return how many blocks of each virtual stage are computed again in some mode."""
    settings, stages = job.settings, len(job.plan.stages)
    chosen = settings.recompute_by_stage()
    counts = settings.recompute_num_layers_by_stage()
    return [
        min(number, counts[index % stages] or number)
        if chosen[index % stages] in modes
        else 0
        for index, number in enumerate(job.blocks_by_virtual_stage())
    ]
