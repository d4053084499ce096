"""The integer program of stages against trying every choice."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.rivals.mist.integer_program import PipelineProgram


def naive_time(program: PipelineProgram, options) -> float:
    """Return Mist's time of a step, written as the paper has it."""
    steady = [program.steady[k] for k in options]
    delta = [program.delta[k] for k in options]
    late = max(d - sum(steady[:i]) for i, d in enumerate(delta))
    return sum(steady) + (program.num_steps - 1) * max(steady) + max(late, 0.0)


def brute_force(program: PipelineProgram) -> float:
    """Return the least time over all choices whose layers add up."""
    by_stage = [np.flatnonzero(program.stage == i) for i in range(program.num_stages)]
    return min(
        (
            naive_time(program, options)
            for options in product(*by_stage)
            if sum(program.layers[k] for k in options) == program.num_layers
        ),
        default=np.inf,
    )


@st.composite
def programs(draw):
    """Return small programs with whole numbers, some without any choice."""
    num_stages = draw(st.integers(1, 4))
    each = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = num_stages * each
    return PipelineProgram(
        stage=np.repeat(np.arange(num_stages), each),
        layers=rng.integers(1, 4, n),
        steady=rng.integers(1, 30, n).astype(float),
        delta=rng.integers(0, 60, n).astype(float),
        num_stages=num_stages,
        num_layers=draw(st.integers(1, 3 * num_stages)),
        num_steps=draw(st.sampled_from([1, 2, 8])),
    )


@given(programs())
@settings(max_examples=60)
def test_it_finds_what_trying_everything_finds(program):
    expected = brute_force(program)
    for found in (
        program.solve(),
        program.solve_among(np.ones(len(program.stage), dtype=np.bool_)),
    ):
        if np.isinf(expected):
            assert found is None
            continue
        assert found.is_proven
        assert found.time == pytest.approx(expected, rel=1e-9)
        assert naive_time(program, found.options) == pytest.approx(found.time)
        chosen = list(found.options)
        assert program.stage[chosen].tolist() == list(range(program.num_stages))
        assert program.layers[chosen].sum() == program.num_layers


@given(programs())
@settings(max_examples=50)
def test_no_choice_is_below_the_bound(program):
    assert program.lower_bound <= brute_force(program) * (1 + 1e-12)


@given(programs())
@settings(max_examples=50)
def test_what_is_left_out_is_slower(program):
    expected = brute_force(program)
    if np.isinf(expected):
        return
    for kept in (program._undominated(), program._through() <= expected * (1 + 1e-9)):
        found = program.solve_among(kept)
        assert found.time == pytest.approx(expected, rel=1e-9)


def test_a_late_stage_hides_its_delta_behind_those_before_it():
    program = PipelineProgram(
        stage=np.array([0, 1]),
        layers=np.array([1, 1]),
        steady=np.array([3.0, 2.0]),
        delta=np.array([0.0, 3.5]),
        num_stages=2,
        num_layers=2,
        num_steps=4,
    )
    assert program.solve().time == 3 + 2 + 3 * 3 + 0.5
