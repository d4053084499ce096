import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import (
    BoundaryTimes,
    InstructionLists,
    instruction_timeline,
    timeline,
)
from planner.step.schedules import SCHEDULES
from tests import failures

every = failures.over("schedule", list(SCHEDULES))


@st.composite
def pipelines(draw, schedule, *, most_stages=6, most_microbatches=12):
    """Stages, microbatches and integer durations: all sums are exact."""
    if SCHEDULES[schedule].interleaves:
        one = SCHEDULES[schedule]
        p = draw(st.integers(2, most_stages))
        v = one.num_chunks or draw(st.integers(2, 3))
        least = max(one.least_rounds, 1)
        m = p * draw(st.integers(least, max(least, most_microbatches // p)))
    else:
        p, v = draw(st.integers(1, most_stages)), 1
        m = draw(st.integers(1, most_microbatches))

    def times(count, most):
        values = st.lists(st.integers(0, most), min_size=count, max_size=count)
        return np.array(draw(values), dtype=np.float64)

    n = v * p
    durations = np.stack([times(n, 9) for _ in range(3)])
    return (p, m, durations, *(times(n - 1, most) for most in (6, 6, 3, 3)))


def reference(schedule, p, m, durations, *transfers, each=None, floors=None):
    """Follow each instruction's causes back, recursively.

    ``each`` and ``floors`` are those of single instructions, stage by stage.
    """
    wire_f, wire_b, latency_f, latency_b = transfers
    num_virtual = durations.shape[1]
    last = num_virtual - 1
    virtual = SCHEDULES[schedule].virtual_stages(p, num_virtual // p)
    number, place_of = virtual.number.tolist(), virtual.stage.tolist()
    lists = [
        [(int(kind), int(k), number[i][c]) for kind, k, c in zip(*one, strict=True)]
        for i in range(p)
        for one in [SCHEDULES[schedule].instructions(i, p, m, num_virtual // p)]
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
        if each is None:
            return start(i, o) + durations[kind][s]
        number = sum(len(one) for one in lists[:i]) + o
        return max(start(i, o) + each[number], floors[number])

    @functools.cache
    def leave(kind, sender, k):
        own = lists[place_of[sender]]
        sent = [one[1] for one in own if one[0] == kind and one[2] == sender]
        place = sent.index(k)
        before = leave(kind, sender, sent[place - 1]) if place else 0
        wire = wire_f[sender] if kind == 0 else wire_b[sender - 1]
        posted = end(place_of[sender], own.index((kind, k, sender)))
        return max(posted, before) + wire

    lengths = [len(one) for one in lists]
    starts = [start(i, o) for i in range(p) for o in range(lengths[i])]
    ends = [end(i, o) for i in range(p) for o in range(lengths[i])]
    return starts, ends, [end(i, lengths[i] - 1) for i in range(p)]


def run(schedule, pipeline, kernel=timeline):
    p, m, durations, *rest = pipeline
    program = SCHEDULES[schedule].program(p, m, durations.shape[1] // p)
    return kernel(InstructionLists(*program), m, durations, BoundaryTimes(*rest))


def equal_stages(count, *each):
    """Durations of stages that are all alike."""
    forward, backward, *weight = each
    return np.outer([forward, backward, *(weight or [0.0])], np.ones(count))


@every
@settings(max_examples=40)
@given(data=st.data())
def test_the_sweep_solves_the_recurrence(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    status, *found = run(schedule, pipeline)
    assert status == 0
    for values, expected in zip(found, reference(schedule, *pipeline), strict=True):
        assert values.tolist() == expected


@every
@settings(max_examples=25)
@given(data=st.data())
def test_the_compiled_kernel_is_its_python_function(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    compiled = run(schedule, pipeline)
    interpreted = run(schedule, pipeline, timeline.py_func)
    assert compiled[0] == interpreted[0]
    for one, other in zip(compiled[1:], interpreted[1:], strict=True):
        assert one.tolist() == other.tolist()


@failures.over("schedule", ["1f1b", "gpipe"])
@failures.over(("p", "m"), [(1, 1), (1, 7), (4, 1), (4, 3), (4, 16), (16, 5)])
def test_equal_stages_without_transfers_wait_only_to_fill_and_drain(schedule, p, m):
    none = np.zeros(p - 1)
    _, _, _, ends = run(schedule, (p, m, equal_stages(p, 3.0, 5.0), *[none] * 4))
    assert ends.max() == (m + p - 1) * 8.0


@settings(max_examples=50)
@given(
    p=st.integers(1, 8),
    rounds=st.integers(0, 20),
    weight=st.integers(1, 5),
    longer=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_zb_h1_hides_all_but_a_third_of_the_bubble_of_equal_stages(
    p, rounds, weight, longer
):
    # Qi et al., table 2: (p - 1) (f + b - w) instead of (p - 1) (f + b + w).
    forward, backward = (weight + extra for extra in longer)
    m, none = p + rounds, np.zeros(p - 1)
    durations = equal_stages(p, forward, backward, weight)
    _, _, _, ends = run("zb-h1", (p, m, durations, *[none] * 4))
    whole = forward + backward + weight
    assert ends.max() == m * whole + (p - 1) * (whole - 2 * weight)


@settings(max_examples=50)
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
    durations = equal_stages(v * p, forward, backward)
    _, _, _, ends = run("interleaved-1f1b", (p, m, durations, *[none] * 4))
    chunk = forward + backward
    assert ends.max() == m * v * chunk + (p - 1) * chunk
    # The first stage is the first to begin and the last to end.
    assert ends[0] == ends.max()


@failures.over(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 2)])
@failures.over("backward", [8.0, 12.0, 24.0])
def test_messages_as_long_as_a_chunks_forward_pass_cost_no_time_in_between(
    p, v, backward
):
    # In the steady state a round adds its compute and nothing else; messages that are
    # longer do show.
    def slope(one_way):
        none, delay = np.zeros(v * p - 1), np.full(v * p - 1, one_way)
        times = equal_stages(v * p, 8.0, backward)
        ends = [
            run("interleaved-1f1b", (p, p * rounds, times, none, none, delay, delay))
            for rounds in (30, 60)
        ]
        return (ends[1][3].max() - ends[0][3].max()) / (30 * p)

    assert slope(8.0) == v * (8.0 + backward)
    assert slope(9.0) > v * (8.0 + backward)


@every
@settings(max_examples=20)
@given(data=st.data())
def test_doubling_all_times_doubles_the_answer(schedule, data):
    pipeline = data.draw(pipelines(schedule))
    p, m, *times = pipeline
    _, start, *_ = run(schedule, pipeline)
    _, twice, *_ = run(schedule, (p, m, *(2 * t for t in times)))
    assert twice.tolist() == (2 * start).tolist()


def test_lists_that_wait_for_each_other_in_a_circle_are_reported():
    # The first stage wants the gradient before it sends the activation.
    durations, boundary = np.ones((3, 2)), np.ones(1)
    status, *_ = timeline(
        InstructionLists(
            indptr=np.array([0, 2, 4]),
            kind=np.array([1, 0, 0, 1]),
            microbatch=np.zeros(4, np.int64),
            virtual_stage=np.zeros(4, np.int64),
        ),
        1,
        durations,
        BoundaryTimes(*[boundary] * 4),
    )
    assert status == 1


@every
@given(data=st.data())
def test_single_passes_may_take_longer_and_end_no_sooner_than_said(schedule, data):
    p, m, durations, *transfers = data.draw(pipelines(schedule))
    program = SCHEDULES[schedule].program(p, m, durations.shape[1] // p)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    each = rng.integers(0, 10, program.kind.size).astype(float)
    floors = rng.integers(0, 100, program.kind.size) * (rng.random(each.size) < 0.2)
    lists, boundaries = InstructionLists(*program), BoundaryTimes(*transfers)
    found = instruction_timeline(lists, m, each, floors * 1.0, boundaries)
    status, *answers = (np.asarray(one).tolist() for one in found)
    assert status == 0
    assert answers == [
        list(one)
        for one in reference(
            schedule, p, m, durations, *transfers, each=each, floors=floors
        )
    ]
