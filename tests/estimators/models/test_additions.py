"""Gates of attention, xIELU, and biases of feed-forward layers and heads alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.models.spec import TransformerSpec
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import XIELU, SelfAttention
from tests.estimators.whole_models import build_model
from topologies.errors import InputError


def small(**changes: Any) -> TransformerSpec:
    """Return a small decoder with two heads a group."""
    sizes: dict[str, Any] = {
        "family": "llama",
        "num_layers": 2,
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 8,
        "vocab_size": 101,
        "sequence_length": 12,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
    }
    return TransformerSpec(**{**sizes, **changes})


def test_a_gate_of_zeros_halves_what_attention_returns() -> None:
    """A sigmoid of 0 is a half; large gates let all through."""
    torch.manual_seed(0)
    gated = SelfAttention(small(attention_output_gate=True))
    plain = SelfAttention(small())
    gate = gated.linear_qkv.weight[-4 * 8 :]
    hidden = torch.rand(2, 12, 24)
    with torch.no_grad():
        plain.linear_qkv.weight.copy_(gated.linear_qkv.weight[: -4 * 8])
        plain.linear_proj.weight.copy_(gated.linear_proj.weight)
        gate.zero_()
        torch.testing.assert_close(gated(hidden), plain(hidden) / 2)
        gate.fill_(1e3)
        torch.testing.assert_close(gated(hidden), plain(hidden))


@failures.over(
    "changes",
    [
        {"attention_output_gate": True},
        {"add_mlp_bias": True},
        {"add_head_bias": True},
        {"activation_func": "xielu"},
        {"normalization": "rmsnorm", "layernorm_affine": False},
    ],
)
def test_an_addition_counts_what_its_modules_have_and_learns(
    changes: dict[str, Any],
) -> None:
    spec = small(**changes)
    model = build_model(spec, "cpu")
    parameters = list(model.parameters())
    assert trace_model(spec).num_parameters == sum(p.numel() for p in parameters)
    tokens = torch.randint(0, 101, (2, 12))
    model((tokens,), (tokens,)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in parameters)


def test_tensor_parallelism_splits_gates_with_heads() -> None:
    graph = trace_model(small(attention_output_gate=True))
    block = graph.kinds[1]
    whole, half = (layer_work(graph, block, Degrees(tp=tp), 2) for tp in (1, 2))
    flops = [sum(op.forward_flops for op in work.operators) for work in (whole, half)]
    assert flops[1] * 2 == flops[0]
    plain = trace_model(small())
    before = layer_work(plain, plain.kinds[1], Degrees(tp=2), 2)
    assert half.collectives == before.collectives


def test_xielu_is_that_of_transformers() -> None:
    activations = pytest.importorskip("transformers.activations")
    theirs, ours = activations.XIELUActivation(dtype=torch.float32), XIELU()
    with torch.no_grad():
        ours.alpha_p.copy_(theirs.alpha_p)
        ours.alpha_n.copy_(theirs.alpha_n)
    hidden = torch.linspace(-6.0, 6.0, 101)
    torch.testing.assert_close(ours(hidden), theirs(hidden))


@failures.over(
    ("make", "changes"),
    [
        (lambda: load_model("mixtral-8x7b"), {"add_mlp_bias": True}),
        (lambda: load_model("bert-large"), {"add_head_bias": True}),
        (lambda: load_model("bert-large"), {"attention_output_gate": True}),
        (lambda: load_model("vit-h-14"), {"add_head_bias": True}),
        (lambda: load_model("deepseek-v3"), {"attention_output_gate": True}),
    ],
)
def test_what_an_addition_does_not_go_with_is_refused(
    make: Callable[[], TransformerSpec], changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        replace(make(), **changes)
    assert caught.value.where == next(iter(changes))
