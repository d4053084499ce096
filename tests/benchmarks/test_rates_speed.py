"""How long it takes to price a placement, by kernels and over explicit routes."""

import numpy as np
import pytest

from estimators.collectives.cost import ALGORITHMS, collective_rates, rates_by_algorithm
from estimators.collectives.messages import slowest_edges
from estimators.collectives.phases import RING_OPERATIONS
from tests.estimators.oracles import price_by_routes, rates_by_routes
from topologies import (
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
    build_network,
)

NODE = {"devices_per_node": 8, "node_bandwidth": 450e9, "node_latency": 1e-6}
NIC = {"nic_bandwidth": 50e9, "nic_latency": 2e-6, "spine_latency": 1e-6}

SHAPES = {64: (2, 4), 1024: (8, 16), 16_384: (64, 32)}
"""Devices -> leaves, nodes per leaf."""

DEGREES = {64: (2, 4, 8), 1024: (8, 16, 8), 16_384: (16, 128, 8)}
"""Devices -> pp, dp, tp."""

TORI = {64: (4, 4, 4), 1024: (8, 8, 16), 16_384: (16, 32, 32)}


def network(kind, num_devices):
    leaves, nodes = SHAPES[num_devices]
    if kind == "fat-tree":
        node = LevelSpec(name="node", fan_out=8, bandwidth=450e9, latency=1e-6)
        leaf = LevelSpec(name="leaf", fan_out=nodes, bandwidth=50e9, latency=2e-6)
        spine = LevelSpec(name="spine", fan_out=leaves, bandwidth=400e9, latency=1e-6)
        spec = FatTreeSpec(levels=(node, leaf, spine))
    elif kind == "ecmp":
        spec = SpineLeafSpec(
            nodes_per_leaf=nodes,
            num_leaves=leaves,
            num_spines=32,
            trunk="ecmp",
            **NODE,
            **NIC,
        )
    elif kind == "rail":
        spec = RailSpec(nodes_per_unit=nodes, num_units=leaves, **NODE, **NIC)
    else:
        spec = TorusSpec(
            dimensions=TORI[num_devices],
            wrap=(True,) * 3,
            bandwidth=50e9,
            latency=1e-6,
        )
    return build_network(spec)


def by_kernels(net, devices):
    """Price tensor groups, replicas, boundaries and the tied embedding."""
    prices = []
    for groups in (devices, np.swapaxes(devices, 1, 2)):
        rates = rates_by_algorithm(net, groups)
        prices += [rates[a][o] for a in ALGORITHMS for o in RING_OPERATIONS]
    stages = devices.reshape(len(devices), 1, -1)
    for ends in ((stages[:-1], stages[1:]), (stages[1:], stages[:-1])):
        prices.append(slowest_edges(net, *ends)[:, 0])
    pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
    prices.append(np.array(collective_rates(net, "all_reduce", pairs[None], "ring")))
    return prices


def over_routes(net, devices):
    """Do the same with arrays over all routes."""
    prices = []
    for groups in (devices, np.swapaxes(devices, 1, 2)):
        prices += [
            np.array(rates_by_routes(net, o, groups, a))
            for a in ALGORITHMS
            for o in RING_OPERATIONS
        ]
    stages = devices.reshape(len(devices), -1)
    boundary = np.repeat(np.arange(len(stages) - 1), stages.shape[1])
    for senders, receivers in ((stages[:-1], stages[1:]), (stages[1:], stages[:-1])):
        cost = price_by_routes(net, senders.ravel(), receivers.ravel(), boundary)
        each = [values.reshape(len(senders), -1).max(axis=1) for values in cost]
        prices.append(np.stack(each, axis=1))
    pairs = np.stack([devices[0].ravel(), devices[-1].ravel()], axis=1)
    prices.append(np.array(rates_by_routes(net, "all_reduce", pairs[None], "ring")))
    return prices


@pytest.mark.benchmark(group="a placement")
@pytest.mark.parametrize("price", [by_kernels, over_routes])
@pytest.mark.parametrize("kind", ["fat-tree", "ecmp", "rail", "torus"])
@pytest.mark.parametrize("num_devices", sorted(DEGREES))
def test_pricing_a_placement(benchmark, num_devices, kind, price):
    net = network(kind, num_devices)
    devices = np.arange(num_devices).reshape(DEGREES[num_devices])
    found = benchmark.pedantic(
        price, args=(net, devices), rounds=15, iterations=1, warmup_rounds=1
    )
    for ours, plain in zip(found, by_kernels(net, devices), strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.benchmark(group="windows")
def test_pricing_all_windows_of_16_384_devices(benchmark):
    """What bounds on tensor groups are made of: 16,377 stages, each alone."""
    net = network("fat-tree", 16_384)
    windows = (np.arange(16_377)[:, None] + np.arange(8))[:, None, :]
    rates = benchmark(rates_by_algorithm, net, windows, together=False)
    assert rates["ring"]["all_reduce"].shape == (16_377, 2)
