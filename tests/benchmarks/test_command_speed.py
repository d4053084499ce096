"""How long whole commands take in fresh processes, in CPU seconds of the process."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SMALL = SCENARIOS / "bert_large_16_v100.toml"
MAIN = SCENARIOS / "glm4_32b_64_h100.toml"
LARGE = """
name = "GPT-3 175B on 102,400 H100"

[model]
name = "gpt3-175b"

[software]
preset = "ideal"

[training]
global_batch_size = 153600

[cluster]
accelerator = "h100-sxm"
num_devices = 102400

[cluster.network]
kind = "spine-leaf"
devices_per_node = 8
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nic = "device"
nic_bandwidth = "400 Gbit/s"
nic_latency = "1 us"
nodes_per_leaf = 16
num_leaves = 800
num_spines = 8
spine_latency = "500 ns"

[plan]
tensor_model_parallel_size = 8
pipeline_model_parallel_size = 16
data_parallel_size = 800
micro_batch_size = 1
sequence_parallel = true
recompute = "selective"
zero_stage = 1
"""


def children_seconds() -> float:
    """Return the CPU time of processes that have ended: others do not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


pytestmark = [
    pytest.mark.benchmark(group="command", timer=children_seconds),
]


def nestsim(*arguments: str) -> None:
    command = [sys.executable, "-m", "nestsim", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def measure(benchmark, *arguments: str) -> None:
    """Time a command after one that fills the caches."""
    benchmark.pedantic(nestsim, args=arguments, rounds=5, warmup_rounds=1)


def test_help(benchmark):
    measure(benchmark, "--help")


@pytest.mark.parametrize("figures", [(), ("--no-figures",)], ids=["figures", "none"])
@pytest.mark.parametrize("scenario", [SMALL, MAIN], ids=["16", "64"])
def test_run_with_a_folder(benchmark, scenario, figures, tmp_path):
    output = "--output", str(tmp_path / "out")
    measure(benchmark, "run", str(scenario), *output, *figures)


@pytest.mark.parametrize("figures", [(), ("--no-figures",)], ids=["figures", "none"])
def test_simulate_102400_devices_with_a_folder(benchmark, figures, tmp_path):
    scenario = tmp_path / "large.toml"
    scenario.write_text(LARGE, encoding="utf-8")
    output = "--output", str(tmp_path / "out")
    measure(benchmark, "simulate", str(scenario), *output, *figures)


@pytest.mark.parametrize("seeds", [(), ("--ecmp-seeds", "0,1,2")], ids=["none", "3"])
def test_two_jobs_on_1024_devices(benchmark, seeds):
    scenario = SCENARIOS / "jobs" / "two_jobs_1024_h100.toml"
    measure(benchmark, "jobs", str(scenario), *seeds)
