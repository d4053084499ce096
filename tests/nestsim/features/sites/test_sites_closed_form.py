"""The outer loop's closed form: against its recurrence, SimPy, and what must hold."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.features.sites.closed_form import OuterLoop
from nestsim.features.sites.replay import build_system, replay_rounds
from nestsim.scenario.sites import SitesSpec
from nestsim.simulator.compiled import simulate_compiled
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import is_same_run
from topologies.errors import InputError

ROUNDS = 400


@st.composite
def loops(draw):
    """Draw an outer loop, and an uplink with which neither side always waits."""
    fragments = draw(st.sampled_from([1, 1, 2, 3, 5]))
    spacing = draw(st.sampled_from([1, 2, 3, 7]))
    step_time = draw(st.sampled_from([0.125, 1.0, 22.75]))
    begins = draw(st.sampled_from([0.0, 0.0, 0.5, 0.75]))
    loop = OuterLoop(
        num_sites=draw(st.sampled_from([2, 3, 14])),
        step_time=step_time,
        num_bytes=draw(st.sampled_from([1e8, 1.3e10])),
        latency=draw(st.sampled_from([0.0, 1e-3, 0.01])),
        sync_every=spacing * fragments,
        fragments=fragments,
        delay=draw(st.integers(0, min(4, spacing * fragments - 1))),
        optimizer_time=draw(st.sampled_from([0.0, 0.05, 1.7])),
        hidden=begins * step_time,
    )
    share = draw(st.sampled_from([0.05, 0.3, 0.9, 1.05, 1.5, 4.0]))
    return loop, loop.bytes_sent / (share * loop.working_time)


def recurrence(loop, rate):
    """Return the time of a round by going through the moments one by one."""
    last = ROUNDS * loop.fragments
    marks = []
    for number in range(last):
        sent = (number + 1) * loop.spacing * loop.step_time
        marks += [
            (sent - loop.hidden, 0, number),
            (sent + loop.delay * loop.step_time, 1, number),
        ]
    now = worked = ring = 0.0
    there, ends = {}, []
    for moment, is_needed, number in sorted(marks):
        now, worked = now + moment - worked, moment
        if is_needed:
            now = max(now, there[number]) + loop.optimizer_time / loop.fragments
            ends.append(now)
        else:
            ring = max(ring, now) + loop.all_reduce_time(rate)
            there[number] = ring
    return ends[-1] - ends[-1 - loop.fragments]


@given(loops())
@settings(max_examples=200, deadline=None)
def test_it_is_the_recurrence_in_the_long_run(drawn):
    loop, rate = drawn
    assert loop.round_time(rate) == pytest.approx(recurrence(loop, rate), rel=1e-9)


@given(loops(), st.data())
@settings(max_examples=40, deadline=None)
def test_simpy_confirms_it_whichever_uplinks_are_faster_than_the_slowest(drawn, data):
    loop, rate = drawn
    factors = st.lists(
        st.sampled_from([1.0, 1.0, 1.5, 40.0]),
        min_size=loop.num_sites - 1,
        max_size=loop.num_sites - 1,
    )
    rates = [rate, *(factor * rate for factor in data.draw(factors))]
    replayed = replay_rounds(loop, data.draw(st.permutations(rates)))
    assert replayed.engine == "simpy"
    assert replayed.is_settled
    assert replayed.round_time == pytest.approx(loop.round_time(rate), rel=1e-9)


def test_both_engines_replay_it_alike_and_one_site_stands_for_all():
    loop = OuterLoop(
        num_sites=5,
        step_time=0.3,
        num_bytes=1e9,
        latency=0.02,
        sync_every=4,
        fragments=2,
        delay=1,
        optimizer_time=0.1,
    )
    system = build_system(loop, [1e9] * 5, 6)
    assert is_same_run(simulate(system), simulate_compiled(system))
    many = replace(loop, num_sites=900)
    alone = replay_rounds(many, [1e12] * 900)
    assert alone.num_actors == 1
    assert alone.round_time == pytest.approx(many.round_time(1e12), rel=1e-9)


@given(loops(), st.floats(1.0, 100.0), st.integers(2, 9))
@settings(max_examples=200, deadline=None)
def test_more_bandwidth_and_fewer_meetings_are_never_slower(drawn, factor, times):
    loop, rate = drawn
    steps = loop.step_rate(rate)
    least = steps * (1.0 - 1e-12)
    assert loop.step_rate(factor * rate) >= least
    assert replace(loop, sync_every=times * loop.sync_every).step_rate(rate) >= least
    assert replace(loop, latency=loop.latency / factor).step_rate(rate) >= least
    assert steps <= (1.0 + 1e-12) / loop.step_time


@given(loops(), st.floats(0.01, 0.99))
@settings(max_examples=200, deadline=None)
def test_the_least_rate_is_the_least(drawn, share):
    loop, _ = drawn
    rate = loop.least_rate(share)
    if math.isinf(rate):
        assert loop.compute_share(1e30) <= share * (1.0 + 1e-9)
        return
    assert loop.compute_share(rate * (1 + 1e-9)) >= share * (1.0 - 1e-9)
    assert loop.compute_share(rate * 0.9) < share


def test_a_replay_that_is_too_short_says_so():
    loop = OuterLoop(
        num_sites=1000,
        step_time=1.0,
        num_bytes=1e9,
        latency=0.0,
        sync_every=1_000_000,
        fragments=1_000_000,
        delay=900_000,
    )
    replayed = replay_rounds(loop, [1.0] * 1000)
    assert not replayed.is_settled
    assert replayed.num_actors == 1


def test_a_ring_of_two_sends_each_byte_once():
    loop = OuterLoop(num_sites=2, step_time=1.0, num_bytes=8e9, latency=0.03)
    assert loop.bytes_sent == 8e9
    assert loop.all_reduce_time(1e9) == pytest.approx(8.06)


def test_the_slowest_uplink_decides_and_each_has_its_own_rate():
    spec = SitesSpec(
        count=4, bandwidth=8e9, latency=0.0, share=0.5, slow_uplinks=(3e9, 1e9)
    )
    assert (spec.slowest, spec.rate()) == (1e9, 0.5e9)
    assert spec.rates() == (4e9, 4e9, 1.5e9, 0.5e9)
    with pytest.raises(InputError, match="more uplinks"):
        replace(spec, count=2, slow_uplinks=(1e9,) * 3)


def test_tcp_is_as_fast_as_mathis_has_it():
    spec = SitesSpec(count=2, bandwidth=1e9, latency=0.05, loss=1e-4, connections=10)
    # 1,460 bytes a round trip of 0.1 s, times sqrt(1.5) / 0.01, ten times.
    assert spec.rate() == pytest.approx(10 * 14_600 * math.sqrt(1.5) * 100)
    assert spec.rate(latency=0.1) == pytest.approx(spec.rate() / 2)
    assert spec.rate(bandwidth=1e6) == 1e6
    assert SitesSpec(count=2, bandwidth=1e9, latency=0.05, share=0.5).rate() == 5e8
