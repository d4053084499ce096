"""Optical switches: from the scenario to the report."""

import json
from pathlib import Path

import pytest

from nestsim.cli import main
from tests import failures

FILE = Path(__file__).parents[3] / "scenarios/llama3_70b_256_h100_rail_only.toml"
SMALL = {"sharp = true": "", "= 512": "= 64", "l_size = 5": "l_size = 1"}
OPTICAL = {"level": "rail unit", "ports": 2, "reconfiguration_time": "25 ms"}


def written(folder: Path, **optical: object) -> str:
    text = FILE.read_text(encoding="utf-8")
    for old, new in SMALL.items():
        assert old in text
        text = text.replace(old, new)
    items = (OPTICAL | optical).items()
    table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in items)
    file = folder / "job.toml"
    file.write_text(f"{text}\n[cluster.optical]\n{table}\n", encoding="utf-8")
    return str(file)


def test_the_report_says_what_the_step_takes_over_circuits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path)
    assert main(["simulate", file, "-o", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Over optical switches" in printed
    assert "need 3 ports of each link" in printed
    result = json.loads((tmp_path / "out/result.json").read_text(encoding="utf-8"))
    circuits = result["circuits"]
    assert circuits["fixed_time_s"] is None
    assert circuits["iteration_time_s"] == circuits["changing_time_s"]
    # Pipelines of four stages over eight replicas, rings of eight replicas; 256 GPUs.
    assert circuits["pairs"] == [2 * 3 * 64, 256]
    slower = circuits["changing_time_s"] - circuits["plain_time_s"]
    assert 0.0 < slower < 2 * circuits["reconfiguration_time_s"]


@failures.over(
    ("optical", "words"),
    [
        ({"level": "moon"}, "cluster.optical.level: no such level"),
        ({"ports": 0}, "cluster.optical.ports"),
        ({"ports": 1}, "2 for what the passes of the step sends"),
        ({"reconfiguration_time": "2"}, "unit"),
    ],
)
def test_what_cannot_be_optical_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], optical: dict, words: str
) -> None:
    assert main(["simulate", written(tmp_path, **optical)]) == 2
    assert words in " ".join(capfd.readouterr().err.split())
