"""Tokens that are sorted by expert: written, read in another order, written again."""

from dataclasses import replace

import pytest

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees
from estimators.models.library import load_model
from estimators.operators.roofline import OperatorModel
from estimators.software import IDEAL
from estimators.tracing.trace import trace_model
from estimators.training import TrainingSpec
from topologies.accelerators import load_accelerator

MIXTRAL = trace_model(load_model("mixtral-8x7b"))


def times(software):
    work = layer_work(MIXTRAL, MIXTRAL.kinds[1], Degrees(micro_batch_size=1), 2)
    model = OperatorModel.of(
        load_accelerator("h100-sxm"), TrainingSpec(global_batch_size=1), software
    )
    return {
        operator.operation: [
            model.launch_time,
            *model.operator_time(operator),
        ]
        for operator in work.operators
        if operator.operation in {"dispatch", "combine", "silu"}
    }


def test_sorting_moves_copies_three_times_and_nothing_else_changes():
    plain, sorted_ = times(IDEAL), times(replace(IDEAL, sorts_copies=True))
    assert {"dispatch", "combine"} <= set(plain)
    for operation, (launch, *passes) in plain.items():
        factor = 3.0 if operation in {"dispatch", "combine"} else 1.0
        for before, after in zip(passes, sorted_[operation][1:], strict=True):
            expected = factor * (before - launch) + launch if before else 0.0
            assert after == pytest.approx(expected)
