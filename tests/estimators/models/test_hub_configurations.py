"""Configurations of dense decoders as they stand on the Hugging Face hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.models.huggingface import (
    load_huggingface,
    missing_operator,
    nearest_type,
)
from estimators.models.library import load_model
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "gemma2-9b": {
        "model_type": "gemma2",
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "vocab_size": 256000,
    },
    "gemma3-4b": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    },
    "phi3-mini": {
        "model_type": "phi3",
        "hidden_act": "silu",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "vocab_size": 32064,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "apply_residual_connection_post_layernorm": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "n_embed": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "pretraining_tp": 4,
        "vocab_size": 250880,
    },
    "falcon-7b": {
        "model_type": "falcon",
        "alibi": False,
        "bias": False,
        "hidden_size": 4544,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_attention_heads": 71,
        "num_hidden_layers": 32,
        "parallel_attn": True,
        "vocab_size": 65024,
    },
    "falcon-180b": {
        "model_type": "falcon",
        "alibi": False,
        "bias": False,
        "hidden_size": 14848,
        "new_decoder_architecture": True,
        "num_attention_heads": 232,
        "num_hidden_layers": 80,
        "num_kv_heads": 8,
        "vocab_size": 65024,
    },
    "olmo2-7b": {
        "model_type": "olmo2",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "tie_word_embeddings": False,
        "vocab_size": 100352,
    },
    "glm4-32b-0414": {
        "model_type": "glm4",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 6144,
        "intermediate_size": 23040,
        "max_position_embeddings": 32768,
        "num_attention_heads": 48,
        "num_hidden_layers": 61,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "vocab_size": 151552,
    },
    "nemotron4-340b": {
        "model_type": "nemotron",
        "hidden_act": "relu2",
        "hidden_size": 18432,
        "intermediate_size": 73728,
        "max_position_embeddings": 4096,
        "num_attention_heads": 96,
        "num_hidden_layers": 96,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.5,
        "vocab_size": 256000,
    },
    "starcoder2-3b": {
        "model_type": "starcoder2",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "max_position_embeddings": 16384,
        "num_attention_heads": 24,
        "num_hidden_layers": 30,
        "num_key_value_heads": 2,
        "sliding_window": 4096,
        "use_bias": True,
        "vocab_size": 49152,
    },
    "mpt-7b": {
        "model_type": "mpt",
        "attn_config": {"alibi": True, "attn_impl": "torch", "attn_pdrop": 0},
        "d_model": 4096,
        "expansion_ratio": 4,
        "max_seq_len": 2048,
        "n_heads": 32,
        "n_layers": 32,
        "no_bias": True,
        "vocab_size": 50432,
    },
}


def write(folder: Path, values: object) -> Path:
    """Write a configuration, and return its file."""
    file = folder / "config.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    return file


@failures.over("name", CONFIGS)
def test_published_files_are_the_library_s_models(tmp_path: Path, name: str) -> None:
    """Up to how long sequences are, and windows that those of training do not reach."""
    expected = load_model(name)
    length = expected.sequence_length
    spec = load_huggingface(write(tmp_path, CONFIGS[name]), sequence_length=length)
    found, known = trace_model(spec), trace_model(expected)
    assert found.num_parameters == known.num_parameters
    windowed = name in {"phi3-mini", "starcoder2-3b"}
    assert windowed or found.layers == known.layers
    assert windowed or spec.block_pattern == expected.block_pattern


def test_sequences_are_as_long_as_a_file_allows(tmp_path: Path) -> None:
    lengths = {
        name: load_huggingface(write(tmp_path, config)).sequence_length
        for name, config in CONFIGS.items()
    }
    assert lengths["qwen2.5-7b"] == lengths["gemma3-4b"] == 131_072
    assert lengths["bloom-176b"] == lengths["falcon-7b"] == lengths["mpt-7b"] == 2048


def test_layer_types_say_which_blocks_have_a_window(tmp_path: Path) -> None:
    types = ["full_attention", *["sliding_attention"] * 41]
    config = CONFIGS["gemma2-9b"] | {"layer_types": types}
    spec = load_huggingface(write(tmp_path, config))
    assert spec.block_pattern == ("attention+dense", *["window+dense"] * 41)


def test_without_a_window_no_block_has_one(tmp_path: Path) -> None:
    config = CONFIGS["gemma2-9b"] | {"sliding_window": None}
    spec = load_huggingface(write(tmp_path, config))
    assert spec.block_pattern == ()
    assert spec.window_size == 0


@failures.over(
    ("name", "key", "value"),
    [
        ("qwen2.5-7b", "hidden_act", "gelu"),
        ("qwen2.5-7b", "use_sliding_window", "yes"),
        ("gemma2-9b", "hidden_activation", "silu"),
        ("gemma2-9b", "sliding_window", -1),
        ("gemma2-9b", "layer_types", ["full_attention"]),
        ("gemma2-9b", "layer_types", [["full_attention"]] * 42),
        ("gemma2-9b", "attn_logit_softcapping", "high"),
        ("gemma3-4b", "text_config", 3),
        ("bloom-176b", "apply_residual_connection_post_layernorm", True),
        ("falcon-7b", "activation", "silu"),
        ("falcon-180b", "parallel_attn", False),
        ("nemotron4-340b", "mlp_bias", True),
        ("nemotron4-340b", "partial_rotary_factor", "half"),
        ("mpt-7b", "no_bias", False),
    ],
)
def test_odd_values_are_refused_with_file_and_key(
    tmp_path: Path, name: str, key: str, value: object
) -> None:
    file = write(tmp_path, CONFIGS[name] | {key: value})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: {key}"
    assert caught.value.expected


def test_keys_of_an_object_are_named_with_it(tmp_path: Path) -> None:
    text = CONFIGS["gemma3-4b"]["text_config"] | {"hidden_size": 0}
    file = write(tmp_path, CONFIGS["gemma3-4b"] | {"text_config": text})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: text_config.hidden_size"
    attention = {"alibi": False}
    file = write(tmp_path, CONFIGS["mpt-7b"] | {"attn_config": attention})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: attn_config.alibi"


@failures.over(
    ("model_type", "near"),
    [
        *(("gpt_neo", "gpt2"), ("openai-gpt", "gpt2"), ("GPT-NeoX", "gpt_neox")),
        *(("zamba2", ""), ("gemma4", ""), ("olmo4", ""), ("zaya", ""), ("xyz", "")),
    ],
)
def test_a_type_that_is_not_read_gets_the_nearest(
    tmp_path: Path, model_type: str, near: str
) -> None:
    found = nearest_type(model_type)
    assert found.startswith(near)
    assert bool(found) == bool(near)
    file = write(tmp_path, {"model_type": model_type})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: model_type"
    assert (f'"{found}"' in caught.value.hint) == bool(near)
    assert ("[model]" in caught.value.hint) == bool(
        near or not missing_operator(model_type)
    )


def refused_at(file: Path) -> str:
    """Return where a file is refused, or its name if it is not."""
    try:
        load_huggingface(file)
    except InputError as error:
        return error.where
    return str(file)


ODD = (None, True, 0, -1, 3, 2.5, 1e308, 10**12, "x", "", [], ["x"], {}, {"x": 1})


@failures.over("name", CONFIGS)
def test_whatever_stands_in_a_key_is_read_or_refused(tmp_path: Path, name: str) -> None:
    """With a sentence that names the file; nothing else is ever raised."""
    more = (
        "layer_types",
        "rope_parameters",
        "head_dim",
        "attn_config",
        "sliding_window",
    )
    for key in (*CONFIGS[name], *more):
        for odd in ODD:
            file = write(tmp_path, CONFIGS[name] | {key: odd})
            assert refused_at(file).startswith(str(file))
