"""Mamba-2 hybrids, encoders with decoders, and vision transformers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # its customary name
from torch.utils.flop_counter import FlopCounterMode

from estimators.layers.sharding import layer_work
from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees, LayerWork, model_flops_per_sequence
from estimators.models.changed import (
    with_num_layers,
    with_sequence_length,
)
from estimators.models.library import hybrid_pattern, load_model
from estimators.models.spec import (
    TransformerSpec,
    encoder_decoder_pattern,
)
from estimators.tracing.graph import LayerGraph, TracedOperator
from estimators.tracing.trace import trace_model
from tests import failures
from tests.estimators.torch_models import (
    MambaMixer,
    block_inputs,
    build_layers,
    example_inputs,
)
from topologies.errors import InputError

PUBLISHED = {
    "mamba2-2.7b": 2_702_599_680,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "nemotron-3-nano-30b-a3b": 31_577_937_344,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
    "t5-large": 737_668_096,
    "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344,
    "t5-v1-1-small": 76_961_152,
    "t5-v1-1-base": 247_577_856,
    "t5-v1-1-large": 783_150_080,
    "t5-v1-1-xl": 2_849_757_184,
    "t5-v1-1-xxl": 11_135_332_352,
    "flan-t5-small": 76_961_152,
    "flan-t5-base": 247_577_856,
    "flan-t5-large": 783_150_080,
    "flan-t5-xl": 2_849_757_184,
    "flan-t5-xxl": 11_135_332_352,
    "vit-b-32": 88_224_232,
    "vit-b-16": 86_567_656,
    "vit-l-32": 306_535_400,
    "vit-l-16": 304_326_632,
    "vit-h-14": 632_045_800,
}
"""Parameter counts of the checkpoints on the Hugging Face hub (safetensors metadata;
T5's also in KerasHub's presets) and of torchvision's models (``num_params``)."""

NOMINAL = {
    "mamba2-130m": 130e6,
    "nemotron-nano-12b-v2": 12.31e9,
    "nemotron-h-47b": 46.8e9,
    "nemotron-h-56b": 56.3e9,
    "longcat-flash-lite": 68.5e9,
}
"""By their names and reports."""

OF_TRANSFORMERS = {
    "qwen3-next-80b-a3b": ("Qwen3NextConfig", 79_674_391_296),
    "deepseek-v3.2": ("DeepseekV32Config", 671_877_929_216),
    "hunyuan-4-preview": ("HYV4Config", 58_278_193_133),
}
"""Model of the library -> transformers' configuration, whose defaults are that model's,
and its parameters without layers of multi-token prediction."""


@failures.over("name", PUBLISHED)
def test_traces_have_the_published_number_of_parameters(name: str) -> None:
    assert trace_model(load_model(name)).num_parameters == PUBLISHED[name]


@failures.over("name", NOMINAL)
def test_others_are_as_large_as_their_reports_say(name: str) -> None:
    parameters = trace_model(load_model(name)).num_parameters
    assert parameters == pytest.approx(NOMINAL[name], rel=0.01)


def hybrid(letters: str = "M-M*-", **changes: object) -> TransformerSpec:
    sizes: dict[str, object] = {
        "num_layers": len(letters),
        "block_pattern": hybrid_pattern(letters),
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 8,
        "num_query_groups": 4,
        "kv_channels": 8,
        "vocab_size": 101,
        "sequence_length": 32,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_state_dim": 24,
        "mamba_num_groups": 4,
        "mamba_chunk_size": 8,
    }
    return replace(load_model("nemotron-h-8b"), **{**sizes, **changes})  # type: ignore[arg-type]  # sizes as named


def encoder_decoder(**changes: object) -> TransformerSpec:
    sizes: dict[str, object] = {
        "num_layers": 5,
        "block_pattern": encoder_decoder_pattern(3, 2),
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 4,
        "num_query_groups": 4,
        "kv_channels": 24,
        "vocab_size": 256,
        "sequence_length": 32,
        "decoder_sequence_length": 16,
        "max_position_embeddings": 0,
    }
    return replace(load_model("t5-small"), **{**sizes, **changes})  # type: ignore[arg-type]  # sizes as named


def vision(**changes: object) -> TransformerSpec:
    sizes: dict[str, object] = {
        "num_layers": 2,
        "hidden_size": 64,
        "ffn_hidden_size": 96,
        "num_attention_heads": 4,
        "num_query_groups": 4,
        "kv_channels": 16,
        "vocab_size": 11,
        "image_size": 32,
        "patch_size": 8,
        "sequence_length": 17,
        "max_position_embeddings": 17,
    }
    return replace(load_model("vit-b-16"), **{**sizes, **changes})  # type: ignore[arg-type]  # sizes as named


def work_of(spec: TransformerSpec, block: int, **degrees: int) -> LayerWork:
    graph = trace_model(spec)
    kind = graph.kinds[graph.names.index(f"block {block}")]
    return layer_work(graph, kind, Degrees(**degrees), element_bytes=2)


def operators_of(graph: LayerGraph, block: int) -> tuple[TracedOperator, ...]:
    return graph.layers[graph.kinds[graph.names.index(f"block {block}")]].operators


def test_a_chunked_scan_is_the_recurrence_of_its_states() -> None:
    torch.manual_seed(0)
    spec = hybrid(mamba_chunk_size=5)
    scan = MambaMixer(spec).scan
    with torch.no_grad():
        for parameter in scan.parameters():
            parameter.normal_(std=0.3)
        given = torch.randn(2, 13, sum(scan.widths))
        found = scan(given)
        gate, mixed, step = given.split(scan.widths, -1)
        padded = F.pad(mixed.transpose(1, 2), (3, 0))
        mixed = F.conv1d(padded, scan.conv1d_weight, scan.conv1d_bias, groups=320)
        values, inward, outward = F.silu(mixed).split([128, 96, 96], 1)
        state = torch.zeros(2, 8, 16, 24)
        for token in range(13):
            dt = F.softplus(step[:, token] + scan.dt_bias)[..., None, None]
            x = values[..., token].view(2, 8, 16)
            b, c = (
                one[..., token].view(2, 4, 24).repeat_interleave(2, 1)
                for one in (inward, outward)
            )
            state = state * (-dt * scan.A_log.exp()[:, None, None]).exp()
            state = state + dt * x[..., None] * b[:, :, None]
            y = (state * c[:, :, None]).sum(-1) + scan.D[:, None] * x
            expected = y.flatten(1) * F.silu(gate[:, token])
            torch.testing.assert_close(found[:, token], expected)


def test_products_of_a_scan_are_those_that_it_computes() -> None:
    # A group for each head: torch computes scores head by head.
    spec = hybrid(mamba_num_groups=8)
    mixer = MambaMixer(spec)
    with FlopCounterMode(display=False) as counter:
        mixer.scan(torch.zeros(1, 32, sum(mixer.scan.widths)))
    computed = counter.get_flop_counts()["Global"][torch.ops.aten.bmm]
    products = [op for op in operators_of(trace_model(spec), 0) if op.dims[0]]
    assert computed == sum(op.model_flops for op in products[1:-1])


def test_a_scan_has_the_flops_of_its_paper() -> None:
    # Dao and Gu, 2024, section 6: of a chunk of Q tokens scores for each group, the
    # product with them, and two with the states for each head.
    spec = load_model("nemotron-h-8b")
    tokens, q, n, p, h, g = 8192, 128, 128, 64, 128, 8
    scan = [op for op in operators_of(trace_model(spec), 0) if op.dims[0]][1:-1]
    expected = tokens * (2 * q * n * g + h * (2 * q * p + 4 * n * p))
    assert sum(op.model_flops for op in scan) == expected


def test_scores_and_states_of_chunks_are_made_again_backward() -> None:
    work = work_of(hybrid(), 0)
    repeated = {
        op.name: op.backward_flops / op.forward_flops
        for op in work.operators
        if op.operation in {"scan", "matmul"}
    }
    assert sorted(repeated.values()) == [2.0, 2.0, 3.0, 3.0]


def test_a_mixer_keeps_what_megatron_s_keeps() -> None:
    # Input of the norm, of the product, of the scan (z x B C dt), the result before the
    # gate, what the inner norm and the last product read: of 32 tokens in 2 bytes.
    work = work_of(hybrid("M"), 0)
    inner, maps, heads = 128, 2 * 4 * 24, 8
    widths = [64, 64, 2 * inner + maps + heads, inner, inner, inner]
    assert work.saved_bytes["none"] == 2 * 32 * sum(widths)


def test_heads_and_groups_of_mamba_are_split_over_the_tensor_group() -> None:
    spec = hybrid("M")
    whole, half = work_of(spec, 0), work_of(spec, 0, tp=2)
    for one, two in zip(whole.operators, half.operators, strict=True):
        if one.kind == "matmul":
            assert two.forward_flops == one.forward_flops / 2
    # All but the block's norm is split.
    assert whole.parameters - 64 == 2 * (half.parameters - 64)
    (reduced,) = half.collectives
    hidden = 2 * 32 * 64
    assert reduced[:2] == ("all_reduce", "tensor")
    assert (reduced.forward_bytes, reduced.backward_bytes) == (hidden, hidden)
    assert divisibility_problem(spec, Degrees(tp=8)) == (
        "tensor_model_parallel_size 8 does not divide mamba_num_groups 4"
    )


def test_sequences_of_mamba_and_of_t5_are_not_split() -> None:
    for spec in (hybrid(), encoder_decoder()):
        problem = divisibility_problem(spec, Degrees(cp=2))
        assert problem is not None
        assert problem.startswith("context_parallel_size 2, but")
    assert (
        divisibility_problem(
            hybrid(
                "*-",
                **dict.fromkeys(
                    (
                        "mamba_num_heads",
                        "mamba_head_dim",
                        "mamba_state_dim",
                        "mamba_num_groups",
                        "mamba_chunk_size",
                    ),
                    0,
                ),
            ),
            Degrees(cp=2),
        )
        is None
    )


def test_both_lengths_of_t5_must_split_under_sequence_parallelism() -> None:
    spec = encoder_decoder(decoder_sequence_length=15)
    degrees = Degrees(tp=2, sequence_parallel=True)
    problem = divisibility_problem(spec, degrees)
    assert problem is not None
    assert problem.startswith("decoder_sequence_length 15 does not split")


def test_what_an_encoder_made_travels_with_the_decoder() -> None:
    spec = encoder_decoder()
    sent = [work_of(spec, block).input_bytes for block in range(5)]
    encoder, decoder = 2 * 32 * 64, 2 * 16 * 64
    assert sent == [encoder] * 4 + [encoder + decoder]
    graph = trace_model(spec)
    final = layer_work(graph, graph.kinds[-2], Degrees(), element_bytes=2)
    assert final.input_bytes == decoder


def test_attention_of_encoders_and_to_them_sees_every_token() -> None:
    graph = trace_model(encoder_decoder())
    encoder, decoder = (
        [
            (op.dims[:2], op.sees_all)
            for op in operators_of(graph, block)
            if op.operation == "attention"
        ]
        for block in (1, 4)
    )
    assert encoder == [((32, 32), True)]
    assert decoder == [((16, 16), False), ((16, 32), True)]
    hidden = model_flops_per_sequence(graph) - model_flops_per_sequence(
        graph, counts_masked=False
    )
    one = 4 * 16 * 16 * 24 * 4
    assert hidden == 3 * 2 * one / 2


def test_fused_and_plain_attention_of_t5_compute_and_count_the_same() -> None:
    torch.manual_seed(0)
    spec = encoder_decoder(attention_dropout=0.0, hidden_dropout=0.0)
    plain = replace(spec, attention_implementation="plain")
    flash, written = build_layers(spec, "cpu"), build_layers(plain, "cpu")
    for name, kind in spec.block_kinds.items():
        written[name].load_state_dict(flash[name].state_dict())
        given = [
            torch.randn_like(one) if one.is_floating_point() else one
            for one in block_inputs(spec, kind, "cpu")
        ]
        torch.testing.assert_close(flash[name](*given), written[name](*given))
    for counts_masked in (True, False):
        assert model_flops_per_sequence(
            trace_model(spec), counts_masked=counts_masked
        ) == model_flops_per_sequence(trace_model(plain), counts_masked=counts_masked)


@failures.over("make", [hybrid, encoder_decoder, vision])
def test_whole_chains_learn(make: Callable[..., TransformerSpec]) -> None:
    torch.manual_seed(0)
    spec = make(hidden_dropout=0.0, attention_dropout=0.0)
    layers = build_layers(spec, "cpu")
    inputs, labels = example_inputs(spec, "cpu")
    labels = (torch.randint(spec.vocab_size, labels[0].shape),)
    if spec.family == "vit":
        inputs = (torch.randn_like(inputs[0]),)
    parameters = [p for layer in layers.values() for p in layer.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-2)
    losses = []
    for _ in range(5):
        state = (layers["embedding"](*inputs),)
        for name, kind in spec.block_kinds.items():
            state = states_behind(layers[name], kind, state, spec)
        loss = layers["head"](layers["final norm"](state[0]), *labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in parameters)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def states_behind(
    block: torch.nn.Module,
    kind: str,
    state: tuple[torch.Tensor, ...],
    spec: TransformerSpec,
) -> tuple[torch.Tensor, ...]:
    """Return hidden states and what goes with them behind one block of each kind."""
    if kind == "first decoder":
        tokens = torch.zeros(1, spec.decoder_sequence_length, dtype=torch.long)
        return tuple(block(state[0], tokens))
    found = block(*state)
    if isinstance(found, tuple):
        return found
    return (found, *state[1:])


def test_other_depths_of_a_t5_keep_encoder_and_decoder() -> None:
    spec = encoder_decoder()
    assert with_num_layers(spec, 10).block_pattern == encoder_decoder_pattern(6, 4)
    assert with_num_layers(spec, 2).block_pattern == encoder_decoder_pattern(1, 1)
    with pytest.raises(InputError):
        with_num_layers(spec, 1)


def test_images_decide_how_many_tokens_there_are() -> None:
    with pytest.raises(InputError) as caught:
        with_sequence_length(vision(), 32)
    assert caught.value.where == "sequence_length"
    assert caught.value.expected == "(image_size / patch_size)^2 + 1 = 17"


def test_cutting_patches_out_is_a_product() -> None:
    graph = trace_model(vision())
    (product,) = [op for op in graph.layers[0].operators if op.operation == "linear"]
    assert product.dims == (16, 64, 3 * 8 * 8, 1)


@failures.over(
    ("make", "changes", "where"),
    [
        (hybrid, {"mamba_num_groups": 3}, "mamba_num_groups"),
        (hybrid, {"family": "t5"}, "family"),
        (hybrid, {"mamba_state_dim": -1}, "mamba_state_dim"),
        (
            hybrid,
            {
                "mamba_state_dim": 10**6,
                "mamba_head_dim": 10**6,
                "mamba_num_heads": 10**6,
            },
            "sequence_length",
        ),
        (hybrid, {"image_size": 32}, "image_size"),
        (hybrid, {"position_embedding_type": "relative"}, "position_embedding_type"),
        (hybrid, {"decoder_sequence_length": 8}, "decoder_sequence_length"),
        (encoder_decoder, {"mamba_head_dim": 8}, "mamba_head_dim"),
        (encoder_decoder, {"block_pattern": ()}, "block_pattern"),
        (encoder_decoder, {"block_pattern": ("encoder",) * 5}, "block_pattern"),
        (encoder_decoder, {"num_query_groups": 2}, "num_query_groups"),
        (
            encoder_decoder,
            {"position_embedding_type": "none"},
            "position_embedding_type",
        ),
        (
            encoder_decoder,
            {
                "sequence_length": 10**8,
                "num_attention_heads": 64,
                "num_query_groups": 64,
            },
            "num_attention_heads",
        ),
        (vision, {"patch_size": 5}, "patch_size"),
        (vision, {"patch_size": 0}, "patch_size"),
        (vision, {"causal": True}, "causal"),
        (vision, {"tie_word_embeddings": True}, "tie_word_embeddings"),
    ],
)
def test_impossible_architectures_are_refused(
    make: Callable[..., TransformerSpec], changes: dict[str, object], where: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(**changes)
    assert caught.value.where == where
    assert caught.value.expected
