"""What torchtitan 0.2 or 0.3 makes of its files: a trainer without memory for weights.

Called: ``ConfigManager``, ``Trainer.init_distributed``, ``ParallelDims.build_mesh`` on
each rank, and ``Trainer.__init__`` on a rank of each stage: its model, parallelized,
its pipeline with ``torch.distributed.pipelining``, its schedule. Stubbed: packages that
only GPUs need, the device, the data, the tokenizer and meters; in 0.3 ``fully_shard``,
which is recorded, as it wants types of sharded parameters that only torch 2.15 has.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from answering import (
    Facts,
    Stub,
    all_groups,
    answer_all,
    as_rank,
    launched_words,
    sharded_states,
)
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)
from torch.distributed.fsdp import FSDPModule

for package in ("triton", "triton.language", "tensorboard", "torchdata"):
    if find_spec(package.partition(".")[0]) is None:
        sys.modules[package] = Stub(package)

IS_COMMAND = tuple(map(int, version("torchtitan").split(".")[:2])) >= (0, 3)
config = import_module("torchtitan.config")
train = import_module("torchtitan.trainer" if IS_COMMAND else "torchtitan.train")
parallel_dims = import_module("torchtitan.distributed.parallel_dims")
metrics = import_module("torchtitan.components.metrics")
checkpointing = import_module("torchtitan.distributed.activation_checkpoint")
sharding = import_module("torchtitan.distributed.fsdp") if IS_COMMAND else None

WRITTEN = ("torchtitan_config", "torchtitan_train")
"""Modules among the files that nestsim writes."""

AXES = {
    "tp": "tp",
    "cp": "cp",
    "pp": "pp",
    "dp": "batch",
    "dp-cp": "loss",
    "ep": "ep",
    "etp": "etp",
    "shards": "fsdp",
    "expert shards": "efsdp",
}
"""Kind of group -> axis of a mesh."""

SCHEDULES = {
    "": "",
    "ScheduleGPipe": "gpipe",
    "Schedule1F1B": "1f1b",
    "ScheduleInterleaved1F1B": "interleaved-1f1b",
    "ScheduleZBVZeroBubble": "zb-v",
    "ScheduleDualPipeV": "dualpipe-v",
}
"""Class of ``torch.distributed.pipelining`` -> what is priced."""


SETTERS = [name for name in dir(FSDPModule) if name.startswith("set_")]
"""Methods that modules have when they are sharded."""


class BuiltError(Exception):
    """A rank has its part of the model, which now would get memory."""


def launch(world: int) -> Facts:
    """Start a trainer on each rank, and return what they are."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        job = parse()
        with as_rank(0, world):
            trainer = SimpleNamespace(job_config=job, config=job)
            dims = train.Trainer.init_distributed(trainer)
        facts = all_groups(world, lambda: rank_groups(dims))
        stages = []
        for rank in range(0, world, world // dims.pp):
            with as_rank(rank, world), on_host():
                stages.append(start_trainer(parse()))
    finally:
        sys.path.remove(folder)
    method = getattr(job.parallelism, "context_parallel_rotate_method", "allgather")
    kind = {"alltoall": "p2p", "allgather": "all_gather"}[method]
    # Until 0.3 sequences are always split beside tensor parallelism.
    splits = getattr(job.parallelism, "enable_sequence_parallel", True)
    return {
        **facts,
        **whole_facts(stages),
        "context": [kind] if dims.cp > 1 else [],
        "overlap": getattr(
            job.parallelism, "pipeline_parallel_expert_parallel_overlap", False
        )
        and stages[0]["schedule"] == "dualpipe-v"
        and dims.ep > 1,
        "sequence_parallel": splits and dims.tp > 1,
    }


def parse() -> Any:
    """Return the configuration that the framework reads from the files."""
    for name in WRITTEN:
        sys.modules.pop(name, None)
    words = ["--job.config_file", "torchtitan.toml"]
    if IS_COMMAND:
        words = launched_words("torchtitan.sh", "torchtitan.train")
    elif Path("torchtitan_train.py").is_file():
        import_module("torchtitan_train")
    return config.ConfigManager().parse_args(words)


def rank_groups(dims: Any) -> dict[str, list[int]]:
    """Return the groups of this rank by kind: itself where a mesh has no such axis."""
    blank = {
        field.name: type(getattr(dims, field.name))()
        for field in fields(dims)
        if isinstance(getattr(dims, field.name), dict | list)
    }
    dims = replace(dims, **blank, _world_mesh=None)
    dims.build_mesh()
    axes = dict(AXES)
    meshes = getattr(dims, "_meshes", None) or dims._single_axis_meshes
    if dims.ep == 1:
        del axes["ep"], axes["expert shards"]
    if "etp" not in meshes or dims.ep == 1:
        del axes["etp"]
    groups = {}
    if "fsdp" not in meshes:
        del axes["shards"]
        groups["shards"] = sharding_ranks(dims)
    for kind, axis in axes.items():
        mesh = dims.get_optional_mesh(axis) if axis in meshes else None
        groups[kind] = [torch.distributed.get_rank()]
        if mesh is not None:
            ranks = torch.distributed.get_process_group_ranks(mesh.get_group())
            groups[kind] = ranks
    return groups


def sharding_ranks(dims: Any) -> list[int]:
    """Return the ranks that share this rank's weights in 0.3: an axis, or several."""
    storage = import_module("torchtitan.distributed.full_dtensor")
    mesh, names = storage.resolve_fsdp_mesh(dims)
    if names is None:
        return [torch.distributed.get_rank()]
    ranks: list[int] = mesh[names.shard_names].mesh.flatten().tolist()
    return ranks


@contextmanager
def on_host() -> Iterator[None]:
    """Let a trainer start without a GPU, data, a tokenizer and meters."""
    utils = train.utils
    device = SimpleNamespace(
        set_device=lambda _: None, current_device=lambda: 0, device_count=lambda: 8
    )
    checkpointing._layer_sac_count = 0
    patches = [
        mock.patch.object(utils, "device_type", "cpu"),
        mock.patch.object(utils, "device_module", device),
        mock.patch.object(parallel_dims, "device_type", "cpu"),
        mock.patch.object(utils, "GarbageCollection", mock.MagicMock()),
        mock.patch.object(metrics, "build_device_memory_monitor", mock.MagicMock()),
        mock.patch.dict("os.environ", LOCAL_RANK="0"),
    ]
    if not IS_COMMAND:
        specs = train.train_spec_module
        known = specs.get_train_spec
        none = {"build_tokenizer_fn": None, "build_dataloader_fn": None}
        without_data = lambda name: replace(known(name), **none)  # noqa: E731
        patches.append(mock.patch.object(specs, "get_train_spec", without_data))
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def start_trainer(job: Any) -> Facts:
    """Start the trainer of this rank, until it has its part of the model."""
    built: list[Any] = []
    sharded: list[Facts] = []

    def to_empty(module: Any, **_: Any) -> None:
        built.append(module)
        raise BuiltError

    def fully_shard(modules: Any, **options: Any) -> Any:
        sharded.append(options)
        for module in modules if isinstance(modules, list) else [modules]:
            for name in SETTERS:
                setattr(module, name, lambda *_, **__: None)
        return modules

    if sharding is not None:
        sharding.fully_shard = fully_shard
    trainer = train.Trainer.__new__(train.Trainer)
    with mock.patch.object(torch.nn.Module, "to_empty", to_empty), suppress(BuiltError):
        train.Trainer.__init__(trainer, job)
    parts = getattr(trainer, "model_parts", None) or built
    schedule = getattr(trainer, "pp_schedule", None)
    stages: list[Any] = [SimpleNamespace(stage_index=0)]
    if schedule is not None:
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
    dims = trainer.parallel_dims
    blocks = [block for part in parts for block in part.layers.values()]
    view_keys(blocks, dims.tp)
    states = sharded_states(blocks)
    if IS_COMMAND:
        states = recorded_states(sharded, is_alone=dims.dp_shard * dims.cp == 1)
    steps = trainer.gradient_accumulation_steps
    return {
        "blocks": [len(part.layers) for part in parts],
        "again": [sum(map(is_again, part.layers.values())) for part in parts],
        "indices": [stage.stage_index for stage in stages],
        "num_microbatches": steps * getattr(schedule, "_n_microbatches", 1),
        "schedule": SCHEDULES[type(schedule).__name__ if schedule else ""],
        "states": states,
    }


def view_keys(blocks: Iterable[Any], tp: int) -> None:
    """View a rank's columns of keys as heads, as the first forward pass does."""
    for attention in (getattr(block, "attention", None) for block in blocks):
        if hasattr(attention, "wk") and hasattr(attention, "head_dim"):
            columns = attention.wk.weight.shape[0] // tp
            keys = torch.empty(1, 1, columns, device="meta")
            keys.view(1, 1, -1, attention.head_dim)


def is_again(block: Any) -> bool:
    """Tell whether a block is computed again whole, or in part."""
    return any(isinstance(module, CheckpointWrapper) for module in block.modules())


def recorded_states(sharded: list[Facts], *, is_alone: bool) -> set[tuple[int, bool]]:
    """Return the ZeRO stage of what would be sharded, and whether hosts keep it."""
    again = any(options.get("reshard_after_forward") for options in sharded)
    stage = 0 if is_alone else 3 if again else 2
    return {(stage, "offload_policy" in options) for options in sharded}


def whole_facts(stages: list[Facts]) -> Facts:
    """Return what all stages are together, virtual ones in the order of the chain."""
    order = sorted(
        row
        for stage in stages
        for row in zip(stage["indices"], stage["blocks"], stage["again"], strict=True)
    )
    states = {state for stage in stages for state in stage["states"]}
    return {
        "blocks": [blocks for _, blocks, _ in order],
        "again": [again for _, _, again in order],
        "zero_stage": sorted({zero for zero, _ in states}),
        "kept": sorted({kept for _, kept in states}),
        "num_microbatches": max(stage["num_microbatches"] for stage in stages),
        "schedule": stages[0]["schedule"],
    }


if __name__ == "__main__":
    answer_all(launch)
