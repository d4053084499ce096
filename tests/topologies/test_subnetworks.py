"""A job's part of a network is that network, as far as its devices see it."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests import failures
from topologies.builders import build_network, sub_network
from topologies.degrade import Degradation, SlowLinks, degrade
from topologies.joined_specs import DragonflySpec, NetworkSpec, PodsSpec
from topologies.network import Network
from topologies.specs import FatTreeSpec, LevelSpec, RailSpec, SpineLeafSpec, TorusSpec

SPINES = SpineLeafSpec(
    devices_per_node=4,
    node_bandwidth=400e9,
    node_latency=1e-6,
    nodes_per_leaf=4,
    num_leaves=4,
    nic_bandwidth=50e9,
    nic_latency=2e-6,
    num_spines=2,
    spine_latency=3e-6,
    oversubscription=2.0,
    nic="device",
)
RAILS = RailSpec(
    devices_per_node=4,
    node_bandwidth=400e9,
    node_latency=1e-6,
    nodes_per_unit=4,
    num_units=4,
    nic_bandwidth=50e9,
    nic_latency=2e-6,
    num_spines=2,
    spine_latency=3e-6,
)
FAT_TREE = FatTreeSpec(
    levels=(
        LevelSpec(name="node", fan_out=4, latency=1e-6, bandwidth=400e9),
        LevelSpec(name="leaf", fan_out=2, latency=1e-6, bandwidth=100e9),
        LevelSpec(name="pod", fan_out=2, latency=1e-6),
        LevelSpec(name="core", fan_out=4, latency=1e-6),
    )
)
TORUS = TorusSpec(
    dimensions=(4, 4, 4), wrap=(True, True, True), bandwidth=50e9, latency=1e-6
)
PODS = PodsSpec(
    pod=replace(TORUS, dimensions=(4, 4), wrap=(True, True)),
    num_pods=4,
    nic_bandwidth=1e9,
    nic_latency=1e-6,
    latency=1e-6,
    devices_per_nic=4,
)
DRAGONFLY = DragonflySpec(
    below=replace(FAT_TREE, levels=FAT_TREE.levels[:1]),
    switches_per_group=2,
    num_groups=64 // 2 // FAT_TREE.levels[0].fan_out,
    global_links=8,
    local_bandwidth=1e9,
    local_latency=1e-6,
    global_bandwidth=1e9,
    global_latency=1e-6,
)
WHOLE: dict[str, tuple[NetworkSpec, list[int]]] = {
    "two leaves": (SPINES, [*range(16, 48)]),
    "a node of each leaf": (SPINES, [*range(4, 8), *range(20, 24), *range(52, 56)]),
    "half of each node": (SPINES, [d for d in range(64) if d % 4 < 2]),
    "one device": (SPINES, [5]),
    "two units": (RAILS, [*range(32)]),
    "a node of each unit": (RAILS, [d for d in range(64) if d % 16 < 4]),
    "a pod and its like": (FAT_TREE, [*range(16, 48)]),
    "a node of each pod": (FAT_TREE, [d for d in range(64) if d % 16 < 4]),
    "a plane": (TORUS, [*range(16, 32)]),
    "a line": (TORUS, [*range(4)]),
    "a pod": (PODS, [*range(16, 32)]),
    "lines of a pod": (PODS, [*range(20, 28)]),
    "a switch": (DRAGONFLY, [*range(8, 12)]),
    "a box": (TORUS, [0, 1, 4, 5, 16, 17, 20, 21]),
}


def narrowest(network: Network, devices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return level, latency and bandwidth of the route of every pair."""
    sources, targets = (a.ravel() for a in np.meshgrid(devices, devices))
    apart = sources != targets
    sources, targets = sources[apart], targets[apart]
    routes = network.routes(sources, targets)
    starts = routes.indptr[:-1]
    levels = network.pair_levels(sources, targets)
    if not len(sources):
        return np.zeros((3, 0))
    bandwidth = np.minimum.reduceat(network.links.bandwidth[routes.links], starts)
    latency = np.add.reduceat(network.links.latency[routes.links], starts)
    return np.stack([levels, latency, bandwidth])


@failures.over("case", WHOLE.values(), ids=WHOLE)
def test_every_pair_of_whole_blocks_has_the_route_that_it_has(
    case: tuple[NetworkSpec, list[int]],
) -> None:
    spec, devices = case
    network = build_network(spec)
    part = sub_network(network, devices)
    assert part.is_exact
    assert part.devices.tolist() == devices
    assert part.network.num_devices == len(devices)
    inside = narrowest(part.network, np.arange(len(devices)))
    outside = narrowest(network, part.devices)
    if network.is_tree:
        assert np.array_equal(inside[0], outside[0])
    assert np.allclose(inside[1:], outside[1:], rtol=1e-12)


def test_the_whole_network_is_its_own_part() -> None:
    network = build_network(SPINES)
    part = sub_network(network, range(64)).network
    assert part.block_sizes == network.block_sizes
    assert part.levels == network.levels
    assert np.array_equal(part.links.bandwidth, network.links.bandwidth)


def test_what_is_no_whole_blocks_is_planned_on_a_compact_cluster() -> None:
    devices = [*range(4), *range(16, 32)]  # a node of leaf 0, and leaf 1
    part = sub_network(build_network(SPINES), devices)
    assert not part.is_exact
    assert part.devices.tolist() == devices
    assert part.network.block_sizes == (4, 20)  # 5 leaves of one node


@failures.over("spec", [SPINES, RAILS, FAT_TREE, TORUS, PODS, DRAGONFLY])
@failures.over("count", [1, 7, 11, 24, 63])
def test_any_number_of_devices_has_a_network(spec: NetworkSpec, count: int) -> None:
    part = sub_network(build_network(spec), range(64 - count, 64))
    assert part.network.num_devices == count
    assert part.network.block_sizes[-1] == count
    assert part.devices.tolist() == list(range(64 - count, 64))


def test_some_devices_of_a_node_leave_out_its_rails() -> None:
    part = sub_network(build_network(RAILS), [0, 1, 4, 5])
    assert not part.is_exact


def test_half_of_a_ring_or_more_leads_round_the_other_way() -> None:
    network = build_network(replace(TORUS, dimensions=(8,), wrap=(True,)))
    assert sub_network(network, range(4)).is_exact
    assert not sub_network(network, range(5)).is_exact
    assert sub_network(network, range(8)).is_exact


def test_a_worn_network_has_no_exact_part() -> None:
    network = build_network(SPINES)
    slow = SlowLinks(links="leaf 0 <-> spine *", factor=2.0)
    worn = degrade(network, Degradation(slow_links=(slow,)))
    part = sub_network(worn, range(16))
    assert not part.is_exact
    assert part.network.num_devices == 16
