"""What holds for networks of every kind."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.topologies.oracles import all_pairs, smallest_halving_cut
from tests.topologies.strategies import (
    fat_tree_specs,
    networks,
    rail_specs,
    spine_leaf_specs,
    torus_specs,
    trees,
)
from topologies import FatTreeSpec, InputError, RailSpec, TorusSpec, build_network


@given(network=networks)
@settings(max_examples=60)
def test_every_route_is_a_path_from_its_source_to_its_target(network):
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    assert routes.indptr[0] == 0
    assert routes.indptr[-1] == len(routes.links)
    for query, (source, target) in enumerate(zip(sources, targets, strict=True)):
        vertex = source
        path = routes.links[routes.indptr[query] : routes.indptr[query + 1]]
        for link in path:
            assert network.links.source[link] == vertex
            vertex = network.links.target[link]
        assert vertex == target
        assert len(set(path.tolist())) == len(path)
        assert (len(path) == 0) == (source == target)


@given(network=networks)
@settings(max_examples=30)
def test_one_route_is_the_same_as_among_many(network):
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    for query in range(0, len(sources), 5):
        alone = network.route(int(sources[query]), int(targets[query]))
        among = routes.links[routes.indptr[query] : routes.indptr[query + 1]]
        assert alone == tuple(among.tolist())


@given(network=networks)
@settings(max_examples=50)
def test_levels_state_the_narrowest_and_the_longest_route(network):
    sources, targets = all_pairs(network)
    apart = sources != targets
    sources, targets = sources[apart], targets[apart]
    assume(len(sources))
    routes = network.routes(sources, targets)
    levels = network.pair_levels(sources, targets)
    narrowest = np.minimum.reduceat(
        network.links.bandwidth[routes.links], routes.indptr[:-1]
    )
    latencies = network.latencies(routes)
    for number in np.unique(levels):
        level = network.levels[number]
        assert level.bandwidth == narrowest[levels == number].min()
        assert level.latency == pytest.approx(latencies[levels == number].max())


@given(network=networks)
@settings(max_examples=50)
def test_levels_widen_and_the_outermost_is_the_whole_cluster(network):
    sizes = [level.block_size for level in network.levels]
    assert sizes == sorted(sizes)
    outermost = network.levels[-1]
    assert outermost.block_size == network.num_devices
    assert outermost.num_blocks == 1
    assert outermost.uplink_bandwidth == float("inf")
    assert outermost.oversubscription == 1.0
    assert len({level.name for level in network.levels}) == len(network.levels)


@given(network=networks)
@settings(max_examples=50)
def test_no_level_reaches_more_devices_than_it_says(network):
    sources, targets = all_pairs(network)
    levels = network.pair_levels(sources, targets).reshape(network.num_devices, -1)
    for number, level in enumerate(network.levels):
        assert (levels <= number).sum(axis=1).max() <= level.block_size


@given(network=networks)
@settings(max_examples=50)
def test_vertices_have_names_of_their_own(network):
    assert len(set(network.vertex_names)) == len(network.vertex_names)
    ends = np.concatenate([network.links.source, network.links.target])
    assert ends.max(initial=0) < len(network.vertex_names)


@given(network=networks)
@settings(max_examples=50)
def test_every_link_has_an_equal_one_back(network):
    links = network.links
    there = zip(links.source, links.target, links.bandwidth, links.latency, strict=True)
    back = zip(links.target, links.source, links.bandwidth, links.latency, strict=True)
    assert sorted(there) == sorted(back)


@given(network=networks)
@settings(max_examples=50)
def test_block_sizes_rise_by_whole_factors_to_the_whole_cluster(network):
    sizes = network.block_sizes
    assert sizes[-1] == network.num_devices
    for inner, outer in itertools.pairwise(sizes):
        assert outer > inner
        assert outer % inner == 0


@given(network=networks, data=st.data())
@settings(max_examples=30)
def test_a_group_spans_the_outermost_level_of_its_pairs(network, data):
    devices = st.integers(0, network.num_devices - 1)
    group = data.draw(st.lists(devices, min_size=1, max_size=4))
    levels = [
        int(network.pair_levels(np.array([a]), np.array([b]))[0])
        for a in group
        for b in group
    ]
    assert network.group_level(np.array(group)) == max(levels)


def test_a_group_with_a_device_that_is_not_there_is_refused():
    network = build_network(
        TorusSpec(dimensions=(4,), wrap=(True,), bandwidth=1.0, latency=0.0)
    )
    with pytest.raises(InputError, match="no such device"):
        network.group_level(np.array([0, 4]))


@given(network=trees)
@settings(max_examples=50)
def test_tiers_of_trees_count_every_cable_once(network):
    up = network.links.source < network.links.target
    for number, tier in enumerate(network.tiers()):
        of_tier = up & (network.links.level == number)
        assert tier.num_links == network.links.num_parallel[of_tier].sum()
        assert {tier.capacity} == set(network.links.bandwidth[of_tier])
        assert {tier.latency} == set(network.links.latency[of_tier])
        assert (tier.num_blocks, tier.block_size) == (
            network.levels[number].num_blocks,
            network.levels[number].block_size,
        )
        capacity = tier.num_links * tier.link_bandwidth
        assert capacity == pytest.approx(network.links.bandwidth[of_tier].sum())
        above = up & (network.links.level == number + 1)
        cables = network.links.num_parallel[above].sum()
        assert tier.num_uplinks * tier.num_blocks == cables


def _is_exact(spec):
    """Whether the bisection is documented to be exact and not an upper bound."""
    if isinstance(spec, RailSpec) and spec.nodes_per_unit * spec.num_units % 2:
        return False
    if isinstance(spec, FatTreeSpec):
        network = build_network(spec)
        return spec.nic == "node" or network.levels[0].bandwidth >= min(
            level.bandwidth for level in network.levels
        )
    return spec.node_bandwidth >= spec.nic_bandwidth


@given(
    spec=fat_tree_specs(largest=4, depth=3)
    | spine_leaf_specs(largest=4)
    | rail_specs(largest=4)
)
@settings(max_examples=60)
def test_bisection_of_trees_is_the_smallest_cut_into_halves(spec):
    assume(spec.num_devices <= 8)
    assume(_is_exact(spec))
    network = build_network(spec)
    assume(len(network.vertex_names) - spec.num_devices <= 10)
    assert network.bisection_bandwidth() == pytest.approx(smallest_halving_cut(network))


@given(spec=torus_specs(largest=8))
@settings(max_examples=50)
def test_bisection_of_tori_is_the_smallest_cut_into_halves(spec):
    assume(spec.num_devices <= 12)
    network = build_network(spec)
    assert network.bisection_bandwidth() == pytest.approx(smallest_halving_cut(network))
