"""``nestsim validate`` without a file, and its Markdown."""

import json

import pytest

import nestsim.face.validation
from nestsim.cli import main
from nestsim.features.validation.columns import Measurements
from nestsim.features.validation.document import NUMBERS
from tests.nestsim.features.validation.validation_rows import (
    GPT,
    gpt,
    memory,
    write_csv,
)

WRONG_INPUT = 2


@pytest.fixture
def small(monkeypatch):
    """Put two small tables in the place of the published ones."""
    time = Measurements(
        name="time.csv",
        kind="throughput",
        rows=(gpt(), gpt(row_id="two", precision="int8", source_key="other")),
    )
    sizes = Measurements(name="memory.csv", kind="memory", rows=(memory(),))
    monkeypatch.setattr(
        nestsim.face.validation, "published_measurements", lambda: (time, sizes)
    )


def test_without_a_file_both_tables_are_predicted(small, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "-q"]) == 0
    text = capsys.readouterr().out
    assert "2 rows about the time of a step" in text
    assert "1 row about the memory of a device" in text
    folder = tmp_path / "results/published_validation"
    for name in ("time", "memory"):
        assert (folder / name / "predictions.csv").is_file()
        assert (folder / name / "validation.json").is_file()


def test_json_without_a_file_is_one_object_with_both(small, capsys):
    assert main(["validate", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["scored"], report["refused"]) == (2, 1, 1)
    assert (report["memory"]["rows"], report["memory"]["scored"]) == (1, 1)
    assert set(report["by_source"]) == {"own", "other"}


def source_table(text):
    """Return the cells of the table of sources of a report in Markdown."""
    after = text.split("## By source")[1].split("##")[0].strip().split("\n\n")
    lines = next(part for part in after if part.startswith("|")).split("\n")
    return [line.strip("| ").split(" | ") for line in lines]


def test_markdown_has_a_line_for_every_source_and_writes_nothing(
    small, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", "--markdown"]) == 0
    assert not list(tmp_path.iterdir())
    time, sizes = capsys.readouterr().out.split("# Predicted memory is")
    lines = source_table(time)
    assert lines[0] == ["Time of a step", *NUMBERS]
    assert [line[0] for line in lines[2:]] == ["own", "other", "all"]
    assert lines[3][1:] == ["0", "1", "-", "-", "-", "-", "-", "0"]
    assert lines[4][1:3] == ["1", "1"]
    assert lines[4][3:] == lines[2][3:]
    assert source_table(sizes)[0] == ["Memory of a device", *NUMBERS]


def test_markdown_says_what_json_says(tmp_path, capsys):
    second = {**GPT, "row_id": "two", "tp": "4", "dp": "2"}
    file = write_csv(tmp_path / "own.csv", GPT, second)
    assert main(["validate", str(file), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert main(["validate", str(file), "--markdown"]) == 0
    cells = source_table(capsys.readouterr().out)[-1]
    assert cells[:3] == ["all", str(report["scored"]), str(report["refused"])]
    assert cells[3] == f"{100 * report['mape']:.1f} %"
    assert cells[6] == f"{100 * report['max_ape']:.1f} %"
    assert cells[7] == f"{100 * report['bias']:+.1f} %"


def test_two_forms_at_once_are_refused(tmp_path, capsys):
    file = write_csv(tmp_path / "own.csv", GPT)
    assert main(["validate", str(file), "--json", "--markdown"]) == WRONG_INPUT
    assert "--markdown: results are printed in one form" in capsys.readouterr().err
