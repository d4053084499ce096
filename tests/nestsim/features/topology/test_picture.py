"""The picture of a network."""

from dataclasses import replace
from functools import partial

import matplotlib.image
import pytest
from hypothesis import HealthCheck, given, settings

from nestsim.document.terminal import plain_text, print_document
from nestsim.features.topology.document import topology_document
from nestsim.features.topology.picture import draw_topology
from tests.topologies.strategies import degraded, networks
from topologies import SpineLeafSpec, build_network

CLUSTER = SpineLeafSpec(
    devices_per_node=8,
    node_bandwidth=450e9,
    node_latency=1e-6,
    nodes_per_leaf=4,
    num_leaves=64,
    nic_bandwidth=50e9,
    nic_latency=2e-6,
    num_spines=4,
    oversubscription=2.0,
    spine_latency=1e-6,
)


@given(network=networks | degraded)
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_network_can_be_drawn(network, tmp_path):
    path = tmp_path / "network.png"
    draw_topology(network, path)
    picture = matplotlib.image.imread(path)
    assert picture.shape[:2] == (900, 1400)
    assert picture[..., :3].min() < 0.5


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_network_gives_the_same_bytes(tmp_path, suffix):
    network = build_network(CLUSTER)
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    draw_topology(network, first)
    draw_topology(network, second)
    assert first.read_bytes() == second.read_bytes()


def test_a_picture_says_what_the_links_carry(tmp_path):
    path = tmp_path / "network.svg"
    draw_topology(build_network(CLUSTER), path)
    text = path.read_text(encoding="utf-8")
    for words in ("2,048 devices", "450 GB/s", "oversubscription 2:1", "64 x leaf"):
        assert f"<!-- {words}" in text or words in text
    # 8 x 450 GB/s inside of a node over its 8 x 50 GB/s is no oversubscription.
    assert text.count("oversubscription") == text.count("oversubscription 2:1")


def test_ideal_trunks_and_ratios_of_switches_alone_are_told():
    for trunk in ("ideal", "ecmp"):
        network = build_network(replace(CLUSTER, trunk=trunk))
        words = plain_text(partial(print_document, topology_document(network)))
        assert ("flows never collide" in words) == (trunk == "ideal")
        assert words.count(": 1") == words.count("2 : 1") == 1
