"""What networks are made of, against closed forms and against their links."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests import failures
from tests.topologies.oracles import smallest_halving_cut
from tests.topologies.strategies import networks
from topologies import (
    Degradation,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SlowLinks,
    SpineLeafSpec,
    TorusSpec,
    build_network,
    degrade,
)
from topologies.accelerators import Host
from topologies.fabrics.inventory import bisection_rule, count_parts, links_up

SPINE_LEAF = SpineLeafSpec(
    devices_per_node=8,
    node_bandwidth=450.0,
    node_latency=1.0,
    nodes_per_leaf=2,
    num_leaves=4,
    nic_bandwidth=50.0,
    nic_latency=1.0,
    spine_latency=1.0,
    num_spines=2,
    oversubscription=2.0,
)
RAIL = RailSpec(
    devices_per_node=8,
    node_bandwidth=450.0,
    node_latency=1.0,
    nodes_per_unit=4,
    num_units=2,
    nic_bandwidth=50.0,
    nic_latency=1.0,
    spine_latency=1.0,
    num_spines=4,
)


def k_ary_fat_tree(k):
    """Al-Fares' fat-tree, of hosts with one device."""
    return FatTreeSpec(
        levels=(
            LevelSpec(name="host", fan_out=1, latency=1.0, bandwidth=100.0),
            LevelSpec(name="edge", fan_out=k // 2, latency=1.0, bandwidth=10.0),
            LevelSpec(name="pod", fan_out=k // 2, latency=1.0),
            LevelSpec(name="core", fan_out=k, latency=1.0),
        )
    )


@failures.over("k", [4, 6, 8, 48])
def test_fat_trees_of_equal_switches_have_the_counts_of_the_textbook(k):
    network = build_network(k_ary_fat_tree(k))
    found = count_parts(network)
    assert network.num_devices == found.num_nic_ports == k**3 // 4
    edge, pod, core = found.fabric
    assert (edge.num_switches, pod.num_switches) == (k * k // 2, k * k // 2)
    assert core.num_switches == k * k // 4
    assert found.num_switches == 5 * k * k // 4
    assert [tier.num_cables for tier in found.fabric] == 3 * [k**3 // 4]
    assert {tier.ports_per_switch for tier in found.fabric} == {k}
    assert found.num_ports == 2 * found.num_cables == 6 * k**3 // 4
    assert links_up(network) == 1.0
    assert network.bisection_bandwidth() == k**3 / 8 * 10.0


@failures.over("trunk", ["ideal", "ecmp"])
def test_spines_have_the_ports_that_the_leaves_send_up(trunk):
    network = build_network(replace(SPINE_LEAF, trunk=trunk))
    found = count_parts(network)
    node, leaf, spine = found.tiers
    assert node.is_inside_nodes
    assert (node.num_cables, node.num_switches, node.ports_per_switch) == (64, 8, 8)
    # 16 NICs down and half of that up, on four leaves; two spines with half of it.
    assert (leaf.num_cables, leaf.num_switches, leaf.ports_per_switch) == (64, 4, 24)
    assert (spine.num_cables, spine.num_switches) == (32, 2)
    assert (spine.cable_bandwidth, spine.ports_per_switch) == (50.0, 16)
    assert (found.num_nic_ports, found.num_switch_ports) == (64, 128)
    assert links_up(network) == 2.0


@failures.over("trunk", ["ideal", "ecmp"])
def test_rails_have_a_switch_for_each_unit_and_rank(trunk):
    found = count_parts(build_network(replace(RAIL, trunk=trunk)))
    _, rails, spines = found.tiers
    assert (rails.num_switches, rails.ports_per_switch) == (16, 8)
    assert (spines.num_switches, spines.num_cables) == (4, 64)
    assert spines.ports_per_switch == 16
    assert found.num_ports == 256


def test_a_spine_is_as_many_switches_as_its_ports_take():
    assert count_parts(build_network(RAIL)).fabric[-1].num_switches == 4
    network = build_network(replace(RAIL, num_spines=1))
    assert count_parts(network).fabric[-1].num_switches == 8
    assert count_parts(network, switch_ports=32).fabric[-1].num_switches == 2
    assert count_parts(network, switch_ports=64).fabric[-1].num_switches == 1


def test_a_node_with_one_nic_has_one_port():
    levels = (
        LevelSpec(name="node", fan_out=8, latency=1.0, bandwidth=450.0),
        LevelSpec(name="leaf", fan_out=4, latency=1.0, bandwidth=400.0, num_cables=8),
        LevelSpec(name="spine", fan_out=2, latency=1.0),
    )
    found = count_parts(build_network(FatTreeSpec(levels=levels)))
    _, leaf, spine = found.tiers
    assert (leaf.num_cables, leaf.num_device_ports) == (64, 64)
    assert leaf.cable_bandwidth == 50.0
    assert (leaf.ports_per_switch, spine.num_switch_ports) == (64, 128)
    assert found.inside_nodes[0].num_switch_ports == 64


@failures.over(
    ("dimensions", "wrap", "ports"),
    [
        ((4, 4, 4), (True, True, True), 6),
        ((8, 8), (True, True), 4),
        ((16,), (True,), 2),
        ((2, 8), (True, True), 3),
        ((1, 8), (True, True), 2),
    ],
)
def test_a_torus_has_two_ports_for_each_device_and_dimension(dimensions, wrap, ports):
    spec = TorusSpec(dimensions=dimensions, wrap=wrap, bandwidth=50.0, latency=1.0)
    found = count_parts(build_network(spec))
    assert found.num_nic_ports == ports * spec.num_devices
    assert found.num_cables == ports * spec.num_devices // 2
    assert (found.num_switches, found.num_switch_ports) == (0, 0)


def joining(network):
    """Which links join copies of a network, wires inside of hosts left out."""
    links, first = network.links, len(network.routing.copy.inner.levels)
    low, high = (np.minimum, np.maximum)
    ends = low(links.source, links.target), high(links.source, links.target)
    in_host = [
        " NIC " in network.vertex_names[end] and start < network.num_devices
        for start, end in zip(*ends, strict=True)
    ]
    return (links.level >= first) & ~np.array(in_host, dtype=bool)


def joined_bandwidth(found, network):
    """Bandwidth of the cables that join copies."""
    names = {tier.name for tier in network.routing.graph.tiers} | {"pod"}
    return sum(tier.bandwidth for tier in found.tiers if tier.name in names)


@given(network=networks)
@settings(max_examples=60)
def test_cables_carry_what_the_links_of_their_tier_carry(network):
    found = count_parts(network)
    links = network.links
    if network.routing.family == "custom":
        ends = np.stack([links.source, links.target], axis=1)
        assert len(np.unique(ends, axis=0)) <= found.num_ports <= 2 * len(links)
        assert found.num_switches == len(np.unique(ends[ends >= network.num_devices]))
    elif network.routing.family == "torus":
        efficiency = network.tiers()[0].efficiency
        assert found.bandwidth == pytest.approx(links.bandwidth.sum() / efficiency / 2)
        assert found.num_cables == len(links) / 2
    elif network.routing.family == "joined":
        assert joined_bandwidth(found, network) == pytest.approx(
            links.bandwidth[joining(network)].sum() / 2
        )
    else:
        level = {tier.name: k for k, tier in enumerate(network.tiers())}
        for tier in found.tiers:
            k = level[tier.name]
            carried = links.bandwidth[links.level == k].sum() / 2
            efficiency = network.tiers()[k].efficiency
            assert tier.bandwidth == pytest.approx(carried / efficiency)
    assert found.num_ports == 2 * found.num_cables
    for tier in found.tiers:
        if tier.num_switches:
            assert tier.num_switches * tier.ports_per_switch >= tier.num_cables


def test_what_is_gone_and_what_is_behind_the_devices_is_not_counted_otherwise():
    network = build_network(SPINE_LEAF)
    found = count_parts(network)
    host = Host(to_host=10.0, to_device=10.0, memory=1.0)
    assert count_parts(network.with_host(host)) == found
    left = degrade(
        network, Degradation(slow_links=(SlowLinks(links="level spine", factor=2.0),))
    )
    assert count_parts(left) == found


def test_the_rule_of_a_bisection_is_that_of_the_network():
    even, odd = build_network(RAIL), build_network(replace(RAIL, nodes_per_unit=3))
    assert bisection_rule(even) == "smallest cut into halves, by tiers"
    assert bisection_rule(odd) == bisection_rule(even)
    three = build_network(replace(RAIL, nodes_per_unit=3, num_units=1))
    assert "upper bound" in bisection_rule(three)
    small = build_network(replace(RAIL, devices_per_node=2, nodes_per_unit=2))
    assert small.bisection_bandwidth() == smallest_halving_cut(small)
    spec = TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=1.0, latency=1.0)
    torus = build_network(spec)
    assert bisection_rule(torus) == "smallest cut by a plane"
    assert torus.bisection_bandwidth() == smallest_halving_cut(torus) == 8.0
    slow = degrade(torus, Degradation(removed_links=("device 0 <-> device 1",)))
    assert "largest flow" in bisection_rule(slow)
    assert math.isclose(links_up(torus), 1.0)
