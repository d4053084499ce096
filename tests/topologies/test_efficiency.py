"""What is reached of a link: as if it were slower, but named as it is built."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from tests.topologies.strategies import (
    cabled_fat_tree_specs,
    fat_tree_specs,
    rail_specs,
    spine_leaf_specs,
    torus_specs,
)
from topologies import (
    Degradation,
    FatTreeSpec,
    InputError,
    LevelSpec,
    RailSpec,
    SlowLinks,
    SpineLeafSpec,
    TorusSpec,
    build_network,
    degrade,
)

specs = (
    fat_tree_specs()
    | cabled_fat_tree_specs()
    | spine_leaf_specs()
    | rail_specs()
    | torus_specs()
)
parts = st.sampled_from([0.25, 0.5, 1.0])
"""Powers of two: products and sums of whole numbers with them are exact."""


def reaching(spec, part):
    """Return the same network of which so much is reached on all links."""
    if isinstance(spec, FatTreeSpec):
        levels = tuple(replace(level, efficiency=part) for level in spec.levels)
        return replace(spec, levels=levels)
    if isinstance(spec, TorusSpec):
        return replace(spec, efficiency=part)
    return replace(
        spec, node_efficiency=part, nic_efficiency=part, spine_efficiency=part
    )


@given(specs, parts)
def test_traffic_meets_links_that_are_slower_by_the_efficiency(spec, part):
    built, reached = build_network(spec), build_network(reaching(spec, part))
    np.testing.assert_array_equal(reached.links.bandwidth, part * built.links.bandwidth)
    np.testing.assert_array_equal(reached.links.latency, built.links.latency)
    assert reached.bisection_bandwidth() == part * built.bisection_bandwidth()
    for after, before in zip(reached.levels, built.levels, strict=True):
        assert after == replace(
            before,
            bandwidth=part * before.bandwidth,
            uplink_bandwidth=part * before.uplink_bandwidth,
        )


@given(specs, parts)
def test_tiers_are_named_as_they_are_built_with_the_efficiency_beside(spec, part):
    built, reached = build_network(spec), build_network(reaching(spec, part))
    expected = tuple(replace(tier, efficiency=part) for tier in built.tiers())
    assert reached.tiers() == expected


@given(fat_tree_specs() | torus_specs(), parts)
def test_slowing_a_link_takes_it_from_what_was_reached(spec, part):
    network = build_network(reaching(spec, part))
    if not len(network.links):
        return
    names = network.vertex_names
    ends = (names[network.links.source[0]], names[network.links.target[0]])
    slow = SlowLinks(links=f"{ends[0]} -> {ends[1]}", factor=2.0)
    left = degrade(network, Degradation(slow_links=(slow,)))
    assert left.links.bandwidth[0] == network.links.bandwidth[0] / 2
    for after, before in zip(left.levels, network.levels, strict=True):
        assert after.bandwidth <= before.bandwidth
    assert left.tiers() == network.tiers()


def test_a_derived_link_is_made_of_its_childrens_bandwidth_not_of_what_they_reach():
    levels = (
        LevelSpec(name="node", fan_out=8, latency=0.0, bandwidth=50.0, efficiency=0.5),
        LevelSpec(name="leaf", fan_out=2, latency=0.0),
    )
    node, leaf = build_network(FatTreeSpec(levels=levels)).tiers()
    assert (node.link_bandwidth, node.efficiency) == (50.0, 0.5)
    assert (leaf.link_bandwidth * 8, leaf.efficiency) == (400.0, 1.0)
    assert node.oversubscription == 1.0


def test_each_level_has_an_efficiency_of_its_own():
    spec = SpineLeafSpec(
        devices_per_node=2,
        node_bandwidth=64.0,
        node_latency=0.0,
        nodes_per_leaf=2,
        num_leaves=2,
        nic_bandwidth=16.0,
        nic_latency=0.0,
        spine_latency=0.0,
        node_efficiency=0.75,
        nic_efficiency=0.5,
        spine_efficiency=0.25,
    )
    network = build_network(spec)
    reached = [set(network.links.bandwidth[network.links.level == k]) for k in range(3)]
    assert reached == [{48.0}, {8.0}, {16.0}]
    assert [level.bandwidth for level in network.levels] == [48.0, 8.0, 8.0]
    # What a leaf's NICs reach is twice what its links to the spines do.
    assert network.levels[1].oversubscription == 2.0
    assert network.tiers()[1].oversubscription == 1.0


@failures.over("value", [0.0, -0.5, 1.01, float("nan"), float("inf")])
def test_what_is_no_fraction_is_refused_by_its_name(value):
    level = {"name": "node", "fan_out": 2, "latency": 0.0, "bandwidth": 1.0}
    with pytest.raises(InputError, match="at most 1") as caught:
        LevelSpec(**level, efficiency=value)
    assert caught.value.where == "efficiency"
    with pytest.raises(InputError) as caught:
        TorusSpec(
            dimensions=(2,), wrap=(True,), bandwidth=1.0, latency=0.0, efficiency=value
        )
    assert caught.value.where == "efficiency"
    node = {"devices_per_node": 1, "node_bandwidth": 1.0, "node_latency": 0.0}
    nic = {"nic_bandwidth": 1.0, "nic_latency": 0.0, "spine_latency": 0.0}
    for name in ("node_efficiency", "nic_efficiency", "spine_efficiency"):
        with pytest.raises(InputError) as caught:
            RailSpec(**node, **nic, nodes_per_unit=1, num_units=1, **{name: value})
        assert caught.value.where == name
