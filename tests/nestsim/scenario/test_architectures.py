"""Encoder and decoder, vision transformer and hybrid in a scenario, end to end."""

from pathlib import Path
from typing import Any

import pytest

from nestsim.job import run_job
from nestsim.scenario.load import load_scenario

JOB = """
name = "a job"
[model]
{model}
[training]
global_batch_size = 32
[cluster]
accelerator = "a100-80gb"
[cluster.network]
kind = "fat-tree"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "300 GB/s"
latency = "1 us"
[[cluster.network.levels]]
name = "rack"
fan_out = 2
bandwidth = "25 GB/s"
latency = "3 us"
[search]
micro_batch_sizes = [1, 2]
{search}
"""

T5 = """family = "t5"
encoder_num_layers = 4
hidden_size = 512
num_attention_heads = 8
vocab_size = 32128
sequence_length = 512
decoder_sequence_length = 128
gated_linear_unit = true
"""

VIT = """family = "vit"
num_layers = 6
hidden_size = 512
num_attention_heads = 8
image_size = 224
patch_size = 16
num_classes = 1000
"""

HYBRID = """family = "mamba"
num_layers = 9
hybrid_override_pattern = "M-M*-M-M-"
hidden_size = 512
num_attention_heads = 8
vocab_size = 32000
sequence_length = 1024
mamba_num_groups = 4
"""

ALL = pytest.mark.parametrize("model", [T5, VIT, HYBRID], ids=["t5", "vit", "hybrid"])


def written(folder: Path, model: str, search: str = "") -> Path:
    file = folder / "job.toml"
    file.write_text(JOB.format(model=model, search=search))
    return file


def result_of(folder: Path, model: str, search: str = "") -> Any:
    return run_job(load_scenario(written(folder, model, search)))


@ALL
def test_jobs_are_planned_and_confirmed_by_their_replay(
    tmp_path: Path, model: str
) -> None:
    result = result_of(tmp_path, model)
    best = result.candidates[result.chosen]
    assert best.verdict.kind == "confirmed"
    assert result.lower_bound <= best.simulated.iteration_time * (1 + 1e-9)
    assert 0.0 < best.simulated.mfu < 0.8
    for cost, timeline in zip(best.priced.stages, best.replay.memory, strict=True):
        assert timeline.peak <= cost.peak_memory * (1 + 1e-9)


@ALL
def test_unlike_blocks_are_split_over_a_pipeline(tmp_path: Path, model: str) -> None:
    search = "pipeline_model_parallel_sizes = [2]\nkeep_best = 1\n"
    result = result_of(tmp_path, model, search)
    best = result.candidates[result.chosen]
    assert len(best.priced.plan.stages) == 2
    assert best.simulated.iteration_time >= result.lower_bound * (1 - 1e-9)
