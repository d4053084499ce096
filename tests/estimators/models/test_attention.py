"""Attention, norms and branches of today's decoders, against their definitions."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, model_flops_per_sequence
from estimators.models.changed import (
    with_windows,
)
from estimators.models.spec import (
    TransformerSpec,
)
from estimators.tracing.graph import TracedOperator
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import (
    FlashAttention,
    alibi_slopes,
    build_layers,
    example_inputs,
)
from tests.estimators.whole_models import build_model
from topologies.errors import InputError

SmallModel = Callable[..., TransformerSpec]
LENGTH, HEADS, CHANNELS = 12, 4, 6


def attention_spec(**changes: Any) -> TransformerSpec:
    """Return a small decoder with two heads a group."""
    sizes: dict[str, Any] = {
        "family": "llama",
        "num_layers": 2,
        "hidden_size": 24,
        "num_attention_heads": HEADS,
        "num_query_groups": 2,
        "vocab_size": 101,
        "sequence_length": LENGTH,
        "position_embedding_type": "rope",
    }
    return TransformerSpec(**{**sizes, **changes})


def context_by_hand(
    heads: tuple[Tensor, Tensor, Tensor],
    score: Callable[[float, int, int, int], float | None],
    sinks: Tensor | None,
) -> Tensor:
    """Return contexts, pair by pair; `score` is None for what is not seen."""
    query, key, value = heads
    contexts = torch.zeros(1, HEADS, LENGTH, CHANNELS)
    for head in range(HEADS):
        for row in range(LENGTH):
            seen, scores = [], []
            for column in range(LENGTH):
                product = query[0, head, row] @ key[0, head // 2, column]
                found = score(float(product) / CHANNELS**0.5, head, row, column)
                if found is not None:
                    seen.append(column)
                    scores.append(found)
            extra = [] if sinks is None else [float(sinks[head].detach())]
            weights = torch.tensor([*scores, *extra]).softmax(0)[: len(scores)]
            contexts[0, head, row] = weights @ value[0, head // 2, seen]
    return contexts


def seen(row: int, column: int, window: int = LENGTH) -> bool:
    """Tell whether a token sees another one."""
    return 0 <= row - column < window


SLOPES = (0.25, 0.0625, 0.015625, 0.00390625)
"""Press et al., section 3, for four heads: powers of 2^(-8 / 4)."""

CASES: dict[str, tuple[dict[str, Any], int, Callable[..., float | None]]] = {
    "window": ({}, 5, lambda x, _, i, j: x if seen(i, j, 5) else None),
    "sinks": (
        {"softmax_type": "learnable"},
        0,
        lambda x, _, i, j: x if seen(i, j) else None,
    ),
    "window and sinks": (
        {"softmax_type": "learnable"},
        3,
        lambda x, _, i, j: x if seen(i, j, 3) else None,
    ),
    "slopes": (
        {"position_embedding_type": "alibi"},
        0,
        lambda x, h, i, j: x - SLOPES[h] * (i - j) if seen(i, j) else None,
    ),
    "cap": (
        {"attn_logit_softcapping": 0.5},
        0,
        lambda x, _, i, j: (
            0.5 * float(torch.tanh(torch.tensor(x / 0.5))) if seen(i, j) else None
        ),
    ),
}


@failures.over("case", CASES)
def test_attention_is_what_it_is_pair_by_pair(case: str) -> None:
    torch.manual_seed(0)
    changes, window, score = CASES[case]
    core = FlashAttention(attention_spec(**changes), window)
    if core.softmax_offset is not None:
        torch.nn.init.normal_(core.softmax_offset)
    query = torch.randn(1, HEADS, LENGTH, CHANNELS)
    key, value = torch.randn(2, 1, 2, LENGTH, CHANNELS)
    expected = context_by_hand((query, key, value), score, core.softmax_offset)
    torch.testing.assert_close(core(query, key, value), expected)


def test_plain_attention_has_the_slopes_too() -> None:
    torch.manual_seed(0)
    spec = attention_spec(position_embedding_type="alibi")
    flash = build_layers(spec, "cpu")["block"]
    plain = build_layers(replace(spec, attention_implementation="plain"), "cpu")
    plain["block"].load_state_dict(flash.state_dict())
    hidden = torch.randn(2, LENGTH, 24)
    torch.testing.assert_close(flash(hidden), plain["block"](hidden))


def test_slopes_of_other_numbers_of_heads_lie_between() -> None:
    """Press et al., code of ``get_slopes``: 8 of 8 heads, then every second of 16."""
    eight = [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(8) == eight
    assert alibi_slopes(12) == [*eight, *(2.0**-i for i in (0.5, 1.5, 2.5, 3.5))]
    assert len(alibi_slopes(112)) == 112  # BLOOM's


@given(tokens=st.integers(1, 60), window=st.integers(1, 60))
def test_pairs_are_those_that_a_window_shows(tokens: int, window: int) -> None:
    """As many as the mask has, twice, without the diagonal: a causal square is half."""
    window = min(window, tokens)
    operator = TracedOperator(
        "a",
        "attention",
        "heads",
        (),
        (),
        (),
        (tokens, tokens, 3, 2),
        True,
        window=window,
    )
    shown = sum(0 <= i - j < window for i in range(tokens) for j in range(tokens))
    assert shown == tokens * window - window * (window - 1) // 2
    assert operator.pairs == 2 * shown - tokens
    assert operator.model_flops == 4 * operator.pairs * 3 * 2
    if window == tokens:
        assert operator.pairs == tokens**2


def test_a_window_that_hides_nothing_costs_nothing() -> None:
    spec = attention_spec()
    plain, wide = trace_model(spec), trace_model(with_windows(spec, LENGTH))
    assert wide.layers == plain.layers
    assert not with_windows(spec, LENGTH).has_windows


def test_windows_save_work_and_no_memory() -> None:
    """Attention keeps what it reads and makes, however far tokens see."""
    spec = attention_spec(sequence_length=64)
    plain, narrow = trace_model(spec), trace_model(with_windows(spec, 8))
    degrees = Degrees(tp=2, sequence_parallel=True)
    before, after = (layer_work(one, 1, degrees, 2) for one in (plain, narrow))
    assert after.saved_bytes == before.saved_bytes
    assert after.collectives == before.collectives
    ratio = (2 * 8 * 64 - 8 * 7 - 64) / 64**2
    flops = [
        next(op.forward_flops for op in work.operators if op.kind == "attention")
        for work in (before, after)
    ]
    assert flops[1] == pytest.approx(ratio * flops[0])
    assert model_flops_per_sequence(narrow) < model_flops_per_sequence(plain)


def test_a_ring_has_no_windows() -> None:
    spec = attention_spec(sequence_length=64)
    problem = divisibility_problem(with_windows(spec, 8, 2), Degrees(cp=2))
    assert problem is not None
    assert "window_size 8" in problem
    assert divisibility_problem(with_windows(spec, 64, 2), Degrees(cp=2)) is None


def test_every_second_block_has_the_window() -> None:
    spec = with_windows(attention_spec(num_layers=4), 3, skip_freq=2)
    assert spec.block_pattern == ("window+dense", "attention+dense") * 2


def test_windows_leave_other_kinds_of_blocks_as_they_are() -> None:
    experts = attention_spec(
        num_layers=4,
        num_moe_experts=4,
        moe_router_topk=1,
        gated_linear_unit=True,
        add_bias_linear=False,
        block_pattern=("attention+dense", *["attention+experts"] * 3),
    )
    spec = with_windows(experts, 3, skip_freq=2)
    assert spec.block_pattern == (
        "window+dense",
        "attention+experts",
        "window+experts",
        "attention+experts",
    )


def test_ranks_share_sinks_and_norms_of_heads() -> None:
    """Sinks and norms of all heads are split with them, norms of one head are not."""
    spec = attention_spec(
        normalization="rmsnorm",
        softmax_type="learnable",
        qk_layernorm=True,
        qk_layernorm_whole=True,
    )
    graph = trace_model(spec)
    layouts = {one.name: one.layout for one in graph.layers[1].parameters}
    assert layouts["self_attention.core_attention.softmax_offset"] == "tensor"
    assert layouts["self_attention.query_norm.weight"] == "tensor"
    assert layouts["self_attention.key_norm.weight"] == "groups"
    single = trace_model(replace(spec, qk_layernorm_whole=False))
    by_name = {one.name: one for one in single.layers[1].parameters}
    assert by_name["self_attention.query_norm.weight"].layout == "whole"
    assert by_name["self_attention.query_norm.weight"].elements == CHANNELS


def test_a_part_of_a_head_is_turned() -> None:
    torch.manual_seed(0)
    spec = attention_spec(kv_channels=8, rotary_percent=0.5)
    rotary = build_layers(spec, "cpu")["block"].self_attention.rotary
    query = torch.randn(1, 1, LENGTH, 8)
    turned, _ = rotary(query, query)
    torch.testing.assert_close(turned[..., 4:], query[..., 4:])
    assert not torch.allclose(turned[..., :4], query[..., :4])
    whole = build_layers(attention_spec(kv_channels=4), "cpu")["block"]
    same, _ = whole.self_attention.rotary(query[..., :4], query[..., :4])
    torch.testing.assert_close(turned[..., :4], same)


def branches(spec: TransformerSpec) -> tuple[Any, Tensor, Tensor]:
    """Return a block, hidden states and what the block makes of them."""
    torch.manual_seed(0)
    block = build_layers(spec, "cpu")["block"]
    for one in block.modules():
        if hasattr(one, "weight") and one.weight is not None and one.weight.dim() == 1:
            torch.nn.init.uniform_(one.weight, 0.5, 1.5)
    hidden = torch.randn(1, LENGTH, 24)
    return block, hidden, block(hidden)


def test_norms_stand_behind_branches() -> None:
    block, hidden, found = branches(attention_spec(norm_placement="post"))
    middle = hidden + block.post_attention_norm(block.self_attention(hidden))
    expected = middle + block.post_mlp_norm(block.mlp(middle))
    torch.testing.assert_close(found, expected)


def test_norms_stand_on_both_sides() -> None:
    block, hidden, found = branches(attention_spec(norm_placement="sandwich"))
    branch = block.self_attention(block.input_norm(hidden))
    middle = hidden + block.post_attention_norm(branch)
    branch = block.mlp(block.pre_mlp_norm(middle))
    torch.testing.assert_close(found, middle + block.post_mlp_norm(branch))


def test_parallel_branches_read_the_same() -> None:
    block, hidden, found = branches(attention_spec(parallel_residual=True))
    expected = hidden + block.self_attention(block.input_norm(hidden))
    expected = expected + block.mlp(block.pre_mlp_norm(hidden))
    torch.testing.assert_close(found, expected)


def test_parallel_branches_share_a_norm() -> None:
    spec = attention_spec(parallel_residual=True, norm_placement="shared")
    block, hidden, found = branches(spec)
    normed = block.input_norm(hidden)
    expected = hidden + block.self_attention(normed) + block.mlp(normed)
    torch.testing.assert_close(found, expected)


GEMMA = {
    "gated_linear_unit": True,
    "activation_func": "gelu",
    "normalization": "rmsnorm",
    "norm_placement": "sandwich",
    "scale_embeddings": True,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 3.0,
}
LEARNING: dict[str, dict[str, Any]] = {
    "gemma": GEMMA,
    "gpt-oss": {"softmax_type": "learnable", "add_attention_bias": True},
    "olmo2": {
        "normalization": "rmsnorm",
        "norm_placement": "post",
        "qk_layernorm": True,
        "qk_layernorm_whole": True,
    },
    "qwen3": {"normalization": "rmsnorm", "qk_layernorm": True},
    "bloom": {"position_embedding_type": "alibi", "embedding_layernorm": True},
    "falcon": {
        "num_query_groups": 1,
        "parallel_residual": True,
        "norm_placement": "shared",
    },
    "nemotron": {"activation_func": "squared_relu", "rotary_percent": 1 / 3},
    "olmo": {"layernorm_affine": False, "activation_func": "silu"},
}


@failures.over("name", LEARNING)
def test_small_decoders_learn_on_a_cpu(name: str) -> None:
    torch.manual_seed(0)
    spec = with_windows(attention_spec(**LEARNING[name]), 4, skip_freq=2)
    model = build_model(spec, "cpu")
    inputs, labels = example_inputs(spec, "cpu")
    labels = (torch.randint(spec.vocab_size, labels[0].shape),)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@failures.over("name", LEARNING)
def test_their_traces_count_their_parameters(name: str) -> None:
    spec = attention_spec(**LEARNING[name])
    counted = sum(parameter.numel() for parameter in build_model(spec).parameters())
    assert trace_model(spec).num_parameters == counted


def test_the_loss_behind_a_soft_cap_is_split_as_without() -> None:
    capped = trace_model(attention_spec(final_logit_softcapping=30.0))
    plain = trace_model(attention_spec())
    degrees = Degrees(tp=2, sequence_parallel=True)
    ends = [layer_work(one, len(one.layers) - 1, degrees, 2) for one in (capped, plain)]
    assert ends[0].collectives == ends[1].collectives
    logits = LENGTH * 256 / 2 * 2
    kept = ends[0].saved_bytes["none"] - ends[1].saved_bytes["none"]
    assert kept == pytest.approx(logits)


@failures.over(
    ("changes", "where"),
    [
        ({"window_size": 4}, "window_size"),
        ({"block_pattern": ("window+dense",) * 2}, "window_size"),
        (
            {
                "block_pattern": ("window+dense",) * 2,
                "window_size": 4,
                "causal": False,
            },
            "window_size",
        ),
        (
            {
                "block_pattern": ("window+dense",) * 2,
                "window_size": 4,
                "attention_implementation": "plain",
            },
            "window_size",
        ),
        (
            {"softmax_type": "learnable", "attention_implementation": "plain"},
            "softmax_type",
        ),
        ({"softmax_type": "off-by-one"}, "softmax_type"),
        (
            {
                "family": "bert",
                "causal": False,
                "position_embedding_type": "learned",
                "norm_placement": "sandwich",
            },
            "norm_placement",
        ),
        (
            {
                "kv_lora_rank": 8,
                "qk_pos_emb_head_dim": 4,
                "num_query_groups": 4,
                "add_bias_linear": False,
                "qk_layernorm": True,
            },
            "qk_layernorm",
        ),
        (
            {"position_embedding_type": "alibi", "rotary_percent": 0.5},
            "rotary_percent",
        ),
        ({"norm_placement": "shared"}, "norm_placement"),
        ({"norm_placement": "between"}, "norm_placement"),
        ({"activation_func": "tanh"}, "activation_func"),
        ({"qk_layernorm_whole": True}, "qk_layernorm_whole"),
        ({"rotary_percent": 0.0}, "rotary_percent"),
        ({"rotary_percent": 0.5}, "kv_channels"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping"),
        ({"final_logit_softcapping": float("nan")}, "final_logit_softcapping"),
    ],
)
def test_impossible_attention_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        attention_spec(**changes)
    assert caught.value.where == where
    assert caught.value.expected
