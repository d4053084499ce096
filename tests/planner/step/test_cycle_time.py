"""Closed forms against the recurrence they sum up, and a blocking pipeline by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import BoundaryTimes, InstructionLists, timeline
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.planner.step.cycle_time import (
    CLOSED_FORMS,
    PipelineTimes,
    blocking_cycle_time,
    largest_interval_mean,
    pause_of_equal_passes,
)

every = failures.over("schedule", list(CLOSED_FORMS))


def integers(draw, count, most):
    values = st.lists(st.integers(0, most), min_size=count, max_size=count)
    return np.array(draw(values), dtype=np.float64)


@st.composite
def pipelines(draw, schedule, *, most_stages=7):
    """Integer durations: all sums are exact, and quotients rounded once."""
    p = draw(st.integers(1, most_stages))
    longest, message = (
        draw(st.sampled_from([1, 3, 9])),
        draw(st.sampled_from([0, 2, 9])),
    )
    work = [integers(draw, p, longest) for _ in range(3)]
    if not SCHEDULES[schedule].splits_backward:
        work[2] *= 0.0
    return PipelineTimes(*work, *(integers(draw, p - 1, message) for _ in range(4)))


def time(schedule, times, m):
    """Return when the last stage ends, by the recurrence."""
    program = SCHEDULES[schedule].program(times.forward.size, m)
    lists, boundaries = InstructionLists(*program), BoundaryTimes(*times[3:])
    status, _, _, ends = timeline(lists, m, np.stack(times[:3]), boundaries)
    assert status == 0
    return ends.max()


@every
@settings(max_examples=50)
@given(data=st.data())
def test_the_cycle_time_is_the_slope_between_two_large_numbers_of_microbatches(
    schedule, data
):
    times = data.draw(pipelines(schedule, most_stages=5))
    # Periods are lengths of cycles, up to p. The start is forgotten by then: means of
    # p or fewer integers differ by 1 / p^2 or more.
    period, few = math.lcm(*range(1, times.forward.size + 1)), 6000
    slope = (time(schedule, times, few + period) - time(schedule, times, few)) / period
    assert slope == CLOSED_FORMS[schedule](times, few).cycle_time


@every
@settings(max_examples=80)
@given(data=st.data(), m=st.integers(1, 25))
def test_no_pipeline_takes_longer_than_its_closed_form(schedule, data, m):
    times = data.draw(pipelines(schedule))
    form = CLOSED_FORMS[schedule](times, m)
    assert time(schedule, times, m) <= form.time * (1 + 1e-12)


@settings(max_examples=80)
@given(times=pipelines("gpipe", most_stages=9), m=st.integers(1, 25))
def test_gpipe_takes_exactly_its_closed_form_for_every_number_of_microbatches(times, m):
    assert time("gpipe", times, m) == CLOSED_FORMS["gpipe"](times, m).time


@failures.over("schedule", ["1f1b", "gpipe"])
@settings(max_examples=30)
@given(data=st.data())
def test_one_microbatch_takes_exactly_its_closed_form(schedule, data):
    times = data.draw(pipelines(schedule))
    form = CLOSED_FORMS[schedule](times, 1)
    assert time(schedule, times, 1) == form.time
    # Every stage and every boundary once.
    assert form.time == sum(part.sum() for part in times)


@every
@settings(max_examples=30)
@given(data=st.data(), m=st.integers(1, 25))
def test_no_stage_is_faster_than_its_own_work(schedule, data, m):
    times = data.draw(pipelines(schedule))
    form = CLOSED_FORMS[schedule](times, m)
    assert form.cycle_time >= times.work.max()
    assert time(schedule, times, m) >= m * times.work.max()


@settings(max_examples=30)
@given(times=pipelines("1f1b"), m=st.integers(1, 25))
def test_without_weight_gradients_zb_h1_is_1f1b(times, m):
    one, split = (CLOSED_FORMS[name](times, m) for name in ("1f1b", "zb-h1"))
    assert split.cycle_time == one.cycle_time
    assert time("zb-h1", times, m) == time("1f1b", times, m)


def equal_stages(p, forward, backward, weight, one_way):
    columns = [np.full(p, float(value)) for value in (forward, backward, weight)]
    none, delay = np.zeros(p - 1), np.full(p - 1, float(one_way))
    return PipelineTimes(*columns, none, none, delay, delay)


@failures.over("p", [1, 2, 5, 8])
def test_equal_stages_of_1f1b_pay_for_all_round_trips_but_one_in_p(p):
    form = CLOSED_FORMS["1f1b"](equal_stages(p, 2, 4, 0, 3), 10)
    assert form.cycle_time == (6 * p + 6 * (p - 1)) / p


@failures.over("p", [2, 5, 8])
def test_zb_h1_hides_round_trips_no_longer_than_its_weight_gradients(p):
    def pace(one_way):
        return CLOSED_FORMS["zb-h1"](equal_stages(p, 2, 2, 2, one_way), 10).cycle_time

    assert pace(1.0) == 6.0
    assert pace(1.5) == pytest.approx(6.0 + (p - 1) / p)


def test_the_sum_over_stages_alone_is_no_bound_where_passes_are_unlike():
    none = np.zeros(2)
    forward, backward = np.array([1.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0])
    times = PipelineTimes(forward, backward, np.zeros(3), none, none, none, none)
    form = CLOSED_FORMS["1f1b"](times, 2)
    assert times.work.sum() + form.cycle_time == 3.0
    assert time("1f1b", times, 2) == form.time == 4.0


@settings(max_examples=50)
@given(data=st.data(), p=st.integers(1, 9))
def test_the_largest_interval_mean_is_that_of_the_best_of_all_intervals(data, p):
    loads = integers(data.draw, p, 9)
    links = integers(data.draw, p - 1, 9) - integers(data.draw, p - 1, 9)
    means = [
        (loads[i : j + 1].sum() + links[i:j].sum()) / (j - i + 1)
        for i in range(p)
        for j in range(i, p)
    ]
    assert largest_interval_mean(loads, links) == max(means)


def blocking_time(forward, backward, exchange, m):
    """Run 1F1B stage by stage, a message at a time, each a meeting of its two ends.

    A stage is a generator of what it does: work, or a batch of messages that it waits
    for. A message takes its time from when both ends have come to it, and a batch is
    over when all of its messages are.
    """
    p = forward.size
    posted, clock = {}, [0.0] * p
    stages = [blocking_stage(i, p, m) for i in range(p)]
    waits = [[] for _ in range(p)]
    running = set(range(p))
    while running:
        moved = False
        for i in sorted(running):
            batch = waits[i]
            if any(len(posted[one]) < 2 for one in batch):
                continue
            moved = True
            over = [max(posted[one].values()) + exchange[one[0]] for one in batch]
            clock[i] = max([clock[i], *over])
            waits[i] = []
            for item in stages[i]:
                if isinstance(item, str):
                    clock[i] += (forward if item == "F" else backward)[i]
                    continue
                waits[i] = [one for one in item if 0 <= one[0] < p - 1]
                for one in waits[i]:
                    posted.setdefault(one, {})[i] = clock[i]
                break
            else:
                running.discard(i)
        assert moved, "the stages wait for each other"
    return max(clock)


def blocking_stage(i, p, m):
    """Megatron-LM's 1F1B without overlap; a message is (boundary, kind, microbatch)."""
    warmup = min(m, p - 1 - i)
    for k in range(warmup):
        yield [(i - 1, "F", k)]
        yield "F"
        yield [(i, "F", k)]
    for j in range(m - warmup):
        if j == 0:
            yield [(i - 1, "F", warmup)]
        yield "F"
        yield [(i, "F", warmup + j), (i, "B", j)]
        yield "B"
        last = j == m - warmup - 1
        yield [(i - 1, "B", j), *([] if last else [(i - 1, "F", warmup + j + 1)])]
    for k in range(m - warmup, m):
        yield [(i, "B", k)]
        yield "B"
        yield [(i - 1, "B", k)]


@settings(max_examples=30)
@given(data=st.data(), p=st.integers(1, 4))
def test_blocking_messages_add_both_neighbours_to_a_stages_cycle(data, p):
    forward, backward = (integers(data.draw, p, 9) for _ in range(2))
    exchange = integers(data.draw, p - 1, 9)
    few, period = 120, math.lcm(*range(1, p + 1))
    ends = [blocking_time(forward, backward, exchange, m) for m in (few, few + period)]
    pace = blocking_cycle_time(forward + backward, exchange)
    assert (ends[1] - ends[0]) / period == pace


def test_blocking_stages_without_messages_take_what_asynchronous_ones_do():
    forward, backward = np.array([2.0, 3.0, 1.0]), np.array([4.0, 1.0, 5.0])
    none = np.zeros(2)
    times = PipelineTimes(forward, backward, np.zeros(3), none, none, none, none)
    for m in (1, 2, 3, 9):
        assert blocking_time(forward, backward, none, m) == time("1f1b", times, m)


@failures.over("p", [2, 3, 4, 8])
@failures.over("schedule", ["zb-h1", "zb-h2", "zb-v", "dualpipe-v"])
def test_stages_pause_as_published_where_all_passes_take_the_same(schedule, p):
    v = SCHEDULES[schedule].num_chunks or 1
    for m in (2 * p, 3 * p, 7 * p):
        program = SCHEDULES[schedule].program(p, m, v)
        none = np.zeros(v * p - 1)
        status, starts, _, ends = timeline(
            InstructionLists(*program),
            m,
            np.ones((3, v * p)),
            BoundaryTimes(*[none] * 4),
        )
        assert status == 0
        begins = starts[program.indptr[:-1]]
        assert begins.tolist() == list(range(p))
        pauses = [pause_of_equal_passes(schedule, stage, p) for stage in range(p)]
        assert (ends - begins - 3 * v * m).tolist() == pauses


@failures.over("p", [2, 4, 8])
def test_zb_h2_gains_with_enough_microbatches_where_weight_gradients_are_short(p):
    # W < F = B: a bubble of (p - 1)(F + B - 2 W) against (p - 1)(F + B - W) [2]_.
    times = PipelineTimes(*np.array([[4.0], [4], [3]]).repeat(p, 1), *np.zeros((4, 1)))
    times = times._replace(**{name: np.zeros(p - 1) for name in times._fields[3:]})
    for m in (4 * p, 6 * p):
        assert time("zb-h2", times, m) <= time("zb-h1", times, m)
