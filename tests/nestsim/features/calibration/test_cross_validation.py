"""What is held out has no part in what it is held against."""

from dataclasses import replace

import numpy as np
import pytest

from nestsim.document.markdown import markdown
from nestsim.features.calibration.bands import (
    COUNTED,
    coverage_by,
    coverage_by_class,
    errors_of_folds,
    grouped_folds,
    half_widths,
    hold_out,
    refit_without,
    source_folds,
)
from nestsim.features.calibration.calibrate import calibrate
from nestsim.features.calibration.document import calibration_document
from tests.nestsim.features.calibration.rows import (
    GAP,
    MATMUL,
    SPEC,
    made_up,
    residuals_of,
)


@pytest.fixture(scope="module")
def evaluate():
    return residuals_of(made_up(noise=0.05))


@pytest.fixture(scope="module")
def calibration(evaluate):
    return calibrate(evaluate, SPEC)


@pytest.fixture(scope="module")
def full(calibration):
    return calibration.fit


def test_every_row_is_left_out_once(evaluate):
    left_out = np.concatenate(list(grouped_folds(evaluate.observations).values()))
    assert sorted(left_out) == list(range(len(evaluate.observations)))


def test_identical_configurations_are_never_split(evaluate):
    observations = evaluate.observations
    # Row 0 is repeated as row 24, row 1 under another source.
    assert observations[0].configuration == observations[24].configuration
    assert len({observations[i].group for i in (1, 25, 26, 27)}) == 1
    for count in (2, 3, 5):
        for own in grouped_folds(observations, count).values():
            inside = {observations[i].group for i in own}
            outside = {one.group for i, one in enumerate(observations) if i not in own}
            assert not inside & outside


def test_a_cell_is_never_split(evaluate):
    rows = [
        replace(row, source="cells", values={**row.values, "source_key": "cells"})
        for row in made_up()
    ]
    observations = residuals_of(rows).observations
    for own in grouped_folds(observations).values():
        inside = {observations[i].row.words("hidden") for i in own}
        outside = {
            one.row.words("hidden")
            for i, one in enumerate(observations)
            if i not in own
        }
        assert not inside & outside


def test_a_source_left_out_leaves_nothing_of_itself(evaluate):
    observations = evaluate.observations
    for name, own in source_folds(observations).items():
        assert {observations[i].row.source for i in own} == {name}
        rest = [i for i in range(len(observations)) if i not in own]
        assert name not in {observations[i].row.source for i in rest}


def test_rows_left_out_do_not_move_the_constants(evaluate, full):
    left_out = source_folds(evaluate.observations)["other"]
    first, _ = refit_without(evaluate, SPEC, full, left_out)
    wrong = full.residuals.copy()
    wrong[np.isin(full.rows, left_out)] += 5.0
    other = replace(full, residuals=wrong)
    second, _ = refit_without(evaluate, SPEC, other, left_out)
    assert first.tolist() == second.tolist()


def test_what_only_the_rows_left_out_tell_goes_back_to_its_prior(evaluate, full):
    everything = np.arange(len(evaluate.observations))
    point, untold = refit_without(evaluate, SPEC, full, everything)
    assert untold == (MATMUL, GAP)
    assert np.exp(point) == pytest.approx([0.6, 1e-3, 0.75])


def test_held_out_rows_are_predicted_with_their_folds_constants(evaluate, full):
    fold = hold_out(evaluate, SPEC, full, source_folds(evaluate.observations))[0]
    values = np.exp(fold.logarithms)
    changes = {MATMUL: values[0], GAP: values[1]}
    assert fold.residuals == pytest.approx(evaluate.residuals(changes, fold.left_out))


def test_bands_cover_what_they_state_on_noise_that_they_did_not_see(calibration):
    inside = sum(one.inside for one in calibration.coverage.values())
    rows = sum(one.rows for one in calibration.coverage.values())
    assert rows == len(calibration.observations)
    assert 0.6 <= inside / rows <= 0.97
    # The noise's own 80 % quantile is 1.28 * 0.05.
    assert 0.04 < calibration.uncertainty.measured["all"] < 0.12


def test_coverage_takes_no_width_from_the_part_itself(calibration):
    errors = list(
        errors_of_folds(calibration.observations, calibration.folds, is_new=False)
    )
    part = errors[0].part
    huge = [e._replace(size=9.0) if e.part == part else e for e in errors]
    assert coverage_by(huge)[part].inside == 0
    assert coverage_by(errors)[part].inside > 0


def test_coverage_of_a_class_is_that_of_its_rows_in_all_parts(calibration):
    errors = errors_of_folds(calibration.observations, calibration.folds, is_new=False)
    found = coverage_by_class(errors)
    parts = coverage_by(errors)
    assert found["all"].rows == sum(one.rows for one in parts.values()) >= COUNTED
    assert found["all"].inside == sum(one.inside for one in parts.values())
    assert all(one.rows >= COUNTED for one in found.values())


def test_small_classes_lean_on_wider_ones(calibration):
    errors = list(
        errors_of_folds(calibration.observations, calibration.folds, is_new=False)
    )
    widths = half_widths(errors)
    framework = "cluster megatron-lm"
    assert set(widths) == {"all", "cluster", framework, f"{framework} a100"}
    few = [e._replace(size=1.0) for e in errors[:3]]
    assert set(half_widths(few)) == {"all"}


def test_a_calibration_is_the_same_twice(evaluate, calibration):
    again = calibrate(evaluate, SPEC)
    assert again.entries("today") == calibration.entries("today")
    assert again.uncertainty == calibration.uncertainty


def test_entries_hold_the_spread_over_folds_and_their_sources(calibration):
    entry = calibration.entries("today")[MATMUL]
    assert entry.low <= entry.value <= entry.high
    assert entry.low < entry.high
    assert entry.source.startswith("fit: ")
    assert "other" in entry.source
    tpu = calibration.entries("today")["accelerator.tpu-v4.matmul"]
    assert tpu.source.startswith("no row tells it")


def test_a_refit_says_errors_constants_and_coverage(calibration):
    text = markdown(calibration_document(calibration))
    errors, constants, covered, classes = text.split("\n## ")[1:5]
    assert "| own | " in errors
    assert "| all that are fitted to | " in errors
    value = calibration.entries("today")[MATMUL].value
    assert f"| {value:.4g} |" in constants
    assert "| all folds | " in covered
    assert "| cluster megatron-lm |" in classes
    assert "A source left out is " in text
