"""Phases and prices of collectives against closed forms and a plain evaluation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives.cost import (
    ALGORITHMS,
    CollectiveRate,
    collective_rates,
    hierarchical_phases,
    rates_by_algorithm,
    ring_phases,
)
from estimators.collectives.messages import (
    edge_costs,
    level_shapes,
    ordered_groups,
    slowest_edges,
    uneven_blocks,
)
from estimators.collectives.phases import RING_OPERATIONS
from tests import failures
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, RailSpec, TorusSpec


def tree(fan_outs=(4, 3, 2), bandwidths=(80.0, 20.0, 30.0), latency=1.0, nic="node"):
    names = ("node", "leaf", "spine")[: len(fan_outs)]
    return build_network(
        FatTreeSpec(
            levels=tuple(
                LevelSpec(name=name, fan_out=n, bandwidth=bw, latency=latency)
                for name, n, bw in zip(names, fan_outs, bandwidths, strict=True)
            ),
            nic=nic,
        )
    )


def price_plainly(network, sources, targets):
    """Count messages per link, one by one."""
    routes = [
        network.route(int(a), int(b)) for a, b in zip(sources, targets, strict=True)
    ]
    load = np.zeros(len(network.links))
    for route in routes:
        for link in route:
            load[link] += 1
    seconds = load / network.links.bandwidth
    return [max((seconds[link] for link in route), default=0.0) for route in routes]


@failures.over("size", [2, 3, 4])
def test_ring_all_reduce_inside_a_node_matches_the_closed_form(size):
    """2 (n - 1) / n S / bandwidth and 2 (n - 1) rounds of two hops."""
    groups = np.arange(size)[None, None, :]
    (rate,) = collective_rates(tree(), "all_reduce", groups, "ring")
    assert rate.inverse_bandwidth == pytest.approx(2 * (size - 1) / size / 80.0)
    assert rate.latency == pytest.approx(2 * (size - 1) * 2.0)


@failures.over("operation", ["all_gather", "reduce_scatter"])
def test_half_an_all_reduce_costs_half(operation):
    groups = np.arange(4)[None, None, :]
    (half,) = collective_rates(tree(), operation, groups, "ring")
    (whole,) = collective_rates(tree(), "all_reduce", groups, "ring")
    assert whole.inverse_bandwidth == pytest.approx(2 * half.inverse_bandwidth)
    assert whole.latency == pytest.approx(2 * half.latency)


def test_groups_that_share_an_uplink_share_its_bandwidth():
    """Four groups of two, one member in each of two nodes: a quarter each."""
    pairs = np.stack([np.arange(4), np.arange(4) + 4], axis=1)
    alone = collective_rates(tree(), "all_reduce", pairs[None, :1], "ring")[0]
    four = collective_rates(tree(), "all_reduce", pairs[None], "ring")[0]
    assert alone.inverse_bandwidth == pytest.approx(1 / 20.0)
    assert four.inverse_bandwidth == pytest.approx(4 * alone.inverse_bandwidth)


def test_stages_apart_do_not_share():
    pairs = np.stack([np.arange(4), np.arange(4) + 4], axis=1)[:, None, :]
    together = collective_rates(tree(), "all_reduce", pairs, "ring")
    apart = collective_rates(tree(), "all_reduce", pairs, "ring", together=False)
    assert together[0].inverse_bandwidth == pytest.approx(4 / 20.0)
    assert apart[0].inverse_bandwidth == pytest.approx(1 / 20.0)


def test_hierarchy_sends_less_over_the_uplink_than_a_ring():
    """Over 3 nodes of 4: the uplink carries 2 (2/3) S in all, four rings of S/4."""
    groups = np.arange(12)[None, None, :]
    (flat,) = collective_rates(tree(), "all_reduce", groups, "ring")
    (levels,) = collective_rates(tree(), "all_reduce", groups, "hierarchical")
    assert flat.inverse_bandwidth == pytest.approx(2 * 11 / 12 / 20.0)
    inside = 2 * 3 / 4 / 80.0
    across = 2 * 2 / 3 / 4 * (4 / 20.0)
    assert levels.inverse_bandwidth == pytest.approx(inside + across)


def test_hierarchy_needs_fewer_rounds_than_a_ring():
    groups = np.arange(24)[None, None, :]
    (flat,) = collective_rates(tree(), "all_reduce", groups, "ring")
    (levels,) = collective_rates(tree(), "all_reduce", groups, "hierarchical")
    assert levels.latency < flat.latency


@failures.over("algorithm", sorted(ALGORITHMS))
@failures.over("operation", sorted(RING_OPERATIONS))
def test_a_group_of_one_is_free(operation, algorithm):
    groups = np.arange(24).reshape(2, 12, 1)
    free = CollectiveRate(0.0, 0.0)
    assert collective_rates(tree(), operation, groups, algorithm) == (free, free)
    assert ALGORITHMS[algorithm](operation, groups[0], (4, 12, 24)) == ()


def test_one_call_prices_every_operation_by_every_algorithm():
    """A ring over 3 nodes of 4, and its hierarchy, as in the closed forms above."""
    rates = rates_by_algorithm(tree(), np.arange(12)[None, None, :])
    flat, levels = (
        rates[name]["all_reduce"][0, 1] for name in ("ring", "hierarchical")
    )
    assert flat == pytest.approx(2 * 11 / 12 / 20.0)
    assert levels == pytest.approx(2 * 3 / 4 / 80.0 + 2 * 2 / 3 / 4 * (4 / 20.0))
    for each in rates.values():
        halves = each["reduce_scatter"] + each["all_gather"]
        np.testing.assert_allclose(halves, each["all_reduce"])


def test_teams_of_a_round_meet_and_rounds_do_not():
    """Two devices of a node send out of it, as teams of a round or one by one."""
    sources, targets = np.array([[[0], [1]]]), np.array([[[4], [5]]])
    meeting = slowest_edges(tree(), sources, targets)
    apart = slowest_edges(tree(), *(np.swapaxes(e, 0, 1) for e in (sources, targets)))
    assert meeting[0].tolist() == [[4.0, 2 / 20.0], [4.0, 2 / 20.0]]
    assert apart[:, 0].tolist() == [[4.0, 1 / 20.0], [4.0, 1 / 20.0]]


def test_uneven_groups_fall_back_to_a_ring():
    groups = np.array([[0, 1, 4]])
    (phase,) = hierarchical_phases("all_reduce", groups, (4, 12, 24))
    (ring,) = ring_phases("all_reduce", groups, (4, 12, 24))
    np.testing.assert_array_equal(phase.rings, ring.rings)
    assert phase[1:] == ring[1:]


def test_a_level_that_does_not_divide_evenly_is_left_out():
    """Blocks of 4 hold 2 and 4 of these devices, whichever come first."""
    network = build_network(
        RailSpec(
            devices_per_node=2,
            node_bandwidth=400.0,
            node_latency=0.5,
            nodes_per_unit=2,
            num_units=6,
            nic_bandwidth=50.0,
            nic_latency=1.0,
            spine_latency=1.0,
        )
    )
    first, mirrored = np.arange(6, 12)[None], np.arange(12, 18)[None]
    assert network.block_sizes == (2, 4, 24)
    for groups in (first, mirrored):
        phases = hierarchical_phases("all_reduce", groups, network.block_sizes)
        assert [phase.rings.shape[1] for phase in phases] == [2, 3, 2]
        assert uneven_blocks(groups, network.block_sizes) == (4,)
    rates = [
        collective_rates(network, "all_reduce", groups[None], "hierarchical")
        for groups in (first, mirrored)
    ]
    assert rates[0] == rates[1]


@st.composite
def regular_networks(draw):
    """Networks on which mirroring or turning all device numbers changes nothing."""
    fan_outs = tuple(draw(st.lists(st.integers(2, 4), min_size=2, max_size=3)))
    if draw(st.booleans()):
        bandwidths = (80.0, 20.0, 30.0)[: len(fan_outs)]
        return tree(fan_outs, bandwidths, nic=draw(st.sampled_from(["node", "device"])))
    return build_network(
        RailSpec(
            devices_per_node=fan_outs[0],
            node_bandwidth=400.0,
            node_latency=0.5,
            nodes_per_unit=fan_outs[1],
            num_units=(*fan_outs, 3)[2],
            nic_bandwidth=50.0,
            nic_latency=1.0,
            spine_latency=1.0,
            # With PXN the way back is not the way there, and mirrored rings turn back.
            pxn=False,
        )
    )


@given(regular_networks(), st.data())
@settings(max_examples=60)
def test_mirrored_and_rotated_groups_have_the_same_shape_and_time(network, data):
    """Rotated by blocks of the outermost level but one; whole stages at random."""
    num_devices, blocks = network.num_devices, np.array(network.block_sizes)
    size = data.draw(st.integers(2, num_devices))
    count = data.draw(st.integers(1, min(3, num_devices // size)))
    if data.draw(st.booleans()):
        first = data.draw(st.integers(0, num_devices - size * count))
        members = np.arange(first, first + size * count)
    else:
        order = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
        members = order.permutation(num_devices)[: size * count]
    groups = members.reshape(1, count, size)
    turn = data.draw(st.integers(0, num_devices // blocks[-2])) * blocks[-2]
    images = (num_devices - 1 - groups, (groups + turn) % num_devices)
    shape = level_shapes(ordered_groups(network, groups), blocks).tolist()
    for image in images:
        assert level_shapes(ordered_groups(network, image), blocks).tolist() == shape
        assert uneven_blocks(image[0], blocks) == uneven_blocks(groups[0], blocks)
        for operation in RING_OPERATIONS:
            found, expected = (
                collective_rates(network, operation, each, "hierarchical")[0]
                for each in (image, groups)
            )
            assert found == pytest.approx(expected, rel=1e-12)
    # What is left out, and what is not, agree.
    kept = set(np.cumprod([n for n in shape[0] if n]).tolist())
    for block in set(blocks.tolist()) - set(uneven_blocks(groups[0], blocks)):
        held = np.unique(members // block, return_counts=True)[1].max()
        assert count > 1 or held in {1, *kept}


def test_hierarchy_of_two_levels_of_a_group_that_skips_one():
    """Two devices of each of two leaves, all in different nodes."""
    groups = np.array([[0, 4, 12, 16]])
    phases = hierarchical_phases("all_reduce", groups, (4, 12, 24))
    assert [phase.rings.tolist() for phase in phases] == [
        [[0, 4], [12, 16]],
        [[0, 12], [4, 16]],
        [[0, 4], [12, 16]],
    ]
    assert [phase.fraction for phase in phases] == [1 / 2, 1 / 2, 1 / 2]


@st.composite
def aligned_groups(draw):
    """Groups with equal numbers of members in equal blocks."""
    inner = draw(st.sampled_from([1, 2, 4]))
    nodes = draw(st.sampled_from([1, 2, 3]))
    leaves = draw(st.sampled_from([1, 2]))
    device = [
        leaf * 12 + node * 4 + i
        for leaf in range(leaves)
        for node in range(nodes)
        for i in range(inner)
    ]
    return np.array([device])


@given(aligned_groups(), st.sampled_from(sorted(RING_OPERATIONS)))
def test_every_algorithm_sends_the_same_bytes_per_member(groups, operation):
    """Both are bandwidth-optimal: the fractions add up to that of one ring."""
    size = groups.shape[1]
    expected = RING_OPERATIONS[operation](size).fraction if size > 1 else 0.0
    for build in ALGORITHMS.values():
        phases = build(operation, groups, (4, 12, 24))
        assert sum(phase.fraction for phase in phases) == pytest.approx(expected)
        for phase in phases:
            assert sorted(phase.rings.ravel()) == sorted(groups.ravel())


@given(
    st.lists(
        st.tuples(st.integers(0, 23), st.integers(0, 23), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["node", "device"]),
)
def test_edge_costs_equal_a_count_link_by_link(messages, nic):
    network = tree(nic=nic)
    sources, targets, rounds = np.array(messages).T
    found = edge_costs(network, sources, targets, rounds)
    for number in set(rounds.tolist()):
        chosen = rounds == number
        expected = price_plainly(network, sources[chosen], targets[chosen])
        np.testing.assert_allclose(found.inverse_bandwidth[chosen], expected)


@given(st.floats(1.0, 8.0), st.sampled_from(sorted(ALGORITHMS)))
def test_more_bandwidth_is_never_slower(factor, algorithm):
    groups = np.arange(24).reshape(1, 2, 12)
    slow = collective_rates(tree(), "all_reduce", groups, algorithm)[0]
    wide = tree(bandwidths=(80.0 * factor, 20.0 * factor, 30.0 * factor))
    fast = collective_rates(wide, "all_reduce", groups, algorithm)[0]
    assert fast.inverse_bandwidth <= slow.inverse_bandwidth * (1 + 1e-12)


def test_a_ring_along_a_torus_line_uses_every_link_once():
    torus = build_network(
        TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=10.0, latency=0.0)
    )
    lines = np.arange(16).reshape(1, 4, 4)
    (rate,) = collective_rates(torus, "all_gather", lines, "ring")
    assert rate.inverse_bandwidth == pytest.approx(3 / 4 / 10.0)
