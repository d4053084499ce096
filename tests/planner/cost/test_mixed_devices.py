"""Prices of plans whose devices differ, against each replica by itself."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.cost.pricing import device_grid, price_plan, rates_of
from planner.cost.stage import stage_price
from planner.search.best_first import search
from planner.search.space import SearchSpec
from planner.step.fleet import DeviceKind, Fleet
from tests.planner.cost.test_timeline import reference
from tests.planner.examples import eight_devices, executed, tiny_job
from tests.planner.fleets import (
    all_alike,
    executed_on,
    kinds_along,
    on_random_fleet,
    slow_fleet,
)
from tests.planner.instances import instances, interleaved

relaxed = settings(max_examples=25)

PROBLEMS = st.one_of(
    instances(most_devices=8, blocks=(2, 3, 4, 6)), interleaved(most_devices=8)
)
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def cases(draw):
    """A network, a job on healthy devices, the same on a fleet, and a plan."""
    network, job, spec = draw(PROBLEMS)
    found = search(network, job, replace(spec, keep_best=3)).plans
    assume(found)
    plan = draw(st.sampled_from(found)).plan
    rng = np.random.default_rng(draw(SEEDS))
    return network, job, on_random_fleet(job, network.num_devices, rng), plan


def stages_of(network, job, plan):
    """Return the price of each stage of each replica, one by one."""
    grid = device_grid(plan)
    pp, dp, ep, cp, tp = grid.shape
    devices = grid.reshape(pp, dp * ep, cp * tp)
    rates = rates_of(network, job, plan)
    prices = [
        [
            stage_price(job, rates, plan, stage, kinds)
            for stage, kinds in enumerate(kinds_along(job, devices[:, replica]))
        ]
        for replica in range(dp * ep)
    ]
    return rates, prices


@given(cases())
@relaxed
def test_each_replica_has_the_timeline_of_its_own_devices(case):
    network, _, job, plan = case
    rates, prices = stages_of(network, job, plan)
    p, v = len(plan.stages), plan.virtual_pipeline_model_parallel_size
    size = prices[0][0].cost.boundary_bytes
    sides = [
        np.tile(side, (v, 1, 1))[:-1] for side in (rates.activation, rates.gradient)
    ]
    ends = []
    for replica, stages in enumerate(prices):
        order = [stages[s].cost.chunk_times[c] for c in range(v) for s in range(p)]
        wires = [side[:, replica, 1] * size for side in sides]
        latencies = [side[:, replica, 0] for side in sides]
        times = np.array(order).T[:3]
        ends.append(
            reference(
                plan.schedule, p, plan.num_microbatches, times, *wires, *latencies
            )[2]
        )
    passes = np.array(ends).max(axis=0)
    priced = price_plan(network, job, plan)
    assert priced.pipeline_time == pytest.approx(passes.max(), rel=1e-12)
    # Nothing is hidden: the stages' ends follow their last passes.
    first = prices[0]
    joined = passes + [one.reduce_time for one in first]
    tied = first[0].cost.tied_time
    if tied:
        joined[[0, -1]] = max(joined[0], joined[-1]) + tied
    end = max(
        (joined[s] if joined[s] > passes[s] else ends[replica][s])
        + one.cost.optimizer_time
        + one.gather_time
        for replica, stages in enumerate(prices)
        for s, one in enumerate(stages)
    )
    assert priced.iteration_time == pytest.approx(end, rel=1e-12)


@given(cases())
@relaxed
def test_the_closed_form_charges_a_stage_its_slowest_replica(case):
    network, _, job, plan = case
    priced = price_plan(network, job, plan)
    _, prices = stages_of(network, job, plan)
    for stage, cost in enumerate(priced.stages):
        own = [stages[stage].cost for stages in prices]
        assert cost.work_time == max(one.work_time for one in own)
        found = {one.charged_time for one in priced.costs_of(stage)}
        assert found == {one.charged_time for one in own}
    # Charged as the slowest replica of each stage, on an even cluster.
    kinds = [
        max(range(len(prices)), key=lambda r, s=s: prices[r][s].cost.charged_time)
        for s in range(len(plan.stages))
    ]
    loads = [prices[r][s].cost.charged_time for s, r in enumerate(kinds)]
    v, m = plan.virtual_pipeline_model_parallel_size, plan.num_microbatches
    least = sum(loads) / v + (m - 1 / v) * max(loads)
    assert priced.closed_form_time >= least * (1.0 - 1e-12)


@given(cases())
@relaxed
def test_a_fleet_of_one_healthy_kind_is_no_fleet_to_the_last_bit(case):
    network, job, _, plan = case
    whole = executed_on(job, slow_fleet(job, np.ones(network.num_devices)))
    assert price_plan(network, whole, plan) == price_plan(network, job, plan)


@given(cases(), st.sampled_from([1.5, 2.0, 4.0]))
@relaxed
def test_a_fleet_that_is_slow_everywhere_computes_so_much_slower(case, factor):
    """With powers of two, and without transfers, all times of a plan are."""
    network, job, _, plan = case
    slow = executed_on(job, slow_fleet(job, np.full(network.num_devices, factor)))
    before, after = (price_plan(network, one, plan) for one in (job, slow))
    assert after.by_kind == ()
    for was, now in zip(before.stages, after.stages, strict=True):
        for name, time in was.parts.items():
            grows = factor if name in {"compute", "recompute"} else 1.0
            sends = name == "recompute" and now.parts[name] < factor * time
            if not sends:
                assert now.parts[name] == pytest.approx(grows * time, rel=1e-12)
        assert now.memory == was.memory
        assert now.reduce_time == was.reduce_time


@given(cases(), SEEDS)
@relaxed
def test_slow_devices_cost_between_nothing_and_as_if_all_were_slow(case, seed):
    network, job, _, plan = case
    rng = np.random.default_rng(seed)
    fleet = slow_fleet(job, rng.choice([1.0, 1.5, 2.5], size=network.num_devices))
    some = executed_on(job, fleet)
    mixed = price_plan(network, some, plan)
    alike = [
        price_plan(network, all_alike(some, kind), plan)
        for kind in range(len(fleet.kinds))
    ]
    for name in ("iteration_time", "closed_form_time", "pipeline_time"):
        times = [getattr(one, name) for one in alike]
        assert min(times) * (1 - 1e-12) <= getattr(mixed, name)
        assert getattr(mixed, name) <= max(times) * (1 + 1e-12)


@given(cases(), SEEDS)
@relaxed
def test_a_device_that_gets_slower_never_makes_a_step_faster(case, seed):
    network, job, _, plan = case
    rng = np.random.default_rng(seed)
    factors = rng.choice([1.0, 1.5, 2.0], size=network.num_devices)
    more = factors.copy()
    more[rng.integers(network.num_devices)] *= 1.5
    times = [
        price_plan(network, executed_on(job, slow_fleet(job, one)), plan)
        for one in (np.ones(network.num_devices), factors, more)
    ]
    for before, after in pairwise(times):
        assert after.iteration_time >= before.iteration_time * (1 - 1e-12)
        assert after.closed_form_time >= before.closed_form_time * (1 - 1e-12)


def test_a_slow_device_of_one_replica_is_worked_out_by_hand():
    """Two replicas of one stage: all wait for the slow one, then reduce."""
    job = executed(tiny_job(80e9))
    network = eight_devices()
    plan = search_of_data_parallel(network, job).plan
    factors = np.ones(8)
    factors[5] = 3.0
    slow = price_plan(network, executed_on(job, slow_fleet(job, factors)), plan)
    even = price_plan(network, job, plan)
    cost, late = even.stages[0], slow.stages[0]
    m = plan.num_microbatches
    assert slow.pipeline_time == pytest.approx(3.0 * even.pipeline_time, rel=1e-12)
    assert even.pipeline_time == pytest.approx(m * cost.work_time, rel=1e-12)
    assert late.reduce_time == cost.reduce_time > 0.0
    assert slow.iteration_time == pytest.approx(
        3.0 * even.pipeline_time
        + cost.reduce_time
        + late.optimizer_time
        + cost.gather_time,
        rel=1e-12,
    )
    assert late.optimizer_time == pytest.approx(3.0 * cost.optimizer_time, rel=1e-9)
    assert [len(costs) for costs in slow.by_kind] == [2]


def search_of_data_parallel(network, job):
    spec = SearchSpec(
        tensor_model_parallel_sizes=(1,),
        pipeline_model_parallel_sizes=(1,),
        zero_stages=(0,),
        micro_batch_sizes=(1,),
    )
    return search(network, job, spec).plans[0]


def test_accelerators_with_other_rates_set_the_pace_of_their_own_stages():
    job = tiny_job(80e9)
    plan = search_of_data_parallel(eight_devices(), job).plan
    half = replace(job.accelerator, name="half", measured_as=job.accelerator.name)
    half = replace(
        half,
        peak_flops={name: rate / 2 for name, rate in half.peak_flops.items()},
        memory_bandwidth=half.memory_bandwidth / 2,
    )
    of_device = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    fleet = Fleet((DeviceKind(job.accelerator), DeviceKind(half)), of_device)
    mixed = price_plan(eight_devices(), executed_on(job, fleet), plan)
    alone = price_plan(eight_devices(), replace(job, accelerator=half), plan)
    assert mixed.iteration_time == alone.iteration_time
    assert mixed.stages == alone.stages
