"""Parameter memory against the formulas of the ZeRO paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.training import TrainingSpec
from planner.step.memory import Sharded, static_bytes
from tests import failures

PAPER = TrainingSpec(global_batch_size=1, gradient_precision="bf16").parameter_bytes


def held(zero_stage, group):
    dense = Sharded(7.5e9, group)
    none = Sharded(0.0, 1)
    static = static_bytes(
        dense, none, 0.0, parameter_bytes=PAPER, zero_stage=zero_stage
    )
    return float(static.total())


@failures.over(
    ("zero_stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)]
)
def test_figure_1_of_the_zero_paper(zero_stage, gigabytes):
    """7.5 B parameters over 64 devices: Rajbhandari et al., 2020, figure 1."""
    assert held(zero_stage, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@given(st.integers(0, 2), st.integers(1, 512))
def test_a_higher_stage_never_holds_more_before_buffers(stage, group):
    assert held(stage + 1, group) <= held(stage, group)


def test_stages_2_and_3_pay_for_whole_layers_in_buffers():
    each = TrainingSpec(global_batch_size=1).parameter_bytes

    def buffers(zero_stage, group):
        dense, none = Sharded(8.0, group), Sharded(0.0, 1)
        static = static_bytes(
            dense, none, 3.0, parameter_bytes=each, zero_stage=zero_stage
        )
        return static.buffers

    assert buffers(1, 4) == 0
    assert buffers(2, 4) == 4 * 3.0
    assert buffers(3, 4) == 4 * 3.0 + 2 * 2 * 3.0
    assert buffers(3, 1) == 0


def test_experts_are_sharded_over_their_own_group():
    static = static_bytes(
        Sharded(np.array([8.0]), 8),
        Sharded(np.array([6.0]), 2),
        np.zeros(1),
        parameter_bytes=PAPER,
        zero_stage=1,
    )
    assert static.weights.tolist() == [2 * 14.0]
    assert static.optimizer.tolist() == [12 * (1.0 + 3.0)]


def test_copies_for_the_optimizer_are_of_its_share_and_beside_no_total():
    each = PAPER._replace(copies=6)
    for zero_stage, held in ((0, 8.0), (1, 2.0)):
        static = static_bytes(
            Sharded(8.0, 4),
            Sharded(0.0, 4),
            0.0,
            parameter_bytes=each,
            zero_stage=zero_stage,
        )
        assert static.copies == 6 * held
        assert static.total() == 2 * 8.0 + 2 * 8.0 + 12 * held
