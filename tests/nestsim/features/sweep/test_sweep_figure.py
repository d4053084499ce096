"""What the picture of a sweep shows, by what is varied."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from nestsim.document.sheet import draw_document, has_picture
from nestsim.features.sweep.axes import Axis
from nestsim.features.sweep.document import sweep_document
from nestsim.features.sweep.job import ScenarioSweepResult
from nestsim.features.sweep.record import sweep_json
from nestsim.running.store import Outcome
from tests.nestsim.document.pictures import Picture, draw

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
        row = {
            "simulated_tokens_per_s": 1000.0 - 10.0 * number,
            "simulated_iteration_time_s": 1.0,
            "simulated_mfu": 0.5,
            "simulated_peak_memory_bytes": 1e9,
        }
        row = None if number in failed else row
        outcomes.append(Outcome(number=number, key=str(number), point=point, row=row))
    return ScenarioSweepResult(
        scenario_name="a job", what="run", axes=axes, outcomes=tuple(outcomes)
    )


def picture(result: ScenarioSweepResult, folder: Path) -> Picture:
    document = sweep_document(sweep_json(result))
    drawn = draw(lambda path: draw_document(document, path), folder)
    assert not drawn.cut_off
    assert not drawn.overlapping
    return drawn


@pytest.mark.parametrize("axis", [OVERSUBSCRIPTION, BANDWIDTH])
def test_numbers_make_a_line(axis: Axis, tmp_path: Path) -> None:
    (axes,) = picture(sweep(axis), tmp_path).figure.axes
    line = axes.lines[0]
    count = len(axis.values)
    assert list(line.get_ydata()) == [1.0 - 0.01 * n for n in range(count)]
    assert line.get_linestyle() == "-"
    assert not axes.patches
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        *map(str, axis.values)
    ]


def test_names_make_bars_that_nothing_joins(tmp_path: Path) -> None:
    (axes,) = picture(sweep(PLANNER, failed=[1]), tmp_path).figure.axes
    assert not axes.lines
    assert [bar.get_width() for bar in axes.patches] == [1.0, 0.0, 0.98]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("nest", "manual", "phaze")
    ]
    words = [text.get_text() for text in axes.texts]
    assert words == ["1,000", "no plan that fits", "980.0"]


def test_cells_of_a_map_are_shares_of_the_highest(tmp_path: Path) -> None:
    drawn = picture(sweep(OVERSUBSCRIPTION, BANDWIDTH), tmp_path)
    (axes,) = drawn.figure.axes
    shares = [float(text.get_text()) for text in axes.texts]
    assert shares == [100.0 - n for n in range(8)]
    assert any("share of the highest, 1,000 tokens/s [%]" in one for one in drawn.words)


def test_a_third_setting_makes_a_map_for_each_of_its_values(tmp_path: Path) -> None:
    result = sweep(OVERSUBSCRIPTION, BANDWIDTH, RECOMPUTE, failed=[5])
    (axes,) = picture(result, tmp_path).figure.axes
    titles = [f"recompute {value}" for value in RECOMPUTE.values]
    words = [text.get_text() for text in axes.texts]
    assert words[:3] == titles
    expected = [
        f"{100 - 3 * n - number:.1f}"
        for number in range(3)
        for n in range(8)
        if 3 * n + number != 5
    ]
    assert [word for word in words[3:] if word] == expected


def test_more_maps_than_fit_are_left_out_and_counted(tmp_path: Path) -> None:
    result = sweep(
        PLANNER,
        RECOMPUTE,
        OVERSUBSCRIPTION,
        Axis(path="simulation.seed", values=tuple(range(9))),
    )
    (axes,) = picture(result, tmp_path).figure.axes
    names = [text.get_text() for text in axes.texts if "seed" in text.get_text()]
    assert len(names) == 12
    (note,) = sweep_document(sweep_json(result)).figures
    assert "The first 12 of 36 maps." in note.note


def test_nothing_is_drawn_where_nothing_varies_or_nothing_was_found() -> None:
    for result in (
        sweep(Axis(path="simulation.seed", values=(1,))),
        sweep(PLANNER, failed=[0, 1, 2]),
    ):
        assert not has_picture(sweep_document(sweep_json(result)))
