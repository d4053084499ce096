"""Folding stays exact where links are gone or slow, and devices slow."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nestsim.simulator.build import build_model
from nestsim.simulator.replay import fold_model
from nestsim.simulator.work import RingPhase
from tests import failures
from tests.nestsim.simulator.cases import actor_slowdowns, pipeline, slowed
from tests.nestsim.simulator.folding_cases import grid, spine_leaf, steps
from tests.nestsim.simulator.test_folding import assert_same_run
from tests.topologies.strategies import degraded_networks
from topologies import Degradation, SlowDevice, degrade, slowdowns


@st.composite
def degraded_steps(draw):
    """Return what is left of a network, and a step on it with a slow device or two."""
    built, work = draw(steps())
    _, left = draw(degraded_networks(st.just(built)))
    slow = draw(
        st.lists(
            st.builds(
                SlowDevice,
                device=st.integers(0, built.num_devices - 1),
                factor=st.sampled_from([1.0, 1.25, 2.0]),
            ),
            max_size=2,
        )
    )
    each = slowdowns(Degradation(slow_devices=tuple(slow)), built.num_devices)
    return left, slowed(work, actor_slowdowns(work.devices, each))


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(step=degraded_steps())
def test_a_folded_run_is_bit_for_bit_the_unfolded_one(step):
    model = build_model(*step)
    assert_same_run(fold_model(model), model.system)


@failures.over("nesting", ["pipeline inside", "data inside"])
def test_a_lost_nic_and_a_slow_device_leave_few_classes_of_512_devices(nesting):
    built = spine_leaf(16)
    left = degrade(built, Degradation(removed_links=("device 100 <-> leaf 3",)))
    devices = grid(range(512), (4, 16, 8), nesting)
    each = np.ones(512)
    each[devices[2, 5, 3]] = 1.5
    slowdown = actor_slowdowns(devices, each)
    assert np.argwhere(slowdown > 1.0).tolist() == [[2, 5]]
    phases = tuple((RingPhase(stage.T, 2e9, 30),) for stage in devices)
    work = pipeline(
        devices,
        6,
        forward_time=[1e-2] * 4,
        backward_time=[2e-2] * 4,
        boundary_bytes=[5e8] * 3,
        reduce_phases=phases,
        gather_phases=phases,
        optimizer_time=[1e-3] * 4,
        slowdown=slowdown,
    )
    model = build_model(left, work)
    folding = fold_model(model)
    assert_same_run(folding, model.system)
    assert not np.array_equal(
        model.flows.incidence.links, build_model(built, work).flows.incidence.links
    )
    assert 4 < folding.actors.first.size <= 32
