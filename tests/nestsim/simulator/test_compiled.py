from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.compiled import simulate_compiled
from nestsim.simulator.replay import LONG, choose_engine, forecast_seconds, run_system
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import ENGINES, ReplaySettings
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import contended_step, step_sizes
from tests.nestsim.simulator.systems import (
    Builder,
    assert_same,
    num_events_in_all,
    random_systems,
    wire,
)


def agree(system):
    """Run a system in all ways; return the run by SimPy with nothing skipped."""
    plain = simulate(system)
    for skipping in (False, True):
        run = simulate(system, skipping=True) if skipping else plain
        compiled = simulate_compiled(system, skipping=skipping)
        for other in (run, compiled):
            assert_same(plain, other)
            assert num_events_in_all(other) == plain.num_events
        assert run.skips == compiled.skips
        assert run.num_events == compiled.num_events
    assert plain.num_skipped == 0
    return plain


@settings(max_examples=60)
@given(random_systems())
def test_both_engines_agree_with_and_without_skipping(system):
    agree(system)


@failures.over("schedule", SCHEDULES)
@settings(max_examples=12)
@given(data=st.data())
def test_contended_steps_agree_in_both_engines(schedule, data):
    p, m, v = data.draw(step_sizes(schedule, most_stages=4, most_microbatches=20))
    net, work = contended_step(
        num_replicas=data.draw(st.sampled_from([2, 4])),
        num_stages=2 * p,
        num_microbatches=m * 2,
        num_chunks=v,
    )
    agree(build_model(net, replace(work, schedule=schedule)).system)


@settings(max_examples=25)
@given(random_systems(), st.randoms(use_true_random=False))
def test_the_order_of_actors_makes_no_difference(system, random):
    order = list(range(system.program.size))
    random.shuffle(order)
    shuffled = replace(system, program=system.program[order], ports=system.ports[order])
    for engine in (simulate, simulate_compiled):
        run, other = engine(system, skipping=True), engine(shuffled, skipping=True)
        starts = tuple(run.span_starts[actor] for actor in order)
        ends = tuple(run.span_ends[actor] for actor in order)
        assert_same(replace(run, span_starts=starts, span_ends=ends), other)


def test_nothing_takes_no_time():
    empty = Builder(0, [wire(0)]).system([1.0])
    idle = Builder(3, [wire(0)]).system([1.0])
    for system in (empty, idle):
        run = agree(system)
        assert run.end == 0.0
        assert run.num_events == 0


def test_a_step_that_waits_for_what_nobody_sends_is_our_mistake():
    builder = Builder(1, [wire(0)])
    builder.posted[0] = 1
    builder.step(0, 1.0, source=0)
    with pytest.raises(AssertionError, match="waits for ever"):
        simulate_compiled(builder.system([1.0]))
    with pytest.raises(AssertionError, match="waits for ever"):
        simulate(builder.system([1.0]))


def long_chain(num_steps):
    """Build two actors that exchange messages."""
    builder = Builder(2, [wire(0, num_bytes=1.0, links={0: 1.0}), wire(1)])
    for _ in range(num_steps):
        builder.step(0, 0.25, source=1, target=0)
        builder.step(1, 0.5, source=0, target=1)
    return builder.system([8.0])


@example(1)
@settings(max_examples=10)
@given(st.integers(1, 3_000))
def test_the_forecast_grows_with_steps_and_messages(num_steps):
    alone, twice = long_chain(num_steps), long_chain(2 * num_steps)
    for engine, seconds in forecast_seconds(alone).items():
        assert forecast_seconds(twice)[engine] == pytest.approx(2 * seconds)
        assert seconds > 0
    assert forecast_seconds(alone)["compiled"] < forecast_seconds(alone)["simpy"]


def test_long_runs_are_compiled_unless_told_otherwise():
    short = long_chain(50)
    per_step = forecast_seconds(short)["simpy"] / 50
    steps = int(LONG / per_step)
    auto = ReplaySettings()
    assert choose_engine(long_chain(int(0.9 * steps)), auto) == "simpy"
    assert choose_engine(long_chain(int(1.1 * steps)), auto) == "compiled"
    for engine in ("simpy", "compiled"):
        told = ReplaySettings(engine=engine)
        assert choose_engine(short, told) == engine


def test_settings_choose_engine_and_skipping():
    system = long_chain(60)
    runs = {
        (engine, skipping): run_system(
            system, ReplaySettings(engine=engine, skipping=skipping)
        )
        for engine in ENGINES
        for skipping in (False, True)
    }
    for (_, skipping), run in runs.items():
        assert_same(runs["simpy", False], run)
        assert bool(run.skips) == skipping
        assert run.num_events == runs["simpy", skipping].num_events


def test_a_run_leaves_the_system_as_it_was():
    system = long_chain(20)
    for values in (system.ports, system.latency, system.num_bytes, system.capacity):
        values.flags.writeable = False
    before = system.ports.copy()
    agree(system)
    assert np.array_equal(before, system.ports)
