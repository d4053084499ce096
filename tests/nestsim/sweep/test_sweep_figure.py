"""What the picture of a sweep shows, by what is varied."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from nestsim.store import Outcome
from nestsim.sweep.axes import Axis
from nestsim.sweep.figure import MOST_PANELS, draw_sweep, is_drawn
from nestsim.sweep.job import ScenarioSweepResult
from tests.nestsim.report.pictures import Picture, draw

OVERSUBSCRIPTION = Axis(path="cluster.network.oversubscription", values=(1, 2, 4, 8))
BANDWIDTH = Axis(
    path="cluster.network.nic_bandwidth", values=("100 Gbit/s", "400 Gbit/s")
)
PLANNER = Axis(path="search.planner", values=("nest", "manual", "phaze"))
RECOMPUTE = Axis(path="plan.recompute", values=("none", "full", "selective"))
SCALE = "throughput, share of the highest [%]"


def sweep(*axes: Axis, failed: Sequence[int] = ()) -> ScenarioSweepResult:
    """Return a sweep whose n-th point has 1,000 - 10 n tokens/s."""
    points = itertools.product(*(axis.values for axis in axes))
    outcomes = []
    for number, values in enumerate(points):
        point = {a.path: value for a, value in zip(axes, values, strict=True)}
        row = {"simulated_tokens_per_s": 1000.0 - 10.0 * number}
        row = None if number in failed else row
        outcomes.append(Outcome(number=number, key=str(number), point=point, row=row))
    return ScenarioSweepResult(
        scenario_name="a job", what="run", axes=axes, outcomes=tuple(outcomes)
    )


def picture(result: ScenarioSweepResult, folder: Path) -> Picture:
    drawn = draw(lambda path: draw_sweep(result, path), folder)
    assert not drawn.cut_off
    assert not drawn.overlapping
    return drawn


@pytest.mark.parametrize("axis", [OVERSUBSCRIPTION, BANDWIDTH])
def test_numbers_make_a_line(axis: Axis, tmp_path: Path) -> None:
    (axes,) = picture(sweep(axis), tmp_path).figure.axes
    line = axes.lines[0]
    count = len(axis.values)
    assert list(line.get_ydata()) == [1000.0 - 10.0 * n for n in range(count)]
    assert line.get_linestyle() == "-"
    assert not axes.patches


def test_names_make_bars_that_nothing_joins(tmp_path: Path) -> None:
    (axes,) = picture(sweep(PLANNER, failed=[1]), tmp_path).figure.axes
    assert not axes.lines
    assert [bar.get_width() for bar in axes.patches] == [1000.0, 0.0, 980.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("nest", "manual", "phaze")
    ]
    words = [text.get_text() for text in axes.texts]
    assert words == ["1,000", "no plan that fits", "980"]


def test_cells_and_scale_of_a_map_have_one_unit(tmp_path: Path) -> None:
    drawn = picture(sweep(OVERSUBSCRIPTION, BANDWIDTH), tmp_path)
    axes, scale = drawn.figure.axes
    assert SCALE in drawn.words
    shares = [float(text.get_text()) for text in axes.texts]
    assert max(shares) == 100.0
    assert shares == [100.0 - n for n in range(8)]
    assert scale.get_ylim() == (min(shares), 100.0)


def test_a_third_setting_makes_a_map_for_each_of_its_values(tmp_path: Path) -> None:
    result = sweep(OVERSUBSCRIPTION, BANDWIDTH, RECOMPUTE, failed=[5])
    drawn = picture(result, tmp_path)
    *maps, _ = drawn.figure.axes
    titles = [f"recompute {value}" for value in RECOMPUTE.values]
    assert [axes.get_title(loc="left") for axes in maps] == titles
    for number, axes in enumerate(maps):
        shares = [text.get_text() for text in axes.texts]
        expected = [f"{100 - 3 * n - number:.1f}" for n in range(8)]
        expected = [e for n, e in enumerate(expected) if 3 * n + number != 5]
        assert shares == expected
    limits = {axes.collections[0].get_clim() for axes in maps}
    assert limits == {(77.0, 100.0)}
    assert drawn.words.count(SCALE) == 1


def test_more_maps_than_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    result = sweep(
        PLANNER,
        RECOMPUTE,
        OVERSUBSCRIPTION,
        Axis(path="simulation.seed", values=tuple(range(9))),
    )
    drawn = draw(lambda path: draw_sweep(result, path), tmp_path)
    assert len(drawn.figure.axes) == MOST_PANELS + 1
    assert any(f"the first {MOST_PANELS} of 36 maps" in word for word in drawn.words)
    assert not drawn.cut_off


def test_nothing_is_drawn_where_nothing_varies_or_nothing_was_found() -> None:
    assert not is_drawn(sweep(Axis(path="simulation.seed", values=(1,))))
    assert not is_drawn(sweep(PLANNER, failed=[0, 1, 2]))
