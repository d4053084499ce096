"""Prices worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from estimators.layers.work import Degrees, InLayerTraffic, LayerTable
from estimators.tracing.graph import LayerGraph
from estimators.training import ParallelismConfig, TrainingSpec
from planner.cost.pricing import price_plan
from planner.step.execution import Workload
from planner.step.plan import Plan, Stage
from tests.planner.strategies import accelerator, tiny_spec
from topologies import InputError
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec

TREE = build_network(
    FatTreeSpec(
        levels=(
            LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=0.5),
            LevelSpec(name="leaf", fan_out=2, bandwidth=2.0, latency=1.0),
        )
    )
)


def column(*values):
    return np.array(values, dtype=np.float64)


def table(tp=1, tied=0.0):
    traffic = ()
    if tp > 1:
        ones = np.ones(3)
        traffic = (
            InLayerTraffic(
                operation="all_reduce",
                group="tensor",
                forward_count=ones,
                forward_bytes=8 * ones,
                backward_count=ones,
                backward_bytes=8 * ones,
                repeated_count=0 * ones,
                repeated_bytes=0 * ones,
            ),
        )
    saved = {
        "none": column(1, 50, 7),
        "selective": column(1, 30, 7),
        "full": column(1, 5, 7),
    }
    working = column(0, 3, 6)
    parameters = column(10, 20, 10)
    return LayerTable(
        names=("embedding", "block 0", "head"),
        kinds=np.array([0, 1, 2]),
        forward_time=column(1, 4, 2),
        backward_time=column(2, 8, 4),
        weight_gradient_time=column(0, 3, 2),
        recompute_time={
            "selective": column(0, 1, 0),
            "full": column(0, 4, 0),
            "stage": column(1, 4, 2),
        },
        forward_flops=column(0, 1, 1),
        parameters=parameters,
        expert_parameters=column(0, 0, 0),
        tied_parameters=tied,
        largest_parameters=parameters,
        is_block=column(0, 1, 0),
        saved_bytes=saved,
        working_bytes={mode: working + saved["none"] - saved[mode] for mode in saved},
        weight_gradient_bytes=column(0, 40, 8),
        boundary_bytes=column(0, 24, 24, 0),
        traffic=traffic,
    )


def workload(tp=1, tied=0.0, global_batch=8):
    work = Workload(
        graph=LayerGraph(
            spec=tiny_spec(1), names=table().names, kinds=(0, 1, 2), layers=()
        ),
        training=TrainingSpec(global_batch_size=global_batch),
        accelerator=accelerator(1e6),
    )
    degrees = Degrees(tp=tp, micro_batch_size=1, sequence_parallel=tp > 1)
    work._tables[degrees] = table(tp, tied)
    return work


def plan(devices, cuts, *, m, recompute="none", zero=0):
    devices = np.array(devices)
    pp, dp, tp = devices.shape
    bounds = (0, *cuts, 3)
    return Plan(
        parallel=ParallelismConfig(
            tensor_model_parallel_size=tp,
            pipeline_model_parallel_size=pp,
            data_parallel_size=dp,
            sequence_parallel=tp > 1,
        ),
        virtual_pipeline_model_parallel_size=1,
        micro_batch_size=1,
        num_microbatches=m,
        schedule="1f1b",
        placement="by hand",
        gradient_algorithm="ring",
        tensor_algorithm="ring",
        stages=tuple(
            Stage(
                chunks=((bounds[s], bounds[s + 1] - 1),),
                devices=tuple(tuple(row) for row in devices[s].tolist()),
                recompute=recompute,
                zero_stage=zero,
                sharding_group_size=dp if zero else 1,
            )
            for s in range(pp)
        ),
    )


STEP = 30 / (1.25 * 0.8)
"""Seconds of the optimizer step per parameter: 30 bytes at 1 byte/s."""


def test_one_device_does_everything_m_times():
    priced = price_plan(TREE, workload(), plan([[[0]]], (), m=8))
    assert priced.iteration_time == 8 * 21 + 40 * STEP
    assert priced.closed_form_time == priced.iteration_time
    assert priced.terms["compute"] == 8 * 21
    assert priced.terms["bubble"] == 0


def test_two_stages_across_nodes_pay_for_the_boundary():
    """Cut before the head: 24 bytes at 2 byte/s and two hops each of 0.5 and 1 s."""
    priced = price_plan(TREE, workload(), plan([[[0]], [[4]]], (2,), m=8))
    transfer = 24 / 2.0 + 2 * (0.5 + 1.0)
    loads = 15 + transfer, 6 + transfer
    assert [stage.transfer_time for stage in priced.stages] == [transfer, transfer]
    assert priced.closed_form_time == sum(loads) + 7 * max(loads) + 30 * STEP
    assert priced.iteration_time < priced.closed_form_time
    assert sum(priced.terms.values()) == priced.iteration_time


def test_two_replicas_reduce_their_gradients():
    """fp32 gradients of 40 parameters round a ring of two: 160 bytes at 8 byte/s."""
    priced = price_plan(TREE, workload(), plan([[[0], [1]]], (), m=4))
    reduce = 2 * 1.0 + 2 * 0.5 * 160 / 8.0
    assert priced.stages[0].reduce_time == reduce
    assert priced.iteration_time == 4 * 21 + reduce + 40 * STEP


def test_zero_1_scatters_gathers_and_shares_the_step():
    priced = price_plan(TREE, workload(), plan([[[0], [1]]], (), m=4, zero=1))
    stage = priced.stages[0]
    assert stage.reduce_time == 1.0 + 0.5 * 160 / 8.0
    assert stage.gather_time == 1.0 + 0.5 * 80 / 8.0
    assert stage.optimizer_time == 20 * STEP
    assert stage.memory["optimizer"] == 40 * 12 / 2
    assert stage.memory["weights"] == 40 * 2


def test_zero_3_gathers_weights_in_every_pass():
    priced = price_plan(TREE, workload(), plan([[[0], [1]]], (), m=4, zero=3))
    stage = priced.stages[0]
    gather = 3 * 1.0 + 0.5 * 80 / 8.0
    scatter = 3 * 1.0 + 0.5 * 160 / 8.0
    assert stage.parts["zero gathers"] == 2 * gather + scatter
    assert stage.forward_time == 7 + gather
    assert stage.step_end_time == 20 * STEP


def test_tensor_collectives_are_priced_at_their_level():
    inside = price_plan(TREE, workload(tp=2), plan([[[0, 1]]], (), m=1))
    across = price_plan(TREE, workload(tp=2), plan([[[3, 4]]], (), m=1))
    near = 2 * 1.0 + 2 * 0.5 * 8 / 8.0
    far = 2 * 3.0 + 2 * 0.5 * 8 / 2.0
    assert inside.stages[0].parts["tensor collectives"] == 6 * near
    assert across.stages[0].parts["tensor collectives"] == 6 * far


def test_full_recompute_repeats_blocks_and_their_collectives():
    priced = price_plan(
        TREE, workload(tp=2), plan([[[0, 1]]], (), m=1, recompute="full")
    )
    one = 2 * 1.0 + 2 * 0.5 * 8 / 8.0
    assert priced.stages[0].parts["recompute"] == 4 + one


def test_memory_counts_microbatches_in_flight():
    priced = price_plan(TREE, workload(), plan([[[0]], [[4]]], (2,), m=8))
    first, last = (stage.memory for stage in priced.stages)
    assert first["activations"] == 2 * 51
    assert last["activations"] == 7
    assert first["working"] == 3
    full = price_plan(
        TREE, workload(), plan([[[0]], [[4]]], (2,), m=8, recompute="full")
    )
    assert full.stages[0].memory["activations"] == 2 * 6
    # Of the block's 50 bytes its input, 5, is kept anyway.
    assert full.stages[0].memory["working"] == 3 + 50 - 5


def test_a_tied_embedding_is_stored_once_or_synchronised():
    whole = price_plan(TREE, workload(tied=10.0), plan([[[0]]], (), m=8))
    assert whole.stages[0].memory["weights"] == 30 * 2
    assert whole.stages[0].tied_time == 0
    split = price_plan(TREE, workload(tied=10.0), plan([[[0]], [[1]]], (2,), m=8))
    shared = 2 * 1.0 + 2 * 0.5 * 40 / 8.0
    assert [stage.tied_time for stage in split.stages] == [shared, shared]
    assert split.stages[1].memory["weights"] == 10 * 2


def test_the_slowest_replica_sets_the_price():
    aligned = plan([[[0], [2]], [[1], [3]]], (2,), m=4)
    astray = plan([[[0], [3]], [[1], [4]]], (2,), m=4)
    near = price_plan(TREE, workload(), aligned).stages[0].transfer_time
    far = price_plan(TREE, workload(), astray).stages[0].transfer_time
    assert near == 24 / 8.0 + 1.0
    assert far == 24 / 2.0 + 3.0


def test_stages_that_leave_a_gap_are_refused():
    good = plan([[[0]], [[4]]], (2,), m=8)
    first = replace(good.stages[0], chunks=((0, 0),))
    with pytest.raises(InputError, match="do not cover"):
        price_plan(TREE, workload(), replace(good, stages=(first, good.stages[1])))


def test_selective_recompute_repeats_the_attention_core():
    priced = price_plan(TREE, workload(), plan([[[0]]], (), m=2, recompute="selective"))
    assert priced.stages[0].parts["recompute"] == 1
    assert priced.stages[0].memory["activations"] == 1 + 30 + 7
    # The head is done with while blocks repeat their attention.
    assert priced.stages[0].memory["working"] == 3 + 50 - 30 - 7


def test_stage_recompute_keeps_the_input_and_repeats_everything():
    priced = price_plan(
        TREE, workload(), plan([[[0]], [[4]]], (1,), m=8, recompute="stage")
    )
    first, last = priced.stages
    assert (first.parts["recompute"], last.parts["recompute"]) == (1, 4 + 2)
    assert first.memory["activations"] == 0
    assert last.memory["activations"] == 24
    assert last.memory["working"] == 50 + 7 + 6


def test_hybrid_sharding_scatters_inside_and_reduces_across():
    """Four replicas, two in each node, shards of ZeRO-1 over the node's two."""
    whole = plan([[[0], [1], [4], [5]]], (), m=2, zero=1)
    stage = replace(whole.stages[0], sharding_group_size=2)
    priced = price_plan(TREE, workload(), replace(whole, stages=(stage,)))
    inside = 1.0 + 0.5 * 160 / 8.0
    # Both ranks of a node reduce their halves over the node's one link.
    across = 2 * 3.0 + 2 * 0.5 * 80 * 2 / 2.0
    assert priced.stages[0].reduce_time == inside + across
    assert priced.stages[0].gather_time == 1.0 + 0.5 * 80 / 8.0
    assert priced.stages[0].memory["optimizer"] == 40 * 12 / 2


def test_a_sharding_group_may_be_any_part_of_the_replicas():
    """Four replicas of one node, shards over two: no block of the network has two."""
    whole = plan([[[0], [1], [2], [3]]], (), m=2, zero=1)
    stage = replace(whole.stages[0], sharding_group_size=2)
    priced = price_plan(TREE, workload(), replace(whole, stages=(stage,)))
    inside = 1.0 + 0.5 * 160 / 8.0
    across = 2 * 1.0 + 2 * 0.5 * 80 / 8.0
    assert priced.stages[0].reduce_time == inside + across
    assert priced.stages[0].memory["optimizer"] == 40 * 12 / 2


def test_a_sharding_group_that_does_not_divide_the_replicas_is_refused():
    whole = plan([[[0], [1], [4], [5]]], (), m=2, zero=1)
    stage = replace(whole.stages[0], sharding_group_size=3)
    with pytest.raises(InputError, match="do not form such groups") as caught:
        price_plan(TREE, workload(), replace(whole, stages=(stage,)))
    assert caught.value.expected == "one of [4, 2]"
