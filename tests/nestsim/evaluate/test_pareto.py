"""Pareto fronts, against every pair."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nestsim.evaluate.cost import pareto_front

VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, math.nan])


def by_brute_force(points):
    def dominates(one, other):
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    known = [one for one in points if not math.isnan(one[0] + one[1])]
    return [
        one in known and not any(dominates(other, one) for other in known)
        for one in points
    ]


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_the_front_is_what_no_other_point_dominates(points):
    costs, gains = (np.array([one[k] for one in points]) for k in range(2))
    assert pareto_front(costs, gains).tolist() == by_brute_force(points)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1))
def test_along_the_front_what_costs_more_gains_more(points):
    costs, gains = (np.array([one[k] for one in points]) for k in range(2))
    front = pareto_front(costs, gains)
    assert front.any()
    along = sorted({points[i] for i in np.flatnonzero(front)})
    assert [gain for _, gain in along] == sorted({gain for _, gain in along})


def test_the_cheapest_and_the_best_are_on_the_front():
    costs = np.array([3.0, 1.0, 2.0, 2.5])
    gains = np.array([9.0, 4.0, 3.0, 7.0])
    assert pareto_front(costs, gains).tolist() == [True, True, False, True]
