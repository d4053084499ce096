"""What is said of a wrong scenario: all of it, and what would have been accepted."""

import os
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from nestsim.scenario.base import settings
from nestsim.scenario.errors import locate
from nestsim.scenario.table import ScenarioTable
from tests import failures
from tests.nestsim.scenario.table_classes import table_classes
from tests.nestsim.scenario.test_scenario import MINIMAL

WRONG_INPUT = 2


def refused(capsys: Any, path: Path, command: str = "plan") -> str:
    assert main([command, str(path)]) == WRONG_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert all(line.isprintable() for line in err.splitlines())
    return str(err)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_text(*changes: tuple[str, str], more: str = "") -> Path:
        text = MINIMAL
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "scenario.toml"
        path.write_text(text + more, encoding="utf-8")
        return path

    return write_text


def test_all_problems_of_a_scenario_are_told_with_what_is_accepted(
    write: Any, capsys: Any
) -> None:
    path = write(
        ("global_batch_size = 16", "global_batch_size = 0\nprecison = 'bf16'"),
        ('"400 Gbit/s"', "400"),
        more='[search]\nschedules = [["1f1b"]]\nkeep_best = "many"\n',
    )
    lines = refused(capsys, path).splitlines()
    where = "training.precison: unknown setting (and 4 others in this file)"
    assert lines[0] == f"{path}: {where}"
    told = [line.removeprefix("  others:").strip() for line in lines[4:]]
    assert sorted(told) == [
        "cluster.network.bandwidth: quantity has no unit; got 400; "
        'expected a number with a unit, e.g. "450 GB/s" or "400 Gbit/s"',
        "search.keep_best: must be a whole number; got 'many'; "
        "expected a whole number from 1 to 1000, e.g. 5",
        "search.schedules[0]: unknown choice; got ['1f1b']; "
        'expected one of "1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-h2", '
        '"zb-v", "dualpipe-v"',
        "training.global_batch_size: must be at least 1; got 0; "
        "expected a whole number from 1 to 1,000,000, e.g. 512",
    ]


def test_unknown_names_are_told_together(write: Any, capsys: Any) -> None:
    path = write(('name = "gpt3-125m"', 'name = "gpt9"'), ('"a100-40gb"', '"b1000"'))
    told = refused(capsys, path)
    assert f"{path}: model.name: no such model in the library (and 1 other" in told
    assert "cluster.accelerator: no such accelerator in the catalogue" in told


def test_problems_that_show_only_together_are_told_together(
    write: Any, capsys: Any
) -> None:
    path = write(
        ('"a100-40gb"', '"a100-40gb"\nnum_devices = 7'),
        more='[search]\nplanner = "fixed"\n',
    )
    told = refused(capsys, path)
    assert f"{path}: cluster.num_devices: does not agree" in told
    assert "(and 1 other" in told
    assert "search.planner: needs a plan" in told


def test_a_hundred_thousand_characters_are_not_quoted(write: Any, capsys: Any) -> None:
    path = write(('"smallest"', f'"{"x" * 100_000}"'), ("[8]", f"[{'8,' * 50_000}]"))
    assert len(refused(capsys, path)) < 2000


@pytest.mark.timeout(60)
@failures.over(
    ("setting", "where"),
    [
        ('[model]\nconfig = "{}"', "model.config"),
        ('[cluster]\nprofile = "{}"', "cluster.profile"),
        ('kind = "custom"\npath = "{}"', "cluster.network.path"),
    ],
)
@failures.over("name", ["pipe", "loop", "/dev/zero", ".", "none"])
def test_what_is_no_file_is_refused_wherever_a_file_is_named(
    tmp_path: Path, write: Any, capsys: Any, setting: str, where: str, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    old = {
        "model.config": '[model]\nname = "gpt3-125m"',
        "cluster.profile": "[cluster]",
        "cluster.network.path": MINIMAL[MINIMAL.index('kind = "torus"') :].strip(),
    }[where]
    path = write((old, setting.format(name)))
    assert f"{path}: {where}: " in refused(capsys, path)


@pytest.mark.timeout(60)
@failures.over("command", ["plan", "run", "simulate", "sweep", "stress"])
def test_a_scenario_that_is_a_pipe_is_refused(
    tmp_path: Path, capsys: Any, command: str
) -> None:
    os.mkfifo(tmp_path / "pipe\x1b[31m")
    told = refused(capsys, tmp_path / "pipe\x1b[31m", command)
    assert r"pipe\x1b[31m: is a pipe, not a file" in told


@failures.over(
    ("change", "where"),
    [
        (("[8]", "[1000, 1000, 1000]"), "cluster.network.dimensions"),
        (("= 16", "= 1000000000"), "training.global_batch_size"),
        (('"gpt3-125m"', '"gpt3-125m"\nnum_layers = 1000000'), "model.num_layers"),
        (('"2 us"', '"2 us"\nefficiency = 1e-300'), "cluster.network.efficiency"),
    ],
)
def test_sizes_beyond_any_job_are_refused_with_what_would_fit(
    write: Any, capsys: Any, change: tuple[str, str], where: str
) -> None:
    path = write(change)
    told = refused(capsys, path)
    assert f"{path}: {where}: " in told
    assert "expected: " in told


def test_a_step_that_memory_does_not_hold_is_refused_before_it_is_replayed(
    write: Any, capsys: Any
) -> None:
    plan = "[plan]\nmicro_batch_size = 1\npipeline_model_parallel_size = 4\n"
    path = write(("= 16", "= 1000000"), more=plan + "data_parallel_size = 1\n")
    told = refused(capsys, path, "simulate")
    assert f"{path}: plan.micro_batch_size: makes too many passes" in told
    assert "1,000,000 microbatches through 4 stages" in told
    assert "here 500,000 microbatches" in told


def test_a_search_of_which_nothing_can_be_replayed_is_not_begun(
    write: Any, capsys: Any, tmp_path: Path
) -> None:
    path = write(
        ("= 16", "= 1000000"), ("[8]", "[1]"), more="[search]\nmicro_batch_sizes=[1]\n"
    )
    # One device has all passes: 2,000,000; a limit of half as many is exceeded.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.step.instructions.MAX_PASSES", 1_000_000)
        assert main(["run", str(path), "-o", str(tmp_path / "out")]) == WRONG_INPUT
    told = capsys.readouterr().err
    assert "training.global_batch_size: makes too many passes" in told
    assert not (tmp_path / "out").exists()


@failures.over(
    ("path", "words"),
    [
        (("training", "global_batch_size"), "a whole number from 1 to 1,000,000"),
        (("search", "zero_stages", 0), "a whole number from 0 to 3"),
        (("search", "sequence_parallel"), "true or false"),
        (("simulation", "tolerance"), "a number above 0 and below 1, e.g. 0.05"),
        (("simulation", "engine"), 'one of "auto", "simpy", "compiled"'),
        (("plan", "zero_stage", "each", 0), "a whole number from 0 to 3"),
        (("stress", "oversubscription", "leaf", 0), "a number from 1e-06 to"),
        (("cluster", "network", "torus", "wrap"), "a list of 1 to 3 entries, each"),
        (("cluster", "network", "torus"), "a table with kind, dimensions, bandwidth"),
        (("nothing", "of", "the", "kind"), ""),
    ],
)
def test_what_a_setting_accepts_is_said_as_it_is_checked(
    path: tuple[str | int, ...], words: str
) -> None:
    assert locate(ScenarioTable, path).expected.startswith(words)


def test_every_setting_says_what_it_accepts() -> None:
    begins = ("a ", "one of ", "true or false", '"')
    words = {
        (table, name): locate(table, (name,)).expected
        for table in table_classes()
        for name in settings(table)
    }
    assert len(words) > 400
    assert [place for place, text in words.items() if not text.startswith(begins)] == []
