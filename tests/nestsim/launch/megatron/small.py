"""A small job, and plans of it in which each field is not its default."""

from typing import Any

from nestsim.scenario.load import Scenario

MODEL = {
    "family": "mixtral",
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "sequence_length": 256,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
}
CLUSTER = {
    "accelerator": "h100-sxm",
    "num_devices": 16,
    "network": {
        "kind": "fat-tree",
        "nic": "device",
        "levels": [
            {
                "name": "node",
                "fan_out": 8,
                "bandwidth": "450 GB/s",
                "latency": "500 ns",
                "efficiency": 0.8,
            },
            {
                "name": "fabric",
                "fan_out": 2,
                "bandwidth": "400 Gbit/s",
                "latency": "1 us",
                "efficiency": 0.9,
            },
        ],
    },
}
PLAN = {
    "micro_batch_size": 1,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "sequence_parallel": True,
    "zero_stage": 1,
    "recompute": "none",
}


def small_scenario(plan: dict[str, Any], **tables: dict[str, Any]) -> Scenario:
    """Return a mixture of experts of 8 blocks on 16 devices."""
    return Scenario.from_dict(
        {
            "name": "small",
            "model": MODEL | tables.get("model", {}),
            "training": {"global_batch_size": 64} | tables.get("training", {}),
            "software": {"preset": "megatron-core"} | tables.get("software", {}),
            "cluster": CLUSTER,
            "plan": PLAN | plan,
        }
    )


CHANGED: dict[str, dict[str, Any]] = {
    "micro_batch_size": {"micro_batch_size": 2},
    "tensor_model_parallel_size": {"tensor_model_parallel_size": 4},
    "pipeline_model_parallel_size": {"pipeline_model_parallel_size": 4},
    "virtual_pipeline_model_parallel_size": {"virtual_pipeline_model_parallel_size": 2},
    "data_parallel_size": {"data_parallel_size": 2},
    "num_microbatches": {"num_microbatches": 6, "micro_batch_size": 3},
    "context_parallel_size": {"context_parallel_size": 2},
    "expert_model_parallel_size": {"expert_model_parallel_size": 4},
    "expert_tensor_parallel_size": {
        "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 4,
    },
    "cp_comm_type": {"context_parallel_size": 2, "cp_comm_type": "all_gather"},
    "hierarchical_context_parallel_sizes": {
        "tensor_model_parallel_size": 1,
        "context_parallel_size": 4,
        "cp_comm_type": "a2a+p2p",
        "hierarchical_context_parallel_sizes": [2, 2],
    },
    "microbatch_group_size_per_vp_stage": {
        "virtual_pipeline_model_parallel_size": 2,
        "microbatch_group_size_per_vp_stage": 4,
    },
    "sequence_parallel": {"sequence_parallel": False},
    "schedule": {"schedule": "gpipe"},
    "overlap_moe_expert_parallel_comm": {
        "overlap_moe_expert_parallel_comm": True,
        "expert_model_parallel_size": 4,
        "virtual_pipeline_model_parallel_size": 2,
    },
    "recompute": {"recompute": ["full", "none"]},
    "recompute_modules": {
        "recompute": "selective",
        "recompute_modules": ["layernorm"],
    },
    "zero_stage": {"zero_stage": [1, 0]},
    "sharding_group_size": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "sharding_group_size": 8,
    },
    "zero_hpz_partition_size": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "zero_stage": 3,
        "zero_hpz_partition_size": 8,
    },
    "reshard_after_forward": {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "zero_stage": 3,
        "reshard_after_forward": 8,
    },
    "recompute_num_layers": {"recompute": "full", "recompute_num_layers": 2},
    "offload_weights": {"offload_weights": 0.5},
    "offload_gradients": {"offload_gradients": 0.5},
    "offload_optimizer": {"offload_optimizer": 0.25},
    "offload_activations": {"offload_activations": 0.5},
    "num_layers_in_first_pipeline_stage": {"num_layers_in_first_pipeline_stage": 3},
    "num_layers_in_last_pipeline_stage": {"num_layers_in_last_pipeline_stage": 3},
    "num_layers_per_pipeline_stage": {
        "pipeline_model_parallel_size": 4,
        "num_layers_per_pipeline_stage": [1, 3, 2, 2],
    },
    "pipeline_model_parallel_layout": {
        "virtual_pipeline_model_parallel_size": 2,
        "pipeline_model_parallel_layout": [1, 3, 3, 1],
    },
    "account_for_embedding_in_pipeline_split": {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
    },
    "account_for_loss_in_pipeline_split": {
        "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True,
        "pipeline_model_parallel_size": 1,
    },
    "order": {"order": "tp-cp-pp-ep-dp", "expert_model_parallel_size": 2},
    "placement": {"placement": "tp2 pp2 ep2 dp2", "expert_model_parallel_size": 2},
    "gradient_algorithm": {"gradient_algorithm": "double-binary-tree"},
    "tensor_algorithm": {"tensor_algorithm": "double-binary-tree"},
}
"""Field of a plan -> settings in which it is not its default."""
