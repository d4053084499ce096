"""Schedules: sums, orders and bounds, for any times of phases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.features.rl.step import (
    BOTH,
    IDLE,
    ROLLOUT,
    TRAINING,
    StepPhase,
    lanes,
    step_time,
)

PHASES = st.lists(
    st.builds(
        StepPhase,
        name=st.sampled_from(["a", "b", "c"]),
        pool=st.sampled_from([ROLLOUT, TRAINING, BOTH]),
        time=st.floats(1e-3, 1e3),
        devices_wait=st.just(value=False),
    ),
    min_size=1,
    max_size=8,
)


@given(PHASES)
def test_running_ahead_is_never_slower_nor_below_the_bound(
    phases: list[StepPhase],
) -> None:
    synchronous = step_time(phases, overlaps=False, is_split=True)
    ahead = step_time(phases, overlaps=True, is_split=True)
    assert synchronous.time >= ahead.time >= ahead.bound == synchronous.bound
    assert synchronous.time == pytest.approx(sum(phase.time for phase in phases))


@given(PHASES, st.booleans())
def test_pools_work_or_idle_all_the_time(
    phases: list[StepPhase], overlaps: bool
) -> None:
    step = step_time(phases, overlaps=overlaps, is_split=True)
    shown = lanes(phases, overlaps=overlaps, is_split=True)
    idle = {ROLLOUT: step.rollout_idle, TRAINING: step.training_idle}
    for pool, lane in shown.items():
        assert sum(time for _, time in lane) == pytest.approx(step.time)
        waits = sum(time for name, time in lane if name == IDLE)
        assert waits / step.time == pytest.approx(idle[pool], abs=1e-9)


def test_devices_idle_while_hosts_work() -> None:
    phases = [
        StepPhase("rollout", ROLLOUT, 6.0),
        StepPhase("reward", ROLLOUT, 1.0, devices_wait=True),
        StepPhase("training", TRAINING, 3.0),
    ]
    shared = step_time(phases, overlaps=False, is_split=False)
    assert shared.time == 10.0
    assert shared.rollout_idle == shared.training_idle == 0.1
    split = step_time(phases, overlaps=True, is_split=True)
    assert split.time == 7.0
    assert split.rollout_idle == pytest.approx(1 / 7)
    assert split.training_idle == pytest.approx(4 / 7)
