"""What the pictures of a stress test show: numbers, scales, the share to keep."""

from dataclasses import replace
from pathlib import Path

import pytest

from nestsim.document.paints import PLANNERS
from nestsim.document.sheet import draw_document
from nestsim.features.stress.document import stress_document
from nestsim.features.stress.record import stress_json
from nestsim.features.stress.results import StressResult, hottest_bars, share_to_keep
from tests import failures
from tests.nestsim.document.pictures import Picture, draw

PICTURES = {
    "throughput": ("line-0", "line-1"),
    "map": ("map",),
    "matrix": ("crossed",),
    "links": ("links",),
    "conditions": ("conditions",),
}
"""Name of a picture -> its figures."""


def picture(result: StressResult, name: str, folder: Path) -> Picture:
    document = stress_document(stress_json(result)).with_figures(*PICTURES[name])
    return draw(lambda path: draw_document(document, path), folder)


@failures.over("name", PICTURES)
def test_all_words_can_be_read(result: StressResult, name: str, tmp_path: Path) -> None:
    drawn = picture(result, name, tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping


def test_the_matrix_keeps_small_differences_and_explains_its_colours(
    result: StressResult, tmp_path: Path
) -> None:
    data = stress_json(result)
    data["crossed"] = {
        **data["crossed"],
        "conditions": ["leaf 2:1", "leaf 4:1"],
        "regret": {
            "nest": [[0.0, -0.1237], [0.023, 0.0]],
            "manual": [[0.0, 0.001], [None, 0.0]],
        },
    }
    document = stress_document(data).with_figures("crossed")
    drawn = draw(lambda path: draw_document(document, path), tmp_path)
    words = " ".join(" ".join(drawn.words).split())
    assert "takes at the column's than the plan made there" in words
    (axes,) = drawn.figure.axes
    texts = [text.get_text() for text in axes.texts if text.get_text()]
    shares = ["0.0", "-12.4", "2.3", "0.0", "0.0", "0.1", "0.0"]
    assert texts == ["nest", "manual", *shares]


def test_conditions_are_numbered_where_they_are_crossed(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(replace(result, axes={}), "matrix", tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping
    (axes,) = drawn.figure.axes
    rows = [one.get_text() for one in axes.get_yticklabels() if one.get_text()]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    assert rows[0] == "1  as built"
    assert [row.split(" ", 1)[0] for row in rows] == columns * 2


def test_one_scale_holds_for_the_maps_of_all_planners(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(result, "map", tmp_path)
    (axes,) = drawn.figure.axes
    words = [text.get_text() for text in axes.texts if text.get_text()]
    shares = [float(word) for word in words if word not in result.planners]
    assert max(shares) == 100.0
    assert len(shares) == 12
    assert any("share of the highest" in word for word in drawn.words)


def test_a_planner_has_its_colour_in_every_figure(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(result, "throughput", tmp_path)
    colours = [PLANNERS[planner] for planner in result.planners for _ in range(2)]
    for axes in drawn.figure.axes:
        lines = [line for line in axes.lines if line.get_linestyle() != ":"]
        assert [line.get_color() for line in lines[: len(colours)]] == colours


def test_the_share_to_keep_is_a_line_with_a_name(
    result: StressResult, tmp_path: Path
) -> None:
    kept = share_to_keep(result)
    assert kept is not None
    throughput, label = kept
    answer = result.answers[0]
    assert throughput == pytest.approx(0.8 * result.tokens / answer.base_time)
    drawn = picture(result, "throughput", tmp_path)
    assert any(label in " ".join(word.split()) for word in drawn.words)
    for axes in drawn.figure.axes:
        heights = [{*line.get_ydata()} for line in axes.lines]
        assert {throughput / 1e3} in heights
    without = replace(result, asked=None, answers=())
    assert share_to_keep(without) is None
    words = picture(without, "throughput", tmp_path).words
    assert not [word for word in words if "to keep" in word]


def test_the_busiest_links_have_their_condition_and_level(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(result, "links", tmp_path)
    bars = hottest_bars(result)
    assert {f"level {bar.level}" for bar in bars} <= set(drawn.words)
    for bar in bars:
        assert f"{100 * bar.share:.1f} %, {bar.condition}" in drawn.words
