"""What timelines read of replicas: those whose transfers are alike count once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.search.replayed.timelines import distinct_rows


@given(
    st.integers(1, 6),
    st.integers(1, 300),
    st.sampled_from([(1,), (3, 2, 2)]),
    st.integers(0, 2**32 - 1),
)
def test_distinct_rows_are_those_of_numpy(num_distinct, num_rows, shape, seed):
    draw = np.random.default_rng(seed)
    # Few values, zeros of both signs among them, so that rows differ in little.
    known = draw.choice([0.0, -0.0, 1e-6, 2e-6, 5e-324], size=(num_distinct, *shape))
    values = known[draw.integers(num_distinct, size=num_rows)]
    assert np.array_equal(distinct_rows(values), np.unique(values, axis=0))


def test_rows_whose_sums_of_bits_agree_are_told_apart():
    # Of a factor of 1 and one of 3, times the same number: 3 u + 0 = 0 u + 3 ... u.
    bits = np.array([[3, 0], [0, 1]], dtype=np.uint64)
    values = bits.view(np.float64)
    assert len(distinct_rows(values)) == len(np.unique(values, axis=0)) == 2
