"""The time alone: bit for bit that of the whole replay, unless it is cut off."""

import math
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.compiled import (
    MOST_UNWATCHED_STEPS,
    CompiledEngine,
    end_of_compiled_run,
    num_steps,
)
from nestsim.simulator.replay import replay, replayed_time
from nestsim.simulator.simpy_engine import Engine, end_of_run, simulate
from nestsim.simulator.steady import Watch
from nestsim.simulator.system import ENGINES, ReplaySettings
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import contended_step, step_sizes
from tests.nestsim.simulator.folding_cases import steps
from tests.nestsim.simulator.systems import Builder, random_systems, wire


def end_of_watched_run(system, *, skipping, cutoff=math.inf):
    """Return the end of a compiled run that is watched however short it is."""
    return CompiledEngine(system, skipping=skipping, recording=False).run(cutoff)


ENDS = (end_of_run, end_of_compiled_run, end_of_watched_run)


def assert_cut_off(time, end):
    """Check what a function of a cutoff returns around the end of a run."""
    assert time(cutoff=math.inf) == end
    assert time(cutoff=end) == end
    assert time(cutoff=math.nextafter(end, math.inf)) == end
    if end > 0.0:
        assert time(cutoff=math.nextafter(end, 0.0)) == math.inf
        assert time(cutoff=end / 2) == math.inf
        assert time(cutoff=0.0) == math.inf


@settings(max_examples=50)
@given(random_systems(), st.booleans())
def test_the_end_is_that_of_the_whole_run(system, skipping):
    end = simulate(system).end
    for engine in ENDS:
        assert_cut_off(partial(engine, system, skipping=skipping), end)


@settings(max_examples=30)
@given(
    step=steps(),
    engine=st.sampled_from(ENGINES),
    folding=st.booleans(),
    skipping=st.booleans(),
)
def test_the_time_of_a_step_is_that_of_its_replay(step, engine, folding, skipping):
    how = ReplaySettings(engine=engine, folding=folding, skipping=skipping)
    whole = replay(*step, ReplaySettings(engine="simpy", folding=False, skipping=False))
    assert_cut_off(partial(replayed_time, *step, how), whole.iteration_time)


@failures.over("schedule", SCHEDULES)
@settings(max_examples=8)
@given(data=st.data())
def test_contended_steps_of_every_schedule_have_the_same_time(schedule, data):
    p, m, v = data.draw(step_sizes(schedule, most_stages=4, most_microbatches=10))
    net, work = contended_step(
        num_replicas=data.draw(st.sampled_from([2, 4])),
        num_stages=2 * p,
        num_microbatches=2 * m,
        num_chunks=v,
    )
    work = replace(work, schedule=schedule)
    end = replay(net, work, memory=False).iteration_time
    for engine in ENGINES:
        how = ReplaySettings(engine=engine)
        assert_cut_off(partial(replayed_time, net, work, how), end)


def long_loop(rounds):
    """Build an actor that works and tells another one, again and again."""
    builder = Builder(2, [wire(0, num_bytes=1.0, links={0: 1.0}), wire(1)])
    for _ in range(rounds):
        builder.step(0, 0.25, source=1, target=0)
        builder.step(1, 0.5, source=0, target=1)
    return builder.system([8.0])


@failures.over("skipping", [False, True])
def test_nothing_that_comes_after_the_cutoff_is_simulated(skipping):
    system = long_loop(1000)
    end = simulate(system).end
    engine = Engine(system, skipping=skipping, recording=False)
    assert engine.run(end / 10) == math.inf
    by_arrays = CompiledEngine(system, skipping=skipping, recording=False)
    assert by_arrays.run(end / 10) == math.inf
    # Skipping stands in for most of the steps either way.
    share = 0.02 if skipping else 0.1
    done = by_arrays.result(math.inf).num_events
    assert done <= engine.result(math.inf).num_events <= done + 5
    assert done < 1.1 * share * simulate(system).num_events


@failures.over("engine", ENDS)
def test_a_skip_may_pass_the_cutoff(engine):
    system = long_loop(1000)
    (skip,) = simulate(system, skipping=True).skips
    for cutoff in (skip.begin, skip.begin + 100.3 * skip.period):
        assert engine(system, skipping=True, cutoff=cutoff) == math.inf


@failures.over("rounds, is_watched", [(1000, False), (26_000, True)])
def test_long_runs_skip_what_repeats_and_short_ones_do_not(rounds, is_watched):
    system = long_loop(rounds)
    assert (num_steps(system) > MOST_UNWATCHED_STEPS) is is_watched
    looks = []
    with pytest.MonkeyPatch.context() as patch:
        look = Watch.look
        patch.setattr(Watch, "look", lambda *args: looks.append(1) or look(*args))
        end = end_of_compiled_run(system, skipping=True)
    assert bool(looks) is is_watched
    assert end == end_of_watched_run(system, skipping=False)


def test_nothing_is_recorded():
    engine = CompiledEngine(long_loop(50), skipping=True, recording=False)
    run = engine.result(engine.run())
    assert run.bins.size == 0
    assert sum(log.size for log in (*run.span_starts, *run.span_ends)) == 0
