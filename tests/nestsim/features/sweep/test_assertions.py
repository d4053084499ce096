"""``[assert]``: what holds, what does not, and the exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from tests import failures

SCENARIOS = Path(__file__).parents[4] / "scenarios"
SHIPPED = (SCENARIOS / "gpt3_1.3b_8_a100.toml").read_text(encoding="utf-8")
EIGHT = SHIPPED[: SHIPPED.index("[search]")]
PLAN = """
[plan]
tensor_model_parallel_size = 2
pipeline_model_parallel_size = 2
micro_batch_size = 4
zero_stage = 1
"""
SMALL = """
[search]
tensor_model_parallel_sizes = [2]
pipeline_model_parallel_sizes = [2]
micro_batch_sizes = [4]
keep_best = 1
"""
NOT_CONFIRMED, WRONG_INPUT, FAILED = 1, 2, 1

Answer = tuple[int, Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(
    capsys: pytest.CaptureFixture[str], asserted: str, command: str = "simulate"
) -> Answer:
    tables = PLAN if command == "simulate" else SMALL
    text = f"{EIGHT}{tables}\n[assert]\n{asserted}\n"
    Path("job.toml").write_text(text, encoding="utf-8")
    status = main([command, "job.toml", "--json", "--quiet"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return status, json.loads(captured.out)


HOLD = [
    'verdict = "confirmed"',
    'iteration_time = "< 1 min"',
    'throughput = ">= 1 tokens/s"',
    'throughput = "> 1.5e3 token/s"',
    'mfu = ">= 1 %"',
    'mfu = "<= 0.99"',
    'peak_memory = "<= 80 GB"',
    'gap = "<= 5 %"',
    'gap = ">= -0.5"',
    "min_mfu = 0.01",
    "max_memory_fraction = 1.0",
    "max_plan_gap = 0.05",
    "tensor_model_parallel_size = 2",
    "pipeline_model_parallel_size = 2",
    "data_parallel_size = 2",
    "context_parallel_size = 1",
    "expert_model_parallel_size = 1",
    "virtual_pipeline_model_parallel_size = 1",
    "micro_batch_size = 4",
    'schedule = "1f1b"',
]
FAIL = [
    'verdict = "slower"',
    'iteration_time = "< 1 ms"',
    'throughput = ">= 1e9 tokens/s"',
    'mfu = ">= 99 %"',
    'peak_memory = "< 1 KiB"',
    'gap = "<= -0.5"',
    "min_mfu = 0.99",
    "max_memory_fraction = 0.01",
    "max_plan_gap = -0.5",
    "tensor_model_parallel_size = 4",
    'schedule = "gpipe"',
]


@failures.over("asserted", HOLD)
def test_what_holds_changes_no_exit_status(asserted, capsys) -> None:
    status, data = answer(capsys, asserted)
    (one,) = data["assertions"]
    assert (status, one["holds"]) == (0, True)


@failures.over("asserted", FAIL)
def test_what_does_not_hold_has_a_status_of_its_own(asserted, capsys) -> None:
    status, data = answer(capsys, asserted)
    (one,) = data["assertions"]
    assert (status, one["holds"]) == (FAILED, False)


@failures.over(
    ("asserted", "expected"),
    [
        ('mfu = ">= 1 %"', 0.01),
        ('mfu = ">=2.5e-1"', 0.25),
        ('gap = "< -12.5%"', -0.125),
        ('peak_memory = "<= 2 GiB"', 2**31),
        ('iteration_time = "> 20 ms"', 0.02),
        ('throughput = ">= 1.2e6 tokens / s"', 1.2e6),
    ],
)
def test_bounds_are_in_base_units(asserted, expected, capsys) -> None:
    _, data = answer(capsys, asserted)
    assert data["assertions"][0]["expected"] == expected


def test_numbers_are_those_of_the_replay(capsys) -> None:
    _, data = answer(capsys, 'iteration_time = "< 1 min"\nmfu = "< 1"\ngap = "< 1"')
    found = {one["name"]: one["found"] for one in data["assertions"]}
    simulated, planned = data["simulated"], data["planned"]
    assert found["iteration_time"] == simulated["iteration_time_s"]
    assert found["mfu"] == simulated["mfu"]
    gap = simulated["iteration_time_s"] / planned["iteration_time_s"] - 1
    assert found["gap"] == pytest.approx(gap, rel=1e-12)


@pytest.mark.parametrize("command", ["run", "plan"])
def test_run_and_plan_check_too(command, capsys) -> None:
    sizes = "tensor_model_parallel_size = 2\nmicro_batch_size = 4"
    status, data = answer(capsys, sizes, command)
    assert (status, [one["holds"] for one in data["assertions"]]) == (0, [True, True])
    status, data = answer(capsys, "tensor_model_parallel_size = 4", command)
    assert status == FAILED


def test_a_plan_leaves_open_what_only_a_replay_can_tell(capsys) -> None:
    status, data = answer(capsys, 'verdict = "slower"\ngap = "< 0"', "plan")
    assert status == 0
    assert [one["holds"] for one in data["assertions"]] == [None, None]


def small_memory(capsys: pytest.CaptureFixture[str], asserted: str, name: str) -> int:
    """Ask for the verdict on a plan that fits nowhere."""
    text = EIGHT.replace("4 GiB", "79.9 GiB")
    assert text != EIGHT
    tables = PLAN if name == "simulate" else SMALL
    Path("job.toml").write_text(f"{text}{tables}\n[assert]\n{asserted}\n")
    status = main([name, "job.toml", "--quiet"])
    capsys.readouterr()
    return status


@pytest.mark.parametrize("command", ["simulate", "run"])
def test_a_verdict_that_was_expected_is_a_success(command, capsys) -> None:
    assert small_memory(capsys, 'verdict = "infeasible"', command) == 0
    assert small_memory(capsys, 'verdict = "confirmed"', command) == FAILED
    assert small_memory(capsys, "", command) == NOT_CONFIRMED


def test_nothing_that_fits_fails_every_other_assertion(capsys) -> None:
    assert small_memory(capsys, "tensor_model_parallel_size = 2", "run") == FAILED
    assert small_memory(capsys, 'peak_memory = "> 1 B"', "plan") == FAILED


def test_the_text_names_found_and_expected(capsys) -> None:
    asserted = 'throughput = ">=  1e9   tokens/s"\nmicro_batch_size = 4'
    Path("job.toml").write_text(f"{EIGHT}{PLAN}\n[assert]\n{asserted}\n")
    assert main(["simulate", "job.toml"]) == FAILED
    _, _, section = capsys.readouterr().out.partition("\nAssertions\n")
    failed, held = section.splitlines()[2:4]
    assert failed.split()[:4] == ["throughput", ">=", "1e9", "tokens/s"]
    assert failed.split()[-2:] == ["tokens/s", "FAILED"]
    assert held.split() == ["micro_batch_size", "4", "4", "holds"]


@failures.over(
    ("asserted", "words"),
    [
        ('throughput = "1e6 tokens/s"', "assert.throughput: is not a comparison"),
        ('throughput = ">= 1e6"', "assert.throughput: not a number of tokens/s"),
        ('peak_memory = "<= 70"', "assert.peak_memory: quantity has no unit"),
        ('peak_memory = "<= 70 s"', "assert.peak_memory: unit is not one of size"),
        ('mfu = ">= half"', "assert.mfu: not a number"),
        ("mfu = 0.4", "assert.mfu: is not a comparison"),
        ('mfv = ">= 0.4"', "assert.mfv: unknown setting"),
        ('verdict = "fine"', "assert.verdict: unknown choice"),
        ("min_mfu = 40", "assert.min_mfu: must be at most 1"),
    ],
)
def test_mistakes_are_told(asserted, words, capsys) -> None:
    Path("job.toml").write_text(f"{EIGHT}{PLAN}\n[assert]\n{asserted}\n")
    assert main(["simulate", "job.toml"]) == WRONG_INPUT
    assert words in capsys.readouterr().err
