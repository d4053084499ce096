"""Forty models of 2025 and 2026: their configurations are read, or refused with why.

One or two of each laboratory whose type transformers has, at the values of that type's
configuration, which are those of the checkpoint that transformers names with it. What
is read has the parameters and FLOPs of transformers to the unit: ``test_hub_types.py``,
``test_head_gates.py`` and ``test_zero_experts.py`` hold types to that.
"""

import json
from pathlib import Path

import pytest

from estimators.models.huggingface import load_huggingface, missing_operator
from tests import failures
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

CURRENT = {
    "DeepSeek-V3.2": "deepseek_v32",
    "DeepSeek-V4": "deepseek_v4",
    "Qwen3-Next": "qwen3_next",
    "Qwen3.5": "qwen3_5",
    "Qwen3.5 with experts": "qwen3_5_moe",
    "Qwen3-VL with experts": "qwen3_vl_moe",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3_vl",
    "GLM-5": "glm_moe_dsa",
    "GLM-4.7 Flash": "glm4_moe_lite",
    "Command A": "cohere2",
    "SmolLM3": "smollm3",
    "Granite 4": "granitemoehybrid",
    "Seed-OSS": "seed_oss",
    "Ernie 4.5": "ernie4_5_moe",
    "Mistral Small 3.1": "mistral3",
    "Ministral 3": "ministral3",
    "Falcon-H1": "falcon_h1",
    "Kimi Linear": "kimi_linear",
    "LongCat-Flash": "longcat_flash",
    "Hunyuan A13B": "hunyuan_v1_moe",
    "Hunyuan 3": "hy_v3",
    "GPT-OSS": "gpt_oss",
    "Llama 4": "llama4",
    "Gemma 3": "gemma3",
    "OLMo 3": "olmo3",
    "OLMo Hybrid": "olmo_hybrid",
    "Nemotron 3": "nemotron_h",
    "LFM2 with experts": "lfm2_moe",
    "LFM3": "lfm3",
    "Jamba": "jamba",
    "EXAONE 4": "exaone4",
    "K-EXAONE": "exaone_moe",
    "Solar Open": "solar_open",
    "dots.llm1": "dots1",
    "Apertus": "apertus",
    "Trinity": "afmoe",
    "Step 3.7 Flash": "step3p7",
    "Ling 3.0": "bailing_hybrid",
    "MiMo-V2-Flash": "mimo_v2_flash",
}
"""Model -> its type."""

REFUSED = ("minimax_m3_vl", "bailing_hybrid", "mimo_v2_flash")
"""Types whose operators no model here has."""


def written(folder: Path, model_type: str) -> Path:
    """Write the configuration that transformers has for a type, at its own sizes."""
    given = hub_types.GIVEN["dots1"] if model_type == "dots1" else {}
    config = transformers.AutoConfig.for_model(model_type, **given)
    file = folder / "config.json"
    file.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    return file


def test_forty_models_are_listed() -> None:
    assert len(CURRENT) == len(set(CURRENT.values())) == 40
    assert set(REFUSED) < set(CURRENT.values())
    assert len(CURRENT) - len(REFUSED) >= 37


@failures.over("model_type", [t for t in CURRENT.values() if t not in REFUSED])
def test_current_models_are_read(tmp_path: Path, model_type: str) -> None:
    spec = load_huggingface(written(tmp_path, model_type), sequence_length=4096)
    assert spec.sequence_length == 4096


@failures.over("model_type", REFUSED)
def test_others_are_refused_with_what_they_have(
    tmp_path: Path, model_type: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_huggingface(written(tmp_path, model_type))
    assert missing_operator(model_type)
    assert missing_operator(model_type) in caught.value.hint
