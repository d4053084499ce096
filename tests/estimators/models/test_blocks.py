"""Chains whose blocks differ: patterns of kinds, counted, traced and shortened."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from estimators.models.changed import (
    with_num_layers,
)
from estimators.models.library import load_model
from estimators.models.spec import (
    TransformerSpec,
)
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import FEED_FORWARDS, MIXERS, build_block
from tests.estimators.whole_models import build_model
from topologies.errors import InputError

PATTERN = (
    "attention+dense",
    "attention+experts",
    "attention",
    "attention+experts",
    "dense",
)
MIXED = TransformerSpec(
    family="mixtral",
    num_layers=5,
    hidden_size=32,
    num_attention_heads=4,
    num_query_groups=2,
    vocab_size=101,
    sequence_length=16,
    ffn_hidden_size=96,
    moe_ffn_hidden_size=24,
    num_moe_experts=4,
    moe_router_topk=2,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    tie_word_embeddings=False,
    add_bias_linear=False,
    block_pattern=PATTERN,
)


def test_a_mixed_chain_counts_what_its_modules_have() -> None:
    graph = trace_model(MIXED)
    modules = build_model(MIXED)
    assert graph.num_parameters == sum(p.numel() for p in modules.parameters())
    assert graph.names[1:6] == tuple(f"block {i}" for i in range(5))
    by_kind = dict(zip(PATTERN, graph.kinds[1:6], strict=True))
    assert [by_kind[kind] for kind in PATTERN] == list(graph.kinds[1:6])
    assert len(set(graph.kinds)) == 4 + 3


def test_a_mixed_chain_learns_on_a_cpu() -> None:
    torch.manual_seed(0)
    model = build_model(MIXED, "cpu")
    tokens = torch.randint(0, 101, (2, 16))
    loss = model((tokens,), (tokens,))
    loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    assert loss.isfinite()
    assert all(p.grad is not None for p in model.blocks.parameters())


def test_a_pattern_of_one_kind_is_that_kind_of_every_block() -> None:
    whole = load_model("mixtral-790m")
    named = replace(whole, block_pattern=("attention+experts",) * whole.num_layers)
    one, other = trace_model(whole), trace_model(named)
    assert (one.layers, one.kinds, one.names) == (
        other.layers,
        other.kinds,
        other.names,
    )


def test_fewer_layers_are_the_first_ones() -> None:
    assert with_num_layers(MIXED, 2).block_pattern == PATTERN[:2]
    with pytest.raises(InputError, match="at most 5"):
        with_num_layers(MIXED, 6)
    assert with_num_layers(load_model("llama2-7b"), 40).num_layers == 40


@failures.over(
    "kind", ["", "attention+", "dense+attention", "attention+dense+dense", "mlp"]
)
def test_an_unknown_kind_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match="no such kind"):
        build_block(MIXED, kind)


@failures.over("mixer", [*MIXERS, ""])
@failures.over("layer", [*FEED_FORWARDS, ""])
def test_every_kind_is_built(mixer: str, layer: str) -> None:
    parts = [part for part in (mixer, layer) if part]
    if parts:
        kind, spec = "+".join(parts), MIXED
        if mixer in SIZES:
            pattern = (kind, *PATTERN[1:])
            spec = replace(MIXED, block_pattern=pattern, **SIZES[mixer])
        assert build_block(spec, kind) is not None


MAMBA = {"mamba_head_dim": 8}
SPARSE = {
    "num_query_groups": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 12,
    "qk_pos_emb_head_dim": 4,
    "dsa_indexer_topk": 8,
    "dsa_indexer_n_heads": 2,
    "dsa_indexer_head_dim": 8,
}
SIZES: dict[str, Any] = {
    "mamba": MAMBA,
    "short_convolution": {"short_convolution_width": 3},
    "selective_scan": {
        "selective_width": 64,
        "selective_state_dim": 8,
        "selective_step_rank": 4,
    },
    "mamba_attention": MAMBA,
    "gated_delta": {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "kimi_delta": {"linear_num_key_heads": 4, "linear_num_value_heads": 4},
    "sparse": SPARSE,
    "reusing": SPARSE,
}
"""Mixer -> sizes that it has to have."""


def test_patterns_and_experts_go_together() -> None:
    with pytest.raises(InputError, match="num_moe_experts"):
        replace(MIXED, block_pattern=("attention+dense",) * 5)
    with pytest.raises(InputError, match="one kind for each"):
        replace(MIXED, num_layers=4)
