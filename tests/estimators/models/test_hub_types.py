"""Each type of causal language model of transformers is read exactly, or refused.

A type that is read has as many parameters as transformers' module, to the unit, and
FLOPs within 0.5 %. Of any other the reader says what it has that no model here has.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.models.huggingface import (
    load_huggingface,
    missing_operator,
    model_types,
    nearest_type,
)
from estimators.tracing.trace import trace_model
from tests import failures
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

READ = [name for name in hub_types.causal_types() if name in model_types()]
OTHERS = [name for name in hub_types.causal_types() if name not in model_types()]


def test_most_types_are_read() -> None:
    assert len(READ) >= 103
    assert len(OTHERS) <= 93


@failures.over("model_type", READ)
def test_a_type_that_is_read_has_the_parameters_and_flops_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    row = hub_types.outcome(tmp_path, model_type, {})
    assert row.word == "exact", row.detail


@failures.over(("model_type", "values"), hub_types.VARIANTS)
def test_other_values_than_the_usual_ones_are_read_exactly(
    tmp_path: Path, model_type: str, values: Mapping[str, Any]
) -> None:
    row = hub_types.outcome(tmp_path, model_type, values)
    assert row.word == "exact", row.detail


@failures.over("model_type", OTHERS)
def test_a_type_that_is_not_read_is_refused_with_what_it_has(
    tmp_path: Path, model_type: str
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: model_type"
    assert missing_operator(model_type)
    assert missing_operator(model_type) in caught.value.hint


@failures.over("model_type", [name for name in OTHERS if nearest_type(name)])
def test_what_is_called_nearest_is_within_a_hundredth(
    tmp_path: Path, model_type: str
) -> None:
    """A type's own modules against the nearest type's, in parameters and FLOPs."""
    config = hub_types.hub_config(model_type, {})
    model = hub_types.hub_model(model_type, config)
    theirs = hub_types.hub_counts(model)
    near, rename = nearest_type(model_type), RENAMED.get(model_type, lambda _: {})
    values = {**config.to_dict(), "architectures": [type(model).__name__]}
    ours = hub_types.spec_counts(
        hub_types.read_back(tmp_path, near, {**values, **rename(config)})
    )
    assert ours.parameters == pytest.approx(theirs.parameters, rel=0.01)
    assert ours.flops == pytest.approx(theirs.flops, rel=0.01)


def _as_gpt2(config: Any) -> dict[str, Any]:
    return {
        "n_layer": config.num_hidden_layers,
        "n_embd": config.hidden_size,
        "n_head": config.num_attention_heads,
        "n_positions": config.max_position_embeddings,
        "activation_function": "gelu_new",
    }


RENAMED: Mapping[str, Callable[..., dict[str, Any]]] = {
    "gpt_neo": _as_gpt2,
    "openai-gpt": lambda _: {"activation_function": "gelu_new"},
    "gpt_neox_japanese": lambda config: {
        "intermediate_size": config.intermediate_multiple_size * config.hidden_size
    },
}
"""Type that is not read -> its sizes under the keys of the nearest type."""


@failures.over(
    "model_type",
    [
        *("llama4", "gemma3", "mistral3", "llava", "llava_next", "qwen2_vl", "aria"),
        *("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "internvl", "cohere2_vision"),
    ],
)
def test_the_language_model_beside_a_tower_has_the_parameters_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    language = next(
        module
        for path, module in model.named_modules()
        if path.endswith("language_model")
    )
    kept = {*language.parameters(), model.get_output_embeddings().weight}
    spec = hub_types.read_back(tmp_path, model_type, config.to_dict())
    assert trace_model(spec).num_parameters == sum(part.numel() for part in kept)


def test_a_language_model_in_a_file_of_several_is_read_as_its_type(
    tmp_path: Path,
) -> None:
    """Tied embeddings may be said outside; without an object the file is the model."""
    text = {
        "model_type": "ministral3",
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "vocab_size": 211,
        "max_position_embeddings": 128,
    }
    outer = {"model_type": "mistral3", "tie_word_embeddings": True}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**outer, "text_config": text}), encoding="utf-8")
    spec = load_huggingface(file)
    assert (spec.kv_channels, spec.tie_word_embeddings) == (24, True)
    assert spec.sequence_length == 128
    file.write_text(json.dumps({**text, "model_type": "mistral3"}), encoding="utf-8")
    assert load_huggingface(file).tie_word_embeddings is False
    inner = {**text, "model_type": "mamba"}
    file.write_text(json.dumps({**outer, "text_config": inner}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: text_config.model_type"
    assert "the selective scan of Mamba-1" in caught.value.hint


def test_blocks_without_positions_are_those_without_windows(tmp_path: Path) -> None:
    config = hub_types.hub_config("cohere2", {})
    spec = hub_types.read_back(tmp_path, "cohere2", config.to_dict())
    kinds = {"sliding_attention": "window+dense", "full_attention": "unturned+dense"}
    assert list(spec.block_pattern) == [kinds[kind] for kind in config.layer_types]
    config = hub_types.hub_config("smollm3", {})
    spec = hub_types.read_back(tmp_path, "smollm3", config.to_dict())
    turned = ["attention+dense" if mark else "unturned+dense" for mark in NO_ROPE]
    assert list(spec.block_pattern) == turned


NO_ROPE = [1, 1, 1, 0] * (hub_types.LAYERS // 4)
"""What SmolLM3 has for ``no_rope_layers``."""


ODD = (None, True, 0, -1, 3, 2.5, 10**12, "x", [], ["x"], [[1]], [None] * 4, {})


@failures.over(
    ("model_type", "keys"),
    [
        ("afmoe", ["layer_types", "global_attn_every_n_layers", "num_dense_layers"]),
        ("bamba", ["layers_block_type", "attn_layer_indices", "mamba_d_head"]),
        ("ernie4_5_moe", ["moe_layer_start_index", "moe_layer_end_index"]),
        ("granite_swa", ["layer_types", "layer_rope_theta", "sliding_window"]),
        ("granitemoehybrid", ["layer_types", "num_local_experts", "mamba_n_heads"]),
        ("gptj", ["rotary_dim", "n_head", "n_embd"]),
        ("hunyuan_v1_moe", ["num_experts", "moe_topk"]),
        ("hy_v3", ["mlp_layer_types"]),
        ("nemotron_h", ["layers_block_type", "n_routed_experts", "moe_latent_size"]),
        ("roberta", ["max_position_embeddings", "architectures"]),
        ("smollm3", ["no_rope_layers", "no_rope_layer_interval"]),
    ],
)
def test_whatever_stands_in_a_key_is_read_or_refused(
    tmp_path: Path, model_type: str, keys: list[str]
) -> None:
    values = hub_types.hub_config(model_type, {}).to_dict()
    for key in keys:
        for odd in ODD:
            where = refused_at(tmp_path, model_type, {**values, key: odd})
            assert where.startswith(str(tmp_path))


def refused_at(folder: Path, model_type: str, values: Mapping[str, Any]) -> str:
    """Return where a file is refused, or its folder if it is not."""
    try:
        hub_types.read_back(folder, model_type, values)
    except InputError as error:
        return error.where
    return str(folder)


@failures.over(
    ("model_type", "change", "where"),
    [
        ("cohere2", {"layer_types": ["full_attention"]}, "layer_types"),
        ("mellum", {"layer_types": None}, "sliding_window"),
        ("granite_swa", {"layer_rope_theta": [0] * 4}, "layer_rope_theta"),
        ("granite_swa", {"layer_rope_theta": 1e4}, "layer_rope_theta"),
        ("gptj", {"rotary_dim": 512}, "rotary_dim"),
        ("smollm3", {"use_sliding_window": True}, "use_sliding_window"),
        ("hy_v3", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
        ("bamba", {"layers_block_type": ["rwkv"] * 4}, "layers_block_type"),
        ("nemotron_h", {"moe_latent_size": 512}, "moe_latent_size"),
        ("hunyuan_v1_moe", {"moe_topk": [1, 2]}, "moe_topk"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias"),
    ],
)
def test_what_no_model_here_has_is_refused_at_its_key(
    tmp_path: Path, model_type: str, change: Mapping[str, Any], where: str
) -> None:
    values = {**hub_types.hub_config(model_type, {}).to_dict(), **change}
    with pytest.raises(InputError) as caught:
        hub_types.read_back(tmp_path, model_type, values)
    assert caught.value.where == f"{tmp_path / 'config.json'}: {where}"
