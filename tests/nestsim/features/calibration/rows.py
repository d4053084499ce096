"""Measurements that were made up: what the predictor itself says, and noise."""

from functools import cache

import numpy as np

from estimators.constants import load_constants
from nestsim.features.calibration.observations import Residuals, read_observations
from nestsim.features.calibration.parameters import parse_fit_spec
from nestsim.features.validation.case import read_case
from nestsim.features.validation.predict import Predictor
from tests.nestsim.features.validation.validation_rows import gpt

MATMUL = "accelerator.a100.matmul"
GAP = "software.default.layer_gap"
TPU = "accelerator.tpu-v4.matmul"

SPEC = parse_fit_spec(
    {
        "row_error": 0.06,
        "cells": {"cells": ["hidden"]},
        "constants": {
            MATMUL: {"prior": 0.6, "sigma": 0.5, "lower": 0.2, "upper": 1.0},
            GAP: {"prior": 1e-3, "sigma": 1.0, "lower": 1e-5, "upper": 1e-1},
            TPU: {"prior": 0.75, "sigma": 0.2, "lower": 0.4, "upper": 1.0},
        },
        "excluded": [{"quality": "C", "reason": "doubtful"}],
    }
)

TRUTH = {MATMUL: 0.47, GAP: 2.5e-3}


def jobs():
    """Return the cells of 28 jobs of two sources."""
    found = [
        {
            "source_key": source,
            "hidden": str(hidden + wider),
            "ffn": str(4 * hidden),
            "micro_batch": str(batch),
        }
        for source, wider in (("own", 0), ("other", 512))
        for hidden in (1024, 2048, 4096, 8192)
        for batch in (1, 2, 4)
    ]
    repeated = dict(found[0])
    return [*found, repeated, *({**found[1], "source_key": "cells"},) * 3]


def made_up(truth=None, *, noise=0.0, seed=0):
    """Return rows with the times that the truth gives them, times noise."""
    truth = TRUTH if truth is None else truth
    draw = np.random.default_rng(seed)
    rows = []
    for number, (cells, predicted) in enumerate(
        zip(jobs(), _times(tuple(truth.items())), strict=True)
    ):
        time = predicted * float(np.exp(noise * draw.standard_normal()))
        rows.append(gpt(row_id=f"row {number}", **cells, iter_time_s=repr(time)))
    return rows


@cache
def _times(truth):
    """Return the step time of each job under some constants [s]."""
    predictor = Predictor(load_constants().replaced(dict(truth)))
    return [
        predictor.predict(read_case(gpt(row_id="row", **cells))).iteration_time
        for cells in jobs()
    ]


def residuals_of(rows, spec=SPEC, *, workers=1):
    """Return what evaluates rows under the shipped constants."""
    base = Predictor(load_constants())
    observations = read_observations(rows, spec, base)
    return Residuals(observations, base.constants, predictor=base, workers=workers)
