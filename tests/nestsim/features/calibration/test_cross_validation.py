"""What is held out has no part in what it is held against."""

import math
from dataclasses import replace

import numpy as np
import pytest

from nestsim.document.markdown import markdown
from nestsim.evaluate.uncertainty import Setting
from nestsim.features.calibration.bands import (
    COUNTED,
    Error,
    HeldOutErrors,
    coverage_by,
    coverage_by_class,
    errors_of_folds,
    half_widths,
    release_changes,
    wider_by_cause,
)
from nestsim.features.calibration.calibrate import calibrate
from nestsim.features.calibration.document import calibration_document
from nestsim.features.calibration.held_out import (
    grouped_folds,
    hold_out,
    kind_folds,
    refit_without,
    source_folds,
)
from tests.nestsim.features.calibration.rows import (
    GAP,
    MATMUL,
    SPEC,
    made_up,
    residuals_of,
)
from topologies.accelerators import load_accelerator


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


def held_out(calibration, change=lambda error: error):
    rows = calibration.fit.rows
    folds = errors_of_folds(calibration.observations, rows, calibration.folds)
    sources = errors_of_folds(calibration.observations, rows, calibration.sources)
    return HeldOutErrors(
        folds=tuple(map(change, folds)), sources=tuple(map(change, sources)), kinds=()
    )


def test_coverage_takes_no_width_from_the_part_itself(calibration):
    for known in (None, calibration.uncertainty):
        errors = held_out(calibration)
        part = (errors.folds if known is None else errors.sources)[0].part
        huge = held_out(
            calibration,
            lambda error, part=part: (
                error._replace(size=9.0)
                if part in (error.part, error.setting.source)
                else error
            ),
        )
        assert coverage_by(huge, known)[part].inside == 0
        assert coverage_by(errors, known)[part].inside > 0


def test_coverage_of_a_class_is_that_of_its_rows_in_all_parts(calibration):
    errors = held_out(calibration)
    found = coverage_by_class(errors, None)
    parts = coverage_by(errors, None)
    assert found["all"].rows == sum(one.rows for one in parts.values()) >= COUNTED
    assert found["all"].inside == sum(one.inside for one in parts.values())
    assert found["all"] == found["a100"]
    assert all(one.rows >= COUNTED for one in found.values())


def test_no_band_is_narrower_on_a_cluster_that_was_not_measured(calibration):
    errors = held_out(calibration)
    wide = dict.fromkeys(half_widths(errors.folds), 3.0)
    assert set(half_widths(errors.sources, wide).values()) == {3.0}


def test_small_classes_lean_on_wider_ones(calibration):
    errors = list(held_out(calibration).folds)
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


def test_a_cause_adds_what_its_errors_needed_beyond_the_band():
    """As few chips as these were tried leave no more than the worst of them."""
    job = Setting(
        software="fsdp", accelerator="h100-sxm", num_devices=64, has_experts=False
    )
    errors = [
        Error(job, math.hypot(0.1, 0.05 * k), 1.0, f"chip {k}", ("chip",))
        for k in range(1, 5)
    ]
    # A chip's class goes with the chip; what has two causes says nothing of either.
    errors.append(Error(job, 9.0, 1.0, "both", ("chip", "model")))
    new = {"all": 0.1, "cluster fsdp h100": 5.0}
    assert wider_by_cause(errors, {"all": 7.0}, new) == {"chip": pytest.approx(0.2)}
    near = [error._replace(size=0.05) for error in errors[:4]]
    assert wider_by_cause(near, {"all": 7.0}, new)["chip"] < 1e-5


def test_a_release_counts_by_what_it_changed_in_one_job():
    rows = [
        replace(
            row,
            values={
                **row.values,
                "software": f"Megatron-Bridge, {release} NeMo Container",
                "model": f"{model} (tokendrop)",
            },
        )
        for row in made_up()[:1]
        for model, release in (("A", "26.02"), ("A", "26.02.01"), ("B", "26.04"))
    ]
    observations = residuals_of(rows).observations
    assert [o.case.setting().release for o in observations] == [
        "26.02",
        "26.02.01",
        "26.04",
    ]
    ((job, size),) = release_changes(observations, np.array([0.3, -0.1, 1.0]))
    assert job.split()[1] == "A"
    assert size == pytest.approx(0.4)


def test_chips_and_traits_are_left_out_of_the_rows_that_are_fitted(evaluate):
    rows = np.arange(4)
    assert kind_folds(evaluate.observations, rows) == {}
    first, second = evaluate.observations[:2]
    case = replace(second.case, accelerator=load_accelerator("h100-sxm"))
    observations = (first, replace(second, case=case))
    folds = kind_folds(observations, np.arange(2))
    assert {name: left.tolist() for name, left in folds.items()} == {
        "a100": [0],
        "h100": [1],
    }
