"""Error figures against their definitions and against SciPy."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from nestsim.features.validation.results import errors_of, kendall_tau, ranking_of

values = st.lists(st.integers(1, 6), min_size=2, max_size=12)


@given(values, st.data())
@settings(max_examples=60)
def test_kendall_tau_is_scipys_with_ties_and_all(first, data):
    second = data.draw(
        st.lists(st.integers(1, 6), min_size=len(first), max_size=len(first))
    )
    own = kendall_tau(np.array(first, float), np.array(second, float))
    constant = len(set(first)) == 1 or len(set(second)) == 1
    if constant:
        assert math.isnan(own)
    else:
        assert own == pytest.approx(kendalltau(first, second).statistic, abs=1e-12)


def test_errors_are_relative_to_the_measured_value_and_keep_their_sign():
    found = errors_of([1.0, 2.0, 4.0, 10.0], [1.1, 1.0, 4.0, 14.0])
    assert found.rows == 4
    assert found.mape == pytest.approx((0.1 + 0.5 + 0.0 + 0.4) / 4)
    assert found.median_ape == pytest.approx(0.25)
    assert found.p90_ape == pytest.approx(0.4 + 0.7 * 0.1)
    assert found.max_ape == pytest.approx(0.5)
    assert found.bias == pytest.approx((0.1 - 0.5 + 0.0 + 0.4) / 4)
    assert found.kendall_tau == pytest.approx(4 / 6)


def test_no_rows_have_no_errors():
    found = errors_of([], [])
    assert found.rows == 0
    assert all(math.isnan(value) for value in found[1:])


def test_regret_is_what_the_wrongly_chosen_plan_costs():
    groups = [
        ([1.0, 1.5, 2.0], [5.0, 3.0, 4.0]),  # picks 1.5 instead of 1.0
        ([2.0, 1.0], [9.0, 8.0]),  # picks the best
        ([7.0], [1.0]),  # nothing to choose from
    ]
    found = ranking_of(groups)
    assert (found.groups, found.rows) == (2, 5)
    assert found.top1_regret == pytest.approx(0.25)
    assert found.max_top1_regret == pytest.approx(0.5)
    # Pairs: -1/3 over three of them, 1 over one.
    assert found.kendall_tau == pytest.approx((-1 / 3 * 3 + 1) / 4)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=8, unique=True))
@settings(max_examples=30)
def test_perfect_predictions_have_no_error_and_no_regret(measured):
    errors, ranking = errors_of(measured, measured), ranking_of([(measured, measured)])
    assert errors.max_ape == 0.0
    assert errors.bias == 0.0
    assert errors.kendall_tau == pytest.approx(1.0)
    assert ranking.max_top1_regret == 0.0
