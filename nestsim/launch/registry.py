"""Formats of launch configurations by name: which are written, which are read.

Beside each launch goes ``groups.json``, the groups of ranks that its plan is priced
with: the devices of each group (group by group, or where that is shorter ``by_place``:
the first of all groups, then the second of all, ..), the device of each rank, the batch
and the blocks of each virtual stage. `nestsim.launch.check_launch` goes beside it: a
script that holds a launch to it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np

from nestsim.document.dumps import dump_json
from nestsim.launch.formats.chakra import write_chakra
from nestsim.launch.formats.deepspeed.reading import is_deepspeed, read_deepspeed
from nestsim.launch.formats.deepspeed.writing import write_deepspeed
from nestsim.launch.formats.maxtext.reading import read_maxtext
from nestsim.launch.formats.maxtext.sources import is_maxtext
from nestsim.launch.formats.maxtext.writing import write_maxtext
from nestsim.launch.formats.megatron.reading import is_megatron, read_megatron
from nestsim.launch.formats.megatron.settings import rank_order
from nestsim.launch.formats.megatron.writing import (
    write_megatron,
    write_megatron_bridge,
)
from nestsim.launch.formats.torchtitan.names import COMMAND_FORMAT, TOML_FORMAT
from nestsim.launch.formats.torchtitan.reading import is_torchtitan, read_torchtitan
from nestsim.launch.formats.torchtitan.writing import write_torchtitan
from nestsim.launch.formats.trainers.reading import TRAINERS, read_dump
from nestsim.launch.formats.trainers.renaming import CORE, RENAMINGS
from nestsim.launch.job import LaunchFiles, LaunchJob
from nestsim.launch.read import ImportedJob, LaunchSource
from nestsim.launch.training import CHECK
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


ASSUMED_BATCH = 512
"""Sequences of an optimizer step that are assumed."""


def is_huggingface(source: LaunchSource) -> bool:
    """Whether a file looks like the configuration of a model of the hub."""
    try:
        content = json.loads(source.text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "model_type" in content


def read_huggingface(source: LaunchSource) -> ImportedJob:
    """Read a model; the job and its plan are left to the user and the search."""
    return ImportedJob(
        name=source.path.resolve().parent.name or source.path.stem,
        tables={
            "model": {"config": str(source.path.resolve())},
            "training": {"global_batch_size": ASSUMED_BATCH},
            "software": {"preset": "megatron-core"},
        },
        num_devices=source.num_devices,
        assumptions=(
            f"A step takes {ASSUMED_BATCH} sequences of the longest length that the "
            "model allows.",
            "The framework is Megatron Core.",
            "There is no plan: `nestsim run` searches one.",
        ),
    )


@dataclass(frozen=True, slots=True)
class LaunchReader:
    """How configurations of one format are known and read."""

    title: str
    """What the format is called in sentences."""

    recognizes: Callable[[LaunchSource], bool]
    """Whether a file is likely of this format."""

    read: Callable[[LaunchSource], ImportedJob]
    """Reads one."""


WRITERS: Mapping[str, Callable[[LaunchJob], LaunchFiles]] = MappingProxyType(
    {
        "megatron": write_megatron,
        "megatron-bridge": write_megatron_bridge,
        "torchtitan": write_torchtitan,
        "deepspeed": write_deepspeed,
        "maxtext": write_maxtext,
        "plan": write_plan,
        "chakra": write_chakra,
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

READERS: Mapping[str, LaunchReader] = MappingProxyType(
    {
        # In front of scripts: a log may begin with one.
        **{
            name: LaunchReader(RENAMINGS[name].title, RENAMINGS[name].recognizes, read)
            for name, read in {CORE: read_dump, **TRAINERS}.items()
        },
        # In front of Megatron-LM, whose options Megatron-DeepSpeed shares.
        "deepspeed": LaunchReader(
            "a DeepSpeed JSON or a script that starts DeepSpeed",
            is_deepspeed,
            read_deepspeed,
        ),
        "huggingface": LaunchReader(
            "a Hugging Face config.json", is_huggingface, read_huggingface
        ),
        "torchtitan": LaunchReader(
            "a TOML file, command line or log of torchtitan",
            is_torchtitan,
            read_torchtitan,
        ),
        "maxtext": LaunchReader(
            "a YAML file, script or log of MaxText", is_maxtext, read_maxtext
        ),
        "megatron": LaunchReader(
            "a launch script or command line of Megatron-LM", is_megatron, read_megatron
        ),
    }
)
"""Name of a format -> what reads it, in the order in which files are tried."""


def find_writer(name: str) -> Callable[[LaunchJob], LaunchFiles]:
    """Return what writes a format.

    Raises
    ------
    InputError
        If there is none of that name.
    """
    if name not in WRITERS:
        raise _unknown(name, WRITERS, "--to")
    return WRITERS[name]


def find_reader(
    source: LaunchSource, name: str | None = None, option: str = "--from"
) -> LaunchReader:
    """Return what reads a file: by the format's name, or by what the file looks like.

    ``option`` is what messages call the name.

    Raises
    ------
    InputError
        If there is none of that name, or the file looks like none.
    """
    if name is not None:
        if name not in READERS:
            raise _unknown(name, READERS, option)
        return READERS[name]
    for reader in READERS.values():
        if reader.recognizes(source):
            return reader
    raise InputError(
        "is no launch configuration that is known",
        expected=", ".join(reader.title for reader in READERS.values()),
        hint=f"{option} says which it is: {', '.join(READERS)}",
    )


def _unknown(name: str, known: Mapping[str, object], option: str) -> InputError:
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
