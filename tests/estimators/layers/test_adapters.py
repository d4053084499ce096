"""Adapters: parameters, products, what is kept, sent and held, by closed forms."""

import math
from dataclasses import replace

import pytest
import torch

from estimators.layers.adapters import (
    NF4_BYTES,
    adapted_bytes,
    adapted_items,
    adapted_parts,
    relative_sizes,
    with_adapters,
)
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, model_flops_per_sequence
from estimators.models.library import load_model
from estimators.platform import optimizer_step_bytes
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from planner.step.ledger import LEDGER, wire_bytes
from tests.estimators.torch_models import build_layers
from topologies.errors import InputError

HUGGING_FACE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
HUGGING_FACE += ("down_proj",)
SPEC = replace(load_model("llama3-8b"), sequence_length=4096)
BASE = trace_model(SPEC)
BLOCK = BASE.kinds[1]
H, KV, FFN, TOKENS = 4096, 1024, 14336, 4096


def training(adapter="lora", rank=16, targets=HUGGING_FACE, **settings):
    return TrainingSpec(
        global_batch_size=8,
        adapter=adapter,
        adapter_rank=rank,
        adapter_targets=targets,
        **settings,
    )


ALONE = Degrees()


def block(adapter="lora", degrees=ALONE, **settings):
    graph = with_adapters(BASE, training(adapter, **settings))
    return layer_work(graph, BLOCK, degrees, 2)


def by_name(work):
    return {operator.name.rpartition("linear_")[2]: operator for operator in work}


@pytest.mark.parametrize(
    ("targets", "sides"),
    [
        (("q_proj",), [(H, H)]),
        (("k_proj", "v_proj"), [(H, KV), (H, KV)]),
        (("gate_proj", "down_proj"), [(H, FFN), (FFN, H)]),
        (
            HUGGING_FACE,
            [(H, H), (H, KV), (H, KV), (H, H), (H, FFN), (H, FFN), (FFN, H)],
        ),
        # One adapter of all that a fused product makes.
        (("linear_qkv",), [(H, H + 2 * KV)]),
        (("linear_fc1", "linear_fc2"), [(H, 2 * FFN), (FFN, H)]),
        (("linear_q", "linear_fc1_up"), [(H, H), (H, FFN)]),
    ],
)
def test_an_adapter_has_the_rank_times_both_sides(targets, sides):
    for rank in (8, 64):
        graph = with_adapters(BASE, training(rank=rank, targets=targets))
        added = graph.num_parameters - BASE.num_parameters
        assert added == 32 * rank * sum(map(sum, sides))
        assert adapted_parts(graph).adapters == added / graph.num_parameters


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_peft_counts_as_many():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers")
    small = replace(
        load_model("llama3-8b"),
        num_layers=2,
        hidden_size=64,
        ffn_hidden_size=176,
        num_attention_heads=8,
        num_query_groups=2,
        kv_channels=8,
        vocab_size=256,
        sequence_length=32,
        max_position_embeddings=32,
    )
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=256,
    )
    traced = trace_model(small)
    for targets in (("q_proj", "v_proj"), HUGGING_FACE):
        model = peft.get_peft_model(
            transformers.LlamaForCausalLM(config),
            peft.LoraConfig(r=4, target_modules=list(targets)),
        )
        counted, _ = model.get_nb_trainable_parameters()
        graph = with_adapters(traced, training(rank=4, targets=targets))
        assert graph.num_parameters - traced.num_parameters == counted


def test_frozen_products_make_the_gradient_of_their_input_alone():
    plain, adapted = (
        by_name(layer_work(BASE, BLOCK, Degrees(), 2).operators),
        by_name(block().operators),
    )
    for name in ("qkv", "proj", "fc1", "fc2"):
        assert adapted[name].forward_flops == plain[name].forward_flops
        assert adapted[name].backward_flops == plain[name].backward_flops / 2
        assert adapted[name].weight_flops == 0.0
    first, second = adapted["fc2.lora_a"], adapted["fc2.lora_b"]
    assert first.forward_flops == 2 * TOKENS * FFN * 16
    assert second.forward_flops == 2 * TOKENS * 16 * H
    assert first.backward_flops == 2 * first.forward_flops
    assert second.weight_flops == second.forward_flops


def test_model_flops_are_four_for_each_frozen_parameter():
    graph = with_adapters(BASE, training())
    plain, adapted = map(model_flops_per_sequence, (BASE, graph))
    frozen = BASE.num_parameters - SPEC.vocab_size * H - 65 * H
    added = graph.num_parameters - BASE.num_parameters
    assert adapted == plain - 2 * TOKENS * frozen + 6 * TOKENS * added


def test_inputs_are_kept_for_adapters_alone():
    every = block().saved_bytes["none"]
    # Beside the ends of attention and of norms, which derivatives of theirs read.
    middle = 7 * 16 * TOKENS * 2
    assert every == layer_work(BASE, BLOCK, Degrees(), 2).saved_bytes["none"] + middle
    queries = block(targets=("q_proj",)).saved_bytes["none"]
    saved_by_fc1, saved_by_fc2 = TOKENS * H * 2, TOKENS * FFN * 2
    # The projection's input is what attention keeps anyway.
    assert every - queries == saved_by_fc1 + saved_by_fc2 + 6 * 16 * TOKENS * 2


class Adapted(torch.nn.Module):
    """A frozen product with an adapter beside it, as PEFT runs it."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        out, width = base.weight.shape
        self.down = torch.nn.Linear(width, rank, bias=False)
        self.up = torch.nn.Linear(rank, out, bias=False)

    def forward(self, hidden):
        return self.base(hidden) + self.up(self.down(hidden)) * 2.0


@pytest.mark.parametrize(
    "targets",
    [
        ("linear_fc1",),
        ("linear_proj", "linear_fc2"),
        ("linear_proj", "linear_fc1", "linear_fc2"),
    ],
)
def test_autograd_keeps_the_same_tensors(targets):
    """What a real block keeps on the CPU, weights and the statistics of norms aside."""
    rank, length = 4, 24
    spec = replace(
        load_model("gpt3-125m", attention_implementation="plain"),
        hidden_size=64,
        num_attention_heads=4,
        num_query_groups=4,
        kv_channels=16,
        ffn_hidden_size=160,
        sequence_length=length,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        add_bias_linear=False,
    )
    real = build_layers(spec, "cpu")["block"].requires_grad_(False)
    for module in list(real.modules()):
        for child, product in list(module.named_children()):
            if child in targets:
                setattr(module, child, Adapted(product, rank))
    weights = {parameter.data_ptr() for parameter in real.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.is_floating_point() and tensor.shape[-1] != 1:
            kept[tensor.data_ptr(), tensor.numel()] = tensor
        return tensor

    hidden = torch.randn(1, length, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        assert real(hidden).requires_grad
    elements = sum(
        tensor.numel() for (place, _), tensor in kept.items() if place not in weights
    )
    job = training(rank=rank, targets=targets)
    graph = with_adapters(trace_model(spec), job)
    saved = layer_work(graph, graph.kinds[1], Degrees(), 4).saved_bytes["none"]
    assert 4 * elements == saved


def test_the_head_and_the_embedding_are_frozen():
    graph = with_adapters(BASE, training())
    embedding, head = (
        layer_work(graph, graph.kinds[place], Degrees(), 2).operators
        for place in (0, -1)
    )
    assert embedding[0].backward_bytes == 0.0
    assert head[0].weight_flops == 0.0
    assert head[0].backward_flops == head[0].forward_flops


def test_tensor_parallel_ranks_share_both_factors_and_what_is_between():
    tp, rank = 4, 16
    alone, shared = (block(degrees=Degrees(tp=size)) for size in (1, tp))
    base, part = (layer_work(BASE, BLOCK, Degrees(tp=size), 2) for size in (1, tp))
    added = alone.parameters - base.parameters
    assert shared.parameters - part.parameters == added / tp
    extra = {}
    for work, sign in ((shared, 1), (part, -1)):
        for sent in work.collectives:
            counts = extra.setdefault(sent.operation, [0.0] * 4)
            for place, count in enumerate(sent[2:6]):
                counts[place] += sign * count
    middle, whole = TOKENS * rank * 2, TOKENS * H * 2
    # Five adapters beside column-parallel products, two beside row-parallel ones.
    assert extra["all_gather"] == [7, 5 * middle + 2 * whole, 0, 0.0]
    assert extra["all_reduce"] == [2, 2 * middle, 12, 5 * whole + 7 * middle]


def test_sequence_parallel_ranks_keep_what_adapters_read_as_it_was_gathered():
    degrees = Degrees(tp=4, sequence_parallel=True)
    frozen = block(degrees=degrees, targets=("o_proj",)).saved_bytes["none"]
    column = block(degrees=degrees, targets=("o_proj", "up_proj")).saved_bytes["none"]
    assert column - frozen == TOKENS * H * 2 + TOKENS * 16 * 2


def test_weights_in_4_bits_take_4_127_bits_and_are_made_wide_for_each_pass():
    assert math.isclose(8 * NF4_BYTES, 4.127, abs_tol=5e-4)
    work = block("qlora")
    size = {"qkv": H * (H + 2 * KV), "fc2": H * FFN}
    named = by_name(work.operators)
    for name, count in size.items():
        made = named[f"{name}.dequantize"]
        assert made.forward_bytes == made.backward_bytes == count * (2 + NF4_BYTES)
    assert work.working_bytes - block().working_bytes == 2 * H * 2 * FFN
    split = by_name(block("qlora", degrees=Degrees(tp=2)).operators)
    made = split["fc2.dequantize"]
    assert made.forward_bytes == size["fc2"] / 2 * (2 + NF4_BYTES)


def test_bytes_of_a_model_add_up_to_its_parts():
    ends = 2 * SPEC.vocab_size * H + 65 * H
    products = BASE.num_parameters - ends
    for adapter, frozen in (
        ("lora", 2.0 * BASE.num_parameters),
        ("qlora", 2.0 * ends + NF4_BYTES * products),
    ):
        job = training(adapter)
        graph = with_adapters(BASE, job)
        added = graph.num_parameters - BASE.num_parameters
        parts = adapted_parts(graph)
        mean = adapted_bytes(job, parts)
        total = {
            name: size * graph.num_parameters for name, size in mean._asdict().items()
        }
        assert total["frozen"] == pytest.approx(frozen)
        assert total["weights"] == pytest.approx(frozen + 2 * added)
        assert total["gradients"] == pytest.approx(4 * added)
        assert total["optimizer"] == pytest.approx(12 * added)
        assert total["reduce"] == pytest.approx(4 * added)
        held = sum(item.num_bytes for item in adapted_items(job, parts))
        assert held == pytest.approx(mean.weights + mean.gradients + mean.optimizer)
        moved = optimizer_step_bytes(mean) * graph.num_parameters
        assert moved == pytest.approx(30 * added)
        # What a step has changed is gathered after it, all weights in every pass.
        sent = {s.moment: wire_bytes(s, mean) for s in LEDGER[1].sent + LEDGER[3].sent}
        assert sent["after optimizer"] * graph.num_parameters == pytest.approx(
            2 * added
        )
        assert sent["forward"] == mean.gather


def test_layers_in_4_bits_count_by_their_size():
    graph = with_adapters(BASE, training("qlora"))
    sizes = relative_sizes(graph)
    held = [sum(p.elements for p in layer.parameters) for layer in graph.layers]
    counted = [size * count for size, count in zip(sizes, held, strict=True)]
    assert sum(counted[kind] for kind in graph.kinds) == pytest.approx(
        sum(held[kind] for kind in graph.kinds)
    )
    assert sizes[BASE.kinds[-1]] > 2.5 * sizes[BLOCK]


def test_adapters_come_off_again_and_change():
    graph = with_adapters(BASE, training())
    assert with_adapters(graph, training("none")) == BASE
    other = training("qlora", rank=8)
    assert with_adapters(graph, other) == with_adapters(BASE, other)


def test_a_model_without_such_products_is_refused_with_those_that_it_has():
    with pytest.raises(InputError, match="linear_fc1, linear_fc2") as refused:
        with_adapters(BASE, training(targets=("q_proj", "c_attn")))
    assert "c_attn" in str(refused.value)
    plain = trace_model(load_model("gpt3-1.3b"))
    with pytest.raises(InputError, match="gate_proj"):
        with_adapters(plain, training(targets=("gate_proj",)))


def test_routed_experts_are_frozen_and_get_no_adapters():
    mixtral = trace_model(load_model("mixtral-8x7b"))
    with pytest.raises(InputError, match="routed experts"):
        with_adapters(mixtral, training(targets=("linear_fc1",)))
    job = training("qlora", targets=("linear_qkv",))
    graph = with_adapters(mixtral, job)
    spec = mixtral.spec
    ends = 2 * spec.vocab_size * spec.hidden_size
    outside = ends + (2 * spec.num_layers + 1) * spec.hidden_size
    parts = adapted_parts(graph)
    assert parts.quantised * graph.num_parameters == pytest.approx(
        mixtral.num_parameters - outside, rel=1e-6
    )
