"""Each type of causal language model of transformers is read exactly, or refused.

A type that is read has as many parameters in each block, and FLOPs, as transformers'
module, to the unit. Of any other the reader says what it has that no model here has.
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
from tests.estimators.models import test_diffusion
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

READ = [name for name in hub_types.causal_types() if name in model_types()]
NAMED = (
    *("apertus", "arcee", "bamba", "cohere2", "deepseek_v3", "dots1", "ernie4_5"),
    *("ernie4_5_moe", "exaone4", "gemma3_text", "glm4_moe", "gpt_oss", "granite"),
    *("granitemoehybrid", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama4"),
    *("minimax_m2", "ministral3", "nemotron_h", "olmo3", "phi3", "qwen3_moe"),
    *("seed_oss", "smollm3"),
)
OTHERS = [name for name in hub_types.causal_types() if name not in model_types()]


def test_most_types_are_read() -> None:
    assert len(READ) >= 127
    assert len(OTHERS) <= 69


def check_counts(folder: Path, model_type: str, values: Mapping[str, Any]) -> None:
    """Check a type's parameters and FLOPs against transformers' module."""
    row = hub_types.outcome(folder, model_type, values)
    assert row.word == "exact", row.detail


@failures.over("model_type", NAMED)
def test_types_of_these_years_have_the_parameters_and_flops_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    check_counts(tmp_path, model_type, {})


@failures.over("model_type", [name for name in READ if name not in NAMED])
def test_all_other_types_have_the_parameters_and_flops_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    check_counts(tmp_path, model_type, {})


ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(
        ("glm4v_text", "glm_ocr_text"),
        "their sections of positions do not fill heads: parameters below",
    ),
    "kimi_k2": "its class is DeepSeek V3's",
    "longcat_flash_ngram": "transformers has none: test_ngram_embeddings.py",
    **dict.fromkeys(test_diffusion.SMALL, "classes of diffusers: test_diffusion.py"),
    **dict.fromkeys(("step3p5", "step3p7"), "test_head_gates.py"),
    **dict.fromkeys(("t5", "mt5", "vit"), "test_special_against_transformers.py"),
}
"""Type that is read and not held to a class of transformers here -> why."""

BESIDE = sorted({*model_types()} - {*READ, *ELSEWHERE})


def test_every_type_that_is_read_is_held_to_something() -> None:
    assert {*ELSEWHERE} == {*model_types()} - {*READ, *BESIDE}
    assert not {*ELSEWHERE} & {*READ}
    assert len(BESIDE) >= 23


@failures.over("model_type", BESIDE)
def test_all_other_types_beside_models_that_see_have_those_of_transformers(
    tmp_path: Path, model_type: str
) -> None:
    """Language models alone, of which some have no class with a head."""
    check_counts(tmp_path, model_type, {})


@failures.over(("model_type", "values"), hub_types.VARIANTS)
def test_other_values_than_the_usual_ones_are_read_exactly(
    tmp_path: Path, model_type: str, values: Mapping[str, Any]
) -> None:
    check_counts(tmp_path, model_type, values)


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
    ("model_type", "text"),
    [
        *((name, {}) for name in ("llama4", "gemma3", "mistral3", "llava", "aria")),
        *((name, {}) for name in ("llava_next", "internvl", "qwen2_vl", "qwen3_vl")),
        *((name, {}) for name in ("qwen2_5_vl", "qwen3_vl_moe", "cohere2_vision")),
        # Without a table of their own.
        *((name, {}) for name in ("idefics3", "exaone4_5", "llava_onevision")),
        *((name, {}) for name in ("voxtral", "granite_speech", "glm4v", "glm_ocr")),
        *((name, {}) for name in ("paddleocr_vl", "qwen2_5_omni_thinker")),
        ("glm4v_moe", {"head_dim": 128}),
        ("qwen3_omni_moe_thinker", {"head_dim": 128}),
    ],
)
def test_the_language_model_beside_others_has_the_parameters_of_transformers(
    tmp_path: Path, model_type: str, text: Mapping[str, Any]
) -> None:
    config = transformers.AutoConfig.for_model(model_type)
    for key, value in text.items():
        setattr(config.text_config, key, value)
    with torch.device("meta"):
        model = transformers.AutoModelForMultimodalLM.from_config(config)
    language = next(
        module
        for path, module in model.named_modules()
        if path.endswith(("language_model", "text_model"))
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
    outer: dict[str, Any] = {"model_type": "mistral3", "tie_word_embeddings": True}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**outer, "text_config": text}), encoding="utf-8")
    spec = load_huggingface(file)
    assert (spec.kv_channels, spec.tie_word_embeddings) == (24, True)
    assert spec.sequence_length == 128
    file.write_text(json.dumps({**text, "model_type": "mistral3"}), encoding="utf-8")
    assert load_huggingface(file).tie_word_embeddings is False
    inner = {**text, "model_type": "zamba"}
    file.write_text(json.dumps({**outer, "text_config": inner}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: text_config.model_type"
    assert "the selective scan of Mamba-1" in caught.value.hint
    outer["model_type"] = "step4"
    inner["model_type"] = "bailing_hybrid"
    file.write_text(json.dumps({**outer, "text_config": inner}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: model_type"
    assert missing_operator("bailing_hybrid") in caught.value.hint
    # A type of which more is known than what it holds.
    outer["model_type"] = "kimi_k3"
    file.write_text(json.dumps({**outer, "text_config": text}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert missing_operator("kimi_k3") in caught.value.hint


WINDOWED = (
    *("afmoe", "cohere2", "cohere2_moe", "cwm", "exaone4", "exaone_moe", "gemma2"),
    *("gemma3_text", "gpt_oss", "granite_swa", "granitemoe_swa", "ministral"),
    *("olmo3", "vaultgemma"),
)
LISTED = ("flint", "kolibri1")
"""Types with windows whose files must say which blocks have one."""


@failures.over("model_type", (*WINDOWED, *LISTED))
def test_windows_are_in_the_blocks_where_transformers_has_them(
    tmp_path: Path, model_type: str
) -> None:
    """Whether or not the file lists them: what is left out is as in transformers."""
    config = hub_types.hub_config(model_type, {"num_hidden_layers": 12})
    expected = [kind == "sliding_attention" for kind in config.layer_types]
    assert any(expected)
    values = config.to_dict()
    unlisted = {key: values[key] for key in values if key != "layer_types"}
    for file in (values,) if model_type in LISTED else (values, unlisted):
        spec = hub_types.read_back(tmp_path, model_type, file)
        assert [kind.startswith("window") for kind in spec.block_pattern] == expected
        assert spec.window_size == config.sliding_window


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
        ("deepseek_v4", ["layer_types", "compress_rates", "o_groups", "index_topk"]),
        ("ernie4_5_moe", ["moe_layer_start_index", "moe_layer_end_index"]),
        ("gemma3n_text", ["num_kv_shared_layers", "activation_sparsity_pattern"]),
        ("gemma3n_text", ["vocab_size_per_layer_input", "laurel_rank", "layer_types"]),
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
        (
            "kimi_linear",
            {"routed_expert_hidden_size": 512},
            "routed_expert_hidden_size",
        ),
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
