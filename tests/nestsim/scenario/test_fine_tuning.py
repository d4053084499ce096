"""Fine-tuning in scenarios: what goes together, and whole jobs."""

from pathlib import Path

import pytest

from nestsim.evaluate.cluster import build_workload
from nestsim.evaluate.job import run_job, simulate_job
from nestsim.scenario import load_scenario
from planner.frameworks.framework import FRAMEWORKS
from tests import failures
from topologies.errors import InputError

SMALL = """
name = "small"

[model]
family = "llama"
num_layers = 4
hidden_size = 1024
num_attention_heads = 16
num_query_groups = 4
ffn_hidden_size = 3072
vocab_size = 32000
sequence_length = 1024

[software]
preset = "{preset}"

[training]
global_batch_size = 32
{training}

[cluster]
accelerator = "h100-sxm"
num_devices = 8

[cluster.network]
kind = "rail"
devices_per_node = 4
node_bandwidth = "450 GB/s"
node_latency = "500 ns"
nodes_per_unit = 2
num_units = 1
nic_bandwidth = "400 Gbit/s"
nic_latency = "1 us"
spine_latency = "500 ns"
"""


def loaded(tmp_path: Path, training: str, preset: str = "ideal", more: str = ""):
    file = tmp_path / "small.toml"
    file.write_text(SMALL.format(training=training, preset=preset) + more)
    return load_scenario(file)


@failures.over(
    ("training", "preset", "where"),
    [
        ('adapter = "lora"', "maxtext", "adapter"),
        ('adapter = "qlora"', "megatron-core", "adapter"),
        ('adapter = "dora"', "fsdp", "adapter"),
        ('adapter = "lora"\noptimizer = "muon"', "megatron-core", "optimizer"),
        ('adapter = "qlora"\nprecision = "fp32"', "fsdp", "precision"),
        ('adapter = "lora"\nadapter_rank = 0', "fsdp", "adapter_rank"),
        ('adapter = "lora"\nadapter_targets = []', "fsdp", "adapter_targets"),
        (
            'adapter = "lora"\nmatmul_precision = "fp8"\nfp8_param_gather = true',
            "megatron-core",
            "fp8_param_gather",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, training, preset, where):
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, training, preset)
    assert f"training.{where}" in str(caught.value)
    assert "small.toml" in str(caught.value)


def test_a_target_that_the_model_lacks_is_refused_with_those_it_has(tmp_path):
    scenario = loaded(tmp_path, 'adapter = "lora"\nadapter_targets = ["c_attn"]')
    with pytest.raises(InputError, match="linear_fc1, linear_fc2"):
        build_workload(scenario, scenario.software, None)


def test_every_framework_with_adapters_says_where_that_stands():
    having = {name for name, known in FRAMEWORKS.items() if known.adapters}
    assert {"fsdp", "deepspeed", "ddp", "megatron-core", "nemo"} <= having
    for name, framework in FRAMEWORKS.items():
        assert bool(framework.adapters) is bool(framework.adapters_source), name
        assert framework.rules.adapters == framework.adapters
        assert set(framework.adapters) <= {"lora", "qlora"}


@failures.over(
    ("adapter", "preset", "plan"),
    [
        ("lora", "megatron-core", "tensor_model_parallel_size = 2\nzero_stage = 1"),
        (
            "lora",
            "megatron-core",
            "pipeline_model_parallel_size = 2\ndata_parallel_size = 4\nzero_stage = 1",
        ),
        ("qlora", "fsdp", "zero_stage = 3"),
        ("qlora", "deepspeed", "zero_stage = 2\nsequence_parallel = false"),
        ("lora", "ddp", "zero_stage = 0"),
    ],
)
def test_a_replay_takes_as_long_as_the_price_says(tmp_path, adapter, preset, plan):
    table = f"[plan]\nmicro_batch_size = 2\n{plan}\n"
    scenario = loaded(tmp_path, f'adapter = "{adapter}"', preset, table)
    (found,) = simulate_job(scenario).candidates
    planned, simulated = found.planned, found.simulated
    assert planned.iteration_time == pytest.approx(simulated.iteration_time, rel=0.02)
    assert planned.peak_memory == pytest.approx(simulated.peak_memory, rel=0.02)


def test_the_search_finds_and_proves_plans_of_adapters(tmp_path):
    """Bounds hold where only adapters are reduced, gathered and updated."""
    search = "[search]\nmicro_batch_sizes = [1, 2]\n"
    result = run_job(loaded(tmp_path, 'adapter = "lora"', "megatron-core", search))
    assert result.chosen is not None
    simulated = result.candidates[result.chosen].simulated.iteration_time
    assert result.lower_bound <= simulated * (1 + 1e-9)
    assert simulated <= 1.01 * result.lower_bound
