"""Encoder and decoder, vision transformer and hybrid in a scenario, end to end."""

from pathlib import Path
from typing import Any

import pytest

from estimators.layers.shares import divisibility_problem
from estimators.layers.work import Degrees
from nestsim.evaluate.job import run_job
from nestsim.scenario.load import load_scenario
from topologies.errors import InputError

JOB = """
name = "a job"
[model]
{model}
[software]
preset = "ideal"
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

# 19 blocks of two streams, and one of one.
FLUX = """name = "flux.1-dev"
num_layers = 20
image_pixels = [256, 512]
"""

ALL = pytest.mark.parametrize(
    "model", [T5, VIT, HYBRID, FLUX], ids=["t5", "vit", "hybrid", "flux"]
)


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


def refused(folder: Path, model: str) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(written(folder, model))
    return str(caught.value)


def test_settings_of_one_form_are_refused_in_another(tmp_path: Path) -> None:
    assert "hybrid_override_pattern" in refused(
        tmp_path, f'{VIT}hybrid_override_pattern = "M-"\n'
    )
    assert "belongs to hybrids of Mamba-2" in refused(
        tmp_path, HYBRID.replace("mamba", "llama", 1)
    )
    message = refused(tmp_path, HYBRID.replace("M-M*-M-M-", "M-M*-M-M"))
    assert "is not one letter for each block" in message
    message = refused(tmp_path, HYBRID.replace("M-M*-M-M-", "M-M*-M-MX"))
    assert 'num_layers = 9 letters of "M", "*", "-"' in message


def test_a_decoder_s_length_needs_a_decoder(tmp_path: Path) -> None:
    model = 'name = "gpt3-125m"\ndecoder_sequence_length = 64\n'
    assert "decoder_sequence_length" in refused(tmp_path, model)
    longer = 'name = "t5-small"\ndecoder_sequence_length = 128\nnum_layers = 4\n'
    spec = load_scenario(written(tmp_path, longer)).spec
    assert (spec.sequence_length, spec.decoder_sequence_length) == (512, 128)
    assert spec.num_layers == 4


def test_images_without_whole_patches_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, VIT.replace("patch_size = 16", "patch_size = 15"))
    assert "patches do not fill an image" in message
    assert "a divisor of image_size = 224" in message


def test_a_hybrid_without_a_pattern_is_all_mamba(tmp_path: Path) -> None:
    lines = [line for line in HYBRID.splitlines(keepends=True) if "hybrid" not in line]
    spec = load_scenario(written(tmp_path, "".join(lines))).spec
    assert spec.block_pattern == ("mamba",) * 9
    assert spec.mamba_num_heads == 2 * 512 // 64
    assert divisibility_problem(spec, Degrees(tp=4)) is None


def test_films_are_those_of_diffusion_transformers(tmp_path: Path) -> None:
    for model in ('name = "llama2-7b"\nframes = 5', 'name = "wan2.1-14b"\nframes = 4'):
        assert "frames" in refused(tmp_path, model)
    spec = load_scenario(written(tmp_path, FLUX)).spec
    assert spec.sequence_length == 512 + 16 * 32
