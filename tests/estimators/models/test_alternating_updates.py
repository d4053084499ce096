"""Gemma 3n: its blocks against transformers', its size, and what stages send of it.

Parameters and FLOPs of a small one are held to transformers in `test_hub_types`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.changed import with_num_layers
from estimators.models.huggingface import load_huggingface
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import families
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
hub_types = pytest.importorskip("tests.estimators.models.hub_types")

LENGTH, TYPE = 24, "gemma3n_text"
GIVEN: dict[str, Any] = {
    **hub_types.GIVEN[TYPE],
    "sliding_window": 8,
    "activation_sparsity_pattern": [0.95, *[0.0] * 11],
}
NAMES = {
    "router.norm": "altup.router_norm",
    "router.linear": "altup.modality_router",
    "prediction": "altup.prediction_coefs",
    "correction": "altup.correction_coefs",
    "input_norm": "input_layernorm",
    "self_attention.linear_q": "self_attn.q_proj",
    "self_attention.linear_proj": "self_attn.o_proj",
    "self_attention.query_norm": "self_attn.q_norm",
    "self_attention.key_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "laurel_left": "laurel.linear_left",
    "laurel_right": "laurel.linear_right",
    "laurel_norm": "laurel.post_laurel_norm",
    "pre_mlp_norm": "pre_feedforward_layernorm",
    "mlp.linear_fc2": "mlp.down_proj",
    "post_mlp_norm": "post_feedforward_layernorm",
    "gate": "per_layer_input_gate",
    "gate_out": "per_layer_projection",
    "gate_norm": "post_per_layer_input_norm",
}
"""Module of a block here -> that of transformers."""


def read(folder: Path, **changed: Any) -> TransformerSpec:
    config = transformers.AutoConfig.for_model(TYPE, **{**GIVEN, **changed})
    file = folder / "config.json"
    text = json.dumps({**config.to_dict(), "model_type": TYPE}, default=str)
    file.write_text(text, encoding="utf-8")
    return load_huggingface(file, sequence_length=LENGTH)


def copied(ours: Any, theirs: Any) -> None:
    """Give a block the weights of transformers', all of them."""
    weights: dict[str, Tensor] = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            path = name.removesuffix(".weight")
            if path == "scale":
                taken = weights.pop("altup.correct_output_scale")
            elif path == "self_attention.linear_qkv":
                parts = [f"self_attn.{part}_proj.weight" for part in "qkv"]
                taken = torch.cat([weights.pop(part) for part in parts])
            elif path == "mlp.linear_fc1":
                parts = [f"mlp.{part}_proj.weight" for part in ("gate", "up")]
                taken = torch.cat([weights.pop(part) for part in parts])
            else:
                taken = weights.pop(f"{NAMES[path]}.weight")
            if path == "self_attention.query_norm":
                taken = taken * GIVEN["head_dim"] ** 0.5  # scores have no scale there
            if path == "router.linear":
                taken = taken / GIVEN["hidden_size"]  # a factor that is left out here
            parameter.copy_(taken)
    assert not weights


def test_blocks_are_those_of_transformers(tmp_path: Path) -> None:
    """With few gates and all, with a window and without, with keys and borrowed."""
    torch.manual_seed(0)
    as_ours = {"hidden_activation": "gelu", "rms_norm_eps": 1e-5}
    config = transformers.AutoConfig.for_model(
        TYPE, **GIVEN, **as_ours, attn_implementation="eager"
    )
    spec = read(tmp_path)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().model
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.normal_(std=0.3)
    hidden, kept = torch.randn(4, 1, LENGTH, 96), {}
    words = torch.randn(1, LENGTH, GIVEN["hidden_size_per_layer_input"])
    turned = turns_of(10000.0)
    causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    far = torch.full((LENGTH, LENGTH), float("-inf")).tril(-GIVEN["sliding_window"])
    # The last block of either kind with keys, and one of either that borrows them.
    for place in (0, 4, 6, 7, 9):
        kind = config.layer_types[place]
        theirs = model.layers[place]
        mask = causal + far if kind == "sliding_attention" else causal
        expected = theirs(
            hidden, turned, words, shared_kv_states=kept, attention_mask=mask
        )
        ours = families.build_block(spec, spec.block_pattern[place])
        copied(ours.eval(), theirs)
        memory = words
        if theirs.self_attn.is_kv_shared_layer:
            flat = [part.transpose(1, 2).flatten(2) for part in kept[kind]]
            memory = torch.cat((words, *flat), -1)
        streams = hidden.permute(1, 2, 0, 3).flatten(2)
        result = ours(streams, memory, memory).unflatten(-1, (4, -1))
        result = result.permute(2, 0, 1, 3)
        torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def turns_of(base: float) -> tuple[Tensor, Tensor]:
    """Return the angles of positions here, whatever base a file says."""
    width = GIVEN["head_dim"]
    powers = base ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(LENGTH)[:, None] * powers
    angles = torch.cat((angles, angles), -1)[None]
    return angles.cos(), angles.sin()


def test_gemma_3n_e4b_has_as_many_parameters_as_transformers(tmp_path: Path) -> None:
    """Of the configuration that transformers has, which is the E4B's."""
    config = transformers.AutoConfig.for_model(TYPE)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    ours = trace_model(load_huggingface(file)).num_parameters
    assert ours == sum(parameter.numel() for parameter in theirs.parameters())
    assert ours == pytest.approx(6.84e9, rel=1e-3)


def test_stages_send_words_and_keys_and_blocks_keep_their_own(tmp_path: Path) -> None:
    spec = read(tmp_path)
    graph, width = trace_model(spec), GIVEN["hidden_size_per_layer_input"]
    streams = 4 * GIVEN["hidden_size"]
    pair = 2 * 2 * GIVEN["head_dim"]
    for name, own, all_of_them in (
        ("window+dense", 0, 0),
        ("borrowing_attention+dense", pair, 2 * pair),
    ):
        kind = graph.kinds[1 + spec.block_pattern.index(name)]
        work = layer_work(graph, kind, Degrees(), 2)
        sent = streams + 12 * width + all_of_them
        assert work.input_bytes == 2 * LENGTH * sent
        assert work.saved_bytes["full"] == 2 * LENGTH * (streams + width + own)


def test_fewer_blocks_have_a_narrower_embedding(tmp_path: Path) -> None:
    whole, half = (
        trace_model(spec).layers[0].parameters
        for spec in (read(tmp_path), with_num_layers(read(tmp_path), 6))
    )
    sizes = [
        {part.name: part.elements for part in parts}["block_embeddings.weight"]
        for parts in (whole, half)
    ]
    assert sizes[0] == 2 * sizes[1]


@failures.over(
    ("key", "value"),
    [
        ("num_kv_shared_layers", 12),
        ("num_kv_shared_layers", 8),
        ("activation_sparsity_pattern", [0.95]),
        ("intermediate_size", [64] * 6 + [128] * 6),
        ("altup_active_idx", 1),
        ("vocab_size_per_layer_input", 10**15),
    ],
)
def test_what_no_block_here_has_is_refused(
    tmp_path: Path, key: str, value: Any
) -> None:
    read(tmp_path)
    file = tmp_path / "config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**values, key: value}), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_huggingface(file)
    assert caught.value.where == f"{file}: {key}"
