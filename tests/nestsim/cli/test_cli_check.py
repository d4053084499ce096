"""``nestsim check`` says what is wrong with scenarios, and runs nothing."""

from pathlib import Path

import pytest

from nestsim.cli import main
from tests.nestsim.features.compare.small import write

SCENARIOS = Path(__file__).parents[3] / "scenarios"


def test_scenarios_of_one_job_and_of_several_are_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    jobs = sorted((SCENARIOS / "jobs").glob("*.toml"))[0]
    files = [SCENARIOS / "llama2_7b_64_h100.toml", jobs]
    assert main(["check", *map(str, files)]) == 0
    assert capsys.readouterr().out == "2 scenarios: nothing is wrong\n"


def test_every_mistake_of_every_file_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = write(tmp_path)
    text = right.read_text(encoding="utf-8")
    (tmp_path / "first.toml").write_text(f"{text}\n[serach]\n", encoding="utf-8")
    (tmp_path / "second.toml").write_text("name = ", encoding="utf-8")
    files = [str(path) for path in sorted(tmp_path.glob("*.toml"))]
    assert main(["check", *files]) == 2
    told = capsys.readouterr().err
    assert f"{tmp_path / 'first.toml'}: serach" in told
    assert str(tmp_path / "second.toml") in told
    assert str(right) not in told


def test_no_file_of_somebody_else_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    head, _, rest = write(tmp_path).read_text(encoding="utf-8").partition("[model]")
    rest = rest[rest.index("\n[") :]
    model = '[model]\nmodule = "mine.py:build"\nsequence_length = 64\n'
    one = tmp_path / "one.toml"
    one.write_text(f"{head}{model}{rest}", encoding="utf-8")
    several = tmp_path / "several.toml"
    job = '\n[[jobs]]\nname = "{}"\nnum_devices = 4\n'
    jobs = job.format("a") + job.format("b")
    several.write_text(f"{head}{model}{rest}{jobs}", encoding="utf-8")
    for file in (one, several):
        assert main(["check", str(file)]) == 2
        assert "--trust-code" in capsys.readouterr().err
        assert not ran.exists()
