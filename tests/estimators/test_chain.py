"""The planner's table of a real model adds up to the model."""

import numpy as np
import pytest

from estimators.chain import build_layer_table
from estimators.layers.work import Degrees, model_flops_per_sequence
from estimators.models.library import load_model
from estimators.platform import Platform
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from tests import failures
from topologies.accelerators import load_accelerator

JOB = TrainingSpec(global_batch_size=8)
A100 = load_accelerator("a100-80gb")


def table(name="llama2-7b", **degrees):
    return build_layer_table(
        trace_model(load_model(name)),
        degrees=Degrees(**degrees),
        training=JOB,
        platform=Platform(accelerator=A100),
    )


def test_the_chain_runs_from_embedding_to_head():
    names = table().names
    assert names[:2] == ("embedding", "block 0")
    assert names[-2:] == ("final norm", "head")
    assert len(names) == 32 + 3


def test_parameters_and_flops_are_those_of_the_model():
    whole = table()
    assert whole.parameters.sum() == 6_738_415_616
    per_sequence = model_flops_per_sequence(trace_model(load_model("llama2-7b")))
    assert 3 * whole.forward_flops.sum() == pytest.approx(per_sequence)


def test_a_tied_head_is_counted_twice_in_the_chain_and_said_so():
    whole = table("gpt3-1.3b")
    tied = 50257 * 2048
    assert whole.tied_parameters == tied
    graph = trace_model(load_model("gpt3-1.3b"))
    assert whole.parameters.sum() - tied == graph.num_parameters


def test_tensor_parallelism_splits_time_and_memory_but_not_below_a_share():
    one, four = table(), table(tp=4, sequence_parallel=True)
    assert (four.forward_time < one.forward_time).all()
    # Kernels of a smaller shape may be a little better, as measured.
    assert (four.forward_time >= one.forward_time / 4 * 0.95).all()
    kept = one.saved_bytes["none"].sum() / 4
    assert four.saved_bytes["none"].sum() == pytest.approx(kept, rel=0.02)


def test_only_blocks_are_recomputed():
    whole = table()
    blocks = np.array([name.startswith("block") for name in whole.names])
    assert (whole.recompute_time["full"] > 0).tolist() == blocks.tolist()
    assert (whole.is_block > 0).tolist() == blocks.tolist()
    np.testing.assert_array_equal(
        whole.saved_bytes["full"][~blocks], whole.saved_bytes["none"][~blocks]
    )
    assert (whole.saved_bytes["full"][blocks] == 4096 * 4096 * 2).all()


def test_boundaries_carry_the_hidden_states_of_one_lane():
    plain, split = table(tp=2), table(tp=2, sequence_parallel=True)
    assert set(plain.boundary_bytes[1:-1]) == {4096.0 * 4096 * 2}
    assert set(split.boundary_bytes[1:-1]) == {4096.0 * 4096 * 2 / 2}
    assert plain.boundary_bytes[0] == plain.boundary_bytes[-1] == 0.0


def test_a_block_waits_for_two_all_reduces_each_way():
    (rows,) = (r for r in table(tp=2).traffic if r.operation == "all_reduce")
    block = table(tp=2).names.index("block 3")
    assert rows.forward_count[block] == rows.backward_count[block] == 2
    assert rows.forward_bytes[block] == 2 * 4096 * 4096 * 2


def test_compute_is_within_the_roofline_and_near_published_utilisation():
    """Llama 2 7B forward and backward on one A100: 45 to 75 % of the peak."""
    whole = table()
    time = whole.forward_time.sum() + whole.backward_time.sum()
    reached = 3 * whole.forward_flops.sum() / time / A100.peak_flops["bf16"]
    assert 0.45 < reached < 0.75


@failures.over("name", ["llama2-7b", "mixtral-8x7b"])
def test_weight_gradients_are_a_part_of_the_backward_pass_where_there_are_products(
    name,
):
    whole = table(name, tp=2)
    part, backward = whole.weight_gradient_time, whole.backward_time
    products = [layer not in {"embedding", "final norm"} for layer in whole.names]
    assert (part > 0).tolist() == products
    assert (part <= backward).all()
    # Of a block's backward FLOPs they are somewhat less than a half.
    blocks = whole.is_block > 0
    assert (part[blocks] > 0.3 * backward[blocks]).all()
    assert (part[blocks] < 0.5 * backward[blocks]).all()
    assert (whole.weight_gradient_bytes > 0).tolist() == products
