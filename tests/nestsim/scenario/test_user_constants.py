"""Own constants in a scenario: what they change, who says so, and what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimators.constants import load_constants
from estimators.user_files import (
    FittedEntry,
    UserConstants,
    read_user_constants,
    user_constants_toml,
)
from nestsim.cli import main
from nestsim.evaluate.cluster import build_job
from nestsim.evaluate.job import simulate_job
from nestsim.features.sweep.axes import axis
from nestsim.features.sweep.scenario_task import ScenarioTask, scenario_digest
from nestsim.scenario import load_scenario
from tests import failures
from topologies.errors import InputError

JOB = """
name = "a job"
[model]
name = "gpt3-125m"
[training]
global_batch_size = 16
[cluster]
accelerator = "a100-80gb"
[cluster.network]
kind = "fat-tree"
[[cluster.network.levels]]
name = "node"
fan_out = 4
bandwidth = "300 GB/s"
latency = "1 us"
[software]
preset = "megatron-lm"
{own}
[plan]
micro_batch_size = 2
data_parallel_size = 4
"""

OWN = 'constants = "own/mine.toml"'

MINE = """
format = "nestsim constants 1"
date = "2026-01-31"
source = "12 rows of runs.csv"
[accelerator.a100]
matmul = { value = 0.3, deviation = 0.02, shipped = 0.731 }
[software.megatron-lm]
layer_gap = 0.002
"""


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return what writes a scenario and its constants beside it."""

    def write_files(text: str = MINE, *, own: str = OWN) -> Path:
        (tmp_path / "own").mkdir(exist_ok=True)
        (tmp_path / "own" / "mine.toml").write_text(text, encoding="utf-8")
        path = tmp_path / "job.toml"
        path.write_text(JOB.format(own=own), encoding="utf-8")
        return path

    return write_files


def time_of(path: Path) -> float:
    return simulate_job(load_scenario(path)).candidate.simulated.iteration_time


def test_they_hold_in_place_of_the_shipped_ones_and_only_these(write: Any) -> None:
    scenario = load_scenario(write())
    _, workload = build_job(scenario, None)
    shipped = load_constants()
    assert workload.constants.accelerator("a100-80gb").matmul == 0.3
    assert workload.constants.software("megatron-lm").layer_gap == 0.002
    assert workload.constants.software("fsdp") == shipped.software("fsdp")
    assert workload.constants.accelerator("h200") == shipped.accelerator("h200")
    assert shipped.accelerator("a100-80gb").matmul != 0.3


def test_they_change_the_predicted_time_and_take_its_band_away(write: Any) -> None:
    plain, own = write(own=""), None
    before = simulate_job(load_scenario(plain))
    own = simulate_job(load_scenario(write()))
    slower = (
        own.candidate.simulated.iteration_time
        / before.candidate.simulated.iteration_time
    )
    assert slower > 1.1
    assert before.band is not None
    assert own.band is None


def test_shipped_values_written_out_change_nothing(write: Any) -> None:
    plain = time_of(write(own=""))
    matmul = load_constants().accelerator("a100-80gb").matmul
    text = user_constants_toml(
        [
            FittedEntry(
                name="accelerator.a100.matmul",
                value=matmul,
                shipped=matmul,
                deviation=0.1,
            )
        ],
        date="2026-01-31",
        source='"quoted" \\ rows',
    )
    path = write(text)
    assert time_of(path) == plain
    own = load_scenario(path).constants
    assert own is not None
    assert own.source == '"quoted" \\ rows'


def test_reports_and_manifest_say_whose_constants_they_are(
    write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["-o", str(out), "--no-figures", "--quiet"]
    assert main(["simulate", str(write()), "--verbose", *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    said = "the user's own: 2 constants of mine.toml, fitted to 12 rows of runs.csv"
    assert said in printed
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["user_constants"]["values"]["accelerator.a100.matmul"] == 0.3
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert result["assumptions"]["user_constants"] == manifest["user_constants"]


def test_nothing_is_kept_that_was_made_with_other_constants(write: Any) -> None:
    path = write()
    scenario = load_scenario(path)
    axes = [axis("training.global_batch_size", [16, 32])]
    before = ScenarioTask.of(scenario).facts(axes), scenario_digest(scenario)
    assert scenario.files()[1:] == (path.parent / "own" / "mine.toml",)
    changed = load_scenario(write(MINE.replace("0.3,", "0.31,")))
    after = ScenarioTask.of(changed).facts(axes), scenario_digest(changed)
    assert before[0]["files"] != after[0]["files"]
    assert before[0]["scenario"] == after[0]["scenario"]
    assert before[1] != after[1]


@failures.over(
    ("found", "written", "where", "message"),
    [
        ("value = 0.3", "value = 73", ".a100.matmul.value: is out of range", "73"),
        ("value = 0.3", 'value = "0.3"', ".a100.matmul.value: has the wrong type", ""),
        ("value = 0.3, ", "", ".a100.matmul.value: key is missing", ""),
        ("value = 0.3", "value = 0", ".a100.matmul.value: is out of range", "from"),
        ("matmul", "matmull", "accelerator.a100.matmull: no such constant", "memory"),
        ("layer_gap", "matmul", ".megatron-lm.matmul: no such", "layer_gap"),
        ("0.002", "-1", "software.megatron-lm.layer_gap: is out of range", ""),
        ("0.002", "nan", "software.megatron-lm.layer_gap: is out of range", ""),
        ("[accelerator.", "[accelerators.", "accelerators: unknown table", "NAME"),
        (
            "[accelerator.",
            "[links.rack]\nx = 1\n[accelerator.",
            "links.rack",
            "links.f",
        ),
        ("[accelerator.a100]", "[accelerator]", "accelerator.matmul.value", ""),
        ("constants 1", "constants 9", "format: is not a file that", "constants 1"),
        (MINE, "", "format: is not a file that", "nestsim calibrate"),
        (MINE, "[", "not TOML", ""),
        (MINE[MINE.index("[") :], "", "has no constants", "[accelerator.h100]"),
    ],
)
def test_a_bad_file_is_refused_with_file_setting_and_what_is_accepted(
    found: str,
    written: str,
    where: str,
    message: str,
    write: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert found in MINE
    path = write(MINE.replace(found, written))
    assert main(["simulate", str(path)]) == 2
    told = capsys.readouterr().err
    file = path.parent / "own" / "mine.toml"
    assert told.startswith(f"{path}: software.constants: {file}: ")
    assert where in told
    assert message in told
    assert told.count("expected:") == 1


def test_a_file_that_is_not_there_is_refused(write: Any) -> None:
    path = write(own='constants = "other.toml"')
    with pytest.raises(InputError, match="no such file") as caught:
        load_scenario(path)
    assert caught.value.where == f"{path}: software.constants"
    assert "nestsim calibrate" in (caught.value.expected or "")


def test_a_number_may_stand_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    assert read_user_constants(path) == UserConstants(
        name="mine.toml",
        date="2026-01-31",
        source="12 rows of runs.csv",
        values=(
            ("accelerator.a100.matmul", 0.3),
            ("software.megatron-lm.layer_gap", 0.002),
        ),
    )
