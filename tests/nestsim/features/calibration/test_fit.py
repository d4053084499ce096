"""A fit finds the constants that measurements were made with."""

from dataclasses import replace

import numpy as np
import pytest

from nestsim.features.calibration.fit import Box, Line, fit, objective, solve, stages_of
from nestsim.features.calibration.observations import STEP, fitted_rows, row_weights
from tests.nestsim.features.calibration.rows import (
    GAP,
    MATMUL,
    SPEC,
    TPU,
    made_up,
    residuals_of,
)

EXACT = replace(SPEC, row_error=0.005)


@pytest.fixture(scope="module")
def measured():
    return residuals_of(made_up(), EXACT)


@pytest.fixture(scope="module")
def observations():
    return residuals_of(made_up()).observations


@pytest.fixture(scope="module")
def found(measured):
    return fit(measured, EXACT)


def test_the_constants_that_made_the_measurements_are_found(found):
    assert found.constants[MATMUL] == pytest.approx(0.47, rel=0.02)
    assert found.constants[GAP] == pytest.approx(2.5e-3, rel=0.05)
    assert np.abs(found.residuals).max() < 0.01


def test_a_constant_that_no_row_reads_stays_at_its_prior(found):
    assert found.constants[TPU] == pytest.approx(0.75)
    assert found.deviations[2] == pytest.approx(0.2)
    assert found.deviations[0] < 0.1


def test_two_processes_fit_what_one_does(measured):
    with residuals_of(made_up(), EXACT, workers=2) as both:
        other = fit(both, EXACT, most_steps=2)
    own = fit(measured, EXACT, most_steps=2)
    assert other.logarithms.tolist() == own.logarithms.tolist()


def test_rows_read_what_their_device_and_software_have(measured):
    touched = measured.touched(EXACT.parameters, {})
    everything = list(range(len(measured.observations)))
    assert [own.tolist() for own in touched] == [everything, everything, []]


def test_planned_derivatives_are_close_to_replayed_ones(measured):
    rows = np.arange(len(measured.observations))
    start = np.log([0.6, 1e-3, 0.75])
    changes = {MATMUL: 0.6, GAP: 1e-3, TPU: 0.75}
    there = measured.residuals(changes, rows)
    touched = measured.touched(EXACT.parameters, changes)
    planned = measured.jacobian(EXACT.parameters, start, there, rows, touched)
    exact = np.zeros_like(planned)
    for column, parameter in enumerate(EXACT.parameters):
        moved = changes | parameter.values(float(start[column]) + STEP)
        exact[:, column] = (measured.residuals(moved, rows) - there) / STEP
    assert np.abs(exact - planned).max() < 0.1
    assert np.abs(exact[:, 0]).max() > 0.3


def test_constants_of_few_sources_are_fitted_first_and_kept():
    first = replace(SPEC.parameters[0], only_sources=("own",))
    stages = stages_of((first, *SPEC.parameters[1:]))
    assert [stage.sources for stage in stages] == [("own",), ()]
    assert stages[0].free == (True, True, True)
    assert stages[0].kept == (True, False, False)
    assert stages[1].free == stages[1].kept == (False, True, True)


def test_only_its_sources_tell_a_constant():
    # The other source's times say 0.47, this one's that products are faster.
    rows = [*made_up({MATMUL: 0.8, GAP: 2.5e-3})[:12], *made_up()[12:24]]
    only = replace(EXACT.parameters[0], only_sources=("own",))
    spec = replace(EXACT, parameters=(only, *EXACT.parameters[1:]))
    found = fit(residuals_of(rows, spec), spec)
    assert found.constants[MATMUL] == pytest.approx(0.8, rel=0.05)


def test_excluded_rows_are_not_fitted_to():
    rows = made_up()
    rows[3] = replace(rows[3], values={**rows[3].values, "quality": "C"})
    observations = residuals_of(rows).observations
    assert observations[3].excluded == "doubtful"
    assert 3 not in fitted_rows(observations, SPEC)


def test_a_sample_has_rows_of_every_cell(observations):
    spec = replace(SPEC, samples={"own": 5})
    chosen = fitted_rows(observations, spec)
    own = [i for i in chosen if observations[i].row.source == "own"]
    assert len(own) == 5
    assert len({observations[i].group for i in own}) == 5


def test_a_source_counts_as_the_root_of_its_configurations(observations):
    rows = np.arange(len(observations))
    weights = row_weights(observations, rows)
    by_source = {
        source: sum(
            weight
            for one, weight in zip(observations, weights, strict=True)
            if one.row.source == source
        )
        for source in ("own", "other", "cells")
    }
    # Twelve configurations each; one row is there twice, another three times.
    assert by_source == pytest.approx({"own": 12**0.5, "other": 12**0.5, "cells": 1.0})


def test_a_source_counts_alike_however_many_of_its_rows_are_chosen(observations):
    some = np.array([0, 3, 7])
    assert row_weights(observations, some).sum() == pytest.approx(12**0.5)


def test_the_linear_fit_is_the_least_of_its_objective():
    draw = np.random.default_rng(1)
    line = Line(
        start=np.zeros(3),
        rows=np.arange(40),
        residuals=0.1 * draw.standard_normal(40),
        jacobian=draw.standard_normal((40, 3)),
        weights=draw.uniform(0.5, 2.0, 40),
    )
    box = Box(
        prior=np.zeros(3),
        sigma=np.ones(3),
        lower=np.array([-1.0, -1.0, 0.01]),
        upper=np.ones(3),
    )
    best = solve(line, box, 0.06, trust=1.0)

    def value(point):
        return objective(line.at(point), line.weights, point, box, 0.06)

    for _ in range(200):
        other = np.clip(best + 0.02 * draw.standard_normal(3), box.lower, box.upper)
        assert value(other) >= value(best) - 1e-9
