"""Dense models of the library: parameters to the unit."""

import pytest

from estimators.models.library import published_model
from estimators.tracing.trace import trace_model
from tests import failures

PUBLISHED_PARAMETERS = {
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "opt-6.7b": 6_658_473_984,
    "bloom-560m": 559_214_592,
    "bloom-7b1": 7_069_016_064,
    "bloom-176b": 176_247_271_424,
    "mpt-7b": 6_649_286_656,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "starcoder2-15b": 15_957_889_024,
    "mistral-7b": 7_241_732_096,
    "mistral-nemo-12b": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "mistral-large-123b": 122_610_069_504,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "yi-34b": 34_388_917_248,
    "phi3-mini": 3_821_079_552,
    "phi3-medium": 13_960_238_080,
    "phi4": 14_659_507_200,
    "olmo-1b": 1_176_764_416,
    "olmo-7b": 6_888_095_744,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "glm4-9b": 9_399_951_360,
    "glm4-9b-0414": 9_400_279_040,
    "glm4-32b-0414": 32_566_081_536,
    "stablelm2-1.6b": 1_644_515_328,
    "command-r-35b": 34_980_831_232,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
}
"""Parameter counts of the checkpoints on the Hugging Face hub (safetensors metadata, or
the sizes of their files where those are older)."""

STORED_WITH_A_COPY = {
    "falcon-7b": 7_217_189_760,
    "falcon-40b": 41_835_970_560,
    "falcon-180b": 179_522_565_120,
    "qwen3-0.6b": 751_632_384,
    "qwen3-1.7b": 2_031_739_904,
}
"""Counts of checkpoints that store the tied output layer a second time."""

STORED_WITH_EYES = {
    "gemma3-4b": 4_300_079_472,
    "gemma3-12b": 12_187_325_040,
    "gemma3-27b": 27_432_406_640,
}
"""Counts of checkpoints that also see pictures: SigLIP's 416,866,032 parameters, a norm
of its width 1,152, and a projection to the width of the text."""

OTHERS = {
    "opt-66b": 65_719_701_504,
    "opt-175b": 174_604_468_224,
    "mpt-30b": 29_957_200_896,
    "deepseek-llm-7b": 6_910_365_696,
    "nemotron4-15b": 15_628_775_424,
    "nemotron4-340b": 341_029_195_776,
}
"""What transformers' modules of these sizes count: published are rounded numbers."""


def counted(name: str) -> int:
    """Return the parameters of a model of the library."""
    return trace_model(published_model(name).spec).num_parameters


@failures.over("name", PUBLISHED_PARAMETERS)
def test_models_have_their_published_parameters(name: str) -> None:
    assert counted(name) == PUBLISHED_PARAMETERS[name]


@failures.over("name", STORED_WITH_A_COPY)
def test_a_tied_output_layer_counts_once(name: str) -> None:
    spec = published_model(name).spec
    copy = spec.vocab_size * spec.hidden_size
    assert spec.tie_word_embeddings
    assert counted(name) + copy == STORED_WITH_A_COPY[name]


@failures.over("name", STORED_WITH_EYES)
def test_text_parts_are_what_the_eyes_leave(name: str) -> None:
    width = published_model(name).spec.hidden_size
    eyes = 416_866_032 + 1152 + 1152 * width
    assert counted(name) + eyes == STORED_WITH_EYES[name]


@failures.over("name", OTHERS)
def test_others_are_as_large_as_transformers_makes_them(name: str) -> None:
    assert counted(name) == OTHERS[name]
    size = name.rpartition("-")[2].removesuffix("b")
    rounded = float(size) * 1e9
    assert counted(name) == pytest.approx(rounded, rel=0.05)


def test_windows_alternate_as_published() -> None:
    """Gemma 2: from the first block on, every second; Gemma 3: five of six."""
    second = published_model("gemma2-9b").spec
    assert [kind == "window+dense" for kind in second.block_pattern] == [
        True,
        False,
    ] * 21
    third = published_model("gemma3-27b").spec
    full = [i for i, kind in enumerate(third.block_pattern) if kind != "window+dense"]
    assert full == list(range(5, 62, 6))
