"""Rail-only networks: nothing but nodes joins the rails."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from estimators.collectives.cost import collective_rates
from tests import failures
from tests.topologies.strategies import joined_rail_specs, rails_alone
from topologies import InputError, RailSpec, build_network, degrade
from topologies.degrade import Degradation
from topologies.fabrics.inventory import count_parts, links_up

ONE = RailSpec(
    devices_per_node=4,
    node_bandwidth=450e9,
    node_latency=0.5e-6,
    nodes_per_unit=8,
    num_units=1,
    nic_bandwidth=50e9,
    nic_latency=1e-6,
    spine_latency=1e-6,
    rail_only=True,
)
TWO = replace(ONE, nodes_per_unit=4, num_units=2, num_spines=2, trunk="ecmp")


def vertices(network, source, target):
    links = list(network.route(source, target))
    passed = [network.links.source[links[0]], *network.links.target[links]]
    return [network.vertex_names[vertex] for vertex in passed]


def test_one_switch_a_rail_is_all_there_is_beside_nodes():
    network = build_network(ONE)
    switches = network.vertex_names[network.num_devices :]
    assert switches[8:] == tuple(f"rail unit 0 rail {rail}" for rail in range(4))
    assert len(switches) == 8 + 4
    assert [level.name for level in network.levels] == ["node", "rail unit"]


def test_each_rail_of_several_units_has_spines_of_its_own():
    network = build_network(TWO)
    spines = [name for name in network.vertex_names if name.startswith("spine")]
    assert len(spines) == 2 * 4
    assert spines[:3] == ["spine 0 rail 0", "spine 1 rail 0", "spine 0 rail 1"]
    links = network.links
    for source, target in zip(links.source, links.target, strict=True):
        ends = [network.vertex_names[vertex] for vertex in (source, target)]
        rails = {name.split(" rail ")[-1] for name in ends if " rail " in name}
        assert len(rails) <= 1


def test_another_rail_is_reached_through_the_senders_node():
    assert vertices(build_network(ONE), 1, 6) == [
        "device 1",
        "node 0",
        "device 2",
        "rail unit 0 rail 2",
        "device 6",
    ]
    names = vertices(build_network(TWO), 1, 30)
    assert names[:4] == ["device 1", "node 0", "device 2", "rail unit 0 rail 2"]
    assert names[4] in {"spine 0 rail 2", "spine 1 rail 2"}
    assert names[5:] == ["rail unit 1 rail 2", "device 30"]


@given(spec=joined_rail_specs())
@settings(max_examples=30)
def test_where_nodes_relay_rails_that_nothing_else_joins_are_as_good(spec):
    """Rail-optimised with PXN: no pair goes from one rail to another in a spine."""
    joined = replace(rails_alone(spec), rail_only=False)
    one, other = build_network(joined), build_network(rails_alone(spec))
    number = one.num_devices
    pairs = np.divmod(np.arange(number**2), number)
    ours, theirs = one.routes(*pairs), other.routes(*pairs)
    assert np.array_equal(ours.indptr, theirs.indptr)
    assert np.array_equal(ours.links, theirs.links)
    count = len(other.links)
    for name in ("bandwidth", "latency", "level"):
        values = getattr(one.links, name)[:count]
        assert np.array_equal(values, getattr(other.links, name))
    groups = np.arange(number).reshape(1, 1, -1)
    for name in ("ring", "hierarchical"):
        rates = [
            collective_rates(network, "all_reduce", groups, name)
            for network in (one, other)
        ]
        assert rates[0] == rates[1]
    assert one.bisection_bandwidth() == other.bisection_bandwidth()


@failures.over(
    ("spec", "changes", "where"),
    [
        (ONE, {"pxn": False}, "pxn"),
        (TWO, {"pxn": False}, "pxn"),
        (ONE, {"num_spines": 2}, "num_spines"),
        (ONE, {"oversubscription": 2.0}, "oversubscription"),
        (ONE, {"trunk": "ecmp"}, "trunk"),
    ],
)
def test_what_needs_spines_that_are_not_there_is_refused(spec, changes, where):
    with pytest.raises(InputError) as caught:
        replace(spec, **changes)
    assert caught.value.where == where


def test_without_spines_no_hash_has_anything_to_pick():
    with pytest.raises(InputError, match="no parallel cables"):
        ONE.with_ecmp_seed(3)
    assert TWO.with_ecmp_seed(3).ecmp_seed == 3


def test_a_device_without_its_adapter_goes_through_its_node():
    broken = Degradation(removed_links=("device 1 <-> rail unit 0 rail 1",))
    network = degrade(build_network(ONE), broken)
    names = vertices(network, 1, 5)
    assert names[:2] == ["device 1", "node 0"]
    assert "rail unit 0 rail 1" not in names or names.index("device 1") == 0
    assert names[-1] == "device 5"


def test_a_node_without_adapters_is_cut_off_and_named():
    broken = Degradation(
        removed_links=tuple(f"device {d} <-> rail unit 0 rail {d}" for d in range(4))
    )
    with pytest.raises(InputError, match="cuts devices off") as caught:
        degrade(build_network(ONE), broken)
    assert "node 0 (device 0 to device 3)" in str(caught.value)


def test_eight_planes_of_64_port_switches_have_the_switches_that_deepseek_counts():
    # Zhao et al., "Insights into DeepSeek-V3", ISCA 2025, section 5: a multi-plane
    # fat-tree of two layers, 16,384 endpoints and 768 switches of 64 ports.
    planes = replace(
        ONE, devices_per_node=8, nodes_per_unit=32, num_units=64, num_spines=32
    )
    network = build_network(planes)
    assert network.num_devices == 16_384
    parts = count_parts(network)
    assert parts.num_switches == 768
    fabric = [tier for tier in parts.fabric if tier.num_switches]
    assert {tier.ports_per_switch for tier in fabric} == {64}
    assert links_up(network) == 1.0
