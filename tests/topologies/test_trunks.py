"""Parallel links: which one a pair takes, in trees of every kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests import failures
from tests.topologies.oracles import all_pairs, hop_distances, smallest_halving_cut
from tests.topologies.strategies import cabled_fat_tree_specs, cabled_fat_trees
from topologies import FatTreeSpec, InputError, LevelSpec, RailSpec, build_network
from topologies.fabrics.trees import hash_pairs, pick, pick_among, tier_seeds

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20)

CABLED = FatTreeSpec(
    levels=(
        LevelSpec(name="node", fan_out=8, latency=1.0, bandwidth=100.0),
        LevelSpec(name="leaf", fan_out=4, latency=1.0, num_cables=4),
        LevelSpec(name="spine", fan_out=4, latency=1.0, num_cables=8),
    ),
    trunk="ecmp",
)
RAIL = RailSpec(
    devices_per_node=8,
    node_bandwidth=450.0,
    node_latency=1.0,
    nodes_per_unit=4,
    num_units=4,
    nic_bandwidth=48.0,
    nic_latency=2.0,
    spine_latency=3.0,
    num_spines=4,
    trunk="ecmp",
)


@given(values=hashes, data=st.data())
@settings(max_examples=50)
def test_only_pairs_whose_link_is_gone_pick_another_and_it_is_usable(values, data):
    count = data.draw(st.integers(1, 5))
    row = st.lists(st.booleans(), min_size=count, max_size=count)
    usable = np.array([data.draw(row) for _ in values])
    drawn = np.array(values, dtype=np.uint64)
    first, then = pick(drawn, count), pick_among(drawn, usable)
    for number, row_of in enumerate(usable):
        if row_of[first[number]] or not row_of.any():
            assert then[number] == first[number]
        else:
            assert row_of[then[number]]


@failures.over("count", [2, 3, 4, 6, 8, 12])
def test_pairs_whose_link_is_gone_spread_evenly_over_the_others(count):
    sources = np.arange(24_000)
    drawn = hash_pairs(sources, sources + 1, 2**15, seed=7)
    usable = np.ones((len(drawn), count), dtype=bool)
    usable[:, 1] = False
    picks = pick_among(drawn, usable)
    moved = np.bincount(picks[pick(drawn, count) == 1], minlength=count)
    expected = 24_000 / count / (count - 1)
    assert moved[1] == 0
    assert np.delete(moved, 1) == pytest.approx([expected] * (count - 1), rel=0.2)


def test_every_tier_and_every_seed_has_a_draw_of_its_own():
    seeds = [seed for one in range(50) for seed in tier_seeds(one, 4)]
    assert len(set(seeds[:4])) == 4
    assert len({tier_seeds(one, 4) for one in range(50)}) == 50
    assert tier_seeds(3, 2) == tier_seeds(3, 4)[2:]
    assert tier_seeds(3, 4) == tier_seeds(3 + 2**64, 4)


@failures.over("spec", [CABLED, RAIL])
@failures.over("trunk", ["spraying", "adaptive"])
def test_cables_that_packets_are_spread_over_act_as_one(spec, trunk):
    ideal, spread, apart = (
        build_network(replace(spec, trunk=kind)).links.bandwidth
        for kind in ("ideal", trunk, "ecmp")
    )
    assert np.array_equal(spread, ideal)
    assert ideal.sum() == pytest.approx(apart.sum())


@given(network=cabled_fat_trees)
@settings(max_examples=50)
def test_routes_over_cables_are_shortest_and_come_down_on_the_cable_they_went_up(
    network,
):
    links, routing = network.links, network.routing
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    distances = hop_distances(network, np.ones(len(links), dtype=bool))
    hops = np.diff(routes.indptr)
    assert np.array_equal(hops, distances.ravel())
    for query, (source, target) in enumerate(zip(sources, targets, strict=True)):
        path = routes.links[routes.indptr[query] : routes.indptr[query + 1]]
        assert [links.source[link] for link in path] + [target] == (
            [source] + [links.target[link] for link in path]
        )
        for up, down in zip(path, reversed(path), strict=True):
            tier = links.level[up]
            assert links.level[down] == tier
            cables = routing.switch_tiers[tier].num_choices
            first = routing.first_link[tier]
            assert (up - first) % cables == (down - first) % cables


@given(network=cabled_fat_trees)
@settings(max_examples=30)
def test_tiers_count_every_cable_once(network):
    up = network.links.source < network.links.target
    for number, tier in enumerate(network.tiers()):
        of_tier = up & (network.links.level == number)
        assert tier.num_links == of_tier.sum()
        capacity = network.links.bandwidth[of_tier].sum()
        assert tier.num_links * tier.link_bandwidth == pytest.approx(capacity)
        above = up & (network.links.level == number + 1)
        assert tier.num_uplinks * tier.num_blocks == above.sum()


@given(spec=cabled_fat_tree_specs(largest=4))
@settings(max_examples=50)
def test_separate_cables_carry_together_what_an_ideal_trunk_does(spec):
    cabled, ideal = build_network(spec), build_network(replace(spec, trunk="ideal"))
    for mine, theirs in zip(cabled.tiers(), ideal.tiers(), strict=True):
        assert mine.num_links == theirs.num_links
        assert mine.link_bandwidth == pytest.approx(theirs.link_bandwidth)
        assert mine.uplink_bandwidth == pytest.approx(theirs.uplink_bandwidth)
        assert mine.oversubscription == pytest.approx(theirs.oversubscription)
    assert cabled.bisection_bandwidth() == pytest.approx(ideal.bisection_bandwidth())
    assert set(cabled.links.num_parallel.tolist()) <= {1}


@given(spec=cabled_fat_tree_specs(largest=4))
@settings(max_examples=30)
def test_bisection_of_cabled_trees_is_the_smallest_cut_into_halves(spec):
    assume(spec.num_devices <= 8 and spec.nic == "node")
    network = build_network(spec)
    assume(len(network.vertex_names) - spec.num_devices <= 9)
    assert network.bisection_bandwidth() == pytest.approx(smallest_halving_cut(network))


@failures.over("spec", [CABLED, RAIL], ids=["fat-tree", "rail"])
def test_pairs_spread_evenly_over_parallel_links(spec):
    network = build_network(spec)
    sources, targets = all_pairs(network)
    loads = np.bincount(
        network.routes(sources, targets).links, minlength=len(network.links)
    )
    for tier, facts in enumerate(network.routing.switch_tiers):
        if facts.num_choices > 1:
            first, after = network.routing.first_link[tier : tier + 2]
            shares = loads[first:after].reshape(-1, facts.num_choices).sum(axis=0)
            even = [shares.mean()] * facts.num_choices
            assert shares == pytest.approx(even, rel=0.05)


def test_tiers_pick_cables_apart_from_each_other():
    network = build_network(CABLED)
    routing = network.routing
    sources, targets = all_pairs(network)
    far = network.pair_levels(sources, targets) == 2
    routes = network.routes(sources[far], targets[far]).links.reshape(-1, 6)
    at_leaf = (routes[:, 1] - routing.first_link[1]) % 4
    at_spine = (routes[:, 2] - routing.first_link[2]) % 8
    together = np.bincount(at_leaf * 8 + at_spine, minlength=32)
    assert together == pytest.approx([far.sum() / 32] * 32, rel=0.15)


@failures.over("spec", [CABLED, RAIL], ids=["fat-tree", "rail"])
def test_a_seed_changes_the_draw_and_the_same_seed_repeats_it(spec):
    pairs = all_pairs(build_network(spec))
    draws = [
        build_network(replace(spec, ecmp_seed=seed)).routes(*pairs).links
        for seed in (0, 0, 1, 2)
    ]
    assert np.array_equal(draws[0], draws[1])
    for one, other in [(0, 2), (0, 3), (2, 3)]:
        assert (draws[one] != draws[other]).mean() > 0.1


def test_spines_of_rails_are_vertices_with_an_equal_share_of_the_trunk():
    network = build_network(RAIL)
    assert [n for n in network.vertex_names if "spine" in n] == [
        f"spine {i}" for i in range(4)
    ]
    assert set(network.links.bandwidth[network.links.level == 2]) == {48.0}
    assert network.levels[-1].bandwidth == 48.0
    ideal = build_network(replace(RAIL, trunk="ideal"))
    assert set(ideal.links.bandwidth[ideal.links.level == 2]) == {4 * 48.0}


@failures.over(
    ("spec", "where"),
    [
        (replace(CABLED, trunk="ecmp", nic="device"), "levels[1]"),
        (CABLED, "levels[2]"),
    ],
)
def test_too_many_cables_are_refused(spec, where):
    index = int(where[7])
    levels = list(spec.levels)
    levels[index] = replace(levels[index], num_cables=2**22)
    with pytest.raises(InputError, match="too many cables") as caught:
        build_network(replace(spec, levels=tuple(levels)))
    assert caught.value.where == where
    build_network(replace(spec, levels=tuple(levels), trunk="ideal"))
