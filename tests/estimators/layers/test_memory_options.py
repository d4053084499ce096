"""What frameworks keep beside the formulas of the papers."""

from dataclasses import replace

from estimators.chain import build_layer_table
from estimators.layers.work import Degrees
from estimators.models.spec import TransformerSpec
from estimators.platform import Platform
from estimators.software import IDEAL
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator

LLAMA = TransformerSpec(
    family="llama",
    num_layers=2,
    hidden_size=64,
    num_attention_heads=8,
    num_query_groups=2,
    ffn_hidden_size=160,
    sequence_length=128,
    vocab_size=512,
    gated_linear_unit=True,
    normalization="rmsnorm",
    position_embedding_type="rope",
    tie_word_embeddings=False,
    add_bias_linear=False,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    attention_implementation="flash",
)
JOB = TrainingSpec(global_batch_size=8)


ALONE = Degrees()


def table(degrees=ALONE, **software):
    platform = Platform(
        accelerator=load_accelerator("h100-sxm"), software=replace(IDEAL, **software)
    )
    return build_layer_table(
        trace_model(LLAMA), degrees=degrees, training=JOB, platform=platform
    )


@failures.over(
    ("precision", "gradients", "whole", "shard", "copies"),
    [("fp16", "bf16", 2 + 2, 12, 2 + 4), ("bf16", "fp32", 2 + 4 + 2, 12, 0)],
)
def test_deepspeed_copies_gradients(precision, gradients, whole, shard, copies):
    each = TrainingSpec(
        global_batch_size=1,
        precision=precision,
        gradient_precision=gradients,
        gradient_copies=True,
    ).parameter_bytes
    assert each.weights + each.gradients == whole
    assert (each.optimizer, each.copies) == (shard, copies)
    plain = TrainingSpec(
        global_batch_size=1, precision=precision, gradient_precision=gradients
    ).parameter_bytes
    assert each.reduce == plain.reduce


@failures.over(
    ("job", "copies"),
    [
        ({"gradient_precision": "bf16"}, 4),
        ({"gradient_precision": "fp32"}, 0),
        ({"gradient_precision": "bf16", "weights_in_fp32": True}, 0),
        ({"precision": "fp32"}, 0),
    ],
)
def test_megatron_casts_16_bit_gradients_for_its_step(job, copies):
    plain = TrainingSpec(global_batch_size=1, **job)
    each = replace(plain, casts_gradients=True).parameter_bytes
    assert each == plain.parameter_bytes._replace(copies=copies)


def test_the_operator_policy_saves_every_second_product_and_attention():
    """Input, queries, values, gate, down and attention's result: torchtitan's."""
    rows, h, kv, f, heads = 3 * 128, 64, 16, 160, 8
    found = table(Degrees(micro_batch_size=3), saves_products=True)
    expected = 2 * rows * (h + h + kv + f + h + h) + 4 * rows * heads
    assert found.saved_bytes["selective"][1] == expected
    assert found.saved_bytes["none"][1] > expected > found.saved_bytes["full"][1]
    assert found.saved_bytes["selective"][-1] == found.saved_bytes["none"][-1]


def test_a_compiler_drops_the_last_product_of_the_operator_policy():
    """The residual sum reads it, and no derivative."""
    eager, compiled = (
        table(saves_products=True, repeats_elementwise=on).saved_bytes["selective"]
        for on in (False, True)
    )
    assert eager[1] - compiled[1] == 2 * 128 * 64


def test_what_is_saved_is_not_run_again():
    again, core = (
        table(saves_products=on).recompute_time["selective"][1] for on in (True, False)
    )
    assert 0.0 < again < table().forward_time[1]
    assert again != core


def test_a_loss_of_pytorch_holds_gradients_in_fp32_too():
    plain, fused = table(plain_loss=True), table()
    more = plain.working_bytes["none"] - fused.working_bytes["none"]
    # Beside the logits, which the caller holds.
    assert more[-1] == (4 + 2) * 128 * 512
    assert not more[:-1].any()


def test_a_loss_of_shared_logits_holds_one_more_of_them():
    """PyTorch's loss of tensor-parallel logits, each 2 x 128 x 512 / 2 in fp32."""
    degrees = Degrees(tp=2)
    plain, kept = (table(degrees, plain_loss=on) for on in (True, False))
    more = plain.working_bytes["none"] - kept.working_bytes["none"]
    assert more[-1] == (4 + 4 + 2) * 128 * 512 / 2
    fused = table(degrees, plain_loss=True, fuses_loss=True)
    assert fused.working_bytes["none"][-1] == kept.working_bytes["none"][-1]


def test_an_empty_gradient_stays_for_every_shape_of_a_blocks_weights():
    """Two bytes for each weight of a block's matrices, and the head's for its pass."""
    for tp in (1, 2):
        kept, none = (
            table(Degrees(tp=tp), keeps_empty_gradients=on) for on in (True, False)
        )
        more = kept.working_bytes["none"] - none.working_bytes["none"]
        h, kv, f, vocabulary = 64, 16, 160, 512
        block = 2 * (h * (h + 2 * kv) + h * h + h * 2 * f + f * h) / tp
        expected = [block] * 4 + [block + 2 * h * vocabulary / tp]
        assert more.tolist() == expected


def test_experts_of_a_layer_have_one_shape_of_empty_gradients():
    platform = Platform(
        accelerator=load_accelerator("h100-sxm"),
        software=replace(IDEAL, keeps_empty_gradients=True),
    )
    few, many = (
        build_layer_table(
            trace_model(replace(LLAMA, num_moe_experts=count, moe_router_topk=2)),
            degrees=ALONE,
            training=JOB,
            platform=platform,
        ).working_bytes["none"][0]
        for count in (4, 8)
    )
    # The router has a row more for each expert.
    assert many - few == 2 * 64 * (8 - 4)


def test_gathered_inputs_are_kept_with_sequence_parallelism_alone():
    for sp in (False, True):
        degrees = Degrees(tp=2, sequence_parallel=sp)
        kept, again = table(degrees, keeps_gathered=True), table(degrees)
        more = kept.saved_bytes["none"] - again.saved_bytes["none"]
        # Half of the inputs of queries, keys and values and of the feed-forward layer.
        assert more[1] == sp * 2 * (2 * 128 * 64 / 2)
        assert (kept.saved_bytes["full"][1:3] == again.saved_bytes["full"][1:3]).all()
