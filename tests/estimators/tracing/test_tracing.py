"""Tracing on shapes, held to torch's own tracing."""

import contextlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.models.families import FEED_FORWARDS, MIXERS
from estimators.models.library import load_model, model_names
from estimators.models.shapes import Tensor, call
from estimators.tracing.graph import LAYOUTS
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.models.test_blocks import MIXED, PATTERN, SIZES
from tests.estimators.tracing import torch_trace
from topologies.errors import InputError

SPEC = replace(load_model("gpt3-125m"), num_layers=3)


@failures.over("name", model_names())
def test_every_named_model_is_a_chain_of_few_distinct_layers(name: str) -> None:
    spec = load_model(name)
    graph = trace_model(spec)
    blocks = [f"block {i}" for i in range(spec.num_layers)]
    ends = [] if spec.family in {"bert", "diffusion"} else ["final norm"]
    ends += [f"mtp {depth}" for depth in range(spec.mtp_num_layers)]
    assert graph.names == ("embedding", *blocks, *ends, "head")
    kinds = list(spec.block_kinds.values())
    assert len(graph.layers) == 2 + len(kinds) + len(ends)
    pattern = spec.block_pattern or kinds * spec.num_layers
    expected = [1 + kinds.index(kind) for kind in pattern]
    assert graph.kinds == (0, *expected, *range(1 + len(kinds), len(graph.layers)))


@failures.over("name", model_names())
def test_tensors_of_an_operator_exist_and_have_known_layouts(name: str) -> None:
    for layer in trace_model(load_model(name)).layers:
        made = set() if layer.hidden_input is None else {layer.hidden_input}
        known = set(range(len(layer.tensors)))
        assert {tensor.layout for tensor in layer.tensors} <= {*LAYOUTS} - {"expert"}
        assert {p.layout for p in layer.parameters} <= {*LAYOUTS}
        for operator in layer.operators:
            assert {*operator.inputs, *operator.outputs, *operator.saved} <= known
            assert not made & {*operator.outputs}, "written twice"
            made |= {*operator.outputs}


def test_the_chain_s_hidden_states_fit_together() -> None:
    graph = trace_model(load_model("mixtral-8x7b"))
    embedding, block, norm, head = graph.layers
    hidden = embedding.tensors[embedding.operators[-1].outputs[0]]
    for layer in (block, norm, head):
        assert layer.hidden_input is not None
        assert layer.tensors[layer.hidden_input] == hidden
    assert block.tensors[block.operators[-1].outputs[0]] == hidden


def test_no_operator_is_missed_in_a_block() -> None:
    block = trace_model(replace(SPEC, attention_implementation="plain")).layers[1]
    assert [operator.operation for operator in block.operators] == [
        "norm",
        "linear",
        "matmul",
        "softmax",
        "dropout",
        "matmul",
        "linear",
        "dropout",
        "add",
        "norm",
        "linear",
        "activation",
        "linear",
        "dropout",
        "add",
    ]
    core = [operator.operation for operator in block.operators if operator.core]
    assert core == ["matmul", "softmax", "dropout", "matmul"]


def test_dropout_of_probability_zero_is_no_operator() -> None:
    spec = replace(SPEC, hidden_dropout=0.0, attention_dropout=0.0)
    graph = trace_model(replace(spec, attention_implementation="plain"))
    found = {op.operation for layer in graph.layers for op in layer.operators}
    assert "dropout" not in found


def check_against_torch(spec: Any) -> None:
    """Hold a trace on shapes to the one of torch."""
    graph = trace_model(spec)
    layers = [replace(layer, parameters=()) for layer in graph.layers]
    assert layers == [*torch_trace.torch_layers(spec).values()]
    assert torch_trace.traced_parameters(graph) == torch_trace.parameters(spec)


@failures.over("name", model_names())
def test_every_named_model_is_what_torch_traces(name: str) -> None:
    check_against_torch(load_model(name))


@failures.over("name", ["gpt3-125m", "llama2-7b", "bert-large", "t5-small"])
def test_plain_attention_is_what_torch_traces(name: str) -> None:
    check_against_torch(load_model(name, attention_implementation="plain"))


@failures.over(
    "changed",
    [
        {"num_residual_streams": 4},
        {"num_residual_streams": 2, "hyper_connections": "independent"},
        {"ngram_embedding": (3, 2, 50)},
    ],
)
def test_streams_and_ngrams_are_what_torch_traces(changed: dict[str, Any]) -> None:
    spec = replace(MIXED, mtp_num_layers=0, norm_placement="pre")
    check_against_torch(replace(spec, parallel_residual=False, **changed))


def test_borrowed_keys_and_few_gates_are_what_torch_traces() -> None:
    kinds = "window+thresholded attention+dense borrowing_window+dense"
    changed = {"norm_placement": "pre", "position_embedding_type": "rope"}
    spec = replace(SPEC, num_residual_streams=3, block_embedding=(50, 3, 8, 6))
    pattern = tuple(kinds.split())
    check_against_torch(replace(spec, block_pattern=pattern, window_size=8, **changed))


CHOICES: dict[str, tuple[Any, ...]] = {
    "num_query_groups": (1, 2, 4),
    "gated_linear_unit": (False, True),
    "activation_func": ("gelu", "silu", "relu", "squared_relu", "xielu"),
    "normalization": ("layernorm", "rmsnorm"),
    "layernorm_bias": (False, True),
    "layernorm_affine": (False, True),
    "norm_placement": ("pre", "post", "sandwich", "shared"),
    "parallel_residual": (False, True),
    "position_embedding_type": ("rope", "alibi", "learned", "none"),
    "rotary_percent": (0.5, 1.0),
    "qk_layernorm": (False, True),
    "qk_layernorm_whole": (False, True),
    "attention_output_gate": (False, True),
    "softmax_type": ("vanilla", "learnable"),
    "attn_logit_softcapping": (0.0, 30.0),
    "final_logit_softcapping": (0.0, 30.0),
    "hidden_dropout": (0.0, 0.1),
    "attention_dropout": (0.0, 0.1),
    "attention_implementation": ("flash", "plain"),
    "add_bias_linear": (False, True),
    "add_qkv_bias": (False, True),
    "add_attention_bias": (False, True),
    "add_mlp_bias": (False, True),
    "add_head_bias": (False, True),
    "tie_word_embeddings": (False, True),
    "scale_embeddings": (False, True),
    "embedding_layernorm": (False, True),
    "mtp_num_layers": (0, 1, 2),
    "moe_shared_expert_intermediate_size": (0, 24),
    "moe_shared_expert_gate": (False, True),
    "moe_router_score_function": ("softmax", "sigmoid"),
    "moe_router_enable_expert_bias": (False, True),
    "moe_router_pre_softmax": (False, True),
    "mamba_rms_norm": (False, True),
}


OF_MIXERS = {
    "window": {"window_size": 8},
    "chunked": {"attention_chunk_size": 8},
}


@given(data=st.data())
@settings(max_examples=40)
def test_any_architecture_is_what_torch_traces(data: st.DataObject) -> None:
    """Options that do not go with what was drawn before stay as they are."""
    mixer = data.draw(st.sampled_from(list(MIXERS)))
    kind = f"{mixer}+{data.draw(st.sampled_from(list(FEED_FORWARDS)))}"
    pattern = (kind, *PATTERN[1:])
    sizes = {**SIZES, **OF_MIXERS}.get(mixer, {})
    spec = replace(MIXED, block_pattern=pattern, **sizes)
    for name in data.draw(st.permutations(list(CHOICES))):
        with contextlib.suppress(InputError):
            spec = replace(spec, **{name: data.draw(st.sampled_from(CHOICES[name]))})
    check_against_torch(spec)


def test_what_torch_would_refuse_is_refused() -> None:
    """Shapes that do not go together, in each kind of function."""
    narrow, wide = Tensor((2, 3)), Tensor((4, 5))
    wrong: dict[str, Any] = {
        "add": lambda: narrow + wide,
        "matmul": lambda: narrow @ wide,
        "linear": lambda: call("linear", narrow, wide),
        "view": lambda: narrow.view(4, -1),
        "expand": lambda: narrow.expand(3, 3),
        "split": lambda: narrow.split([1, 1], -1),
        "cat": lambda: call("cat", (narrow, wide), 0),
        "topk": lambda: narrow.topk(4, -1),
        "attention": lambda: call("scaled_dot_product_attention", narrow, wide, wide),
    }
    for function in wrong.values():
        with pytest.raises(AssertionError):
            function()


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_shapes_of_functions_are_those_of_torch(
    sizes: list[int], data: st.DataObject
) -> None:
    real = torch.empty(sizes, device="meta")
    axis = data.draw(st.integers(-len(sizes), len(sizes) - 1))
    length = sizes[axis]
    whole = st.integers(-length, length)
    part = st.one_of(
        st.just(None),
        st.builds(slice, whole, whole, st.just(1)),
        st.integers(-sizes[0], sizes[0] - 1),
    )
    functions: list[Any] = [
        lambda tensor: tensor.transpose(axis, 0),
        lambda tensor: tensor.flatten(min(axis % len(sizes), 1), -1),
        lambda tensor: tensor.chunk(count, axis),
        lambda tensor: tensor.split(count, axis),
        lambda tensor: tensor.tensor_split([length // 2], axis),
        lambda tensor: tensor.repeat_interleave(count, axis),
        lambda tensor: tensor.mean(axis, keepdim=count > 2),
        lambda tensor: tensor.sum(axis),
        lambda tensor: tensor.topk(min(count, length), axis).values,
        lambda tensor: tensor.reshape(-1, length),
        lambda tensor: tensor[index],
        lambda tensor: tensor[..., None, index],
        lambda tensor: tensor.expand(count, *sizes),
        lambda tensor: tensor.unflatten(axis, (1, -1)),
        lambda tensor: (
            (tensor[None] * 2 - tensor) @ tensor.transpose(-1, -2)
            if len(sizes) > 1
            else tensor
        ),
    ]
    count, index = data.draw(st.integers(1, 4)), data.draw(part)
    for place, function in enumerate(functions):
        if place == 11 and isinstance(index, int):
            continue
        expected, found = function(real), function(Tensor(tuple(sizes)))
        pairs = zip(_parts(expected), _parts(found), strict=True)
        assert all(tuple(a.shape) == b.shape for a, b in pairs), place


def _parts(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)
