from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator import compiled as fluid
from nestsim.simulator.build import build_model
from nestsim.simulator.compiled import simulate_compiled
from nestsim.simulator.folding import list_steps
from nestsim.simulator.kernels.steps import LEAST_REPEATS, find_repeats
from nestsim.simulator.simpy_engine import simulate
from nestsim.simulator.system import CLOSES, NONE, OPENS, Step
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import full_mesh, pipeline
from tests.nestsim.simulator.systems import (
    Builder,
    assert_same,
    meeting,
    num_events_in_all,
    wire,
)


def skipped(system):
    """Run with skipping in both engines, compare with a full run; return the skips."""
    plain = simulate_compiled(system)
    run = simulate_compiled(system, skipping=True)
    assert_same(plain, run)
    assert num_events_in_all(run) == plain.num_events
    by_simpy = simulate(system, skipping=True)
    assert_same(plain, by_simpy)
    assert by_simpy.skips == run.skips
    return run.skips


def stages(p, m, seed, *, schedule="1f1b", v=1, spread=0.0, transfer=0.2):
    """Return a lone pipeline whose passes differ by up to ``spread``.

    A message takes about ``transfer`` of a forward pass of 1.
    """
    random = np.random.default_rng(seed)
    speed = 1.0 + spread * random.random((3, v * p))
    net = full_mesh(p, bandwidth=1.0, latency=transfer / 16)
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=schedule,
        forward_time=speed[0],
        backward_time=2.0 * speed[1],
        boundary_bytes=transfer * speed[2, 1:],
    )
    return build_model(net, work).system


def num_spans(run):
    return sum(ends.size for ends in run.span_ends)


# A pipeline without contention is a max-plus linear system, so its state comes again;
# how soon depends on the gap between the longest cycle and the next one.
@failures.over("p", [2, 4, 7])
@failures.over("seed", range(6))
def test_lone_pipelines_always_repeat_themselves(p, seed):
    system = stages(p, 400, seed, spread=0.2)
    plain, run = (simulate_compiled(system, skipping=s) for s in (False, True))
    assert_same(plain, run)
    assert run.num_skipped > 0


@failures.over(("p", "least"), [(4, 0.9), (16, 0.6)])
def test_equal_stages_repeat_themselves_after_a_few_units(p, least):
    # Specified: 5 units after the steady part began with 4 stages, 17 with 16.
    system = stages(p, 192, 0)
    skips = skipped(system)
    assert sum(skip.num_spans for skip in skips) >= least * 2 * 192 * p
    (skip,) = skips
    # Uniform stages: the cycle time is t + c (p - 1) / p, c the round trip.
    units = skip.num_spans / skip.num_periods / (2 * p)
    cycle = 3.0 + 2 * 0.2 * (1 + 1 / 16) * (p - 1) / p
    assert skip.period / units == pytest.approx(cycle, rel=1e-9)


@failures.over("schedule", SCHEDULES)
def test_every_schedule_skips_most_of_a_long_run_of_equal_stages(schedule):
    v = 2 if SCHEDULES[schedule].interleaves else 1
    system = stages(4, 200, 0, schedule=schedule, v=v, transfer=0.01)
    plain = simulate_compiled(system)
    # Circular: the second chunk's passes use up messages that came a phase ago, and a
    # stock that shrinks is no state that comes again. Two of its four phases are left.
    least = 0.48 if schedule == "circular" else 0.5
    assert sum(skip.num_spans for skip in skipped(system)) > least * num_spans(plain)


def test_phases_with_loops_of_their_own_are_skipped_one_after_another():
    # GPipe: all forward passes, then all backward passes.
    system = stages(3, 100, 0, schedule="gpipe")
    first, second = skipped(system)
    assert first.begin + first.num_periods * first.period < second.begin


def test_loops_inside_a_loop_are_skipped_with_it():
    # A pass of 8 layers, each with a collective of all, and a step between passes.
    builder = Builder(3, [meeting(range(3), num_bytes=1.0, links={0: 2.0})])
    for _ in range(50):
        for layer in range(8):
            builder.gather(0, 0.3 if layer < 4 else 0.4)
        for actor in range(3):
            builder.step(actor, 0.1)
    (skip,) = skipped(builder.system([3.0]))
    assert skip.num_spans / skip.num_periods == 3 * 9
    assert skip.num_periods > 40


def test_messages_that_are_long_on_their_way_are_part_of_the_state():
    # The answer to a message comes 40 steps later.
    builder = Builder(
        2, [wire(0, latency=10.0, num_bytes=0.1, links={0: 1.0}), wire(1, latency=9.9)]
    )
    for _ in range(400):
        builder.step(0, 0.5, source=1, lag=39, target=0)
        builder.step(1, 0.4, source=0, lag=1, target=1)
    skips = skipped(builder.system([1.0]))
    assert sum(skip.num_spans for skip in skips) > 0.5 * 800


def test_who_waits_for_more_than_one_message_still_does_after_a_jump():
    # Two messages are on their way, and the receiver needs both, when all is looked at.
    builder = Builder(2, [wire(0, latency=0.75)])
    for _ in range(50):
        builder.step(0, 0.5, target=0)
        builder.step(0, 0.25)
        builder.step(0, 0.25, target=0)
        builder.step(1, 0.125, source=0)
    (skip,) = skipped(builder.system([1.0]))
    assert skip.num_periods > 40


def test_who_waits_for_a_late_message_is_not_passed_by():
    # All is as before after each message, but that one more has come.
    builder = Builder(2, [wire(0)])
    for k in range(100):
        builder.step(0, 0.5, target=0)
        if k == 60:
            builder.step(1, 0.1, source=0)
    system = builder.system([1.0])
    late = simulate_compiled(system, skipping=True).span_starts[1]
    assert late.tolist() == [30.5]
    assert [skip.begin >= 30.5 for skip in skipped(system)] == [True]


def test_a_backlog_that_shrinks_is_no_repetition():
    # The receiver works twice as fast as the sender, until what lies there is used up.
    builder = Builder(2, [wire(0)])
    for k in range(110):
        builder.step(0, 0.0 if k < 50 else 2.0, target=0)
    for k in range(110):
        builder.programs[1].append(Step(1.0, 0, k + 1, NONE, OPENS | CLOSES))
    skips = skipped(builder.system([1.0]))
    assert skips
    # 50 + t / 2 messages have come after t, and t have been worked on.
    assert all(skip.begin >= 98.0 for skip in skips)


def test_a_queue_that_grows_is_no_repetition():
    # A message is on the link as long as the sender needs for two; nobody waits.
    builder = Builder(1, [wire(0, num_bytes=1.0, links={0: 1.0})])
    for _ in range(60):
        builder.step(0, 0.5, target=0)
    assert not skipped(builder.system([1.0]))


def test_a_flow_that_goes_on_and_on_is_no_repetition():
    channels = [wire(a, num_bytes=b, links={0: 1.0}) for a, b in ((0, 40.0), (1, 0.5))]
    builder = Builder(2, channels)
    builder.step(0, 0.0, target=0)
    builder.step(0, 0.0, source=0)
    for _ in range(100):
        builder.step(1, 1.0, target=1)
        builder.step(1, 1.0, source=1)
    system = builder.system([1.0])
    (arrival,) = simulate_compiled(system, skipping=True).arrivals[0].tolist()
    (skip,) = skipped(system)
    assert 40.0 < arrival < skip.begin


def test_drift_is_never_taken_for_repetition():
    # Two pipelines with nothing in common but the end, the second a tick slower.
    tick = 2.0**-40
    channels = [wire(0), wire(1), wire(2), wire(3), meeting(range(4))]
    builder = Builder(4, channels)
    for _ in range(60):
        for first, slowness in ((0, 0.0), (2, tick)):
            builder.step(first, 1.0 + slowness, source=first + 1, target=first)
            builder.step(first + 1, 0.5, source=first, target=first + 1)
    builder.gather(4, 0.0)
    assert not skipped(builder.system([1.0]))


def test_a_loop_that_is_left_early_bounds_the_jump():
    builder = Builder(2, [wire(0), wire(1)])
    for k in range(100):
        builder.step(0, 1.0, source=1, target=0)
        builder.step(1, 1.0 if k < 70 else 1.25, source=0, target=1)
    system = builder.system([1.0])
    first, second = skipped(system)
    assert first.begin + first.num_periods * first.period <= 140.0
    assert (first.period, second.period) == (2.0, 2.25)


def test_all_is_skipped_but_what_shows_the_repetition_and_the_last_step():
    builder = Builder(1, [wire(0)])
    for _ in range(100):
        builder.step(0, 0.5)
    (skip,) = skipped(builder.system([1.0]))
    assert (skip.begin, skip.period, skip.num_periods) == (1.0, 0.5, 97)
    assert (skip.num_spans, skip.num_events) == (97, 97)


def test_a_loop_that_takes_no_time_is_looked_at_once():
    builder = Builder(1, [])
    for k in range(40):
        builder.step(0, 0.0 if k < 20 else 1.0)
    (skip,) = skipped(builder.system([1.0]))
    assert skip.begin >= 1.0


def test_from_one_loop_to_the_next_is_no_repetition():
    # The first actor's spans end with its first loop, two of its steps before the
    # second look at it.
    builder = Builder(2, [wire(0)])
    for k in range(64):
        builder.step(0, 1.0, span=OPENS | CLOSES if k < 4 else 0)
    for _ in range(30):
        builder.step(1, 2.0)
    assert skipped(builder.system([1.0]))


def test_steps_that_take_as_long_but_differ_are_no_loop():
    # Spans in the order of the Thue-Morse sequence, in which nothing comes three times
    # in a row.
    builder = Builder(2, [wire(0)])
    for k in range(60):
        builder.step(0, 1.0, span=OPENS | CLOSES if k.bit_count() % 2 else 0)
    for _ in range(100):
        builder.step(1, 1.0)
    (skip,) = skipped(builder.system([1.0]))
    assert skip.begin > 60.0


def test_without_repetition_nothing_is_skipped():
    builder = Builder(1, [wire(0)])
    for k in range(40):
        builder.step(0, 1.0 + k)
    assert not skipped(builder.system([1.0]))


def shared_link():
    """Build two senders that meet on a link, at odd moments, twice in a period."""
    channels = [wire(a, num_bytes=0.7, links={0: 1.0}) for a in (0, 1)]
    channels += [wire(2), wire(2)]
    builder = Builder(3, channels)
    for _ in range(80):
        builder.step(0, 0.1, source=2, target=0)
        builder.step(1, 1 / 3, source=3, target=1)
        builder.step(2, 0.0, source=0)
        builder.step(2, 0.2, source=1, target=2)
        builder.step(2, 0.0, target=3)
    return builder.system([1.0], num_recorded=1)


def test_what_moves_in_skipped_periods_is_booked_where_it_belongs():
    system = shared_link()
    (skip,) = skipped(system)
    run = simulate_compiled(system, skipping=True)
    assert skip.num_periods > 60
    assert run.bins.sum(axis=1) == pytest.approx([80 * 0.7, 80 * 0.7, 0.0, 0.0])
    begin = int((skip.begin + skip.period) / run.bin_width) + 1
    end = int((skip.begin + skip.num_periods * skip.period) / run.bin_width)
    assert np.all(run.bins[:2, begin:end].sum(axis=0) > 0)


def test_no_period_is_skipped_whose_traffic_was_forgotten(monkeypatch):
    # Two flows that meet change their rates once before they end.
    system = shared_link()
    monkeypatch.setattr(fluid, "_MOST_DEPOSITS", 4)
    assert skipped(system)
    monkeypatch.setattr(fluid, "_MOST_DEPOSITS", 3)
    assert not skipped(system)


def loop(prologue, unit, times, epilogue):
    return np.array([*prologue, *unit * times, *epilogue], dtype=np.int64)


def repeats_at(symbols, begin, end, unit):
    return np.array_equal(symbols[begin : end - unit], symbols[begin + unit : end])


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 2), max_size=5),
    st.lists(st.integers(0, 2), min_size=1, max_size=5),
    st.integers(0, 12),
    st.lists(st.integers(0, 2), max_size=5),
)
def test_what_is_found_repeats_and_does_not_overlap(before, unit, times, behind):
    symbols = loop(before, unit, times, behind)
    found = find_repeats(symbols).tolist()
    assert found == find_repeats.py_func(symbols).tolist()
    for begin, end, size in found:
        assert size > 0
        assert end - begin >= LEAST_REPEATS * size
        assert repeats_at(symbols, begin, end, size)
    borders = sorted((begin, end) for begin, end, _ in found)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(borders))


@settings(max_examples=80)
@given(
    st.lists(st.integers(3, 4), max_size=4),
    st.permutations(range(5, 9)),
    st.integers(1, 4),
    st.integers(9, 20),
    st.lists(st.integers(3, 4), max_size=4),
)
def test_a_loop_in_the_middle_is_found_whole(before, symbols, size, times, behind):
    # Two units of it are behind the middle of the list.
    unit = symbols[:size]
    whole = loop(before, unit, times, behind)
    begin, end = len(before), len(before) + size * times
    assert [begin, end, size] in find_repeats(whole).tolist()


def test_the_outer_loop_is_preferred_to_the_inner_ones():
    unit = [1, 2] * 10 + [3] * 7 + [4]
    assert find_repeats(loop([9], unit, 6, [8])).tolist() == [[1, 1 + 6 * 28, 28]]


def test_steps_that_do_the_same_have_the_same_symbol():
    builder = Builder(2, [wire(0), wire(1)])
    builder.programs[0] = [
        Step(1.0, 0, 1, NONE, 3),
        Step(1.0, 0, 2, NONE, 3),  # one more message, as before
        Step(1.0, 0, 4, NONE, 3),  # two more
        Step(1.0, 0, 5, 1, 3),  # posts
        Step(1.0, 1, 1, NONE, 3),  # another slot
        Step(1.0, 0, 6, NONE, 3),  # one more message than the last use of the slot
        Step(1.0, 0, 7, NONE, 0),  # no span
        Step(2.0, 0, 8, NONE, 3),  # longer
    ]
    builder.programs[1] = [Step(1.0, 0, 1, NONE, 3), Step(1.0, NONE, 0, NONE, 3)]
    symbols = list_steps(builder.system([1.0])).symbols().tolist()
    same = {(a, b) for a in range(10) for b in range(a) if symbols[a] == symbols[b]}
    assert same == {(1, 0), (5, 0), (5, 1), (8, 0), (8, 1), (8, 5)}
