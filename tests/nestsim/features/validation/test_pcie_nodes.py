"""Nodes whose devices share PCIe switches: what rings inside and across them reach."""

import numpy as np
import pytest

from estimators.collectives.cost import collective_rates
from estimators.collectives.transports import transports
from nestsim.scenario.hardware.network import FatTreeTable
from nestsim.scenario.hardware.systems import node_levels
from topologies.builders import build_network

USUAL = transports()["pcie-switch"]
PORT = 31.5e9


def node(num_devices):
    inside = {
        "name": "node",
        "fan_out": num_devices,
        "bandwidth": f"{PORT} B/s",
        "latency": "0.5 us",
        "efficiency": USUAL.efficiency,
    }
    return node_levels(num_devices, inside, USUAL)


def reached(network, groups):
    """Return the bus bandwidth of all-gathers at the same time [GB/s]."""
    groups = np.array([groups])
    (rate,) = collective_rates(network, "all_gather", groups, "ring")
    size = groups.shape[2]
    return (size - 1) / size / rate.inverse_bandwidth / 1e9


@pytest.mark.parametrize(
    ("groups", "measured"),
    [
        # MooreThreads, SimuMax, a100_pcie.json: all-gathers on 30 GB/s times factors,
        # and those of data-parallel groups that cross the node at the same time.
        ([[0, 1], [2, 3], [4, 5], [6, 7]], 20.6),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 20.7),
        ([list(range(8))], 13.5),
        ([[0, 2, 4, 6], [1, 3, 5, 7]], 7.65),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], 4.0),
    ],
)
def test_rings_reach_what_was_measured(groups, measured):
    table = FatTreeTable.model_validate({"kind": "fat-tree", "levels": node(8)})
    network = build_network(table.build())
    assert network.rules is not None
    assert network.rules.node_size == 8
    assert reached(network, groups) == pytest.approx(measured, rel=0.1)


def test_devices_of_one_switch_have_one_level():
    assert len(node(4)) == 1
    assert len(node(8)) == 2
    # Six devices do not fill two switches.
    assert len(node(6)) == 1
