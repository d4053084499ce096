"""Batches that grow, against Megatron's own calculator where it is installed."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.rampup import MOST_INCREMENTS, RampPhase, batch_sizes, ramp_phases
from tests import failures
from topologies.errors import InputError


def test_a_ramp_of_whole_steps() -> None:
    # 4 increments of 8 in 240 sequences: a size holds for 60 of them. 8 x 8 = 64, then
    # 16 from 64 to 128, 24 to 200 (72 in 3 steps), 32 to 264, more than 240.
    assert ramp_phases((8, 8, 240), 40) == (
        RampPhase(8, 8),
        RampPhase(16, 4),
        RampPhase(24, 3),
        RampPhase(32, 2),
    )
    assert batch_sizes((8, 8, 240), 40) == (8, 16, 24, 32, 40)


def test_sizes_are_left_out_where_steps_are_longer_than_increments() -> None:
    # 31 increments in 100 sequences, 3.2 for each: steps of 16, 96 and 512.
    sizes = batch_sizes((16, 16, 100), 512)
    assert sizes[0] == 16
    assert len(sizes) < 32


def test_without_a_ramp_all_batches_are_whole() -> None:
    assert ramp_phases((), 512) == ()
    assert batch_sizes((), 512) == (512,)


@failures.over(
    ["ramp", "batch"],
    [
        ((16, 16), 64),
        ((16, 0, 100), 64),
        ((16, 16, 0), 64),
        ((64, 16, 100), 64),
        ((80, 16, 100), 64),
        ((16, 20, 100), 64),
        ((1, 1, 1000), MOST_INCREMENTS + 2),
    ],
)
def test_what_is_no_ramp_is_refused(ramp: tuple[int, ...], batch: int) -> None:
    with pytest.raises(InputError) as caught:
        ramp_phases(ramp, batch)
    assert caught.value.where == "rampup_batch_size"


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(1, 3000),
)
@settings(max_examples=150, deadline=None)
def test_steps_are_those_of_megatron(
    start: int, increment: int, count: int, samples: int
) -> None:
    module = pytest.importorskip("megatron.core.num_microbatches_calculator")
    batch = start + count * increment
    calculator = module.RampupBatchsizeNumMicroBatchesCalculator(
        batch, 1, 1, False, 1, start, increment, samples
    )
    steps, consumed = Counter[int](), 0
    while calculator.get_current_global_batch_size() < batch:
        size = calculator.get_current_global_batch_size()
        steps[size] += 1
        consumed += size
        calculator.update(consumed, True)
    phases = ramp_phases((start, increment, samples), batch)
    assert [tuple(phase) for phase in phases] == sorted(steps.items())
