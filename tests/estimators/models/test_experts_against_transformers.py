"""Models with experts against transformers' own modules: parameters and FLOPs.

Both are built small from one ``config.json``, transformers' with weights drawn on the
CPU: where a token goes is not known without values. torch's counter counts the full
square of attention, whatever a mask hides, and so does `model_flops` but for windows
and chunks, which are widened here to whole sequences. Angles of rotary embeddings are
a product in transformers, and a table here; multi-token prediction is in no module of
transformers. The reference module of Llama 4 sends all tokens to all experts.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from estimators.models.huggingface import load_huggingface
from estimators.tracing.trace import trace_model
from tests import failures

transformers = pytest.importorskip("transformers")

LENGTH = 32
SMALL = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 211,
    "max_position_embeddings": LENGTH,
    "num_experts_per_tok": 2,
    "pad_token_id": None,
}
LATENT = {
    **SMALL,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
QWEN = {**SMALL, "num_experts": 8, "moe_intermediate_size": 24}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("MixtralConfig", {**SMALL, "num_local_experts": 4}),
    "deepseek_v2": ("DeepseekV2Config", LATENT),
    "deepseek_v2, groups": (
        "DeepseekV2Config",
        {
            **LATENT,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
        },
    ),
    "deepseek_v2, lite": ("DeepseekV2Config", {**LATENT, "q_lora_rank": None}),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**LATENT, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0},
    ),
    "qwen2_moe": ("Qwen2MoeConfig", {**QWEN, "shared_expert_intermediate_size": 40}),
    "qwen2_moe, some dense": (
        "Qwen2MoeConfig",
        {
            **QWEN,
            "shared_expert_intermediate_size": 40,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
        },
    ),
    "qwen3_moe": ("Qwen3MoeConfig", {**QWEN, "head_dim": 24}),
    "gpt_oss": (
        "GptOssConfig",
        {**SMALL, "num_local_experts": 4, "head_dim": 24, "sliding_window": 8},
    ),
    "glm4_moe": (
        "Glm4MoeConfig",
        {
            **SMALL,
            "head_dim": 24,
            "attention_bias": True,
            "use_qk_norm": True,
            "moe_intermediate_size": 24,
            "n_routed_experts": 8,
            "num_nextn_predict_layers": 0,
        },
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            **SMALL,
            "num_experts_per_tok": 1,
            "num_local_experts": 4,
            "intermediate_size": 24,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 16,
            "head_dim": 24,
        },
    ),
}


def hub_counts(config: Any) -> tuple[int, int]:
    """Return parameters and forward FLOPs of transformers' model."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager"
        ).eval()
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02, generator=generator)
        for buffer in model.buffers():
            buffer.zero_()
    tokens = torch.zeros(1, LENGTH, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(tokens, use_cache=False)
    angles = sum(
        sum(counts.values())
        for path, counts in counter.get_flop_counts().items()
        if path.split(".")[-1].startswith("rotary_emb")
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return parameters, counter.get_total_flops() - angles


@failures.over("kind", CONFIGS)
def test_parameters_and_flops_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    name, values = CONFIGS[kind]
    config = getattr(transformers, name)(**values)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()), encoding="utf-8")
    spec = load_huggingface(file, sequence_length=LENGTH)
    parameters, flops = hub_counts(config)
    assert trace_model(spec).num_parameters == parameters
    if spec.window_size:
        spec = replace(spec, window_size=LENGTH)
    if spec.attention_chunk_size:
        spec = replace(spec, attention_chunk_size=LENGTH)
    if kind == "llama4":
        spec = replace(spec, moe_router_topk=spec.num_moe_experts)
    graph = trace_model(spec)
    by_kind = [sum(op.model_flops for op in one.operators) for one in graph.layers]
    assert sum(by_kind[place] for place in graph.kinds) == flops


def test_llama4_s_blocks_differ_as_those_of_transformers(tmp_path: Path) -> None:
    name, values = CONFIGS["llama4"]
    config = getattr(transformers, name)(**values)
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({"model_type": "llama4", "text_config": config.to_dict()})
    )
    spec = load_huggingface(file, sequence_length=LENGTH)
    mixers = {"chunked_attention": "chunked", "full_attention": "unturned"}
    expected = [
        f"{mixers[kind]}+{'experts' if index in config.moe_layers else 'dense'}"
        for index, kind in enumerate(config.layer_types)
    ]
    assert list(spec.block_pattern) == expected
    assert spec.attention_chunk_size == 16
