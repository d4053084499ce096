"""A small model on small trees of switches, for stress tests."""

from dataclasses import replace
from pathlib import Path

from nestsim.scenario.load import Scenario, load_scenario
from nestsim.scenario.stress import StressSpec

TEXT = """
name = "small"

[model]
family = "llama"
num_layers = 4
hidden_size = 2048
num_attention_heads = 16
vocab_size = 8000
sequence_length = 1024

[training]
global_batch_size = 16

[cluster]
accelerator = "a100-80gb"

[cluster.network]
kind = "fat-tree"

[[cluster.network.levels]]
name = "node"
fan_out = 2
bandwidth = "100 GB/s"
latency = "1 us"

[[cluster.network.levels]]
name = "leaf"
fan_out = 2
bandwidth = "20 GB/s"
latency = "2 us"
oversubscription = 2.0

[[cluster.network.levels]]
name = "spine"
fan_out = 2
latency = "2 us"

[software]
preset = "ideal"

[search]
context_parallel_sizes = [1]
virtual_pipeline_model_parallel_sizes = [1]
recompute = ["none"]
micro_batch_sizes = [1, 2]

[stress]
planners = ["nest", "manual"]
"""

NEIGHBOURS = "a condition with quite a long name, which stands beside its row"

CONDITIONS = f"""
[[stress.conditions]]
name = "slow device"
degraded.slow_devices = [{{ device = 3, factor = 2.0 }}]

[[stress.conditions]]
name = "{NEIGHBOURS}"
background = [{{ links = "leaf 0 <-> spine 0", share = 0.75 }}]
"""


def small(folder: Path, more: str = "", **stress: object) -> Scenario:
    """Return a scenario of 8 devices, with more TOML and other fields of [stress]."""
    path = folder / "small.toml"
    path.write_text(TEXT + more, encoding="utf-8")
    scenario = load_scenario(path)
    fields: dict[str, object] = {"workers": 1, **stress}
    return replace(scenario, stress=with_fields(scenario.stress, fields))


def with_fields(spec: StressSpec, fields: dict[str, object]) -> StressSpec:
    """Return settings with other fields."""
    return replace(spec, **fields)  # type: ignore[arg-type]
