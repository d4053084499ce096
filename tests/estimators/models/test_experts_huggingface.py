"""Published configurations of models with experts are the library's models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from estimators.models.huggingface import load_huggingface
from estimators.models.library import load_model
from tests import failures
from topologies.errors import InputError

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v3": DEEPSEEK_V3,
    "kimi-k2": DEEPSEEK_V3
    | {
        "model_type": "kimi_k2",
        "first_k_dense_replace": 1,
        "max_position_embeddings": 131072,
        "n_group": 1,
        "n_routed_experts": 384,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0,
        "topk_group": 1,
        "vocab_size": 163840,
    },
    "deepseek-v2-lite": DEEPSEEK_V3
    | {
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "num_nextn_predict_layers": None,
        "q_lora_rank": None,
        "scoring_func": "softmax",
        "topk_group": 1,
        "topk_method": "greedy",
        "vocab_size": 102400,
    },
    "qwen3-30b-a3b": QWEN3_MOE,
    "qwen1.5-moe-a2.7b": QWEN3_MOE
    | {
        "model_type": "qwen2_moe",
        "head_dim": None,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 16,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072,
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": 24,
        "num_key_value_heads": 8,
        "num_local_experts": 32,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": 201088,
    },
    "llama4-maverick": {
        "model_type": "llama4",
        "text_config": {
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "interleave_moe_layer_step": 2,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 262144,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 128,
            "tie_word_embeddings": False,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
    },
    "glm-4.5": {
        "model_type": "glm4_moe",
        "attention_bias": True,
        "first_k_dense_replace": 3,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "moe_intermediate_size": 1536,
        "n_group": 1,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 92,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "use_qk_norm": True,
        "vocab_size": 151552,
    },
}


def write(folder: Path, values: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    return file


@failures.over("name", CONFIGS)
def test_a_configuration_is_the_library_s_model(tmp_path: Path, name: str) -> None:
    """But for rows that rotary positions do not have, and a width that no block has."""
    spec = load_model(name)
    file = write(tmp_path, CONFIGS[name])
    found = load_huggingface(file, sequence_length=spec.sequence_length)
    unused = {"max_position_embeddings": spec.max_position_embeddings}
    if not any(kind.endswith("dense") for kind in spec.block_kinds.values()):
        unused["ffn_hidden_size"] = spec.ffn_hidden_size
    assert replace(found, **unused) == spec


@failures.over(
    ("name", "key", "value"),
    [
        ("deepseek-v3", "scoring_func", "softmax"),
        ("deepseek-v3", "n_routed_experts", 0),
        ("deepseek-v3", "first_k_dense_replace", -1),
        ("deepseek-v3", "first_k_dense_replace", False),
        ("deepseek-v3", "num_hidden_layers", 10**9),
        ("qwen3-30b-a3b", "mlp_only_layers", 3),
        ("qwen3-30b-a3b", "use_sliding_window", True),
        ("gpt-oss-20b", "attention_bias", False),
        ("gpt-oss-20b", "num_local_experts", "32"),
        ("llama4-maverick", "text_config", None),
        ("glm-4.5", "num_nextn_predict_layers", 2.5),
    ],
)
def test_odd_values_are_refused_with_file_and_key(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    file = write(tmp_path, CONFIGS[name] | {key: value})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    ours = "num_layers" if key == "num_hidden_layers" else key
    assert caught.value.where == f"{file}: {ours}"
