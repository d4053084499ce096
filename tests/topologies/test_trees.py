"""Fat-trees, spine-leaf and rail-optimised networks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from tests import failures
from tests.topologies.oracles import all_pairs
from tests.topologies.strategies import fat_tree_specs, rail_specs, trees
from topologies import (
    FatTreeSpec,
    InputError,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    build_network,
)

H100_64 = SpineLeafSpec(
    devices_per_node=8,
    node_bandwidth=450e9,
    node_latency=1e-6,
    nodes_per_leaf=4,
    num_leaves=2,
    nic_bandwidth=50e9,
    nic_latency=2e-6,
    num_spines=4,
    oversubscription=2.0,
    spine_latency=3e-6,
)

RAIL_128 = RailSpec(
    devices_per_node=8,
    node_bandwidth=450e9,
    node_latency=1e-6,
    nodes_per_unit=4,
    num_units=4,
    nic_bandwidth=50e9,
    nic_latency=2e-6,
    num_spines=4,
    spine_latency=3e-6,
)


def vertices(network, source, target):
    """Names of the vertices on a route."""
    links = network.route(source, target)
    ends = [source, *(int(network.links.target[link]) for link in links)]
    return [network.vertex_names[v] for v in ends]


def paper_tree(second_level=None):
    """The TPUv4-like fat-tree of the NEST paper, 1024 devices."""
    levels = (
        LevelSpec(name="node", fan_out=8, bandwidth=900e9, latency=1e-6),
        LevelSpec(name="switch", fan_out=4, bandwidth=100e9, latency=1e-6),
        LevelSpec(name="core", fan_out=32, bandwidth=second_level, latency=1e-6),
    )
    return build_network(FatTreeSpec(levels=levels, nic="node"))


@given(network=trees)
@settings(max_examples=50)
def test_a_pairs_level_is_its_lowest_common_block(network):
    routing = network.routing
    if routing.num_planes > 1 and not routing.relay:
        return
    sources, targets = all_pairs(network)
    levels = network.pair_levels(sources, targets)
    for source, target, level in zip(sources, targets, levels, strict=True):
        common = [
            number
            for number, row in enumerate(network.levels)
            if source // row.block_size == target // row.block_size
        ]
        assert level == common[0]


@given(network=trees)
@settings(max_examples=50)
def test_a_route_climbs_to_its_level_and_no_higher(network):
    sources, targets = all_pairs(network)
    apart = sources != targets
    sources, targets = sources[apart], targets[apart]
    routes = network.routes(sources, targets)
    if len(sources):
        highest = np.maximum.reduceat(
            network.links.level[routes.links], routes.indptr[:-1]
        )
        assert np.array_equal(highest, network.pair_levels(sources, targets))


@given(network=trees)
@settings(max_examples=50)
def test_oversubscription_times_uplinks_is_what_the_children_send(network):
    links = network.links
    up = links.source < links.target
    for number, level in enumerate(network.levels[:-1]):
        children = links.bandwidth[up & (links.level == number)].sum()
        uplinks = links.bandwidth[up & (links.level == number + 1)].sum()
        assert level.uplink_bandwidth * level.num_blocks == pytest.approx(uplinks)
        ratio = level.oversubscription * level.uplink_bandwidth
        assert ratio * level.num_blocks == pytest.approx(children)


@given(spec=fat_tree_specs())
@settings(max_examples=50)
def test_derived_trunks_have_the_ratio_that_was_asked_for(spec):
    network = build_network(spec)
    for inner, outer, level in zip(
        spec.levels[:-1], spec.levels[1:], network.levels[:-1], strict=True
    ):
        if outer.bandwidth is None:
            assert level.oversubscription == pytest.approx(inner.oversubscription or 1)


def test_the_papers_fat_tree_is_what_it_says():
    network = paper_tree()
    assert network.num_devices == 1024
    assert [level.bandwidth for level in network.levels] == [900e9, 100e9, 100e9]
    assert [level.uplink_bandwidth for level in network.levels[:2]] == [100e9, 400e9]
    assert network.block_sizes == (8, 32, 1024)
    assert network.bisection_bandwidth() == 16 * 400e9
    assert network.levels[0].oversubscription == 72.0


def test_a_trunk_given_explicitly_equals_the_derived_one():
    derived, explicit = paper_tree(), paper_tree(second_level=400e9)
    assert np.array_equal(derived.links.bandwidth, explicit.links.bandwidth)
    assert derived.levels == explicit.levels
    assert derived.tiers()[-1].num_links == 128
    assert explicit.tiers()[-1].num_links == 32


def test_a_shared_nic_is_one_link_for_all_devices_of_the_node():
    network = paper_tree()
    assert vertices(network, 3, 9) == [
        "device 3",
        "node 0",
        "switch 0",
        "node 1",
        "device 9",
    ]
    uplinks = {network.route(device, 9)[1] for device in range(8)}
    assert len(uplinks) == 1


def test_a_nic_per_device_goes_round_the_nodes_switch():
    network = build_network(H100_64)
    assert vertices(network, 3, 5) == ["device 3", "node 0", "device 5"]
    assert vertices(network, 3, 9) == ["device 3", "leaf 0", "device 9"]
    assert vertices(network, 3, 63) == [
        "device 3",
        "leaf 0",
        "spine 0",
        "leaf 1",
        "device 63",
    ]
    assert len({network.route(device, 9)[0] for device in range(8)}) == 8


def test_64_h100_with_2_to_1_have_the_expected_levels():
    node, leaf, spine = build_network(H100_64).levels
    assert (node.bandwidth, node.latency, node.oversubscription) == (450e9, 2e-6, 9.0)
    assert (leaf.bandwidth, leaf.latency, leaf.oversubscription) == (50e9, 4e-6, 2.0)
    assert leaf.uplink_bandwidth == 32 * 50e9 / 2
    assert (spine.bandwidth, spine.latency) == (50e9, pytest.approx(10e-6))


def test_an_ideal_trunk_is_one_link_of_as_many_cables_as_spines():
    network = build_network(H100_64)
    trunk = network.links.level == 2
    assert set(network.links.num_parallel[trunk]) == {4}
    assert set(network.links.bandwidth[trunk]) == {800e9}


def test_a_rail_joins_equal_local_ranks_of_a_unit():
    network = build_network(RAIL_128)
    assert vertices(network, 3, 11) == ["device 3", "rail unit 0 rail 3", "device 11"]
    assert vertices(network, 3, 35) == [
        "device 3",
        "rail unit 0 rail 3",
        "spine 0",
        "rail unit 1 rail 3",
        "device 35",
    ]


def test_with_pxn_the_senders_node_is_crossed_to_the_receivers_rail():
    network = build_network(RAIL_128)
    assert vertices(network, 3, 13) == [
        "device 3",
        "node 0",
        "device 5",
        "rail unit 0 rail 5",
        "device 13",
    ]
    assert network.group_level(np.array([3, 13])) == 1


def test_without_pxn_another_rail_is_reached_through_the_spine():
    network = build_network(replace(RAIL_128, pxn=False))
    assert vertices(network, 3, 13) == [
        "device 3",
        "rail unit 0 rail 3",
        "spine 0",
        "rail unit 0 rail 5",
        "device 13",
    ]
    assert network.group_level(np.array([3, 13])) == 2
    assert network.group_level(np.array([3, 11])) == 1


@given(spec=rail_specs())
@settings(max_examples=30)
def test_every_unit_has_one_switch_per_rail(spec):
    network = build_network(spec)
    switches = [name for name in network.vertex_names if name.startswith("rail unit")]
    assert len(switches) == spec.num_units * spec.devices_per_node


ECMP = replace(H100_64, trunk="ecmp", num_leaves=4)


def spines_of(network):
    """The spine of every pair that crosses one."""
    sources, targets = all_pairs(network)
    crossing = network.pair_levels(sources, targets) == 2
    routes = network.routes(sources[crossing], targets[crossing])
    downs = routes.links.reshape(-1, 4)[:, 2]
    return network.links.source[downs]


def test_ecmp_keeps_every_pair_on_one_spine():
    first, second = build_network(ECMP), build_network(ECMP)
    assert np.array_equal(spines_of(first), spines_of(second))


def test_ecmp_with_another_seed_hashes_otherwise():
    other = build_network(replace(ECMP, ecmp_seed=1))
    assert np.mean(spines_of(build_network(ECMP)) == spines_of(other)) < 0.3


def test_ecmp_spreads_pairs_evenly_over_the_spines():
    spines, counts = np.unique(spines_of(build_network(ECMP)), return_counts=True)
    assert len(spines) == 4
    mean = counts.sum() / 4
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean)


def test_ecmp_spreads_the_targets_of_each_source():
    network = build_network(ECMP)
    targets = np.arange(32, 128)
    routes = network.routes(np.zeros_like(targets), targets)
    used = network.links.target[routes.links.reshape(-1, 4)[:, 1]]
    assert np.unique(used, return_counts=True)[1].min() > 10


def test_ecmp_divides_the_trunk_and_keeps_its_sum():
    ideal, ecmp = build_network(replace(ECMP, trunk="ideal")), build_network(ECMP)
    assert ecmp.levels[1].uplink_bandwidth == ideal.levels[1].uplink_bandwidth
    assert ecmp.bisection_bandwidth() == ideal.bisection_bandwidth()
    narrow = replace(ECMP, num_spines=64)
    assert build_network(narrow).levels[2].bandwidth == 800e9 / 64


def test_fan_outs_of_one_make_no_blocks():
    network = build_network(replace(H100_64, nodes_per_leaf=1, num_leaves=1))
    assert network.block_sizes == (8,)
    assert build_network(replace(H100_64, devices_per_node=1)).block_sizes == (4, 8)


def level(**changes):
    values = {"name": "a", "fan_out": 2, "latency": 0.0, "bandwidth": 1.0} | changes
    return LevelSpec(**values)


def test_a_ratio_and_the_bandwidth_above_it_contradict_each_other():
    with pytest.raises(
        InputError, match=r"contradicts levels\[1\].bandwidth"
    ) as caught:
        FatTreeSpec(levels=(level(oversubscription=2.0), level(name="b")))
    assert caught.value.where == "levels[0].oversubscription"
    assert "leave one of them out" in str(caught.value)


@failures.over(
    ("levels", "where"),
    [
        ((), "levels"),
        ((level(bandwidth=None),), "levels[0].bandwidth"),
        ((level(), level()), "levels[1].name"),
        ((level(name="device"),), "levels[0].name"),
        ((level(oversubscription=2.0),), "levels[0].oversubscription"),
        ((level(fan_out=2**11), level(name="b", fan_out=2**10)), "levels"),
    ],
)
def test_impossible_trees_are_refused_by_setting(levels, where):
    with pytest.raises(InputError) as caught:
        FatTreeSpec(levels=levels)
    assert caught.value.where == where
