"""What the figures of one run show: limits, colours, columns of numbers."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from nestsim.document.drawing import Drawing
from nestsim.document.figures import Curves, Stacks
from nestsim.document.paints import DISTINCT, MEMORY_PARTS, PAINTS, level_colour
from nestsim.document.sheet import draw_document
from nestsim.document.vega import specification
from nestsim.evaluate.verdict import Gap
from nestsim.features.run.causes import gap_figure, gap_table
from nestsim.features.run.document import run_document
from nestsim.features.run.figures import link_figures, memory_bars, memory_lines
from tests import failures
from tests.nestsim.document.pictures import Picture, draw
from tests.nestsim.features.run.examples import MEMORY, USABLE
from tests.nestsim.features.run.test_figures import FOUR, JOBS, best_of


@pytest.fixture(params=JOBS, ids=list(JOBS))
def job(request):
    return JOBS[request.param]


def with_parts(candidate, *names: str):
    """Return a candidate whose memory is made of these parts."""
    memory = tuple(
        replace(one, peak_parts={name: one.peak / len(names) for name in names})
        for one in candidate.replay.memory
    )
    return replace(candidate, replay=replace(candidate.replay, memory=memory))


def test_a_part_of_memory_keeps_its_colour_over_all_runs() -> None:
    best = best_of(FOUR)
    for names in (
        ("weights", "gradients", "optimizer", "logits", "activations"),
        ("weights", "activations", "working"),
        tuple(reversed(MEMORY_PARTS)),
    ):
        figure = memory_bars(with_parts(best, *names), MEMORY, USABLE)
        colours = {entry.name: PAINTS[entry.paint].colour for entry in figure.entries}
        assert colours == {name: MEMORY_PARTS[name] for name in names}


def memory_picture(folder, usable: float) -> Picture:
    job = replace(FOUR, usable_memory=usable)
    part = run_document(job).with_figures("memory", "memory-parts")
    return draw(lambda path: draw_document(part, path), folder)


def test_both_limits_of_memory_are_drawn_and_named(tmp_path) -> None:
    picture = memory_picture(tmp_path, USABLE)
    assert {"usable: 72 GiB", "device: 80 GiB"} <= set(picture.words)
    over_time, peaks = picture.figure.axes
    heights = [list(line.get_ydata()) for line in over_time.lines]
    assert [72.0, 72.0] in heights
    assert [80.0, 80.0] in heights
    assert {72.0, 80.0} <= {float(line.get_xdata()[0]) for line in peaks.lines}
    for figure in (memory_lines, memory_bars):
        drawing = specification(figure(best_of(FOUR), MEMORY, USABLE).drawing)
        assert {72.0, 80.0} <= {*places_of_rules(drawing)}


def places_of_rules(drawing: Drawing) -> list[float]:
    encodings = [
        layer["encoding"]
        for layer in drawing["layer"]
        if layer["mark"]["type"] == "rule"
    ]
    return [place["datum"] for encoding in encodings for place in encoding.values()]


def test_a_device_without_overhead_has_one_limit(tmp_path) -> None:
    picture = memory_picture(tmp_path, MEMORY)
    assert "usable: 80 GiB" in picture.words
    assert not [word for word in picture.words if word.startswith("device")]


def with_gap(terms: dict[str, float]):
    """Return a candidate planned at 1 s whose gap has these causes."""
    best = best_of(FOUR)
    return replace(
        best,
        planned=replace(best.planned, iteration_time=1.0),
        verdict=replace(best.verdict, gap=Gap(total=sum(terms.values()), terms=terms)),
    )


@failures.over(
    "terms",
    [
        {"contention": -0.08, "synchronisation": 0.02},
        {"contention": -0.03, "synchronisation": -0.03},
        {"contention": 0.05, "synchronisation": -0.02},
        {"contention": 7e-4},
        {"contention": -7e-4},
    ],
)
def test_the_bars_of_a_gap_follow_each_other_and_no_word_lies_on_one(
    terms: dict[str, float], tmp_path
) -> None:
    job = replace(FOUR, candidates=(with_gap(terms),), chosen=0)
    part = run_document(job).with_figures("gap")
    picture = draw(lambda path: draw_document(part, path), tmp_path)
    assert not picture.cut_off
    assert not picture.overlapping
    (figure,) = part.figures
    assert isinstance(figure.drawing, Stacks)
    *steps, total = figure.drawing.bars
    reached = 0.0
    for bar, length in zip(steps, terms.values(), strict=True):
        assert bar.start == pytest.approx(reached)
        reached = bar.ends[1]
        assert np.sign(bar.parts[0].length) == np.sign(length)
    assert total.ends == pytest.approx((0.0, reached))
    paints = [bar.parts[0].paint for bar in figure.drawing.bars]
    signs = [bar.parts[0].length > 0 for bar in figure.drawing.bars]
    assert paints == ["longer" if sign else "shorter" for sign in signs]
    # A gap of 0.07 % of the plan does not look like all of it.
    low, high = figure.drawing.reach
    assert high - low >= 0.00999 * figure.drawing.whole
    (axes,) = picture.figure.axes
    numbers = {bar.words for bar in figure.drawing.bars}
    for words, box in picture.boxes:
        if words in numbers:
            for bar in axes.patches:
                bounds = bar.get_window_extent()
                assert (
                    box.x0 > bounds.x1 - 1 or box.y0 > bounds.y1 or box.y1 < bounds.y0
                )


def test_a_gap_of_nothing_has_a_table_of_nothing_and_no_figure() -> None:
    candidate = with_gap({"contention": 0.0, "synchronisation": 1e-12})
    assert gap_figure(candidate) is None
    assert {row[2] for row in gap_table(candidate).rows} == {"+0.0 %"}


def test_a_level_has_the_colour_that_the_picture_of_the_network_gives_it(job) -> None:
    numbers = {f"level {one.name}": n for n, one in enumerate(job.network.levels)}
    figures = link_figures(best_of(job).replay, job.network)
    for figure in figures[1:]:
        assert isinstance(figure.drawing, Curves)
        for curve in figure.drawing.curves:
            assert curve.series is not None
            colour = to_hex(DISTINCT[curve.series])
            assert colour == level_colour(numbers[curve.name])


def test_the_scale_of_links_says_what_it_counts(tmp_path) -> None:
    part = run_document(FOUR).with_figures("links")
    picture = draw(lambda path: draw_document(part, path), tmp_path)
    assert {"0 %", "100 %"} <= set(picture.words)
