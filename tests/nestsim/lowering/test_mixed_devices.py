"""Replays of plans whose devices differ, against plans and against even clusters."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.verdict import contention_by_level
from nestsim.lowering.lower import lower_plan
from nestsim.simulator.build import build_model
from nestsim.simulator.replay import fold_model, replay
from nestsim.simulator.system import ReplaySettings
from planner.cost.pricing import price_plan
from planner.step.fleet import DeviceKind, Fleet
from tests import failures
from tests.nestsim.lowering.test_lower import real
from tests.nestsim.lowering.test_planned_times import (
    PLAIN,
    PROBLEMS,
    cases,
    priced_in_buckets,
    relaxed,
    rounding,
)
from tests.nestsim.simulator.test_folding import assert_same_run
from tests.planner.fleets import all_alike, executed_on, on_random_fleet, slow_fleet

BY_LAYER = ReplaySettings(granularity="layer")
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def mixed_cases(draw):
    """A case where nothing meets, on two accelerators with slow devices of either."""
    network, job, plan = draw(cases(PROBLEMS, alone=True))
    rng = np.random.default_rng(draw(SEEDS))
    return network, on_random_fleet(job, network.num_devices, rng), plan


@given(mixed_cases(), st.floats(1.0, 30.0))
@relaxed
def test_planned_is_the_replay_where_no_transfers_meet(case, size):
    priced, work = priced_in_buckets(case, size)
    found = contention_by_level(case[0], work, PLAIN, 0.0).alone
    close = pytest.approx(priced.iteration_time, rel=1e-9, abs=rounding(priced))
    assert found.whole == close
    close = pytest.approx(priced.pipeline_time, rel=1e-9, abs=rounding(priced))
    assert found.pipeline == close


@given(mixed_cases(), st.sampled_from([PLAIN, BY_LAYER]))
@relaxed
def test_folding_tells_actors_of_other_kinds_apart(case, settings):
    network, job, plan = case
    work = lower_plan(network, job, price_plan(network, job, plan), settings)
    model = build_model(network, work)
    assert_same_run(fold_model(model), model.system)


def slowed_times(name, fleets, settings):
    """Return the replayed times of a plan on some fleets."""
    net, job, priced = real(name)
    for factors in fleets:
        slow = executed_on(job, slow_fleet(job, factors))
        on_fleet = price_plan(net, slow, priced.plan)
        yield replay(net, lower_plan(net, slow, on_fleet, settings)).iteration_time


@failures.over("settings", [PLAIN, BY_LAYER])
@failures.over("name", ["tensor", "zero-3", "experts"])
def test_more_and_slower_devices_never_make_a_step_faster(name, settings):
    net, _, _ = real(name)
    one, two, worse = np.ones((3, net.num_devices))
    one[0] = two[0] = 1.5
    two[-1] = 1.25
    worse[0], worse[-1] = 2.0, 1.25
    fleets = [np.ones(net.num_devices), one, two, worse, worse.max() + 0.0 * one]
    times = list(slowed_times(name, fleets, settings))
    assert times == sorted(times)
    assert times[0] < times[1] < times[3] < times[4]


@failures.over("settings", [PLAIN, BY_LAYER])
@failures.over("name", ["tensor", "zero-3", "experts"])
def test_one_healthy_kind_is_no_fleet_to_the_last_bit(name, settings):
    net, job, priced = real(name)
    (time,) = slowed_times(name, [np.ones(net.num_devices)], settings)
    assert time == replay(net, lower_plan(net, job, priced, settings)).iteration_time


@failures.over("settings", [PLAIN, BY_LAYER])
def test_two_generations_are_between_either_alone(settings):
    net, job, priced = real("tensor")
    fast = job.accelerator
    half = replace(
        fast,
        name="half",
        measured_as=fast.constants_name,
        peak_flops={name: rate / 2 for name, rate in fast.peak_flops.items()},
        memory_bandwidth=fast.memory_bandwidth / 2,
    )
    of_device = np.zeros(net.num_devices, dtype=np.int64)
    of_device[np.ravel(priced.plan.stages[-1].devices)] = 1
    mixed = executed_on(job, Fleet((DeviceKind(fast), DeviceKind(half)), of_device))
    planned, replayed = [], []
    for one in (all_alike(mixed, 0), mixed, all_alike(mixed, 1)):
        found = price_plan(net, one, priced.plan)
        planned.append(found.iteration_time)
        work = lower_plan(net, one, found, settings)
        replayed.append(replay(net, work).iteration_time)
        assert work.others == ()
    assert planned[0] < planned[1] < planned[2]
    assert replayed[0] < replayed[1] < replayed[2]
    # All slow: another accelerator.
    alone = replace(job, accelerator=half)
    assert price_plan(net, alone, priced.plan).iteration_time == planned[2]
    assert any(
        "half" in note
        for note in lower_plan(net, mixed, price_plan(net, mixed, priced.plan)).notes
    )
