"""Networks of other programs' files are what people would have written by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
import tomli

from nestsim.cli import main
from nestsim.evaluate.cluster import cluster_network
from nestsim.scenario.load import load_scenario, scenario_of
from tests import failures
from topologies.errors import InputError
from topologies.specs import CustomSpec, FatTreeSpec

ROOT = Path(__file__).resolve().parents[3]
DESCRIBED = ROOT / "scenarios" / "described"
WRONG_INPUT = 2

JOB = """\
name = "a job"
[model]
name = "llama2-7b"
sequence_length = 4096
[training]
global_batch_size = 256
[cluster]
accelerator = "h100-sxm"
[software]
preset = "megatron-core"
"""

SLURM = """\
[cluster.network]
kind = "slurm"
file = "topology.conf"
devices_per_node = 8
node_bandwidth = "450 GB/s"
node_latency = "1 us"
nic_bandwidth = "400 Gbit/s"
nic_latency = "3 us"
switch_latency = "2 us"
oversubscription = [2.0]
node_transport = "nvswitch-h100"
nic_efficiency = 0.9
"""

BY_HAND = """\
[cluster.network]
kind = "fat-tree"
nic = "device"
[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "450 GB/s"
latency = "1 us"
transport = "nvswitch-h100"
[[cluster.network.levels]]
name = "leaf"
fan_out = 4
bandwidth = "400 Gbit/s"
latency = "3 us"
oversubscription = 2.0
efficiency = 0.9
[[cluster.network.levels]]
name = "spine"
fan_out = 3
latency = "2 us"
efficiency = 0.9
"""

CONF = """\
SwitchName=leaf1 Nodes=gpu[01-04]
SwitchName=leaf2 Nodes=gpu[05-08]
SwitchName=leaf3 Nodes=gpu[09-12]
SwitchName=spine Switches=leaf[1-3]
"""


def scenario(tmp_path, network, **files):
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    document = tomli.loads(JOB + network)
    return scenario_of(document, tmp_path / "s.toml", (JOB + network).encode())


def test_a_regular_tree_of_slurm_is_the_fat_tree_written_by_hand(tmp_path):
    read = scenario(tmp_path, SLURM, topology__conf=CONF)
    written = scenario(tmp_path, BY_HAND)
    assert isinstance(read.network_spec, FatTreeSpec)
    assert read.network_spec == written.network_spec
    assert read.software == written.software
    assert "bandwidths are the scenario's" in read.network_assumed[0]
    assert written.network_assumed == ()


def test_links_measured_by_the_user_count_as_by_hand(tmp_path):
    """Of levels that say nothing of efficiency, those of `software.links` count."""
    plain = SLURM.replace("nic_efficiency = 0.9\n", "")
    text = """\
format = "nestsim links 1"
[fabric]
num_ranks = 16
num_nodes = 2
bandwidth = 400e9
launch = 9e-6
per_rank = 1e-6
per_doubling = 1e-6
ramp = 1e-5
efficiency = 0.77
multicast_efficiency = 0.0
send_launch = 1e-5
send_efficiency = 0.8
"""
    job = JOB.replace('megatron-core"', 'megatron-core"\nlinks = "l.toml"')
    (tmp_path / "l.toml").write_text(text, encoding="utf-8")
    (tmp_path / "topology.conf").write_text(CONF, encoding="utf-8")
    read = scenario_of(tomli.loads(job + plain), tmp_path / "s.toml", b"")
    node, leaf, spine = read.network_spec.levels
    assert (leaf.efficiency, spine.efficiency) == (0.77, 0.77)
    assert node.efficiency == pytest.approx(0.836, abs=1e-3)


def routes(network):
    pairs = [(0, 1), (0, 8), (3, 30), (0, 33), (40, 20)]
    sources, targets = (np.array(side) for side in zip(*pairs, strict=True))
    found = network.routing.routes(sources, targets)
    links = network.links
    return [
        [
            (float(links.bandwidth[i]), float(links.latency[i]))
            for i in found.links[found.indptr[k] : found.indptr[k + 1]]
        ]
        for k in range(len(pairs))
    ]


def test_a_tree_listed_link_by_link_has_the_routes_of_the_fat_tree(tmp_path):
    """The same regular tree, and one with a further node: the same hops and links."""
    plain = SLURM.replace("nic_efficiency = 0.9\n", "").replace(
        'node_transport = "nvswitch-h100"\n', ""
    )
    regular = cluster_network(scenario(tmp_path, plain, topology__conf=CONF))
    more = CONF.replace("[09-12]", "[09-13]")
    read = scenario(tmp_path, plain, topology__conf=more)
    assert isinstance(read.network_spec, CustomSpec)
    assert "no regular tree" in read.network_assumed[1]
    listed = cluster_network(read)
    assert (regular.num_devices, listed.num_devices) == (96, 104)
    for one, other in zip(routes(regular), routes(listed), strict=True):
        assert len(one) == len(other)
        assert one == other


def test_the_nodes_own_nic_is_shared(tmp_path):
    shared = SLURM.replace('nic_latency = "3 us"', 'nic_latency = "3 us"\nnic = "node"')
    regular = scenario(tmp_path, shared, topology__conf=CONF)
    written = scenario(tmp_path, BY_HAND.replace('"device"', '"node"'))
    assert regular.network_spec == written.network_spec
    more = CONF.replace("[09-12]", "[09-13]")
    listed = cluster_network(scenario(tmp_path, shared, topology__conf=more))
    names = listed.vertex_names
    ends = {
        (names[a], names[b]): bandwidth
        for a, b, bandwidth in zip(
            listed.links.source,
            listed.links.target,
            listed.links.bandwidth,
            strict=True,
        )
    }
    assert ends["node gpu01", "switch leaf1"] == pytest.approx(0.9 * 50e9)
    assert ends["switch leaf1", "switch spine"] == pytest.approx(4 * 0.9 * 50e9 / 2)
    assert ends["switch leaf3", "switch spine"] == pytest.approx(5 * 0.9 * 50e9 / 2)


@failures.over(
    ("change", "message"),
    [
        (('"topology.conf"', '"other.conf"'), "cluster.network.file: no such file"),
        (("[2.0]", "[2.0, 1.0]"), "cluster.network.oversubscription: has more levels"),
        (("[2.0]", '[2.0]\nnodes = "gpu[x]"'), "topology.conf: is no list of names"),
        (("[2.0]", '[2.0]\ntopology = "a"'), "has one topology without a name"),
    ],
)
def test_mistakes_name_the_setting_and_the_file(tmp_path, change, message):
    with pytest.raises(InputError) as told:
        scenario(tmp_path, SLURM.replace(*change), topology__conf=CONF)
    assert message in str(told.value)
    assert str(told.value).startswith("cluster.network")


def test_too_large_a_tree_without_form_is_refused(tmp_path):
    conf = CONF.replace("gpu[09-12]", "gpu[09-900]")
    with pytest.raises(InputError, match="whose switches are not alike"):
        scenario(tmp_path, SLURM, topology__conf=conf)


def test_the_file_is_an_input_of_the_scenario():
    loaded = load_scenario(DESCRIBED / "slurm.toml")
    assert DESCRIBED / "topology.conf" in loaded.files()


@pytest.mark.parametrize("name", ["slurm", "nccl_topo", "infragraph"])
def test_shipped_networks_are_drawn_and_say_what_is_assumed(name, tmp_path, capsys):
    picture = tmp_path / "network.svg"
    arguments = ["topology", str(DESCRIBED / f"{name}.toml"), "-o", str(picture)]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["assumed"]
    assert report["num_devices"] == load_scenario(arguments[1]).network_spec.num_devices
    assert picture.stat().st_size > 1000


NCCL = """\
[cluster.network]
kind = "nccl-topo"
file = "dgx_h100.xml"
num_nodes = 12
node_latency = "1 us"
nic_latency = "3 us"
nodes_per_leaf = 4
spine_latency = "2 us"
oversubscription = 2.0
node_transport = "nvswitch-h100"
nic_efficiency = 0.9
"""

RAILS = """\
[cluster.network]
kind = "rail"
devices_per_node = 8
node_bandwidth = "450 GB/s"
node_latency = "1 us"
nodes_per_unit = 4
num_units = 3
nic_bandwidth = "50 GB/s"
nic_latency = "3 us"
spine_latency = "2 us"
oversubscription = 2.0
node_transport = "nvswitch-h100"
nic_efficiency = 0.9
"""


def nodes_of(tmp_path, network=NCCL, xml=None):
    text = xml or (DESCRIBED / "dgx_h100.xml").read_text(encoding="utf-8")
    return scenario(tmp_path, network, dgx_h100__xml=text)


def test_nodes_of_nccl_are_the_fat_tree_written_by_hand(tmp_path):
    read, written = nodes_of(tmp_path), scenario(tmp_path, BY_HAND)
    assert read.network_spec == written.network_spec
    assert read.software == written.software
    assert "adapters: 8, 400 GB/s together" in read.network_assumed[-1]


def test_nodes_of_nccl_on_rails_are_the_rails_written_by_hand(tmp_path):
    network = NCCL.replace("nodes_per_leaf", 'fabric = "rail"\nnodes_per_leaf')
    read, written = nodes_of(tmp_path, network), scenario(tmp_path, RAILS)
    assert read.network_spec == written.network_spec
    assert read.software == written.software


def test_adapters_that_devices_share_are_the_nodes(tmp_path):
    network = NCCL.replace(
        "nodes_per_leaf", 'nics = ["mlx5_0", "mlx5_6"]\nnodes_per_leaf'
    )
    spec = nodes_of(tmp_path, network).network_spec
    assert (spec.nic, spec.levels[1].bandwidth) == ("node", 100e9)


def test_one_node_needs_no_adapters(tmp_path):
    network = NCCL.split("num_nodes", maxsplit=1)[0] + 'node_latency = "1 us"\n'
    loaded = nodes_of(tmp_path, network)
    assert loaded.network_spec.num_devices == 8
    assert len(loaded.network_spec.levels) == 1


@failures.over(
    ("change", "message"),
    [
        (('nic_latency = "3 us"\n', ""), "nic_latency: setting is missing"),
        (("nodes_per_leaf = 4", "nodes_per_leaf = 5"), "does not divide the nodes"),
        (
            ("num_nodes", 'fabric = "rail"\nnics = ["mlx5_0"]\nnum_nodes'),
            "fabric: needs nodes that NVLink joins, with an adapter for each GPU",
        ),
        (("num_nodes", 'nics = ["mlx5_7"]\nnum_nodes'), "dgx_h100.xml: nics: does not"),
    ],
)
def test_nodes_that_do_not_go_with_the_settings_are_refused(tmp_path, change, message):
    with pytest.raises(InputError) as told:
        nodes_of(tmp_path, NCCL.replace(*change))
    assert message in str(told.value)
    assert str(told.value).startswith("cluster.network")


def test_the_picture_does_not_replace_the_file(tmp_path, capsys):
    (tmp_path / "s.toml").write_text(JOB + SLURM, encoding="utf-8")
    (tmp_path / "topology.conf").write_text(CONF, encoding="utf-8")
    named = tmp_path / "topology.conf"
    arguments = ["topology", str(tmp_path / "s.toml"), "-o", str(named), "--force"]
    assert main(arguments) == WRONG_INPUT
    assert named.read_text(encoding="utf-8") == CONF
    capsys.readouterr()
