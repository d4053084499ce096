"""Interval classes hold exactly what their intervals contain."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.choices import interval_classes


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.data())
def test_sums_and_maxima_equal_those_of_the_interval(kinds, data):
    kinds = np.unique(kinds, return_inverse=True)[1].astype(np.int64)
    values = np.array(
        data.draw(st.lists(st.integers(-5, 9), min_size=4, max_size=4)), float
    )[: kinds.max() + 1]
    classes = interval_classes(kinds)
    for i in range(len(kinds)):
        for j in range(i + 1, len(kinds) + 1):
            k = classes.class_of[i, j]
            assert classes.sums(values)[k] == values[kinds[i:j]].sum()
            assert classes.maxima(values)[k] == values[kinds[i:j]].max()


def test_equal_intervals_share_a_class():
    classes = interval_classes(np.array([0, *[1] * 96, 2, 3]))
    assert len(classes.counts) < 4 * 97 + 5
    assert classes.whole == classes.class_of[0, 99]
