"""Configurations of Mamba-2 hybrids, T5 and vision transformers, as published."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.models.huggingface import load_huggingface
from estimators.models.library import hybrid_pattern, load_model
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

NEMOTRON_H = """{
    "model_type": "nemotron_h",
    "attention_bias": false,
    "attention_head_dim": 128,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 128,
    "mamba_proj_bias": false,
    "max_position_embeddings": 8192,
    "mlp_bias": false,
    "mlp_hidden_act": "relu2",
    "n_groups": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 52,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "tie_word_embeddings": false,
    "time_step_limit": [0.0, Infinity],
    "use_bias": false,
    "use_conv_bias": true,
    "vocab_size": 131072
}"""

T5 = {
    "model_type": "t5",
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "dropout_rate": 0.1,
    "feed_forward_proj": "relu",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}

VIT = {
    "model_type": "vit",
    "hidden_act": "gelu",
    "hidden_size": 768,
    "id2label": {str(label): f"label {label}" for label in range(1000)},
    "image_size": 224,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_channels": 3,
    "num_hidden_layers": 12,
    "patch_size": 16,
    "qkv_bias": True,
}


def written(folder: Path, config: str | dict[str, Any]) -> Path:
    file = folder / "config.json"
    text = config if isinstance(config, str) else json.dumps(config)
    file.write_text(text, encoding="utf-8")
    return file


@failures.over(
    ("name", "config"),
    [("nemotron-h-8b", NEMOTRON_H), ("t5-small", T5), ("vit-b-16", VIT)],
)
def test_published_configurations_are_the_library_s(
    tmp_path: Path, name: str, config: str | dict[str, Any]
) -> None:
    assert load_huggingface(written(tmp_path, config)) == load_model(name)


def test_words_for_blocks_are_read_like_letters(tmp_path: Path) -> None:
    values = json.loads(NEMOTRON_H.replace("Infinity", "1"))
    values["layers_block_type"] = ["mamba", "mlp", "attention", "linear_attention"]
    spec = load_huggingface(written(tmp_path, values))
    assert spec.block_pattern == hybrid_pattern("M-*M")


def test_a_multilingual_t5_is_read_like_a_t5(tmp_path: Path) -> None:
    values = {**T5, "model_type": "mt5", "feed_forward_proj": "gated-gelu"}
    values |= {"tie_word_embeddings": False, "vocab_size": 250112, "d_ff": 1024}
    values |= {"num_layers": 8, "num_heads": 6}
    graph = trace_model(load_huggingface(written(tmp_path, values)))
    assert graph.num_parameters == 300_176_768  # google/mt5-small


@failures.over(
    ("config", "changes", "where"),
    [
        (json.loads(NEMOTRON_H.replace("Infinity", "1")), changes, where)
        for changes, where in (
            ({"hybrid_override_pattern": "M-E"}, "n_routed_experts"),
            ({"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
            ({"layers_block_type": ["moe"]}, "n_routed_experts"),
            ({"layers_block_type": ["rwkv"]}, "layers_block_type"),
            ({"layers_block_type": []}, "layers_block_type"),
            ({"mlp_hidden_act": "silu"}, "mlp_hidden_act"),
            ({"conv_kernel": 3}, "conv_kernel"),
            ({"n_groups": 7}, "mamba_num_groups"),
        )
    ]
    + [
        (T5, {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj"),
        (T5, {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets"),
        (VIT, {"qkv_bias": False}, "qkv_bias"),
        (T5, {"num_layers": 10**12}, "num_layers"),
        (T5, {"num_decoder_layers": 10**12}, "num_layers"),
        (VIT, {"patch_size": 15}, "patch_size"),
        (VIT, {"num_channels": 1}, "num_channels"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_huggingface(written(tmp_path, {**config, **changes}))
    assert where in str(caught.value)
    assert caught.value.expected
