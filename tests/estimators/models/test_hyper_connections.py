"""Residual streams: against transformers' modules, and by closed forms."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from estimators.chain import build_layer_table
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, LayerTable
from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from estimators.platform import Platform
from estimators.software import Software
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from tests.estimators.torch_models import (
    LastStreamSum,
    SparseLatentAttention,
    StreamCopies,
    StreamSum,
    StreamUpdate,
)
from topologies.accelerators import load_accelerator
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")

from transformers.models.deepseek_v4 import modeling_deepseek_v4  # noqa: E402
from transformers.models.hy_v4 import modeling_hy_v4  # noqa: E402

STREAMS, LENGTH, HIDDEN = 4, 24, 32
WORDS: dict[str, Any] = {
    "family": "llama",
    "num_layers": 3,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": 48,
    "num_attention_heads": 4,
    "vocab_size": 101,
    "sequence_length": LENGTH,
    "num_residual_streams": STREAMS,
}
MANIFOLD = build_spec(WORDS)
INDEPENDENT = replace(MANIFOLD, hyper_connections="independent")
PLAIN = build_spec({**WORDS, "num_residual_streams": 0})
HUNYUAN = {
    "hidden_size": HIDDEN,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "qk_nope_head_dim": 16,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "index_topk": 10,
    "index_n_heads": 3,
    "index_head_dim": 16,
    "hc_mult": STREAMS,
    "attn_implementation": "eager",
}


def filled(module: nn.Module) -> Any:
    """Fill a module with random weights."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def copy(ours: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a module the weights of another, all of them."""
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(weights.pop(name).reshape(parameter.shape))
    assert not weights


def drawn() -> tuple[Tensor, Tensor]:
    """Return streams (batch, tokens, streams, hidden), and what a branch returned."""
    return torch.randn(2, LENGTH, STREAMS, HIDDEN), torch.randn(2, LENGTH, HIDDEN)


def weights_of(theirs: Any) -> dict[str, Tensor]:
    return {"weight": theirs.fn, "base": theirs.base, "scale": theirs.scale}


def test_streams_on_a_manifold_are_those_of_deepseek_v4() -> None:
    torch.manual_seed(0)
    config = transformers.DeepseekV4Config(hidden_size=HIDDEN, hc_mult=STREAMS)
    theirs = filled(modeling_deepseek_v4.DeepseekV4HyperConnection(config))
    ours, update = StreamSum(MANIFOLD), StreamUpdate(MANIFOLD)
    copy(ours, weights_of(theirs))
    streams, branch = drawn()
    post, mixed, expected = theirs(streams)
    hidden, weights = ours(streams.flatten(2))
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
    expected = post[..., None] * branch[..., None, :] + mixed.mT @ streams
    updated = update(streams.flatten(2), branch, weights)
    torch.testing.assert_close(updated, expected.flatten(2), atol=1e-4, rtol=1e-4)
    rows = mixed.sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-2, rtol=0.0)


def test_streams_that_keep_what_they_had_are_those_of_hunyuan_4() -> None:
    torch.manual_seed(0)
    config = transformers.HYV4Config(**HUNYUAN)
    theirs = filled(modeling_hy_v4.HYV4HyperConnection(config))
    ours, update = StreamSum(INDEPENDENT), StreamUpdate(INDEPENDENT)
    copy(ours, weights_of(theirs))
    streams, branch = drawn()
    post, expected = theirs(streams)
    hidden, weights = ours(streams.flatten(2))
    torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
    expected = post[..., None] * branch[..., None, :] + streams
    updated = update(streams.flatten(2), branch, weights)
    torch.testing.assert_close(updated, expected.flatten(2), atol=1e-4, rtol=1e-4)


@failures.over("kind", ["deepseek_v4", "hy_v4"])
def test_the_last_sum_is_that_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    theirs = filled(
        modeling_deepseek_v4.DeepseekV4HyperHead(
            transformers.DeepseekV4Config(hidden_size=HIDDEN, hc_mult=STREAMS)
        )
        if kind == "deepseek_v4"
        else modeling_hy_v4.HYV4HyperHead(transformers.HYV4Config(**HUNYUAN))
    )
    ours = LastStreamSum(MANIFOLD)
    named = {"weight": theirs.hc_fn, "base": theirs.hc_base, "scale": theirs.hc_scale}
    copy(ours, named)
    streams, _ = drawn()
    summed = ours(streams.flatten(2))
    torch.testing.assert_close(summed, theirs(streams), atol=1e-4, rtol=1e-4)


def test_streams_start_alike() -> None:
    _, hidden = drawn()
    streams = StreamCopies(MANIFOLD)(hidden).unflatten(-1, (STREAMS, HIDDEN))
    assert all(torch.equal(streams[:, :, place], hidden) for place in range(STREAMS))


def test_gates_and_sinks_of_sparse_attention_are_those_of_hunyuan_4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions are left out: transformers turns pairs in another order."""
    torch.manual_seed(0)
    theirs = filled(modeling_hy_v4.HYV4Attention(transformers.HYV4Config(**HUNYUAN), 0))
    spec = build_spec(
        {
            **WORDS,
            "kv_channels": 16,
            "kv_lora_rank": 24,
            "q_lora_rank": 20,
            "qk_pos_emb_head_dim": 8,
            "v_head_dim": 12,
            "dsa_indexer_topk": 10,
            "dsa_indexer_n_heads": 3,
            "dsa_indexer_head_dim": 16,
            "attention_output_gate": True,
            "softmax_type": "learnable",
        }
    )
    ours = SparseLatentAttention(spec)
    for rotary in (ours.indexer.rotary, ours.core_attention.heads.rotary):
        monkeypatch.setattr(rotary, "forward", lambda query, key: (query, key))
    indexer = theirs.indexer
    copy(
        ours,
        {
            "linear_q_down_proj.weight": theirs.q_a_proj.weight,
            "q_norm.weight": theirs.q_a_layernorm.weight,
            "linear_q_up_proj.weight": theirs.q_b_proj.weight,
            "linear_kv_down_proj.weight": theirs.kv_a_proj_with_mqa.weight,
            "kv_norm.weight": theirs.kv_a_layernorm.weight,
            "core_attention.linear_kv_up_proj.weight": theirs.kv_b_proj.weight,
            "core_attention.softmax_offset": theirs.sinks,
            "linear_gate.weight": theirs.gate_proj.weight,
            "linear_proj.weight": theirs.o_proj.weight,
            "indexer.linear_wq_b.weight": indexer.wq_b.weight,
            "indexer.linear_wk.weight": indexer.wk.weight,
            "indexer.linear_weights_proj.weight": indexer.weights_proj.weight,
            "indexer.k_norm.weight": indexer.k_norm.weight,
            "indexer.k_norm.bias": indexer.k_norm.bias,
        },
    )
    _, hidden = drawn()
    angles = torch.ones(1, LENGTH, 8), torch.zeros(1, LENGTH, 8)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    expected, _, _ = theirs(hidden, angles, mask.expand(2, -1, -1, -1))
    torch.testing.assert_close(ours(hidden), expected, atol=1e-3, rtol=1e-3)


def outputs_of(spec: TransformerSpec) -> int:
    """Return weights that are made for a token by each branch."""
    mixed = STREAMS * STREAMS * (spec.hyper_connections == "manifold")
    return 2 * STREAMS + mixed


@failures.over("spec", [MANIFOLD, INDEPENDENT])
def test_weights_of_streams_have_parameters_and_flops(spec: TransformerSpec) -> None:
    """A product of all streams, a base of each weight, a scale of each part."""
    wide, blocks, outputs = STREAMS * HIDDEN, spec.num_layers, outputs_of(spec)
    parts = 3 if spec.hyper_connections == "manifold" else 2
    added = 2 * blocks * (outputs * (wide + 1) + parts) + STREAMS * (wide + 1) + 1
    ours, plain = trace_model(spec), trace_model(PLAIN)
    assert ours.num_parameters == plain.num_parameters + added
    with FlopCounterMode(display=False) as counter:
        StreamSum(spec)(torch.randn(1, LENGTH, wide))
    products = 2 * LENGTH * outputs * wide
    assert counter.get_total_flops() == products
    flops = [
        sum(
            op.model_flops
            for place in graph.kinds
            for op in graph.layers[place].operators
        )
        for graph in (ours, plain)
    ]
    mixing = 2 * LENGTH * STREAMS * wide  # of all streams, or the last sum's product
    update = StreamUpdate(spec)
    with FlopCounterMode(display=False) as counter:
        weights = torch.randn(1, LENGTH, outputs - STREAMS)
        update(torch.randn(1, LENGTH, wide), torch.randn(1, LENGTH, HIDDEN), weights)
    assert counter.get_total_flops() == mixing * update.mixes
    mixed = mixing * update.mixes
    assert flops[0] - flops[1] == 2 * blocks * (products + mixed) + mixing


def table_of(spec: TransformerSpec, degrees: Degrees = Degrees()) -> LayerTable:  # noqa: B008  # frozen
    return build_layer_table(
        trace_model(spec),
        degrees=degrees,
        training=TrainingSpec(global_batch_size=8),
        platform=Platform(
            accelerator=load_accelerator("a100-80gb"), software=Software(name="plain")
        ),
    )


@failures.over("degrees", [Degrees(), Degrees(tp=2, sequence_parallel=True)])
def test_stages_send_and_blocks_keep_all_streams(degrees: Degrees) -> None:
    streamed, plain = table_of(MANIFOLD, degrees), table_of(PLAIN, degrees)
    inside = slice(1, 1 + MANIFOLD.num_layers)
    for name in ("boundary_bytes", "saved_bytes"):
        ours, theirs = (
            getattr(table, name)
            if name == "boundary_bytes"
            else table.saved_bytes["full"]
            for table in (streamed, plain)
        )
        assert (ours[inside] == STREAMS * theirs[inside]).all()
    # The final norm is given all streams, and the head their sum.
    places = [MANIFOLD.num_layers + 1, MANIFOLD.num_layers + 2]
    ratios = streamed.boundary_bytes[places] / plain.boundary_bytes[places]
    assert ratios.tolist() == [STREAMS, 1.0]


@failures.over("spec", [MANIFOLD, INDEPENDENT])
def test_a_block_keeps_streams_sums_results_and_weights(spec: TransformerSpec) -> None:
    """For each branch; its norm keeps the sum in place of the hidden states."""
    ours, plain = (
        layer_work(trace_model(some), 1, Degrees(), 2).saved_bytes["none"]
        for some in (spec, PLAIN)
    )
    tokens, outputs = LENGTH, outputs_of(spec)
    streams, results = 2 * tokens * STREAMS * HIDDEN * 2, 2 * tokens * HIDDEN * 2
    assert ours - plain == streams + results + 2 * tokens * 2 * outputs * 4


def test_ranks_that_split_a_sequence_have_all_weights() -> None:
    whole, split = (
        layer_work(trace_model(MANIFOLD), 1, degrees, 2)
        for degrees in (Degrees(), Degrees(tp=2, sequence_parallel=True))
    )
    works = [
        {op.name: op for op in work.operators}["attention_streams.product"]
        for work in (whole, split)
    ]
    assert works[0].weight_flops == 2 * works[1].weight_flops
    assert (works[0].n, works[0].k) == (works[1].n, works[1].k)


@failures.over(
    ("changed", "where"),
    [
        ({"norm_placement": "post"}, "norm_placement"),
        ({"norm_placement": "shared", "parallel_residual": True}, "norm_placement"),
        ({"parallel_residual": True}, "parallel_residual"),
        ({"mtp_num_layers": 1}, "mtp_num_layers"),
        ({"family": "bert", "causal": False}, ""),
        ({"num_residual_streams": 65}, "num_residual_streams"),
        ({"num_residual_streams": -1}, "num_residual_streams"),
        ({"block_pattern": ["attention+dense+experts"] * 3}, ""),
    ],
)
def test_what_does_not_go_with_streams_is_refused(
    changed: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        build_spec({**WORDS, **changed})
    assert str(caught.value.where).startswith(where)
