"""Bands of memory: deciles of errors, by preset, held against other folds."""

import math
import random

import pytest

from nestsim.features.calibration.bands import (
    COUNTED,
    FEWEST,
    Miss,
    memory_coverage,
    memory_deciles,
    read_misses,
)
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.runner import published_measurements


def misses(preset, sigma, count, seed):
    draw = random.Random(seed)
    return [
        Miss(preset, f"paper {k % 3}", draw.gauss(0.0, sigma), k % 5)
        for k in range(count)
    ]


def test_a_preset_of_many_rows_has_the_quantile_of_its_own_errors():
    found = memory_deciles(
        misses("exact", 0.01, 200, seed=1) + misses("rough", 0.1, 200, seed=2)
    )
    # Outer deciles of the normal distribution are 1.28 deviations off.
    for name, deviation in (("exact", 0.01), ("rough", 0.1)):
        low, *_, high = found[name]
        assert high == pytest.approx(1.28 * deviation, rel=0.4)
        assert low == pytest.approx(-1.28 * deviation, rel=0.4)
        assert list(found[name]) == sorted(found[name])
    assert found["exact"][-1] < found["all"][-1] < found["rough"][-1]


def test_errors_to_one_side_make_a_band_to_one_side():
    draw = random.Random(8)
    rows = [Miss("low", "paper", -draw.expovariate(10.0), k % 5) for k in range(300)]
    low, *_, high = memory_deciles(rows)["low"]
    assert low == pytest.approx(math.log(0.1) / 10.0, rel=0.2)
    assert high == pytest.approx(math.log(0.9) / 10.0, abs=0.01)


def test_a_preset_of_few_rows_has_the_band_of_all():
    few = misses("few", 0.2, FEWEST - 1, seed=3)
    found = memory_deciles(misses("many", 0.01, 100, seed=4) + few)
    assert set(found) == {"all", "many"}


def test_coverage_is_near_what_bands_state_and_only_of_presets_with_many_rows():
    rows = misses("many", 0.05, 400, seed=5) + misses("few", 0.05, 10, seed=6)
    found = memory_coverage(rows)
    assert set(found) == {"all", "many"}
    assert found["all"].rows == 410 >= COUNTED
    assert 0.72 < found["many"].share < 0.88


def test_coverage_takes_no_width_from_the_fold_itself():
    rows = misses("many", 0.05, 100, seed=7)
    huge = [one._replace(error=9.0) if one.fold == 0 else one for one in rows]
    inside = memory_coverage(huge)["all"]
    assert inside.inside <= 80


def test_published_sizes_have_errors_of_the_size_that_is_stated():
    _, sizes = published_measurements()
    found = read_misses(sizes.rows, Predictor())
    assert len(found) > 10
    assert math.fsum(abs(one.error) for one in found) / len(found) < 0.1
