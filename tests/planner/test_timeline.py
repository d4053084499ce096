import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import timeline
from planner.schedules import SCHEDULES

every = pytest.mark.parametrize("schedule", list(SCHEDULES))


@st.composite
def pipelines(draw, schedule, *, most_stages=6, most_microbatches=12):
    """Stages, microbatches and integer durations: all sums are exact."""
    if SCHEDULES[schedule].interleaves:
        p, v = draw(st.integers(2, most_stages)), draw(st.integers(2, 3))
        m = p * draw(st.integers(1, max(1, most_microbatches // p)))
    else:
        p, v = draw(st.integers(1, most_stages)), 1
        m = draw(st.integers(1, most_microbatches))

    def times(count, most):
        values = st.lists(st.integers(0, most), min_size=count, max_size=count)
        return np.array(draw(values), dtype=np.float64)

    n = v * p
    sizes = ((n, 9), (n, 9), (n - 1, 6), (n - 1, 6), (n - 1, 3), (n - 1, 3))
    return (p, m, *(times(count, most) for count, most in sizes))


def reference(schedule, p, m, forward, backward, *transfers):
    """Follow each instruction's causes back, recursively."""
    wire_f, wire_b, latency_f, latency_b = transfers
    last = len(forward) - 1
    lists = [
        [(int(kind), int(k), int(c) * p + i) for kind, k, c in zip(*one, strict=True)]
        for i in range(p)
        for one in [SCHEDULES[schedule].instructions(i, p, m, len(forward) // p)]
    ]

    @functools.cache
    def start(i, o):
        kind, k, s = lists[i][o]
        own = end(i, o - 1) if o else 0.0
        if kind == 0 and s > 0:
            return max(own, leave(0, s - 1, k) + latency_f[s - 1])
        if kind == 1 and s < last:
            return max(own, leave(1, s + 1, k) + latency_b[s])
        return own

    @functools.cache
    def end(i, o):
        kind, _, s = lists[i][o]
        return start(i, o) + (forward, backward)[kind][s]

    @functools.cache
    def leave(kind, sender, k):
        own = lists[sender % p]
        sent = [one[1] for one in own if one[0] == kind and one[2] == sender]
        place = sent.index(k)
        before = leave(kind, sender, sent[place - 1]) if place else 0
        wire = wire_f[sender] if kind == 0 else wire_b[sender - 1]
        posted = end(sender % p, own.index((kind, k, sender)))
        return max(posted, before) + wire

    lengths = [len(one) for one in lists]
    starts = [start(i, o) for i in range(p) for o in range(lengths[i])]
    ends = [end(i, o) for i in range(p) for o in range(lengths[i])]
    return starts, ends, [end(i, lengths[i] - 1) for i in range(p)]


def run(schedule, pipeline, kernel=timeline):
    p, m, forward, *rest = pipeline
    program = SCHEDULES[schedule].program(p, m, len(forward) // p)
    return kernel(*program, m, forward, *rest)


@every
@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_the_sweep_solves_the_recurrence(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    status, *found = run(schedule, pipeline)
    assert status == 0
    for values, expected in zip(found, reference(schedule, *pipeline), strict=True):
        assert values.tolist() == expected


@every
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_compiled_kernel_is_its_python_function(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    compiled = run(schedule, pipeline)
    interpreted = run(schedule, pipeline, timeline.py_func)
    assert compiled[0] == interpreted[0]
    for one, other in zip(compiled[1:], interpreted[1:], strict=True):
        assert one.tolist() == other.tolist()


@settings(deadline=None, max_examples=100)
@given(pipeline=pipelines("gpipe", most_stages=8, most_microbatches=20))
def test_gpipe_has_its_closed_form_for_every_microbatch_count(pipeline):
    _, m, forward, backward, *transfers = pipeline
    wire_f, wire_b, *_ = transfers
    _, _, _, ends = run("gpipe", pipeline)
    once = forward.sum() + backward.sum() + sum(t.sum() for t in transfers)
    pace_f = max(forward.max(), wire_f.max(initial=0))
    pace_b = max(backward.max(), wire_b.max(initial=0))
    assert ends.max() == once + (m - 1) * (pace_f + pace_b)


@settings(deadline=None, max_examples=100)
@given(pipeline=pipelines("1f1b", most_stages=8, most_microbatches=20))
def test_1f1b_is_within_its_interval_bound(pipeline):
    # The largest mean of an interval of stages with the round trips inside it.
    _, m, forward, backward, *transfers = pipeline
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


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 7), (4, 1), (4, 3), (4, 16), (16, 5)])
def test_equal_stages_without_transfers_wait_only_to_fill_and_drain(schedule, p, m):
    none = np.zeros(p - 1)
    pipeline = (p, m, np.full(p, 3.0), np.full(p, 5.0), none, none, none, none)
    _, _, _, ends = run(schedule, pipeline)
    assert ends.max() == (m + p - 1) * 8.0


@settings(deadline=None, max_examples=100)
@given(
    p=st.integers(2, 8),
    v=st.integers(2, 6),
    rounds=st.integers(1, 5),
    forward=st.integers(0, 9).map(float),
    backward=st.integers(0, 9).map(float),
)
def test_interleaving_divides_the_bubble_of_equal_chunks_by_their_number(
    p, v, rounds, forward, backward
):
    # T = m t + (p - 1) / v t, where t = v (forward + backward) is a stage's time.
    m, none = p * rounds, np.zeros(v * p - 1)
    times = np.full(v * p, forward), np.full(v * p, backward)
    _, _, _, ends = run("interleaved-1f1b", (p, m, *times, *[none] * 4))
    chunk = forward + backward
    assert ends.max() == m * v * chunk + (p - 1) * chunk
    # The first stage is the first to begin and the last to end.
    assert ends[0] == ends.max()


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 2)])
@pytest.mark.parametrize("backward", [8.0, 12.0, 24.0])
def test_messages_as_long_as_a_chunks_forward_pass_cost_no_time_in_between(
    p, v, backward
):
    # In the steady state a round adds its compute and nothing else; messages that are
    # longer do show.
    def slope(one_way):
        none, delay = np.zeros(v * p - 1), np.full(v * p - 1, one_way)
        times = np.full(v * p, 8.0), np.full(v * p, backward)
        ends = [
            run("interleaved-1f1b", (p, p * rounds, *times, none, none, delay, delay))
            for rounds in (30, 60)
        ]
        return (ends[1][3].max() - ends[0][3].max()) / (30 * p)

    assert slope(8.0) == v * (8.0 + backward)
    assert slope(9.0) > v * (8.0 + backward)


@every
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_doubling_all_times_doubles_the_answer(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    p, m, *times = pipeline
    _, start, *_ = run(schedule, pipeline)
    _, twice, *_ = run(schedule, (p, m, *(2 * t for t in times)))
    assert twice.tolist() == (2 * start).tolist()


def test_lists_that_wait_for_each_other_in_a_circle_are_reported():
    # The first stage wants the gradient before it sends the activation.
    one, boundary = np.ones(2), np.ones(1)
    status, *_ = timeline(
        np.array([0, 2, 4]),
        np.array([1, 0, 0, 1]),
        np.zeros(4, np.int64),
        np.zeros(4, np.int64),
        1,
        one,
        one,
        *[boundary] * 4,
    )
    assert status == 1
