"""Collectives on real interconnects: closed forms and what must hold always."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimators.collectives.transports import (
    WIRE_FRACTIONS,
    Transport,
    collective_time,
    find_transport,
    overhead,
    transfer_time,
    transports,
)
from tests import failures
from topologies.accelerators import accelerator_names

ROUND = Transport(
    name="round",
    scope="node",
    launch=10e-6,
    per_rank=1e-6,
    ramp=4e-6,
    efficiency=0.5,
    send_launch=5e-6,
    send_efficiency=0.8,
    source="made up",
)
EVERY = st.sampled_from(sorted(transports().values(), key=lambda one: one.name))
OPERATION = st.sampled_from(sorted(WIRE_FRACTIONS))
RANKS = st.integers(2, 512)
SIZE = st.floats(1, 1e11)
BANDWIDTH = st.floats(1e9, 1e12)


def test_an_all_reduce_has_its_closed_form():
    # 4 ranks: 1.5 S over 50 GB/s take 9 us; latency 13 us; ramp sqrt(9 x 4) = 6 us.
    time = collective_time(ROUND, "all_reduce", 4, 300e3, 100e9)
    assert time == pytest.approx(28e-6)
    assert overhead(ROUND, "all_reduce", 4, 300e3, 100e9) == pytest.approx(19e-6)


@failures.over("operation", ["all_gather", "reduce_scatter"])
def test_half_an_all_reduce_moves_half_the_bytes(operation):
    half = transfer_time(ROUND, operation, 4, 1e6, 100e9)
    assert half == pytest.approx(transfer_time(ROUND, "all_reduce", 4, 1e6, 100e9) / 2)


def test_single_messages_have_a_launch_and_an_efficiency_of_their_own():
    assert collective_time(ROUND, "send_recv", 2, 8e6, 100e9) == pytest.approx(105e-6)
    # 3/4 of 8 MB at 80 GB/s, launch and three further ranks.
    assert collective_time(ROUND, "all_to_all", 4, 8e6, 100e9) == pytest.approx(83e-6)


def test_a_switch_that_adds_up_moves_n_plus_1_over_n():
    switch = replace(ROUND, multicast_efficiency=0.5)
    tau = transfer_time(switch, "all_reduce", 8, 8e6, 100e9)
    assert tau == pytest.approx(9 / 8 * 8e6 / 50e9)
    # Two ranks: 3/2 S by the switch, S by a ring.
    assert transfer_time(switch, "all_reduce", 2, 8e6, 100e9) == pytest.approx(160e-6)


def test_each_doubling_of_nodes_adds_the_same():
    fabric = replace(ROUND, scope="fabric", per_doubling=20e-6, per_hop=30e-6)
    assert fabric.latency("all_reduce", 32, 4) == pytest.approx((10 + 7 + 40) * 1e-6)
    assert fabric.latency("all_reduce", 8) == pytest.approx((10 + 60) * 1e-6)


FABRIC = replace(ROUND, scope="fabric", per_doubling=20e-6, per_hop=5e-6)


def test_an_all_reduce_waits_for_a_tree_or_a_ring_whichever_is_quicker():
    # 2 nodes of 1: a ring's 2 steps of 5 us; 64: a tree of depth 6, not 630 us.
    assert FABRIC.latency("all_reduce", 2, 2) == pytest.approx((10 + 10) * 1e-6)
    assert FABRIC.latency("all_reduce", 64, 64) == pytest.approx((10 + 120) * 1e-6)
    # 2 nodes of 8: the ring has 14 ranks more to pass, at 1 us for both its rounds.
    assert FABRIC.latency("all_reduce", 16, 2) == pytest.approx((10 + 14 + 10) * 1e-6)


def test_a_step_that_is_not_known_is_a_quarter_of_a_doubling():
    unknown = replace(FABRIC, per_hop=0.0)
    assert unknown.latency("all_gather", 64, 64) == pytest.approx((10 + 63 * 5) * 1e-6)
    assert unknown.latency("all_reduce", 2, 2) == pytest.approx((10 + 20) * 1e-6)


@failures.over("operation", ["all_gather", "reduce_scatter", "broadcast"])
@failures.over("num_nodes", [64, 256, 2048])
def test_what_has_no_tree_waits_for_every_step_of_a_ring(operation, num_nodes):
    found = FABRIC.latency(operation, 8 * num_nodes, num_nodes)
    # NCCL's tuning.cc: n - 1 steps, N - 1 of which leave a node.
    steps = 8 * num_nodes - 1
    between = num_nodes - 1
    expected = 10e-6 + (steps - between) * 0.5e-6 + between * 5e-6
    assert found == pytest.approx(expected)


def test_switches_between_nodes_take_each_byte_once_in_two_steps():
    sharp = replace(FABRIC, adds_in_switches=True)
    # 1 GB up and down over 100 GB/s, of which half is reached, whatever the nodes.
    for nodes in (2, 64, 1024):
        tau = transfer_time(sharp, "all_reduce", 8 * nodes, 1e9, 100e9)
        assert tau == pytest.approx(20e-3)
        latency = sharp.latency("all_reduce", 8 * nodes, nodes)
        assert latency == pytest.approx((10 + 7 + 10) * 1e-6)
    for operation in ("all_gather", "reduce_scatter"):
        same = collective_time(FABRIC, operation, 64, 1e9, 100e9)
        assert collective_time(sharp, operation, 64, 1e9, 100e9) == same


def test_rings_in_a_cube_mesh_have_the_links_that_they_find():
    mesh = replace(ROUND, links_by_size=(0.25, 0.5))
    reached = [mesh.reached("all_reduce", ranks) for ranks in (2, 3, 4)]
    assert reached == [0.125, 0.25, 0.25]


@given(EVERY, OPERATION, RANKS, st.integers(1, 64), st.integers(1, 8))
def test_more_nodes_or_ranks_never_wait_less(transport, operation, local, nodes, more):
    few = transport.latency(operation, local * nodes, nodes)
    assert transport.latency(operation, local * nodes * more, nodes * more) >= few
    assert transport.latency(operation, local * nodes * more, nodes) >= few


@given(EVERY, OPERATION, SIZE, BANDWIDTH)
def test_one_rank_alone_takes_no_time(transport, operation, size, bandwidth):
    assert collective_time(transport, operation, 1, size, bandwidth) == 0


@given(EVERY, OPERATION, RANKS, SIZE, st.floats(1, 100), BANDWIDTH)
def test_more_bytes_never_take_less(transport, operation, ranks, size, more, bandwidth):
    small = collective_time(transport, operation, ranks, size, bandwidth)
    assert collective_time(transport, operation, ranks, size * more, bandwidth) >= small


@given(EVERY, OPERATION, RANKS, SIZE, BANDWIDTH, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(
    transport, operation, ranks, size, bandwidth, more
):
    slow = collective_time(transport, operation, ranks, size, bandwidth)
    assert collective_time(transport, operation, ranks, size, bandwidth * more) <= slow


@given(EVERY, OPERATION, RANKS, BANDWIDTH)
def test_large_messages_approach_the_bandwidth(transport, operation, ranks, bandwidth):
    size = 1e18
    wire = WIRE_FRACTIONS[operation](ranks) * size
    reached = wire / collective_time(transport, operation, ranks, size, bandwidth)
    limit = transport.reached(operation, ranks) * bandwidth
    assert reached == pytest.approx(limit, rel=1e-2)


@given(EVERY, OPERATION, RANKS, SIZE, BANDWIDTH)
def test_overhead_and_transfer_are_the_whole(
    transport, operation, ranks, size, bandwidth
):
    arguments = (transport, operation, ranks, size, bandwidth)
    extra = overhead(*arguments)
    assert extra >= 0
    assert math.isclose(
        collective_time(*arguments), transfer_time(*arguments) + extra, rel_tol=1e-12
    )


@failures.over("name", accelerator_names())
def test_every_accelerator_has_links_of_both_scopes(name):
    assert find_transport(name, inside_node=True).scope == "node"
    assert find_transport(name, inside_node=False).scope == "fabric"


def test_the_longest_name_counts_and_the_unknown_get_the_default():
    assert find_transport("gb200", inside_node=True).name == "nvswitch-b200"
    assert find_transport("h100-sxm", inside_node=True).name == "nvswitch-h100"
    assert find_transport("a10g", inside_node=True).name == "pcie-host"
    assert find_transport("a100-80gb", inside_node=True).name == "nvswitch-a100"
    assert find_transport("mi300x", inside_node=True).name == "default-node"
    assert find_transport("mi300x", inside_node=False).name == "default-fabric"


@failures.over("transport", transports().values(), ids=list(transports()))
def test_constants_are_physical_and_have_a_source(transport):
    assert transport.source
    assert min(transport.launch, transport.send_launch) > 0
    assert min(transport.per_rank, transport.per_doubling, transport.ramp) >= 0
    for fraction in (transport.efficiency, transport.send_efficiency):
        assert 0 < fraction <= 1
    assert 0 <= transport.multicast_efficiency <= 1
    assert (transport.per_hop > 0) == (transport.scope == "fabric")
