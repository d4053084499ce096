import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.kernels.timeline import timeline
from planner.schedules import BACKWARD, FORWARD, SCHEDULES, find_schedule
from topologies.errors import InputError

pytestmark = pytest.mark.parametrize("name", list(SCHEDULES))

sizes = {
    "p": st.integers(1, 9),
    "m": st.integers(1, 20),
}


def words(schedule, stage, p, m):
    kinds, microbatches = SCHEDULES[schedule].instructions(stage, p, m)
    return [
        "FB"[kind] + str(microbatch)
        for kind, microbatch in zip(kinds, microbatches, strict=True)
    ]


@settings(deadline=None, max_examples=60)
@given(**sizes)
def test_each_stage_has_one_forward_and_then_one_backward_of_each_microbatch(
    name, p, m
):
    for stage in range(p):
        kinds, microbatches = SCHEDULES[name].instructions(stage, p, m)
        done = [set(), set()]
        for kind, microbatch in zip(kinds, microbatches, strict=True):
            assert microbatch not in done[kind]
            if kind == BACKWARD:
                assert microbatch in done[FORWARD]
            done[kind].add(microbatch)
        assert done == [set(range(m))] * 2


@settings(deadline=None, max_examples=60)
@given(**sizes)
def test_in_flight_is_the_most_microbatches_that_wait_for_their_backward(name, p, m):
    for stage in range(p):
        kinds, _ = SCHEDULES[name].instructions(stage, p, m)
        alive, most = 0, 0
        for kind in kinds:
            # A backward pass still holds its own microbatch while it runs.
            alive += 1 if kind == FORWARD else -1
            most = max(most, alive)
        assert SCHEDULES[name].in_flight(stage, p, m) == most


@settings(deadline=None, max_examples=60)
@given(**sizes)
def test_the_stages_do_not_wait_for_each_other_in_a_circle(name, p, m):
    import numpy as np

    program = SCHEDULES[name].program(p, m)
    assert program.indptr.tolist() == [2 * m * stage for stage in range(p + 1)]
    stages, boundaries = np.ones(p), np.ones(p - 1)
    status, *_ = timeline(*program, m, stages, stages, *[boundaries] * 4)
    assert status == 0


def test_schedules_read_as_in_the_papers(name):
    expected = {
        "1f1b": [
            "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
            "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
            "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
        ],
        "gpipe": ["F0 F1 F2 F3 F4 B0 B1 B2 B3 B4"] * 4,
    }
    assert [" ".join(words(name, i, 4, 5)) for i in range(4)] == expected[name]


def test_names_are_the_keys(name):
    assert SCHEDULES[name].name == name
    assert find_schedule(name) is SCHEDULES[name]


def test_an_unknown_schedule_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match="no such schedule") as caught:
        find_schedule("zigzag")
    assert f'"{name}"' in caught.value.expected


def test_reading_schedules_imports_no_compiler(name):
    code = f"""
import sys, planner.schedules as s
s.SCHEDULES[{name!r}].program(4, 8)
sys.exit(any(heavy in sys.modules for heavy in ("numba", "torch", "simpy")))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
