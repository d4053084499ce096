"""What contention costs by level: steps with known answers, and random ones."""

import numpy as np
import pytest
from hypothesis import given, settings

from nestsim.evaluate.verdict import contention_by_level, private_links, shared_levels
from nestsim.simulator.build import build_model
from nestsim.simulator.frames import FramedStep
from nestsim.simulator.replay import replay
from nestsim.simulator.system import Incidence, ReplaySettings
from tests.nestsim.simulator.cases import full_mesh, pipeline, slowed, two_tiers
from tests.nestsim.simulator.folding_cases import grid, spine_leaf, steps

DEFAULT = ReplaySettings()


def split(net, work):
    done = replay(net, work)
    return done, contention_by_level(net, work, DEFAULT, done.pipeline_time)


@settings(max_examples=25)
@given(step=steps())
def test_the_levels_add_up_to_what_contention_costs(step):
    done, found = split(*step)
    total = sum(found.by_level.values())
    expected = done.pipeline_time - found.alone.pipeline
    if found.by_level:
        assert total == pytest.approx(expected, rel=1e-12, abs=1e-12)
    else:
        # Nothing meets anywhere: the replay is the run without contention.
        assert found.alone.pipeline == pytest.approx(done.pipeline_time, rel=1e-9)


def test_where_every_flow_has_its_own_link_there_is_no_level_to_name():
    work = pipeline([[[0], [1]], [[2], [3]]], 3, boundary_bytes=[1e9])
    done, found = split(full_mesh(4, 1e9), work)
    assert found.by_level == {}
    assert found.alone.pipeline == done.pipeline_time


def ping_pong(nodes):
    """Two stages of one microbatch each: passes of 1 s and a message both ways."""
    return pipeline(nodes, 1, boundary_bytes=[1e9])


def test_one_pipeline_in_nobodys_way_contends_nowhere():
    done, found = split(two_tiers(2, 2), ping_pong([[[0]], [[2]]]))
    assert done.pipeline_time == pytest.approx(6.0, abs=1e-4)
    assert found.alone.pipeline == pytest.approx(done.pipeline_time, abs=1e-9)


def test_replicas_of_one_boundary_are_what_the_plan_expects():
    """Both replicas send at once over one uplink: the plan prices just that."""
    done, found = split(two_tiers(2, 2), ping_pong([[[0], [1]], [[2], [3]]]))
    assert done.pipeline_time == pytest.approx(8.0, abs=1e-4)
    assert found.alone.pipeline == pytest.approx(8.0, abs=1e-4)
    assert sum(found.by_level.values()) == pytest.approx(0.0, abs=1e-9)


def test_boundaries_that_meet_on_the_uplinks_are_charged_to_the_outer_level():
    """Stages zigzag between two leaves; only the spine links are oversubscribed."""
    net = spine_leaf(2, oversubscription=64.0)
    devices = np.array([[[0]], [[32]], [[1]], [[33]]])
    work = pipeline(devices, 8, boundary_bytes=[3e9] * 3)
    done, found = split(net, work)
    assert set(found.by_level) <= {level.name for level in net.levels}
    outer = net.levels[-1].name
    assert found.by_level[outer] > 0.1
    others = [cost for name, cost in found.by_level.items() if name != outer]
    assert others == pytest.approx([0.0] * len(others), abs=1e-9)
    assert done.pipeline_time == pytest.approx(
        found.alone.pipeline + found.by_level[outer], abs=1e-9
    )


def test_a_slow_device_is_not_contention():
    even = ping_pong([[[0]], [[2]]])
    slow = slowed(even, [[1.0], [1.5]])
    net = two_tiers(2, 2)
    _, before = split(net, even)
    _, found = split(net, slow)
    added = found.alone.pipeline - before.alone.pipeline
    assert added == pytest.approx(1.0, abs=1e-9)
    assert sum(found.by_level.values()) == pytest.approx(0.0, abs=1e-9)


def levels_of(net, work):
    return shared_levels(FramedStep(net, work).num_crossing, net.links)


def test_a_level_counts_as_shared_if_two_flows_cross_one_of_its_links():
    net = spine_leaf(2)
    work = pipeline(grid(range(64), (2, 4, 8), "data inside"), 2, boundary_bytes=[1e6])
    flows = build_model(net, work).flows.incidence
    pairs = list(zip(*np.unique(flows.links, return_counts=True), strict=True))
    expected = {int(net.links.level[link]) for link, count in pairs if count > 1}
    assert set(levels_of(net, work)) == expected


def test_two_flows_are_enough_to_share_and_one_is_not():
    net = two_tiers(2, 2)
    assert levels_of(net, ping_pong([[[0]], [[2]]])) == ()
    assert levels_of(net, ping_pong([[[0], [1]], [[2], [3]]])) == (0,)


def test_private_links_allow_what_the_flows_of_one_kind_leave_each_other():
    net = two_tiers(2, 2, bandwidth=8.0, uplink=6.0)
    # Links 0 to 3 go up from the devices, 8 is the first uplink.
    incidence = Incidence(
        np.array([0, 2, 4, 5]), np.array([0, 8, 1, 8, 0]), np.array([1.0, 1, 1, 2, 4])
    )
    kinds = np.array([0, 0, 2])
    found, capacity, _ = private_links(incidence, net.links, (), kinds)
    # 6 byte/s among weights of 1 and 2; 8 byte/s for a weight of 4 alone.
    assert capacity.tolist() == [2.0, 2.0, 2.0]
    assert found.links.tolist() == [0, 1, 2]
    assert found.weights.tolist() == [1.0] * 3
    kept, capacity, _ = private_links(incidence, net.links, (0,), kinds)
    assert kept.indptr.tolist() == incidence.indptr.tolist()
    assert kept.weights.tolist() == incidence.weights.tolist()
    assert sorted(capacity.tolist()) == [6.0, 8.0, 8.0]
