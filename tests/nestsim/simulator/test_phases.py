"""Pools in phases: each duty as by itself, and what meeting on links costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.phases import Duty, PoolWork, replay_phases
from nestsim.simulator.replay import replay
from nestsim.simulator.system import ReplaySettings
from nestsim.simulator.work import EdgePhase
from tests.nestsim.simulator.cases import pipeline, switch
from tests.nestsim.simulator.folding_cases import steps

ANYHOW = ReplaySettings(engine="compiled")


@settings(max_examples=25, deadline=None)
@given(steps(), st.integers(1, 4), st.floats(0.0, 3.0))
def test_a_duty_is_the_plain_replay_as_often_as_it_is_done(case, count, wait):
    net, work = case
    once = replay(net, work, ANYHOW, memory=False).iteration_time
    duties = [Duty(wait, 0, count), Duty(1.0), Duty(0.0, 0)]
    run = replay_phases(net, [PoolWork(work)], [duties], ANYHOW, confirm=False)
    (starts,), (ends,) = run.starts, run.ends
    assert starts[0] == 0.0
    assert starts[1:].tolist() == ends[:-1].tolist()
    expected = [wait + count * once, 1.0, once]
    np.testing.assert_allclose(ends - starts, expected, rtol=1e-9)
    assert run.time == ends[-1]


def sending(source: int, num_bytes: float, time: float):
    """Return a step of ``time``, and then bytes from a device to the last one of 4."""
    phase = EdgePhase(np.array([source]), np.array([3]), num_bytes, 0)
    return pipeline(
        [[[source]]],
        1,
        forward_time=[time],
        backward_time=[0.0],
        reduce_phases=((phase,),),
    )


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("folding", [True, False])
def test_pools_share_the_links_that_they_meet_on(engine, folding):
    """Two flows into one device: both at half the rate until one of them is done."""
    net = switch(4, bandwidth=10.0)
    parts = [PoolWork(sending(0, 20.0, 1.0)), PoolWork(sending(1, 60.0, 2.0))]
    form = ReplaySettings(engine=engine, folding=folding)
    apart = replay_phases(
        net, parts, [[Duty(0.0, 0), Duty(0.0, 1)]], form, confirm=True
    )
    assert apart.ends[0] - apart.starts[0] == pytest.approx([3.0, 8.0])
    both = replay_phases(
        net, parts, [[Duty(0.0, 0)], [Duty(0.0, 1)]], form, confirm=True
    )
    # From 2 s on 10 bytes of the first one are left, at 5 bytes/s; the other one has
    # 50 left at 4 s.
    assert [float(ends[-1]) for ends in both.ends] == pytest.approx([4.0, 9.0])
    assert both.engine == engine


def test_pools_wait_for_each_other_before_what_both_do():
    net = switch(4, bandwidth=10.0)
    parts = [PoolWork(sending(0, 20.0, 1.0))]
    pools = [[Duty(5.0), Duty(0.0, 0, 2)], [Duty(7.0), Duty(0.0, 0, 2), Duty(1.0)]]
    run = replay_phases(net, parts, pools, ANYHOW, confirm=False)
    assert run.starts[0].tolist() == [0.0, 5.0]
    assert run.ends[0] == pytest.approx([5.0, 13.0])
    assert run.ends[1] == pytest.approx([7.0, 13.0, 14.0])
    assert run.time == pytest.approx(14.0)


def test_a_part_ends_with_the_passes_that_are_asked_for():
    """Three forward passes of two stages, no backward pass."""
    net = switch(4, bandwidth=10.0)
    work = replace(pipeline([[[0]], [[1]]], 3), schedule="gpipe")
    run = replay_phases(
        net, [PoolWork(work, 3)], [[Duty(0.0, 0)]], ANYHOW, confirm=False
    )
    assert run.time == pytest.approx(4.0)
    whole = replay_phases(
        net, [PoolWork(work)], [[Duty(0.0, 0)]], ANYHOW, confirm=False
    )
    assert whole.time == pytest.approx(8.0)
