"""hpZ of ZeRO++: a second copy of ZeRO-3's weights over ranks next to each other."""

from dataclasses import replace

import pytest

from planner.cost.pricing import price_plan
from planner.plans.build import build_plan
from planner.plans.spec import PlanSpec
from planner.step.memory import SECOND_COPY
from tests import failures
from tests.planner.cost.test_pricing import STEP, TREE, plan, workload
from tests.planner.examples import eight_devices, executed, tiny_job
from topologies import FatTreeSpec, InputError, LevelSpec, build_network


def copied(size, *, m=3, **changes):
    """Four replicas, two in each node, ZeRO-3 over all of them."""
    whole = plan([[[0], [1], [4], [5]]], (), m=m, zero=3)
    changes["zero_hpz_partition_size"] = size
    return replace(whole, stages=(replace(whole.stages[0], **changes),))


def gather(num_bytes, *, nearby):
    """All-gather over two of a node, or ring over four: one link leads to a node."""
    if nearby:
        return 1 * 2 * 0.5 + 1 / 2 * num_bytes / 8.0
    return 3 * 2 * (0.5 + 1.0) + 3 / 4 * num_bytes / 2.0


def test_only_the_first_forward_pass_gathers_among_all():
    """Layers of 10, 20 and 10 parameters, 2 bytes each, three microbatches."""
    priced = price_plan(TREE, workload(), copied(2))
    parameters = 10, 20, 10
    whole = sum(gather(2 * one, nearby=False) for one in parameters)
    nearby = sum(gather(2 * one, nearby=True) for one in parameters)
    # Gradients, 4 bytes each, go to their shard over all four in each microbatch.
    reduced = sum(gather(4 * one, nearby=False) for one in parameters)
    stage = priced.stages[0]
    assert stage.chunk_times[0].first_forward == pytest.approx(7 + whole)
    assert stage.forward_time == pytest.approx(7 + nearby)
    assert stage.backward_time == pytest.approx(14 + nearby + reduced)
    passes = 3 * 21 + whole + 5 * nearby + 3 * reduced
    assert priced.pipeline_time == pytest.approx(passes)
    assert priced.iteration_time == pytest.approx(passes + 10 * STEP)
    assert priced.closed_form_time == pytest.approx(priced.iteration_time)
    assert priced.terms["zero gathers"] == pytest.approx(
        whole + 5 * nearby + 3 * reduced
    )
    assert priced.terms["hidden"] == pytest.approx(0.0)
    plain = price_plan(TREE, workload(), copied(1))
    assert plain.iteration_time - priced.iteration_time == pytest.approx(
        5 * (whole - nearby)
    )


def test_a_device_holds_its_shard_of_both_copies():
    plain, held = (
        price_plan(TREE, workload(), copied(size)).stages[0].memory for size in (1, 2)
    )
    assert held == {**plain, SECOND_COPY: 2 * 40 / 2}
    assert plain["weights"] == 2 * 40 / 4


def test_a_copy_over_the_whole_group_takes_the_time_of_none():
    plain, held = (price_plan(TREE, workload(), copied(size)) for size in (1, 4))
    assert held.iteration_time == pytest.approx(plain.iteration_time, rel=1e-12)
    assert held.terms == pytest.approx(plain.terms)
    more = held.stages[0].peak_memory - plain.stages[0].peak_memory
    assert more == 2 * 40 / 4


def test_what_is_hidden_is_the_smaller_gather():
    """Behind compute the copies of a fast node vanish, the first gathers do not."""
    overlaps = {"overlap_param_gather": True, "overlap_grad_reduce": True}
    job = executed(workload(), **overlaps)
    hidden, plain = (price_plan(TREE, job, copied(size)) for size in (2, 1))
    shown = price_plan(TREE, workload(), copied(2))
    assert hidden.iteration_time < plain.iteration_time
    assert hidden.iteration_time < shown.iteration_time
    assert hidden.terms["hidden"] < 0.0
    assert sum(hidden.terms.values()) == pytest.approx(hidden.iteration_time)
    assert hidden.stages[0].chunk_times[0].first_forward == pytest.approx(
        plain.stages[0].chunk_times[0].forward
    )


@failures.over("recompute", ["none", "full", "stage"])
def test_what_is_run_again_reads_the_copy(recompute):
    parameters = 10, 20, 10
    more = sum(
        gather(2 * one, nearby=False) - gather(2 * one, nearby=True)
        for one in parameters
    )
    plain, held = (
        price_plan(TREE, workload(), copied(size, recompute=recompute))
        for size in (1, 2)
    )
    assert plain.iteration_time - held.iteration_time == pytest.approx(5 * more)


@failures.over("size", [2, 4])
def test_more_bandwidth_is_never_slower(size):
    times = []
    for bandwidth in (1.0, 2.0, 4.0, 8.0):
        node = LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=0.5)
        leaf = LevelSpec(name="leaf", fan_out=2, bandwidth=bandwidth, latency=1.0)
        net = build_network(FatTreeSpec(levels=(node, leaf)))
        times.append(price_plan(net, workload(), copied(size)).iteration_time)
    assert times == sorted(times, reverse=True)
    assert len({*times}) == len(times)


SIZES = {"micro_batch_size": 1, "data_parallel_size": 8, "zero_stage": 3}
REFUSED = {
    "do not form groups of that size": {"zero_hpz_partition_size": 3},
    "no sharded weights to keep": {"zero_hpz_partition_size": 2, "zero_stage": 2},
    "weights on the host": {"zero_hpz_partition_size": 2, "offload_weights": 0.5},
    "one entry for each pipeline stage": {"zero_hpz_partition_size": (2, 2)},
    "form groups of that": {"zero_hpz_partition_size": 4, "sharding_group_size": 2},
}


@failures.over("problem", REFUSED)
def test_other_values_are_refused(problem):
    with pytest.raises(InputError, match=problem) as caught:
        build_plan(
            eight_devices(),
            tiny_job(2.0**40),
            PlanSpec(**{**SIZES, **REFUSED[problem]}),
        )
    assert caught.value.where == "zero_hpz_partition_size"


def test_experts_on_several_ranks_are_refused():
    spec = PlanSpec(**SIZES, zero_hpz_partition_size=2, expert_model_parallel_size=2)
    with pytest.raises(InputError, match="experts that are not divided"):
        build_plan(eight_devices(), tiny_job(2.0**40, family="mixtral"), spec)


def test_experts_of_every_rank_are_in_the_copy():
    net, job = eight_devices(), tiny_job(2.0**40, family="mixtral")
    plain, held = (
        price_plan(net, job, build_plan(net, job, PlanSpec(**SIZES, **more)))
        for more in ({}, {"zero_hpz_partition_size": 4})
    )
    table = job.table(held.plan.degrees)
    assert held.stages[0].memory[SECOND_COPY] == pytest.approx(
        2 * (table.parameters.sum() - table.tied_parameters) / 4
    )
    assert held.iteration_time < plain.iteration_time
