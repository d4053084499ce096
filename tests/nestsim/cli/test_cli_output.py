"""One rule for ``--output`` and ``--force``; streams in any state; progress."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nestsim.cli import main
from nestsim.cli.runner import progress_bar
from nestsim.running.progress import ProgressLines
from nestsim.scenario.editing import toml_text
from tests import failures
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.jobs.jobs_files import document, job
from tests.nestsim.features.validation.validation_rows import GPT, write_csv

WRONG_INPUT = 2
SETS = ("--set", "simulation.seed=1,2", "--workers", "1")
WRITING = {
    "run": ("run", "in/job.toml"),
    "simulate": ("simulate", "in/job.toml"),
    "compare": ("compare", "in/job.toml", "--planners", "manual"),
    "stress": (
        *("stress", "in/job.toml", "--workers", "1", "--planners", "manual"),
        *("--oversubscription", "node=2,4"),
    ),
    "goodput": ("goodput", "in/job.toml", "--seeds", "2", "--duration", "9 d"),
    "jitter": ("jitter", "in/job.toml", "--runs", "3", "--workers", "1"),
    "jobs": ("jobs", "in/jobs.toml"),
    "sweep": ("sweep", "in/job.toml", *SETS),
    "validate": ("validate", "in/rows.csv"),
    "collectives": ("collectives", "in/job.toml", "-e", "1KiB"),
    "export": ("export", "in/job.toml", "--to", "plan"),
}
PAGES = ("simulate", "stress", "goodput", "jitter", "jobs")
PICTURE = ("topology", "in/job.toml")
OURS = {
    "run": "report.txt",
    "simulate": "report.txt",
    "compare": "comparison.csv",
    "stress": "stress.csv",
    "goodput": "goodput.csv",
    "jitter": "jitter.csv",
    "jobs": "jobs.csv",
    "sweep": "points.csv",
    "validate": "predictions.csv",
    "collectives": "collectives.csv",
    "export": "plan.toml",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with inputs in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", plan=True)
    write_csv(tmp_path / "in" / "rows.csv", GPT)
    jobs = toml_text(document(job("a", 4), job("b", 4)))
    (tmp_path / "in" / "jobs.toml").write_text(jobs, encoding="utf-8")
    return tmp_path


def writing(command: str) -> list[str]:
    """Return a command that writes its folder, without what takes long to draw."""
    figures = () if command == "export" else ("--no-figures",)
    return [*WRITING[command], "-q", "-o", "out", *figures]


def refused(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *output: str
) -> str:
    assert main([*arguments, "-q", *output]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("--output: ")
    return captured.err


@pytest.mark.parametrize("command", WRITING)
def test_every_command_refuses_the_same_places_before_it_works(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.tex").touch()
    (folder / "named").mkdir()
    (folder / "named" / OURS[command]).write_text("mine")
    (folder / "file").touch()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    unforced = {"mine": "did not write", "named": "did not write"}
    always = {
        "/": "is a folder of the system",
        "in": "holds an input of this command",
        ".": "holds an input of this command",
        "file": "is not a folder",
        "pipe": "is not a folder",
        "/dev/null": "is not a folder",
        "loop": "Too many levels of symbolic links",
        "file/inside": "Not a directory",
        "x" * 300: "File name too long",
    }
    for place, words in (unforced | always).items():
        message = refused(capsys, WRITING[command], "-o", place)
        assert words in message
    for place, words in always.items():
        assert words in refused(capsys, WRITING[command], "-o", place, "--force")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("file", "in", "loop", "mine", "named", "pipe"),
    ]
    assert (folder / "named" / OURS[command]).read_text() == "mine"


@pytest.mark.parametrize("command", WRITING)
def test_every_command_knows_its_own_folder_and_leaves_what_is_beside(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = writing(command)
    (folder / "out").mkdir()
    (folder / "out" / OURS[command]).write_text("mine")
    (folder / "out" / "thesis.tex").write_text("mine")
    (folder / "out" / "empty").mkdir()
    assert main(call) == WRONG_INPUT
    assert main([*call, "--force"]) in {0, 1}
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"manifest.json", "thesis.tex", "empty"} < names
    text = (folder / "out" / OURS[command]).read_bytes()
    assert text != b"mine"
    assert main(call) in {0, 1}
    assert {path.name for path in (folder / "out").iterdir()} == names
    assert (folder / "out" / OURS[command]).read_bytes() == text
    assert (folder / "out" / "thesis.tex").read_text() == "mine"


@failures.over(
    "words",
    [*(WRITING[command] for command in PAGES), (*WRITING["compare"], "--json")],
    ids=[*PAGES, "compare"],
)
def test_a_page_without_a_folder_is_refused_before_any_work(
    words: Sequence[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--html"]) == WRONG_INPUT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("--html: ")
    assert "--output FOLDER" in captured.err
    assert [path.name for path in folder.iterdir()] == ["in"]


def test_measurements_are_not_overwritten_by_their_predictions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_csv(folder / "predictions.csv", GPT).read_bytes()
    for force in ((), ("--force",)):
        refused(capsys, ("validate", "predictions.csv"), "-o", ".", *force)
    assert (folder / "predictions.csv").read_bytes() == rows


@pytest.mark.parametrize("command", ["sweep", "stress", "compare"])
def test_restart_and_force_delete_no_foreign_database(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import sqlite3

    (folder / "out").mkdir()
    name = "plans.sqlite" if command == "stress" else "sweep.sqlite"
    connection = sqlite3.connect(folder / "out" / name)
    connection.execute("PRAGMA user_version = 1")
    connection.execute("CREATE TABLE points (mine TEXT)")
    connection.close()
    content = (folder / "out" / name).read_bytes()
    call = writing(command)
    assert main(call) == WRONG_INPUT
    assert (
        f"did not write\n  got:      '{folder}/out: {name}" in capsys.readouterr().err
    )
    for force in ("--force", "--restart"):
        assert main([*call, "--force", force]) == WRONG_INPUT
        message = capsys.readouterr().err
        assert f"{name}: is not a store that nestsim can take up" in message
        assert (folder / "out" / name).read_bytes() == content


def test_a_sweep_that_was_killed_is_known_by_its_store(folder: Path) -> None:
    call = writing("sweep")
    assert main(call) == 0
    for path in (folder / "out").iterdir():
        if path.name != "sweep.sqlite":
            path.unlink()
    assert main(call) == 0
    assert (folder / "out" / "points.csv").exists()


def test_other_results_in_the_folder_of_a_sweep_keep_its_points(folder: Path) -> None:
    assert main(writing("sweep")) == 0
    assert main(writing("simulate")) in {0, 1}
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"sweep.sqlite", "result.json"} <= names
    assert "points.csv" not in names


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_replaces_one_of_ours_and_no_other(
    suffix: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*PICTURE, "-q", "-o", f"new/net{suffix}"]
    file = folder / "new" / f"net{suffix}"
    assert main(call) == 0
    drawn = file.read_bytes()
    assert main(call) == 0
    file.write_bytes(b"mine")
    capsys.readouterr()
    assert "did not write" in refused(capsys, PICTURE, "-o", f"new/net{suffix}")
    assert main([*call, "--force"]) == 0
    assert file.read_bytes() == drawn
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_places_of_a_single_file_are_checked_before_it_is_made(
    force: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "folder.png").mkdir()
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(folder / "cpu.json")
    cases = {"folder": "is a folder", "pipe": "not a regular file"}
    for name, words in cases.items():
        assert words in refused(capsys, PICTURE, "-o", f"{name}.png", *force)
    words = refused(capsys, ("profile", "--quick"), "-o", "cpu.json", *force)
    assert "not a regular file" in words
    words = refused(capsys, ("profile",), "-o", "in/rows.csv/cpu.json", *force)
    assert "is not a folder" in words


def test_a_file_that_is_no_profile_is_not_written_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "did not write" in refused(capsys, ("profile",), "-o", "in/rows.csv")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_file_system_is_told_and_earlier_results_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from nestsim.features.run import command

    call = writing("simulate")
    assert main(call) in {0, 1}
    before = (folder / "out" / "report.txt").read_bytes()

    def full(path: Path) -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as file:
            file.write("x" * 100_000)

    monkeypatch.setattr(command, "_text", lambda _: full)
    capsys.readouterr()
    message = refused(capsys, WRITING["simulate"], "-o", "out")
    assert "cannot be written: No space left on device" in message
    assert (folder / "out" / "report.txt").read_bytes() == before
    assert not list((folder / "out").glob(".*"))


# Standard streams, as real processes.

FULL, CLOSED = ">/dev/full", ">&-"
REASON = {FULL: "No space left on device", CLOSED: "Bad file descriptor"}


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of the shell in which ``nestsim`` is this one."""
    line = line.replace("nestsim", f"{sys.executable} -m nestsim", 1)
    return subprocess.run(
        ["sh", "-c", line], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@failures.over("state", REASON)
@failures.over(
    "line", ["schema", "accelerators", "models --json", "--help", "--version"]
)
def test_results_that_cannot_be_printed_are_an_error(
    line: str, state: str, tmp_path: Path
) -> None:
    done = shell(f"nestsim {line} {state}", tmp_path)
    message = f"standard output: cannot be written: {REASON[state]}\n"
    assert (done.returncode, done.stderr) == (WRONG_INPUT, message)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("state", REASON)
def test_a_folder_is_whole_although_results_cannot_be_printed(
    state: str, folder: Path
) -> None:
    done = shell(f"nestsim simulate in/job.toml -q --no-figures -o out {state}", folder)
    message = f"standard output: cannot be written: {REASON[state]}\n"
    assert (done.returncode, done.stderr) == (WRONG_INPUT, message)
    assert {"manifest.json", "report.txt"} < {p.name for p in Path("out").iterdir()}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("state", [FULL, CLOSED])
def test_nobody_need_hear_what_goes_to_standard_error(state: str, folder: Path) -> None:
    done = shell(f"nestsim topology in/job.toml 2{state}", folder)
    assert (done.returncode, done.stdout[:8]) == (0, "fat-tree")
    assert Path("results/job_topology.png").exists()
    for wrong in ("rnu", "plan no.toml", "plan"):
        done = shell(f"nestsim {wrong} 2{state}", folder)
        assert (done.returncode, done.stdout) == (WRONG_INPUT, "")


def test_no_file_becomes_standard_output(folder: Path) -> None:
    done = shell(
        "nestsim sweep in/job.toml -q -o out --workers 1 "
        "--set simulation.seed=1,2 <&- >&- 2>&-",
        folder,
    )
    assert (done.returncode, done.stdout, done.stderr) == (WRONG_INPUT, "", "")
    assert Path("out/sweep.sqlite").read_bytes().startswith(b"SQLite format 3")
    assert Path("out/points.csv").read_text().startswith("number,")


# Progress where there is no terminal.


def test_lines_of_progress_say_what_is_done_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("nestsim.running.progress.time.monotonic", lambda: now[0])
    lines = ProgressLines()
    try:
        assert lines.line(105.0) == "after 5 s: working"
        lines.show("search: configuration 1", None)
        assert lines.line(105.0) == "after 5 s: search: configuration 1"
        lines.show("search: configuration 2", 0.0)
        now[0] = 110.0
        lines.show("search: configuration 7", 0.25)
        expected = "after 10 s: search: configuration 7, 25% done, about 30 s left"
        assert lines.line(110.0) == expected
        # What comes next is timed from its own beginning.
        lines.show("report: a.png", 0.5)
        assert lines.line(120.0) == "after 20 s: report: a.png, 50% done"
        now[0] = 130.0
        lines.show("report: b.png", 0.75)
        expected = "after 30 s: report: b.png, 75% done, about 20 s left"
        assert lines.line(130.0) == expected
        lines.show("point 3 of 4, 2.0/s, 7 s left", 0.75)
        expected = "after 30 s: point 3 of 4, 2.0/s, 7 s left, 75% done"
        assert lines.line(130.0) == expected
    finally:
        lines.end()


def test_lines_come_unasked_at_growing_distances(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("nestsim.running.progress.FIRST_LINES", (0.01, 0.02, 0.04))
    told = ""
    with progress_bar(quiet=False) as progress:
        assert progress is not None
        progress("one long step", 0.5)
        deadline = time.monotonic() + 60
        while told.count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
            told += capsys.readouterr().err
    lines = told.splitlines()
    assert len(lines) >= 3
    assert all(line.endswith("s: one long step, 50% done") for line in lines)


def test_short_work_and_quiet_work_show_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(quiet=False) as progress:
        assert progress is not None
    monkeypatch.setattr("nestsim.running.progress.FIRST_LINES", (0.001, 0.001))
    with progress_bar(quiet=True) as progress:
        time.sleep(0.02)
        assert progress is None
    assert capsys.readouterr() == ("", "")


PHASES = {
    "run": ("model: trace", "search", "replay: explain", "report: trace.json"),
    "simulate": ("replay: the plan", "replay: explain", "report: figures/links.png"),
    "compare": ("check: four", "point 0 of 1", "manual", "report: comparison.png"),
    "stress": ("conditions", "plans: point", "replays: point", "report: stress.csv"),
    "sweep": ("points: check", "point 1 of 2", "report: points.parquet"),
    "validate": ("row 1 of 1", "report: validation.png"),
    "collectives": ("collectives:", "report: collectives.png"),
    "topology": ("network: build", "report: draw the network"),
}


@pytest.mark.parametrize("command", PHASES)
def test_every_long_phase_reports(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(
        ProgressLines, "show", lambda _, doing, share: told.append(doing)
    )
    arguments = (WRITING | {"topology": PICTURE})[command]
    output = "out.png" if command == "topology" else "out"
    assert main([*arguments, "-o", output]) in {0, 1}
    after = iter(told)
    for phase in PHASES[command]:
        assert any(phase in doing for doing in after), (phase, told)


def test_results_are_the_same_with_and_without_progress(folder: Path) -> None:
    contents = []
    for name, options in itertools.product("a", [(), ("-q",)]):
        assert main([*WRITING["simulate"], *options, "-o", name]) in {0, 1}
        files = sorted(path for path in Path(name).rglob("*.*"))
        contents.append([path.read_bytes() for path in files])
    assert contents[0] == contents[1]


KERNELS = "compiled kernels"


@pytest.mark.parametrize(
    ("command", "anew"),
    [
        ("memory", ()),
        # Compiles half of all kernels.
        pytest.param("simulate", (KERNELS,), marks=pytest.mark.slow),
    ],
)
def test_a_cache_that_cannot_be_written_changes_nothing_and_is_told(
    command: str, anew: tuple[str, ...], folder: Path
) -> None:
    (folder / "file").touch()
    caches = (os.environ["NESTSIM_CACHE_DIR"], str(folder / "file"))
    kept, not_kept = (
        subprocess.run(
            [sys.executable, "-m", "nestsim", command, "in/job.toml", "--json"],
            env=os.environ | {"NESTSIM_CACHE_DIR": cache},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        for cache in caches
    )
    assert not_kept.stdout == kept.stdout
    assert ("compiling kernels, once: " in not_kept.stderr) == (KERNELS in anew)
    for what in anew:
        assert f"{what} cannot be kept for the next command: " in not_kept.stderr
    assert "cannot be kept" not in kept.stderr
