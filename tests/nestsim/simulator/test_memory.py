import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nestsim.simulator.memory import stage_memory_timeline
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.replay import replay
from nestsim.simulator.work import StageMemory
from planner.schedules import SCHEDULES
from tests.nestsim.simulator.cases import (
    contended_step,
    pipeline,
    step_sizes,
    switch,
)

sizes = st.integers(0, 50).map(float)


ONE_MICROBATCH = StageProgram((), np.array([0, 1]), np.zeros(2), np.zeros(2))


@st.composite
def stage_memories(draw, num_chunks):
    return StageMemory(
        static={"weights": draw(sizes), "optimizer": draw(sizes)},
        saved_per_microbatch=tuple(draw(sizes) for _ in range(num_chunks)),
        forward_working=draw(sizes),
        backward_working=draw(sizes),
    )


@pytest.mark.parametrize("schedule", list(SCHEDULES))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_the_peak_is_what_the_schedule_keeps_plus_the_larger_working_set(
    schedule, data
):
    p, m, v = data.draw(step_sizes(schedule))
    memory = tuple(data.draw(stage_memories(v)) for _ in range(p))
    work = pipeline(
        np.arange(p).reshape(p, 1, 1),
        m,
        num_chunks=v,
        schedule=schedule,
        memory=memory,
    )
    timelines = replay(switch(p), work).memory
    for stage, (one, found) in enumerate(zip(memory, timelines, strict=True)):
        static = sum(one.static.values())
        held = SCHEDULES[schedule].held(stage, p, m, v)
        kept = (held @ np.array(one.saved_per_microbatch)).max()
        working = max(one.forward_working, one.backward_working)
        assert found.peak == static + kept + working
        assert sum(found.peak_parts.values()) == found.peak
        assert set(found.peak_parts) == {*one.static, "activations", "working"}
        assert found.peak == max(found.total)
        assert found.peak_time == found.times[found.total.index(found.peak)]
        assert found.total[0] <= found.peak
        assert found.total[-1] == static


def test_equal_chunks_keep_as_many_activations_as_the_schedule_says():
    p, m, v = 4, 8, 2
    one = StageMemory(
        static={"weights": 9.0},
        saved_per_microbatch=(3.0, 3.0),
        forward_working=1.0,
        backward_working=2.0,
    )
    work = pipeline(np.arange(p).reshape(p, 1, 1), m, num_chunks=v, memory=(one,) * p)
    peaks = [found.peak for found in replay(switch(p), work).memory]
    assert peaks == [9.0 + kept * 3.0 + 2.0 for kept in (11, 9, 7, 5)]


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_the_account_is_that_of_the_spans_moment_by_moment(num_chunks):
    net, work = contended_step(num_chunks=num_chunks, num_microbatches=8)
    result = replay(net, work)
    spans = result.spans
    for stage, found in enumerate(result.memory):
        memory = work.memory[stage]
        static = sum(memory.static.values())
        chosen = (spans.stage == stage) & (spans.replica == 0)
        rows = list(
            zip(
                spans.kind[chosen],
                zip(spans.microbatch[chosen], spans.chunk[chosen], strict=True),
                spans.start[chosen],
                spans.end[chosen],
                strict=True,
            )
        )
        forward = {one: start for kind, one, start, _ in rows if kind == 0}
        backward = {one: end for kind, one, _, end in rows if kind == 1}
        for moment, total in zip(found.times, found.total, strict=True):
            held = static
            for one, start in forward.items():
                if start <= moment < backward[one]:
                    held += memory.saved_per_microbatch[one[1]]
            for kind, _, start, end in rows:
                if start <= moment < end:
                    held += (memory.forward_working, memory.backward_working, 0)[kind]
            assert total == held
        assert list(found.times) == sorted(set(found.times))
        assert found.times[0] == 0.0


def test_the_replica_with_the_largest_peak_is_shown_the_first_of_equals():
    memory = StageMemory(
        static={},
        saved_per_microbatch=(4.0,),
        forward_working=1.0,
        backward_working=0.0,
    )
    early = (np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    late = (np.array([5.0, 6.0]), np.array([6.0, 7.0]))
    found = stage_memory_timeline(memory, ONE_MICROBATCH, [late, early])
    assert found.peak == 5.0
    assert found.peak_time == 5.0
    assert found.times == (0.0, 5.0, 6.0, 7.0)
    assert found.total == (0.0, 5.0, 4.0, 0.0)


def test_passes_without_duration_still_show_their_peak():
    memory = StageMemory(
        static={},
        saved_per_microbatch=(4.0,),
        forward_working=1.0,
        backward_working=3.0,
    )
    instant = (np.zeros(2), np.zeros(2))
    found = stage_memory_timeline(memory, ONE_MICROBATCH, [instant])
    assert found.peak == 7.0
    assert max(found.total) == 7.0
    assert found.total[-1] == 0.0
