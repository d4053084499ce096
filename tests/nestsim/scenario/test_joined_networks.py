"""Pods, dragonflies and HyperX in scenarios: settings, refusals, published figures."""

import re
from pathlib import Path

import pytest

import nestsim
from nestsim.cli import main
from nestsim.evaluate.cluster import job_network
from nestsim.features.run.statistics import level_uses
from nestsim.scenario import load_scenario
from tests import failures
from topologies import DragonflySpec, HyperXSpec, InputError, PodsSpec

SCENARIOS = Path(__file__).parents[3] / "scenarios"

TORUS = """
kind = "torus"
dimensions = [2, 4]
bandwidth = "50 GB/s"
latency = "1 us"
[cluster.network.pods]
count = 2
nic_bandwidth = "100 Gbit/s"
nic_latency = "3 us"
latency = "5 us"
devices_per_nic = 4
oversubscription = 2.0
"""

NODES = """
devices_per_node = 2
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nic_bandwidth = "400 Gbit/s"
nic_latency = "1 us"
nodes_per_switch = 1
"""

DRAGONFLY = f"""
kind = "dragonfly"
{NODES}
switches_per_group = 2
num_groups = 4
global_links = 2
local_bandwidth = "400 Gbit/s"
local_latency = "500 ns"
global_bandwidth = "400 Gbit/s"
global_latency = "1 us"
"""

PLUS = DRAGONFLY.replace('"dragonfly"', '"dragonfly+"').replace(
    "global_links = 2", "global_links = 3\nspines_per_group = 1"
)

HYPERX = f"""
kind = "hyperx"
{NODES}
dimensions = [2, 4]
bandwidths = ["400 Gbit/s", "200 Gbit/s"]
latency = "500 ns"
"""

RING = """
kind = "node-torus"
devices_per_node = 2
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
dimensions = [2, 4]
bandwidth = "50 GB/s"
latency = "1 us"
"""


def write(folder, network, more=""):
    path = folder / "job.toml"
    path.write_text(
        f"""
name = "job"
[model]
name = "gpt3-1.3b"
[training]
global_batch_size = 64
[cluster]
accelerator = "h100-sxm"
[cluster.network]
{network}
{more}
""",
        encoding="utf-8",
    )
    return path


def test_a_table_of_pods_makes_any_network_one_of_several(tmp_path):
    spec = load_scenario(write(tmp_path, TORUS)).network_spec
    assert isinstance(spec, PodsSpec)
    assert (spec.num_devices, spec.num_pods, spec.pod.num_devices) == (16, 2, 8)
    assert spec.nic_bandwidth == 12.5e9
    tree = (SCENARIOS / "llama2_7b_64_h100.toml").read_text(encoding="utf-8")
    pods = TORUS[TORUS.index("[cluster.network.pods]") :]
    path = tmp_path / "tree.toml"
    path.write_text(
        tree.replace("num_devices = 64", "num_devices = 128").replace(
            "\n[search]\n", f"\n{pods}\n[search]\n"
        )
    )
    spec = load_scenario(path).network_spec
    assert isinstance(spec, PodsSpec)
    assert spec.pod == load_scenario(SCENARIOS / "llama2_7b_64_h100.toml").network_spec


@failures.over(
    ("network", "record", "switches"),
    [
        (DRAGONFLY, DragonflySpec, 8 + 8),
        (PLUS, DragonflySpec, 8 + 8 + 4),
        (HYPERX, HyperXSpec, 8 + 8),
        (RING, HyperXSpec, 8),
    ],
)
def test_switches_that_are_joined_are_read(network, record, switches, tmp_path):
    scenario = load_scenario(write(tmp_path, network))
    assert isinstance(scenario.network_spec, record)
    built = job_network(scenario).without_host()
    assert built.num_devices == 16
    assert len(built.vertex_names) - 16 == switches


KINDS = failures.over(
    "network",
    [TORUS, DRAGONFLY, PLUS, HYPERX, RING],
    ids=["pods", "dragonfly", "dragonfly+", "hyperx", "ring"],
)


@KINDS
def test_a_search_ends_with_a_plan_that_the_replay_confirms(network, tmp_path):
    narrow = '[search]\nmicro_batch_sizes = [4]\nrecompute = ["none"]\n'
    report = nestsim.run(load_scenario(write(tmp_path, network, narrow)))
    assert report.result.candidates[0].verdict.kind == "confirmed"


@KINDS
def test_a_plan_is_no_slower_where_links_are_twice_as_fast(network, tmp_path):
    plan = (
        "[plan]\ntensor_model_parallel_size = 2\npipeline_model_parallel_size = 2\n"
        "data_parallel_size = 4\nmicro_batch_size = 2\n"
    )
    times = []
    for factor in ("", "2"):
        faster = re.sub(r'"(\d+) (G\w+/s)"', rf'"{factor}\1 \2"', network)
        scenario = load_scenario(write(tmp_path, faster, plan))
        (candidate,) = nestsim.simulate(scenario).result.candidates
        times.append(candidate.simulated.iteration_time)
    assert times[1] <= times[0] * (1 + 1e-9)


REFUSED = {
    "pods": (TORUS, "count = 2", "count = 1", "pods.count", "2"),
    "hosts": (
        *(TORUS, "devices_per_nic = 4", "devices_per_nic = 3"),
        *("pods.devices_per_nic", "a divisor of 8 devices"),
    ),
    "groups": (
        *(DRAGONFLY, "num_groups = 4", "num_groups = 6"),
        *("num_groups", "2 to 5"),
    ),
    "spines": (
        *(DRAGONFLY, "global_links = 2", "global_links = 2\nspines_per_group = 2"),
        *("spines_per_group", 'kind = "dragonfly+"'),
    ),
    "no spines": (
        *(PLUS, "\nspines_per_group = 1", ""),
        *("spines_per_group", 'kind = "dragonfly"'),
    ),
    "routing": (
        DRAGONFLY,
        "num_groups",
        'routing = "ugal"\nnum_groups',
        "routing",
        "valiant",
    ),
    "lines": (HYPERX, "[2, 4]", "[8, 1]", "dimensions[1]", "2 switches or more"),
    "bandwidths": (HYPERX, "[2, 4]", "[8]", "bandwidths", "1 bandwidths"),
    "many": (HYPERX, "[2, 4]", "[64, 64]", "dimensions", "2 to 2048"),
    "no hash": (
        *(TORUS, 'latency = "1 us"', 'latency = "1 us"\ntrunk = "ecmp"'),
        *("trunk", "one path from each device to each other one"),
    ),
    "pods of these": (
        *(DRAGONFLY, "global_latency", "pods = {count = 2}\nglobal_latency"),
        *("pods", "unknown"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_setting_is_told_with_what_is_expected(name, tmp_path, capsys):
    network, old, new, where, expected = REFUSED[name]
    path = write(tmp_path, network.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: cluster.network.{where}: ")
    assert expected in message
    assert main(["topology", str(path), "-q"]) == 2
    assert f"cluster.network.{where}" in capsys.readouterr().err


def test_palm_exchanges_between_its_pods_what_its_paper_says():
    # Chowdhery et al., section 4: "each pair of hosts exchange approximately 1.3 GB of
    # gradients in every training step"; two pods have 1.95 times one pod's throughput
    # where the exchange is not hidden behind the backward pass, as it is here.
    scenario = load_scenario(
        SCENARIOS / "published" / "google_palm_540b_6144_tpuv4_pods.toml"
    )
    network = job_network(scenario)
    assert network.num_devices == 6144
    assert sum(" NIC " in name for name in network.vertex_names) == 1536
    (two,) = nestsim.simulate(scenario).result.candidates
    level = {use.name: use for use in level_uses(two.replay, network)}["pods"]
    # Of each adapter's bytes, four devices' links, its own and the core's have a copy.
    per_host = level.num_bytes / 1536 / 6
    assert per_host == pytest.approx(1.3e9, rel=0.15)
