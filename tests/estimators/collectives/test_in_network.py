"""Sums in switches: their bytes on every link, and published bandwidths."""

import numpy as np
import pytest

from estimators.collectives.cost import (
    algorithm_phases,
    collective_rates,
    rates_by_algorithm,
)
from estimators.collectives.transports import ramp_time, transports
from tests import failures
from topologies.builders import build_network
from topologies.specs import FatTreeSpec, LevelSpec, RailSpec


def nodes(
    local,
    count=1,
    *,
    bandwidth=450e9,
    efficiency=1.0,
    nvls_efficiency=None,
    reached=1.0,
    **kinds,
):
    """Return nodes of NVSwitches below a leaf, an adapter for each device."""
    levels = (
        LevelSpec(
            name="node",
            fan_out=local,
            bandwidth=bandwidth,
            latency=0.5e-6,
            efficiency=efficiency,
        ),
        LevelSpec(
            name="leaf",
            fan_out=count,
            bandwidth=50e9,
            latency=1e-6,
            efficiency=reached,
        ),
    )
    return build_network(
        FatTreeSpec(
            levels=levels if count > 1 else levels[:1],
            nic="device",
            nvls=True,
            nvls_efficiency=nvls_efficiency,
            **kinds,
        )
    )


def rate(network, members, algorithm):
    groups = np.asarray(members).reshape(1, 1, -1)
    (found,) = collective_rates(network, "all_reduce", groups, algorithm)
    return found


def loads(network, members, algorithm):
    """Return the bytes on each link of an all-reduce of one byte."""
    found = np.zeros(len(network.links))
    groups = np.asarray(members)[None]
    for phase in algorithm_phases(network, "all_reduce", groups, algorithm):
        for ring in phase.rings.tolist():
            for source, target in zip(ring, ring[1:] + ring[:1], strict=True):
                found[list(network.route(source, target))] += phase.fraction
    return found


def summed_in_the_switch(network, members):
    """Return the same, part by part as a switch that adds up is asked for it."""
    links, size = network.links, len(members)
    (switch,) = set(links.target[np.isin(links.source, members)].tolist())
    found = np.zeros(len(links))

    def send(source, target):
        (link,) = np.flatnonzero((links.source == source) & (links.target == target))
        found[link] += 1 / size

    for owner in members:
        # It asks for its part of the sum: all hand theirs up, the sum comes down.
        for member in members:
            send(member, switch)
        send(switch, owner)
        # It writes the sum once; the switch hands it to all.
        send(owner, switch)
        for member in members:
            send(switch, member)
    return found


@failures.over("members", [range(8), range(2), [1, 4, 6], range(7)])
def test_a_nodes_switches_load_links_as_requests_and_multicasts_do(members):
    network = nodes(8)
    expected = summed_in_the_switch(network, list(members))
    np.testing.assert_allclose(loads(network, members, "nvls"), expected, rtol=1e-12)
    n = len(members)
    found = rate(network, members, "nvls")
    assert found.inverse_bandwidth == pytest.approx((n + 1) / n / 450e9)
    # There and back, twice.
    assert found.latency == pytest.approx(2 * 1e-6)


def test_what_nodes_have_summed_goes_on_in_rings_or_in_the_switches_between():
    network = nodes(8, 4, sharp=True)
    everyone = np.arange(32)
    inside = 9 / 8 / 450e9
    rings, sums = (rate(network, everyone, name) for name in ("nvls", "sharp"))
    assert rings.inverse_bandwidth == pytest.approx(inside + 2 * 3 / 4 / 8 / 50e9)
    assert sums.inverse_bandwidth == pytest.approx(inside + 1 / 8 / 50e9)
    assert rings.latency == pytest.approx(2e-6 + 2 * 3 * 2e-6)
    assert sums.latency == pytest.approx(2e-6 + 2 * 2e-6)


def test_groups_of_one_member_a_node_have_nothing_to_add_inside():
    network = nodes(8, 4)
    assert rate(network, [0, 8, 16], "nvls") == rate(
        network, [0, 8, 16], "hierarchical"
    )


@failures.over("operation", ["all_gather", "reduce_scatter"])
def test_halves_of_an_all_reduce_go_level_by_level(operation):
    """A half in the switch sends ``S`` one way, a ring ``(n - 1) / n`` both ways."""
    network = nodes(8, 4, sharp=True)
    groups = np.arange(32).reshape(1, 1, 32)
    found = rates_by_algorithm(network, groups)
    assert list(found) == ["ring", "hierarchical", "nvls", "sharp"]
    for name in ("nvls", "sharp"):
        expected = found["hierarchical"][operation]
        np.testing.assert_array_equal(found[name][operation], expected)


def test_rails_and_nodes_add_up_together():
    network = build_network(
        RailSpec(
            devices_per_node=4,
            node_bandwidth=450e9,
            node_latency=0.5e-6,
            nodes_per_unit=2,
            num_units=2,
            nic_bandwidth=50e9,
            nic_latency=1e-6,
            spine_latency=1e-6,
            sharp=True,
            nvls=True,
        )
    )
    everyone = np.arange(16)
    found = rate(network, everyone, "sharp")
    assert found.inverse_bandwidth == pytest.approx(5 / 4 / 450e9 + 1 / 4 / 50e9)
    # Each device's adapter, and each rail's way to the spine, carry a part once.
    carried = loads(network, everyone, "sharp")
    np.testing.assert_allclose(carried[network.links.level > 0], 1 / 4)


def test_pairs_in_nodes_go_round_rings_between_switches_that_add_up():
    """A pair's ring sends ``S`` in all, its switch would carry 3/2 of it."""
    found = rate(nodes(8, 4, sharp=True), [0, 4, 8, 12, 16, 20, 24, 28], "sharp")
    assert found.inverse_bandwidth == pytest.approx(1 / 450e9 + 1 / 2 / 50e9)


def test_sums_that_switches_do_slowly_load_links_longer():
    fast = rate(nodes(8, efficiency=0.8), range(8), "nvls")
    slow = rate(nodes(8, efficiency=0.8, nvls_efficiency=0.6), range(8), "nvls")
    assert slow.inverse_bandwidth == pytest.approx(9 / 8 / 450e9 / 0.6)
    assert slow.inverse_bandwidth == pytest.approx(fast.inverse_bandwidth * 0.8 / 0.6)
    ring = rate(nodes(8, efficiency=0.8, nvls_efficiency=0.6), range(8), "ring")
    assert ring.inverse_bandwidth == pytest.approx(7 / 4 / 450e9 / 0.8)


def bus_bandwidth(transport, size, num_bytes, bandwidth, algorithm):
    """Return what nccl-tests prints: a library's slow ramp comes on top of the wire."""
    network = nodes(
        8,
        bandwidth=bandwidth,
        efficiency=transport.efficiency,
        nvls_efficiency=transport.multicast_efficiency,
    )
    tau = num_bytes * rate(network, range(size), algorithm).inverse_bandwidth
    time = tau + ramp_time(transport, "all_reduce", tau)
    return 2 * (size - 1) / size * num_bytes / time


@failures.over(
    ("size", "measured"), [(4, 246.7e9), (5, 258e9), (6, 265e9), (7, 270e9), (8, 273e9)]
)
def test_h100_all_reduces_in_the_switch_grow_with_the_group_as_measured(size, measured):
    """NCCL issue 1455, 2 to 4 GB: algorithm bandwidths with NCCL_ALGO=NVLS, within 2 %.

    That they grow from 4 to 8 GPUs follows from ``(n + 1) / n`` alone. Rings reached
    365 to 370 GB/s of bus bandwidth with any number of GPUs.
    """
    transport = transports()["nvswitch-h100"]
    found = bus_bandwidth(transport, size, 2**32, 450e9, "nvls")
    assert found == pytest.approx(2 * (size - 1) / size * measured, rel=0.02)
    ring = bus_bandwidth(transport, size, 2**32, 450e9, "ring")
    assert ring == pytest.approx(367.5e9, rel=0.02)


@failures.over(
    ("name", "bandwidth", "size", "num_bytes", "measured"),
    [
        # NVIDIA, DGX Cloud benchmarking, nccl-tests on 8 H100.
        ("nvswitch-h100", 450e9, 8, 2**33, 480.16e9),
        ("nvswitch-h100", 450e9, 8, 2**30, 466.34e9),
        # S. Bekman, ml-engineering, network/README.md: NCCL 2.27.7 on B200.
        ("nvswitch-b200", 900e9, 6, 2**33, 778.2e9),
        ("nvswitch-b200", 900e9, 7, 2**33, 811.2e9),
        ("nvswitch-b200", 900e9, 8, 2**33, 838.0e9),
    ],
)
def test_published_all_reduces_in_the_switch(
    name, bandwidth, size, num_bytes, measured
):
    """Within 3 %; efficiencies of transports are fitted to curves of the same kind."""
    found = bus_bandwidth(transports()[name], size, num_bytes, bandwidth, "nvls")
    assert found == pytest.approx(measured, rel=0.03)


@failures.over(
    ("name", "measured", "off"),
    [("nvls", 430e9, -0.29), ("hierarchical", 330e9, -0.22)],
)
def test_levels_that_nccl_overlaps_add_up_here(name, measured, off):
    """NCCL issue 1221: 2 nodes of 8 H100, 400 Gbit/s each, NCCL_NVLS_ENABLE=1 and 0."""
    inside, outside = transports()["nvswitch-h100"], transports()["default-fabric"]
    network = nodes(
        8,
        2,
        efficiency=inside.efficiency,
        nvls_efficiency=inside.multicast_efficiency,
        reached=outside.efficiency,
    )
    found = 2 * 15 / 16 / rate(network, range(16), name).inverse_bandwidth
    assert found / measured - 1 == pytest.approx(off, abs=0.01)
