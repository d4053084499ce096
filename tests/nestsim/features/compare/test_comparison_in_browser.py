"""The page of a comparison: usable, safe, and the same from its folder."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from nestsim.features.compare.document import comparison_document
from tests.nestsim.features.compare.small import write
from tests.nestsim.features.conftest import DARK, DESKTOP, PHONE, Opened

Open = Callable[..., Opened]

WRONG_INPUT = 2
HOSTILE = "</script><img src=x onerror=\"document.title='hit'\"><b>&amp;'\"${1}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of results of a comparison of two scenarios."""
    inputs = tmp_path_factory.mktemp("jobs")
    jobs = [str(write(inputs, "two")), str(write(inputs, "four", nodes=4))]
    folder = inputs / "results"
    arguments = ["--planners", "nest,manual,phaze", "--html", "--no-figures", "-q"]
    assert main(["compare", *jobs, *arguments, "-o", str(folder)]) == 0
    return folder


@pytest.fixture
def data(folder: Path) -> Any:
    return json.loads((folder / "comparison.json").read_text("utf-8"))


@pytest.mark.parametrize(
    "options", [DESKTOP, DARK, PHONE], ids=["light", "dark", "phone"]
)
def test_it_is_drawn_without_complaints_and_is_accessible(
    opened: Open, folder: Path, options: dict[str, Any]
) -> None:
    one = opened(folder / "page.html", **options)
    bars = one.view.locator("#figure-throughput .mark-rect path")
    assert bars.count() >= 6
    one.view.evaluate(
        "document.querySelectorAll('details').forEach(d => d.open = true)"
    )
    assert one.violations() == []
    assert one.width() <= options["viewport"]["width"]
    assert one.complaints == []


def test_the_winner_comes_first_and_plans_are_sorted_by_time(
    opened: Open, folder: Path, data: Any
) -> None:
    one = opened(folder / "page.html")
    assert data["headline"] in one.view.locator("h2").first.inner_text()
    table = one.view.locator("#planners table").first
    table.get_by_role("button", name="Replayed").click()
    column = table.locator("thead th").all_inner_texts().index("Replayed")
    cells = table.locator(f"tbody tr > :nth-child({column + 1})").all()
    shown = [float(cell.get_attribute("data-key")) for cell in cells]
    times = [
        entry["simulated"]["iteration_time_s"]
        for group in data["groups"]
        for entry in group["entries"]
    ]
    assert shown == sorted(times)


def test_names_are_shown_as_text(opened: Open, data: Any) -> None:
    for group in data["groups"]:
        group["scenario"] = HOSTILE
        for entry in group["entries"]:
            entry["reason"], entry["valid"] = HOSTILE, False
        group["sentences"] = [HOSTILE]
    one = opened(comparison_document(data))
    assert one.view.locator("img, main b").count() == 0
    assert HOSTILE in one.view.locator("#why").inner_text()
    assert one.complaints == []


def test_the_folder_gives_the_same_page(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(folder), "-q", "-o", str(page)]) == 0
    assert page.read_bytes() == (folder / "page.html").read_bytes()


def test_changed_results_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("manifest.json", "comparison.json"):
        text = (folder / name).read_text("utf-8")
        if name == "comparison.json":
            text = text.replace("nest", "best", 1)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert main(["report", str(tmp_path), "-q"]) == WRONG_INPUT
    assert "is not as it was written" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_a_plan_that_nobody_found_room_for_has_no_bar(opened: Open, data: Any) -> None:
    entry = data["groups"][0]["entries"][0]
    entry.update(valid=False, plan=None, planned=None, simulated=None, verdict=None)
    entry["relative_throughput"] = {"planned": None, "simulated": None}
    entry["belief_s"] = None
    one = opened(comparison_document(data))
    assert (
        "nothing valid"
        in one.view.locator("#figure-throughput .plot svg").text_content()
    )
    assert one.complaints == []
