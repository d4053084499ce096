import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import timeline
from planner.schedules import SCHEDULES


@st.composite
def pipelines(draw, *, most_stages=6, most_microbatches=12):
    """Integer durations: all sums are exact."""
    p = draw(st.integers(1, most_stages))
    m = draw(st.integers(1, most_microbatches))

    def times(count, most):
        values = st.lists(st.integers(0, most), min_size=count, max_size=count)
        return np.array(draw(values), dtype=np.float64)

    return (
        m,
        times(p, 9),
        times(p, 9),
        times(p - 1, 6),
        times(p - 1, 6),
        times(p - 1, 3),
        times(p - 1, 3),
    )


def reference(schedule, m, forward, backward, wire_f, wire_b, latency_f, latency_b):
    """Follow each instruction's causes back, recursively."""
    p = len(forward)
    lists = [
        [(int(kind), int(k)) for kind, k in zip(*columns, strict=True)]
        for columns in (SCHEDULES[schedule].instructions(i, p, m) for i in range(p))
    ]

    @functools.cache
    def start(i, o):
        kind, k = lists[i][o]
        own = end(i, o - 1) if o else 0.0
        if kind == 0 and i > 0:
            return max(own, leave(0, i - 1, k) + latency_f[i - 1])
        if kind == 1 and i < p - 1:
            return max(own, leave(1, i + 1, k) + latency_b[i])
        return own

    @functools.cache
    def end(i, o):
        return start(i, o) + (forward, backward)[lists[i][o][0]][i]

    @functools.cache
    def leave(kind, sender, k):
        sent = [o for o, (other, _) in enumerate(lists[sender]) if other == kind]
        place = [lists[sender][o][1] for o in sent].index(k)
        before = leave(kind, sender, lists[sender][sent[place - 1]][1]) if place else 0
        wire = wire_f[sender] if kind == 0 else wire_b[sender - 1]
        return max(end(sender, sent[place]), before) + wire

    starts = [start(i, o) for i in range(p) for o in range(2 * m)]
    ends = [end(i, o) for i in range(p) for o in range(2 * m)]
    return starts, ends, [end(i, 2 * m - 1) for i in range(p)]


def run(schedule, pipeline, kernel=timeline):
    m, forward, *rest = pipeline
    program = SCHEDULES[schedule].program(len(forward), m)
    return kernel(*program, m, forward, *rest)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@settings(deadline=None, max_examples=80)
@given(pipeline=pipelines())
def test_the_sweep_solves_the_recurrence(schedule, pipeline):
    status, *found = run(schedule, pipeline)
    assert status == 0
    for values, expected in zip(found, reference(schedule, *pipeline), strict=True):
        assert values.tolist() == expected


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@settings(deadline=None, max_examples=40)
@given(pipeline=pipelines())
def test_the_compiled_kernel_is_its_python_function(schedule, pipeline):
    compiled = run(schedule, pipeline)
    interpreted = run(schedule, pipeline, timeline.py_func)
    assert compiled[0] == interpreted[0]
    for one, other in zip(compiled[1:], interpreted[1:], strict=True):
        assert one.tolist() == other.tolist()


@settings(deadline=None, max_examples=100)
@given(pipeline=pipelines(most_stages=8, most_microbatches=20))
def test_gpipe_has_its_closed_form_for_every_microbatch_count(pipeline):
    m, forward, backward, *transfers = pipeline
    wire_f, wire_b, *_ = transfers
    _, _, _, ends = run("gpipe", pipeline)
    once = forward.sum() + backward.sum() + sum(t.sum() for t in transfers)
    pace_f = max(forward.max(), wire_f.max(initial=0))
    pace_b = max(backward.max(), wire_b.max(initial=0))
    assert ends.max() == once + (m - 1) * (pace_f + pace_b)


@settings(deadline=None, max_examples=100)
@given(pipeline=pipelines(most_stages=8, most_microbatches=20))
def test_1f1b_is_within_its_interval_bound(pipeline):
    # The largest mean of an interval of stages with the round trips inside it.
    m, forward, backward, *transfers = pipeline
    work = forward + backward
    trips = sum(transfers)
    pace = max(
        (work[i : j + 1].sum() + trips[i:j].sum()) / (j - i + 1)
        for i in range(work.size)
        for j in range(i, work.size)
    )
    for one_way in transfers[:2]:
        pace = max(pace, one_way.max(initial=0))
    _, _, _, ends = run("1f1b", pipeline)
    bound = work.sum() + trips.sum() + (m - 1) * pace
    assert m * work.max() <= ends.max() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 7), (4, 1), (4, 3), (4, 16), (16, 5)])
def test_equal_stages_without_transfers_wait_only_to_fill_and_drain(schedule, p, m):
    none = np.zeros(p - 1)
    pipeline = (m, np.full(p, 3.0), np.full(p, 5.0), none, none, none, none)
    _, _, _, ends = run(schedule, pipeline)
    assert ends.max() == (m + p - 1) * 8.0


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@settings(deadline=None, max_examples=20)
@given(pipeline=pipelines())
def test_doubling_all_times_doubles_the_answer(schedule, pipeline):
    m, *times = pipeline
    _, start, *_ = run(schedule, pipeline)
    _, twice, *_ = run(schedule, (m, *(2 * t for t in times)))
    assert twice.tolist() == (2 * start).tolist()


def test_lists_that_wait_for_each_other_in_a_circle_are_reported():
    # The first stage wants the gradient before it sends the activation.
    one, boundary = np.ones(2), np.ones(1)
    status, *_ = timeline(
        np.array([0, 2, 4]),
        np.array([1, 0, 0, 1]),
        np.zeros(4, np.int64),
        1,
        one,
        one,
        *[boundary] * 4,
    )
    assert status == 1
