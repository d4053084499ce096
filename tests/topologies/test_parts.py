"""What networks are built of: cables, ends, switches."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests import failures
from topologies.builders import build_network
from topologies.degrade import Degradation, degrade
from topologies.fabrics.inventory import network_parts
from topologies.specs import (
    CustomSpec,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
)

GBIT = 1e9 / 8


def rail(**changes):
    values = {
        "devices_per_node": 8,
        "node_bandwidth": 450e9,
        "node_latency": 0.0,
        "nodes_per_unit": 32,
        "num_units": 4,
        "nic_bandwidth": 400 * GBIT,
        "nic_latency": 0.0,
        "spine_latency": 0.0,
        "num_spines": 16,
        **changes,
    }
    return RailSpec(**values)


def leaf_spine(**changes):
    values = {
        "devices_per_node": 8,
        "node_bandwidth": 450e9,
        "node_latency": 0.0,
        "nodes_per_leaf": 4,
        "num_leaves": 4,
        "nic_bandwidth": 400 * GBIT,
        "nic_latency": 0.0,
        "spine_latency": 0.0,
        **changes,
    }
    return SpineLeafSpec(**values)


def counted(spec, speed):
    """Return tier -> cables, device ends and switch ends at a speed."""
    return {
        one.tier: (
            one.count * one.cables_each(speed),
            one.count * one.cables_each(speed) * one.device_ends,
        )
        for one in network_parts(build_network(spec)).bundles
    }


def test_rails_have_a_nic_for_each_device_and_as_many_cables_to_spines():
    found = counted(rail(), 400 * GBIT)
    assert found["rail unit"] == (1024, 1024)
    assert found["spine"] == (1024, 0)
    node, unit, spine = network_parts(build_network(rail())).switches
    assert (node.count, unit.count, spine.count) == (128, 32, 1)
    assert unit.ends == ((1, 32), (2, 1))
    assert spine.ends == ((2, 32),)


@failures.over("trunk", ["ideal", "ecmp"])
@failures.over(
    ("ratio", "uplinks"), [(1.0, 32), (2.0, 16), (3.0, 11), (32.0, 1), (100.0, 1)]
)
def test_oversubscribed_switches_have_fewer_cables_up(trunk, ratio, uplinks):
    spec = leaf_spine(oversubscription=ratio, num_spines=4, trunk=trunk)
    assert counted(spec, 400 * GBIT)["spine"][0] == 4 * uplinks
    assert counted(spec, 400 * GBIT)["leaf"][0] == 128


@failures.over("nic", ["device", "node"])
def test_nics_are_where_the_network_leaves_the_node(nic):
    found = counted(leaf_spine(nic=nic), 400 * GBIT)
    nics = 128 if nic == "device" else 16
    assert found["leaf"] == (nics, nics)
    assert found["spine"] == (nics, 0)


def test_a_fat_trees_trunks_add_up_tier_by_tier():
    levels = (
        LevelSpec(name="node", fan_out=4, latency=0.0, bandwidth=300e9),
        LevelSpec(
            name="leaf",
            fan_out=4,
            latency=0.0,
            bandwidth=25e9,
            oversubscription=2.0,
        ),
        LevelSpec(name="pod", fan_out=2, latency=0.0),
        LevelSpec(name="core", fan_out=2, latency=0.0),
    )
    spec = FatTreeSpec(levels=levels, nic="device")
    # 64 devices; a leaf has 16 x 25 GB/s below and half of it above, a pod 2 leaves.
    assert counted(spec, 25e9) == {
        "node": (64 * 12, 64 * 12),
        "leaf": (64, 64),
        "pod": (4 * 8, 0),
        "core": (2 * 16, 0),
    }


def test_tiers_that_join_nothing_are_not_built():
    parts = network_parts(build_network(leaf_spine(num_leaves=1)))
    assert parts.tiers == ("node", "leaf")
    assert parts.switches[-1].ends == ((1, 32),)


@given(
    ratio=st.floats(0.1, 100),
    worse=st.floats(1, 10),
    speed=st.sampled_from([25.0, 100.0, 400.0]),
    separate=st.booleans(),
)
def test_no_network_needs_more_cables_when_it_is_worse(ratio, worse, speed, separate):
    trunk = "ecmp" if separate else "ideal"
    before, after = (
        counted(leaf_spine(oversubscription=r, num_spines=2, trunk=trunk), speed * GBIT)
        for r in (ratio, ratio * worse)
    )
    assert all(after[tier][0] <= before[tier][0] for tier in before)


def test_what_is_broken_has_been_bought():
    network = build_network(rail(trunk="ecmp"))
    broken = degrade(network, Degradation(removed_switches=("spine 3",)))
    assert network_parts(broken) == network_parts(network)


@failures.over("wrap", [True, False])
def test_a_torus_has_a_cable_for_each_pair_of_neighbours(wrap):
    spec = TorusSpec(
        dimensions=(3, 4, 2), wrap=(wrap, wrap, wrap), bandwidth=50e9, latency=0.0
    )
    network = build_network(spec)
    ends = {
        frozenset(pair)
        for pair in zip(
            network.links.source.tolist(), network.links.target.tolist(), strict=True
        )
    }
    parts = network_parts(network)
    assert not parts.switches
    assert sum(one.count for one in parts.bundles) == len(ends)
    assert all(one.device_ends == 2 for one in parts.bundles)


def brute_force_custom(network):
    """Return bandwidth and kinds of ends -> cables, pair by pair in Python."""
    found = Counter()
    links = network.links
    pairs = zip(
        links.source.tolist(),
        links.target.tolist(),
        links.bandwidth.tolist(),
        strict=True,
    )
    by_pair = {}
    for source, target, bandwidth in pairs:
        key = (min(source, target), max(source, target))
        both = by_pair.setdefault(key, ([], []))
        both[source > target].append(bandwidth)
    for ends, (forth, back) in by_pair.items():
        forth.sort(reverse=True)
        back.sort(reverse=True)
        for index in range(max(len(forth), len(back))):
            widest = max(
                forth[index] if index < len(forth) else 0.0,
                back[index] if index < len(back) else 0.0,
            )
            found[widest, sum(end < network.num_devices for end in ends)] += 1
    return found


def test_a_list_of_links_is_counted_cable_by_cable(request):
    path = request.config.rootpath / "scenarios" / "custom_network_links.toml"
    network = build_network(CustomSpec(path=path))
    parts = network_parts(network)
    found = Counter()
    for one in parts.bundles:
        found[one.bandwidth, one.device_ends] += one.count
    assert found == brute_force_custom(network)
    ends = sum(group.count * n for group in parts.switches for _, n in group.ends)
    assert ends == sum(one.count * (2 - one.device_ends) for one in parts.bundles)
    switches = len(network.vertex_names) - network.num_devices
    assert sum(group.count for group in parts.switches) == switches


@given(
    bandwidth=st.floats(1.0, 1e4), speed=st.floats(1.0, 1e3), count=st.integers(1, 9)
)
def test_cables_are_the_fewest_that_carry_a_bundle(bandwidth, speed, count):
    (bundles,) = network_parts(
        build_network(
            TorusSpec(
                dimensions=(count + 1,), wrap=(False,), bandwidth=bandwidth, latency=0.0
            )
        )
    ).bundles
    cables = bundles.cables_each(speed)
    assert cables * speed >= bandwidth * (1 - 1e-6)
    assert cables == 1 or (cables - 1) * speed < bandwidth
    assert bundles.count == count
