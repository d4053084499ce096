"""What InternEvo makes of a plan: its groups, stages and schedule.

Called: ``gpc.load_config``, ``init_parallel_groups`` on each rank,
``args_sanity_check``, ``partition_uniform`` and the checks of the interleaved
scheduler. Stubbed: ``internlm.core.parallel.comm``, which the wheel of 0.5.2 leaves
out, and what else is not installed; the accelerator. Its model is not built. nestsim
writes no configurations of InternEvo: the table [plan] is translated here.
"""

import json
import sys
import tomllib
from pathlib import Path

import torch
from answering import Facts, Stub, all_groups, answer_all, as_rank

for name in ("", ".isp", ".tensor", ".zero", ".utils", ".attn_offload"):
    module = f"internlm.core.parallel.comm{name}"
    sys.modules[module] = Stub(module)

from internlm.core.context import ParallelMode  # noqa: E402
from internlm.core.context import global_context as gpc  # noqa: E402
from internlm.core.parallel.shard import partition_uniform  # noqa: E402
from internlm.core.scheduler import pipeline_scheduler  # noqa: E402
from internlm.initialize import launch as launching  # noqa: E402

MODES = {
    "tp": ParallelMode.TENSOR,
    "dp": ParallelMode.DATA,
    "dp-cp": ParallelMode.DATA,
    "shards": ParallelMode.ZERO1,
    "ep": ParallelMode.EXPERT,
    "expert dp": ParallelMode.EXPERT_DATA,
    "pp": ParallelMode.PIPELINE,
}
"""Kind of group -> what InternEvo calls it."""


def launch(world: int) -> Facts:
    """Configure what the plan has, and return what it is."""
    plan = tomllib.loads(Path("plan.toml").read_text("utf-8"))["plan"]
    scenario = json.loads(Path("scenario.json").read_text("utf-8"))
    config = configuration(plan, scenario)
    stages = plan.get("pipeline_model_parallel_size", 1)
    chunks = config["model"]["num_chunks"]

    def of_rank() -> Facts:
        start_rank(config, world)
        known = {kind: mode for kind, mode in MODES.items() if mode in gpc._groups}
        alone = {kind: [torch.distributed.get_rank()] for kind in ("shards", "pp")}
        return alone | {k: gpc.get_ranks_in_group(mode) for k, mode in known.items()}

    facts = all_groups(world, of_rank)
    if config["model"]["num_experts"] == 1:
        facts = {k: v for k, v in facts.items() if k not in ("ep", "expert dp")}
    with as_rank(0, world):
        start_rank(config, world)
        launching.args_sanity_check()
        zero = gpc.config.parallel.zero1
        shards = 3 if zero.fsdp else int(gpc.zero1_parallel_size > 1)
        dp, splits = gpc.data_parallel_size, gpc.config.parallel.sequence_parallel
        number = scenario["training"]["global_batch_size"] // (
            dp * plan["micro_batch_size"]
        )
        if chunks > 1:
            pipeline_scheduler.InterleavedPipelineScheduler(number, chunks)
    parts = partition_uniform(config["model"]["num_layers"], stages, chunks)
    return {
        **facts,
        "blocks": [
            parts[stage][chunk][1] - parts[stage][chunk][0]
            for chunk in range(chunks)
            for stage in range(stages)
        ],
        "num_microbatches": number,
        "recompute": ["full" if gpc.config.model.checkpoint else "none"],
        "zero_stage": [shards],
        "sequence_parallel": bool(splits),
    }


def configuration(plan: Facts, scenario: Facts) -> Facts:
    """Return a configuration, as ``configs/`` of InternEvo have them."""
    tp = plan.get("tensor_model_parallel_size", 1)
    pp = plan.get("pipeline_model_parallel_size", 1)
    zero = plan["zero_stage"]
    size = plan.get("sharding_group_size", -1) if zero else 1
    model = scenario["model"]
    return {
        "parallel": {
            "zero1": {"size": size, "fsdp": zero == 3},
            "tensor": {
                "size": tp,
                "mode": "msp" if plan["sequence_parallel"] else "mtp",
            },
            "pipeline": {"size": pp, "interleaved_overlap": True},
            "weight": {"size": 1, "overlap": False, "memory_pool": False},
        },
        "model_type": "INTERNLM_MoE" if "num_moe_experts" in model else "INTERNLM",
        "model": {
            "num_layers": model["num_layers"],
            "num_chunks": plan.get("virtual_pipeline_model_parallel_size", 1),
            "num_experts": model.get("num_moe_experts", 1),
            "checkpoint": plan["recompute"] != "none",
            "dtype": "torch.bfloat16",
        },
        "data": {
            "seq_len": model["sequence_length"],
            "micro_bsz": plan["micro_batch_size"],
            "pack_sample_into_one": False,
            "rampup_batch_size": None,
        },
        "ckpt": {"enable_save_ckpt": False},
        **{
            name: {}
            for name in ("grad_scaler", "hybrid_zero_optimizer", "adam", "loss")
        },
        "beta2_scheduler": {},
    }


def start_rank(config: Facts, world: int) -> None:
    """Make the groups of this rank, as ``launch`` of ``internlm.initialize`` does."""
    gpc._groups.clear()
    gpc.load_config(json.loads(json.dumps(config)))
    rank = torch.distributed.get_rank()
    ranks = list(range(world))
    group = torch.distributed.group.WORLD
    gpc._register_dist(rank, world, group, None, ranks, ParallelMode.GLOBAL)
    gpc._global_ranks[ParallelMode.GLOBAL] = rank
    gpc.init_parallel_groups()


if __name__ == "__main__":
    answer_all(launch)
