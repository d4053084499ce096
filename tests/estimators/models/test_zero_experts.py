"""Experts without work, and LongCat-Flash's blocks with experts beside them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.dispatch import copies_sent
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.huggingface import load_huggingface
from estimators.models.library import build_spec
from estimators.models.spec import SHORTCUT_BLOCK, TransformerSpec
from estimators.software import Software
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import MoELayer, ShortcutBlock
from topologies.errors import InputError

LENGTH, HIDDEN, WIDTH = 24, 32, 16
WORDS: dict[str, Any] = {
    "family": "mixtral",
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "sequence_length": LENGTH,
    "num_moe_experts": 8,
    "moe_num_zero_experts": 4,
    "moe_ffn_hidden_size": WIDTH,
    "moe_router_topk": 3,
    "moe_router_pre_softmax": True,
}


def longcat(folder: Path, length: int) -> TransformerSpec:
    """Return LongCat-Flash at transformers' sizes, which are the published ones."""
    transformers = pytest.importorskip("transformers")
    file = folder / "config.json"
    text = json.dumps(transformers.LongcatFlashConfig().to_dict(), default=str)
    file.write_text(text, encoding="utf-8")
    return load_huggingface(file, sequence_length=length)


def test_experts_compute_what_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.longcat_flash import modeling_longcat_flash

    torch.manual_seed(0)
    config = transformers.LongcatFlashConfig(
        hidden_size=HIDDEN,
        expert_ffn_hidden_size=WIDTH,
        n_routed_experts=8,
        zero_expert_num=4,
        moe_topk=3,
        routed_scaling_factor=1.0,
    )
    theirs: Any = modeling_longcat_flash.LongcatFlashMoE(config).eval()
    ours = MoELayer(build_spec(WORDS))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
        ours.router.weight.copy_(theirs.router.classifier.weight)
        ours.linear_fc1.weight.copy_(theirs.experts.gate_up_proj[:8])
        ours.linear_fc2.weight.copy_(theirs.experts.down_proj)
        hidden = torch.randn(2, LENGTH, HIDDEN)
        torch.testing.assert_close(ours(hidden), theirs(hidden), atol=1e-5, rtol=1e-5)


def test_a_shortcut_adds_what_experts_return_behind_the_second_block() -> None:
    torch.manual_seed(0)
    spec = build_spec({**WORDS, "block_pattern": [SHORTCUT_BLOCK] * 2})
    block = ShortcutBlock(spec).eval()
    hidden = torch.randn(1, LENGTH, HIDDEN)
    with torch.no_grad():
        entered = hidden + block.self_attention(block.input_norm(hidden))
        normed = block.pre_mlp_norm(entered)
        behind = block.second(entered + block.dense_mlp(normed))
        torch.testing.assert_close(block(hidden), behind + block.mlp(normed))


def test_longcat_flash_has_as_many_parameters_as_published(tmp_path: Path) -> None:
    """560 billion, of which a token is multiplied by 27 on average, of 18.6 to 31.3.

    "LongCat-Flash Technical Report", 2025, abstract and section 2.1.
    """
    spec = longcat(tmp_path, 4096)
    graph = trace_model(spec)
    total = graph.num_parameters
    assert total == pytest.approx(560e9, rel=0.002)
    expert = 3 * spec.hidden_size * spec.moe_ffn_hidden_size
    unused = spec.num_layers * (spec.num_moe_experts - spec.moe_copies) * expert
    assert spec.moe_copies == 8.0
    looked_up = spec.vocab_size * spec.hidden_size
    assert total - unused - looked_up == pytest.approx(27e9, rel=0.01)


@failures.over("ep", [1, 4])
def test_experts_without_work_are_sent_nothing(ep: int) -> None:
    """A third of all experts do no work: a token has two of three with some."""
    degrees = Degrees(ep=ep)
    every = {**WORDS, "moe_num_zero_experts": 0}
    works = [
        layer_work(trace_model(build_spec(words)), 1, degrees, 2)
        for words in (WORDS, {**every, "moe_router_topk": 2})
    ]
    zero, plain = works
    router = 2 * LENGTH * HIDDEN * 4
    flops = [sum(op.forward_flops for op in work.operators) for work in works]
    assert flops[0] == flops[1] + router
    assert zero.collectives == plain.collectives
    assert build_spec(WORDS).moe_copies == 2.0
    assert copies_sent(build_spec(WORDS), 4, 4, Software(name="plain")) == 2.0


def test_a_shortcut_block_is_two_blocks_and_experts(tmp_path: Path) -> None:
    spec = build_spec({**WORDS, "block_pattern": [SHORTCUT_BLOCK] * 2})
    dense = build_spec({**WORDS, "block_pattern": ["attention+dense", SHORTCUT_BLOCK]})
    experts = build_spec({**WORDS, "block_pattern": ["experts", SHORTCUT_BLOCK]})
    sizes = [
        sum(p.elements for p in trace_model(s).layers[1].parameters)
        for s in (spec, dense, experts)
    ]
    norm = HIDDEN  # experts beside a block read its norm
    assert sizes[0] == 2 * sizes[1] + sizes[2] - norm


@failures.over(
    ("changed", "where"),
    [
        ({"moe_routing": "random"}, "moe_routing"),
        ({"moe_expert_capacity_factor": 1.5}, "moe_expert_capacity_factor"),
        ({"moe_router_num_groups": 4, "moe_router_group_topk": 2}, "moe_router_num"),
        ({"num_moe_experts": 0, "family": "llama"}, "moe_"),
        (
            {"block_pattern": [SHORTCUT_BLOCK] * 2, "norm_placement": "post"},
            "norm_placement",
        ),
    ],
)
def test_what_does_not_go_with_experts_without_work_is_refused(
    changed: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        build_spec({**WORDS, **changed})
    assert str(caught.value.where).startswith(where)
