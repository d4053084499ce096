"""A folder of results holds what its manifest says, or the check tells what differs."""

import hashlib
import json
from pathlib import Path

import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.folder import claimed_folder, writer_of
from tests import failures
from topologies.errors import InputError

FILES = {"report.txt": "words", "figures/a.png": "picture", "times.csv": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with claimed_folder(tmp_path / "run", [*FILES]) as claimed:
        writers = {name: writer_of(text) for name, text in FILES.items()}
        claimed.write(writers, {"scenario": "test"}, unhashed=("times.csv",))
    return tmp_path / "run"


def test_an_untouched_folder_holds(folder: Path) -> None:
    report = nestsim.verify(folder)
    assert report.succeeded
    manifest = (folder / "manifest.json").read_bytes()
    facts = report.to_dict()
    assert facts["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()
    assert (facts["num_files"], facts["num_compared"]) == (3, 2)
    assert "times.csv differs from run to run" in str(report)
    assert report.facts() == {"folder": "run", "verdict": "holds"}


def test_what_differs_from_run_to_run_is_not_compared(folder: Path) -> None:
    (folder / "times.csv").write_text("2", encoding="utf-8")
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    report = nestsim.verify(folder)
    assert report.succeeded
    assert report.to_dict()["not_listed"] == ["mine.txt"]


@failures.over("name", FILES)
def test_a_file_that_has_gone_is_told(name: str, folder: Path) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    assert nestsim.verify(folder).to_dict()["failures"] == [f"{name} is not there."]
    (folder / name).write_bytes(content)


def test_a_changed_byte_is_told_with_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "figures" / "a.png").write_bytes(b"picturf")
    assert main(["verify", str(folder), "--quiet", "--json"]) == 1
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure.startswith("figures/a.png is not the file that was written")


@failures.over(
    "text", ["", "[]", "{}", '{"nestsim": "1", "format": 1, "files": {"../a": null}}']
)
def test_a_folder_without_a_manifest_is_refused(text: str, folder: Path) -> None:
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"manifest\.json: "):
        nestsim.verify(folder)
