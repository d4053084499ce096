"""``nestsim sweep``: results, resuming, exit status, one clear error a mistake."""

import csv
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nestsim.cli import main
from nestsim.evaluate.job import simulate_job
from nestsim.features.sweep import scenario_task
from nestsim.features.sweep.axes import Axis, axis
from nestsim.features.sweep.scenario_task import ScenarioTask
from nestsim.scenario import load_scenario
from tests import failures

SCENARIOS = Path(__file__).parents[4] / "scenarios"
PLAN = """
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 4
zero_stage = 1
"""
SHIPPED = (SCENARIOS / "gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")
TEXT = SHIPPED[: SHIPPED.index("[search]")] + PLAN
BANDWIDTH = "cluster.network.levels[0].bandwidth"
MICRO = "plan.micro_batch_size"
SETS = ("--set", f"{BANDWIDTH}=100 GB/s,300 GB/s", "--set", f"{MICRO}=1,2,3")
EXPORTS = ("points.csv", "points.parquet", "result.json", "sweep.png", "manifest.json")
WRONG_INPUT = 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which holds a scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(TEXT, encoding="utf-8")
    return tmp_path


def swept(*arguments: str) -> int:
    return main(["sweep", "job.toml", "--quiet", *arguments])


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert swept(*arguments) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def exports(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in EXPORTS}


def test_every_point_is_what_simulate_says_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(*SETS, "--workers", "1", "--json") == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (data["what"], data["num_points"], data["num_failed"]) == ("simulate", 6, 2)
    assert data["settings"] == {BANDWIDTH: ["100 GB/s", "300 GB/s"], MICRO: [1, 2, 3]}
    values = [tuple(one["settings"].values()) for one in data["points"]]
    assert values == [(b, m) for b in ("100 GB/s", "300 GB/s") for m in (1, 2, 3)]
    text = TEXT.replace("micro_batch_size = 4\nzero", "micro_batch_size = 2\nzero")
    assert '\nbandwidth = "300 GB/s"' in text
    Path("one.toml").write_text(text, encoding="utf-8")
    alone = simulate_job(load_scenario("one.toml")).candidate
    row = data["points"][4]["result"]
    assert row["simulated_iteration_time_s"] == alone.simulated.iteration_time
    assert row["planned_peak_memory_bytes"] == alone.planned.peak_memory
    assert row["verdict"] == alone.verdict.kind
    failed = data["points"][2]
    assert failed["result"] is None
    assert failed["failure"].startswith("plan.micro_batch_size: the global batch does")
    best = max(
        (one for one in data["points"] if one["result"]),
        key=lambda one: one["result"]["simulated_tokens_per_s"],
    )
    assert data["best"] == best["number"]


def test_workers_and_interruptions_change_no_byte_of_the_exports(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(*SETS, "--workers", "1", "-o", "one") == 0
    assert swept(*SETS, "--workers", "2", "-o", "two") == 0
    whole, calls = scenario_task.simulate_job, []

    def interrupted(scenario: Any) -> Any:
        calls.append(scenario)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(scenario)

    monkeypatch.setattr(scenario_task, "simulate_job", interrupted)
    capsys.readouterr()
    arguments = [*SETS, "--workers", "1", "-o", "three"]
    assert swept(*arguments) == 130
    assert "goes on from there" in capsys.readouterr().err
    assert [path.name for path in Path("three").iterdir()] == ["sweep.sqlite"]
    assert swept(*arguments) == 0
    assert len(calls) == 7
    assert exports(folder / "one") == exports(folder / "two")
    assert exports(folder / "one") == exports(folder / "three")
    tables = []
    for name in ("one", "two", "three"):
        connection = sqlite3.connect(folder / name / "sweep.sqlite")
        tables.append(connection.execute("SELECT * FROM points").fetchall())
        connection.close()
    assert tables[0] == tables[1] == tables[2]


def test_csv_and_parquet_hold_the_same_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(*SETS, "--workers", "1", "-o", "out", "--csv") == 0
    assert capsys.readouterr().out == Path("out/points.csv").read_text()
    with Path("out/points.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    parquet = pd.read_parquet("out/points.parquet")
    assert list(rows[0]) == list(parquet)
    assert len(rows) == len(parquet) == 6
    time = "simulated_iteration_time_s"
    numbers = [float(row[time]) for row in rows if row[time]]
    assert numbers == parquet[time].dropna().tolist()
    assert list(parquet["state"]) == ["done", "done", "failed"] * 2


def test_the_table_of_the_scenario_says_what_to_sweep(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = f'\n[sweep]\nworkers = 1\n[sweep.set]\n"{MICRO}" = [1, 2]\n'
    Path("job.toml").write_text(TEXT + table, encoding="utf-8")
    assert swept("--csv", "-o", "out") == 0
    assert swept("--csv", "-o", "other", "--set", f"{MICRO}=4") == 0
    first, second = capsys.readouterr().out.split("\nnumber,")
    assert len(first.splitlines()) == 3
    assert len(second.splitlines()) == 2
    # How it is swept says nothing of what comes out.
    both = table.replace("workers = 1", "workers = 2")
    Path("job.toml").write_text(TEXT + both, encoding="utf-8")
    assert swept("-o", "out") == 0


@pytest.mark.parametrize(
    ("what", "column"),
    [("plan", "planned_iteration_time_s"), ("run", "simulated_iteration_time_s")],
)
def test_points_are_planned_anew(folder: Path, what: str, column: str) -> None:
    narrow = TEXT.replace(PLAN, "") + (
        "\n[search]\ntensor_model_parallel_sizes = [2]\n"
        'micro_batch_sizes = [4]\nkeep_best = 1\nrecompute = ["none"]\n'
    )
    Path("job.toml").write_text(narrow, encoding="utf-8")
    sizes = "search.data_parallel_sizes=[[2],[4],[64]]"
    assert swept("--set", sizes, "--what", what, "--workers", "1", "-o", "out") == 0
    frame = pd.read_csv("out/points.csv")
    assert list(frame["state"]) == ["done", "done", "failed"]
    assert list(frame["data_parallel_size"].dropna()) == [2, 4]
    assert frame[column].notna().tolist() == [True, True, False]
    assert frame["failure"][2]


def test_a_changed_scenario_or_sweep_is_not_taken_up(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--set", f"{MICRO}=1,2", "--workers", "1", "-o", "out")
    assert swept(*few) == 0
    capsys.readouterr()
    text = refused(capsys, "--set", f"{MICRO}=1,4", "-o", "out")
    assert "out/sweep.sqlite: belongs to another sweep: other settings\n" in text
    Path("job.toml").write_text(TEXT.replace("300 GB/s", "301 GB/s"), encoding="utf-8")
    text = refused(capsys, *few)
    assert "out/sweep.sqlite: belongs to another sweep: other scenario\n" in text
    assert "hint:     --restart forgets it" in text
    assert swept(*few, "--restart") == 0


def test_remarks_in_the_scenario_are_no_change(folder: Path) -> None:
    few = ("--set", f"{MICRO}=1,2", "--workers", "1", "-o", "out")
    assert swept(*few) == 0
    Path("job.toml").write_text("# a remark\n" + TEXT, encoding="utf-8")
    assert swept(*few) == 0


@failures.over(
    ("arguments", "words"),
    [
        ((), "job.toml: --set: there is nothing to vary"),
        (
            ("--set", "cluster.network.levels[0].bandwith=1 GB/s"),
            'job.toml: with cluster.network.levels[0].bandwith = "1 GB/s": '
            "cluster.network.levels[0].bandwith: unknown setting",
        ),
        (
            ("--set", f"{BANDWIDTH}=5 apples"),
            f'with {BANDWIDTH} = "5 apples": {BANDWIDTH}: unknown unit',
        ),
        (("--set", f"{BANDWIDTH}=5"), f"{BANDWIDTH} = 5: {BANDWIDTH}: quantity has no"),
        (("--set", "model.layers[3]=5"), "model.layers[3]: there is no list"),
        (("--set", f"{MICRO}=1", "--what", "guess"), "--what: unknown choice"),
        (("--set", f"{MICRO}=1", "--json", "--csv"), "--csv: results are printed in"),
        (("--set", f"{MICRO}=1", "-o", "job.toml"), "--output: is not a folder"),
        (
            ("--set", f"{MICRO}=1", "-o", "."),
            "--output: holds an input of this command, job.toml",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments, words
) -> None:
    assert words in refused(capsys, *arguments)
    assert [path.name for path in folder.iterdir()] == ["job.toml"]


def test_without_a_plan_there_is_nothing_to_simulate(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(TEXT.replace(PLAN, ""), encoding="utf-8")
    text = refused(capsys, "--set", "simulation.seed=1,2", "--what", "simulate")
    assert "job.toml: plan: there is no plan to replay" in text


def test_a_sweep_without_any_result_has_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept("--set", f"{MICRO}=3,5", "--workers", "1", "-o", "out") == 1
    assert "2 points, 2 failed" in capsys.readouterr().out
    assert not Path("out/sweep.png").exists()


def test_one_setting_makes_a_picture_and_so_do_three(folder: Path) -> None:
    one = ("--workers", "1", "--set", f"{MICRO}=1,2,3")
    assert swept(*one, "-o", "one") == 0
    assert Path("one/sweep.png").read_bytes().startswith(b"\x89PNG")
    three = ("--set", "simulation.seed=1,2", "--set", "plan.zero_stage=0,1")
    assert swept(*one[:2], "--set", f"{MICRO}=1,2", *three, "-o", "three") == 0
    assert Path("three/sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.timeout(120)
def test_a_text_that_happens_to_name_a_file_is_not_read(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    one = ("--workers", "1", "-o", "out", "--set")
    assert swept(*one, "name=pipe,/dev/zero") == 0


def test_a_changed_file_that_a_setting_names_makes_another_sweep(folder: Path) -> None:
    task = ScenarioTask.of(load_scenario("job.toml"))
    config = {"family": "x", "config": "config.json"}

    def facts(axes: list[Axis]) -> str:
        return task.facts(axes)["files"]

    inner = [axis("model.config", ["config.json"])]
    outer = [axis("model", [config, {"name": "gpt3-125m"}])]
    absent = facts(inner), facts(outer)
    (folder / "config.json").write_text("{}")
    present = facts(inner), facts(outer)
    (folder / "config.json").write_text("{ }")
    changed = facts(inner), facts(outer)
    assert len({absent[0], present[0], changed[0]}) == 3
    assert len({absent[1], present[1], changed[1]}) == 3
    assert facts([axis("name", ["config.json"])]) == facts([axis("name", ["a"])])
