"""The library and the maps of keys are data: what is added to them needs no code."""

from collections import Counter
from dataclasses import fields
from importlib import resources
from typing import Any

import pytest
import tomli

from estimators.models.config_file import ConfigFile
from estimators.models.config_keys import COMPUTED
from estimators.models.config_mixers import COMPUTED_MIXERS
from estimators.models.diffusion import Diffusion
from estimators.models.huggingface import (
    KeyMap,
    key_map,
    model_types,
    parse_key_map,
    read_spec,
    read_types,
)
from estimators.models.library import load_model, model_names
from estimators.models.limits import (
    CONVOLUTION_WIDTH,
    LONGEST_DISTANCE,
    NUM_BUCKETS,
    NUM_CHANNELS,
)
from estimators.models.spec import TransformerSpec
from tests import failures
from topologies.errors import InputError

FILES = {
    file.name: tomli.loads(file.read_text("utf-8"))
    for file in (resources.files("estimators") / "models" / "library").iterdir()
    if file.name.endswith(".toml")
}
MORE_WORDS = {
    *("encoder_num_layers", "decoder_num_layers"),
    *("double_num_layers", "single_num_layers", "last_double"),
    *(field.name for field in fields(Diffusion)),
}
RENAMED = """
[bases]
[types.llama.fields]
family = { value = "llama" }
num_layers = "depth"
hidden_size = "sizes.width"
num_attention_heads = ["heads", "num_heads"]
vocab_size = { key = "vocabulary", plus = 1 }
sequence_length = { key = "context", default = 64 }
ffn_hidden_size = { key = "ratio", default = 4, times = "sizes.width" }
activation_func = { key = "act", default = "swish", words = { swish = "silu" } }
[types.mine]
like = "llama"
require.bias = [false]
fields.tie_word_embeddings = { key = "untied", words = { true = false, false = true } }
"""
CONFIG = {
    "depth": 2,
    "sizes": {"width": 8},
    "num_heads": 2,
    "vocabulary": 10,
    "untied": True,
}


def test_no_name_stands_twice_in_the_library() -> None:
    """Models that the files hold, and series, whose words models take by their name."""
    tables = [item for file in FILES.values() for item in file.items()]
    series = {name: table for name, table in tables if isinstance(table, dict)}
    names = [name for name, _ in tables if name != "position"]
    names += [name for table in series.values() for name in table.get("models", ())]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {*model_names()} < {*names}
    positions = [file["position"] for file in FILES.values()]
    assert sorted(positions) == list(range(1, len(FILES) + 1))


def test_models_are_listed_as_the_files_have_them() -> None:
    """A family after the other; a series where its file has it, in the file's order."""
    names = model_names()
    assert names[:3] == ("bert-large", "gpt3-125m", "gpt3-350m")
    assert names[-1] == "vit-h-14"
    rows = tuple(FILES["qwen.toml"]["qwen3"]["models"])
    first = names.index(rows[0])
    assert names[first : first + len(rows)] == rows


def test_what_a_model_has_of_its_own_goes_before_what_it_is_like() -> None:
    """Rows of a series, one of its words changed, and a model that is like it."""
    assert load_model("gemma3-1b").window_size == 512
    assert load_model("gemma3-4b").window_size == 1024
    small, nemo = load_model("mistral-small-24b"), load_model("mistral-nemo-12b")
    assert (small.ffn_hidden_size, nemo.ffn_hidden_size) == (32768, 14336)
    assert small.hidden_size == nemo.hidden_size == 5120


@failures.over("model_type", model_types())
def test_a_map_has_words_and_functions_that_there_are(model_type: str) -> None:
    keys = key_map(model_type)
    known = {field.name for field in fields(TransformerSpec)} | MORE_WORDS
    assert {*keys.fields} <= known
    assert {*keys.computed} <= {*COMPUTED, *COMPUTED_MIXERS}
    assert "family" in keys.fields


def test_kinds_that_the_modules_fix_are_required() -> None:
    """Numbers that stand in the file of maps, and in the modules."""
    fixed = {
        ("nemotron_h", "conv_kernel"): CONVOLUTION_WIDTH,
        ("mamba2", "conv_kernel"): CONVOLUTION_WIDTH,
        ("mamba", "conv_kernel"): CONVOLUTION_WIDTH,
        ("jamba", "mamba_d_conv"): CONVOLUTION_WIDTH,
        ("t5", "relative_attention_num_buckets"): NUM_BUCKETS,
        ("t5", "relative_attention_max_distance"): LONGEST_DISTANCE,
        ("vit", "num_channels"): NUM_CHANNELS,
    }
    for (model_type, key), value in fixed.items():
        required = {item.key: item.allowed for item in key_map(model_type).require}
        assert required[key] == [value]


def mine() -> KeyMap:
    """Return the map of a type that calls everything otherwise."""
    return parse_key_map(tomli.loads(RENAMED), "mine")


def test_a_type_that_renames_keys_is_data() -> None:
    spec = read_spec(ConfigFile(CONFIG), mine())
    assert spec == TransformerSpec(
        family="llama",
        num_layers=2,
        hidden_size=8,
        ffn_hidden_size=32,
        num_attention_heads=2,
        vocab_size=11,
        sequence_length=64,
        gated_linear_unit=True,
        activation_func="silu",
        normalization="rmsnorm",
        position_embedding_type="rope",
        tie_word_embeddings=False,
        add_bias_linear=False,
    )


@failures.over(
    ("change", "where", "expected"),
    [
        ({"sizes": {}}, "sizes.width", "a positive whole number, e.g. 32"),
        ({"sizes": 3}, "sizes.width", "a positive whole number, e.g. 32"),
        ({"num_heads": 0}, "num_heads", "a positive whole number, e.g. 32"),
        ({"untied": "yes"}, "untied", "true or false"),
        ({"act": "relu"}, "act", '"swish"'),
        ({"bias": True}, "bias", "false"),
    ],
)
def test_a_wrong_key_is_refused_once_under_its_name(
    change: dict[str, Any], where: str, expected: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_spec(ConfigFile(CONFIG | change), mine())
    assert (caught.value.where, caught.value.expected) == (where, expected)
    assert caught.value.others == ()


def test_a_map_with_an_option_that_there_is_not_is_refused() -> None:
    file = dict(read_types())
    lookups = {"vocab_size": {"key": "vocab_size", "usual": 3}}
    file["types"] = file["types"] | {"mine": {"like": "llama", "fields": lookups}}
    with pytest.raises(TypeError, match="usual"):
        parse_key_map(file, "mine")
