"""Refuse to start a job whose ranks are not grouped as its plan was priced.

Started like the job, before it, by the same launcher and with the job's own options:

    torchrun .. check_launch.py groups.json --tensor-model-parallel-size 2 .. && ..

Each rank says where it runs, and makes the framework's groups with the framework's own
code where that can be imported: Megatron Core, torchtitan or DeepSpeed. What differs
from ``groups.json`` first is said in a line, and nothing is started.
"""

import importlib
import inspect
import json
import os
import re
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

OPTIONS = {
    "tp": "tensor-(?:model-)?parallel-(?:size|degree)",
    "pp": "pipeline-(?:model-)?parallel-(?:size|degree)",
    "cp": "(?:context|ds-sequence)-parallel-(?:size|degree)",
    "ep": "expert-(?:model-)?parallel-(?:size|degree)",
    "etp": "expert-tensor-parallel-(?:size|degree)",
    "dp_replicate": "data-parallel-replicate-degree",
    "micro_batch_size": "micro-batch-size",
    "global_batch_size": "global-batch-size",
}
"""Size in ``groups.json`` -> how the options of a job call it."""

MEGATRON = {
    "tp": "tensor_model",
    "cp": "context",
    "dp": "data",
    "pp": "pipeline_model",
    "ep": "expert_model",
    "etp": "expert_tensor",
    "expert dp": "expert_data",
}
TITAN = {"tp": "tp", "cp": "cp", "dp": "batch", "pp": "pp", "ep": "ep"}
DEEPSPEED = {"tp": "model", "dp": "data", "pp": "pipe"}
"""Kind of a group -> what each framework calls it."""


def expanded(ranges: Sequence[str]) -> Iterator[int]:
    """Yield the devices of ranges such as ``5``, ``0-7`` and ``0-24:8``."""
    for text in ranges:
        first, *more = map(int, re.findall(r"\d+", text))
        last, step = [*more, *[first, 1][len(more) :]]
        yield from range(first, last + 1, step)


def group_of(device: int, kind: Mapping[str, Any]) -> list[int]:
    """Return the devices of the group that a device is in."""
    if "devices" in kind:
        every, size = [*expanded(kind["devices"])], kind["size"]
        begin = every.index(device) // size * size
        return every[begin : begin + size]
    every = [*expanded(kind["by_place"])]
    count = len(every) // kind["size"]
    return every[every.index(device) % count :: count]


def sizes_of(words: Sequence[str]) -> dict[str, int]:
    """Return what the options of a job say; of a file in TOML, what stands in it."""
    text = " ".join(words)
    for file in re.findall(r"[^\s=]+\.toml", text):
        table = tomllib.loads(Path(file).read_text("utf-8")).get("parallelism", {})
        text += "".join(f" --{name} {value}" for name, value in table.items())
    text = text.replace("_", "-")
    values = {
        size: re.findall(rf"(?:--|\.){name}[ =](\d+)", text)
        for size, name in OPTIONS.items()
    }
    return {size: int(last[-1]) for size, last in values.items() if last}


def made(framework: str, sizes: Mapping[str, Any]) -> dict[str, Sequence[int]]:
    """Return this rank's groups as the framework makes them, where it is there."""
    world, rank, tp, pp = (
        dist.get_world_size(),
        dist.get_rank(),
        sizes["tp"],
        sizes["pp"],
    )
    if framework.startswith("megatron"):
        state = importlib.import_module("megatron.core.parallel_state")
        named = {
            f"{name}_parallel_size": sizes[kind]
            for kind, name in MEGATRON.items()
            if kind in sizes
        }
        named |= {"order": sizes["order"], "create_gloo_process_groups": False}
        _with_known(state.initialize_model_parallel, named)
        groups = {
            kind: getattr(state, f"get_{name}_parallel_group")()
            for kind, name in MEGATRON.items()
            if hasattr(state, f"get_{name}_parallel_group")
        }
    elif framework == "torchtitan":
        titan = importlib.import_module("torchtitan.distributed.parallel_dims")
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # used
        vars(titan)["device_type"] = "cpu"  # nothing is sent
        shard = world // (tp * pp * sizes["cp"] * sizes["dp_replicate"])
        shards = {"dp_shard": shard, "world_size": world}
        dims = _with_known(titan.ParallelDims, {**sizes, **shards})
        meshes = {kind: dims.get_optional_mesh(name) for kind, name in TITAN.items()}
        groups = {kind: mesh.get_group() for kind, mesh in meshes.items() if mesh}
    elif framework == "deepspeed" and sizes["cp"] == 1:
        pipe = importlib.import_module("deepspeed.runtime.pipe.topology")
        grid = pipe.PipeModelDataParallelTopology(pp, tp, world // (tp * pp))
        lists = {
            kind: grid.get_axis_comm_lists(axis) for kind, axis in DEEPSPEED.items()
        }
        return {
            kind: members
            for kind, rows in lists.items()
            for members in rows
            if rank in members
        }
    else:
        return {}
    return {kind: dist.get_process_group_ranks(group) for kind, group in groups.items()}


def _with_known(make: Any, named: Mapping[str, Any]) -> Any:
    """Call with those of some arguments that this release of a framework takes."""
    known = inspect.signature(make).parameters
    return make(**{name: value for name, value in named.items() if name in known})


def _places() -> Iterator[tuple[str, int]]:
    """Yield the host of each rank and the number of its device there."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    is_listed = local < len(visible) and visible[local].isdecimal()
    here = socket.gethostname(), int(visible[local]) if is_listed else local
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, here)
    yield from places


def of_options(sizes: dict[str, Any], words: Sequence[str]) -> Iterator[str]:
    """Yield what the options of the job say otherwise."""
    for name, value in sizes_of(words).items():
        if value != sizes.get(name, value):
            yield f"{name} is {value}, and was priced as {sizes[name]}"
    if words and "--use-tp-pp-dp-mapping" in words:
        sizes["order"] = "tp-cp-ep-pp-dp"
    elif words:
        sizes["order"] = "tp-cp-ep-dp-pp"


def of_places(devices: Sequence[int], per_node: int) -> Iterator[str]:
    """Yield which ranks run on other nodes, or in another order on one."""
    places = [*_places()]
    nodes: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(places):
        nodes.setdefault(host, []).append(rank)
    for host, ranks in nodes.items():
        node = devices[ranks[0]] // per_node
        here = [rank for rank, d in enumerate(devices) if d // per_node == node]
        order = sorted(ranks, key=lambda rank: places[rank][1])
        if ranks != here:
            yield f"{host} runs ranks {ranks}, and node {node} was priced with {here}"
        elif order != sorted(ranks, key=lambda rank: devices[rank]):
            yield f"ranks are on the devices of {host} in the order {order}"


def of_groups(
    priced: Mapping[str, Any], devices: Sequence[int], sizes: Mapping[str, Any]
) -> Iterator[str]:
    """Yield which of this rank's groups the framework makes otherwise."""
    rank, groups = dist.get_rank(), {}
    try:
        groups = made(priced["format"], sizes)
    except ImportError:  # where ranks run is checked all the same
        return
    except (AssertionError, RuntimeError, ValueError) as error:
        yield f"{priced['format']} refuses these sizes: {error}"
    for kind, members in groups.items():
        there = sorted(devices[member] for member in members)
        asked = sorted(group_of(devices[rank], priced["groups"][kind]))
        if there != asked:
            group = f"the {kind} group of rank {rank}"
            yield f"{group} is devices {there}, and was priced as {asked}"


def difference(priced: Mapping[str, Any], words: Sequence[str]) -> str:
    """Return what differs first, as this rank sees it; empty if nothing does."""
    sizes = {**priced["sizes"], **priced["batch"], "order": priced["order"]}
    devices = [*expanded(priced["devices"])]
    problems = chain(
        of_options(sizes, words),
        of_places(devices, priced["devices_per_node"]),
        of_groups(priced, devices, sizes),
    )
    return next(problems, "")


def main(words: Sequence[str]) -> None:
    """Compare the launch with the file that is named first, and exit with 1 or 0."""
    priced = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    sys.path.insert(0, str(Path.cwd()))  # a checkout of the framework
    world = int(os.environ["WORLD_SIZE"])
    if world != priced["ranks"]:
        _refuse(f"{world} ranks are started, and {priced['ranks']} were priced")
    dist.init_process_group("gloo")
    problems: list[Any] = [None] * world
    dist.all_gather_object(problems, difference(priced, words[1:]))
    dist.barrier()
    dist.destroy_process_group()
    if first := next((problem for problem in problems if problem), ""):
        _refuse(first)


def _refuse(problem: str) -> NoReturn:
    """Exit with 1; one rank says why."""
    is_first = os.environ.get("RANK", "0") == "0"
    sys.exit(f"Not started: {problem}." if is_first else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
