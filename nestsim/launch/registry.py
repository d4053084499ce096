"""Formats of launch configurations by name: which are written, and what goes beside.

Beside each launch goes ``groups.json``, the groups of ranks that its plan is priced
with: the devices of each group (group by group, or where that is shorter ``by_place``:
the first of all groups, then the second of all, ..), the device of each rank, the batch
and the blocks of each virtual stage. `nestsim.launch.check_launch` goes beside it: a
script that holds a launch to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np

from nestsim.document.dumps import dump_json
from nestsim.launch.formats.torchtitan.names import COMMAND_FORMAT, TOML_FORMAT
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.scenario.editing import toml_text
from nestsim.scenario.errors import nearest, one_of
from planner.cost.pricing import plan_groups
from planner.frameworks.framework import FRAMEWORKS
from planner.plans.spec import DEFAULT_ORDER, PlanSpec
from planner.step.plan import to_ranges
from topologies.arrays import IntArray
from topologies.errors import InputError


def write_plan(job: LaunchJob) -> LaunchFiles:
    """Write a plan for `nestsim simulate`: nothing is left out."""
    return LaunchFiles(
        files={
            "plan.toml": toml_text({"plan": plan_table(job.settings)}),
            "plan.json": dump_json(job.plan.to_json()),
        }
    )


def plan_table(settings: PlanSpec) -> dict[str, Any]:
    """Return the table [plan] of settings.

    What a preset would decide is always written; of the rest, what is not its default.
    """
    decided = {"micro_batch_size", "sequence_parallel", "recompute", "zero_stage"}
    defaults = {field.name: field.default for field in fields(settings)}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(settings).items()
        if value is not None and (name in decided or value != defaults[name])
    }


# What writes a format is imported with the first launch of it: a run writes those of
# one framework, to see what that can launch, and need not wait for the others.


def _write_megatron(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.megatron.writing import write_megatron

    return write_megatron(job)


def _write_megatron_bridge(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.megatron.writing import write_megatron_bridge

    return write_megatron_bridge(job)


def _write_torchtitan(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.torchtitan.writing import write_torchtitan

    return write_torchtitan(job)


def _write_deepspeed(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.deepspeed.writing import write_deepspeed

    return write_deepspeed(job)


def _write_maxtext(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.maxtext.writing import write_maxtext

    return write_maxtext(job)


def _write_verl(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.trainers.verl_writing import write_verl

    return write_verl(job)


def _write_chakra(job: LaunchJob) -> LaunchFiles:
    from nestsim.launch.formats.chakra import write_chakra

    return write_chakra(job)


WRITERS: Mapping[str, Callable[[LaunchJob], LaunchFiles]] = MappingProxyType(
    {
        "megatron": _write_megatron,
        "megatron-bridge": _write_megatron_bridge,
        "torchtitan": _write_torchtitan,
        "deepspeed": _write_deepspeed,
        "maxtext": _write_maxtext,
        "verl": _write_verl,
        "plan": write_plan,
        "chakra": _write_chakra,
    }
)
"""Name of a format -> what writes it."""

TAKES_OPTIONS_OF: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "megatron": ("megatron",),
        "megatron-bridge": ("megatron",),
        "torchtitan": (TOML_FORMAT, COMMAND_FORMAT),
        "maxtext": ("maxtext",),
        "deepspeed": ("deepspeed",),
    }
)
"""Name of a format -> formats whose options it takes from the table [launch]."""

WITHOUT_OPTIONS = frozenset({"plan", "chakra"})
"""Formats that start no training: nothing is lost that they have no options for."""

PRESET_FORMATS: Mapping[str, str] = MappingProxyType(
    {name: framework.launched_as for name, framework in FRAMEWORKS.items()}
)
"""``software.preset`` -> the format in which its plans are launched: its framework's
own, or the nearest that is written. Aceso and Mist stand on Megatron-LM, InternEvo has
its parallelism; DDP and FSDP are PyTorch's, which torchtitan launches."""


def find_writer(name: str) -> Callable[[LaunchJob], LaunchFiles]:
    """Return what writes a format.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in WRITERS:
        raise unknown_format(name, WRITERS, "--to")
    return WRITERS[name]


def unknown_format(name: str, known: Mapping[str, object], option: str) -> InputError:
    """Return the refusal of a format that is none of those known by name."""
    return InputError(
        "no such format",
        where=option,
        got=name,
        expected=one_of(list(known)),
        hint=nearest(name, list(known)),
    )


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
    from nestsim.launch.training import CHECK

    plan, parallel = job.plan, job.plan.parallel
    order = DEFAULT_ORDER
    if format_name.startswith("megatron"):
        from nestsim.launch.formats.megatron.settings import rank_order

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
