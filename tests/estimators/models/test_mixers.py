"""Linear and sparse attention against transformers' modules, and by closed forms."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import build_spec, load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import INDEX_SCORES, TracedLayer, TracedOperator
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.models.test_special import OF_TRANSFORMERS
from tests.estimators.torch_models import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    SparseLatentAttention,
)
from topologies.errors import InputError

transformers = pytest.importorskip("transformers")
modeling_kimi = pytest.importorskip(
    "transformers.models.kimi_linear.modeling_kimi_linear"
)

from transformers.models.deepseek_v32 import modeling_deepseek_v32  # noqa: E402
from transformers.models.minimax import modeling_minimax  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next  # noqa: E402

LENGTH = 150
"""Tokens: two chunks of a delta rule, and a part of one."""

HIDDEN = 48


def model(**words: Any) -> TransformerSpec:
    """Return a small model in the words of the library."""
    sizes = {
        "family": "llama",
        "num_layers": 4,
        "hidden_size": HIDDEN,
        "ffn_hidden_size": 96,
        "num_attention_heads": 4,
        "vocab_size": 101,
        "sequence_length": LENGTH,
    }
    return build_spec({**sizes, **words})


DELTA = model(
    linear_attention_freq=4,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
)
KIMI = model(
    linear_attention_freq=4,
    linear_attention="kimi_delta",
    linear_num_key_heads=3,
    linear_num_value_heads=3,
    linear_key_head_dim=8,
    linear_value_head_dim=8,
)
LIGHTNING = model(linear_attention_freq=4, linear_attention="lightning", kv_channels=8)
SPARSE = model(
    kv_channels=16,
    kv_lora_rank=24,
    q_lora_rank=20,
    qk_pos_emb_head_dim=8,
    v_head_dim=12,
    dsa_indexer_topk=32,
    dsa_indexer_n_heads=3,
    dsa_indexer_head_dim=16,
)


@failures.over("name", OF_TRANSFORMERS)
def test_models_of_the_library_are_those_of_transformers(name: str) -> None:
    config, count = OF_TRANSFORMERS[name]
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, config)()
        )
    assert sum(p.numel() for p in theirs.parameters()) == count
    ours = trace_model(replace(load_model(name), mtp_num_layers=0))
    assert ours.num_parameters == count


def layer_of(spec: TransformerSpec, kind: str) -> TracedLayer:
    """Return the traced block of a kind."""
    graph = trace_model(spec)
    places = dict(zip(spec.block_pattern, graph.kinds[1:], strict=False))
    return graph.layers[places[kind]]


def operator_of(layer: TracedLayer, operation: str) -> TracedOperator:
    """Return the only operator of a kind."""
    (found,) = (op for op in layer.operators if op.operation == operation)
    return found


def filled(module: nn.Module) -> nn.Module:
    """Fill a module with random weights."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.3)
    return module.eval()


def hidden_states() -> Tensor:
    return torch.randn(2, LENGTH, HIDDEN)


def copy(ours: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a module the weights of another, all of them."""
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(weights.pop(name).reshape(parameter.shape))
    assert not weights


def test_a_gated_delta_net_computes_what_transformers_does() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=6,
        linear_key_head_dim=8,
        linear_value_head_dim=12,
    )
    theirs: Any = filled(modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, 0))
    query, key, value, gate, beta, decay = theirs.fix_query_key_value_ordering(
        theirs.in_proj_qkvz.weight.t()[None], theirs.in_proj_ba.weight.t()[None]
    )
    parts = (query, key, value, gate, beta, decay)
    ours = GatedDeltaNet(DELTA)
    copy(
        ours,
        {
            "in_proj.weight": torch.cat(
                [part.reshape(HIDDEN, -1).t() for part in parts]
            ),
            "delta.conv1d_weight": theirs.conv1d.weight,
            "delta.A_log": theirs.A_log,
            "delta.dt_bias": theirs.dt_bias,
            "out_norm.weight": theirs.norm.weight,
            "out_proj.weight": theirs.out_proj.weight,
        },
    )
    hidden = hidden_states()
    torch.testing.assert_close(ours(hidden), theirs(hidden), atol=1e-4, rtol=1e-4)


def test_kimi_delta_attention_computes_what_transformers_does() -> None:
    torch.manual_seed(0)
    config = transformers.KimiLinearConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=4,
        linear_num_heads=3,
        linear_head_dim=8,
        rms_norm_eps=1e-6,
    )
    theirs: Any = filled(modeling_kimi.KimiLinearDeltaAttention(config, 0))
    products = theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.b_proj
    ours = KimiDeltaAttention(KIMI)
    copy(
        ours,
        {
            "in_proj.weight": torch.cat([part.weight for part in products]),
            "delta.conv1d_weight": theirs.conv1d.weight,
            "delta.A_log": theirs.forget_gate.A_log,
            "delta.dt_bias": theirs.forget_gate.dt_bias,
            "decay_down.weight": theirs.forget_gate.f_a_proj.weight,
            "decay_up.weight": theirs.forget_gate.f_b_proj.weight,
            "gate_down.weight": theirs.g_a_proj.weight,
            "gate_up.weight": theirs.g_b_proj.weight,
            "out_norm.weight": theirs.o_norm.weight,
            "out_proj.weight": theirs.o_proj.weight,
        },
    )
    hidden = hidden_states()
    torch.testing.assert_close(ours(hidden), theirs(hidden), atol=1e-4, rtol=1e-4)


def test_lightning_attention_computes_what_transformers_does() -> None:
    """Decays of the first of many layers are those of its heads alone."""
    torch.manual_seed(0)
    config = transformers.MiniMaxConfig(
        hidden_size=HIDDEN, num_attention_heads=4, head_dim=8, num_hidden_layers=4
    )
    theirs: Any = filled(modeling_minimax.MiniMaxLightningAttention(config, 0))
    by_head = theirs.qkv_proj.weight.view(4, 3, 8, HIDDEN)
    gathered = by_head.transpose(0, 1).reshape(-1, HIDDEN)
    ours = LightningAttention(LIGHTNING)
    copy(
        ours,
        {
            "in_proj.weight": torch.cat([gathered, theirs.output_gate.weight]),
            "norm.weight": theirs.norm.weight,
            "out_proj.weight": theirs.out_proj.weight,
        },
    )
    hidden = hidden_states()
    expected, _ = theirs(hidden, None, None)
    torch.testing.assert_close(ours(hidden), expected, atol=1e-3, rtol=1e-3)


def test_sparse_attention_computes_what_transformers_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions are left out: transformers turns pairs in another order."""
    torch.manual_seed(0)
    config = transformers.DeepseekV32Config(
        hidden_size=HIDDEN,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=4,
        qk_nope_head_dim=16,
        kv_lora_rank=24,
        q_lora_rank=20,
        qk_rope_head_dim=8,
        v_head_dim=12,
        index_topk=32,
        index_n_heads=3,
        index_head_dim=16,
        attn_implementation="eager",
    )
    theirs: Any = filled(modeling_deepseek_v32.DeepseekV32Attention(config, 0))
    ours = SparseLatentAttention(SPARSE)
    assert ours.indexer is not None
    for rotary in (ours.indexer.rotary, ours.core_attention.heads.rotary):
        monkeypatch.setattr(rotary, "forward", lambda query, key: (query, key))
    names = {
        "linear_q_down_proj": theirs.q_a_proj,
        "q_norm": theirs.q_a_layernorm,
        "linear_q_up_proj": theirs.q_b_proj,
        "linear_kv_down_proj": theirs.kv_a_proj_with_mqa,
        "kv_norm": theirs.kv_a_layernorm,
        "core_attention.linear_kv_up_proj": theirs.kv_b_proj,
        "linear_proj": theirs.o_proj,
        "indexer.linear_wq_b": theirs.indexer.wq_b,
        "indexer.linear_wk": theirs.indexer.wk,
        "indexer.linear_weights_proj": theirs.indexer.weights_proj,
    }
    weights = {f"{name}.weight": module.weight for name, module in names.items()}
    norm = theirs.indexer.k_norm
    weights |= {
        "indexer.k_norm.weight": norm.weight,
        "indexer.k_norm.bias": norm.bias,
    }
    copy(ours, weights)
    hidden = hidden_states()
    angles = torch.ones(1, LENGTH, 8), torch.zeros(1, LENGTH, 8)
    mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    expected, _ = theirs(hidden, angles, mask.expand(2, -1, -1, -1))
    torch.testing.assert_close(ours(hidden), expected, atol=1e-4, rtol=1e-4)


def counted_products(name: str, tokens: int, **counts: float) -> float:
    """Return FLOPs of some products of a chunk of one head, keys and values 16 wide."""
    recurrence = RECURRENCES[name]
    work = recurrence.forward._replace(products=counts)
    return float(recurrence.flops(work, tokens, 16, 16))


def test_products_of_the_gated_delta_rule_are_those_of_transformers() -> None:
    """transformers solves a triangular system where kernels multiply by an inverse."""
    heads, tokens = 3, 256
    query, key, value = (torch.randn(1, tokens, heads, 16) for _ in range(3))
    decay, beta = (-torch.rand(1, tokens, heads), torch.rand(1, tokens, heads))
    with FlopCounterMode(display=False) as counter:
        modeling_qwen3_next.torch_chunk_gated_delta_rule(query, key, value, decay, beta)
    solved = counted_products("gated delta rule", tokens, CCK=1, CCV=1, CCC=1 / 6)
    whole = operator_of(layer_of(DELTA, "gated_delta+dense"), "gated delta rule")
    assert whole.dims == (LENGTH, 12, 8, 6)
    rule = RECURRENCES["gated delta rule"]
    ours = rule.flops(rule.forward, tokens, 16, 16) - solved
    assert counter.get_total_flops() == pytest.approx(heads * ours)


def test_products_of_a_decaying_sum_are_those_of_transformers() -> None:
    config = transformers.MiniMaxConfig(
        hidden_size=HIDDEN, num_attention_heads=4, head_dim=16, num_hidden_layers=4
    )
    theirs = filled(modeling_minimax.MiniMaxLightningAttention(config, 0))
    with FlopCounterMode(display=False) as counter:
        theirs(torch.randn(1, 512, HIDDEN), None, None)
    rule = RECURRENCES["decaying sum"]
    linear = 2 * 512 * HIDDEN * 5 * 4 * 16
    ours = 4 * rule.flops(rule.forward, 512, 16, 16) + linear
    assert counter.get_total_flops() == ours


@failures.over("name", list(RECURRENCES))
def test_backward_passes_do_more_than_gradients_of_both_factors(name: str) -> None:
    rule = RECURRENCES[name]
    forward, backward = (
        rule.flops(work, 1, 128, 128) for work in (rule.forward, rule.backward)
    )
    assert 2.0 < backward / forward < 4.0


def test_an_indexer_scores_all_tokens_and_attention_sees_the_best() -> None:
    layer = layer_of(SPARSE, "sparse+dense")
    scores, core = (operator_of(layer, name) for name in (INDEX_SCORES, "attention"))
    assert scores.model_flops == 2 * LENGTH**2 * 16 * 3
    seen = sum(min(token + 1, 32) for token in range(LENGTH))
    products = 4 * (2 * (24 + 8) + 2 * 24)  # scores and contexts of heads
    with_diagonal = core.model_flops / 2 + products * LENGTH / 2
    assert with_diagonal == seen * products
    (work,) = (
        op
        for op in layer_work(trace_model(SPARSE), 1, Degrees(), 2).operators
        if op.operation == INDEX_SCORES
    )
    assert work.forward_flops == scores.model_flops / 2
    chosen = core.pairs / LENGTH**2
    assert work.backward_flops == pytest.approx(2 * chosen * work.forward_flops)


def test_blocks_that_reuse_a_choice_have_no_indexer() -> None:
    words: dict[str, Any] = {"dsa_indexer_layers": [1, 0, 0, 1]}
    sizes = {
        name: getattr(SPARSE, name)
        for name in (
            "kv_channels",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_pos_emb_head_dim",
            "v_head_dim",
            "dsa_indexer_topk",
            "dsa_indexer_n_heads",
            "dsa_indexer_head_dim",
        )
    }
    spec = model(**sizes, **words)
    indexer = 20 * 48 + HIDDEN * (16 + 3) + 2 * 16
    counts = [trace_model(chain).num_parameters for chain in (SPARSE, spec)]
    assert counts[0] - counts[1] == 2 * indexer


def test_a_delta_net_keeps_what_its_kernels_save() -> None:
    """Numbers for each token, of 2 bytes but for the sums of decays."""
    keys, values, heads = 2 * 8, 6 * 12, 6
    kept = 2 * HIDDEN  # the norm's input and the product's
    kept += 2 * keys + values  # the convolution's input
    kept += 2 * keys  # unit vectors
    kept += 2 * heads  # what strengths and decays are made of
    kept += 2 * heads * 8 + values  # queries, keys, values of all heads
    kept += 2 * heads  # sums of decays in 4 bytes
    kept += heads  # strengths
    kept += heads * 64  # the inverse of each chunk
    kept += 2 * values  # what the rule returns, and the gate
    kept += values  # the input of the projection back
    layer = layer_of(DELTA, "gated_delta+dense")
    mixer = [
        op
        for op in layer.operators
        if op.name.startswith(("input_norm", "self_attention"))
    ]
    sizes = {"fp32": 4, "model": 2}
    saved = {number for op in mixer for number in op.saved}
    total = sum(
        layer.tensors[number].elements * sizes[layer.tensors[number].precision]
        for number in saved
    )
    assert total == 2 * kept * LENGTH


@failures.over("words", [{"linear_attention_freq": 0}, {"linear_attention_freq": [1]}])
def test_a_pattern_that_is_none_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="linear_attention_freq"):
        model(**words)


@failures.over(
    ("words", "where"),
    [
        ({"linear_num_key_heads": 4}, "linear_num_key_heads"),
        (
            {"linear_attention_freq": 2, "linear_num_key_heads": 5},
            "linear_num_value_heads",
        ),
        (
            {
                "linear_attention_freq": 2,
                "linear_attention": "kimi_delta",
                "linear_num_key_heads": 16,
            },
            "linear_num_value_heads",
        ),
        ({"linear_attention_freq": 2, "add_bias_linear": True}, "add_bias_linear"),
        ({"linear_attention_freq": 2, "causal": False}, "family"),
        ({"dsa_indexer_topk": 8}, "kv_lora_rank"),
        ({"dsa_indexer_n_heads": 8}, "dsa_indexer_n_heads"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(
    words: dict[str, Any], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        model(**words)
    assert caught.value.where == where


def test_the_inverse_of_a_chunk_is_a_sixth_of_a_product() -> None:
    """A triangular inverse takes n^3 / 3 FLOP."""
    whole = 2.0 * 64**3
    ours = counted_products("gated delta rule", 64, CCC=1 / 6)
    assert math.isclose(ours, whole / 6)
