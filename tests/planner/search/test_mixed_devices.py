"""The search for the planned time where devices differ, against every split."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.rivals.protocol import fits
from planner.search.device_kinds import group_speeds, kind_speeds
from planner.step.fleet import DeviceKind, Fleet
from tests.planner.fleets import on_random_fleet, slow_fleet
from tests.planner.instances import instances
from tests.planner.rivals.test_planners import found_by, relaxed, times
from topologies.accelerators import load_accelerator


def on_fleet(instance, seed):
    """Return an instance whose devices differ."""
    network, workload, spec = instance
    rng = np.random.default_rng(seed)
    return network, on_random_fleet(workload, network.num_devices, rng), spec


def best(instance) -> float:
    return min(times(found_by("nest", instance)), default=math.inf)


@given(instances(most_devices=8, blocks=range(1, 5)), st.integers(0, 10**6))
@settings(relaxed, max_examples=12)
def test_exhaustive_finds_the_k_best_of_nest_on_mixed_devices(instance, seed):
    mixed = on_fleet(instance, seed)
    proven, tried = found_by("nest", mixed), found_by("exhaustive", mixed)
    assert times(tried) == pytest.approx(times(proven), rel=1e-9)
    assert bool(tried.why_not) == (not tried.plans)


@given(instances(most_devices=8, blocks=range(1, 6)), st.integers(0, 10**6))
@settings(relaxed, max_examples=10)
def test_no_planner_beats_nest_or_takes_memory_that_is_not_there(instance, seed):
    _, workload, spec = mixed = on_fleet(instance, seed)
    least = best(mixed)
    for name in ("manual", "mcmc", "phaze"):
        for priced in found_by(name, mixed).plans:
            assert fits(workload, spec, priced.plan, None)
            assert name == "manual" or priced.closed_form_time >= least * (1 - 1e-9)


@given(instances(most_devices=8, blocks=range(1, 6)), st.integers(0, 10**6))
@settings(relaxed, max_examples=15)
def test_a_slow_device_never_makes_the_best_plan_faster(instance, seed):
    network, workload, spec = instance
    factors = np.ones(network.num_devices)
    rng = np.random.default_rng(seed)
    slow = rng.integers(network.num_devices)
    factors[slow] = 1.5
    one = workload.on(slow_fleet(workload, factors))
    slower = workload.on(slow_fleet(workload, np.full(network.num_devices, 1.5)))
    healthy, mixed = best(instance), best((network, one, spec))
    assert healthy * (1 - 1e-9) <= mixed
    assert mixed <= best((network, slower, spec)) * (1 + 1e-9)


def test_groups_of_the_best_devices_are_the_best_groups():
    """Eight devices in pairs: a slow one costs a pair, two of them one pair at best."""
    healthy = DeviceKind(load_accelerator("h100-sxm"))
    kinds = (healthy, replace(healthy, factor=2.0))
    for slow, stages in (((1,), 3.5), ((1, 6), 3.5), ((0, 3, 5), 3.0)):
        of_device = np.zeros(8, dtype=np.int64)
        of_device[list(slow)] = 1
        groups = group_speeds(Fleet(kinds, of_device), np.array([1.0, 0.5]), 2)
        assert groups.total[4] == stages
        # One replica of four stages; four replicas of one; two replicas of two.
        numbers = groups.stages(np.array([4, 1, 2]), np.array([1, 4, 2]))
        assert numbers.tolist() == [stages, 0.5, 1.5]


def test_a_kind_is_as_fast_as_on_the_layer_that_suits_it_best():
    least = np.array([1.0, 2.0, 0.0])
    speeds = kind_speeds(least, [least, np.array([2.0, 3.0, 0.0])])
    assert speeds == pytest.approx([1.0, 2.0 / 3.0])
