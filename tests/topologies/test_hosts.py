"""Host links: where they lead, who shares them, and what routes make of them."""

import numpy as np
import pytest

from tests import failures
from topologies import FatTreeSpec, LevelSpec, build_network
from topologies.accelerators import ADAM_RATE, HOST_LINKS, Host, usual_host

TREE = FatTreeSpec(
    levels=(
        LevelSpec(name="node", fan_out=4, bandwidth=8.0, latency=1.0),
        LevelSpec(name="spine", fan_out=2, bandwidth=2.0, latency=3.0),
    )
)


def with_host(**changes):
    """Return two nodes of four, whose devices have hosts."""
    host = Host(**{"to_device": 5.0, "to_host": 7.0, "memory": 100.0, **changes})
    bare = build_network(TREE)
    return bare, bare.with_host(host)


@failures.over("shared", [1, 2, 3])
def test_each_device_reaches_its_host_and_back_over_one_link(shared):
    bare, network = with_host(devices_per_link=shared)
    devices = np.arange(8)
    hosts = network.host_of(devices)
    assert (hosts == len(bare.vertex_names) + devices // shared).all()
    for sources, targets, bandwidth in ((devices, hosts, 7.0), (hosts, devices, 5.0)):
        routes = network.routes(sources, targets)
        assert (np.diff(routes.indptr) == 1).all()
        assert (network.links.bandwidth[routes.links] == bandwidth).all()
        sharing = np.bincount(routes.links)
        assert sharing.max() == shared
    names = [network.vertex_names[host] for host in np.unique(hosts)]
    assert names == [f"host {n}" for n in range(-(-8 // shared))]


def test_routes_between_devices_are_as_without_hosts():
    bare, network = with_host()
    sources, targets = (a.ravel() for a in np.meshgrid(np.arange(8), np.arange(8)))
    for before, after in zip(
        bare.routes(sources, targets), network.routes(sources, targets), strict=True
    ):
        assert (before == after).all()
    # Mixed with host pairs, each pair has the route that it has alone.
    hosts = network.host_of(np.arange(8))
    mixed = network.routes(
        np.concatenate([np.arange(8), hosts, [0]]),
        np.concatenate([hosts, np.arange(8), [7]]),
    )
    assert tuple(mixed.links[-4:].tolist()) == bare.route(0, 7)


def test_what_hosts_add_can_be_taken_off_again():
    bare, network = with_host(devices_per_link=2)
    again = network.without_host()
    assert again.vertex_names == bare.vertex_names
    for name in ("source", "target", "bandwidth", "latency", "level"):
        left = getattr(again.links, name)
        assert (left == getattr(bare.links, name)).all()
    assert network.level_name(2) == "host"
    assert bare.without_host() is bare


def test_pcie_carries_what_its_packets_leave():
    # 16 lanes of 16 GT/s are 31.5 GB/s raw; 84 % of it are payload.
    assert HOST_LINKS["pcie4"]["to_device"] == pytest.approx(26.46e9, rel=2e-3)
    rates = [HOST_LINKS[f"pcie{n}"]["to_host"] for n in (3, 4, 5, 6)]
    assert rates == sorted(rates)
    assert rates[2] == pytest.approx(4 * rates[0])


def test_the_usual_host_is_that_of_the_accelerators_server():
    assert usual_host("a100-80gb").to_host == HOST_LINKS["pcie4"]["to_host"]
    assert usual_host("h100-sxm").memory == 250e9
    superchip = usual_host("gb200")
    assert (superchip.devices_per_link, superchip.to_device) == (2, 450e9)
    assert usual_host("mine").memory > 0
    assert usual_host("h100-sxm", "pcie3").to_device == HOST_LINKS["pcie3"]["to_device"]
    assert usual_host("v100").adam_rate * 8 == ADAM_RATE == pytest.approx(3.89e9, 1e-3)
