"""Experts, their routers, and layers that predict tokens further ahead."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
import torch

from estimators.dispatch import (
    ALONE,
    DISPATCHERS,
    contention,
    copies_sent,
    kernel_efficiency,
)
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from estimators.models.library import build_spec, load_model, pattern_by_frequency
from estimators.models.spec import TransformerSpec
from estimators.software import Software
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import MoELayer, TopK, build_layers, example_inputs
from tests.estimators.whole_models import build_model
from topologies.accelerators import load_accelerator
from topologies.errors import InputError

SMALL = TransformerSpec(
    family="mixtral",
    num_layers=3,
    block_pattern=pattern_by_frequency([0, 1, 1], 3),
    hidden_size=32,
    num_attention_heads=4,
    vocab_size=101,
    sequence_length=16,
    ffn_hidden_size=48,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    tie_word_embeddings=False,
    add_bias_linear=False,
    num_moe_experts=8,
    moe_ffn_hidden_size=12,
    moe_router_topk=2,
    moe_shared_expert_intermediate_size=24,
)

SIZES = {
    "family": "mixtral",
    "num_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "sequence_length": 16,
    "num_moe_experts": 8,
    "moe_router_topk": 2,
}


def scales(rows: int, columns: int) -> int:
    """Return the scales of an 8-bit weight, one for each 128 by 128 block."""
    return ceil(rows / 128) * ceil(columns / 128)


def test_deepseek_v3_has_its_published_parameters() -> None:
    """README_WEIGHTS.md: 671 billion, and 11.5 (here 11.6) of the layer of multi-token
    prediction. The checkpoint has 684,531,386,000 numbers (safetensors metadata of
    deepseek-ai/DeepSeek-V3): that layer's copies of embedding and head, a bias for
    each expert, and a scale for each block of the weights that are kept in 8 bits.
    """
    spec = load_model("deepseek-v3")
    alone = trace_model(replace(spec, mtp_num_layers=0)).num_parameters
    assert alone == 671_026_404_352
    ahead = trace_model(spec).num_parameters - alone
    assert ahead == 11_610_067_968
    copies, biases = 2 * 129280 * 7168, 59 * 256
    attention = scales(1536, 7168) + scales(24576, 1536) + scales(576, 7168)
    attention += scales(32768, 512) + scales(7168, 16384)
    experts = 59 * 257 * 3 * scales(2048, 7168)
    in_blocks = 62 * attention + experts + 3 * 3 * scales(18432, 7168)
    assert alone + ahead + copies + biases + in_blocks == 684_531_386_000


def test_kimi_k2_has_its_published_parameters() -> None:
    """1.03 trillion; the checkpoint has 1,026,470,731,056 numbers with their scales
    (safetensors metadata of moonshotai/Kimi-K2-Base), of which 56 a layer are not
    explained."""
    found = trace_model(load_model("kimi-k2")).num_parameters
    attention = scales(1536, 7168) + scales(12288, 1536) + scales(576, 7168)
    attention += scales(16384, 512) + scales(7168, 8192)
    experts = 60 * 385 * 3 * scales(2048, 7168)
    in_blocks = 61 * attention + experts + 3 * scales(18432, 7168)
    assert found + 60 * 384 + in_blocks + 61 * 56 == 1_026_470_731_056


@failures.over(
    ("name", "published", "biased"),
    [("glm-4.5", 358_337_791_296, 90), ("glm-4.5-air", 110_468_824_832, 46)],
)
def test_glm_has_its_published_parameters(
    name: str, published: int, biased: int
) -> None:
    """The checkpoints have the last layer's copies of embedding and head, and a bias
    for each expert (safetensors metadata of zai-org/GLM-4.5 and GLM-4.5-Air)."""
    spec = load_model(name)
    copies = 2 * spec.vocab_size * spec.hidden_size
    biases = biased * spec.num_moe_experts
    assert trace_model(spec).num_parameters + copies + biases == published


def test_both_llama_4_leave_as_much_to_what_sees() -> None:
    """Checkpoints of 108,641,793,536 and 401,583,781,376 parameters with the part that
    reads images (safetensors metadata of meta-llama/Llama-4), which both share."""
    scout = trace_model(load_model("llama4-scout")).num_parameters
    maverick = trace_model(load_model("llama4-maverick")).num_parameters
    rest = 108_641_793_536 - scout
    assert rest == 401_583_781_376 - maverick
    assert 0 < rest / 1e9 < 1


def test_deepseek_v3_activates_its_published_parameters() -> None:
    """37 billion for a token (abstract), of the main model."""
    spec = load_model("deepseek-v3")
    graph = trace_model(replace(spec, mtp_num_layers=0))
    idle = 58 * (256 - 8) * 3 * 7168 * 2048
    used = graph.num_parameters - idle
    assert used / 1e9 == pytest.approx(37.6, abs=0.1)


def test_patterns_say_which_blocks_have_experts_and_windows() -> None:
    words = {**SIZES, "moe_layer_freq": "[0]+[1]*2"}
    experts = ("attention+dense", *["attention+experts"] * 2)
    assert build_spec(words).block_pattern == experts
    assert build_spec({**words, "moe_layer_freq": [1, 1, 1]}).block_pattern == ()
    words |= {"window_size": 4, "window_attn_skip_freq": [0, 1, 0]}
    windows = ("attention+dense", "window+experts", "attention+experts")
    assert build_spec(words).block_pattern == windows


@failures.over(
    ("freq", "chunk", "mixers"),
    [
        (2, 8, ("chunked", "unturned", "chunked")),
        ([1, 0, 0], 8, ("unturned", "chunked", "chunked")),
        ([1, 0, 0], 0, ("unturned", "attention", "attention")),
        ([0, 0, 0], 0, ()),
    ],
)
def test_blocks_without_positions_stand_between_those_of_chunks(
    freq: int | list[int], chunk: int, mixers: tuple[str, ...]
) -> None:
    words = {**SIZES, "no_rope_freq": freq, "attention_chunk_size": chunk}
    pattern = tuple(f"{mixer}+experts" for mixer in mixers)
    assert build_spec(words).block_pattern == pattern


# Routers.


def test_a_softmax_over_all_weighs_less_than_one_over_the_chosen() -> None:
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    after, experts = TopK(2)(logits)
    before, same = TopK(2, pre_softmax=True)(logits)
    assert torch.equal(experts, same)
    chosen = logits.gather(-1, experts)
    torch.testing.assert_close(after, chosen.softmax(-1))
    torch.testing.assert_close(before, logits.softmax(-1).gather(-1, experts))


def test_sigmoids_are_chosen_with_biases_and_weighed_without() -> None:
    router = TopK(2, sigmoid=True, num_biased=4)
    assert router.expert_bias is not None
    router.expert_bias += torch.tensor([0.0, 0.0, 5.0, 0.0])
    assert not list(router.parameters())
    logits = torch.tensor([[1.0, 2.0, -3.0, 0.0]])
    weights, experts = router(logits)
    assert set(experts[0].tolist()) == {2, 1}
    scores = logits.sigmoid()[0]
    expected = scores[experts[0]] / (scores[1] + scores[2])
    torch.testing.assert_close(weights[0], expected)


def test_one_sigmoid_alone_is_its_weight() -> None:
    """Llama 4 sends a token to one expert, whose score is not made to be one."""
    weights, experts = TopK(1, sigmoid=True)(torch.tensor([[0.0, 1.0]]))
    assert experts.item() == 1
    torch.testing.assert_close(weights, torch.tensor([[1.0]]).sigmoid())


def test_experts_are_of_the_best_groups() -> None:
    """Of 4 groups the 2 whose best two experts are best: not that of the best one."""
    scores = torch.tensor([[9.0, 0, 0, 6, 5, 0, 5, 4]]) / 10
    logits = torch.log(scores.clamp(1e-6) / (1 - scores.clamp(1e-6)))
    router = TopK(4, sigmoid=True, groups=(4, 2))
    _, experts = router(logits)
    assert set(experts[0].tolist()) == {0, 1, 6, 7}
    _, free = TopK(4, sigmoid=True)(logits)
    assert set(free[0].tolist()) == {0, 3, 4, 6}


@failures.over("gated", [False, True])
@failures.over("biased", [False, True])
def test_a_layer_of_experts_is_what_its_matrices_say(gated: bool, biased: bool) -> None:
    torch.manual_seed(0)
    layer = MoELayer(
        replace(SMALL, moe_shared_expert_gate=gated, add_bias_linear=biased)
    )
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    hidden = torch.randn(1, 16, 32)

    def swiglu(rows: torch.Tensor) -> torch.Tensor:
        gate, up = rows.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def bias(part: torch.nn.Module, expert: int) -> torch.Tensor | float:
        return part.bias[expert] if biased else 0.0  # type: ignore[index]

    logits = layer.router(hidden[0])
    expected = torch.zeros(16, 32)
    for token in range(16):
        best = logits[token].topk(2)
        for share, expert in zip(best.values.softmax(-1), best.indices, strict=True):
            one, two = layer.linear_fc1, layer.linear_fc2
            inner = one.weight[expert] @ hidden[0, token] + bias(one, int(expert))
            outer = two.weight[expert] @ swiglu(inner) + bias(two, int(expert))
            expected[token] += share * outer
    shared = layer.shared_experts
    assert shared is not None
    mlp = shared.mlp if gated else shared
    always = mlp.linear_fc2(swiglu(mlp.linear_fc1(hidden[0])))
    if gated:
        always = always * torch.sigmoid(hidden[0] @ shared.gate.weight.T)
    torch.testing.assert_close(layer(hidden)[0], expected + always)


def test_biases_of_experts_are_counted() -> None:
    plain = trace_model(SMALL).num_parameters
    biased = trace_model(replace(SMALL, add_bias_linear=True)).num_parameters
    attention, shared, dense = 3 * 32 + 32, 2 * 24 + 32, 2 * 48 + 32
    experts = 8 + 8 * (2 * 12 + 32)
    assert biased - plain == 3 * attention + 2 * (experts + shared) + dense


# Multi-token prediction.


@failures.over("depths", [1, 2])
@failures.over("tied", [False, True])
def test_depths_are_counted_and_learn(depths: int, tied: bool) -> None:
    torch.manual_seed(0)
    spec = replace(SMALL, mtp_num_layers=depths, tie_word_embeddings=tied)
    graph, model = trace_model(spec), build_model(spec, "cpu")
    assert graph.num_parameters == sum(p.numel() for p in model.parameters())
    assert graph.names[-1 - depths :] == (
        *(f"mtp {depth}" for depth in range(depths)),
        "head",
    )
    inputs, _ = example_inputs(spec, "cpu")
    labels = (torch.randint(spec.vocab_size, inputs[0].shape),)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        loss = model(inputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(p.grad is not None for p in model.depths.parameters())


def test_a_depth_adds_a_block_a_projection_and_norms() -> None:
    """The formulas of the paper's section 2.2: M_k is h by 2 h."""
    plain, h = trace_model(SMALL), 32
    ahead = trace_model(replace(SMALL, mtp_num_layers=1))
    block = sum(p.elements for p in plain.layers[plain.kinds[-3]].parameters)
    assert ahead.num_parameters - plain.num_parameters == block + 2 * h * h + 3 * h
    head = [op.dims for op in ahead.layers[-1].operators if op.operation == "linear"]
    assert head == [(16, 101, 32, 1)] * 2


def test_a_depth_embeds_the_token_that_comes_later() -> None:
    torch.manual_seed(0)
    spec = replace(SMALL, mtp_num_layers=2)
    layers = build_layers(spec, "cpu")
    tokens, hidden = torch.randint(101, (1, 16)), torch.randn(1, 16, 32)
    first = layers["mtp 0"](hidden, tokens)
    assert torch.equal(first[:, :16], hidden)
    other = tokens.clone()
    other[0, 5] = (other[0, 5] + 1) % 101
    changed = (layers["mtp 0"](hidden, other) - first)[0, 16:].abs().sum(-1)
    assert torch.equal(changed[:4], torch.zeros(4))
    assert changed[4] > 0
    second = layers["mtp 1"](first, tokens)
    assert second.shape == (1, 48, 32)
    assert torch.equal(second[:, :32], first)


def test_depths_take_the_last_block_s_kind() -> None:
    pattern = ("attention+experts", "attention+dense", "attention+experts")
    spec = replace(SMALL, block_pattern=pattern, mtp_num_layers=1)
    graph = trace_model(spec)
    assert any(p.layout == "expert" for p in graph.layers[graph.kinds[-2]].parameters)


def test_models_without_a_next_token_have_no_depths() -> None:
    with pytest.raises(InputError, match="mtp_num_layers"):
        replace(load_model("bert-large"), mtp_num_layers=1)


FLEX = Software(
    name="ideal", ranks_per_node=8, moe_token_dispatcher_type=DISPATCHERS[-1]
)


@failures.over(
    ("accelerator", "dispatcher", "processors", "left"),
    [
        # 20 of the 132 of an H800 (DeepSeek-V3, section 3.2.2); 16 and 32: the table.
        ("h800", "flex", 0, 112 / 132),
        ("h100-sxm", "alltoall", 0, 116 / 132),
        ("h100-sxm", "flex", 24, 108 / 132),
        ("gb200", "flex", 0, 120 / 152),
        ("gb200", "alltoall", 24, 136 / 152),
    ],
)
def test_devices_compute_with_what_does_not_send(
    accelerator: str, dispatcher: str, processors: int, left: float
) -> None:
    software = Software(
        name="megatron-core",
        moe_token_dispatcher_type=dispatcher,
        moe_flex_dispatcher_num_sms=processors,
    )
    device = load_accelerator(accelerator)
    assert contention(device, software, None).compute == pytest.approx(1.0 / left)
    assert contention(device, software, 1.5).compute == 1.5
    # 8.3 s of communication take 10.8 s beside compute (Megatron-Bridge's profile).
    assert contention(device, software, None).sending == pytest.approx(1.3, abs=0.02)


def test_what_sends_without_multiprocessors_slows_nothing_down() -> None:
    software = Software(name="maxtext", moe_token_dispatcher_type="alltoall")
    assert contention(load_accelerator("tpu-v5p"), software, None) == ALONE
    bare = replace(software, library=False)
    assert contention(load_accelerator("h100-sxm"), bare, None) == ALONE
    flex = replace(
        software, moe_token_dispatcher_type="flex", moe_flex_dispatcher_num_sms=132
    )
    with pytest.raises(InputError, match="moe_flex_dispatcher_num_sms"):
        contention(load_accelerator("h100-sxm"), flex, None)


# What the planner asks.


def test_tensor_groups_divide_the_widths_that_blocks_have() -> None:
    odd = replace(SMALL, moe_ffn_hidden_size=11)
    assert "moe_ffn_hidden_size 11" in str(divisibility_problem(odd, Degrees(tp=2)))
    unused = replace(SMALL, block_pattern=(), ffn_hidden_size=47)
    assert divisibility_problem(unused, Degrees(tp=2)) is None
    dense = replace(SMALL, ffn_hidden_size=47)
    assert "ffn_hidden_size 47" in str(divisibility_problem(dense, Degrees(tp=2)))


@failures.over(
    ("groups", "chosen", "nodes"),
    [(8, 4, 8), (8, 3, 4), (8, 4, 2), (4, 2, 8), (8, 8, 4)],
)
def test_tokens_reach_as_many_nodes_as_chosen_groups_have(
    groups: int, chosen: int, nodes: int
) -> None:
    """Each expert is of one of the chosen groups alike, and anywhere in it."""
    draws, copies = 40_000, 4
    spec = replace(
        SMALL,
        num_moe_experts=64,
        moe_router_topk=copies,
        moe_router_num_groups=groups,
        moe_router_group_topk=chosen,
    )
    random = np.random.default_rng(0)
    kept = random.random((draws, groups)).argsort(1)[:, :chosen]
    group = np.take_along_axis(kept, random.integers(0, chosen, (draws, copies)), 1)
    place = (group + random.random((draws, copies))) * nodes / groups
    reached = [len(set(row)) for row in place.astype(int).tolist()]
    between = copies_sent(spec, 8 * nodes, 8 * nodes, FLEX)
    assert between == pytest.approx(np.mean(reached), rel=0.01)
    # Inside a node ranks are the places.
    inside = copies_sent(spec, nodes, nodes, FLEX)
    assert inside == pytest.approx(np.mean(reached), rel=0.01)


def test_all_groups_are_as_good_as_none() -> None:
    spec = replace(load_model("deepseek-v3"), moe_router_group_topk=8)
    free = replace(spec, moe_router_num_groups=0, moe_router_group_topk=0)
    grouped, plain = (copies_sent(s, 64, 64, FLEX) for s in (spec, free))
    assert grouped == pytest.approx(plain, rel=1e-12)
    limited = copies_sent(load_model("deepseek-v3"), 64, 64, FLEX)
    assert limited < 4 < plain


def test_a_dispatcher_sends_a_copy_to_each_expert_rank_or_node() -> None:
    spec = replace(SMALL, num_moe_experts=64, moe_router_topk=6)
    software = {
        kind: replace(FLEX, moe_token_dispatcher_type=kind) for kind in DISPATCHERS
    }
    for ranks, places in ((4, 4), (8, 8), (32, 4)):
        sent = {k: copies_sent(spec, ranks, ranks, s) for k, s in software.items()}
        assert sent["alltoall"] == 6
        assert sent["allgather"] == places
        assert 1 < sent["flex"] < min(6, places)


def test_few_multiprocessors_do_not_fill_the_links_of_a_b200() -> None:
    h100, b200 = (kernel_efficiency(chip, 8) or 0.0 for chip in ("h100-sxm", "b200"))
    assert h100 > 1.5 * b200 > 0.0
    assert kernel_efficiency("gb200", 64) == kernel_efficiency("gb200", 8)
    assert kernel_efficiency("b200", 16) is None
    assert kernel_efficiency("a100-80gb", 8) is None
