"""Networks as libraries use them, and switches that add up: steps, bytes, latencies."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives.algorithms import algorithm_or_ring
from estimators.collectives.cost import algorithm_phases, collective_rates
from estimators.collectives.messages import exchange_rates
from estimators.collectives.transports import library_network, transports
from estimators.software import IDEAL, Software
from tests import failures
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, TorusSpec

LIBRARY = Software(name="megatron-core")
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
NODE, FABRIC = transports()["default-node"], transports()["default-fabric"]
HOP = FABRIC.per_hop


def cluster(local, nodes, *, leaves=1, wire=0.5e-6, sharp=False):
    """Return nodes below leaf switches, an adapter for each device."""
    levels = [
        LevelSpec(name="node", fan_out=local, bandwidth=400e9, latency=0.25e-6),
        LevelSpec(name="leaf", fan_out=nodes, bandwidth=50e9, latency=wire),
        LevelSpec(name="spine", fan_out=leaves, latency=0.1e-6),
    ]
    spec = FatTreeSpec(
        levels=tuple(levels[: 3 if leaves > 1 else 2]), nic="device", sharp=sharp
    )
    return build_network(spec)


def library(network):
    return library_network(network, NODE, FABRIC, LIBRARY)


def rate(network, operation, members, algorithm="hierarchical"):
    groups = np.asarray(members).reshape(1, 1, -1)
    (found,) = collective_rates(network, operation, groups, algorithm)
    return found


def test_a_step_between_nodes_takes_what_the_library_takes_at_least():
    built = cluster(8, 4)
    network = library(built)
    assert rate(built, "all_gather", [0, 8]).latency == pytest.approx(1e-6)
    assert rate(network, "all_gather", [0, 8]).latency == pytest.approx(HOP)
    # Wires that are slower than that stay as they are.
    slow = library(cluster(8, 4, wire=20e-6))
    assert rate(slow, "all_gather", [0, 8]).latency == pytest.approx(40e-6)


def test_without_a_library_and_off_trees_nothing_changes():
    network = cluster(8, 4)
    assert library_network(network, NODE, FABRIC, IDEAL) is network
    torus = build_network(
        TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=1e9, latency=1e-6)
    )
    assert library(torus) is torus


@failures.over("operation", ["all_gather", "reduce_scatter"])
@failures.over("nodes", [2, 64, 256, 2048])
@failures.over("local", [1, 8])
def test_gathers_and_scatters_take_every_step_of_one_ring(operation, nodes, local):
    network = library(cluster(local, nodes))
    found = rate(network, operation, np.arange(local * nodes))
    n = local * nodes
    steps = (n - nodes) * 0.5e-6 + (nodes - 1) * HOP
    assert found.latency == pytest.approx(steps)
    # All adapters of a node are used: a member's carries what its node's lack.
    outside = (nodes - 1) / nodes / local / 50e9
    inside = (local - 1) / local / 400e9
    assert found.inverse_bandwidth == pytest.approx(outside + inside)


@failures.over("nodes", [2, 4, 8, 64, 2048])
def test_all_reduces_wait_for_the_lesser_of_tree_and_ring(nodes):
    network = library(cluster(1, nodes))
    found = rate(network, "all_reduce", np.arange(nodes))
    # A tree's step waits for two children: it counts twice.
    tree = 2 * math.ceil(math.log2(nodes)) * 2 * HOP
    assert found.latency == pytest.approx(min(tree, 2 * (nodes - 1) * HOP))
    assert found.inverse_bandwidth == pytest.approx(2 * (nodes - 1) / nodes / 50e9)


@given(
    st.integers(1, 8),
    st.integers(2, 40),
    st.integers(1, 4),
    st.sampled_from(OPERATIONS),
    st.booleans(),
)
def test_more_nodes_are_never_faster(local, nodes, more, operation, sharp):
    fewer = library(cluster(local, nodes, sharp=sharp))
    larger = library(cluster(local, nodes + more, sharp=sharp))
    name = "sharp" if sharp else "hierarchical"
    one = rate(fewer, operation, np.arange(fewer.num_devices), name)
    other = rate(larger, operation, np.arange(larger.num_devices), name)
    assert other.latency >= one.latency * (1 - 1e-12)
    assert other.inverse_bandwidth >= one.inverse_bandwidth * (1 - 1e-12)


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from(OPERATIONS),
    st.data(),
)
@settings(max_examples=60)
def test_rings_and_messages_are_priced_alike(
    local, nodes, leaves, is_library, sharp, operation, data
):
    """Two ways to the same prices: rings by their folds, and message by message."""
    network = cluster(local, nodes, leaves=leaves, sharp=sharp)
    network = library(network) if is_library else network
    devices = st.integers(0, network.num_devices - 1)
    members = sorted(data.draw(st.sets(devices, min_size=1)))
    name = "sharp" if sharp else "hierarchical"
    found = rate(network, operation, members, name)
    groups = np.array(members).reshape(1, 1, -1)
    used = algorithm_or_ring(name, operation)
    ((latency, inverse),) = exchange_rates(network, operation, groups, used)
    assert found == pytest.approx((latency, inverse), rel=1e-9)


@failures.over("leaves", [1, 2])
@failures.over("nodes", [2, 16, 128])
@failures.over("local", [1, 8])
def test_switches_that_add_up_take_each_byte_once(local, nodes, leaves):
    network = cluster(local, nodes, leaves=leaves, sharp=True)
    found = rate(network, "all_reduce", np.arange(network.num_devices), "sharp")
    route = 1.0e-6 if leaves == 1 else 1.2e-6
    assert found.latency == pytest.approx(2 * (local - 1) * 0.5e-6 + 2 * route)
    inside = 2 * (local - 1) / local / 400e9
    assert found.inverse_bandwidth == pytest.approx(inside + 1 / local / 50e9)
    # Twice as fast on the wire as rings through many nodes, and never slower.
    plain = cluster(local, nodes, leaves=leaves)
    rings = rate(plain, "all_reduce", np.arange(plain.num_devices))
    assert found.inverse_bandwidth <= rings.inverse_bandwidth


def test_switches_add_up_all_reduces_between_nodes_alone():
    plain, sharp = cluster(8, 4), cluster(8, 4, sharp=True)
    everyone = np.arange(32)
    for operation in ("all_gather", "reduce_scatter"):
        expected = rate(plain, operation, everyone)
        assert rate(sharp, operation, everyone, "sharp") == expected
    inside = np.arange(8)
    expected = rate(plain, "all_reduce", inside)
    assert rate(sharp, "all_reduce", inside, "sharp") == expected


def test_rings_level_by_level_are_rings_also_where_switches_add_up():
    plain, sharp = cluster(8, 4), cluster(8, 4, sharp=True)
    for operation in OPERATIONS:
        expected = rate(plain, operation, np.arange(32))
        assert rate(sharp, operation, np.arange(32)) == expected


def test_a_tree_of_switches_carries_each_group_once():
    """Of 16 members below one leaf only one sum goes up to the spine."""
    network = cluster(1, 16, leaves=2, sharp=True)
    groups = np.arange(32).reshape(1, 32)
    (phase,) = algorithm_phases(network, "all_reduce", groups, "sharp")
    senders, receivers = phase.rings.ravel(), np.roll(phase.rings, -1, axis=1).ravel()
    loads = np.zeros(len(network.links))
    for source, target in zip(senders.tolist(), receivers.tolist(), strict=True):
        loads[list(network.route(source, target))] += phase.fraction
    assert (loads[network.links.level > 0] == 1.0).all()


def test_groups_that_nodes_do_not_divide_evenly_are_one_ring():
    network = library(cluster(4, 4))
    found = rate(network, "all_gather", [0, 1, 2, 4])
    assert found.latency == pytest.approx(3 * HOP)


@failures.over("members", [64, 72])
def test_a_rack_of_one_nvlink_domain_has_the_adapters_of_all_its_devices(members):
    """GB200 NVL72: all-reduce between two racks over an adapter for each device."""
    levels = (
        LevelSpec(name="rack", fan_out=72, bandwidth=900e9, latency=0.5e-6),
        LevelSpec(name="fabric", fan_out=2, bandwidth=50e9, latency=1e-6),
    )
    network = build_network(FatTreeSpec(levels=levels, nic="device"))
    groups = np.concatenate([np.arange(members), 72 + np.arange(members)])
    for one in (network, library(network)):
        found = rate(one, "all_reduce", groups)
        inside = 2 * (members - 1) / members / 900e9
        assert found.inverse_bandwidth == pytest.approx(inside + 1 / (members * 50e9))


def test_bridged_pairs_are_inside_a_node():
    """Two pairs on PCIe: a library's ring goes through both, and no link is a hop."""
    levels = (
        LevelSpec(name="pair", fan_out=2, bandwidth=300e9, latency=0.5e-6),
        LevelSpec(name="node", fan_out=2, bandwidth=25e9, latency=0.5e-6),
        LevelSpec(name="fabric", fan_out=2, bandwidth=25e9, latency=0.5e-6),
    )
    spec = FatTreeSpec(levels=levels, nic="device", node_levels=2)
    network = library(build_network(spec))
    # All four as one ring of three steps, limited by PCIe.
    found = rate(network, "all_gather", np.arange(4))
    assert found.inverse_bandwidth == pytest.approx(3 / 4 / 25e9)
    assert found.latency == pytest.approx(3e-6)
    assert rate(network, "all_gather", [0, 1]).inverse_bandwidth == pytest.approx(
        0.5 / 300e9
    )
    assert rate(network, "all_gather", [0, 4]).latency == pytest.approx(1e-6 + HOP)
    alone = replace(network.rules, is_library=False)
    assert rate(replace(network, rules=alone), "all_gather", np.arange(4)) != found
