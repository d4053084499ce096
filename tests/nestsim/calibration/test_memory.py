"""Bands of memory: quantiles of errors, by preset, held against other folds."""

import math
import random

import pytest

from nestsim.calibration.bands import (
    COUNTED,
    FEWEST,
    Miss,
    memory_coverage,
    memory_widths,
    read_misses,
)
from nestsim.validation.measured import published_measurements
from nestsim.validation.predict import Predictor


def misses(preset, sigma, count, seed):
    draw = random.Random(seed)
    return [
        Miss(preset, f"paper {k % 3}", abs(draw.gauss(0.0, sigma)), k % 5)
        for k in range(count)
    ]


def test_a_preset_of_many_rows_has_the_quantile_of_its_own_errors():
    found = memory_widths(
        misses("exact", 0.01, 200, seed=1) + misses("rough", 0.1, 200, seed=2)
    )
    # The 80 % quantile of absolute normal errors is 1.28 deviations.
    assert found["exact"] == pytest.approx(0.0128, rel=0.3)
    assert found["rough"] == pytest.approx(0.128, rel=0.3)
    assert found["exact"] < found["all"] < found["rough"]


def test_a_preset_of_few_rows_has_the_band_of_all():
    few = misses("few", 0.2, FEWEST - 1, seed=3)
    found = memory_widths(misses("many", 0.01, 100, seed=4) + few)
    assert set(found) == {"all", "many"}


def test_coverage_is_near_what_bands_state_and_only_of_presets_with_many_rows():
    rows = misses("many", 0.05, 400, seed=5) + misses("few", 0.05, 10, seed=6)
    found = memory_coverage(rows)
    assert set(found) == {"all", "many"}
    assert found["all"].rows == 410 >= COUNTED
    assert 0.72 < found["many"].share < 0.88


def test_coverage_takes_no_width_from_the_fold_itself():
    rows = misses("many", 0.05, 100, seed=7)
    huge = [one._replace(size=9.0) if one.fold == 0 else one for one in rows]
    inside = memory_coverage(huge)["all"]
    assert inside.inside <= 80


def test_published_sizes_have_errors_of_the_size_that_is_stated():
    _, sizes = published_measurements()
    found = read_misses(sizes.rows, Predictor())
    assert len(found) > 10
    assert math.fsum(one.size for one in found) / len(found) < 0.1
