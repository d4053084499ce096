"""``nestsim report FOLDER``: the page that the run wrote, or a sentence why not."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nestsim
from nestsim.cli import main
from nestsim.document.folder import claimed_folder, writer_of
from tests.nestsim.features.compare.small import write

SCENARIOS = Path(__file__).parents[4] / "scenarios"

WRONG_INPUT = 2

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of results of a run, with its page."""
    folder = tmp_path_factory.mktemp("page")
    job = write(folder, plan=True)
    arguments = ["--html", "--no-figures", "--quiet", "--output"]
    main(["run", str(job), *arguments, str(folder / "run")])
    main(["simulate", str(job), *arguments, str(folder / "simulate")])
    return folder


@pytest.fixture
def folder(results: Path, tmp_path: Path) -> Path:
    """Return a copy of the run's folder of results without its page."""
    return copied(results / "run", tmp_path / "run")


def copied(folder: Path, target: Path) -> Path:
    target.mkdir()
    for file in folder.iterdir():
        if file.name != "page.html":
            (target / file.name).write_bytes(file.read_bytes())
    return target


def changed(file: Path, change: Change) -> None:
    data = json.loads(file.read_text("utf-8"))
    change(data)
    file.write_text(json.dumps(data), encoding="utf-8")


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_the_page_is_the_one_that_the_run_wrote(
    command: str, results: Path, tmp_path: Path
) -> None:
    folder = copied(results / command, tmp_path / command)
    changed(folder / "manifest.json", lambda data: data["files"].pop("page.html"))
    assert main(["report", str(folder), "--quiet"]) == 0
    expected = (results / command / "page.html").read_bytes()
    assert (folder / "page.html").read_bytes() == expected


def test_the_manifest_lists_the_page_and_all_else_as_before(folder: Path) -> None:
    def without_page(data: dict[str, Any]) -> dict[str, Any]:
        return {
            **data,
            "files": {k: v for k, v in data["files"].items() if k != "page.html"},
        }

    before = json.loads((folder / "manifest.json").read_text("utf-8"))
    others = {file.name: file.read_bytes() for file in folder.iterdir()}
    main(["report", str(folder), "--quiet"])
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    page = (folder / "page.html").read_bytes()
    assert manifest["files"]["page.html"] == hashlib.sha256(page).hexdigest()
    assert without_page(manifest) == without_page(before)
    for name in others.keys() - {"manifest.json"}:
        assert (folder / name).read_bytes() == others[name]


def test_a_run_without_html_removes_an_outdated_page(
    results: Path, tmp_path: Path
) -> None:
    job, target = results / "job.toml", tmp_path / "again"
    arguments = ["simulate", str(job), "--no-figures", "--quiet", "-o", str(target)]
    main([*arguments, "--html"])
    assert (target / "page.html").exists()
    main(arguments)
    assert not (target / "page.html").exists()


def test_the_page_goes_to_another_file_but_to_none_of_other_origin(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "mine.html"
    target.write_text("<p>mine")
    arguments = ["report", str(folder), "-q", "--output", str(target)]
    assert main(arguments) == WRONG_INPUT
    assert "did not write" in capsys.readouterr().err
    assert target.read_text() == "<p>mine"
    assert main([*arguments, "--force"]) == 0
    assert main(arguments) == 0, "a page of ours is replaced"
    assert not (folder / "page.html").exists()


def test_the_face_gives_the_same_page(results: Path, tmp_path: Path) -> None:
    page = nestsim.report_page(results / "simulate")
    expected = (results / "simulate" / "page.html").read_text("utf-8")
    assert page.to_html() == expected
    assert page.save(tmp_path / "a.html").read_text("utf-8") == expected
    report = nestsim.simulate(results / "job.toml")
    report.save_page(tmp_path / "b.html")
    assert (tmp_path / "b.html").read_text("utf-8") == expected


def _slower(data: dict[str, Any]) -> None:
    data["simulated"]["iteration_time_s"] *= 2


MISTAKES: dict[str, tuple[str, Change, str]] = {
    "another time": ("result.json", _slower, "is not what the replay finds now"),
    "no verdict": ("result.json", lambda d: d.pop("verdict"), "key is missing"),
    "another verdict": (
        *("result.json", lambda d: d.update(verdict="<b>")),
        "is not one of the known values",
    ),
    "no reason": ("result.json", lambda d: d.update(reason=3), "has the wrong type"),
    "a row of words": (
        *("result.json", lambda d: d["candidates"][0].update(placement=7)),
        "has the wrong type",
    ),
    "no hash": (
        *("manifest.json", lambda d: d.pop("scenario_sha256")),
        "key is missing",
    ),
    "another scenario": (
        *("manifest.json", lambda d: d.update(scenario_sha256="0" * 64)),
        "is not the scenario that was run",
    ),
    "no stages": ("plan.json", lambda d: d.pop("stages"), "key is missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_folder_that_is_not_as_it_was_written_is_refused(
    mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change, words = MISTAKES[mistake]
    changed(folder / name, change)
    assert main(["report", str(folder), "-q"]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert words in error
    assert str(folder) in error
    assert not (folder / "page.html").exists()


def test_a_folder_without_results_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == WRONG_INPUT
    said = capsys.readouterr().err
    assert "manifest.json: no such file" in said
    assert "a folder of results that nestsim wrote" in said


def test_a_scenario_with_files_beside_it_is_found_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = SCENARIOS / "custom_network.toml"
    folder = tmp_path / "run"
    arguments = ["--no-figures", "--html", "-q", "--output", str(folder)]
    main(["run", str(named), *arguments])
    expected = (folder / "page.html").read_bytes()
    assert main(["report", str(folder), "-q"]) == WRONG_INPUT
    error = capsys.readouterr().err
    assert "custom_network_links.toml" in error
    assert "--scenario FILE" in error
    assert main(["report", str(folder), "-q", "--scenario", str(named)]) == 0
    assert (folder / "page.html").read_bytes() == expected
    other = SCENARIOS / "gpt3_1.3b_8_a100.toml"
    assert main(["report", str(folder), "-q", "--scenario", str(other)]) == WRONG_INPUT
    assert "is not the scenario that was run" in capsys.readouterr().err


def test_a_run_that_found_nothing_has_a_page(tmp_path: Path) -> None:
    job = write(tmp_path, reserve="79 GiB")
    folder = tmp_path / "run"
    assert (
        main(["run", str(job), "--html", "--no-figures", "-q", "-o", str(folder)]) == 1
    )
    page = (folder / "page.html").read_bytes()
    assert b"NO PLAN FITS" in page
    assert main(["report", str(folder), "-q"]) == 0
    assert (folder / "page.html").read_bytes() == page


def test_a_page_is_added_to_no_folder_of_other_origin(tmp_path: Path) -> None:
    with (
        claimed_folder(tmp_path / "new") as claimed,
        pytest.raises(nestsim.InputError, match="holds no results of nestsim"),
    ):
        claimed.add("page.html", writer_of("<p>"))
    assert not (tmp_path / "new").exists()


def test_a_page_of_the_users_own_is_not_replaced(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(folder / "manifest.json", lambda data: data["files"].pop("page.html"))
    (folder / "page.html").write_text("<p>mine")
    before = (folder / "manifest.json").read_bytes()
    assert main(["report", str(folder), "-q"]) == WRONG_INPUT
    assert "did not write" in capsys.readouterr().err
    assert (folder / "page.html").read_text() == "<p>mine"
    assert (folder / "manifest.json").read_bytes() == before
    assert main(["report", str(folder), "-q", "--force"]) == 0
