"""A small job on two nodes whose uplinks are slow: every planner is done in moments."""

from pathlib import Path
from typing import Any

from nestsim.scenario import Scenario, load_scenario

TEXT = """
name = "four blocks on {devices} A100"

[model]
family = "llama"
num_layers = 4
hidden_size = 4096
num_attention_heads = 32
vocab_size = 32000
sequence_length = 2048

[software]
preset = "ideal"

[training]
global_batch_size = 16

[cluster]
accelerator = "a100-80gb"
memory_reserve = "{reserve}"

[cluster.network]
kind = "fat-tree"

[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "200 GB/s"
latency = "1 us"

[[cluster.network.levels]]
name = "spine"
fan_out = {nodes}
bandwidth = "10 GB/s"
latency = "2 us"

[search]
micro_batch_sizes = [1, 2]
context_parallel_sizes = [1]
virtual_pipeline_model_parallel_sizes = [1]
recompute = ["none", "full"]
zero_stages = [0, 1]
"""

PLAN = """
[plan]
tensor_model_parallel_size = 4
pipeline_model_parallel_size = 2
micro_batch_size = 1
"""


def write(
    folder: Path, name: str = "job", *, plan: bool = False, **values: Any
) -> Path:
    """Write a scenario file and return it."""
    values = {"nodes": 2, "reserve": "1 GiB", **values}
    text = TEXT.format(devices=4 * values["nodes"], **values)
    path = folder / f"{name}.toml"
    path.write_text(text + PLAN * plan, encoding="utf-8")
    return path


def load(folder: Path, name: str = "job", **values: Any) -> Scenario:
    """Write a scenario and load it."""
    return load_scenario(write(folder, name, **values))
