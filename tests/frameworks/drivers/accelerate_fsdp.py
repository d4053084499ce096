"""What PyTorch's FSDP makes of a plan, with the meshes of Accelerate.

Called: ``ParallelismConfig`` and ``TorchContextParallelConfig`` of Accelerate with
their checks, the device mesh on each rank, and ``fully_shard`` on the blocks of a Llama
of Transformers without memory for weights. Stubbed: nothing but the process groups.
Not called: tensor parallelism inside of a block. nestsim writes no configurations of
Accelerate: the table [plan] is translated here, a pipeline to an argument that
``ParallelismConfig`` does not have.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

import torch
from accelerate import ParallelismConfig
from accelerate.utils import TorchContextParallelConfig
from answering import Facts, all_groups, answer_all, as_rank, sharded_states
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

KINDS = {"p2p": "alltoall", "all_gather": "allgather"}
"""Kind of context parallelism -> how shards of keys and values go round."""

AXES = {"tp": "tp", "cp": "cp", "dp": "dp", "dp-cp": "dp_cp", "shards": "dp_shard_cp"}
"""Kind of group -> dimension of the mesh."""


def launch(world: int) -> Facts:
    """Configure what the plan has, and return what it is."""
    plan = tomllib.loads(Path("plan.toml").read_text("utf-8"))["plan"]
    model = json.loads(Path("scenario.json").read_text("utf-8"))["model"]
    config = parallelism(plan)

    def of_rank() -> Facts:
        mesh = config.build_device_mesh("cpu")
        flat = {
            "dp": config.dp_dim_names,
            "dp_cp": config.dp_cp_dim_names,
            "dp_shard_cp": config.dp_shard_cp_dim_names,
        }
        known = {*config.active_mesh_dims, *(axis for axis in flat if flat[axis])}
        alone = [torch.distributed.get_rank()]
        return {
            kind: mesh[axis].get_group() if axis in known else alone
            for kind, axis in AXES.items()
        }

    facts = all_groups(world, of_rank)
    with as_rank(0, world):
        blocks = sharded_blocks(plan, model, config)
        states = sharded_states(blocks)
    kind = plan.get("cp_comm_type", "p2p") if config.cp_size > 1 else ""
    return {
        **facts,
        "blocks": [len(blocks)],
        "zero_stage": sorted({stage for stage, _ in states}),
        "kept": sorted({kept for _, kept in states}),
        "context": [kind] if kind else [],
    }


def parallelism(plan: Facts) -> Any:
    """Return the sizes as Accelerate takes them."""
    dp, cp = plan["data_parallel_size"], plan.get("context_parallel_size", 1)
    shards = max(plan.get("sharding_group_size", dp * cp) // cp, 1)
    shards = shards if plan["zero_stage"] else 1
    given: Facts = {}
    if cp > 1:
        kind = KINDS.get(plan.get("cp_comm_type", "p2p"), plan.get("cp_comm_type"))
        given["cp_handler"] = TorchContextParallelConfig(cp_comm_strategy=kind)
    if (pp := plan.get("pipeline_model_parallel_size", 1)) > 1:
        given["pp_size"] = pp
    return ParallelismConfig(
        dp_replicate_size=dp // shards,
        dp_shard_size=shards,
        tp_size=plan.get("tensor_model_parallel_size", 1),
        cp_size=cp,
        **given,
    )


def sharded_blocks(plan: Facts, model: Facts, config: Any) -> list[Any]:
    """Return the blocks of a Llama, each sharded as the plan says."""
    with torch.device("meta"):
        llama = LlamaForCausalLM(
            LlamaConfig(
                num_hidden_layers=model["num_layers"],
                hidden_size=model["hidden_size"],
                num_attention_heads=model["num_attention_heads"],
                num_key_value_heads=model["num_query_groups"],
                vocab_size=model["vocab_size"],
            )
        )
    blocks = list(llama.model.layers)
    kept = ("weights", "gradients", "optimizer")
    on_hosts = all(plan.get(f"offload_{name}") == 1.0 for name in kept)
    mesh = config.build_device_mesh("cpu")
    if plan["zero_stage"]:
        for block in blocks:
            fully_shard(
                block,
                mesh=mesh[tuple(config.fsdp_dim_names)],
                reshard_after_forward=plan["zero_stage"] == 3,
                offload_policy=CPUOffloadPolicy() if on_hosts else OffloadPolicy(),
            )
    return blocks


if __name__ == "__main__":
    answer_all(launch)
