"""Megatron's recipe: each rule by an example, each way to find nothing."""

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings

from planner.rivals.manual import manual_plans, propose
from planner.rivals.protocol import fits
from planner.search.space import SearchSpec, configuration_of
from planner.work import PLAN, Work
from tests import failures
from tests.planner.instances import instances, interleaved
from tests.planner.rivals.examples import small_job, tree

SPACE = SearchSpec()


def with_memory(num_bytes: float, spec=SPACE) -> SearchSpec:
    """Return a space whose plans may use so much of each device."""
    _, workload = small_job()
    return replace(spec, memory_reserve=workload.accelerator.memory_bytes - num_bytes)


def plan_of(spec=SPACE, num_layers=4):
    return propose(*small_job(num_layers), spec).plans[0].plan


def part(plan) -> int:
    """Return the model-parallel size."""
    sizes = plan.parallel.sizes()
    return sizes.tp * sizes.cp * sizes.pp


def blocks_of(plan, workload) -> list[list[int]]:
    """Return how many blocks each chunk of each stage holds."""
    blocks = np.array([name.startswith("block") for name in workload.graph.names])
    return [
        [int(blocks[first : last + 1].sum()) for first, last in stage.chunks]
        for stage in plan.stages
    ]


def test_what_fits_on_one_device_is_not_split():
    plan = plan_of()
    sizes = plan.parallel.sizes()
    assert (sizes.tp, sizes.cp, sizes.pp, sizes.dp) == (1, 1, 1, 8)
    assert [stage.zero_stage for stage in plan.stages] == [1]
    assert [stage.recompute for stage in plan.stages] == ["none"]


@failures.over(
    ("memory", "tp", "pp", "recompute"),
    [
        (5e5, 1, 1, "none"),
        # A deeper pipeline rather than recomputing everything on one device, which
        # fits, too.
        (3.6e5, 1, 2, "none"),
        (2.84e5, 2, 1, "selective"),
        (2.5e5, 1, 2, "full"),
        (2e5, 2, 2, "full"),
    ],
)
def test_less_memory_means_more_stages_then_a_little_then_full_recompute(
    memory, tp, pp, recompute
):
    plan = plan_of(with_memory(memory))
    sizes = plan.parallel.sizes()
    assert (sizes.tp, sizes.pp) == (tp, pp)
    assert {stage.recompute for stage in plan.stages} == {recompute}


@failures.over("memory", [5e5, 4e5, 3e5, 2.5e5, 2e5])
def test_heavier_recompute_is_for_a_smaller_model_parallel_size_only(memory):
    plans = manual_plans(*small_job(), with_memory(memory))
    modes = [plan.stages[0].recompute for plan in plans]
    parts = {mode: set() for mode in ("none", "selective", "full") if mode in modes}
    for plan, mode in zip(plans, modes, strict=True):
        parts[mode].add(part(plan))
    least = [min(found) for found in parts.values()]
    assert least == sorted(set(least), reverse=True)
    # The lightest is tried with twice the size, too, the others are not.
    lightest, *others = parts.values()
    assert lightest <= {least[0], 2 * least[0]}
    assert all(len(found) == 1 for found in others)


def test_the_first_plan_is_the_cheapest_of_those_that_the_rules_leave():
    found = propose(*small_job(), with_memory(4e5))
    times = [priced.iteration_time for priced in found.plans]
    assert len(times) > 1
    assert times == sorted(times)


def test_stages_hold_equal_numbers_of_blocks_and_the_ends_what_is_left():
    spec = replace(
        SPACE,
        pipeline_model_parallel_sizes=(4,),
        virtual_pipeline_model_parallel_sizes=(1,),
    )
    plan, (_, workload) = plan_of(spec, num_layers=8), small_job(8)
    assert blocks_of(plan, workload) == [[2], [2], [2], [2]]


@failures.over(
    ("num_layers", "stages", "chunks", "blocks"),
    [
        (6, 4, 1, [[1], [2], [2], [1]]),
        (5, 3, 1, [[2], [2], [1]]),
        # As 126 blocks over 16 stages of 8 chunks.
        (6, 4, 2, [[0, 1], [1, 1], [1, 1], [1, 0]]),
        (6, 2, 2, [[1, 2], [2, 1]]),
    ],
)
def test_embedding_and_loss_count_as_blocks_where_blocks_do_not_split(
    num_layers, stages, chunks, blocks
):
    spec = replace(
        SPACE,
        pipeline_model_parallel_sizes=(stages,),
        virtual_pipeline_model_parallel_sizes=(chunks,),
    )
    plan, (_, workload) = plan_of(spec, num_layers), small_job(num_layers)
    assert blocks_of(plan, workload) == blocks


@failures.over(
    ("stages", "replicas", "chunks"),
    [
        (4, 2, {1, 2}),  # as many as there can be: 3 / (8 x 2) is above 5 %
        (2, 2, {1, 4}),  # 1 / (8 x 2) is, 1 / (8 x 4) is not
        (2, 1, {1, 2}),
    ],
)
def test_pipelines_with_bubbles_are_interleaved_and_tried_without(
    stages, replicas, chunks
):
    spec = replace(
        SPACE,
        pipeline_model_parallel_sizes=(stages,),
        data_parallel_sizes=(replicas,),
        micro_batch_sizes=(1,),
        tensor_model_parallel_sizes=(1,),
    )
    plans = manual_plans(*small_job(8), spec)
    assert {p.virtual_pipeline_model_parallel_size for p in plans} == chunks


def test_micro_batches_are_larger_where_the_pipeline_stays_full():
    spec = replace(
        SPACE,
        pipeline_model_parallel_sizes=(2,),
        virtual_pipeline_model_parallel_sizes=(1,),
    )
    plans = manual_plans(*small_job(), replace(spec, data_parallel_sizes=(1,)))
    assert {plan.micro_batch_size for plan in plans} == {1, 2}
    plans = manual_plans(*small_job(), replace(spec, data_parallel_sizes=(4,)))
    assert {plan.micro_batch_size for plan in plans} == {1}


def test_one_replica_needs_no_distributed_optimizer():
    spec = replace(SPACE, data_parallel_sizes=(1,))
    assert {stage.zero_stage for stage in plan_of(spec).stages} == {0}


def test_replicas_get_full_microbatches():
    spec = replace(SPACE, data_parallel_sizes=(3, 4, 5, 6, 7))
    assert plan_of(spec).parallel.data_parallel_size == 4


def test_no_device_idles_if_sizes_allow_it():
    spec = replace(
        SPACE, pipeline_model_parallel_sizes=(1, 3, 4), data_parallel_sizes=(1, 2)
    )
    for plan in manual_plans(*small_job(), spec):
        assert plan.parallel.num_devices == 8


def test_tensor_parallelism_stays_inside_a_node():
    spec = replace(SPACE, tensor_model_parallel_sizes=(2, 4, 8))
    for replicas, widths in ((None, {2, 4}), ((1,), {4})):
        plans = manual_plans(
            *small_job(),
            replace(
                spec,
                data_parallel_sizes=replicas,
                pipeline_model_parallel_sizes=(1,),
            ),
        )
        found = {plan.parallel.tensor_model_parallel_size for plan in plans}
        assert found == widths


def test_bandwidth_does_not_change_which_plans_the_rules_leave():
    _, workload = small_job()
    slow, fast = (
        sorted(
            (configuration_of(plan), plan.stages[0].recompute)
            for plan in manual_plans(tree(bandwidth), workload, with_memory(4e5))
        )
        for bandwidth in (1e6, 1e12)
    )
    assert slow == fast


def test_a_limit_ends_the_recipe_once_it_has_a_plan():
    network, workload = small_job()
    work = Work(limit=PLAN)
    found = propose(network, workload, with_memory(4e5), work)
    whole = propose(network, workload, with_memory(4e5))
    assert 0 < len(found.plans) < len(whole.plans)
    assert work.total().is_stopped


@given(instances(most_devices=16, blocks=range(1, 7)))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_plans_keep_megatrons_rules(instance):
    check_rules(*instance)


@given(interleaved(most_devices=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_interleaved_plans_keep_megatrons_rules(instance):
    check_rules(*instance)


def check_rules(network, workload, spec) -> None:
    for plan in manual_plans(network, workload, spec):
        sizes, v = plan.parallel.sizes(), plan.virtual_pipeline_model_parallel_size
        m, b = plan.num_microbatches, plan.micro_batch_size
        assert m * b * sizes.dp == workload.training.global_batch_size
        assert sizes.dp % sizes.ep == 0
        assert v == 1 or (sizes.pp > 1 and m % sizes.pp == 0)
        assert plan.parallel.sequence_parallel == (
            sizes.tp > 1 and spec.sequence_parallel is not False
        )
        assert fits(workload, spec, plan, None)
        for field in ("recompute", "zero_stage", "sharding_group_size"):
            assert len({getattr(stage, field) for stage in plan.stages}) == 1
        chunks = blocks_of(plan, workload)
        order = [chunks[stage][turn] for turn in range(v) for stage in range(sizes.pp)]
        assert len(set(order[1:-1])) <= 1
        assert all(max(order) - end in {0, 1} for end in (order[0], order[-1]))


@failures.over(
    ("spec", "constraint"),
    [
        (with_memory(1e4), "Memory: the last of"),
        (replace(SPACE, pipeline_model_parallel_sizes=(5,)), "Divisibility: none of"),
        (replace(SPACE, data_parallel_sizes=(5,)), "Divisibility: no number of"),
        (
            replace(SPACE, virtual_pipeline_model_parallel_sizes=(5,)),
            "Divisibility: none of",
        ),
        (replace(SPACE, pipeline_model_parallel_sizes=(100,)), "Devices"),
    ],
)
def test_what_stopped_it_is_named(spec, constraint):
    found = propose(*small_job(), spec)
    assert not found.plans
    assert found.why_not.startswith(constraint)
