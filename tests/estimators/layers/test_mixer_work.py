"""What groups share of linear attention and of attention with an indexer."""

from dataclasses import replace

import pytest

from estimators.grouping import Grouping
from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import CollectiveWork, Degrees, LayerWork, OperatorWork
from estimators.models.changed import (
    with_sequence_length,
)
from estimators.models.library import build_spec, load_model, model_words
from estimators.tracing.graph import INDEX_SCORES, LayerGraph
from estimators.tracing.trace import trace_model
from tests import failures

QWEN = trace_model(load_model("qwen3-next-80b-a3b"))
DEEPSEEK = trace_model(load_model("deepseek-v3.2"))
MINIMAX = trace_model(
    build_spec(
        {
            "family": "llama",
            "num_layers": 8,
            "hidden_size": 6144,
            "num_attention_heads": 64,
            "num_query_groups": 8,
            "kv_channels": 128,
            "vocab_size": 200064,
            "sequence_length": 4096,
            "linear_attention_freq": 8,
            "linear_attention": "lightning",
        }
    )
)
LENGTH = QWEN.spec.sequence_length


def work_of(graph: LayerGraph, kind: int = 1, **degrees: object) -> LayerWork:
    return layer_work(graph, kind, Degrees(**degrees), 2)  # type: ignore[arg-type]  # as named


def operator_of(work: LayerWork, operation: str) -> OperatorWork:
    (found,) = (op for op in work.operators if op.operation == operation)
    return found


def sent(work: LayerWork) -> dict[tuple[str, str], CollectiveWork]:
    return {(item.operation, item.group): item for item in work.collectives}


@failures.over(("tp", "cp", "kind"), [(4, 1, "p2p"), (1, 4, "a2a"), (2, 2, "a2a")])
def test_ranks_share_the_heads_of_a_state_and_work_on_whole_sequences(
    tp: int, cp: int, kind: str
) -> None:
    whole, part = (
        operator_of(work, "gated delta rule")
        for work in (
            work_of(QWEN),
            work_of(QWEN, tp=tp, cp=cp, grouping=Grouping(cp_comm_type=kind)),
        )
    )
    assert (part.m, part.n, part.k) == (LENGTH, 128, 128)
    assert (whole.batch, part.batch) == (32, 8)
    for name in ("forward_flops", "backward_flops", "forward_bytes", "backward_bytes"):
        assert getattr(part, name) == pytest.approx(getattr(whole, name) / 4)


@failures.over("operation, kind", [("all_to_all", "a2a"), ("all_gather", "all_gather")])
def test_context_ranks_exchange_what_goes_in_and_what_comes_out(
    operation: str, kind: str
) -> None:
    """Queries, keys, values, gates, two numbers for each head; and contexts back."""
    work = work_of(QWEN, cp=4, grouping=Grouping(cp_comm_type=kind))
    channels = 2 * 16 * 128 + 2 * 32 * 128 + 2 * 32 + 32 * 128
    size = 2 * channels * LENGTH / 4
    assert sent(work)[operation, "context"][2:6] == (2, size, 2, size)
    ring = sent(work_of(QWEN, cp=4))["send_recv", "context"]
    assert ring[2:6] == (6, size * 3 / 4, 6, size * 3 / 4)


def test_tensor_ranks_split_a_delta_net_but_for_its_norm() -> None:
    counts = []
    for tp in (1, 2):
        layer = QWEN.layers[1]
        parameters = [
            parameter
            for parameter in layer.parameters
            if parameter.name.startswith("self_attention.")
        ]
        shares = {"tensor": tp, "whole": 1}
        counts.append(sum(p.elements // shares[p.layout] for p in parameters))
    channels = 2 * 16 * 128 + 2 * 32 * 128 + 2 * 32
    split = 2048 * channels + 4 * (4096 + 4096) + 2 * 32 + 4096 * 2048
    assert counts == [split + 128, split // 2 + 128]
    work = work_of(QWEN, tp=2, sequence_parallel=True)
    assert ("all_gather", "tensor") in sent(work)


def problem(graph: LayerGraph, kind: str, **sizes: int) -> str:
    degrees = Degrees(**sizes, grouping=Grouping(cp_comm_type=kind))  # type: ignore[arg-type]  # as named
    return divisibility_problem(graph.spec, degrees) or ""


def test_heads_of_a_state_must_divide() -> None:
    assert not problem(QWEN, "a2a", tp=2, cp=2)
    assert not problem(QWEN, "all_gather", cp=16)
    assert "linear_num_key_heads 16" in problem(QWEN, "all_gather", tp=2, cp=16)
    assert not problem(QWEN, "p2p", cp=2)
    assert "exchanges heads among all ranks" in problem(QWEN, "a2a+p2p", cp=2)
    grouped = replace(QWEN.spec, num_attention_heads=32, num_query_groups=32)
    degrees = Degrees(tp=32)
    assert "linear_num_key_heads" in (divisibility_problem(grouped, degrees) or "")
    assert not problem(MINIMAX, "a2a", tp=8, cp=8)
    assert "num_attention_heads 64" in problem(MINIMAX, "all_gather", tp=8, cp=16)


def test_a_decaying_sum_is_shared_by_heads() -> None:
    whole, part = (
        operator_of(work, "decaying sum")
        for work in (work_of(MINIMAX), work_of(MINIMAX, tp=8))
    )
    assert (whole.batch, part.batch) == (64, 8)
    # Scores, values of a chunk of 256, and two products with a state of 128 x 128.
    flops = 64 * 4096 * 2 * (256 * 128 + 256 * 128 + 2 * 128 * 128)
    assert whole.forward_flops == flops


def test_an_indexer_needs_gathered_keys() -> None:
    assert not problem(DEEPSEEK, "all_gather", cp=4)
    for kind in ("p2p", "a2a"):
        assert "an indexer needs the keys of all tokens" in problem(
            DEEPSEEK, kind, cp=4
        )


def test_every_tensor_rank_has_the_whole_indexer() -> None:
    """And gathers what its projections read, where sequences are split."""
    whole, part = (work_of(DEEPSEEK, tp=tp, sequence_parallel=tp > 1) for tp in (1, 8))
    for name in ("linear_wq_b", "linear_wk", "scores"):
        both = [
            next(op for op in work.operators if op.name.endswith(f"indexer.{name}"))
            for work in (whole, part)
        ]
        assert both[0].forward_flops == both[1].forward_flops
    plain = work_of(
        trace_model(load_model("deepseek-v3")), tp=8, sequence_parallel=True
    )
    gathered = [
        sent(work)["all_gather", "tensor"].forward_bytes for work in (part, plain)
    ]
    latent_up = 512  # makes no keys and values of gathered latents
    tokens = 2 * DEEPSEEK.spec.sequence_length
    assert gathered[0] - gathered[1] == tokens * (1536 + 7168 - latent_up)


def test_context_ranks_gather_the_latents_and_the_keys_of_an_indexer() -> None:
    work = work_of(DEEPSEEK, cp=4, grouping=Grouping(cp_comm_type="all_gather"))
    size = 2 * DEEPSEEK.spec.sequence_length * (576 + 128)
    assert sent(work)["all_gather", "context"][2:6] == (2, size, 2, size)
    scores = operator_of(work, INDEX_SCORES)
    assert scores.m == DEEPSEEK.spec.sequence_length / 4
    assert scores.n == DEEPSEEK.spec.sequence_length / 2


def test_scores_of_an_indexer_are_held_until_keys_are_chosen() -> None:
    """4 bytes for each pair of tokens: more than all gradients of long sequences."""
    spec = replace(DEEPSEEK.spec, mtp_num_layers=0, max_position_embeddings=0)
    graph = trace_model(with_sequence_length(spec, 2**17))
    grouping = Grouping(cp_comm_type="all_gather")
    whole = work_of(graph, tp=8, sequence_parallel=True)
    part = work_of(graph, tp=8, cp=4, sequence_parallel=True, grouping=grouping)
    assert whole.working_bytes == 4 * 2.0**34
    assert part.working_bytes == 2.0**34


def test_an_indexer_is_the_only_difference_to_the_model_before() -> None:
    words = [model_words(name) for name in ("deepseek-v3", "deepseek-v3.2")]
    assert {key for key in words[1] if words[0].get(key) != words[1][key]} == {
        "source",
        "dsa_indexer_topk",
        "dsa_indexer_n_heads",
        "dsa_indexer_head_dim",
    }
    indexer = 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    counts = [
        trace_model(replace(load_model(name), mtp_num_layers=0)).num_parameters
        for name in ("deepseek-v3", "deepseek-v3.2")
    ]
    assert counts[1] - counts[0] == 61 * indexer
