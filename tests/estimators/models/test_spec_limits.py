"""Architectures that nobody can build are refused before anything is made of them."""

import json
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.models.huggingface import load_huggingface
from estimators.models.limits import MAX_ELEMENTS, MAX_LAYERS
from estimators.models.spec import TransformerSpec
from tests import failures
from topologies.errors import InputError

SIZES = {
    "family": "llama",
    "num_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "sequence_length": 128,
    "position_embedding_type": "rope",
}
COUNTS = [
    name
    for name, kind in get_type_hints(TransformerSpec).items()
    if kind is int and "moe" not in name
]
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}


@failures.over("name", COUNTS)
@failures.over("value", [2**31, 2**62, 10**30])
def test_every_size_has_a_limit_which_the_message_names(name, value):
    with pytest.raises(InputError, match=r"must be at most [0-9,]+") as caught:
        TransformerSpec(**{**SIZES, name: value})
    assert caught.value.where == name
    assert caught.value.expected.startswith("a whole number up to ")


def test_the_deepest_model_is_accepted_and_no_deeper_one():
    assert TransformerSpec(**{**SIZES, "num_layers": MAX_LAYERS}).num_layers
    with pytest.raises(InputError, match="must be at most 4,000"):
        TransformerSpec(**{**SIZES, "num_layers": MAX_LAYERS + 1})


@given(
    hidden=st.integers(1, 1000).map(lambda n: 1000 * n),
    vocabulary=st.integers(1, 10**9),
    tokens=st.integers(1, 10**8),
    inner=st.integers(1, 4 * 10**6),
)
def test_no_accepted_model_has_a_tensor_that_64_bits_do_not_count(
    hidden, vocabulary, tokens, inner
):
    changed = {
        "hidden_size": hidden,
        "kv_channels": 128,
        "vocab_size": vocabulary,
        "sequence_length": tokens,
        "ffn_hidden_size": inner,
        "attention_implementation": "plain",
    }
    refused = None
    try:
        TransformerSpec(**{**SIZES, **changed})
    except InputError as error:
        refused = error
    largest = max(vocabulary * hidden, tokens * vocabulary, tokens * inner)
    largest = max(largest, 4 * tokens**2, hidden * inner)
    assert (refused is not None) == (largest > MAX_ELEMENTS)
    assert refused is None or "makes a tensor of" in refused.problem


@failures.over(
    ("change", "problem"),
    [
        ({"hidden_size": 8e30}, "hidden_size: not a positive whole number"),
        ({"vocab_size": 2**62}, "vocab_size: must be at most 1,000,000,000"),
        ({"max_position_embeddings": 2**40}, "sequence_length: must be at most"),
        ({"num_hidden_layers": 10**9}, "num_layers: must be at most 4,000"),
        ({"attention_dropout": 10**250}, "must be a number at least 0 and below 1"),
        ({"head_dim": [1]}, "head_dim: not a positive whole number"),
        ({"model_type": ["llama"]}, "model_type: not a text"),
    ],
)
def test_a_configuration_with_such_sizes_is_refused(tmp_path, change, problem):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, **change}))
    with pytest.raises(InputError, match=problem) as caught:
        load_huggingface(file)
    assert str(caught.value).startswith(f"{file}: ")


def test_all_wrong_keys_of_a_configuration_are_told(tmp_path):
    file = tmp_path / "config.json"
    wrong = {"num_attention_heads": 0, "vocab_size": "many", "hidden_size": None}
    file.write_text(json.dumps({**LLAMA, **wrong}))
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    told = str(caught.value)
    assert "(and 2 others in this file)" in told
    assert "vocab_size: not a positive whole number; got 'many'" in told
    assert "hidden_size: key is missing" in told
