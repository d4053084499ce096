"""``nestsim diff A B --html``: both steps on one axis, terms and settings."""

import json
from pathlib import Path
from typing import Any

import pytest

from nestsim.cli import main
from nestsim.document.parts import DataTable, Document, FigureBlock, TimeWindow
from nestsim.features.run.diff import ValueChange, compare_reports, read_report
from nestsim.features.run.diff_page import (
    changed_terms,
    diff_page,
    replayed_folder,
    weighed_settings,
)
from tests.nestsim.features.compare.small import TEXT

DIFFERENT, WRONG_INPUT = 1, 2

PLAN = """
[plan]
tensor_model_parallel_size = {tp}
pipeline_model_parallel_size = 2
micro_batch_size = 1
recompute = "{recompute}"
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the results of two plans."""
    folder = tmp_path_factory.mktemp("diff-page")
    for name, tp, recompute in (("a", 4, "none"), ("b", 2, "full")):
        text = TEXT.format(devices=8, nodes=2, reserve="1 GiB")
        scenario = folder / f"{name}.toml"
        plan = PLAN.format(tp=tp, recompute=recompute)
        scenario.write_text(text + plan, encoding="utf-8")
        place = str(folder / name)
        main(["simulate", str(scenario), "-q", "--no-figures", "-o", place])
    return folder


def reports_of(results: Path) -> tuple[Any, Any]:
    return read_report(results / "a"), read_report(results / "b")


@pytest.fixture(scope="module")
def page(results: Path) -> Document:
    reports = reports_of(results)
    candidates = [
        replayed_folder(results / name, trust_code=False) for name in ("a", "b")
    ]
    changes = compare_reports(*reports)
    return diff_page(changes, ("a", "b"), reports, (candidates[0], candidates[1]))


def test_changes_of_terms_add_up_to_the_change_of_the_time(results: Path) -> None:
    before, after = reports_of(results)
    changes = changed_terms(before, after)
    times = [report["simulated"]["iteration_time_s"] for report in (before, after)]
    assert sum(changes.values()) == pytest.approx(times[1] - times[0], rel=1e-6)
    assert changes["recompute"] == pytest.approx(
        after["planned"]["terms_s"]["recompute"]
    )
    backwards = changed_terms(after, before)
    assert backwards.keys() == changes.keys()
    assert all(backwards[name] == -changes[name] for name in changes)
    assert changed_terms(before, before) == {}
    assert changed_terms({**before, "planned": None}, after) == {}


def test_the_largest_change_comes_first(results: Path, page: Document) -> None:
    changes = changed_terms(*reports_of(results))
    (figure,) = [part for part in page.figures if part.name == "changes"]
    names = [row[0] for row in figure.table.rows]
    assert names == [*sorted(changes, key=lambda name: -abs(changes[name])), "all"]
    assert str(names[0]) in figure.title


def test_both_steps_have_the_same_axis(results: Path, page: Document) -> None:
    timelines = [part for part in page.figures if part.name.startswith("timeline")]
    assert [part.name for part in timelines] == ["timeline-a", "timeline-b"]
    drawings: list[Any] = [part.drawing for part in timelines]
    assert drawings[0]["params"] == drawings[1]["params"]
    assert timelines[0].bars["unit"] == timelines[1].bars["unit"]
    (window,) = _blocks(page, TimeWindow)
    assert window.total == drawings[0]["params"][1]["value"]
    ends = [
        max(
            start + length
            for start, length in zip(
                part.bars["start"], part.bars["length"], strict=True
            )
        )
        for part in timelines
    ]
    assert ends[0] != ends[1]
    assert max(ends) == pytest.approx(window.total, rel=1e-3)


def _blocks(page: Document, kind: type) -> list[Any]:
    return [
        block
        for section in page.sections
        for block in section.blocks
        if isinstance(block, kind)
    ]


def change(path: str, before: object = 1, after: object = 2) -> ValueChange:
    return ValueChange(path=path, before=before, after=after)


def test_settings_come_by_the_share_of_the_plan_that_they_are_about() -> None:
    changes = [
        change("scenario"),
        change("plan.stages[0].layers"),
        change("plan.stages[1].layers"),
        change("plan.stages[2].layers"),
        change("plan.stages[1].zero_stage", 3, 4),
        change("plan.stages[0].devices"),
        change("plan.stages[2].devices"),
        change("plan.micro_batch_size"),
    ]
    rows = weighed_settings(changes)
    assert [row.name for row in rows] == [
        "plan.micro_batch_size",
        "plan.stages.layers",
        "plan.stages.devices",
        "plan.stages.zero_stage",
        "scenario",
    ]
    assert [row.place for row in rows] == [
        "the plan",
        "stage 0, 1, 2",
        "stage 0, 2",
        "stage 1",
        "the result",
    ]
    assert rows[3].first.before == 3


def test_the_page_has_the_settings_that_differ(page: Document) -> None:
    (section,) = [part for part in page.sections if part.name == "settings"]
    table = section.blocks[0]
    assert isinstance(table, DataTable)
    names = [row[0] for row in table.rows]
    assert names[0] == "plan.parallel.tensor_model_parallel_size"
    assert "plan.recompute" in names


def test_the_command_writes_the_page_and_prints_what_it_did(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(results / name) for name in ("a", "b")]
    capsys.readouterr()
    assert main(["diff", *folders, "-q"]) == DIFFERENT
    plain = capsys.readouterr().out
    file = tmp_path / "diff.html"
    arguments = ["diff", *folders, "-q", "--html", str(file)]
    assert main(arguments) == DIFFERENT
    assert capsys.readouterr().out == plain
    first = file.read_bytes()
    assert b'id="figure-timeline-b"' in first
    assert main(arguments) == DIFFERENT, "a page of ours is replaced"
    assert file.read_bytes() == first
    file.write_text("<p>mine", encoding="utf-8")
    assert main(arguments) == WRONG_INPUT
    assert file.read_text("utf-8") == "<p>mine"
    assert main([*arguments, "--force"]) == DIFFERENT


def test_files_of_results_have_no_timelines(results: Path, tmp_path: Path) -> None:
    file = tmp_path / "diff.html"
    places = [str(results / name / "result.json") for name in ("a", "b")]
    assert main(["diff", *places, "-q", "--html", str(file)]) == DIFFERENT
    text = file.read_text("utf-8")
    assert "figure-timeline" not in text
    assert "two folders of results" in text
    assert 'id="figure-changes"' in text


def test_results_that_were_changed_have_no_page(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "a"
    copy.mkdir()
    for file in (results / "a").iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    data = json.loads((copy / "result.json").read_text("utf-8"))
    data["simulated"]["iteration_time_s"] *= 2.0
    (copy / "result.json").write_text(json.dumps(data), encoding="utf-8")
    html = tmp_path / "diff.html"
    arguments = ["diff", str(copy), str(results / "b"), "-q", "--html", str(html)]
    assert main(arguments) == WRONG_INPUT
    assert "is not what the replay finds now" in capsys.readouterr().err
    assert not html.exists()


def test_equal_results_have_a_page(results: Path, tmp_path: Path) -> None:
    html = tmp_path / "diff.html"
    same = str(results / "a")
    assert main(["diff", same, same, "-q", "--html", str(html)]) == 0
    text = html.read_text("utf-8")
    assert "EQUAL" in text
    assert 'id="figure-changes"' not in text
    assert 'id="figure-timeline-a"' in text


def test_figures_of_a_page_have_names_of_their_own(page: Document) -> None:
    names = [part.name for part in _blocks(page, FigureBlock)]
    assert len(names) == len(set(names))
