"""``nestsim validate``: its table, its files, its errors."""

import csv
import io
import json

import pytest

from nestsim.cli import main
from tests import failures
from tests.nestsim.features.validation.validation_rows import GPT, MEMORY, write_csv

WRONG_INPUT = 2

KEYS = {
    *("rows", "scored", "refused", "mape", "median_ape", "p90_ape", "max_ape"),
    *("kendall_tau", "bias", "by_source", "by_accelerator", "refusals", "memory"),
}


@pytest.fixture
def own(tmp_path):
    """A file with two plans for one job, one for another, and one refused row."""
    return write_csv(
        tmp_path / "own.csv",
        GPT,
        {**GPT, "row_id": "two", "tp": "1", "dp": "8", "iter_time_s": "0.2"},
        {**GPT, "row_id": "three", "global_batch": "64", "source_key": "other"},
        {**GPT, "row_id": "four", "precision": "fp8"},
    )


def lines(folder):
    """Return the lines of predictions.csv."""
    text = (folder / "predictions.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(io.StringIO(text)))


def test_the_folder_has_a_line_for_every_row_and_a_picture(own, tmp_path, capsys):
    folder = tmp_path / "out"
    assert main(["validate", str(own), "-o", str(folder)]) == 0
    written = sorted(path.name for path in folder.iterdir())
    assert written == [
        *("manifest.json", "predictions.csv"),
        *("validation.json", "validation.png"),
    ]
    rows = lines(folder)
    assert [row["row_id"] for row in rows] == ["one", "two", "three", "four"]
    assert [row["status"] for row in rows] == ["scored"] * 3 + ["refused"]
    assert rows[3]["code"] == "low-precision"
    assert rows[0]["basis"] == "iter_time_s"
    assert "dropout 0.1" in rows[0]["assumed"]
    error = float(rows[0]["predicted"]) / float(rows[0]["measured"]) - 1
    assert float(rows[0]["error"]) == pytest.approx(error)
    text = capsys.readouterr().out
    assert "4 rows about the time of a step: 3 predicted" in text
    assert "low-precision" in text


def test_json_has_its_keys_and_the_errors_of_the_rows(own, tmp_path, capsys):
    assert main(["validate", str(own), "--json", "-o", str(tmp_path / "out")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) >= KEYS
    assert (report["rows"], report["scored"], report["refused"]) == (4, 3, 1)
    rows = lines(tmp_path / "out")
    errors = [abs(float(row["error"])) for row in rows if row["error"]]
    assert report["mape"] == pytest.approx(sum(errors) / 3)
    assert report["max_ape"] == pytest.approx(max(errors))
    assert report["by_source"]["own"]["scored"] == 2
    assert report["by_source"]["own"]["refused"] == 1
    assert report["ranking"]["groups"] == 1
    assert report["memory"]["rows"] == 0
    assert report["memory"]["mape"] is None
    written = (tmp_path / "out/validation.json").read_text(encoding="utf-8")
    assert json.loads(written) == report


def test_json_alone_writes_no_folder(own, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", str(own), "--json"]) == 0
    assert not (tmp_path / "results").exists()
    assert main(["validate", str(own), "--quiet"]) == 0
    assert (tmp_path / "results/own_validation/predictions.csv").is_file()
    assert capsys.readouterr().err == ""


def test_memory_is_reported_apart_from_time(tmp_path, capsys):
    gone = {**MEMORY, "row_id": "two", "metric": "OOM", "value_gib": "", "unit": ""}
    file = write_csv(tmp_path / "memory.csv", MEMORY, gone)
    folder = tmp_path / "out"
    assert main(["validate", str(file), "-o", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Of 1 run that ran out of memory, 1 are judged to fit" in printed
    report = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
    assert (report["rows"], report["memory"]["rows"]) == (0, 2)
    assert report["memory"]["scored"] == 1
    assert report["memory"]["out_of_memory"] == {"rows": 1, "predicted_to_fit": 1}
    assert (folder / "validation.png").stat().st_size > 0


def test_nothing_to_compare_is_status_1(tmp_path, capsys):
    file = write_csv(tmp_path / "own.csv", {**GPT, "layers": ""})
    assert main(["validate", str(file), "-o", str(tmp_path / "out")]) == 1
    assert "missing-column" in capsys.readouterr().out
    assert not (tmp_path / "out/validation.png").exists()


def test_the_same_file_gives_the_same_bytes(own, tmp_path):
    for name in ("first", "second"):
        assert main(["validate", str(own), "-q", "-o", str(tmp_path / name)]) == 0
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_wrong_input_names_file_row_and_column(tmp_path, capsys):
    file = write_csv(tmp_path / "own.csv", {**GPT, "seq_len": "long"})
    assert main(["validate", str(file)]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert f"{file}: row one: column seq_len: no whole number" in error
    assert main(["validate", str(tmp_path / "none.csv")]) == WRONG_INPUT
    assert "none.csv: no such file" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_refused_before_work(own, capsys):
    assert main(["validate", str(own), "-o", str(own)]) == WRONG_INPUT
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.timeout(120)
@failures.over(
    ("change", "code"),
    [
        ({"num_devices": "1000000000", "dp": ""}, "no-such-cluster"),
        ({"num_devices": "999999999999998", "dp": "", "pp": "1"}, "no-such-cluster"),
        ({"num_devices": "1000000", "dp": "1", "tp": "1", "pp": "1000000"}, "no-such-"),
        ({"seq_len": "2147483648"}, "no-such-model"),
        ({"layers": "1000000000"}, "no-such-model"),
        ({"global_batch": "1000000000"}, "no-such-plan"),
        ({"inter_node_net": "0 Gb/s"}, "no-such-cluster"),
        ({"inter_node_net": f"{'9' * 5000} Gb/s"}, ""),
        ({"intra_node_link": "nvl0"}, ""),
        ({"intra_node_link": "0 per pair"}, ""),
        ({"intra_node_link": "ici", "notes": "0 slice"}, ""),
        ({"recompute": "x" * 9000}, "unknown-recompute"),
    ],
)
def test_a_row_that_cannot_be_is_refused_and_the_others_go_on(tmp_path, change, code):
    right = {**GPT, "notes": ""}
    wrong = {**right, "row_id": "wrong", **change}
    file = write_csv(tmp_path / "own.csv", right, wrong)
    assert main(["validate", str(file), "-q", "-o", str(tmp_path / "out")]) == 0
    first, second = lines(tmp_path / "out")
    assert first["code"] == ""
    assert second["code"].startswith(code)
    assert len(second["reason"]) < 1100


def test_all_wrong_values_of_a_file_are_told(tmp_path, capsys):
    wrong = {
        "seq_len": "long",
        "layers": "1_0",
        "heads": "\uff14",
        "iter_time_s": "1e-320",
    }
    file = write_csv(tmp_path / "own.csv", {**GPT, **wrong})
    assert main(["validate", str(file)]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert "(and 3 others in this file)" in error
    for column in wrong:
        assert f"row one: column {column}: no " in error


@failures.over(
    "text",
    ["", "\0", ",".join(f"c{i}" for i in range(10**5)), '"', "row_id\x1b[31m,tp\n1,1"],
)
def test_what_is_no_table_is_refused(tmp_path, capsys, text):
    file = tmp_path / "own.csv"
    file.write_text(text)
    assert main(["validate", str(file)]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert error.startswith(f"{file}: ")
    assert all(line.isprintable() for line in error.splitlines())


@pytest.mark.timeout(120)
def test_collectives_that_cannot_be_are_refused_row_by_row(tmp_path):
    columns = "row_id,accelerator,collective,num_ranks,num_nodes,link,message_bytes"
    rows = [
        ("a", "h100", "all_reduce", "8", "1", ""),
        ("b", "L4-24GB", "all_reduce", "8", "2", ""),
        ("c", "gb200", "all_reduce", "999999999999990", "2", ""),
        ("d", "h100", "all_reduce", "16", "2", "0 GB/s ib"),
    ]
    file = tmp_path / "collectives.csv"
    table = "".join(f"{','.join(row)},1048576,45.5\n" for row in rows)
    file.write_text(f"{columns},time_us\n{table}")
    assert main(["validate", str(file), "-q", "-o", str(tmp_path / "out")]) == 0
    codes = [row["code"] for row in lines(tmp_path / "out")]
    assert codes == ["", "unknown-network", "no-such-cluster", "unknown-network"]
