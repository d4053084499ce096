"""Programs of actors and streams, by what a replay makes of them."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.programs import Mark, Part, marked
from nestsim.simulator.system import (
    CLOSES,
    NONE,
    OPENS,
    SPAN_KINDS,
    TRANSFER_KINDS,
    Step,
    Steps,
)
from nestsim.simulator.work import (
    Bucket,
    LayerTraffic,
    LockstepRingPhase,
    LockstepTraffic,
    Move,
    RingPhase,
)
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import (
    actor_slowdowns,
    contended_step,
    full_mesh,
    pipeline,
    replay_all,
    step_sizes,
    switch,
)

schedules = failures.over("schedule", list(SCHEDULES))


def kind(name):
    return TRANSFER_KINDS.index(name)


def chosen(rows, **keys):
    """Return the rows whose columns have these values, as tuples of (start, end)."""
    own = np.ones(rows.start.size, dtype=bool)
    for name, value in keys.items():
        own &= getattr(rows, name) == value
    return list(zip(rows.start[own].tolist(), rows.end[own].tolist(), strict=True))


def alone(num_stages, num_microbatches, schedule="1f1b", **changes):
    return pipeline(
        np.arange(num_stages).reshape(-1, 1, 1),
        num_microbatches,
        schedule=schedule,
        **changes,
    )


# Passes in parts.


@given(
    durations=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    places=st.lists(st.integers(0, 16), max_size=5),
    after=st.sampled_from([1.0, 2.0]),
)
def test_marks_are_where_they_belong_and_leave_the_work_as_it_is(
    durations, places, after
):
    parts = tuple(
        Part(float(duration), 10 + n, 1, 20 + n) for n, duration in enumerate(durations)
    )
    total = sum(durations)
    marks = [Mark(place / 16, target=30 + n) for n, place in enumerate(sorted(places))]
    found = marked(parts, marks, after=after)
    first = sorted(places)[0] / 16 * total if places else total
    past, order = 0.0, []
    for part in found:
        past += part.duration
        order += [one for one in (part.target,) if one != NONE]
        if 30 <= part.target < 40:
            at = marks[part.target - 30].at * total
            assert past == pytest.approx(min(at, first) + after * max(0, at - first))
    assert past == pytest.approx(first + after * (total - first))
    assert [one for one in order if one < 30] == [part.target for part in parts]
    assert [one for one in order if one >= 30] == [mark.target for mark in marks]
    assert [p.source for p in found if p.source != NONE] == [p.source for p in parts]


def test_a_mark_inside_a_part_that_waits_makes_the_rest_wait():
    found = marked((Part(4.0, 1, 1, 2),), [Mark(0.0, 7, 1), Mark(0.5, 8, 3)])
    assert found == (Part(0.0, 1, 1), Part(2.0, 7, 1), Part(2.0, 8, 3, 2))


# One span for each pass.


@schedules
@settings(max_examples=15)
@given(data=st.data())
def test_every_pass_is_one_span_whatever_it_consists_of(schedule, data):
    p, m, v = data.draw(step_sizes(schedule))
    counts = data.draw(
        st.lists(st.integers(1, 3), min_size=3 * v * p, max_size=3 * v * p)
    )
    one = np.zeros(1, np.int64)
    collectives = tuple(
        (
            LockstepTraffic(
                "tensor",
                one,
                (LockstepRingPhase(np.array([[2 * s, 2 * s + 1]]), one, 5.0, 1),) * 2,
            ),
        )
        for s in range(p)
    )
    moves = [(Move(NONE, 0.5, 0), *[Move(0, 0.25, 0)] * (n - 1)) for n in counts]
    moves = [(*own, Move(0, 0.0, NONE)) for own in moves]
    passes = {k: tuple(moves[k * v * p : (k + 1) * v * p]) for k in range(3)}
    work = pipeline(
        np.arange(2 * p).reshape(p, 1, 2),
        m,
        num_chunks=v,
        schedule=schedule,
        layers=LayerTraffic(collectives=collectives, passes=passes),
    )
    system = build_model(switch(2 * p, bandwidth=10.0), work).system
    for stage, steps in enumerate(system.programs):
        kinds = SCHEDULES[schedule].instructions(stage, p, m, v).kind
        flags = [step.span for step in steps if step.span]
        is_open = False
        for flag in flags:
            assert is_open != bool(flag & OPENS)
            is_open = not flag & CLOSES
        assert sum(bool(flag & OPENS) for flag in flags) == kinds.size + 1
    number = work.virtual_stages().number
    result = replay_all(switch(2 * p, bandwidth=10.0), work)
    # Each collective has two phases of 5 bytes at 10 byte/s, one after another.
    for row in zip(*result.spans, strict=True):
        stage, _, span, _, chunk, start, end = row
        if span < 3:
            count = counts[span * v * p + number[stage, chunk]]
            assert end - start == 0.5 + 0.25 * (count - 1) + 1.0 * count


# Everything inside of layers.


def test_a_team_waits_for_its_slowest_replica():
    # Two replicas exchange inside of their forward passes; the second one works longer.
    collective = LockstepTraffic(
        "expert",
        np.zeros(2, np.int64),
        (LockstepRingPhase(np.array([[0, 1]]), np.zeros(1, np.int64), 4.0, 1),),
    )
    passes = {
        FORWARD: ((Move(NONE, 1.0, 0), Move(0, 1.0, NONE)),),
        BACKWARD: ((Move(NONE, 1.0, NONE),),),
    }
    work = pipeline(
        [[[0], [1]]],
        1,
        layers=LayerTraffic(collectives=((collective,),), passes=passes),
        slowdown=[[1.0, 3.0]],
    )
    result = replay_all(switch(2, bandwidth=2.0), work)
    assert chosen(result.transfers, kind=kind("expert")) == [(3.0, 5.0)]
    forward = SPAN_KINDS.index("forward")
    assert chosen(result.spans, kind=forward, replica=0) == [(0.0, 6.0)]
    assert chosen(result.spans, kind=forward, replica=1) == [(0.0, 8.0)]


def test_traffic_beside_compute_takes_no_longer_than_the_longer_one():
    collective = LockstepTraffic(
        "tensor",
        np.zeros(1, np.int64),
        (LockstepRingPhase(np.array([[0, 1]]), np.zeros(1, np.int64), 4.0, 1),),
    )
    for seconds, expected in ((1.0, 2.0), (5.0, 5.0)):
        passes = {
            FORWARD: (
                (Move(NONE, 0.0, 0), Move(NONE, seconds, NONE), Move(0, 0.0, NONE)),
            ),
            BACKWARD: ((Move(NONE, 1.0, NONE),),),
        }
        work = pipeline(
            [[[0, 1]]],
            1,
            layers=LayerTraffic(collectives=((collective,),), passes=passes),
        )
        result = replay_all(switch(2, bandwidth=2.0), work)
        assert result.iteration_time == expected + 1.0


def test_a_collective_shares_its_links_with_a_transfer():
    # Stage 0 has devices 0 and 1: 2 bytes go round them inside of each forward pass,
    # over the same link out of device 0 as 4 bytes to stage 1, at 1 byte/s.
    collective = LockstepTraffic(
        "tensor",
        np.zeros(1, np.int64),
        (LockstepRingPhase(np.array([[0, 1]]), np.zeros(1, np.int64), 2.0, 1),),
    )
    passes = {
        FORWARD: (
            (Move(NONE, 1.0, 0), Move(0, 0.0, NONE)),
            (Move(NONE, 1.0, NONE),),
        ),
        BACKWARD: ((Move(NONE, 1.0, NONE),),) * 2,
    }
    work = pipeline(
        [[[0, 1]], [[2, 3]]],
        2,
        schedule="gpipe",
        boundary_bytes=[4.0],
        layers=LayerTraffic(collectives=((collective,), ()), passes=passes),
    )
    result = replay_all(switch(4, bandwidth=1.0), work)
    # The first pass is done at 3 s. The second one begins its collective at 4 s, when
    # 3 bytes of the transfer are left: both have half of the link until 8 s.
    forward = chosen(result.spans, stage=0, kind=0)
    assert forward == [(0.0, 3.0), (3.0, 8.0)]
    sent = chosen(result.transfers, kind=kind("activation"))
    assert sent == [(3.0, 9.0), (9.0, 13.0)]


def test_lanes_with_more_to_send_weigh_more():
    # Rank 0 gets 1.5 of what the mean of three gets: 0.75 go to each of the others.
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    weights = np.array([[0.75, 1.5], [0.75, 1.5], [0.75, 0.75]])
    phase = LockstepRingPhase(pairs, np.zeros(3, np.int64), 1.0, 1, weights)
    collective = LockstepTraffic("expert", np.zeros(3, np.int64), (phase,))
    passes = {k: ((Move(NONE, 0.0, 0), Move(0, 0.0, NONE)),) for k in range(2)}
    work = pipeline(
        [[[0], [1], [2]]],
        1,
        layers=LayerTraffic(collectives=((collective,),), passes=passes),
    )
    result = replay_all(switch(3, bandwidth=1.0), work)
    # 3 bytes come down the link to rank 0, in each pass.
    assert result.iteration_time == 6.0
    down = result.links.num_bytes[3:]
    assert down.tolist() == [6.0, 3.0, 3.0]


# Buckets.

RING = np.array([[0, 1]])


def bucket(at, size, chunk=0):
    return Bucket(chunk, at, (RingPhase(RING, size, 1),))


def test_gradient_buckets_leave_one_after_another_behind_the_last_backward_pass():
    # Two replicas, passes of 4 s, links of 1 byte/s. Buckets are full at 1, 2 and 4 s
    # of the last backward pass, which begins at 4 + 4 + 4 = 12 s.
    work = pipeline(
        [[[0], [1]]],
        2,
        forward_time=[4.0],
        backward_time=[4.0],
        reduce_buckets=((bucket(0.25, 2.0), bucket(0.5, 2.0), bucket(1.0, 1.0)),),
        optimizer_time=[1.0],
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    assert chosen(result.transfers, kind=kind("reduce")) == [
        (13.0, 15.0),
        (15.0, 17.0),
        (17.0, 18.0),
    ]
    optimizer = chosen(result.spans, kind=SPAN_KINDS.index("optimizer"), replica=0)
    assert optimizer == [(18.0, 19.0)]


def test_parameter_buckets_are_waited_for_where_they_are_needed():
    # Gathered by 2, 4 and 6 s; the first forward pass of 4 s needs them at 0, 1 and 2 s
    # of its work.
    gathers = (bucket(0.0, 2.0), bucket(0.25, 2.0), bucket(0.5, 2.0))
    work = pipeline(
        [[[0], [1]]],
        2,
        forward_time=[4.0],
        backward_time=[4.0],
        gather_buckets=(gathers,),
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    assert chosen(result.transfers, kind=kind("gather")) == [
        (0.0, 2.0),
        (2.0, 4.0),
        (4.0, 6.0),
    ]
    forward = chosen(result.spans, kind=0, replica=1)
    # What is waited for before the pass begins is no part of it.
    assert forward[0] == (2.0, 8.0)
    assert result.iteration_time == 8.0 + 4.0 + 4.0 + 4.0


def test_compute_beside_buckets_is_slowed_down():
    work = pipeline(
        [[[0], [1]]],
        1,
        forward_time=[4.0],
        backward_time=[4.0],
        reduce_buckets=((bucket(0.5, 1.0), bucket(1.0, 1.0)),),
        gather_buckets=((bucket(0.0, 1.0),),),
        interference=1.5,
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    assert chosen(result.spans, kind=0, replica=0) == [(1.0, 7.0)]
    assert chosen(result.spans, kind=1, replica=0) == [(7.0, 12.0)]
    # Nothing is gathered beside a pass that has no buckets.
    apart = replay_all(
        full_mesh(2, bandwidth=1.0), dataclasses.replace(work, gather_buckets=((),))
    )
    assert chosen(apart.spans, kind=0, replica=0) == [(0.0, 4.0)]


def test_later_stages_gather_before_their_first_pass_and_are_not_slowed_down():
    rings = [RingPhase(np.array([[s, s + 1]]), 1.0, 1) for s in (0, 2)]
    work = pipeline(
        [[[0], [1]], [[2], [3]]],
        1,
        forward_time=[4.0, 4.0],
        backward_time=[4.0, 4.0],
        gather_buckets=tuple((Bucket(0, 0.0, (ring,)),) for ring in rings),
        interference=1.5,
    )
    result = replay_all(full_mesh(4, bandwidth=1.0), work)
    assert chosen(result.spans, kind=0, replica=0) == [(1.0, 7.0), (7.0, 11.0)]


def test_a_bucket_leaves_when_its_slowest_replica_has_filled_it():
    work = pipeline(
        [[[0], [1]]],
        1,
        reduce_buckets=((bucket(0.5, 1.0), bucket(1.0, 1.0)),),
        slowdown=[[1.0, 2.0]],
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    assert chosen(result.transfers, kind=kind("reduce")) == [(3.0, 4.0), (4.0, 5.0)]


@failures.over("num_chunks", [1, 2])
def test_buckets_of_several_phases_and_chunks_all_arrive(num_chunks):
    net, work = contended_step(num_chunks=num_chunks, num_microbatches=8)
    p, v = work.devices.shape[0], num_chunks
    rings = [phases[0].rings for phases in work.reduce_phases]

    def buckets(stage, chunks):
        phases = (RingPhase(rings[stage], 3e5, 3), RingPhase(rings[stage], 1e5, 3))
        return tuple(Bucket(c, at, phases) for c in chunks for at in (0.3, 1.0))

    work = dataclasses.replace(
        work,
        reduce_phases=((),) * p,
        gather_phases=((),) * p,
        reduce_buckets=tuple(buckets(s, reversed(range(v))) for s in range(p)),
        gather_buckets=tuple(buckets(s, range(v)) for s in range(p)),
    )
    result = replay_all(net, work)
    for name in ("reduce", "gather"):
        own = result.transfers.kind == kind(name)
        assert own.sum() == p * v * 4
        for stage in range(p):
            times = chosen(result.transfers, kind=kind(name), stage=stage)
            assert all(a[1] <= b[0] for a, b in pairwise(times))
    optimizer = result.spans.kind == SPAN_KINDS.index("optimizer")
    last = result.transfers.end[result.transfers.kind == kind("tied")].max()
    ends = [0, p - 1]
    of_ends = optimizer & np.isin(result.spans.stage, ends)
    assert np.all(result.spans.start[of_ends] == last)
    assert -1 not in result.transfers.kind


# Blocking transfers.


@schedules
@settings(max_examples=25)
@given(data=st.data())
def test_blocking_transfers_never_lock_up_and_are_never_faster(schedule, data):
    p, m, v = data.draw(step_sizes(schedule, most_stages=6, most_microbatches=12))

    def numbers(count, most):
        values = st.lists(st.integers(0, most), min_size=count, max_size=count)
        return np.array(data.draw(values), dtype=np.float64)

    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=schedule,
        forward_time=numbers(v * p, 8),
        backward_time=numbers(v * p, 8),
        weight_time=numbers(v * p, 8) * SCHEDULES[schedule].splits_backward,
        boundary_bytes=numbers(v * p - 1, 8),
    )
    # With several chunks, messages of one pair share a link: earlier is then not
    # always better for all.
    net = full_mesh(p, bandwidth=1.0, latency=0.5 if v == 1 else 0.0)
    if v > 1:
        work = dataclasses.replace(work, boundary_bytes=0.0 * work.boundary_bytes)
    blocking = replay_all(net, dataclasses.replace(work, blocking_transfers=True))
    assert blocking.iteration_time >= replay_all(net, work).iteration_time
    kinds = 3 if SCHEDULES[schedule].splits_backward else 2
    assert (blocking.spans.microbatch >= 0).sum() == kinds * p * m * v
    assert blocking.transfers.start.size == 2 * (v * p - 1) * m
    assert (blocking.transfers.microbatch >= 0).all()


@settings(max_examples=25)
@given(p=st.integers(1, 6), data=st.data())
def test_blocking_1f1b_has_the_cycle_time_of_its_slowest_stage(p, data):
    def numbers(count, least, most):
        values = st.lists(st.integers(least, most), min_size=count, max_size=count)
        return np.array(data.draw(values), dtype=np.float64)

    times, wire = numbers(2 * p, 1, 9).reshape(2, p), numbers(p - 1, 0, 6)
    ends = []
    for m in (60, 120):
        work = alone(
            p,
            m,
            forward_time=times[0],
            backward_time=times[1],
            boundary_bytes=wire,
            blocking_transfers=True,
        )
        ends.append(replay_all(full_mesh(p, bandwidth=1.0), work).iteration_time)
    padded = np.concatenate(([0.0], wire, [0.0]))
    pace = times.sum(axis=0) + padded[:-1] + padded[1:]
    assert ends[1] - ends[0] == 60 * pace.max()


def test_a_blocking_exchange_starts_when_both_sides_are_ready():
    # Stage 0 is done at 1 s; stage 1 takes the message at once, and works until 6 s.
    work = alone(
        2,
        2,
        forward_time=[1.0, 3.0],
        backward_time=[1.0, 1.0],
        boundary_bytes=[2.0],
        blocking_transfers=True,
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    sent = chosen(result.transfers, kind=kind("activation"))
    # The second message, ready at 4 s, leaves with the gradient coming back at 7 s.
    assert sent == [(1.0, 3.0), (7.0, 9.0)]
    assert chosen(result.transfers, kind=kind("gradient"))[0] == (7.0, 9.0)
    assert chosen(result.spans, stage=0, kind=1)[0] == (9.0, 10.0)


def test_with_chunks_a_sender_waits_until_its_message_has_arrived():
    work = pipeline(
        [[[0]], [[1]]],
        2,
        num_chunks=2,
        boundary_bytes=[2.0, 0.0, 0.0],
        blocking_transfers=True,
    )
    result = replay_all(full_mesh(2, bandwidth=1.0), work)
    first = chosen(result.spans, stage=0, kind=0, chunk=0)
    assert first == [(0.0, 1.0), (3.0, 4.0)]


# Slow devices.


@schedules
def test_a_slow_device_slows_its_actor_alone(schedule):
    p, m, v = (2, 4, 2) if SCHEDULES[schedule].interleaves else (3, 4, 1)
    slowdown = np.ones(6 * 2)
    slowdown[3] = 2.5
    devices = np.arange(2 * p * 2).reshape(2, p, 2).transpose(1, 0, 2)
    work = pipeline(
        devices,
        m,
        num_chunks=v,
        schedule=schedule,
        weight_time=np.full(v * p, 1.0 * SCHEDULES[schedule].splits_backward),
        optimizer_time=[1.0] * p,
        slowdown=actor_slowdowns(devices, slowdown),
    )
    assert work.kind.tolist()[1] == [1, 0]
    model = build_model(full_mesh(p * 4), work)
    assert len(model.system.programs) == p + 1
    assert model.system.program.tolist()[:4] == [0, 0, 2, 1]
    spans = replay_all(full_mesh(p * 4), work).spans
    slow = (spans.stage == 1) & (spans.replica == 0)
    lengths = spans.end - spans.start
    assert set(lengths[slow].tolist()) == {2.5}
    assert set(lengths[~slow].tolist()) == {1.0}


def test_a_slow_device_does_not_stretch_what_is_sent():
    work = pipeline(
        [[[0]]],
        1,
        forward_time=[4.0],
        sent_time={FORWARD: np.array([3.0])},
        slowdown=[[2.0]],
    )
    spans = replay_all(switch(1), work).spans
    assert (spans.end - spans.start).tolist()[:2] == [5.0, 2.0]


def test_weight_gradients_are_spans_of_their_own():
    work = alone(2, 3, "zb-h1", weight_time=[0.5, 0.5])
    spans = replay_all(full_mesh(2), work).spans
    weight = spans.kind == SPAN_KINDS.index("weight")
    assert weight.sum() == 6
    assert set((spans.end - spans.start)[weight].tolist()) == {0.5}
    assert SPAN_KINDS[: WEIGHT + 1] == ("forward", "backward", "weight")


# Programs as columns.


def test_a_program_is_the_steps_that_it_was_written_with():
    steps = [Step(0.5, NONE, 0, 2, OPENS), Step(0.0, 1, 3, NONE, CLOSES)]
    columns = Steps.of(steps)
    assert len(columns) == 2
    assert list(columns) == steps
    assert (columns.duration.dtype, columns.need.dtype) == (np.float64, np.int64)
    assert len(Steps.of([])) == 0
    assert list(Steps.of([])) == []
