"""Gates of heads, and blocks with a window that have more heads than others."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import HeadGate, SelfAttention
from topologies.errors import InputError

LENGTH, HIDDEN = 24, 48
WORDS: dict[str, Any] = {
    "family": "llama",
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 8,
    "vocab_size": 101,
    "sequence_length": LENGTH,
    "attention_head_gate": True,
}
STEP: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 211,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "share_expert_dim": 40,
    "sliding_window": 8,
    "layer_types": ["full_attention", *["sliding_attention"] * 3],
    "mlp_layer_types": ["dense", *["sparse"] * 3],
}


def read(folder: Path, values: dict[str, Any], **outer: Any) -> TransformerSpec:
    file = folder / "config.json"
    text = {**values, "model_type": "step3p5", "max_position_embeddings": 128}
    several = {"model_type": "step3p7", "text_config": text, **outer}
    file.write_text(json.dumps(several), encoding="utf-8")
    return load_huggingface(file, sequence_length=LENGTH)


def test_a_gate_weighs_each_head() -> None:
    torch.manual_seed(0)
    context, gate = torch.randn(2, LENGTH, 32), torch.randn(2, LENGTH, 4)
    weighed = HeadGate()(context, gate)
    for head in range(4):
        part = slice(8 * head, 8 * head + 8)
        expected = context[..., part] * gate[..., head : head + 1].sigmoid()
        torch.testing.assert_close(weighed[..., part], expected)


def test_attention_computes_what_transformers_does() -> None:
    """Without positions, which are the same turns elsewhere."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.lfm3.modeling_lfm3 import Lfm3Attention

    torch.manual_seed(0)
    config = transformers.Lfm3Config(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        layer_types=["full_attention"],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="eager",
    )
    theirs: Any = Lfm3Attention(config, 0).eval()
    words = {**WORDS, "qk_layernorm": True, "position_embedding_type": "none"}
    ours = SelfAttention(build_spec(words))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        parts = theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.g_proj
        ours.linear_qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        for norm, other in (("query", theirs.q_norm), ("key", theirs.k_norm)):
            getattr(ours, f"{norm}_norm").weight.copy_(other.weight)
        ours.linear_proj.weight.copy_(theirs.o_proj.weight)
        hidden = torch.randn(2, LENGTH, HIDDEN)
        still = torch.ones(2, LENGTH, 8), torch.zeros(2, LENGTH, 8)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
        expected, _ = theirs(hidden, still, mask)
        torch.testing.assert_close(ours(hidden), expected, atol=1e-4, rtol=1e-4)


def test_step_has_the_parameters_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers.models.step3p7 import configuration_step3p7, modeling_step3p7

    other = {"num_attention_heads": 6}
    config = configuration_step3p7.Step3p7TextConfig(
        **STEP, attention_other_setting=other
    )
    with torch.device("meta"):
        theirs = modeling_step3p7.Step3p7TextModel(config)
    counted = sum(part.numel() for part in theirs.parameters())
    head = 211 * 64
    files = (
        {**STEP, "num_sliding_attention_heads": 6},
        {**STEP, "attention_other_setting": other},
    )
    for values in files:
        spec = read(tmp_path, values)
        assert spec.window_num_attention_heads == 6
        assert trace_model(spec).num_parameters == counted + head


def test_published_files_of_step_are_read(tmp_path: Path) -> None:
    """Numbers of blocks with experts in a text; kinds also of layers further ahead."""
    values = {key: value for key, value in STEP.items() if key != "mlp_layer_types"}
    values |= {
        "layer_types": [*STEP["layer_types"], "sliding_attention"],
        "num_nextn_predict_layers": 1,
        "moe_layers_enum": "2, 3",
    }
    kinds = ["attention+dense", "window+dense", *["window+experts"] * 2]
    assert list(read(tmp_path, values).block_pattern) == kinds
    with pytest.raises(InputError) as caught:
        read(tmp_path, {**values, "moe_layers_enum": "two"})
    assert "moe_layers_enum" in str(caught.value)


@failures.over("tp", [1, 2])
def test_a_gate_of_heads_costs_a_column_for_each_head(tp: int) -> None:
    degrees = Degrees(tp=tp)
    gated, plain = (
        layer_work(
            trace_model(build_spec({**WORDS, "attention_head_gate": gate})),
            1,
            degrees,
            2,
        )
        for gate in (True, False)
    )
    more = [sum(op.forward_flops for op in work.operators) for work in (gated, plain)]
    assert more[0] - more[1] == 2 * LENGTH * HIDDEN * 4 / tp
    kept = gated.saved_bytes["none"] - plain.saved_bytes["none"]
    assert kept == 2 * LENGTH * (32 + 4) / tp  # what heads returned, and gates
    assert gated.collectives == plain.collectives


def test_heads_of_windows_are_split_as_others_are() -> None:
    spec = build_spec({**WORDS, "window_size": 8, "window_attn_skip_freq": [0, 1]})
    spec = replace(spec, window_num_attention_heads=6)
    graph = trace_model(spec)
    sizes = [sum(p.elements for p in layer.parameters) for layer in graph.layers[1:3]]
    per_head = HIDDEN * (2 * 8 + 1)
    assert sizes[1] - sizes[0] == 2 * per_head
    assert divisibility_problem(spec, Degrees(tp=2)) is None
    problem = divisibility_problem(spec, Degrees(tp=4))
    assert problem is not None
    assert "window_num_attention_heads 6" in problem
    with pytest.raises(InputError):
        replace(spec, window_num_attention_heads=5)
    with pytest.raises(InputError):
        build_spec({**WORDS, "attention_output_gate": True})


def test_heads_of_a_list_are_those_of_two_kinds_of_blocks(tmp_path: Path) -> None:
    values = {**STEP, "num_attention_heads_per_layer": [4, 6, 6, 6]}
    spec = read(tmp_path, values)
    assert (spec.num_attention_heads, spec.window_num_attention_heads) == (4, 6)
    for listed in ([4, 6, 6, 2], [4, 6, 6]):
        with pytest.raises(InputError) as caught:
            read(tmp_path, {**STEP, "num_attention_heads_per_layer": listed})
        assert "num_attention_heads_per_layer" in str(caught.value)


def test_convolutions_windows_and_attention_take_turns(tmp_path: Path) -> None:
    """LFM3, whether or not the file lists them: as transformers has it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Lfm3Config().to_dict()
    unlisted = {key: value for key, value in config.items() if key != "layer_types"}
    kinds = {
        "conv": "short_convolution+dense",
        "sliding_attention": "window+dense",
        "full_attention": "attention+dense",
    }
    for values in (config, unlisted):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(values, default=str), encoding="utf-8")
        spec = load_huggingface(file, sequence_length=4096)
        expected = [kinds[kind] for kind in config["layer_types"]]
        assert list(spec.block_pattern) == expected
        assert spec.window_size == config["sliding_window"]
