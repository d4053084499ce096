"""Tori and meshes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import failures
from tests.topologies.oracles import all_pairs
from tests.topologies.strategies import torus_specs
from topologies import TorusSpec, build_network


def torus(*dimensions, wrap=True):
    wraps = (wrap,) * len(dimensions)
    return TorusSpec(dimensions=dimensions, wrap=wraps, bandwidth=50e9, latency=1e-6)


def place(spec, device):
    return tuple(int(i) for i in np.unravel_index(device, spec.dimensions))


def wrapped_distance(spec, source, target):
    total = 0
    for axis, (a, b) in enumerate(
        zip(place(spec, source), place(spec, target), strict=True)
    ):
        straight = abs(a - b)
        round_about = spec.dimensions[axis] - straight
        total += min(straight, round_about) if spec.wrap[axis] else straight
    return total


@given(spec=torus_specs())
@settings(max_examples=40)
def test_routes_are_as_long_as_the_wrapped_distances(spec):
    network = build_network(spec)
    sources, targets = all_pairs(network)
    lengths = np.diff(network.routes(sources, targets).indptr)
    for source, target, length in zip(sources, targets, lengths, strict=True):
        assert length == wrapped_distance(spec, source, target)


@given(spec=torus_specs(), data=st.data())
@settings(max_examples=40)
def test_routes_finish_one_dimension_before_the_next(spec, data):
    network = build_network(spec)
    devices = st.integers(0, network.num_devices - 1)
    source, target = data.draw(devices), data.draw(devices)
    axes = []
    for link in network.route(source, target):
        here = place(spec, network.links.source[link])
        there = place(spec, network.links.target[link])
        changed = [k for k in range(len(here)) if here[k] != there[k]]
        assert len(changed) == 1
        axes += changed
    assert axes == sorted(axes)


@failures.over("source", range(6))
def test_exactly_half_way_goes_in_the_positive_direction(source):
    network = build_network(torus(6))
    route = network.route(source, (source + 3) % 6)
    assert network.links.target[route[0]] == (source + 1) % 6


def test_a_ring_of_two_joins_its_devices_once():
    assert len(build_network(torus(2)).links) == 2
    assert len(build_network(torus(2, wrap=False)).links) == 2
    assert build_network(torus(2)).route(1, 0) != build_network(torus(2)).route(0, 1)


@failures.over(
    ("spec", "count"),
    [
        (torus(4), 8),
        (torus(4, wrap=False), 6),
        (torus(4, 4, wrap=False), 48),
        (torus(4, 8, 8), 6 * 256),
        (torus(1, 1), 0),
    ],
)
def test_links_are_counted_in_both_directions(spec, count):
    assert len(build_network(spec).links) == count


@given(spec=torus_specs())
@settings(max_examples=30)
def test_no_two_links_join_the_same_devices_the_same_way(spec):
    links = build_network(spec).links
    ends = set(zip(links.source.tolist(), links.target.tolist(), strict=True))
    assert len(ends) == len(links)


def test_a_4x8x8_torus_has_five_levels_of_hops():
    network = build_network(torus(4, 8, 8))
    names = [level.name for level in network.levels]
    assert names == ["1 hop", "2 hops", "3 hops", "4-6 hops", "7-10 hops"]
    assert network.levels[0].block_size == 7
    assert network.levels[-1].latency == pytest.approx(10e-6)
    assert network.block_sizes == (8, 64, 256)
    assert network.kind == "torus"
    assert network.bisection_bandwidth() == 2 * 4 * 8 * 50e9


def test_short_distances_have_a_level_each():
    network = build_network(torus(4, 4, wrap=False))
    assert network.kind == "mesh"
    assert [level.name for level in network.levels][:2] == ["1 hop", "2 hops"]
    assert len(build_network(torus(4, 4)).levels) == 4


@given(spec=torus_specs(largest=9))
@settings(max_examples=30)
def test_levels_are_at_most_five_and_follow_the_distance(spec):
    network = build_network(spec)
    assert len(network.levels) <= 5
    targets = np.arange(network.num_devices)
    sources = np.zeros_like(targets)
    distances = np.diff(network.routes(sources, targets).indptr)
    levels = network.pair_levels(sources, targets)
    order = np.argsort(distances)
    assert np.all(np.diff(levels[order]) >= 0)
    for level, distance in zip(levels, distances, strict=True):
        low, high = hops_of(network.levels[level].name)
        assert low <= distance <= high or distance == 0


def hops_of(name):
    """``"2-3 hops"`` -> (2, 3)."""
    numbers = [int(part) for part in name.split()[0].split("-")]
    return numbers[0], numbers[-1]


def test_uplinks_of_a_level_are_those_that_leave_the_ball():
    network = build_network(torus(5, 5))
    near = network.levels[0]
    assert near.block_size == 5
    assert near.uplink_bandwidth == 12 * 50e9
    assert near.oversubscription == pytest.approx(20 / 12)


def test_tiers_are_the_dimensions_from_the_last_one():
    tiers = build_network(torus(2, 3, 4)).tiers()
    assert [tier.name for tier in tiers] == [
        "dimension 2 (ring)",
        "dimension 1 (ring)",
        "dimension 0 (ring)",
    ]
    assert [tier.num_blocks for tier in tiers] == [6, 8, 12]
    assert [tier.num_links for tier in tiers] == [24, 24, 12]
    assert [tier.fan_out for tier in tiers] == [4, 3, 2]
    links = build_network(torus(2, 3, 4)).links
    assert {tier.capacity for tier in tiers} == set(links.bandwidth)
    assert {tier.latency for tier in tiers} == set(links.latency)
    assert not any(tier.num_uplinks for tier in tiers)
    mesh = build_network(torus(3, 4, wrap=False)).tiers()
    assert [tier.num_links for tier in mesh] == [9, 8]


def test_all_pairs_of_a_ring_use_both_directions_alike():
    network = build_network(torus(5))
    pairs = itertools.permutations(range(5), 2)
    sources, targets = (np.array(side) for side in zip(*pairs, strict=True))
    used = np.bincount(network.routes(sources, targets).links, minlength=10)
    assert set(used) == {3}
