import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.programs import StageProgram
from nestsim.simulator.replay import replay, stage_memory_timeline
from nestsim.simulator.work import Held, StageMemory
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT
from planner.step.schedules import SCHEDULES
from tests import failures
from tests.nestsim.simulator.cases import (
    contended_step,
    pipeline,
    replay_all,
    stage_memory,
    step_sizes,
    switch,
)

sizes = st.integers(0, 50).map(float)


ONE_MICROBATCH = StageProgram(
    (), np.array([0, 1]), np.zeros(2, np.int64), np.zeros(2, np.int64)
)


@st.composite
def stage_memories(draw, num_chunks, kinds):
    """Anything that may be held between two kinds of passes."""
    held = []
    for _ in range(draw(st.integers(0, 6))):
        begin = draw(st.sampled_from(kinds))
        end = draw(st.sampled_from([kind for kind in kinds if kind >= begin]))
        part = draw(st.sampled_from("abc"))
        chunk = draw(st.integers(0, num_chunks - 1))
        held.append(Held(part, chunk, begin, end, draw(sizes)))
    return StageMemory(
        static={"weights": draw(sizes), "optimizer": draw(sizes)}, held=tuple(held)
    )


def work_of(schedule, p, m, v, memory):
    return pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=schedule,
        weight_time=np.full(v * p, 1.0 * SCHEDULES[schedule].splits_backward),
        memory=memory,
    )


@failures.over("schedule", list(SCHEDULES))
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_held_is_allocated_and_released_with_its_passes(schedule, data):
    p, m, v = data.draw(step_sizes(schedule))
    kinds = [FORWARD, BACKWARD]
    kinds += [WEIGHT] * SCHEDULES[schedule].splits_backward
    memory = tuple(data.draw(stage_memories(v, kinds)) for _ in range(p))
    result = replay_all(switch(p), work_of(schedule, p, m, v, memory))
    spans = result.spans
    for stage, (one, found) in enumerate(zip(memory, result.memory, strict=True)):
        own = spans.stage == stage
        rows = zip(*(column[own].tolist() for column in spans[2:]), strict=True)
        times = {(kind, n, c): (start, end) for kind, n, c, start, end in rows}
        static = sum(one.static.values())
        for moment, total in zip(found.times, found.total, strict=True):
            held = static
            for part in one.held:
                for n in range(m):
                    begin, _ = times[part.begin, n, part.chunk]
                    _, end = times[part.end, n, part.chunk]
                    held += part.num_bytes * (begin <= moment < end)
            assert total == held
        assert list(found.times) == sorted(set(found.times))
        assert (found.times[0], found.total[-1]) == (0.0, static)
        assert found.peak == max(found.total) == sum(found.peak_parts.values())
        assert found.peak_time == found.times[found.total.index(found.peak)]
        assert set(found.peak_parts) == {*one.static, *(h.part for h in one.held)}


@failures.over("schedule", list(SCHEDULES))
@settings(max_examples=40)
@given(data=st.data())
def test_the_peak_is_what_the_schedule_keeps_plus_the_larger_working_set(
    schedule, data
):
    p, m, v = data.draw(step_sizes(schedule))
    known = SCHEDULES[schedule]
    last = WEIGHT if known.splits_backward else BACKWARD
    saved = [[data.draw(sizes) for _ in range(v)] for _ in range(p)]
    working = data.draw(sizes)
    memory = tuple(
        StageMemory(
            static={"weights": 3.0},
            held=tuple(
                held
                for chunk, kept in enumerate(own)
                for held in (
                    Held("activations", chunk, FORWARD, last, kept),
                    Held("working", chunk, FORWARD, FORWARD, working),
                    Held("working", chunk, BACKWARD, BACKWARD, working),
                    Held("working", chunk, last, last, working * (last == WEIGHT)),
                )
            ),
            warmup=known.in_flight(stage, p, m, v) if known.pairs_layers else None,
        )
        for stage, own in enumerate(saved)
    )
    timelines = replay(switch(p), work_of(schedule, p, m, v, memory)).memory
    for stage, (own, found) in enumerate(zip(saved, timelines, strict=True)):
        held = SCHEDULES[schedule].held(stage, p, m, v)
        assert found.peak == 3.0 + (held @ np.array(own)).max() + working


def test_equal_chunks_keep_as_many_activations_as_the_schedule_says():
    p, m, v = 4, 8, 2
    one = stage_memory({"weights": 9.0}, [3.0, 3.0], forward=1.0, backward=2.0)
    work = pipeline(np.arange(p).reshape(p, 1, 1), m, num_chunks=v, memory=(one,) * p)
    peaks = [found.peak for found in replay(switch(p), work).memory]
    assert peaks == [9.0 + kept * 3.0 + 2.0 for kept in (11, 9, 7, 5)]


@failures.over("num_chunks", [1, 2])
def test_the_account_does_not_depend_on_contention(num_chunks):
    net, work = contended_step(num_chunks=num_chunks, num_microbatches=8)
    calm = pipeline(
        work.devices,
        8,
        num_chunks=num_chunks,
        schedule=work.schedule,
        memory=work.memory,
    )
    found, alone = replay_all(net, work).memory, replay_all(net, calm).memory
    for one, other in zip(found, alone, strict=True):
        assert one.peak_parts == other.peak_parts


def test_the_replica_with_the_largest_peak_is_shown_the_first_of_equals():
    memory = stage_memory({}, [4.0], forward=1.0)
    early = (np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    late = (np.array([5.0, 6.0]), np.array([6.0, 7.0]))
    found = stage_memory_timeline(memory, ONE_MICROBATCH, [late, early])
    assert found.peak == 5.0
    assert found.peak_time == 5.0
    assert found.times == (0.0, 5.0, 6.0, 7.0)
    assert found.total == (0.0, 5.0, 4.0, 0.0)


def test_passes_without_duration_still_show_their_peak():
    memory = stage_memory({}, [4.0], forward=1.0, backward=3.0)
    instant = (np.zeros(2), np.zeros(2))
    found = stage_memory_timeline(memory, ONE_MICROBATCH, [instant])
    assert found.peak == 7.0
    assert max(found.total) == 7.0
    assert found.total[-1] == 0.0
