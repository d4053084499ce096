"""Distributions of lengths: their moments, samples, caps and refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.generation.lengths import Lengths
from tests import failures
from topologies import InputError


def test_fixed_lengths_are_all_the_same():
    assert Lengths.fixed(7).sample(3).tolist() == [7, 7, 7]


@pytest.mark.parametrize("sigma", [0.2, 0.8, 1.2])
def test_a_log_normal_sample_has_the_mean_and_the_median(sigma):
    lengths_drawn = Lengths.log_normal(2000.0, sigma).sample(20_000)
    # Quantiles leave out what lies beyond the last: a tail that few draws would show.
    assert lengths_drawn.mean() == pytest.approx(2000.0, rel=0.01)
    median = 2000.0 * np.exp(-(sigma**2) / 2)
    assert np.median(lengths_drawn) == pytest.approx(median, rel=0.001)


def test_a_cap_cuts_the_tail_and_nothing_else():
    whole = Lengths.log_normal(2000.0, 1.0).sample(1000, seed=3)
    cut = Lengths.log_normal(2000.0, 1.0, cap=4096).sample(1000, seed=3)
    assert cut.tolist() == np.minimum(whole, 4096).tolist()
    assert (cut == 4096).sum() == (whole >= 4096).sum() > 50


def test_a_measured_sample_counts_as_its_file_does(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n100,3\n900,1\n100,1\n5000,0\n", encoding="utf-8")
    known = Lengths.measured(path)
    assert (known.lengths, known.counts) == ((100, 900), (4, 1))
    lengths_drawn = known.sample(10, seed=1)
    assert sorted(lengths_drawn.tolist()) == [100] * 8 + [900] * 2
    assert Lengths.measured(path, cap=500).sample(10).max() == 500


@given(
    number=st.integers(1, 200),
    seed=st.integers(0, 5),
    sigma=st.floats(0.0, 3.0),
    cap=st.integers(0, 5000),
)
def test_a_seed_draws_the_order_alone(number, seed, sigma, cap):
    known = Lengths.log_normal(300.0, sigma, cap)
    first, again = known.sample(number, seed), known.sample(number, seed)
    assert first.tolist() == again.tolist()
    assert sorted(known.sample(number, seed + 1)) == sorted(first)
    assert first.min() >= 1
    assert not cap or first.max() <= cap


@failures.over(
    "changes, where",
    [
        ({"distribution": "gamma"}, "distribution"),
        ({"mean": 0.5}, "mean"),
        ({"mean": float("inf")}, "mean"),
        ({"mean": 9.0, "sigma": -1.0}, "sigma"),
        ({"mean": 9.0, "cap": -1}, "cap"),
        ({"distribution": "measured"}, "lengths"),
        ({"distribution": "measured", "lengths": (0, 4)}, "lengths"),
    ],
)
def test_what_is_no_distribution_is_refused(changes, where):
    with pytest.raises(InputError) as lengths_drawn:
        Lengths(**changes)
    assert lengths_drawn.value.where == where
