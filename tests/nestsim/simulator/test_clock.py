import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nestsim.simulator.system import TICK, quantise, tick_for
from tests import failures


@given(st.floats(0, 8000), st.floats(0, 8000))
def test_sums_and_differences_of_rounded_durations_are_exact(one, other):
    a, b = quantise(one, TICK), quantise(other, TICK)
    # From 2**52 ticks on there is no half tick left to round with.
    assert abs(a - one) <= (TICK / 2 if one < 4096 else TICK)
    if a + b < 8192:
        assert (a + b) - b == a
        assert (a + b) / TICK == a / TICK + b / TICK


def test_an_array_is_rounded_like_its_numbers():
    values = np.array([0.0, 1e-13, 1 / 3, 2.5 * TICK])
    assert quantise(values, TICK).tolist() == [quantise(v, TICK) for v in values]
    assert quantise(2.5 * TICK, TICK) == 2 * TICK


@failures.over("horizon", [0.0, 1.0, 8191.9, 8192.0, 1e5, 3e7])
def test_a_long_run_has_a_tick_whose_multiples_are_exact_to_its_end(horizon):
    tick = tick_for(horizon)
    assert tick >= TICK
    assert horizon + tick != horizon
    largest = quantise(horizon, tick)
    assert largest + tick - largest == tick
    if horizon < 8192:
        assert tick == TICK
