"""A profile measured on this machine, named in a scenario, planned and replayed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from estimators.operators.profile import (
    Profile,
    ProfiledTimes,
    read_profile,
    write_profile,
)
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job
from nestsim.scenario import load_scenario
from topologies.errors import InputError

JOB = """
name = "a small model on this CPU"
[model]
family = "gpt"
num_layers = 2
hidden_size = 256
num_attention_heads = 4
vocab_size = 1024
sequence_length = 128
[software]
preset = "ideal"
[training]
global_batch_size = 8
precision = "fp32"
[cluster]
profile = "measured/cpu.json"
[cluster.accelerator]
name = "this-cpu"
peak_flops = { fp32 = "100 GFLOP/s", bf16 = "100 GFLOP/s", fp8 = "200 GFLOP/s" }
memory_bytes = "8 GiB"
memory_bandwidth = "10 GB/s"
num_compute_units = 1
interconnect_bandwidth = "10 GB/s"
[cluster.network]
kind = "torus"
dimensions = [4]
bandwidth = "1 GB/s"
latency = "10 us"
[search]
keep_best = 2
"""

WRONG_INPUT = 2


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Return the operators of this machine, measured with one thread."""
    file = tmp_path_factory.mktemp("profile") / "cpu.json"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        options = ["--device", "cpu", "--quick", "--budget", "0 s", "--quiet"]
        assert main(["profile", *options, "--output", str(file)]) == 0
    finally:
        torch.set_num_threads(before)
    return read_profile(file)


@pytest.fixture
def folder(tmp_path: Path, measured: Profile) -> Path:
    """Return a folder with a scenario and the profile that it names."""
    (tmp_path / "measured").mkdir()
    write_profile(measured, tmp_path / "measured" / "cpu.json")
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    return tmp_path


def refused(folder: Path, text: str = JOB) -> InputError:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        build_job(load_scenario(path), None)
    return caught.value


def test_it_is_planned_and_replayed_with_times_of_the_profile(
    folder: Path,
    measured: Profile,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The profile is looked for beside the scenario, wherever the command is run.
    monkeypatch.chdir(folder / "measured")
    job, out = str(folder / "job.toml"), folder / "out"
    assert main(["run", job, "-v", "-o", str(out), "--quiet"]) in {0, 1}
    text = capsys.readouterr().out
    assert f"measured on {measured.device}, {measured.date}" in " ".join(text.split())
    expected = {
        "measured": True,
        "device": measured.device,
        "date": measured.date,
        "driver": measured.driver,
    }
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["operator_times"] == expected
    result = json.loads((out / "result.json").read_text())
    assert result["assumptions"]["operator_times"] == expected
    assert main(["plan", job, "--json", "--quiet"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["assumptions"] == result["assumptions"]


def test_layers_take_what_their_operators_were_measured_to(
    folder: Path, measured: Profile
) -> None:
    scenario = load_scenario(folder / "job.toml")
    assert scenario.profile == measured
    _, workload = build_job(scenario, None)
    times = workload.platform.operator_times(workload.training, scenario.spec)
    assert isinstance(times, ProfiledTimes)
    slower = [
        replace(one, forward=one.forward._replace(seconds=2 * one.forward.seconds))
        for one in measured.measurements
    ]
    twice = replace(
        measured, measurements=tuple(slower), launch_time=2 * measured.launch_time
    )
    write_profile(twice, folder / "measured" / "cpu.json")
    _, slow = build_job(load_scenario(folder / "job.toml"), None)
    (degrees,) = workload._tables
    before, after = workload.table(degrees), slow.table(degrees)
    assert after.forward_time == pytest.approx(2 * before.forward_time)


def test_a_file_that_is_not_there_is_told_by_its_setting(folder: Path) -> None:
    error = refused(folder, JOB.replace("measured/cpu.json", "gpu.json"))
    assert error.where.endswith("cluster.profile")
    assert "no such file" in error.problem
    assert error.got == "gpu.json"


@pytest.mark.parametrize("content", ["", "{}", '{"format": "nestsim profile 0"}'])
def test_a_file_that_is_no_profile_is_told_with_its_path(
    folder: Path, content: str
) -> None:
    (folder / "measured" / "cpu.json").write_text(content, encoding="utf-8")
    error = refused(folder)
    assert "cluster.profile: " in error.where
    assert str(folder / "measured" / "cpu.json") in error.where


def test_a_profile_of_other_formats_is_refused_with_those_it_has(
    folder: Path, measured: Profile
) -> None:
    rows = [
        one
        for one in measured.measurements
        if one.precision == "bf16" or one.operation == "adam"
    ]
    narrow = replace(measured, measurements=tuple(rows))
    write_profile(narrow, folder / "measured" / "cpu.json")
    error = refused(folder)
    assert error.where.endswith("cluster.profile")
    assert (error.got, error.expected) == ("fp32", '"bf16"')


def test_a_profile_without_an_operation_of_the_model_is_refused(
    folder: Path, measured: Profile
) -> None:
    rows = [one for one in measured.measurements if one.operation != "gelu"]
    write_profile(
        replace(measured, measurements=tuple(rows)), folder / "measured" / "cpu.json"
    )
    error = refused(folder)
    assert error.where == "cluster.profile"
    assert "'gelu' in fp32" in error.problem


def test_narrow_products_are_not_in_profiles(folder: Path) -> None:
    narrow = JOB.replace('"fp32"\n', '"fp32"\nmatmul_precision = "fp8"\n', 1)
    error = refused(folder, narrow)
    assert error.where.endswith("training.matmul_precision")


def test_the_command_line_exits_with_the_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "measured" / "cpu.json").unlink()
    assert main(["run", str(folder / "job.toml")]) == WRONG_INPUT
    said: Any = capsys.readouterr().err
    assert "cluster.profile: no such file" in said
