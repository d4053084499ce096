"""Speed of routes on large networks."""

import numpy as np
import pytest

from topologies import RailSpec, SpineLeafSpec, TorusSpec, build_network

LINKS = {
    "devices_per_node": 8,
    "node_bandwidth": 450e9,
    "node_latency": 1e-6,
    "nic_bandwidth": 50e9,
    "nic_latency": 2e-6,
    "num_spines": 32,
    "spine_latency": 1e-6,
}

SPECS = {
    "rail": RailSpec(nodes_per_unit=32, num_units=64, **LINKS),
    "ecmp": SpineLeafSpec(nodes_per_leaf=4, num_leaves=512, trunk="ecmp", **LINKS),
    "torus": TorusSpec(
        dimensions=(16, 32, 32), wrap=(True,) * 3, bandwidth=50e9, latency=1e-6
    ),
}


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", SPECS)
def test_routes_of_100_000_pairs_of_16_384_devices(benchmark, kind):
    network = build_network(SPECS[kind])
    assert network.num_devices == 16_384
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, network.num_devices, (2, 100_000))
    routes = benchmark(network.routes, *pairs)
    assert len(routes.indptr) == 100_001


@pytest.mark.benchmark
@pytest.mark.parametrize("kind", SPECS)
def test_building_16_384_devices(benchmark, kind):
    network = benchmark(build_network, SPECS[kind])
    assert network.num_devices == 16_384
