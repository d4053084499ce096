"""Readers of Qwen's models with experts."""

from dataclasses import replace

from estimators.models.huggingface.config_file import ConfigFile
from estimators.models.huggingface.llama import read_llama
from estimators.models.mixtures import expert_pattern
from estimators.models.spec import TransformerSpec


def read_qwen2_moe(config: ConfigFile) -> TransformerSpec:
    """Read Qwen1.5-MoE or Qwen2-MoE: shared experts behind a gate."""
    return replace(
        _read_qwen(config),
        add_qkv_bias=config.flag("qkv_bias", default=True),
        moe_shared_expert_intermediate_size=config.integer(
            "shared_expert_intermediate_size"
        ),
        moe_shared_expert_gate=True,
    )


def _read_qwen(config: ConfigFile) -> TransformerSpec:
    config.require("use_sliding_window", default=False, allowed=(False,))
    dense = read_llama(config)
    every = config.integer("decoder_sparse_step", 1)
    without = config.indices("mlp_only_layers")
    return replace(
        dense,
        family="mixtral",
        block_pattern=expert_pattern(
            dense.num_layers,
            lambda index: index not in without and (index + 1) % every == 0,
        ),
        num_moe_experts=config.integer("num_experts"),
        moe_router_topk=config.integer("num_experts_per_tok"),
        moe_ffn_hidden_size=config.integer("moe_intermediate_size"),
        moe_router_pre_softmax=not config.flag("norm_topk_prob", default=False),
    )
