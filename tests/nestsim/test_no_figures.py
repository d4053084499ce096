"""``--no-figures``: everything but the pictures, in every command that draws."""

import json
from pathlib import Path

import pytest

from nestsim.cli import main

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = (SCENARIOS / "gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")
SCENARIO = (
    SHIPPED[: SHIPPED.index("[search]")]
    + """
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 4
zero_stage = 1

[search]
keep_best = 1
tensor_model_parallel_sizes = [2]
pipeline_model_parallel_sizes = [2]
micro_batch_sizes = [4]

[sweep.set]
"training.global_batch_size" = [64, 128]
"""
)
WRONG_INPUT = 2
PICTURES = {".png", ".svg", ".pdf"}


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(SCENARIO, encoding="utf-8")
    return "job.toml"


def files(folder: str) -> set[str]:
    found = Path(folder).rglob("*")
    return {one.relative_to(folder).as_posix() for one in found if one.is_file()}


COMMANDS = {
    "run": (),
    "simulate": (),
    "compare": ("--planners", "fixed", "--base", "fixed"),
    "sweep": ("--workers", "1"),
    "collectives": ("-e", "4 KiB"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_all_files_but_the_pictures_are_written(command: str, scenario: str) -> None:
    arguments = [command, scenario, *COMMANDS[command], "--quiet"]
    with_figures = main([*arguments, "-o", "drawn"])
    without = main([*arguments, "-o", "plain", "--no-figures"])
    assert with_figures == without
    drawn, plain = files("drawn"), files("plain")
    assert plain == {name for name in drawn if Path(name).suffix not in PICTURES}
    assert plain < drawn


def test_earlier_figures_do_not_stay_beside_newer_results(scenario: str) -> None:
    main(["simulate", scenario, "-o", "out", "--quiet"])
    assert "figures/timeline.png" in files("out")
    main(["simulate", scenario, "-o", "out", "--quiet", "--no-figures"])
    assert not any(name.endswith(".png") for name in files("out"))
    manifest = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))
    assert {*manifest["files"], "manifest.json"} == files("out")


def test_a_network_is_shown_without_its_picture(scenario: str, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["topology", scenario, "--no-figures"]) == 0
    assert not Path("results").exists()
    assert capsys.readouterr().err == ""
    refused = ["topology", scenario, "--no-figures", "-o", "network.png"]
    assert main(refused) == WRONG_INPUT
    assert "--no-figures" in capsys.readouterr().err
    assert not Path("network.png").exists()
