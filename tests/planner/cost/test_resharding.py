"""FSDP2's reshard_after_forward = n: backward passes gather among neighbours."""

import pytest

from planner.cost.pricing import price_plan
from planner.frameworks.framework import FRAMEWORKS
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.search.launchable import broken_rules
from planner.search.launchable_sizes import LaunchFacts
from planner.step.memory import SECOND_COPY
from planner.step.plan import Plan
from tests import failures
from tests.planner.cost.test_pricing import STEP, TREE, workload
from tests.planner.cost.test_second_copies import copied, gather
from tests.planner.examples import eight_devices, tiny_job
from topologies import InputError

PARAMETERS = 10, 20, 10
"""Parameters of the layers, 2 bytes each."""


def resharded(size, **changes):
    """Four replicas, two in each node, ZeRO-3 over all of them."""
    return copied(1, reshard_after_forward=size, **changes)


@failures.over("recompute", ["none", "full", "stage"])
def test_backward_passes_alone_gather_among_neighbours(recompute):
    plain, found = (
        price_plan(TREE, workload(), resharded(size, recompute=recompute))
        for size in (None, 2)
    )
    whole = sum(gather(2 * one, nearby=False) for one in PARAMETERS)
    nearby = sum(gather(2 * one, nearby=True) for one in PARAMETERS)
    stage, usual = found.stages[0], plain.stages[0]
    assert stage.forward_time == pytest.approx(7 + whole) == usual.forward_time
    assert usual.backward_time - stage.backward_time == pytest.approx(whole - nearby)
    # Three microbatches: a step of three backward passes.
    saved = plain.iteration_time - found.iteration_time
    assert saved == pytest.approx(3 * (whole - nearby))


def test_a_step_is_what_its_passes_gather_and_reduce():
    priced = price_plan(TREE, workload(), resharded(2))
    whole = sum(gather(2 * one, nearby=False) for one in PARAMETERS)
    nearby = sum(gather(2 * one, nearby=True) for one in PARAMETERS)
    reduced = sum(gather(4 * one, nearby=False) for one in PARAMETERS)
    passes = 3 * (21 + whole + nearby + reduced)
    assert priced.iteration_time == pytest.approx(passes + 10 * STEP)


def test_a_device_keeps_its_part_of_what_was_gathered():
    plain, held = (
        price_plan(TREE, workload(), resharded(size)).stages[0].memory
        for size in (None, 2)
    )
    assert held == {**plain, SECOND_COPY: 2 * 40 / 2}


SIZES = {"micro_batch_size": 1, "data_parallel_size": 8, "zero_stage": 3}
REFUSED = {
    "do not form groups of that size": {"reshard_after_forward": 3},
    "no sharded weights to shard again": {"reshard_after_forward": 2, "zero_stage": 2},
    "weights on the host": {"reshard_after_forward": 2, "offload_weights": 0.5},
    "one entry for each pipeline stage": {"reshard_after_forward": (2, 2)},
    "form groups of that": {"reshard_after_forward": 4, "sharding_group_size": 2},
    "a second copy": {"reshard_after_forward": 2, "zero_hpz_partition_size": 2},
}


@failures.over("problem", REFUSED)
def test_what_fsdp2_has_no_groups_for_is_refused(problem):
    network, job = eight_devices(), tiny_job(2.0**40)
    with pytest.raises(InputError, match=problem) as caught:
        build_plan(network, job, PlanSpec(**SIZES | REFUSED[problem]))
    assert caught.value.where == "reshard_after_forward"
    assert caught.value.expected


def test_over_all_ranks_is_what_happens_anyway():
    network, job = eight_devices(), tiny_job(2.0**40)
    plain, again = (
        build_plan(network, job, PlanSpec(**SIZES, reshard_after_forward=size))
        for size in (None, 8)
    )
    assert plain == again


def test_a_plan_comes_back_from_its_json():
    network, job = eight_devices(), tiny_job(2.0**40)
    plan = build_plan(network, job, PlanSpec(**SIZES, reshard_after_forward=4))
    assert plan.stages[0].reshard_after_forward == 4
    assert Plan.from_json(plan.to_json()) == plan


@failures.over("name", FRAMEWORKS)
def test_only_fsdp_shards_weights_again_in_groups(name):
    network, job = eight_devices(), tiny_job(2.0**40)
    facts = LaunchFacts.of(job, network)
    plan = build_plan(network, job, PlanSpec(**SIZES, reshard_after_forward=4))
    found = [
        one
        for one in broken_rules(plan, FRAMEWORKS[name].rules, facts)
        if one.rule == "sharding_group" and "again" in one.found
    ]
    assert (found == []) == (name in {"fsdp", "ideal"})
    # Of parameters that tensor-parallel ranks split, PyTorch 2.13 refuses it.
    if name == "fsdp":
        sizes = {"tensor_model_parallel_size": 2, "data_parallel_size": 4}
        plan = build_plan(
            network, job, PlanSpec(**SIZES | sizes, reshard_after_forward=2)
        )
        broken = {one.rule for one in broken_rules(plan, FRAMEWORKS[name].rules, facts)}
        assert "sharding_group" in broken
