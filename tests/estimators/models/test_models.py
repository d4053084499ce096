"""The model library: specifications, named models, and their modules."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from estimators.models.changed import (
    with_one_of_each,
)
from estimators.models.library import load_model, model_names, published_model
from estimators.models.spec import (
    TransformerSpec,
)
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.models import test_diffusion, test_library, test_special
from tests.estimators.torch_models import (
    FAMILIES,
    build_layers,
    example_inputs,
)
from tests.estimators.whole_models import build_model
from topologies.errors import InputError

SmallModel = Callable[..., TransformerSpec]

PUBLISHED_PARAMETERS = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "bert-large": 336_226_108,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 682_636_472_320,
    "kimi-k2": 1_026_408_209_408,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama4-scout": 107_769_861_120,
    "llama4-maverick": 400_711_848_960,
    "glm-4.5-air": 109_227_304_960,
    "glm-4.5": 356_785_884_416,
    "dbrx": 131_596_523_520,
    "grok-1": 315_684_820_992,
}
"""Parameter counts of the checkpoints on the Hugging Face hub (safetensors metadata;
BERT: ``BertForPreTraining``). What checkpoints have beside parameters, those of
DeepSeek V3, Kimi K2, GLM-4.5 and Llama 4, is counted in `test_experts`; Grok-1: those
of its 64 layers and one embedding (xai-org/grok-1)."""

NOMINAL_PARAMETERS = {
    "gpt3-125m": 125e6,
    "gpt3-350m": 356e6,
    "gpt3-760m": 760e6,
    "gpt3-1.3b": 1320e6,
    "gpt3-2.7b": 2650e6,
    "gpt3-6.7b": 6660e6,
    "gpt3-13b": 12850e6,
    "gpt3-35b": 35e9,
    "gpt3-175b": 174600e6,
    "mixtral-790m": 790e6,
}
"""GPT-3: Brown et al., 2020, table D.1; the others by their names."""


@failures.over("name", PUBLISHED_PARAMETERS)
def test_modules_have_the_published_number_of_parameters(name: str) -> None:
    model = build_model(load_model(name))
    assert sum(p.numel() for p in model.parameters()) == PUBLISHED_PARAMETERS[name]


@failures.over("name", PUBLISHED_PARAMETERS)
def test_traces_have_the_published_number_of_parameters(name: str) -> None:
    assert trace_model(load_model(name)).num_parameters == PUBLISHED_PARAMETERS[name]


@failures.over("name", NOMINAL_PARAMETERS)
def test_other_models_are_as_large_as_their_papers_say(name: str) -> None:
    parameters = trace_model(load_model(name)).num_parameters
    assert parameters == pytest.approx(NOMINAL_PARAMETERS[name], rel=0.01)


def test_every_named_model_is_held_to_a_parameter_count() -> None:
    others = (
        test_library.PUBLISHED_PARAMETERS,
        test_library.STORED_WITH_A_COPY,
        test_library.STORED_WITH_EYES,
        test_library.OTHERS,
        test_diffusion.COUNTED,
        test_diffusion.COUNTED_PARAMETERS,
        test_diffusion.PAPER,
        test_special.PUBLISHED,
        test_special.NOMINAL,
        test_special.OF_TRANSFORMERS,
    )
    held = {name for table in others for name in table}
    assert {*PUBLISHED_PARAMETERS, *NOMINAL_PARAMETERS, *held} == {*model_names()}


@failures.over("name", model_names())
def test_traced_parameters_are_those_of_the_modules(name: str) -> None:
    spec = with_one_of_each(load_model(name))
    model = build_model(spec)
    assert trace_model(spec).num_parameters == sum(
        p.numel() for p in model.parameters()
    )


@failures.over("name", model_names())
def test_every_named_model_says_where_it_was_published(name: str) -> None:
    assert "20" in published_model(name).source


@failures.over("name", ["gpt3-125m", "llama3-8b", "mixtral-8x7b", "bert-large"])
def test_small_models_learn_on_a_cpu(small: SmallModel, name: str) -> None:
    torch.manual_seed(0)
    spec = small(name, hidden_dropout=0.0)
    model = build_model(spec, "cpu")
    inputs, labels = example_inputs(spec, "cpu")
    labels = (torch.randint(spec.vocab_size, labels[0].shape), *labels[1:])
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


def test_plain_and_flash_attention_compute_the_same(small: SmallModel) -> None:
    torch.manual_seed(0)
    for name in ("llama3-8b", "bert-large"):
        spec = small(name, attention_dropout=0.0, hidden_dropout=0.0)
        flash = build_layers(spec, "cpu")["block"]
        plain = build_layers(replace(spec, attention_implementation="plain"), "cpu")
        plain["block"].load_state_dict(flash.state_dict())
        hidden = torch.randn(2, spec.sequence_length, spec.hidden_size)
        torch.testing.assert_close(flash(hidden), plain["block"](hidden))


def test_causal_models_do_not_look_ahead(small: SmallModel) -> None:
    torch.manual_seed(0)
    block = build_layers(small("mixtral-8x7b"), "cpu")["block"]
    hidden = torch.randn(1, 16, 64)
    changed = hidden.clone()
    changed[:, 10:] += 1.0
    before, after = block(hidden), block(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_rotary_attention_depends_on_distance_only(small: SmallModel) -> None:
    torch.manual_seed(0)
    rotary = build_layers(small("llama2-7b"), "cpu")["block"].self_attention.rotary
    one = torch.randn(8)
    query, key = rotary(one.expand(1, 1, 6, 8), one.expand(1, 1, 6, 8))
    scores = (query @ key.transpose(-1, -2))[0, 0]
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])
    assert not torch.allclose(scores[0, 0], scores[0, 1])


def test_experts_together_do_what_each_token_s_experts_do_alone(
    small: SmallModel,
) -> None:
    torch.manual_seed(0)
    layer = build_layers(small("mixtral-8x7b"), "cpu")["block"].mlp
    hidden = torch.randn(1, 16, 64)
    weights, experts = layer.topk(layer.router(hidden[0]))
    expected = torch.zeros(16, 64)
    for token in range(16):
        for weight, expert in zip(weights[token], experts[token], strict=True):
            gate, up = (layer.linear_fc1.weight[expert] @ hidden[0, token]).chunk(2)
            inner = torch.nn.functional.silu(gate) * up
            expected[token] += weight * (layer.linear_fc2.weight[expert] @ inner)
    torch.testing.assert_close(layer(hidden)[0], expected)


def test_every_family_has_modules() -> None:
    assert {published_model(name).spec.family for name in model_names()} == {*FAMILIES}


def test_unknown_models_get_the_nearest_spelling() -> None:
    with pytest.raises(InputError) as caught:
        load_model("lama2-7b")
    assert caught.value.hint == 'did you mean "llama2-7b"?'
    assert "mixtral-8x7b" in caught.value.expected


def test_names_forgive_case_and_underscores() -> None:
    assert load_model("GPT3_175B") == load_model("gpt3-175b")


def test_longer_sequences_lengthen_learned_positions_only() -> None:
    assert load_model("gpt3-1.3b", sequence_length=4096).max_position_embeddings == 4096
    assert load_model("gpt3-1.3b", sequence_length=512).max_position_embeddings == 2048
    longer = load_model("llama2-7b", sequence_length=32768)
    assert trace_model(longer).num_parameters == PUBLISHED_PARAMETERS["llama2-7b"]


def test_sizes_left_out_take_megatron_s_defaults() -> None:
    spec = TransformerSpec(
        family="gpt",
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        vocab_size=100,
        sequence_length=32,
    )
    assert spec.ffn_hidden_size == 256
    assert (spec.num_query_groups, spec.kv_channels) == (4, 16)
    assert spec.max_position_embeddings == 32


@failures.over(
    ("changes", "where"),
    [
        ({"hidden_size": 100, "kv_channels": 0}, "num_attention_heads"),
        ({"num_query_groups": 3}, "num_query_groups"),
        ({"sequence_length": 21}, "sequence_length"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_layers": 2.0}, "num_layers"),
        ({"num_layers": True}, "num_layers"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_dropout": 1.0}, "hidden_dropout"),
        ({"attention_dropout": float("nan")}, "attention_dropout"),
        ({"attention_dropout": "0.1"}, "attention_dropout"),
        ({"family": "rnn"}, "family"),
        ({"normalization": "batchnorm"}, "normalization"),
        ({"attention_implementation": "linear"}, "attention_implementation"),
        ({"causal": 1}, "causal"),
        ({"num_moe_experts": 8, "moe_router_topk": 2}, "gated_linear_unit"),
        ({"moe_router_topk": 2}, "moe_router_topk"),
        ({"position_embedding_type": "rope", "kv_channels": 7}, "kv_channels"),
        ({"family": "bert"}, "family"),
    ],
)
def test_impossible_architectures_are_refused(
    small: SmallModel, changes: dict[str, object], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        small("gpt3-125m", **changes)
    assert caught.value.where == where
    assert caught.value.expected


@failures.over(
    ("changes", "where"),
    [
        ({"moe_router_topk": 9}, "moe_router_topk"),
        ({"moe_router_topk": 0}, "moe_router_topk"),
        ({"num_moe_experts": 0}, "num_moe_experts"),
        ({"gated_linear_unit": False}, "gated_linear_unit"),
        ({"moe_shared_expert_gate": True}, "moe_shared_expert_gate"),
        ({"moe_router_group_topk": 1}, "moe_router_num_groups"),
        ({"moe_router_num_groups": 3}, "moe_router_num_groups"),
        ({"moe_router_num_groups": 4}, "moe_router_group_topk"),
        (
            {"moe_router_num_groups": 8, "moe_router_group_topk": 1},
            "moe_router_group_topk",
        ),
        ({"moe_router_score_function": "relu"}, "moe_router_score_function"),
        ({"mtp_num_layers": 17}, "mtp_num_layers"),
    ],
)
def test_impossible_experts_are_refused(
    small: SmallModel, changes: dict[str, object], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        small("mixtral-8x7b", **changes)
    assert caught.value.where == where


def test_rotary_models_have_no_longest_sequence(small: SmallModel) -> None:
    assert small("llama2-7b", sequence_length=64).sequence_length == 64
