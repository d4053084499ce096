"""``nestsim sweep --executor dask``: the same folder, errors, interruptions."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from tests import failures
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.sweep.dask_cluster import DaskCluster, kill, wait_until

pytestmark = pytest.mark.timeout(240)

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}
POINTS = 120
"""So many that a sweep of them is under way however late a slow machine looks."""

SEEDS = "simulation.seed=" + ",".join(map(str, range(1, POINTS + 1)))
SWEEP = ("sweep", "job.toml", "--no-figures", "--quiet", "--set", SEEDS)
STORE = "sweep.sqlite"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which holds a scenario."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, plan=True)
    return tmp_path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    """Return a scheduler with two workers, which the last test kills."""
    with DaskCluster(tmp_path_factory.mktemp("dask") / "cluster") as cluster:
        cluster.start_workers(2, nanny=False)
        yield cluster


def on(cluster: DaskCluster) -> tuple[str, ...]:
    return "--executor", "dask", "--scheduler", cluster.address


def exports(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.suffix != ".sqlite"
    }


def rows(folder: Path) -> list[tuple[object, ...]]:
    """Return finished points as they lie in the store; none if it is being made."""
    if not (folder / STORE).exists():
        return []
    connection = sqlite3.connect(f"file:{folder / STORE}?immutable=1", uri=True)
    try:
        return connection.execute("SELECT * FROM points").fetchall()
    except sqlite3.Error:
        return []
    finally:
        connection.close()


def started(*arguments: str) -> "subprocess.Popen[str]":
    """Start a sweep over seeds, and wait until some points are done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nestsim", *SWEEP, "-o", "out", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: process.poll() is not None or len(rows(Path("out"))) >= 3)
    assert process.poll() is None
    return process


def test_a_folder_is_the_same_and_files_travel_with_the_task(
    folder: Path, cluster: DaskCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "one.json").write_text(json.dumps(CONFIG))
    (folder / "two.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 8}))
    text = (folder / "job.toml").read_text()
    begin, end = text.index("[model]"), text.index("[training]")
    model = '[model]\nconfig = "one.json"\nsequence_length = 2048\n'
    (folder / "job.toml").write_text(f"{text[:begin]}{model}\n{text[end:]}")
    values = 'model.config="one.json","two.json","no.json","."'
    sweep = ["sweep", "job.toml", "--set", values, "--set", "simulation.seed=1,2"]
    assert main([*sweep, "--workers", "1", "-o", "one"]) == 0
    capsys.readouterr()
    assert main([*sweep, *on(cluster), "-o", "two"]) == 0
    told = capsys.readouterr().err
    assert told.count(f"Dask: scheduler {cluster.address}, dashboard http://") == 1
    assert exports(folder / "one") == exports(folder / "two")
    assert rows(folder / "one") == rows(folder / "two")
    reasons = [reason for *_, reason, _digest in rows(folder / "two")]
    assert reasons[:4] == [None] * 4
    assert "no such file" in str(reasons[4])
    assert "is a folder, not a file" in str(reasons[6])


def test_a_stress_test_goes_to_the_same_workers(
    folder: Path, cluster: DaskCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    stress = ("stress", "job.toml", "--planners", "manual", "--no-figures")
    assert main([*stress, "--workers", "1", "-o", "one"]) == 0
    capsys.readouterr()
    assert main([*stress, *on(cluster), "-o", "two"]) == 0
    assert capsys.readouterr().err.count("Dask: scheduler") == 1
    assert exports(folder / "one") == exports(folder / "two")


@pytest.mark.parametrize(
    ("command", "more"),
    [("compare", ("--planners", "manual,nest")), ("jitter", ("--runs", "16"))],
)
def test_comparisons_and_jitter_go_to_the_same_workers(
    command: str, more: tuple[str, ...], folder: Path, cluster: DaskCluster
) -> None:
    asked = (command, "job.toml", "--no-figures", "--quiet", *more)
    assert main([*asked, "--workers", "1", "-o", "one"]) == 0
    assert main([*asked, *on(cluster), "-o", "two"]) == 0
    here, there = (timeless(folder / name) for name in ("one", "two"))
    assert here == there


def timeless(folder: Path) -> object:
    """Return the record of a folder without times of searches."""

    def without(value: Any) -> Any:
        if isinstance(value, list):
            return [without(inner) for inner in value]
        if not isinstance(value, dict):
            return value
        return {key: without(value[key]) for key in value if "search_" not in key}

    (record,) = (folder / name for name in RECORDS if (folder / name).exists())
    return without(json.loads(record.read_text()))


RECORDS = ("comparison.json", "jitter.json")


def test_an_interrupted_sweep_leaves_the_cluster_to_others(
    folder: Path, cluster: DaskCluster
) -> None:
    process = started(*on(cluster))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err == (
        "Interrupted. Finished points are kept in out; the same command, without "
        "--restart, goes on from there.\n"
    )
    assert 3 <= len(rows(folder / "out")) < POINTS
    assert len(cluster.workers()) == 2
    few = (*SWEEP[:-1], "simulation.seed=1,2")
    assert main([*few, *on(cluster), "-o", "other"]) == 0


@failures.over(
    ("arguments", "sentence"),
    [
        (["--executor", "mpi"], "--executor: unknown choice"),
        (["--executor", "dask"], "--scheduler: --executor dask needs a scheduler"),
        (["--scheduler", "tcp://a:1"], "--scheduler: processes of this machine have"),
        (
            ["--executor", "dask", "--scheduler", "tcp://a:1", "--workers", "2"],
            "--workers: the workers are those of the scheduler",
        ),
        (["--executor", "dask", "--scheduler", "a"], "is no address of a scheduler"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_anything_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments, sentence
) -> None:
    assert main([*SWEEP, "-o", "out", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert not (folder / "out").exists()


def test_a_sweep_goes_on_with_a_new_scheduler(
    folder: Path, cluster: DaskCluster
) -> None:
    process = started(*on(cluster))
    kill(cluster.scheduler)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(f"{cluster.address}: the scheduler went away")
    assert "the same command goes on from there" in err
    assert len(err.splitlines()) == 2
    kept = rows(folder / "out")
    assert 3 <= len(kept) < POINTS
    with DaskCluster(folder / "new") as new:
        new.start_workers(1, nanny=False)
        assert main([*SWEEP, *on(new), "-o", "out"]) == 0
    assert set(kept) <= set(rows(folder / "out"))
    assert main([*SWEEP, "--workers", "1", "-o", "one"]) == 0
    assert exports(folder / "out") == exports(folder / "one")
    assert rows(folder / "out") == rows(folder / "one")
