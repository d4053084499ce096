"""What MaxText makes of a YAML file and the words of its script.

Called: ``pyconfig.initialize`` with all checks of its types, and
``create_device_mesh``; the module that the script starts must be there. Stubbed: the
devices, which are named and nothing more: JAX takes them in their order, as it does not
take a torus of TPUs. Not called: the building of the model.
"""

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
from answering import Facts, answer_all, launched_words
from maxtext.configs import pyconfig
from maxtext.utils import maxtext_utils

WORDS = (
    *("run_name=r", "skip_jax_distributed_system=True", "enable_checkpointing=False"),
    "base_output_directory=.",
)
"""What users say for themselves, in front of what the script leaves open."""

AXES = {
    "tp": ("tensor", "tensor_sequence"),
    "cp": ("context", "context_usp_ulysses"),
    "exchanges": ("context_usp_ulysses",),
    "rings": ("context",),
    "dp": ("data", "fsdp", "expert"),
    "dp-cp": ("data", "fsdp", "expert", "context", "context_usp_ulysses"),
    "pp": ("stage",),
    "ep": ("expert",),
    "expert dp": ("data", "fsdp", "context", "context_usp_ulysses"),
    "shards": ("fsdp", "context", "context_usp_ulysses", "expert"),
}
"""Kind of group -> axes of the mesh."""

KINDS = {"ring": "p2p", "ulysses": "a2a", "usp": "a2a+p2p"}
"""Strategy of context parallelism -> what is priced, where it is called otherwise."""


def launch(world: int) -> Facts:
    """Read what the script starts, and return what it makes."""
    module, file, *_ = launched_words("maxtext.sh", "-m")
    if find_spec(module) is None:
        raise ModuleNotFoundError(module)
    devices = [
        SimpleNamespace(
            id=index,
            platform="gpu",
            device_kind="NVIDIA H100",
            process_index=index // 8,
            slice_index=index // 8,
        )
        for index in range(world)
    ]
    patches = {
        "devices": lambda *_, **__: devices,
        "device_count": lambda *_, **__: len(devices),
        "local_device_count": lambda *_, **__: min(len(devices), 8),
    }
    with mock.patch.multiple(jax, **patches):
        config = pyconfig.initialize(["train", file, *WORDS])
        mesh = maxtext_utils.create_device_mesh(config, devices)
    return facts(config, np.vectorize(lambda device: device.id)(mesh))


def facts(config: Any, mesh: Any) -> Facts:
    """Return what a configuration and its mesh are."""
    sizes = dict(zip(config.mesh_axes, mesh.shape, strict=True))
    groups = {kind: rows(mesh, list(sizes), names) for kind, names in AXES.items()}
    if config.num_experts == 1:
        del groups["ep"], groups["expert dp"]
    zero = 3 if len(groups["shards"][0]) > 1 else int(config.shard_optimizer_over_data)
    if zero == 1:
        groups["shards"] = rows(mesh, list(sizes), ("data",))
        zero = int(sizes["data"] > 1)
    stages = sizes["stage"]
    blocks = [config.num_decoder_layers]
    number = config.gradient_accumulation_steps
    if stages > 1:
        repeats = stages * config.num_pipeline_repeats
        blocks = [config.num_layers_per_pipeline_stage] * repeats
        number *= config.num_pipeline_microbatches
    kind = config.context_parallel_strategy
    return {
        **groups,
        "zero_stage": [zero],
        "blocks": blocks,
        "num_microbatches": number,
        "global_batch_size": config.global_batch_size_to_train_on,
        "context": [KINDS.get(kind, kind)] if len(groups["cp"][0]) > 1 else [],
    }


def rows(mesh: Any, axes: list[str], names: tuple[str, ...]) -> list[list[int]]:
    """Return the devices along some axes, sorted."""
    along = [axes.index(name) for name in names if name in axes]
    size = int(np.prod([mesh.shape[axis] for axis in along]))
    last = np.moveaxis(mesh, along, range(-len(along), 0)).reshape(-1, size)
    return sorted(sorted(map(int, row)) for row in last)


if __name__ == "__main__":
    answer_all(launch)
