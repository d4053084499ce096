"""Hugging Face configurations, as published with the models."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.models.huggingface import load_huggingface
from estimators.models.library import load_model
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
    "mistral": {
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "mixtral": {
        "model_type": "mixtral",
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "num_attention_heads": 32,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
    },
    "gpt2": {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "attn_pdrop": 0.1,
        "n_ctx": 1024,
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "resid_pdrop": 0.1,
        "vocab_size": 50257,
    },
    "gpt_neox": {
        "model_type": "gpt_neox",
        "hidden_act": "gelu_fast",
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "max_position_embeddings": 2048,
        "num_attention_heads": 64,
        "num_hidden_layers": 44,
        "rotary_pct": 0.25,
        "tie_word_embeddings": False,
        "use_parallel_residual": True,
        "vocab_size": 50432,
    },
    "bert": {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "max_position_embeddings": 512,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
}

PUBLISHED_PARAMETERS = {
    "llama": 8_030_261_248,  # Llama 3 8B
    "mistral": 7_241_732_096,  # Mistral 7B v0.1
    "mixtral": 46_702_792_704,  # Mixtral 8x7B
    "gpt2": 124_439_808,  # GPT-2 small
    "gpt_neox": 20_554_567_680,  # GPT-NeoX 20B
    "bert": 336_226_108,  # BERT-Large for pre-training
}


def write(folder: Path, values: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    return file


@failures.over("model_type", CONFIGS)
def test_published_configurations_give_the_published_parameters(
    tmp_path: Path, model_type: str
) -> None:
    spec = load_huggingface(write(tmp_path, CONFIGS[model_type]))
    assert trace_model(spec).num_parameters == PUBLISHED_PARAMETERS[model_type]


def test_a_configuration_equals_the_library_s_model(tmp_path: Path) -> None:
    spec = load_huggingface(write(tmp_path, CONFIGS["llama"]))
    assert spec == load_model("llama3-8b")
    bert = load_huggingface(write(tmp_path, CONFIGS["bert"]))
    assert bert == load_model("bert-large")


def test_a_folder_stands_for_its_config_json(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIGS["gpt2"])
    assert load_huggingface(tmp_path) == load_huggingface(file)


def test_the_sequence_length_can_be_chosen(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIGS["gpt2"])
    spec = load_huggingface(file, sequence_length=256)
    assert (spec.sequence_length, spec.max_position_embeddings) == (256, 1024)


def test_a_bert_for_masked_tokens_only_has_no_pooler(tmp_path: Path) -> None:
    config = CONFIGS["bert"] | {"architectures": ["BertForMaskedLM"]}
    spec = load_huggingface(write(tmp_path, config))
    pooler_and_classifier = 1024 * 1024 + 1024 + 2 * 1024 + 2
    expected = PUBLISHED_PARAMETERS["bert"] - pooler_and_classifier
    assert trace_model(spec).num_parameters == expected


def test_a_given_head_size_is_kept(tmp_path: Path) -> None:
    config = CONFIGS["llama"] | {"head_dim": 64}
    assert load_huggingface(write(tmp_path, config)).kv_channels == 64


def test_sequences_end_where_a_sliding_window_does(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIGS["mistral"])
    spec = load_huggingface(file)
    assert spec.sequence_length == 4096
    assert not spec.has_windows


def test_a_sliding_window_cuts_longer_sequences(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIGS["mistral"])
    spec = load_huggingface(file, sequence_length=8192)
    assert spec.has_windows
    assert spec.block_pattern == load_model("mistral-7b").block_pattern
    (attention,) = (
        one
        for one in trace_model(spec).layers[1].operators
        if one.operation == "attention"
    )
    assert attention.window == 4096


@failures.over(
    ("model_type", "key", "value"),
    [
        ("llama", "model_type", "zamba"),
        ("llama", "model_type", 3),
        ("llama", "hidden_size", "4096"),
        ("llama", "hidden_size", 0),
        ("llama", "num_hidden_layers", None),
        ("llama", "vocab_size", True),
        ("llama", "hidden_act", "relu"),
        ("llama", "tie_word_embeddings", "no"),
        ("llama", "attention_dropout", "none"),
        ("mistral", "sliding_window", -1),
        ("mixtral", "num_local_experts", 2.5),
        ("gpt2", "activation_function", "relu"),
        ("gpt2", "add_cross_attention", True),
        ("gpt_neox", "attention_bias", False),
        ("bert", "position_embedding_type", "relative_key"),
    ],
)
def test_odd_values_are_refused_with_file_and_key(
    tmp_path: Path, model_type: str, key: str, value: object
) -> None:
    file = write(tmp_path, CONFIGS[model_type] | {key: value})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: {key}"
    assert caught.value.expected


@failures.over("model_type", CONFIGS)
def test_missing_sizes_are_refused_with_file_and_key(
    tmp_path: Path, model_type: str
) -> None:
    config = {k: v for k, v in CONFIGS[model_type].items() if k != "vocab_size"}
    file = write(tmp_path, config)
    with pytest.raises(InputError, match="key is missing") as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: vocab_size"


def test_sizes_that_do_not_fit_together_name_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, CONFIGS["llama"] | {"num_key_value_heads": 5})
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: num_query_groups"


@failures.over("content", [b"{", b"[1, 2]", b"\xff\xfe", b""])
def test_files_that_are_no_json_object_are_refused(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert str(file) in str(caught.value)


def test_files_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_huggingface(tmp_path / "nothing.json")
