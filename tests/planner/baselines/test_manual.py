"""Megatron's heuristics: each rule by an example, each way to find nothing."""

from dataclasses import replace

import numpy as np
import pytest

from planner.baselines.manual import propose
from planner.search_spec import SearchSpec
from tests.planner.baselines.examples import small_job, tree

SPACE = SearchSpec()


def with_memory(num_bytes: float) -> SearchSpec:
    """Return a space whose plans may use so much of each device."""
    _, workload = small_job()
    return replace(SPACE, memory_reserve=workload.accelerator.memory_bytes - num_bytes)


def plan_of(spec=SPACE, num_layers=4):
    return propose(*small_job(num_layers), spec).plan


def test_what_fits_on_one_device_is_not_split():
    plan = plan_of()
    sizes = plan.parallel.sizes()
    assert (sizes.tp, sizes.cp, sizes.pp, sizes.dp) == (1, 1, 1, 8)
    assert [stage.zero_stage for stage in plan.stages] == [1]
    assert [stage.recompute for stage in plan.stages] == ["none"]
    assert plan.micro_batch_size == 1


@pytest.mark.parametrize(
    ("memory", "tp", "pp", "recompute"),
    [
        (5e5, 1, 1, "none"),
        (4e5, 1, 1, "full"),
        (3e5, 1, 2, "full"),
        (2e5, 2, 2, "full"),
    ],
)
def test_less_memory_means_recompute_then_stages_then_tensor_parallelism(
    memory, tp, pp, recompute
):
    plan = plan_of(with_memory(memory))
    sizes = plan.parallel.sizes()
    assert (sizes.tp, sizes.pp) == (tp, pp)
    assert {stage.recompute for stage in plan.stages} == {recompute}


def test_stages_hold_equal_numbers_of_blocks_and_the_ends_what_is_left():
    plan = plan_of(replace(SPACE, pipeline_model_parallel_sizes=(4,)), num_layers=8)
    _, workload = small_job(8)
    blocks = np.array([name.startswith("block") for name in workload.graph.names])
    held = [
        blocks[first : last + 1].sum()
        for ((first, last),) in (stage.chunks for stage in plan.stages)
    ]
    assert held == [2, 2, 2, 2]


def test_one_replica_needs_no_distributed_optimizer():
    spec = replace(SPACE, data_parallel_sizes=(1,))
    assert [stage.zero_stage for stage in plan_of(spec).stages] == [0]


def test_replicas_get_full_microbatches():
    spec = replace(SPACE, data_parallel_sizes=(3, 4, 5, 6, 7))
    assert plan_of(spec).parallel.data_parallel_size == 4


def test_tensor_parallelism_stays_inside_a_node():
    spec = replace(SPACE, tensor_model_parallel_sizes=(2, 4, 8))
    assert plan_of(spec).parallel.tensor_model_parallel_size == 2


def test_bandwidth_changes_nothing():
    _, workload = small_job()
    plans = [
        propose(tree(bandwidth), workload, SPACE).plan for bandwidth in (1e8, 1e12)
    ]
    assert plans[0].parallel == plans[1].parallel
    assert plans[0].placement == plans[1].placement
    assert plans[0].stages == plans[1].stages


@pytest.mark.parametrize(
    ("spec", "constraint"),
    [
        (with_memory(1e4), "Memory: the last of"),
        (replace(SPACE, pipeline_model_parallel_sizes=(3,)), "Divisibility: none of"),
        (replace(SPACE, data_parallel_sizes=(5,)), "Divisibility: no number of"),
        (replace(SPACE, virtual_pipeline_model_parallel_sizes=(2,)), "Schedule"),
        (replace(SPACE, pipeline_model_parallel_sizes=(100,)), "Devices"),
    ],
)
def test_what_stopped_it_is_named(spec, constraint):
    found = propose(*small_job(), spec)
    assert found.plan is None
    assert found.why_not.startswith(constraint)
