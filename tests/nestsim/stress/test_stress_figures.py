"""What the pictures of a stress test show: numbers, scales, the share to keep."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex

from nestsim.report.figures.palette import PLANNERS, level_colour
from nestsim.stress.figures import (
    hottest_bars,
    regret_matrix,
    share_to_keep,
    stress_figures,
)
from nestsim.stress.job import stress_job
from nestsim.stress.results import StressResult
from tests.nestsim.report.pictures import Picture, draw, legend_colours
from tests.nestsim.stress.clusters import small

CONDITIONS = """
[[stress.conditions]]
name = "a condition with quite a long name, which stands beside its row"
degraded.slow_devices = [{ device = 3, factor = 2.0 }]
"""

AXES = {"leaf": (2.0, 4.0, 16.0), "node": (10.0, 40.0)}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StressResult:
    folder = tmp_path_factory.mktemp("figures")
    planners = ("nest", "phaze")
    scenario = small(
        folder, CONDITIONS, keep=0.8, oversubscription=AXES, planners=planners
    )
    return stress_job(scenario)


def picture(result: StressResult, name: str, folder: Path) -> Picture:
    return draw(stress_figures(result)[f"{name}.png"], folder)


@pytest.mark.parametrize("name", ["throughput", "map", "matrix", "links"])
def test_all_words_can_be_read(result: StressResult, name: str, tmp_path: Path) -> None:
    drawn = picture(result, name, tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping


def test_the_matrix_keeps_small_differences_and_explains_its_colours(
    result: StressResult, tmp_path: Path
) -> None:
    regret = np.array([[0.0, 0.0016], [0.023, 0.143]])
    cells = {
        name: {
            key: cell._replace(simulated=1.0 + regret[row, column])
            for row, (key, cell) in enumerate([*result.cells[name].items()][:2])
        }
        for column, name in enumerate(result.line("leaf")[:2])
    }
    first, second = [*next(iter(cells.values()))]
    made = {
        (planner, name): key
        for planner in result.planners
        for name, key in zip(cells, (first, second), strict=True)
    }
    few = replace(result, cells=cells, made=made, axes={"leaf": (2.0, 4.0)})
    drawn = picture(few, "matrix", tmp_path)
    assert "longer than the plan made there [%]" in drawn.words
    found = 100 * regret_matrix(few, "nest").regret
    assert found.round(2).tolist() == [[0.0, -12.37], [2.3, 0.0]]
    axes = drawn.figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["0", "-12", "2.3", "0"]


def test_conditions_that_are_no_ratios_are_numbered(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(replace(result, axes={}), "matrix", tmp_path)
    assert not drawn.cut_off
    assert not drawn.overlapping
    rows = [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()]
    columns = [label.get_text() for label in drawn.figure.axes[0].get_xticklabels()]
    assert rows[0] == "as built  1"
    assert [row.rsplit(" ", 1)[-1] for row in rows] == columns


def test_one_scale_holds_for_the_maps_of_all_planners(
    result: StressResult, tmp_path: Path
) -> None:
    drawn = picture(result, "map", tmp_path)
    meshes = [mesh for mesh in drawn.figure.findobj(QuadMesh) if mesh.axes]
    maps = [mesh for mesh in meshes if mesh.axes in drawn.figure.axes[:2]]
    assert len({mesh.get_clim() for mesh in maps}) == 1
    assert "throughput, share of the highest [%]" in drawn.words
    shares = [float(t.get_text()) for a in drawn.figure.axes[:2] for t in a.texts]
    assert max(shares) == 100.0
    assert len(shares) == 12


def test_the_share_to_keep_is_a_line_with_a_name(
    result: StressResult, tmp_path: Path
) -> None:
    found = share_to_keep(result)
    assert found is not None
    throughput, label = found
    answer = result.answers[0]
    assert throughput == pytest.approx(0.8 * result.tokens / answer.base_time)
    drawn = picture(result, "throughput", tmp_path)
    assert label in drawn.words
    for axes in drawn.figure.axes:
        heights = [line.get_ydata() for line in axes.lines if line.get_label() == label]
        assert [set(one) for one in heights] == [{throughput / 1e3}]
    without = replace(result, asked=None, answers=())
    assert share_to_keep(without) is None
    words = picture(without, "throughput", tmp_path).words
    assert not [word for word in words if "to keep" in word]


def test_planners_and_levels_have_the_colours_of_their_names(
    result: StressResult, tmp_path: Path
) -> None:
    lines = legend_colours(picture(result, "throughput", tmp_path))
    for planner in result.planners:
        for words in ("re-made", "kept"):
            colour = lines[f"{planner}, plan {words}"]
            assert to_hex(colour) == PLANNERS[planner]
    bars = legend_colours(picture(result, "links", tmp_path))
    numbers = [level.name for level in result.network.levels]
    assert {bar.level for bar in hottest_bars(result)} == {
        name.removeprefix("level ") for name in bars
    }
    for name, colour in bars.items():
        number = numbers.index(name.removeprefix("level "))
        assert to_hex(colour) == level_colour(number)
