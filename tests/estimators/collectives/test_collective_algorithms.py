"""Algorithms by what they must do: everything arrives, at the price of the papers."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimators.collectives.algorithms import (
    ALGORITHM_NAMES,
    HIERARCHICAL,
    OPERATIONS,
    algorithms_for,
    exchanges,
)
from estimators.collectives.cost import ALGORITHMS, collective_rates, rates_by_algorithm
from estimators.collectives.messages import exchange_rates, placed_exchanges
from estimators.collectives.phases import RING_OPERATIONS, depth, parents_of_both
from tests import failures
from topologies import (
    CustomSpec,
    FatTreeSpec,
    InputError,
    LevelSpec,
    TorusSpec,
    build_network,
)

DATA = Path(__file__).parents[4] / "shared" / "data" / "astra-sim"
CASES = [(op, name) for op in OPERATIONS for name in algorithms_for(op)]
GIB = 2.0**30


def switch(size=16, bandwidth=100.0, latency=1.0):
    level = LevelSpec(name="node", fan_out=size, bandwidth=bandwidth, latency=latency)
    return build_network(FatTreeSpec(levels=(level,)))


def tree():
    """Two leaves of three nodes of four devices."""
    sizes, bandwidths = (4, 3, 2), (80.0, 20.0, 30.0)
    return build_network(
        FatTreeSpec(
            levels=tuple(
                LevelSpec(name=str(k), fan_out=n, bandwidth=b, latency=1.0)
                for k, (n, b) in enumerate(zip(sizes, bandwidths, strict=True))
            )
        )
    )


def torus(*sizes, bandwidth=10.0, latency=1.0):
    wrap = (True,) * len(sizes)
    return build_network(
        TorusSpec(dimensions=sizes, wrap=wrap, bandwidth=bandwidth, latency=latency)
    )


shapes = st.lists(st.integers(2, 5), min_size=1, max_size=3).map(tuple)


def shape_for(name, shape):
    return shape if name in HIERARCHICAL else (math.prod(shape),)


def heard_from(phases, size):
    """Return whom each member has heard of, by passing on all that is known."""
    known = np.eye(size, dtype=bool)
    for phase in phases:
        for _ in range(phase.num_steps):
            before = known.copy()
            for sender, receiver in zip(phase.senders, phase.receivers, strict=True):
                known[receiver] |= before[sender]
    return known


@given(st.sampled_from(CASES), shapes)
@settings(max_examples=60)
def test_everything_reaches_everyone_who_needs_it(case, shape):
    operation, name = case
    size = math.prod(shape)
    known = heard_from(exchanges(name, operation, shape_for(name, shape)), size)
    if operation == "broadcast":
        assert known[:, 0].all()
    elif operation == "send_recv":
        assert known[np.arange(size), np.arange(size) - 1].all()
    else:
        assert known.all()


@given(st.sampled_from(CASES), shapes)
@settings(max_examples=60)
def test_nobody_receives_less_than_the_operation_needs(case, shape):
    """Bytes into each member: S (n - 1) / n, twice that summed for an all-reduce."""
    operation, name = case
    size = math.prod(shape)
    received = np.zeros(size)
    for phase in exchanges(name, operation, shape_for(name, shape)):
        assert not np.any(phase.senders == phase.receivers)
        received += np.bincount(phase.receivers, minlength=size) * phase.fraction
    need = {"broadcast": 1.0, "send_recv": 1.0}.get(operation, (size - 1) / size)
    members = received[1:] if operation == "broadcast" else received
    if operation == "all_reduce":
        # A member may reduce nothing and only get the result.
        assert received.sum() >= 2 * (size - 1) * (1 - 1e-12)
    if operation == "reduce_scatter":
        # What is received may have been added up on the way.
        assert (members >= (1 / size) * (1 - 1e-12)).all()
        need = 0.0
    assert (members >= need * (1 - 1e-12)).all()


@failures.over("size", [2, 4, 8, 16])
@failures.over("name", ["ring", "direct", "halving-doubling"])
@failures.over("operation", sorted(RING_OPERATIONS))
def test_three_algorithms_are_bandwidth_optimal_on_one_switch(operation, name, size):
    groups = np.arange(size)[None, None]
    (rate,) = collective_rates(switch(), operation, groups, name)
    passes = 2 if operation == "all_reduce" else 1
    assert rate.inverse_bandwidth == pytest.approx(passes * (size - 1) / size / 100)
    steps = {"ring": size - 1, "direct": 1, "halving-doubling": math.log2(size)}[name]
    assert rate.latency == pytest.approx(2.0 * passes * steps)


def test_a_ring_of_four_by_hand():
    """S = 4: six rounds of one byte over 100 byte/s, two links of 1 s each."""
    groups = np.arange(4)[None, None]
    (rate,) = collective_rates(switch(4), "all_reduce", groups, "ring")
    assert rate.time(4.0) == pytest.approx(6 * (2 * 1.0 + 1.0 / 100))


def test_members_beyond_a_power_of_two_cost_two_more_messages():
    groups = np.arange(6)[None, None]
    (six,) = collective_rates(switch(), "all_reduce", groups, "halving-doubling")
    (four,) = collective_rates(
        switch(), "all_reduce", groups[:, :, :4], "halving-doubling"
    )
    assert six.latency == pytest.approx(four.latency + 2 * 2.0)
    assert six.inverse_bandwidth == pytest.approx(four.inverse_bandwidth + 2 / 100)


def test_gathering_among_six_sends_two_shards_first_and_five_last():
    """Shards of a sixth: before 1, then 2 and 4 of the first ones, after 5."""
    fractions = [p.fraction for p in exchanges("halving-doubling", "all_gather", (6,))]
    assert fractions == pytest.approx([1 / 6, 2 / 6, 4 / 6, 5 / 6])
    back = exchanges("halving-doubling", "reduce_scatter", (6,))
    assert [phase.fraction for phase in back] == pytest.approx(fractions[::-1])


@failures.over("size", [3, 4, 7, 8, 16, 33])
def test_two_trees_need_two_tensors_per_port_and_few_rounds(size):
    """Sanders et al.: full bandwidth up and down, in a logarithmic number of steps."""
    groups = np.arange(size)[None, None]
    (rate,) = collective_rates(switch(64), "all_reduce", groups, "double-binary-tree")
    assert rate.inverse_bandwidth <= 2 / 100 * (1 + 1e-12)
    assert rate.latency <= 2 * 2.0 * (math.floor(math.log2(size)) + 1)


def test_broadcast_over_two_trees_has_the_bandwidth_of_a_port():
    groups = np.arange(16)[None, None]
    (rate,) = collective_rates(switch(), "broadcast", groups, "double-binary-tree")
    assert rate.inverse_bandwidth == pytest.approx(1 / 100)


@given(st.integers(2, 70))
@settings(max_examples=35)
def test_who_has_children_in_one_tree_is_a_leaf_of_the_other(size):
    both = parents_of_both(size)
    children = [np.bincount(one[one >= 0], minlength=size) for one in both]
    for parents, count in zip(both, children, strict=True):
        assert (parents < 0).sum() == 1
        assert count.max() <= 2
        assert depth(parents) <= math.floor(math.log2(size)) + 1
    assert ((children[0] > 0) & (children[1] > 0)).sum() <= size % 2


def test_trees_are_those_that_nccl_draws():
    """The comments of NCCL's trees.cc: 14 members, mirrored 12, shifted 13."""
    first, _ = parents_of_both(14)
    assert first.tolist() == [-1, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8, 12]
    _, mirrored = parents_of_both(12)
    assert mirrored.tolist() == [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, -1]
    _, shifted = parents_of_both(13)
    assert shifted.tolist() == [9, -1, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11]


def test_direct_all_to_all_shares_the_ports_and_bruck_saves_rounds():
    groups = np.arange(8)[None, None]
    (direct,) = collective_rates(switch(8), "all_to_all", groups, "direct")
    (bruck,) = collective_rates(switch(8), "all_to_all", groups, "halving-doubling")
    assert direct == pytest.approx((2.0, 7 / 8 / 100))
    assert bruck == pytest.approx((3 * 2.0, 3 / 2 / 100))


def test_direct_all_to_all_on_a_torus_line_meets_at_its_links():
    """4 in a circle: to the neighbours 1 hop, across 2 hops one way: 3 per link."""
    (rate,) = collective_rates(
        torus(4), "all_to_all", np.arange(4)[None, None], "direct"
    )
    assert rate == pytest.approx((2.0, 3 / 4 / 10.0))


def test_levels_of_an_all_to_all_send_everything_that_lies_beyond():
    """Inside a node 3/4 S, then 2/3 S across: four devices share the uplink."""
    groups = np.arange(12)[None, None]
    (rate,) = collective_rates(tree(), "all_to_all", groups, "hierarchical")
    assert rate.inverse_bandwidth == pytest.approx(3 / 4 / 80 + 2 / 3 * 4 / 20)


def test_a_broadcast_over_levels_crosses_each_uplink_once():
    groups = np.arange(12)[None, None]
    phases = exchanges("hierarchical", "broadcast", (4, 3))
    assert phases[0].senders.tolist() == [0, 4]
    (rate,) = collective_rates(tree(), "broadcast", groups, "hierarchical")
    assert rate.inverse_bandwidth == pytest.approx(1 / 20 + 1 / 80)


@st.composite
def groups_on_a_tree(draw):
    """Stages of groups on 24 devices, even or not."""
    order = draw(st.permutations(range(24)))
    size = draw(st.sampled_from([2, 3, 4, 6, 12]))
    groups = np.array(order if draw(st.booleans()) else sorted(order))
    return groups.reshape(draw(st.sampled_from([1, 2])), -1, size)


@given(
    groups_on_a_tree(),
    st.sampled_from(sorted(ALGORITHMS)),
    st.sampled_from(sorted(RING_OPERATIONS)),
    st.booleans(),
)
@settings(max_examples=30)
def test_rings_message_by_message_cost_what_the_kernel_says(
    groups, name, operation, together
):
    found = exchange_rates(tree(), operation, groups, name, together=together)
    fast = collective_rates(tree(), operation, groups, name, together=together)
    np.testing.assert_allclose(found, np.array(fast), rtol=1e-12)


@failures.over(("operation", "name"), CASES)
def test_a_group_of_one_has_nothing_to_do(operation, name):
    groups = np.arange(24).reshape(2, 12, 1)
    assert exchanges(name, operation, (1,)) == ()
    assert placed_exchanges(tree(), operation, groups[0], name) == ()
    assert not exchange_rates(tree(), operation, groups, name).any()


def test_an_algorithm_that_an_operation_does_not_have_is_refused():
    with pytest.raises(InputError, match="no such algorithm for all-gather") as caught:
        exchanges("double-binary-tree", "all_gather", (4,))
    assert "halving-doubling" in str(caught.value)
    with pytest.raises(InputError, match="'bogus'"):
        collective_rates(tree(), "all_reduce", np.arange(4)[None, None], "bogus")


def test_every_algorithm_can_be_named_but_only_two_are_searched():
    groups = np.arange(24).reshape(1, 2, 12)
    assert list(rates_by_algorithm(tree(), groups)) == ["ring", "hierarchical"]
    named = rates_by_algorithm(tree(), groups, ALGORITHM_NAMES)
    assert list(named) == list(ALGORITHM_NAMES)
    trees, rings = named["double-binary-tree"], named["ring"]
    np.testing.assert_allclose(trees["all_gather"], rings["all_gather"])
    for name in ("all_reduce", "all_gather"):
        expected = collective_rates(tree(), name, groups, "direct")
        np.testing.assert_array_equal(named["direct"][name], np.array(expected))


# ASTRA-sim.


def fully_connected(folder):
    file = folder / "links.toml"
    links = [
        f"[[links]]\nsource = {a}\ntarget = {b}\n"
        'bandwidth = "100 GiB/s"\nlatency = "500 ns"\n'
        for a in range(8)
        for b in range(a)
    ]
    file.write_text("devices = 8\n" + "".join(links), encoding="utf-8")
    return build_network(CustomSpec(path=file))


NETWORKS = {
    "Ring8": lambda folder: torus(8, bandwidth=100 * GIB, latency=500e-9),
    "Torus4x4": lambda folder: torus(4, 4, bandwidth=50 * GIB, latency=500e-9),
    "Switch8": lambda folder: switch(8, bandwidth=100 * GIB, latency=500e-9),
    "2D-Sw8x4": lambda folder: build_network(
        FatTreeSpec(
            levels=(
                LevelSpec(name="0", fan_out=8, bandwidth=450 * GIB, latency=500e-9),
                LevelSpec(name="1", fan_out=4, bandwidth=50 * GIB, latency=500e-9),
            ),
            nic="device",
        )
    ),
    "FC8": fully_connected,
}

NAMES = {
    "ring": "ring",
    "direct": "direct",
    "halvingDoubling": "halving-doubling",
    "ring/ring": "hierarchical",
    "halvingDoubling/halvingDoubling": "hierarchical-halving-doubling",
}


def is_reference(row):
    """Tell what its README rules out: all-to-all on rings and on shared ports."""
    return row["collective"] != "all-to-all" or row["topology"] == "FC8"


def nanoseconds(network, row):
    """Count as ASTRA-sim does: whole ns a message, one more at its end, and a phase.

    A phase there is all that happens along one dimension.
    """
    operation, name = row["collective"].replace("-", "_"), NAMES[row["algorithm"]]
    size, delay = float(row["size_bytes"]), int(row["endpoint_delay_ns"])
    if operation == "all_gather" and row["size_convention"] == "per-npu-input":
        size *= network.num_devices
    members = np.arange(network.num_devices)[None]
    dimensions = row["dims"].count("x") + 1
    num_phases = 2 * dimensions - 1 if operation == "all_reduce" else dimensions
    total = num_phases * delay
    for phase in placed_exchanges(network, operation, members, name):
        routes = network.routes(phase.sources, phase.targets)
        load = np.bincount(routes.links, minlength=len(network.links))
        seconds = float((load / network.links.bandwidth).max()) * phase.fraction * size
        message = network.latencies(routes).max() + seconds / phase.num_steps
        total += phase.num_steps * (math.floor(1e9 * message + 1e-6) + delay)
    return total


@pytest.mark.skipif(
    not DATA.is_dir(), reason="ASTRA-sim's reference times are not beside us"
)
def test_collectives_take_as_long_as_in_astra_sim_to_the_nanosecond(tmp_path):
    with (DATA / "collectives_ideal.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if is_reference(row)]
    networks = {name: build(tmp_path) for name, build in NETWORKS.items()}
    assert len(rows) == 63
    for row in rows:
        found = nanoseconds(networks[row["topology"]], row)
        assert found == float(row["simulated_ns"]), row


@pytest.mark.skipif(
    not DATA.is_dir(), reason="ASTRA-sim's reference times are not beside us"
)
def test_closed_forms_of_large_messages_need_no_allowance_for_its_clock(tmp_path):
    with (DATA / "collectives_ideal.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if is_reference(row)]
    large = [row for row in rows if int(row["size_bytes"]) > 2**20]
    networks = {name: build(tmp_path) for name, build in NETWORKS.items()}
    assert len(large) == 42
    for row in large:
        network = networks[row["topology"]]
        operation, size = row["collective"].replace("-", "_"), int(row["size_bytes"])
        if operation == "all_gather" and row["size_convention"] == "per-npu-input":
            size *= network.num_devices
        members = np.arange(network.num_devices)[None, None]
        (rate,) = collective_rates(network, operation, members, NAMES[row["algorithm"]])
        expected = 1e-9 * float(row["simulated_ns"])
        assert rate.time(size) == pytest.approx(expected, rel=1e-4), row
