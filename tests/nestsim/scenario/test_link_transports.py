"""Transports and switches as scenarios name them, and what links make of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from estimators.collectives.transports import transports
from estimators.platform import Platform
from nestsim.cli import main
from nestsim.evaluate.cluster import cluster_network, cluster_software, job_network
from nestsim.evaluate.job import simulate_job
from nestsim.scenario import load_scenario
from topologies.errors import InputError

SCENARIOS = Path(__file__).parents[3] / "scenarios"
RAIL = "mixtral_8x7b_128_h100"


def changed(folder, name, *lines, below="[cluster.network]\n"):
    text = (SCENARIOS / f"{name}.toml").read_text(encoding="utf-8")
    assert below in text
    path = folder / "job.toml"
    written = "".join(f"{line}\n" for line in lines)
    path.write_text(text.replace(below, below + written, 1), encoding="utf-8")
    return load_scenario(path)


def test_a_transport_gives_efficiency_and_time_of_a_step(tmp_path):
    plain = cluster_network(load_scenario(SCENARIOS / f"{RAIL}.toml")).links
    named = cluster_network(changed(tmp_path, RAIL, 'nic_transport = "omni-path"'))
    known = transports()["omni-path"]
    nics = plain.level == 1
    part = named.links.bandwidth / plain.bandwidth
    assert part[nics] == pytest.approx(known.efficiency)
    assert (part[~nics] == 1.0).all()
    assert (named.links.latency[nics] >= known.per_hop / 2).all()


def test_a_library_goes_by_the_names_that_links_have(tmp_path):
    lines = 'node_transport = "nvswitch-a100"', 'nic_transport = "gpudirect-tcpx"'
    scenario = changed(tmp_path, RAIL, *lines)
    assert scenario.software.node_transports == ((8, "nvswitch-a100"),)
    network = job_network(scenario)
    nics = network.links.level == 1
    step = transports()["gpudirect-tcpx"].step
    assert network.links.latency[nics] == pytest.approx(step / 2)


def test_what_is_written_wins_over_the_transport(tmp_path):
    lines = 'nic_transport = "efa"', "nic_efficiency = 0.5"
    network = cluster_network(changed(tmp_path, RAIL, *lines))
    plain = cluster_network(load_scenario(SCENARIOS / f"{RAIL}.toml"))
    nics = plain.links.level == 1
    part = network.links.bandwidth / plain.links.bandwidth
    assert part[nics] == pytest.approx(0.5)


PCIE = """
[cluster.network]
kind = "fat-tree"
nic = "device"
[[cluster.network.levels]]
name = "pair"
fan_out = 2
bandwidth = "300 GB/s"
latency = "500 ns"
transport = "nvlink-pair"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "31.5 GB/s"
latency = "500 ns"
transport = "pcie-peer"
[[cluster.network.levels]]
name = "fabric"
fan_out = 2
bandwidth = "25 GB/s"
latency = "1 us"
"""

NVLINK = """
[cluster.network]
kind = "fat-tree"
nic = "device"
sharp = false
[[cluster.network.levels]]
name = "node"
fan_out = 8
bandwidth = "300 GB/s"
latency = "500 ns"
[[cluster.network.levels]]
name = "fabric"
fan_out = 8
bandwidth = "5 GB/s"
latency = "1 us"
"""


def job(folder, network, preset):
    text = f"""
name = "job"
[model]
name = "gpt3-1.3b"
[training]
global_batch_size = 512
gradient_precision = "fp32"
reduce_precision = "fp32"
[cluster]
accelerator = "a100-80gb"
{network}
[software]
preset = "{preset}"
overlap_grad_reduce = false
overlap_param_gather = false
[plan]
micro_batch_size = 1
recompute = "full"
zero_stage = 0
"""
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path)


def test_levels_with_transports_of_nodes_are_a_nodes_own(tmp_path):
    scenario = job(tmp_path, PCIE, "megatron-core")
    network = job_network(scenario)
    assert (network.rules.node_levels, network.rules.node_size) == (2, 8)
    software = cluster_software(scenario, network)
    assert software.many_nodes
    assert software.node_transports == ((2, "nvlink-pair"), (8, "pcie-peer"))
    platform = Platform(accelerator=scenario.accelerator, software=software)
    found = [
        platform.transport(inside_node=True, num_ranks=ranks).name
        for ranks in (1, 2, 4, 8, 16)
    ]
    assert found == ["nvlink-pair"] * 2 + ["pcie-peer"] * 3
    assert platform.transport(inside_node=False).name == "default-fabric"
    step = transports()["default-fabric"].per_hop / 2
    latency = [network.links.latency[network.links.level == k].max() for k in range(3)]
    assert latency == pytest.approx([0.5e-6, 0.5e-6, step])


@pytest.mark.parametrize("preset", ["ideal", "megatron-core"])
def test_switches_that_add_up_are_priced_and_replayed_alike(tmp_path, preset):
    """Gradients of 64 replicas: 2 x 63/64 of an adapter's share, or all of it once."""
    sharp = NVLINK.replace("false", "true")
    found = [
        simulate_job(job(tmp_path, network, preset)).candidate
        for network in (NVLINK, sharp)
    ]
    for one in found:
        planned, replayed = one.planned.iteration_time, one.simulated.iteration_time
        assert replayed == pytest.approx(planned, rel=1e-6)
    rings, once = (one.simulated.iteration_time for one in found)
    parameters = float(found[0].priced.stages[0].memory["gradients"]) / 4
    wire = 4 * parameters / 8 / 5e9
    assert rings - once == pytest.approx((2 * 7 / 8 - 1) * wire, rel=0.02)


def test_an_unknown_transport_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(InputError) as caught:
        changed(tmp_path, RAIL, 'nic_transport = "nvlink-pair"')
    assert "gpudirect-tcpxo" in str(caught.value.expected)
    assert "nvswitch" not in str(caught.value.expected)


def test_jobs_with_a_library_run_on_slower_steps_than_wires_alone(tmp_path):
    scenario = load_scenario(SCENARIOS / "llama2_7b_64_h100.toml")
    assert scenario.software.library
    wires, used = cluster_network(scenario), job_network(scenario)
    assert used.rules.is_library
    assert not wires.rules.is_library
    links = used.without_host().links
    assert (links.latency >= wires.links.latency).all()
    assert np.array_equal(links.bandwidth, wires.links.bandwidth)


@pytest.mark.parametrize("said", ["true", "false"])
def test_the_topology_says_whether_its_switches_add_up(tmp_path, capsys, said):
    job(tmp_path, NVLINK.replace("false", said), "ideal")
    file = str(tmp_path / "job.toml")
    assert main(["topology", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sharp"] == (said == "true")
    assert main(["topology", file, "--no-figures"]) == 0
    assert ("SHARP" in capsys.readouterr().out) == (said == "true")
