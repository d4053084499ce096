"""Networks with slowed and removed parts: routes, levels, what is refused."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests import failures
from tests.topologies.oracles import all_pairs, hop_distances
from tests.topologies.strategies import (
    cabled_fat_trees,
    customs,
    degradations,
    degraded_networks,
    link_names,
    networks,
    tori,
    trees,
)
from topologies import (
    Degradation,
    FatTreeSpec,
    InputError,
    LevelSpec,
    RailSpec,
    SlowDevice,
    SlowFraction,
    SlowLinks,
    SpineLeafSpec,
    TorusSpec,
    build_network,
    degrade,
    slowdowns,
)
from topologies.degrade import random_order, select_links, select_switches

SPINE_LEAF = SpineLeafSpec(
    devices_per_node=4,
    node_bandwidth=450.0,
    node_latency=1.0,
    nodes_per_leaf=2,
    num_leaves=3,
    nic_bandwidth=48.0,
    nic_latency=2.0,
    num_spines=4,
    spine_latency=3.0,
    trunk="ecmp",
)
RAIL = RailSpec(
    devices_per_node=4,
    node_bandwidth=450.0,
    node_latency=1.0,
    nodes_per_unit=2,
    num_units=2,
    nic_bandwidth=48.0,
    nic_latency=2.0,
    spine_latency=3.0,
)
RING = TorusSpec(dimensions=(6,), wrap=(True,), bandwidth=10.0, latency=1.0)


def removed(network, *links, switches=()):
    return degrade(network, Degradation(removed_links=links, removed_switches=switches))


def present(network):
    """Which links are still there."""
    return network.routing.kept


def vertices(network, source, target):
    """Names of the vertices on a route."""
    links = network.route(source, target)
    ends = [source, *(int(network.links.target[link]) for link in links)]
    return [network.vertex_names[v] for v in ends]


def each_route(network):
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    for query, (source, target) in enumerate(zip(sources, targets, strict=True)):
        path = routes.links[routes.indptr[query] : routes.indptr[query + 1]]
        yield int(source), int(target), path.tolist()


@given(pair=degraded_networks())
@settings(max_examples=60)
def test_every_route_is_a_path_without_loops_over_links_that_are_left(pair):
    _, network = pair
    kept, links = present(network), network.links
    for source, target, path in each_route(network):
        passed = [source, *links.target[path].tolist()]
        assert [links.source[link] for link in path] == passed[:-1]
        assert passed[-1] == target
        assert len(set(passed)) == len(passed)
        assert kept[path].all()


@given(pair=degraded_networks())
@settings(max_examples=60)
def test_routes_that_avoid_what_was_removed_stay_link_for_link(pair):
    built, network = pair
    kept = present(network)
    for (_, _, before), (_, _, after) in zip(
        each_route(built), each_route(network), strict=True
    ):
        if kept[before].all():
            assert after == before


def crosses_nodes_by_choice(network):
    """With PXN routes cross a node although the spine would be nearer in hops.

    So do routes inside a pod not leave it, nor routes to a group cross a third one.
    """
    rails = network.kind == "rail" and network.routing.relay
    return rails or network.routing.family == "joined"


@given(pair=degraded_networks())
@settings(max_examples=60)
def test_every_route_has_the_fewest_hops_that_are_possible(pair):
    built, network = pair
    distances = hop_distances(network, present(network))
    chosen = crosses_nodes_by_choice(built)
    for source, target, path in each_route(network):
        if not (chosen and len(path) == len(built.route(source, target))):
            assert len(path) == distances[source, target]


@given(network=customs | trees | tori, data=st.data())
@settings(max_examples=50)
def test_without_a_link_no_route_is_shorter(network, data):
    assume(len(network.links) and not crosses_nodes_by_choice(network))
    before = [len(path) for _, _, path in each_route(network)]
    try:
        cut = removed(network, data.draw(link_names(network)))
    except InputError:
        assume(False)
    after = [len(path) for _, _, path in each_route(cut)]
    assert all(a >= b for a, b in zip(after, before, strict=True))


@given(pair=degraded_networks())
@settings(max_examples=30)
def test_one_route_is_the_same_as_among_many(pair):
    _, network = pair
    for query, (source, target, path) in enumerate(each_route(network)):
        if query % 7 == 0:
            assert list(network.route(source, target)) == path


@given(data=st.data(), network=networks | cabled_fat_trees)
@settings(max_examples=60)
def test_it_is_refused_exactly_when_devices_cannot_reach_each_other(data, network):
    degradation = data.draw(degradations(network))
    gone = np.zeros(len(network.links), dtype=bool)
    for text in degradation.removed_links:
        gone |= select_links(network, text)
    for text in degradation.removed_switches:
        switches = select_switches(network, text)
        gone |= np.isin(network.links.source, switches)
        gone |= np.isin(network.links.target, switches)
    if (hop_distances(network, ~gone) >= 0).all():
        assert np.array_equal(present(degrade(network, degradation)), ~gone)
    else:
        with pytest.raises(InputError, match="cuts devices off"):
            degrade(network, degradation)


@given(data=st.data(), network=networks | cabled_fat_trees)
@settings(max_examples=40)
def test_bandwidths_are_divided_by_the_factors_and_nothing_else_changes(data, network):
    degradation = replace(
        data.draw(degradations(network)), removed_links=(), removed_switches=()
    )
    slow = degrade(network, degradation)
    factor = np.ones(len(network.links))
    for one in degradation.slow_links:
        factor[select_links(network, one.links)] *= one.factor
    assert np.array_equal(slow.links.bandwidth * factor, network.links.bandwidth)
    assert np.array_equal(slow.links.latency, network.links.latency)
    assert slow.vertex_names == network.vertex_names
    assert slow.block_sizes == network.block_sizes
    for before, after in zip(each_route(network), each_route(slow), strict=True):
        assert before == after


@given(data=st.data(), network=networks | cabled_fat_trees)
@settings(max_examples=40)
def test_one_after_the_other_is_the_same_as_both_at_once(data, network):
    first, second = (data.draw(degradations(network)) for _ in range(2))
    both = Degradation(
        slow_links=first.slow_links + second.slow_links,
        removed_links=first.removed_links + second.removed_links,
        removed_switches=first.removed_switches + second.removed_switches,
    )
    try:
        at_once = degrade(network, both)
    except InputError:
        return
    in_turn = degrade(degrade(network, first), second)
    assert np.array_equal(at_once.links.bandwidth, in_turn.links.bandwidth)
    assert at_once.levels == in_turn.levels
    assert list(each_route(at_once)) == list(each_route(in_turn))


@given(network=networks)
@settings(max_examples=30)
def test_with_nothing_wrong_it_is_the_same_network(network):
    assert degrade(network, Degradation()) is network
    slow = SlowDevice(device=network.num_devices - 1, factor=3.0)
    assert degrade(network, Degradation(slow_devices=(slow,))) is network


@given(pair=degraded_networks())
@settings(max_examples=50)
def test_no_undisturbed_route_is_narrower_or_longer_than_its_level_says(pair):
    built, network = pair
    sources, targets = all_pairs(network)
    levels = network.pair_levels(sources, targets)
    kept = present(network)
    for number, (source, target, path) in enumerate(each_route(network)):
        level = network.levels[levels[number]]
        before = list(built.route(source, target))
        if path and kept[before].all():
            assert network.links.bandwidth[path].min() >= level.bandwidth
            assert network.links.latency[path].sum() <= level.latency + 1e-9


@given(pair=degraded_networks())
@settings(max_examples=50)
def test_no_block_has_more_ways_out_than_the_innermost_level_says(pair):
    built, network = pair
    if built.kind not in {"fat-tree", "spine-leaf", "rail"}:
        return
    links, node = network.links, network.levels[0]
    assert node.uplink_bandwidth <= built.levels[0].uplink_bandwidth * (1 + 1e-12)
    up = (links.level == 1) & (links.source < links.target) & present(network)
    below, names = links.source[up], network.vertex_names
    node_of = [
        v // node.block_size if v < network.num_devices else int(names[v].split()[-1])
        for v in below.tolist()
    ]
    if node_of:
        leaving = np.bincount(node_of, links.bandwidth[up])
        assert leaving.max() == pytest.approx(node.uplink_bandwidth)


@given(pair=degraded_networks())
@settings(max_examples=30)
def test_degraded_networks_survive_pickling(pair):
    _, network = pair
    copy = pickle.loads(pickle.dumps(network))
    assert list(each_route(copy)) == list(each_route(network))


def test_a_pair_whose_spine_is_gone_is_hashed_again_among_the_others():
    network = build_network(SPINE_LEAF)
    cut = removed(network, "leaf 0 <-> spine 1")
    moved = [
        (vertices(network, s, t), vertices(cut, s, t))
        for s in range(8)
        for t in range(8, 24)
    ]
    via_1 = [(before, after) for before, after in moved if "spine 1" in before]
    assert via_1
    assert all(len(after) == len(before) for before, after in via_1)
    assert {after[2] for _, after in via_1} == {"spine 0", "spine 2", "spine 3"}
    others = [pair for pair in moved if pair not in via_1]
    assert all(before == after for before, after in others)


def test_a_spine_that_is_gone_leaves_its_share_to_all_others():
    network = build_network(replace(SPINE_LEAF, num_leaves=12))
    cut = removed(network, switches=("spine 3",))
    sources, targets = all_pairs(network)
    far = network.pair_levels(sources, targets) == 2
    loads = np.bincount(
        cut.routes(sources[far], targets[far]).links, minlength=len(cut.links)
    )
    first = network.routing.first_link[2]
    by_spine = loads[first : first + 48].reshape(12, 4).sum(axis=0)
    assert by_spine[3] == 0
    assert by_spine[:3] == pytest.approx([far.sum() / 3] * 3, rel=0.05)


def test_a_device_without_its_nic_sends_through_a_neighbour_in_its_node():
    network = build_network(SPINE_LEAF)
    cut = removed(network, "device 5 <-> leaf 0")
    assert vertices(cut, 5, 0) == [
        "device 5",
        "node 1",
        "device 4",
        "leaf 0",
        "device 0",
    ]
    assert vertices(cut, 0, 5) == [
        "device 0",
        "leaf 0",
        "device 4",
        "node 1",
        "device 5",
    ]
    assert vertices(cut, 5, 6) == vertices(network, 5, 6)


def test_rails_go_round_a_cut_trunk_over_another_rail():
    network = build_network(RAIL)
    cut = removed(network, "rail unit 0 rail 2 -> spine 0")
    assert vertices(cut, 10, 2) == vertices(network, 10, 2)
    around = vertices(cut, 2, 10)
    assert around[1:3] == ["node 0", "device 0"]
    assert around[-2:] == ["rail unit 1 rail 2", "device 10"]


def test_a_ring_with_a_cut_goes_the_long_way_round():
    cut = removed(build_network(RING), "device 0 -> device 1")
    assert vertices(cut, 0, 1) == [f"device {d % 6}" for d in (6, 5, 4, 3, 2, 1)]
    assert vertices(cut, 1, 0) == ["device 1", "device 0"]


def test_one_cable_of_a_trunk_can_be_cut():
    levels = (
        LevelSpec(name="node", fan_out=4, latency=1.0, bandwidth=8.0),
        LevelSpec(name="leaf", fan_out=2, latency=1.0, bandwidth=8.0, num_cables=2),
    )
    network = build_network(FatTreeSpec(levels=levels, trunk="ecmp"))
    cut = removed(network, "node 0 -> leaf 0 #1")
    sources, targets = all_pairs(network)
    ends = (network.links.source == 8) & (network.links.target == 10)
    used = np.bincount(cut.routes(sources, targets).links, minlength=len(ends))[ends]
    assert used.tolist() == [16, 0]
    with pytest.raises(InputError, match="cuts devices off"):
        removed(network, "node 0 -> leaf 0")


@failures.over(
    ("spec", "cut", "named"),
    [
        (
            replace(SPINE_LEAF, nic="node"),
            ("node 1 <-> leaf 0",),
            "4 of 24 devices: node 1 (device 4 to device 7)",
        ),
        (
            SPINE_LEAF,
            ("leaf 1 -> spine *",),
            "8 of 24 devices: leaf 1 (device 8 to device 15)",
        ),
        (
            SPINE_LEAF,
            ("device 5 <-> leaf 0", "device 5 -> node 1", "device 23 <-> *"),
            "2 of 24 devices: device 5, device 23",
        ),
        (
            RING,
            ("device 1 <-> device 2", "device 3 -> device 4"),
            "2 of 6 devices: device 2 to device 3",
        ),
    ],
)
def test_what_is_cut_off_is_named(spec, cut, named):
    with pytest.raises(InputError, match="cuts devices off") as caught:
        removed(build_network(spec), *cut)
    assert caught.value.got == named


def test_the_names_of_what_is_cut_off_are_at_most_eight():
    with pytest.raises(InputError) as caught:
        removed(build_network(RING), "level 1 hop")
    assert caught.value.got == "5 of 6 devices: device 1 to device 5"
    wide = build_network(replace(SPINE_LEAF, num_leaves=40))
    with pytest.raises(InputError) as caught:
        removed(wide, "leaf *1 <-> spine *", "leaf *3 -> spine *", "leaf *5 -> spine *")
    assert caught.value.got.startswith("96 of 320 devices: leaf 1 (device 8 to device")
    assert caught.value.got.endswith("and 4 more")


@failures.over(
    ("degradation", "where"),
    [
        (Degradation(removed_links=("leaf 0 -> leaf 1",)), "removed_links[0]"),
        (Degradation(removed_links=("leaf 0 -> spine *", "x")), "removed_links[1]"),
        (Degradation(removed_switches=("spine 9",)), "removed_switches[0]"),
        (Degradation(removed_switches=("device 3",)), "removed_switches[0]"),
        (
            Degradation(slow_links=(SlowLinks(links="level hub", factor=2.0),)),
            "slow_links[0].links",
        ),
        (
            Degradation(slow_devices=(SlowDevice(device=24, factor=2.0),)),
            "slow_devices[0].device",
        ),
    ],
)
def test_wrong_names_are_refused_by_setting(degradation, where):
    with pytest.raises(InputError) as caught:
        degrade(build_network(SPINE_LEAF), degradation)
    assert caught.value.where == where


@failures.over("factor", [0.5, -1.0, float("nan"), float("inf"), True])
def test_factors_are_finite_and_at_least_one(factor):
    with pytest.raises(InputError, match="factor"):
        SlowLinks(links="level node", factor=factor)
    with pytest.raises(InputError, match="factor"):
        SlowDevice(device=0, factor=factor)


def test_slowdowns_of_a_device_that_is_named_twice_multiply():
    slow = [SlowDevice(device=d, factor=f) for d, f in [(1, 2.0), (3, 1.5), (1, 3.0)]]
    found = slowdowns(Degradation(slow_devices=tuple(slow)), 4)
    assert found.tolist() == [1.0, 6.0, 1.0, 1.5]


@failures.over(("fraction", "count"), [(0.0, 0), (0.025, 1), (0.5, 10), (1.0, 20)])
def test_a_fraction_slows_the_nearest_number_of_devices_halves_up(fraction, count):
    slow = SlowFraction(fraction=fraction, factor=1.5)
    found = slowdowns(Degradation(slow_devices=(slow,)), 20)
    assert sorted(found.tolist()) == [1.0] * (20 - count) + [1.5] * count


def test_a_larger_fraction_of_one_seed_slows_the_devices_of_a_smaller_one_too():
    def slow(fraction: float, seed: int) -> set[int]:
        entry = SlowFraction(fraction=fraction, factor=2.0, seed=seed)
        factors = slowdowns(Degradation(slow_devices=(entry,)), 1000)
        return set(np.flatnonzero(factors > 1.0).tolist())

    drawn = [slow(fraction, 7) for fraction in (0.01, 0.1, 0.5, 1.0)]
    assert all(one < other for one, other in itertools.pairwise(drawn))
    assert drawn[1] != slow(0.1, 8)


def test_fractions_of_one_seed_slow_different_devices_as_long_as_there_are_any():
    half = SlowFraction(fraction=0.5, factor=2.0)
    rest = SlowFraction(fraction=0.75, factor=3.0)
    found = slowdowns(Degradation(slow_devices=(half, rest)), 8)
    assert sorted(found.tolist()) == [2.0] * 4 + [3.0] * 4


def test_the_devices_of_a_fraction_are_the_same_wherever_they_are_drawn():
    # The words of Philox as NumPy 2 draws them; they must never change.
    assert random_order(8, 0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    hits = np.array([random_order(50, 0, run)[:5] for run in range(2000)])
    counts = np.bincount(hits.ravel(), minlength=50)
    # 200 each, with a standard deviation of 13.4.
    assert np.abs(counts - 200).max() < 5 * 13.4


def test_a_share_that_slows_nothing_is_refused_and_none_is_not():
    def slow(fraction: float) -> float:
        entry = SlowFraction(fraction=fraction, factor=1.5)
        return float(slowdowns(Degradation(slow_devices=(entry,)), 16).max())

    assert [slow(0.0), slow(0.032)] == [1.0, 1.5]
    with pytest.raises(InputError, match="slows none of 16 devices") as caught:
        slow(0.03)
    assert caught.value.where == "slow_devices[0].fraction"


@failures.over("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_is_a_share(fraction):
    with pytest.raises(InputError, match="fraction"):
        SlowFraction(fraction=fraction, factor=2.0)


def test_levels_of_a_tree_follow_what_is_slowed():
    network = build_network(SPINE_LEAF)
    slow = SlowLinks(links="level leaf", factor=2.0)
    found = degrade(network, Degradation(slow_links=(slow,))).levels
    assert [level.bandwidth for level in found] == [450.0, 24.0, 24.0]
    assert found[0].uplink_bandwidth == network.levels[0].uplink_bandwidth / 2
    assert found[1].oversubscription == 0.5
    one = SlowLinks(links="device 3 -> leaf 0", factor=4.0)
    found = degrade(network, Degradation(slow_links=(one,))).levels
    assert [level.bandwidth for level in found] == [450.0, 12.0, 12.0]
    assert found[0].uplink_bandwidth == network.levels[0].uplink_bandwidth


def test_levels_of_a_torus_follow_what_is_slowed():
    network = build_network(RING)
    slow = SlowLinks(links="level 1 hop", factor=2.0)
    found = degrade(network, Degradation(slow_links=(slow,))).levels
    assert {level.bandwidth for level in found} == {5.0}
    assert found[0].uplink_bandwidth == network.levels[0].uplink_bandwidth / 2


def test_the_bisection_is_what_is_left_between_the_halves():
    cut = removed(build_network(RING), "device 2 <-> device 3")
    assert cut.bisection_bandwidth() == 10.0
    network = build_network(SPINE_LEAF)
    slow = Degradation(slow_links=(SlowLinks(links="level leaf", factor=2.0),))
    halved = degrade(network, slow).bisection_bandwidth()
    assert halved == network.bisection_bandwidth() / 2


def test_slowed_links_leave_the_table_of_routes_as_it_was():
    network = build_network(SPINE_LEAF)
    slow = Degradation(slow_links=(SlowLinks(links="level leaf", factor=2.0),))
    for mine, theirs in zip(
        degrade(network, slow).routing.table(),
        network.routing.table(),
        strict=True,
    ):
        assert np.array_equal(mine, theirs)


@failures.over("spec", [RING, SPINE_LEAF])
def test_a_rule_knows_what_it_was_built_as(spec):
    network = build_network(spec)
    built = network.routing
    assert built.built is built
    assert built.kept.all()
    pairs = np.divmod(np.arange(network.num_devices**2), network.num_devices)
    assert built.cut_pairs(*pairs).size == 0
    names = network.vertex_names
    source, target = network.links.source[0], network.links.target[0]
    slow = Degradation(
        slow_links=(SlowLinks(links=f"{names[source]} -> {names[target]}", factor=2.0),)
    )
    twice = degrade(degrade(network, slow), slow).routing
    assert twice.built is built
    assert twice.family == built.family
    assert np.array_equal(twice.built_bandwidths(), network.links.bandwidth)


def test_cut_pairs_are_those_with_other_routes():
    network = build_network(RING)
    cut = removed(network, "device 2 <-> device 3")
    sources, targets = np.divmod(np.arange(36), 6)
    before, after = (one.routes(sources, targets) for one in (network, cut))
    parts = (np.split(one.links, one.indptr[1:-1]) for one in (before, after))
    changed = [
        pair
        for pair, (old, new) in enumerate(zip(*parts, strict=True))
        if old.tolist() != new.tolist()
    ]
    assert cut.routing.cut_pairs(sources, targets).tolist() == changed
