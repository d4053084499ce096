"""Pods, dragonflies and HyperX against what their papers count."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.topologies.oracles import all_pairs, smallest_halving_cut
from tests.topologies.strategies import (
    dragonfly_specs,
    hyperx_specs,
    pods_specs,
)
from topologies import (
    CustomSpec,
    DragonflySpec,
    FatTreeSpec,
    HyperXSpec,
    InputError,
    LevelSpec,
    PodsSpec,
    RailSpec,
    TorusSpec,
    build_network,
)
from topologies.fabrics.inventory import bisection_rule, count_parts
from topologies.joined_specs import MAX_SWITCHES


def below(terminals, *, node=1):
    """So many devices below a switch, each with a NIC of 1 byte/s."""
    return FatTreeSpec(
        levels=(
            LevelSpec(name="node", fan_out=node, latency=1.0, bandwidth=9.0),
            LevelSpec(
                name="switch", fan_out=terminals // node, latency=1.0, bandwidth=1.0
            ),
        ),
        nic="device",
    )


def dragonfly(p, a, h, g, **others):
    """A dragonfly with the letters of Kim et al. 2008."""
    values = {
        "below": below(p),
        "switches_per_group": a,
        "num_groups": g,
        "global_links": h,
        "local_bandwidth": 1.0,
        "local_latency": 1.0,
        "global_bandwidth": 1.0,
        "global_latency": 1.0,
    }
    return DragonflySpec(**values | others)


def hyperx(terminals, dimensions, bandwidths, **others):
    """A HyperX with the letters of Ahn et al. 2009: T, S and K."""
    return HyperXSpec(
        below=below(terminals),
        dimensions=dimensions,
        bandwidths=bandwidths,
        latency=1.0,
        **others,
    )


def loads(network, pairs=None):
    """Routes over each link, for all pairs or those given."""
    sources, targets = all_pairs(network) if pairs is None else pairs
    routes = network.routes(sources, targets)
    return np.bincount(routes.links, minlength=len(network.links))


@pytest.mark.parametrize("h", [1, 2])
def test_a_balanced_dragonfly_has_the_size_and_the_ports_of_its_paper(h):
    # Kim et al. 2008, section 3.1: a = 2p = 2h, N = a p (a h + 1), k = p + a + h - 1.
    a, p, g = 2 * h, h, 2 * h * h + 1
    network = build_network(dragonfly(p, a, h, g))
    assert network.num_devices == a * p * (a * h + 1)
    parts = count_parts(network)
    assert parts.num_switches == a * g
    assert parts.tiers[0].ports_per_switch == p + a + h - 1
    cables = {tier.name: tier.num_cables for tier in parts.tiers}
    assert cables == {
        "switch": network.num_devices,
        "group": g * a * (a - 1) // 2,
        "system": g * a * h // 2,
    }


def test_minimal_routes_of_a_dragonfly_cross_one_global_link_and_load_all_alike():
    # Kim et al. 2008, section 4.1: at most local, global, local.
    p, a, h, g = 2, 4, 2, 9
    network = build_network(dragonfly(p, a, h, g))
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    assert np.diff(routes.indptr).max() == 2 + 3
    far = network.links.level == 3
    before = np.concatenate([[0], np.cumsum(far[routes.links])])[routes.indptr]
    apart = sources // (a * p) != targets // (a * p)
    assert np.array_equal(np.diff(before), apart.astype(int))
    # One link from each group to each other: all pairs of the two groups.
    assert set(loads(network)[far].tolist()) == {(a * p) ** 2}


@pytest.mark.parametrize("g", [2, 4])
def test_a_dragonfly_is_cut_between_its_groups(g):
    p, a, h = 4, 3, 2
    network = build_network(dragonfly(p, a, h, g))
    parallel = a * h // (g - 1)
    assert network.bisection_bandwidth() == (g // 2) ** 2 * parallel
    assert "largest flow" in bisection_rule(network)


def test_pairs_take_turns_over_the_links_between_two_groups():
    network = build_network(dragonfly(2, 4, 2, 3))
    load = loads(network)[network.links.level == 3]
    assert len(load) == 3 * 4 * 2
    assert load.max() <= 1.25 * load.mean()
    hashed = build_network(dragonfly(2, 4, 2, 3, trunk="ecmp", ecmp_seed=7))
    load = loads(hashed)[hashed.links.level == 3]
    assert load.min() > 0
    assert load.max() <= 2.0 * load.mean()


def test_valiants_routes_spread_what_one_group_sends_to_the_next():
    # Kim et al. 2008, section 4.2: minimal routes of the worst case share one link.
    p, a, h, g = 2, 4, 2, 9
    groups = np.arange(g)[:, None, None] * (p * a)
    here, there = np.arange(p * a)[:, None], (np.arange(p * a) + p * a)[None, :]
    pairs = (groups + here + 0 * there).ravel(), (groups + there + 0 * here).ravel()
    pairs = pairs[0], pairs[1] % (p * a * g)
    far = build_network(dragonfly(p, a, h, g)).links.level == 3
    minimal = loads(build_network(dragonfly(p, a, h, g)), pairs)[far]
    assert minimal.max() == (p * a) ** 2
    spread = build_network(dragonfly(p, a, h, g, routing="valiant"))
    assert loads(spread, pairs)[far].max() <= (p * a) ** 2 / 2
    routes = spread.routes(*pairs)
    assert np.diff(routes.indptr).max() <= 2 + 5
    over = np.concatenate([[0], np.cumsum(far[routes.links])])[routes.indptr]
    assert set(np.diff(over).tolist()) == {1, 2}


def test_a_dragonfly_plus_has_the_size_and_the_diameter_of_its_paper():
    # Shpiner et al. 2017, section 2: of switches with k ports, k/2 leaves with k/2
    # hosts and k/2 spines with k/2 global links make a group, k^2/4 + 1 of them N.
    k = 4
    half, g = k // 2, k * k // 4 + 1
    spec = dragonfly(half, half, half, g, spines_per_group=half)
    network = build_network(spec)
    assert spec.kind == network.kind == "dragonfly+"
    assert network.num_devices == (k * k // 4) * (k * k // 4 + 1)
    parts = count_parts(network)
    assert parts.num_switches == k * g
    assert {tier.ports_per_switch for tier in parts.tiers if tier.num_switches} == {k}
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    hops = np.diff(routes.indptr).reshape(network.num_devices, -1)
    assert hops.max() == 2 + 3  # leaf, spine, spine, leaf
    far = network.links.level == 3
    assert set(loads(network)[far].tolist()) == {(half * half) ** 2}
    local = loads(network)[network.links.level == 2]
    assert local.max() <= 1.25 * local.mean()


@pytest.mark.parametrize(
    ("dimensions", "bandwidths"), [((4, 4), (1.0, 2.0)), ((6, 2), (0.5, 1.0))]
)
def test_a_hyperx_has_the_diameter_and_the_bisection_of_its_paper(
    dimensions, bandwidths
):
    # Ahn et al. 2009, section 3: diameter L; the bisection across dimension k has
    # K_k S_k / 4 of the P switches' links; each switch T + sum (S_k - 1) ports.
    terminals, number = 4, int(np.prod(dimensions))
    network = build_network(hyperx(terminals, dimensions, bandwidths))
    assert network.num_devices == terminals * number
    hops = np.diff(network.routes(*all_pairs(network)).indptr)
    assert hops.max() == 2 + len(dimensions)
    across = [k * s * number / 4 for k, s in zip(bandwidths, dimensions, strict=True)]
    assert network.bisection_bandwidth() == min(*across, network.num_devices / 2)
    parts = count_parts(network)
    assert parts.num_switches == number
    several = [max(1, int(bandwidth)) for bandwidth in bandwidths]
    ends = [k * (s - 1) for k, s in zip(several, dimensions, strict=True)]
    ports = terminals + sum(ends)
    assert parts.tiers[0].ports_per_switch == ports
    cables = {tier.name: tier.num_cables for tier in parts.tiers}
    for axis, end in enumerate(ends):
        assert cables[f"dimension {axis}"] == number * end // 2


def test_all_pairs_load_each_dimension_of_a_hyperx_as_its_lines_say():
    # Every pair that differs in a dimension takes one link of it: T^2 P / S_k a link.
    terminals, dimensions = 2, (4, 3)
    for trunk in ("ideal", "ecmp"):
        network = build_network(
            hyperx(terminals, dimensions, (1.0, 1.0), trunk=trunk, ecmp_seed=3)
        )
        for level, axis in ((2, 1), (3, 0)):
            load = loads(network)[network.links.level == level]
            assert load.mean() == terminals**2 * 12 / dimensions[axis]
            assert load.max() <= 1.5 * load.mean()


def test_nodes_joined_in_rings_are_a_torus_of_their_switches():
    node = LevelSpec(name="node", fan_out=4, latency=1.0, bandwidth=9.0)
    spec = HyperXSpec(
        below=FatTreeSpec(levels=(node,)),
        dimensions=(4, 5),
        bandwidths=(2.0, 2.0),
        latency=1.0,
        rings=True,
    )
    network = build_network(spec)
    torus = build_network(
        TorusSpec(dimensions=(4, 5), wrap=(True, True), bandwidth=2.0, latency=1.0)
    )
    nodes = np.arange(20) * 4
    sources, targets = (a.ravel() for a in np.meshgrid(nodes, nodes))
    hops = np.diff(network.routes(sources, targets).indptr)
    distance = np.diff(torus.routes(sources // 4, targets // 4).indptr)
    assert np.array_equal(hops, np.where(sources == targets, 0, distance + 2))
    assert network.levels[0].block_size == 4
    assert network.bisection_bandwidth() == 2 * 5 * 2.0
    assert count_parts(network).num_cables == count_parts(torus).num_cables


def test_pods_are_what_they_are_and_leave_by_their_adapters():
    pod = TorusSpec(dimensions=(4, 4), wrap=(True, True), bandwidth=9.0, latency=1.0)
    spec = PodsSpec(
        pod=pod,
        num_pods=3,
        nic_bandwidth=2.0,
        nic_latency=4.0,
        latency=5.0,
        devices_per_nic=4,
        oversubscription=2.0,
        nic_efficiency=0.5,
    )
    network, alone = build_network(spec), build_network(pod)
    sources, targets = all_pairs(alone)
    inside = network.routes(sources + 16, targets + 16)
    assert np.array_equal(inside.indptr, alone.routes(sources, targets).indptr)
    route = network.route(17, 3)
    assert [network.vertex_names[network.links.target[link]] for link in route] == [
        *("pod 1 NIC 0", "pod 1", "core", "pod 0", "pod 0 NIC 0", "device 3")
    ]
    assert network.latencies(network.routes(np.array([17]), np.array([3]))) == 18.0
    assert network.levels[-1].bandwidth == 1.0
    assert network.levels[-2].uplink_bandwidth == 4 * 2.0 * 0.5 / 2
    assert network.levels[-2].oversubscription == 2.0
    assert [level.name for level in network.levels][:-1] == [
        level.name for level in alone.levels
    ]
    assert network.bisection_bandwidth() == 4.0 + alone.bisection_bandwidth()
    assert network.block_sizes == (4, 16, 48)
    wider = spec.with_oversubscription(network.tiers(), 2, 1.0)
    assert wider == replace(spec, oversubscription=1.0)
    parts = count_parts(network)
    assert parts.num_cables == 3 * (32 + 4 + 2)


@pytest.mark.parametrize("pxn", [True, False])
def test_pods_of_rails_and_of_listed_links_route_as_they_do_alone(pxn, tmp_path):
    path = tmp_path / "links.toml"
    path.write_text(
        "devices = 3\n"
        + "".join(
            f'[[links]]\nsource = "{a}"\ntarget = "{b}"\nbandwidth = "3 B/s"\n'
            'latency = "1 s"\n'
            for a, b in ((0, 1), (1, 2))
        )
    )
    rail = RailSpec(
        devices_per_node=2,
        node_bandwidth=9.0,
        node_latency=1.0,
        nic_bandwidth=3.0,
        nic_latency=1.0,
        nodes_per_unit=2,
        num_units=2,
        spine_latency=1.0,
        pxn=pxn,
    )
    for pod in (rail, CustomSpec(path=path)):
        alone = build_network(pod)
        network = build_network(
            PodsSpec(
                pod=pod, num_pods=2, nic_bandwidth=1.0, nic_latency=1.0, latency=1.0
            )
        )
        sources, targets = all_pairs(alone)
        first = alone.routes(sources, targets)
        second = network.routes(
            sources + alone.num_devices, targets + alone.num_devices
        )
        assert np.array_equal(first.indptr, second.indptr)
        assert np.array_equal(
            network.links.bandwidth[second.links], alone.links.bandwidth[first.links]
        )
        assert network.rules == alone.rules


@given(spec=dragonfly_specs() | hyperx_specs() | pods_specs())
@settings(max_examples=40)
def test_the_bisection_is_that_of_some_halves(spec):
    network = build_network(spec)
    assume(network.num_devices <= 8 and len(network.vertex_names) <= 18)
    # Halves of a copy's devices need not have half of its ways out.
    assume(
        network.routing.num_copies % 2 == 0 or getattr(spec, "devices_per_nic", 2) == 1
    )
    found = network.bisection_bandwidth()
    assert found >= smallest_halving_cut(network) * (1 - 1e-9)


@given(spec=dragonfly_specs("valiant") | hyperx_specs("valiant"))
@settings(max_examples=40)
def test_valiants_routes_are_paths_that_their_levels_bound(spec):
    network = build_network(spec)
    sources, targets = all_pairs(network)
    routes = network.routes(sources, targets)
    levels = network.pair_levels(sources, targets)
    latencies = network.latencies(routes)
    for query in np.flatnonzero(sources != targets):
        path = routes.links[routes.indptr[query] : routes.indptr[query + 1]]
        ends = [sources[query], *network.links.target[path]]
        assert np.array_equal(network.links.source[path], ends[:-1])
        assert ends[-1] == targets[query]
        level = network.levels[levels[query]]
        assert network.links.bandwidth[path].min() >= level.bandwidth
        assert latencies[query] <= level.latency + 1e-9


@given(spec=dragonfly_specs() | hyperx_specs(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=30)
def test_other_hashes_take_other_ways_that_are_as_long(spec, seed):
    here, there = build_network(spec), build_network(spec.with_ecmp_seed(seed))
    sources, targets = all_pairs(here)
    first, second = (n.routes(sources, targets) for n in (here, there))
    assert np.allclose(here.latencies(first), there.latencies(second))
    assert here.levels == there.levels


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dragonfly(1, 2, 1, 4), "num_groups: groups cannot be joined"),
        (lambda: dragonfly(1, 2, 1, 1), "num_groups"),
        (lambda: dragonfly(1, 2, 1, 2, routing="adaptive"), "routing"),
        (lambda: hyperx(1, (4, 1), (1.0, 1.0)), r"dimensions\[1\]: joins nothing"),
        (lambda: hyperx(1, (4, 4), (1.0,)), "bandwidths: must have one entry"),
        (lambda: hyperx(1, (MAX_SWITCHES, 2), (1.0, 1.0)), "dimensions: wrong number"),
        (
            lambda: PodsSpec(
                pod=below(6),
                num_pods=2,
                nic_bandwidth=1.0,
                nic_latency=1.0,
                latency=1.0,
                devices_per_nic=4,
            ),
            "devices_per_nic: does not divide a pod",
        ),
    ],
)
def test_what_cannot_be_built_is_refused_by_its_setting(make, words):
    with pytest.raises(InputError, match=words):
        make()
