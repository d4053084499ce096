"""``nestsim compare``: folder, forms, exit status, and going on after a kill."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from tests import failures
from tests.nestsim.features.compare.small import write

NOT_CONFIRMED = 1
WRONG_INPUT = 2
QUICK = ("--planners", "nest,manual,phaze")
FILES = {
    *("comparison.csv", "comparison.json", "comparison.png", "job.toml"),
    *("manifest.json", "report.txt", "search_times.csv"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit status and standard output."""
    status = main(["compare", *arguments])
    return status, capsys.readouterr().out


def content(folder: Path) -> dict[str, bytes]:
    """Return the files whose bytes do not differ from run to run."""
    files = (path for path in folder.iterdir() if path.name != "search_times.csv")
    return {path.name: path.read_bytes() for path in files}


def test_a_comparison_leaves_a_folder_with_its_picture(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(folder)
    status, out = compared(capsys, str(job), *QUICK, "--base", "manual")
    assert status == 0
    assert out.startswith("Fastest in the replay: ")
    assert "Vs manual" in out
    results = folder / "results" / "job_comparison"
    assert {path.name for path in results.iterdir()} == FILES
    assert (results / "job.toml").read_bytes() == job.read_bytes()
    manifest = json.loads((results / "manifest.json").read_text(encoding="utf-8"))
    for name, digest in manifest["files"].items():
        if name != "search_times.csv":
            found = hashlib.sha256((results / name).read_bytes()).hexdigest()
            assert digest == found, name


def test_the_same_comparison_leaves_the_same_bytes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(write(folder))
    compared(capsys, job, *QUICK, "-o", "a")
    compared(capsys, job, *QUICK, "-o", "b", "--workers", "2")
    assert content(folder / "a") == content(folder / "b")
    compared(capsys, job, *QUICK, "-o", "a")
    assert content(folder / "a") == content(folder / "b")


def test_json_is_printed_without_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = compared(capsys, str(write(folder)), *QUICK, "--json", "-q")
    report = json.loads(out)
    assert status == 0
    assert report["base"] == "nest"
    (group,) = report["groups"]
    times = [entry["search_time_s"] for entry in group["entries"]]
    assert all(seconds > 0 for seconds in times)
    assert not (folder / "results").exists()


def test_nothing_valid_is_status_1_with_an_x_and_a_picture(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits, fails = write(folder, "fits"), write(folder, "fails", reserve="79.9 GiB")
    status, out = compared(capsys, str(fits), str(fails), *QUICK, "-o", "out")
    assert status == NOT_CONFIRMED
    assert "nothing valid: " in out
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == FILES - {"job.toml"} | {"fits.toml", "fails.toml"}


@failures.over(
    ("arguments", "error"),
    [
        (("--planners", "nest,best"), "--planners: is not a planner"),
        (("--base", "fixed"), "--base: is not one of the planners"),
        (("--planners", "fixed"), "there is no plan for the planner fixed"),
        (("-o", "job.toml"), "--output: is not a folder"),
        (("-o", "mine"), "--output: holds files that nestsim did not write"),
    ],
)
def test_mistakes_are_status_2_and_named(
    arguments: tuple[str, ...],
    error: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(folder)
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "diary.txt").write_text("dear diary", encoding="utf-8")
    assert main(["compare", "job.toml", *arguments]) == WRONG_INPUT
    assert error in capsys.readouterr().err
    assert (folder / "mine" / "diary.txt").exists()


def test_parts_that_do_not_go_together_are_the_users_mistake(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write(folder)
    cut = '\n[[cluster.degraded.links]]\nlevel = "nowhere"\nslowdown = 2\n'
    job.write_text(job.read_text(encoding="utf-8") + cut, encoding="utf-8")
    assert main(["compare", str(job), *QUICK]) == WRONG_INPUT
    assert str(job) in capsys.readouterr().err


def test_a_killed_comparison_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(write(folder))
    arguments = ("--planners", "phaze,mcmc", "--quiet", "-o", "killed")
    command = [sys.executable, "-m", "nestsim", "compare", job, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as running:
        # The store is there before the first planner is asked.
        while not (folder / "killed" / "sweep.sqlite").exists():
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
    status, _ = compared(capsys, job, *arguments)
    assert status == 0
    compared(capsys, job, "--planners", "phaze,mcmc", "--quiet", "-o", "whole")
    assert content(folder / "killed") == content(folder / "whole")


def test_what_is_left_of_another_comparison_is_not_mixed_in(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nestsim.features.compare import job as compare_job

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    job = str(write(folder))
    with monkeypatch.context() as patched:
        patched.setattr(compare_job, "run_sweep", interrupted)
        status = main(["compare", job, *QUICK, "-o", "out"])
    assert status == 130
    assert "goes on from there" in capsys.readouterr().err
    other = ("--planners", "nest,manual", "-o", "out")
    assert main(["compare", job, *other]) == WRONG_INPUT
    assert "belongs to another sweep" in capsys.readouterr().err
    assert compared(capsys, job, *other, "--restart")[0] == 0
    assert {path.name for path in (folder / "out").iterdir()} == FILES
