"""Parameter memory against the formulas of the ZeRO paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.memory import optimizer_step_bytes, static_bytes
from estimators.training import TrainingSpec

PAPER = TrainingSpec(global_batch_size=1, gradient_precision="bf16").parameter_bytes


def held(zero_stage, group):
    parameters = np.array([7.5e9])
    static = static_bytes(
        parameters, np.zeros(1), each=PAPER, zero_stage=zero_stage, zero_group=group
    )
    return float(static.total()[0])


@pytest.mark.parametrize(
    ("zero_stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)]
)
def test_figure_1_of_the_zero_paper(zero_stage, gigabytes):
    """7.5 B parameters over 64 devices: Rajbhandari et al., 2020, figure 1."""
    assert held(zero_stage, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@given(st.integers(0, 2), st.integers(1, 512))
def test_a_higher_stage_never_holds_more_before_buffers(stage, group):
    assert held(stage + 1, group) <= held(stage, group)


def test_stages_2_and_3_pay_for_whole_layers_in_buffers():
    args = np.array([8.0]), np.array([3.0])
    each = TrainingSpec(global_batch_size=1).parameter_bytes
    two = static_bytes(*args, each=each, zero_stage=2, zero_group=4)
    three = static_bytes(*args, each=each, zero_stage=3, zero_group=4)
    alone = static_bytes(*args, each=each, zero_stage=3, zero_group=1)
    assert two.buffers.tolist() == [4 * 3.0]
    assert three.buffers.tolist() == [4 * 3.0 + 2 * 2 * 3.0]
    assert alone.buffers.tolist() == [0.0]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, (2, 4, 12)),
        ({"gradient_precision": "bf16"}, (2, 2, 12)),
        ({"precision": "fp32"}, (4, 4, 8)),
        ({"optimizer": "sgd"}, (2, 4, 8)),
        ({"optimizer": "adam-bf16", "gradient_precision": "bf16"}, (2, 2, 4)),
    ],
)
def test_bytes_per_parameter(job, expected):
    assert TrainingSpec(global_batch_size=1, **job).parameter_bytes == expected


def test_an_adam_step_moves_thirty_bytes_per_parameter():
    assert optimizer_step_bytes(TrainingSpec(global_batch_size=1).parameter_bytes) == 30
