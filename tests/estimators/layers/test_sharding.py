"""Numbers per device: activations, parameters, products, traffic, collectives."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.grouping import Grouping
from estimators.layers.sharding import kept_tensors, layer_work
from estimators.layers.shares import (
    divisibility_problem,
    group_copies,
    padded_vocab_size,
    tied_parameters,
)
from estimators.layers.work import CollectiveWork, Degrees, LayerWork
from estimators.models.library import load_model, model_names
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import build_layers

EMBEDDING, BLOCK, NORM, HEAD = range(4)
NAMES = ("gpt3-2.7b", "llama2-7b", "llama3-8b", "mixtral-8x7b", "bert-large")
GRAPHS = {name: trace_model(load_model(name)) for name in NAMES}
PLAIN = trace_model(load_model("gpt3-175b", attention_implementation="plain"))
GPT, LLAMA, MIXTRAL = PLAIN.spec, GRAPHS["llama3-8b"].spec, GRAPHS["mixtral-8x7b"].spec


def work(graph: LayerGraph, kind: int, **degrees: int) -> LayerWork:
    return layer_work(graph, kind, Degrees(**degrees), 2)


def collectives(layer: LayerWork) -> dict[tuple[str, str], CollectiveWork]:
    return {(item.operation, item.group): item for item in layer.collectives}


@st.composite
def splits(draw: st.DrawFn) -> tuple[LayerGraph, Degrees]:
    """Draw a model and degrees that it can be split by."""
    graph = GRAPHS[draw(st.sampled_from(NAMES))]
    degrees = Degrees(
        tp=draw(st.sampled_from([1, 2, 4, 8, 16])),
        cp=draw(st.sampled_from([1, 2, 4])),
        ep=draw(st.sampled_from([1, 2, 8])) if graph.spec.num_moe_experts else 1,
        micro_batch_size=draw(st.integers(1, 4)),
        sequence_parallel=draw(st.booleans()),
    )
    if divisibility_problem(graph.spec, degrees):
        degrees = Degrees(micro_batch_size=degrees.micro_batch_size)
    return graph, degrees


# Korthikanti et al., 2022: activations of one GPT layer, 2-byte elements, dropout 0.1.


@failures.over("b", [1, 4])
@failures.over("t", [1, 2, 8])
def test_activations_without_recompute_are_those_of_korthikanti(t: int, b: int) -> None:
    """Equations 1 and 2, table 2."""
    s, h, a = GPT.sequence_length, GPT.hidden_size, GPT.num_attention_heads
    saved = work(PLAIN, BLOCK, tp=t, micro_batch_size=b).saved_bytes["none"]
    assert saved == s * b * h * (10 + 24 / t + 5 * a * s / (h * t))


@failures.over("b", [1, 4])
@failures.over("t", [1, 2, 8])
def test_activations_with_sequence_parallelism_are_those_of_korthikanti(
    t: int, b: int
) -> None:
    """Equation 4: everything is divided by t."""
    s, h, a = GPT.sequence_length, GPT.hidden_size, GPT.num_attention_heads
    layer = work(PLAIN, BLOCK, tp=t, micro_batch_size=b, sequence_parallel=True)
    assert layer.saved_bytes["none"] == s * b * h / t * (34 + 5 * a * s / h)


@failures.over("t", [1, 2, 8])
def test_selective_recompute_keeps_what_korthikanti_keep(t: int) -> None:
    """Section 5: the attention core's 5 a s^2 b go, with and without sp."""
    s, h = GPT.sequence_length, GPT.hidden_size
    split = work(PLAIN, BLOCK, tp=t, sequence_parallel=True)
    assert split.saved_bytes["selective"] == 34 * s * h / t
    whole = work(PLAIN, BLOCK, tp=t)
    assert whole.saved_bytes["selective"] == s * h * (10 + 24 / t)


@failures.over("t", [1, 2, 8])
def test_full_recompute_keeps_the_input(t: int) -> None:
    s, h = GPT.sequence_length, GPT.hidden_size
    layer = work(PLAIN, BLOCK, tp=t, micro_batch_size=2)
    assert layer.saved_bytes["full"] == 2 * s * 2 * h == layer.input_bytes


def test_flash_attention_keeps_row_statistics_instead_of_scores() -> None:
    flash = trace_model(replace(GPT, attention_implementation="flash"))
    s, h, a, t = GPT.sequence_length, GPT.hidden_size, GPT.num_attention_heads, 8
    saved = work(flash, BLOCK, tp=t, sequence_parallel=True).saved_bytes
    assert saved["none"] == (34 * s * h + 4 * a * s) / t
    assert saved["selective"] == 34 * s * h / t


def test_a_llama_block_keeps_its_gate_and_its_product() -> None:
    """Per token: 8 h outside, 2 (1 + 2 g / a) h heads, 2 h context, 8 f inside."""
    spec = GRAPHS["llama3-8b"].spec
    s, h, f = spec.sequence_length, spec.hidden_size, spec.ffn_hidden_size
    a, g = spec.num_attention_heads, spec.num_query_groups
    saved = work(GRAPHS["llama3-8b"], BLOCK).saved_bytes["selective"]
    assert saved == s * (h * (8 + 2 * (1 + 2 * g / a) + 2) + 8 * f)


@failures.over("name", ["gpt3-125m", "bert-large"])
def test_autograd_keeps_the_same_tensors(name: str) -> None:
    """What a real block keeps on the CPU, parameters, masks and the statistics of norms
    aside. (RMSNorm and rotary embeddings keep more when they are not fused.)"""
    spec = replace(
        load_model(name, attention_implementation="plain"),
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=4,
        kv_channels=16,
        ffn_hidden_size=160,
        sequence_length=24,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    block = build_layers(spec, "cpu")["block"]
    hidden = torch.randn(1, 24, 64, requires_grad=True)
    own = {parameter.data_ptr() for parameter in block.parameters()}
    kept: dict[tuple[int, int], torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        statistics = tensor.shape[-1] == 1
        if tensor.is_floating_point() and not statistics:
            kept[tensor.data_ptr(), tensor.numel()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = block(hidden)
    elements = sum(
        tensor.numel() for (place, _), tensor in kept.items() if place not in own
    )
    assert result.requires_grad
    saved = layer_work(trace_model(spec), BLOCK, Degrees(), 4).saved_bytes["none"]
    assert 4 * elements == saved


@given(splits())
def test_more_recompute_keeps_less(split: tuple[LayerGraph, Degrees]) -> None:
    graph, degrees = split
    for kind in range(len(graph.layers)):
        saved = layer_work(graph, kind, degrees, 2).saved_bytes
        assert 0 <= saved["full"] <= saved["selective"] <= saved["none"]


@given(splits())
def test_memory_grows_with_the_micro_batch(split: tuple[LayerGraph, Degrees]) -> None:
    graph, degrees = split
    larger = degrees._replace(micro_batch_size=degrees.micro_batch_size + 1)
    for kind in range(len(graph.layers)):
        less, more = (layer_work(graph, kind, d, 2) for d in (degrees, larger))
        for mode in ("none", "selective", "full"):
            assert less.saved_bytes[mode] <= more.saved_bytes[mode]
        assert less.working_bytes < more.working_bytes
        assert less.parameters == more.parameters


@given(splits())
def test_a_micro_batch_of_two_is_twice_one(split: tuple[LayerGraph, Degrees]) -> None:
    graph, degrees = split
    for kind in range(len(graph.layers)):
        one, two = (
            layer_work(graph, kind, degrees._replace(micro_batch_size=b), 2)
            for b in (1, 2)
        )
        assert two.saved_bytes["none"] == pytest.approx(2 * one.saved_bytes["none"])
        assert two.model_flops == 2 * one.model_flops
        for few, many in zip(one.operators, two.operators, strict=True):
            assert many.forward_flops == pytest.approx(2 * few.forward_flops)
        for small, large in zip(one.collectives, two.collectives, strict=True):
            assert large.forward_bytes == pytest.approx(2 * small.forward_bytes)


@given(splits())
def test_devices_share_the_products_of_a_layer(
    split: tuple[LayerGraph, Degrees],
) -> None:
    """Together they do at least the whole layer; all of it and no more where nothing
    is padded, copied, or repeated on every rank of the tensor group."""
    graph, degrees = split
    spec, tp, cp = graph.spec, degrees.tp, degrees.cp
    causal = 0.5 if spec.causal else 1.0
    for kind, layer in enumerate(graph.layers):
        result = layer_work(graph, kind, degrees, 2)
        for traced, done in zip(layer.operators, result.operators, strict=True):
            whole = traced.model_flops * degrees.micro_batch_size
            whole *= causal if traced.operation == "attention" else 1.0
            together = done.forward_flops * tp * cp
            if traced.sharding == "vocab":
                whole *= padded_vocab_size(spec, tp) / spec.vocab_size
            elif traced.sharding == "" and not degrees.sequence_parallel:
                whole *= tp
            elif traced.sharding == "qkv" and tp > spec.num_query_groups:
                assert together > whole
                continue
            assert together == pytest.approx(whole, rel=1e-12)


@given(splits())
def test_shards_hold_all_parameters(split: tuple[LayerGraph, Degrees]) -> None:
    graph, degrees = split
    spec, tp, ep = graph.spec, degrees.tp, degrees.ep
    copies = max(tp // spec.num_query_groups, 1)
    for kind, layer in enumerate(graph.layers):
        held = layer_work(graph, kind, degrees, 2)
        total = sum(parameter.elements for parameter in layer.parameters)
        dense = held.parameters - held.expert_parameters
        together = tp * dense + tp * ep * held.expert_parameters
        assert together >= total * (1 - 1e-12)
        repeated = sum(p.elements for p in layer.parameters if p.layout == "whole")
        groups = sum(p.elements for p in layer.parameters if p.layout == "groups")
        vocab = sum(p.elements for p in layer.parameters if p.layout == "vocab")
        padding = vocab * (padded_vocab_size(spec, tp) / spec.vocab_size - 1)
        expected = total + (tp - 1) * repeated + (copies - 1) * groups + padding
        assert together == pytest.approx(expected, rel=1e-12)


def test_one_device_holds_all_parameters_unpadded() -> None:
    for graph in (*GRAPHS.values(), PLAIN):
        held = sum(work(graph, kind).parameters for kind in graph.kinds)
        assert held - tied_parameters(graph, Degrees()) == graph.num_parameters


def test_a_split_vocabulary_is_padded_as_in_megatron() -> None:
    """50,257 entries become 51,200 on 8 ranks, as in all of Megatron-LM's papers."""
    assert padded_vocab_size(GPT, 1) == 50257
    assert padded_vocab_size(GPT, 2) == 50432
    assert padded_vocab_size(GPT, 8) == 51200
    head = work(PLAIN, HEAD, tp=8)
    assert head.parameters == 51200 // 8 * GPT.hidden_size
    assert head.operators[0].n == 51200 // 8
    assert tied_parameters(PLAIN, Degrees(tp=8)) == head.parameters


def test_untied_models_share_nothing() -> None:
    assert tied_parameters(GRAPHS["llama3-8b"], Degrees(tp=8)) == 0


# Products.


def products(layer: LayerWork) -> dict[str, tuple[float, float, float, float]]:
    return {
        op.name: (op.m, op.n, op.k, op.batch)
        for op in layer.operators
        if op.kind == "matmul"
    }


def test_products_have_megatron_s_local_shapes() -> None:
    s, h, t = GPT.sequence_length, GPT.hidden_size, 8
    assert products(work(PLAIN, BLOCK, tp=t, micro_batch_size=2)) == {
        "self_attention.linear_qkv": (2 * s, 3 * h / t, h, 1),
        "self_attention.core_attention.matmul": (s, s, 128, 2 * 96 / t),
        "self_attention.core_attention.matmul_1": (s, 128, s, 2 * 96 / t),
        "self_attention.linear_proj": (2 * s, h, h / t, 1),
        "mlp.linear_fc1": (2 * s, 4 * h / t, h, 1),
        "mlp.linear_fc2": (2 * s, h, 4 * h / t, 1),
    }


def test_query_groups_are_copied_to_ranks_without_their_own() -> None:
    head = LLAMA.kv_channels
    for tp, groups in ((2, 4), (8, 1), (32, 1)):
        shape = products(work(GRAPHS["llama3-8b"], BLOCK, tp=tp))
        queries = LLAMA.num_attention_heads // tp
        assert shape["self_attention.linear_qkv"][1] == (queries + 2 * groups) * head


def test_experts_work_on_an_even_share_of_the_tokens() -> None:
    s, h, f = MIXTRAL.sequence_length, MIXTRAL.hidden_size, MIXTRAL.ffn_hidden_size
    graph = GRAPHS["mixtral-8x7b"]
    shape = products(work(graph, BLOCK, tp=2, ep=4, micro_batch_size=3))
    rows = 3 * s * 2 * 4 / 8
    assert shape["mlp.linear_fc1"] == (rows, 2 * f / 2, h, 2)
    assert shape["mlp.linear_fc2"] == (rows, h, f / 2, 2)
    assert shape["mlp.router"] == (3 * s, 8, h, 1)


def test_expert_parallelism_divides_experts_and_not_work() -> None:
    graph = GRAPHS["mixtral-8x7b"]
    one, eight = work(graph, BLOCK), work(graph, BLOCK, ep=8)
    assert eight.expert_parameters == one.expert_parameters / 8
    assert one.parameters - one.expert_parameters == (
        eight.parameters - eight.expert_parameters
    )
    for alone, spread in zip(one.operators, eight.operators, strict=True):
        assert spread.forward_flops == alone.forward_flops
    assert one.saved_bytes == eight.saved_bytes


def test_causal_flash_attention_does_half_the_square_that_model_flops_count() -> None:
    causal = work(GRAPHS["llama2-7b"], BLOCK)
    bidirectional = trace_model(replace(GRAPHS["llama2-7b"].spec, causal=False))
    full = work(bidirectional, BLOCK)
    half_op, full_op = (
        next(op for op in layer.operators if op.kind == "attention")
        for layer in (causal, full)
    )
    assert half_op.forward_flops == 2 * 4096**2 * 4096
    assert full_op.forward_flops == 2 * half_op.forward_flops
    assert half_op.backward_flops == 2.5 * half_op.forward_flops
    assert causal.model_flops == full.model_flops


def test_products_cost_twice_as_much_backward() -> None:
    for op in work(PLAIN, BLOCK, tp=4).operators:
        if op.kind == "matmul":
            assert op.forward_flops == 2 * op.m * op.n * op.k * op.batch
            assert op.backward_flops == 2 * op.forward_flops


def test_traffic_of_simple_operators_is_counted_once() -> None:
    size = 2.0 * GPT.sequence_length * GPT.hidden_size
    traffic = {
        op.name: (op.forward_bytes / size, op.backward_bytes / size)
        for op in work(PLAIN, BLOCK).operators
        if op.kind == "memory"
    }
    scores = GPT.num_attention_heads * GPT.sequence_length / GPT.hidden_size
    assert traffic == {
        "input_norm": (2, 3),
        "self_attention.core_attention.softmax": (2 * scores, 3 * scores),
        "self_attention.core_attention.dropout": (2.5 * scores, 2.5 * scores),
        "attention_dropout": (2.5, 2.5),
        "add": (3, 3),
        "pre_mlp_norm": (2, 3),
        "mlp.activation": (8, 12),
        "mlp_dropout": (2.5, 2.5),
        "add_1": (3, 3),
    }


def test_sequence_parallelism_splits_norms_and_no_product() -> None:
    whole, split = (
        work(PLAIN, BLOCK, tp=8, sequence_parallel=sp) for sp in (False, True)
    )
    for one, other in zip(whole.operators, split.operators, strict=True):
        shared = "norm" in one.name or "add" in one.name or "_dropout" in one.name
        factor = 8 if shared else 1
        assert other.forward_bytes == one.forward_bytes / factor
        assert other.forward_flops == one.forward_flops


def test_the_head_works_on_the_gradients_of_logits() -> None:
    graph = GRAPHS["llama3-8b"]
    head = work(graph, HEAD, tp=8, sequence_parallel=True)
    logits = LLAMA.sequence_length * padded_vocab_size(LLAMA, 8) / 8
    # The softmax that is kept is overwritten by its own: they are 16-bit copies.
    assert head.working_bytes == 2 * logits
    hidden = 2 * LLAMA.sequence_length * LLAMA.hidden_size / 8
    assert head.saved_bytes["none"] == 4 * logits + hidden


def test_an_embedding_keeps_its_dropout_mask_only() -> None:
    saved = work(PLAIN, EMBEDDING, tp=8).saved_bytes
    assert saved["none"] == GPT.sequence_length * GPT.hidden_size
    assert saved["full"] == 0
    assert work(PLAIN, EMBEDDING).input_bytes == 0
    assert work(GRAPHS["llama3-8b"], EMBEDDING).saved_bytes["none"] == 0


# Collectives.

HIDDEN = 2.0 * GPT.sequence_length * GPT.hidden_size


def test_one_device_waits_for_nobody() -> None:
    for graph in (*GRAPHS.values(), PLAIN):
        for kind in range(len(graph.layers)):
            assert work(graph, kind, micro_batch_size=3).collectives == ()


def test_a_block_has_two_all_reduces_each_way() -> None:
    """Shoeybi et al., 2019, section 3."""
    assert work(PLAIN, BLOCK, tp=8).collectives == (
        CollectiveWork("all_reduce", "tensor", 2, 2 * HIDDEN, 2, 2 * HIDDEN),
    )


def test_sequence_parallelism_gathers_and_scatters_instead() -> None:
    """Korthikanti et al., 2022, section 4.2.2: two pairs each way, and the saved inputs
    of the two column-parallel products are gathered again."""
    found = collectives(work(PLAIN, BLOCK, tp=8, sequence_parallel=True))
    assert set(found) == {("all_gather", "tensor"), ("reduce_scatter", "tensor")}
    gather, scatter = found["all_gather", "tensor"], found["reduce_scatter", "tensor"]
    assert gather[2:6] == (2, 2 * HIDDEN, 4, 4 * HIDDEN)
    assert scatter[2:6] == (2, 2 * HIDDEN, 2, 2 * HIDDEN)


def test_embedding_and_head_have_one_each() -> None:
    embedding = collectives(work(PLAIN, EMBEDDING, tp=8))
    assert embedding["all_reduce", "tensor"][2:6] == (1, HIDDEN, 0, 0)
    small = 3 * 4 * GPT.sequence_length
    head = collectives(work(PLAIN, HEAD, tp=8))
    assert head["all_reduce", "tensor"][2:6] == (3, small, 1, HIDDEN)


def test_embedding_and_head_gather_and_scatter_under_sequence_parallelism() -> None:
    embedding = collectives(work(PLAIN, EMBEDDING, tp=8, sequence_parallel=True))
    assert embedding["reduce_scatter", "tensor"][2:6] == (1, HIDDEN, 0, 0)
    assert embedding["all_gather", "tensor"][2:6] == (0, 0, 1, HIDDEN)
    head = collectives(work(PLAIN, HEAD, tp=8, sequence_parallel=True))
    assert head["all_gather", "tensor"][2:6] == (1, HIDDEN, 1, HIDDEN)
    assert head["reduce_scatter", "tensor"][2:6] == (0, 0, 1, HIDDEN)
    assert head["all_reduce", "tensor"][2:4] == (3, 12 * GPT.sequence_length)


def test_the_final_norm_waits_for_nobody() -> None:
    norm = work(PLAIN, NORM, tp=8, cp=1, sequence_parallel=True)
    assert norm.collectives == ()


def test_context_parallelism_sends_keys_and_values_round_a_ring() -> None:
    tp, cp = 2, 4
    ring = collectives(work(GRAPHS["llama3-8b"], BLOCK, tp=tp, cp=cp))
    groups = LLAMA.num_query_groups // tp * LLAMA.kv_channels
    chunk = 2 * 2 * LLAMA.sequence_length / cp * groups
    found = ring["send_recv", "context"]
    assert found[2:6] == (3, 3 * chunk, 6, 6 * chunk)
    tokens = 2 * LLAMA.sequence_length / cp * LLAMA.hidden_size
    assert ring["all_reduce", "tensor"].forward_bytes == 2 * tokens


def test_tokens_travel_to_their_experts_and_back() -> None:
    graph = GRAPHS["mixtral-8x7b"]
    copies = 2.0 * MIXTRAL.sequence_length * 2 * MIXTRAL.hidden_size
    found = collectives(work(graph, BLOCK, ep=8))
    assert found == {
        ("all_to_all", "expert"): CollectiveWork(
            "all_to_all", "expert", 2, 2 * copies, 2, 2 * copies
        )
    }
    assert collectives(work(graph, BLOCK, ep=2)) == found


def test_experts_in_a_tensor_group_add_up_after_combining() -> None:
    graph = GRAPHS["mixtral-8x7b"]
    hidden = 2.0 * MIXTRAL.sequence_length * MIXTRAL.hidden_size
    found = collectives(work(graph, BLOCK, tp=2, ep=8))
    assert found["all_reduce", "tensor"][2:6] == (2, 2 * hidden, 2, 2 * hidden)


def test_experts_gather_tokens_that_sequence_parallelism_split() -> None:
    """Per block: attention's pair, and one over the copies of the tokens."""
    graph = GRAPHS["mixtral-8x7b"]
    hidden = 2.0 * MIXTRAL.sequence_length * MIXTRAL.hidden_size
    found = collectives(work(graph, BLOCK, tp=2, ep=8, sequence_parallel=True))
    copies = 2 * hidden
    assert found["all_to_all", "expert"][2:6] == (2, copies, 2, copies)
    gather, scatter = found["all_gather", "tensor"], found["reduce_scatter", "tensor"]
    assert gather[2:6] == (2, hidden + copies, 3, 2 * hidden + copies)
    assert scatter[2:6] == (2, hidden + copies, 2, hidden + copies)


# What cannot be split.


@failures.over(
    ("spec", "degrees", "problem"),
    [
        (GPT, Degrees(tp=5), "num_attention_heads 96"),
        (replace(GPT, ffn_hidden_size=100), Degrees(tp=8), "ffn_hidden_size 100"),
        (
            replace(LLAMA, num_attention_heads=24, num_query_groups=4),
            Degrees(tp=6, micro_batch_size=1),
            "ffn_hidden_size",
        ),
        (
            replace(
                LLAMA,
                num_attention_heads=24,
                num_query_groups=4,
                ffn_hidden_size=12288,
            ),
            Degrees(tp=6),
            "num_query_groups 4",
        ),
        (GPT, Degrees(cp=2), "flash"),
        (LLAMA, Degrees(cp=3), "sequence_length 8192"),
        (
            replace(LLAMA, sequence_length=8),
            Degrees(tp=8, cp=2, sequence_parallel=True),
            "sequence_length 8 ",
        ),
        (LLAMA, Degrees(ep=2), "no experts"),
        (MIXTRAL, Degrees(ep=3), "8 experts"),
    ],
)
def test_what_cannot_be_split_is_said_in_words(
    spec: TransformerSpec, degrees: Degrees, problem: str
) -> None:
    found = divisibility_problem(spec, degrees)
    assert found is not None
    assert problem in found


def powers() -> Iterator[Degrees]:
    for tp, cp in itertools.product([1, 2, 4, 8], [1, 2]):
        yield Degrees(tp=tp, cp=cp, sequence_parallel=tp > 1)


@failures.over("name", model_names())
def test_named_models_split_by_small_powers_of_two(name: str) -> None:
    spec = load_model(name)
    for degrees in powers():
        heads, groups, tp = spec.num_attention_heads, spec.num_query_groups, degrees.tp
        shares_groups = tp % groups == 0 or groups % tp == 0
        hides_tokens = spec.has_windows or spec.attention_chunk_size > 0
        hides_tokens |= spec.dsa_indexer_topk > 0
        ring_of_windows = hides_tokens and degrees.cp > 1
        whole = spec.has_mamba or spec.has_decoder
        whole |= spec.family in {"vit", "diffusion"}  # tokens of any number
        if heads % tp == 0 and shares_groups and not ring_of_windows and not whole:
            assert divisibility_problem(spec, degrees) is None


# Absolute numbers for what the properties above take from the trace.


def test_a_rank_holds_its_part_of_weights_and_all_of_norms_and_row_biases() -> None:
    """Weights 12 h^2 / t and column biases 7 h / t; Shoeybi et al., 2019, section 3."""
    h, t = GPT.hidden_size, 8
    expected = 12 * h**2 / t + 7 * h / t + 2 * h + 4 * h
    assert work(PLAIN, BLOCK, tp=t).parameters == expected
    positions = GPT.max_position_embeddings * h
    assert work(PLAIN, EMBEDDING, tp=t).parameters == 51200 * h / t + positions


def test_a_rank_of_a_mixtral_holds_its_part_of_its_experts() -> None:
    h, f = MIXTRAL.hidden_size, MIXTRAL.ffn_hidden_size
    held = work(GRAPHS["mixtral-8x7b"], BLOCK, tp=2, ep=4)
    assert held.expert_parameters == 2 * 3 * h * f / 2
    attention = (2 * h * h + 2 * h * h / 4) / 2
    assert held.parameters == held.expert_parameters + attention + 8 * h + 2 * h


def test_a_mixtral_block_keeps_copies_of_its_tokens() -> None:
    """Attention as in a Llama; per token two copies of h into and out of the experts
    and of 4 f inside, the router's softmax over 8 experts and two weights."""
    s, h, f = MIXTRAL.sequence_length, MIXTRAL.hidden_size, MIXTRAL.ffn_hidden_size
    t = 4
    saved = work(GRAPHS["mixtral-8x7b"], BLOCK, tp=t, ep=8).saved_bytes["selective"]
    attention = 8 * h + 2 * h * (1 + 2 / 4) / t + 2 * h / t
    assert saved == s * (attention + 2 * 2 * (2 * h + 4 * f / t) + 2 * (8 + 2))


def test_sequence_parallelism_leaves_gathered_copies_whole() -> None:
    """Experts read copies that were gathered over the tensor group, and keep them."""
    s, h, f = MIXTRAL.sequence_length, MIXTRAL.hidden_size, MIXTRAL.ffn_hidden_size
    t = 4
    layer = work(GRAPHS["mixtral-8x7b"], BLOCK, tp=t, ep=8, sequence_parallel=True)
    attention = (8 * h + 2 * h * (1 + 2 / 4) + 2 * h) / t
    copies = 2 * 2 * (h + (h + 4 * f) / t)
    expected = s * (attention + copies + 2 * (8 + 2) / t)
    assert layer.saved_bytes["selective"] == expected


def test_an_embedding_reads_and_writes_the_rows_that_it_looks_up() -> None:
    (lookup,) = work(GRAPHS["llama3-8b"], EMBEDDING, micro_batch_size=2).operators
    rows = 2.0 * 2 * LLAMA.sequence_length * LLAMA.hidden_size
    assert (lookup.forward_bytes, lookup.backward_bytes) == (2 * rows, 3 * rows)


def test_keys_and_values_of_the_whole_sequence_pass_by_every_rank_of_a_ring() -> None:
    s, a, d = LLAMA.sequence_length, LLAMA.num_attention_heads, LLAMA.kv_channels
    g, cp = LLAMA.num_query_groups, 4
    layer = work(GRAPHS["llama3-8b"], BLOCK, cp=cp)
    (attention,) = (op for op in layer.operators if op.kind == "attention")
    query, keys_and_values, sums = 2 * s * a * d / cp, 2 * 2 * s * g * d, 4 * s * a / cp
    read = query + keys_and_values
    assert attention.forward_bytes == read + query + sums
    assert attention.backward_bytes == 2 * read + 2 * query + sums
    assert attention.forward_flops == 0.5 * 4 * s * s * a * d / cp


def test_working_memory_is_twice_the_largest_activation_gathered() -> None:
    s, h, f, t = 4096, 4096, 11008, 32
    inner = work(GRAPHS["llama2-7b"], BLOCK, tp=2, sequence_parallel=True)
    assert inner.working_bytes == 2 * 2 * s * 2 * f / 2
    gathered = work(GRAPHS["llama2-7b"], BLOCK, tp=t, sequence_parallel=True)
    assert gathered.working_bytes == 2 * 2 * s * h


# Qi et al., "Zero Bubble Pipeline Parallelism", 2024, table 1: weight gradients apart.


@failures.over("b", [1, 4])
@failures.over("t", [1, 2, 8])
def test_weight_gradients_of_a_gpt_layer_are_those_of_qi(t: int, b: int) -> None:
    """24 s b h^2 FLOPs of the backward pass's s b h (48 h + 8 s), over t devices."""
    s, h = GPT.sequence_length, GPT.hidden_size
    layer = work(PLAIN, BLOCK, tp=t, micro_batch_size=b)
    assert sum(op.weight_flops for op in layer.operators) * t == 24 * s * b * h**2
    both = sum(op.backward_flops for op in layer.operators) * t
    assert both == s * b * h * (48 * h + 8 * s)


@failures.over("b", [1, 4])
@failures.over("t", [1, 2, 8])
def test_products_keep_inputs_and_gradients_for_later_as_in_qi(t: int, b: int) -> None:
    """32 s b h on one device: inputs 14, gradients of results 18; of those 8 whole."""
    s, h = GPT.sequence_length, GPT.hidden_size
    layer = work(PLAIN, BLOCK, tp=t, micro_batch_size=b)
    assert layer.weight_gradient_bytes == s * b * h * (8 + 24 / t)
    # With sp the inputs of column-parallel products are kept in parts, too.
    layer = work(PLAIN, BLOCK, tp=t, micro_batch_size=b, sequence_parallel=True)
    assert layer.weight_gradient_bytes == s * b * h * (4 + 28 / t)


@given(splits())
@settings(max_examples=30)
def test_weight_gradients_are_half_the_backward_pass_of_products_with_a_weight(
    drawn: tuple[LayerGraph, Degrees],
) -> None:
    graph, degrees = drawn
    for kind, layer in enumerate(graph.layers):
        for op, traced in zip(
            layer_work(graph, kind, degrees, 2).operators, layer.operators, strict=True
        ):
            weighted = traced.operation == "linear"
            assert op.weight_flops == (op.backward_flops / 2 if weighted else 0.0)


@given(splits())
def test_products_read_both_factors_and_write_the_result(
    split: tuple[LayerGraph, Degrees],
) -> None:
    graph, degrees = split
    for kind in range(len(graph.layers)):
        for done in layer_work(graph, kind, degrees, 2).operators:
            if done.kind != "matmul":
                continue
            matrices = (done.m * done.k, done.k * done.n, done.m * done.n)
            assert done.forward_bytes == sum(matrices) * done.batch * 2
            assert done.forward_flops == 2.0 * done.m * done.n * done.k * done.batch
            assert done.backward_bytes == 2 * done.forward_bytes
            assert done.backward_flops == 2 * done.forward_flops


@given(splits())
def test_kept_tensors_are_shares_of_whole_ones(
    split: tuple[LayerGraph, Degrees],
) -> None:
    graph, degrees = split
    alone = Degrees()
    for kind in range(len(graph.layers)):
        saved = layer_work(graph, kind, degrees, 2).saved_bytes
        whole = kept_tensors(graph, kind, alone, 2)
        for mode, tensors in kept_tensors(graph, kind, degrees, 2).items():
            sizes = [tensor.num_bytes for tensor in tensors]
            assert sizes == sorted(sizes, reverse=True)
            assert sum(sizes) == pytest.approx(saved[mode], rel=1e-12)
            unsplit = {tensor.name: tensor for tensor in whole[mode]}
            assert all(tensor.share == 1.0 for tensor in whole[mode])
            if len(unsplit) < len(tensors) or graph.spec.num_moe_experts:
                continue
            for tensor in tensors:
                expected = tensor.share * unsplit[tensor.name].num_bytes
                expected *= degrees.micro_batch_size
                assert tensor.num_bytes == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("split", [False, True])
def test_what_can_be_split_is_what_divides(
    kind: str, causal: bool, split: bool
) -> None:
    spec = replace(
        LLAMA,
        hidden_size=96,
        num_attention_heads=12,
        num_query_groups=4,
        kv_channels=8,
        ffn_hidden_size=48,
        sequence_length=48,
        causal=causal,
    )
    for tp, cp in itertools.product(range(1, 9), range(1, 7)):
        degrees = Degrees(
            tp=tp,
            cp=cp,
            sequence_parallel=split,
            grouping=Grouping(cp_comm_type=kind),
        )
        ranks = cp if kind == "a2a" else 1
        heads, groups = 12 // tp, max(4 // tp, 1)
        parts = cp * (tp if split else 1) * (2 if causal and cp > 1 else 1)
        divides = (
            12 % tp == 0
            and (4 % tp == 0 or tp % 4 == 0)
            and 48 % parts == 0
            and heads % ranks == 0
            and (groups % ranks == 0 or ranks % groups == 0)
        )
        problem = divisibility_problem(spec, degrees)
        assert (problem is None) == divides, (tp, cp, problem)
        if divides:
            assert group_copies(spec, degrees) == max(ranks // groups, 1)


def test_latent_attention_has_five_products_backward_by_their_widths() -> None:
    """Three as wide as queries, two as wide as values: 2.6 times with 192 and 128."""
    latent = trace_model(load_model("deepseek-v2-lite"))
    for graph, variant, factor in (
        (latent, "latent", 2.6),
        (GRAPHS["llama3-8b"], "all", 2.5),
        (GRAPHS["mixtral-8x7b"], "all", 2.5),
    ):
        for tp, cp in ((1, 1), (4, 2)):
            layer = work(graph, BLOCK, tp=tp, cp=cp)
            (core,) = (item for item in layer.operators if item.kind == "attention")
            assert core.variant == variant
            assert core.backward_flops == pytest.approx(factor * core.forward_flops)
