"""What frameworks keep for the backward pass, counted by hand."""

from dataclasses import replace

from estimators.layers.saved_activations import EVERYTHING, Keeping, keeping_of
from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.software import Software
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures

LLAMA = load_model("llama3-8b")
GPT = replace(
    load_model("gpt3-2.7b", attention_implementation="flash"),
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
GRAPHS = {spec: trace_model(spec) for spec in (LLAMA, GPT)}
BLOCK, HEAD = 1, -1
TRAINING = TrainingSpec(global_batch_size=1)


def saved(spec, keeping=EVERYTHING, kind=BLOCK, mode="none"):
    graph = GRAPHS[spec]
    kind %= len(graph.layers)
    return layer_work(graph, kind, Degrees(), 2, keeping).saved_bytes[mode]


def sizes(spec):
    """Return elements of hidden states, of one inner activation, of keys, of rows."""
    s, kv = spec.sequence_length, spec.group_width
    return (
        s * spec.hidden_size,
        s * spec.ffn_hidden_size,
        s * kv,
        s * spec.num_attention_heads,
    )


def test_a_fused_gated_activation_keeps_gate_input_and_product():
    hidden, inner, keys, heads = sizes(LLAMA)
    # Two norms and their results, queries, attention's result; logarithms in fp32.
    outside = 2 * (4 * hidden + 2 * hidden + 2 * keys) + 4 * heads
    assert saved(LLAMA) == outside + 2 * 4 * inner
    fused = Keeping(fuses_activation=True)
    assert saved(LLAMA, fused) == outside + 2 * 3 * inner
    assert saved(LLAMA, fused, mode="full") == saved(LLAMA, mode="full")
    # An activation without a gate keeps its input, and its result is the product's.
    assert saved(GPT, fused) == saved(GPT)


@failures.over("width", [1.0, 0.5625])
def test_products_keep_their_inputs_in_the_narrow_format(width):
    hidden, inner, keys, heads = sizes(GPT)
    found = saved(GPT, Keeping(input_bytes=width))
    norms = 2 * hidden * 2 + 2 * hidden * width
    # Attention keeps its result as it is, and the projection a narrow copy.
    attention = 2 * (2 * hidden + 2 * keys) + 4 * heads + hidden * width
    assert found == norms + attention + 2 * inner + inner * width
    assert saved(GPT, Keeping(input_bytes=width), HEAD) == saved(GPT, kind=HEAD)


def test_attention_that_is_repeated_leaves_the_narrow_copy_of_its_result():
    hidden, inner, keys, _ = sizes(GPT)
    found = saved(GPT, Keeping(input_bytes=1.0), mode="selective")
    core = 2 * (hidden + 2 * keys) + hidden
    assert found == 2 * 2 * hidden + 2 * hidden + core + 2 * inner + inner


def test_a_compiler_makes_norms_and_activations_again():
    hidden, inner, keys, heads = sizes(LLAMA)
    found = saved(LLAMA, Keeping(fuses_activation=True, repeats_elementwise=True))
    kept = 2 * hidden + 2 * hidden + 2 * keys + 2 * inner
    assert found == 2 * kept + 4 * heads


def test_a_fused_loss_keeps_logits_as_they_are():
    hidden = sizes(LLAMA)[0]
    logits = LLAMA.sequence_length * LLAMA.vocab_size
    assert saved(LLAMA, kind=HEAD) == 4 * logits + 2 * hidden
    assert saved(LLAMA, Keeping(fuses_loss=True), HEAD) == 2 * logits + 2 * hidden


def test_weights_of_experts_inside_their_activation_leave_no_results_behind():
    spec = load_model("mixtral-8x7b")
    graph = trace_model(spec)
    less = [
        layer_work(graph, BLOCK, Degrees(), 2, Keeping(weighs_in_activation=on))
        for on in (False, True)
    ]
    rows = spec.sequence_length * spec.moe_router_topk
    more, fewer = (work.saved_bytes["none"] for work in less)
    assert more - fewer == 2 * rows * spec.hidden_size


def test_what_is_kept_follows_from_software_and_format():
    software = Software(name="own", keeps_narrow_inputs=True, fuses_loss=True)
    narrow = replace(TRAINING, matmul_precision="fp8")
    assert keeping_of(software, narrow) == Keeping(fuses_loss=True, input_bytes=1.0)
    assert keeping_of(software, TRAINING) == Keeping(fuses_loss=True)
    assert keeping_of(Software(name="own"), narrow) == EVERYTHING
    stores = Software(
        name="own", fuses_activation=True, activation_func_fp8_input_store=True
    )
    assert keeping_of(stores, TRAINING).gated_input_bytes == 1.0
    # A compiler's fused kernels have no such option.
    compiled = keeping_of(replace(stores, compiled=True), TRAINING)
    assert compiled == Keeping(fuses_activation=True)


def test_inputs_of_gated_activations_that_are_stored_in_fp8_take_half():
    inner = sizes(LLAMA)[1]
    fused = Keeping(fuses_activation=True)
    stored = fused._replace(gated_input_bytes=1.0)
    assert saved(LLAMA, fused) - saved(LLAMA, stored) == 2 * inner
    assert saved(LLAMA, stored, mode="full") == saved(LLAMA, mode="full")
    # An activation without a gate has no such option.
    assert saved(GPT, stored) == saved(GPT)


def test_what_experts_run_again_is_stored_as_it_is_and_shared_experts_are_not():
    spec = load_model("deepseek-v2-lite")
    graph, kind = trace_model(spec), 2
    widths = {
        modules: [
            layer_work(
                graph,
                kind,
                Degrees(),
                2,
                Keeping(
                    fuses_activation=True,
                    recompute_modules=modules,
                    gated_input_bytes=width,
                ),
            ).saved_bytes["selective"]
            for width in (0.0, 1.0)
        ]
        for modules in (("layernorm",), ("layernorm", "moe_act"))
    }
    routed = 2 * spec.moe_router_topk * spec.moe_ffn_hidden_size
    shared = 2 * spec.moe_shared_expert_intermediate_size
    less = [before - after for before, after in widths.values()]
    assert less == [
        spec.sequence_length * (routed + shared),
        spec.sequence_length * shared,
    ]


@failures.over("width", [1.0, 0.5625])
def test_narrow_products_put_off_narrow_factors(width):
    """Qi et al.: 32 s b h in 16 bits, of inputs and gradients alike."""
    graph, narrow = GRAPHS[GPT], Keeping(input_bytes=width)
    found = layer_work(graph, BLOCK, Degrees(), 2, narrow)
    assert found.weight_gradient_bytes == 16 * sizes(GPT)[0] * width
    head = len(graph.layers) - 1
    wide, same = (
        layer_work(graph, head, Degrees(), 2, k) for k in (EVERYTHING, narrow)
    )
    assert same.weight_gradient_bytes == wide.weight_gradient_bytes
