"""A printed peak corrects what a job's plans are counted with."""

import json
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.features.memory.job import memory_job
from nestsim.scenario import load_scenario
from tests import failures

JOB = """
name = "small"
[model]
family = "llama"
num_layers = 4
hidden_size = 512
num_attention_heads = 8
vocab_size = 32000
sequence_length = 1024
[training]
global_batch_size = 32
[cluster]
accelerator = "a100-80gb"
num_devices = 8
[software]
preset = "megatron-core"
CONSTANTS
[plan]
micro_batch_size = 2
pipeline_model_parallel_size = 2
"""
WRONG_INPUT = 2


def written(folder: Path, constants: str = "", name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(JOB.replace("CONSTANTS", constants), encoding="utf-8")
    return path


def allocated(path: Path, stage: int) -> float:
    """Return what is allocated at the peak of a stage of a scenario's plan [byte]."""
    needs = memory_job(load_scenario(path)).stages[stage]
    return sum(needs.parts.values()) + needs.beside.workspace


def calibrate(path: Path, *options: str) -> int:
    return main(["calibrate", str(path), "--quiet", *options])


@pytest.mark.parametrize("stage", [0, 1])
def test_a_plan_is_counted_with_the_peak_that_it_printed(stage, tmp_path, capsys):
    path = written(tmp_path)
    peak = 1.2 * allocated(path, stage)
    output = tmp_path / "mine.toml"
    asked = ("--peak", f"{peak!r} B", "--stage", str(stage), "-o", str(output))
    assert calibrate(path, *asked, "--json") == 0
    assert json.loads(capsys.readouterr().out)["measured_bytes"] == peak
    corrected = written(tmp_path, 'constants = "mine.toml"', "again.toml")
    assert allocated(corrected, stage) == pytest.approx(peak, rel=1e-3)
    rooms = [memory_job(load_scenario(one)).limits.device for one in (path, corrected)]
    # Less room for what is counted, in whichever plan.
    assert rooms[0] / rooms[1] == pytest.approx(
        (peak - 1e8) / (peak / 1.2 - 1e8), rel=1e-3
    )


def test_a_correction_keeps_what_a_file_says_else(tmp_path, capsys):
    (tmp_path / "old.toml").write_text(
        'format = "nestsim constants 1"\n[accelerator.a100]\nmatmul = 0.5\n',
        encoding="utf-8",
    )
    path = written(tmp_path, 'constants = "old.toml"')
    output = tmp_path / "new.toml"
    peak = 1.1 * allocated(path, 1)
    assert calibrate(path, "--peak", f"{peak!r} B", "-o", str(output)) == 0
    assert "1.1" in capsys.readouterr().out
    again = written(tmp_path, 'constants = "new.toml"', "again.toml")
    values = dict(load_scenario(again).constants.values)
    assert values["accelerator.a100.matmul"] == 0.5
    assert values["allocator.megatron-core.tensors"] == pytest.approx(1.1, rel=0.05)


@failures.over(
    ("options", "words"),
    [
        (("--stage", "0"), "--peak beside it"),
        (("--peak", "90 GiB"), "is not a peak of this plan"),
        (("--peak", "0 GiB"), "must be more than 0"),
        (("--peak", "1 GiB", "--stage", "2"), "0 to 1"),
    ],
)
def test_what_is_no_peak_of_the_plan_is_refused(options, words, tmp_path, capsys):
    assert calibrate(written(tmp_path), *options) == WRONG_INPUT
    assert words in capsys.readouterr().err
