"""The groups of ranks that a plan is priced with, beside its launch.

``groups.json`` lists the devices of each group (group by group, or where that is
shorter ``by_place``: the first of all groups, then the second of all, ..), the device
of each rank, the batch and the blocks of each virtual stage.
`nestsim.launch.check_launch` goes beside it: a script that holds a launch to it.
"""

from importlib.resources import files

import numpy as np

from nestsim.document.dumps import dump_json
from nestsim.launch.formats.megatron.settings import rank_order
from nestsim.launch.job import LaunchJob
from nestsim.launch.training import CHECK
from planner.cost.pricing import plan_groups
from planner.plans.spec import DEFAULT_ORDER
from planner.step.plan import to_ranges
from topologies.arrays import IntArray

GROUPS = "groups.json"
"""Name of the file."""

_CHECKED = frozenset({"megatron", "megatron-bridge", "torchtitan", "deepspeed"})
"""Formats whose ranks are processes of torch."""


def priced_groups(job: LaunchJob) -> dict[str, IntArray]:
    """Return the groups of devices of each kind, shape ``(groups, members)``."""
    groups = plan_groups(job.plan)
    grid = groups.grid  # stages, replicas, experts, context, tensor
    replicas = np.moveaxis(grid, (1, 2), (-2, -1))
    kinds = {
        "tp": groups.tensor(),
        "cp": groups.context(),
        "dp": replicas.reshape(-1, grid.shape[1] * grid.shape[2]),
        "dp-cp": groups.dense(),
        "pp": np.moveaxis(grid, 0, -1),
        "ep": groups.experts(),
        "etp": groups.expert_tensor(),
        "expert dp": groups.expert_data(),
    }
    return {kind: rows.reshape(-1, rows.shape[-1]) for kind, rows in kinds.items()}


def group_files(job: LaunchJob, format_name: str) -> dict[str, str]:
    """Return what goes beside the launch of a job: its groups, and what checks them."""
    plan, parallel = job.plan, job.plan.parallel
    order = DEFAULT_ORDER
    if format_name.startswith("megatron"):
        order = rank_order(job) or order
    sizes = parallel.sizes()
    shard = max(plan.stages[0].sharding_group_size // sizes.cp, 1)
    is_sharded = plan.stages[0].zero_stage > 1 and sizes.dp % shard == 0
    document = {
        "format": format_name,
        "ranks": parallel.num_devices,
        "devices_per_node": job.devices_per_node,
        "order": order,
        "devices": to_ranges(job.devices_of_ranks(order).tolist()),
        "sizes": {
            "tp": sizes.tp,
            "cp": sizes.cp,
            "dp": sizes.dp,
            "pp": sizes.pp,
            "ep": sizes.ep,
            "etp": parallel.grouping.etp or sizes.tp,
            "dp_replicate": sizes.dp // (shard if is_sharded else sizes.dp),
        },
        "batch": {
            "micro_batch_size": plan.micro_batch_size,
            "num_microbatches": plan.num_microbatches,
            "global_batch_size": plan.micro_batch_size
            * plan.num_microbatches
            * sizes.dp,
        },
        "blocks": list(job.blocks_by_virtual_stage()),
        "groups": {kind: _listed(rows) for kind, rows in priced_groups(job).items()},
    }
    written = {GROUPS: dump_json(document)}
    if format_name in _CHECKED:
        script = files("nestsim.launch").joinpath(CHECK)
        written[CHECK] = script.read_text(encoding="utf-8")
    return written


def _listed(rows: IntArray) -> dict[str, object]:
    """Return groups one after another, or by place in the group if that is shorter."""
    ways = {
        "devices": to_ranges(rows.ravel().tolist()),
        "by_place": to_ranges(rows.T.ravel().tolist()),
    }
    name = min(ways, key=lambda way: len(ways[way]))
    return {"size": rows.shape[1], name: ways[name]}
