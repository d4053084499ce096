"""What the figures of one run show: limits, colours, columns of numbers."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from nestsim.document.paints import LONGER, MEMORY_PARTS, SHORTER, level_colour
from nestsim.evaluate.verdict import Gap
from nestsim.features.run.timeline import draw_gap, draw_links, draw_memory
from tests.nestsim.document.pictures import draw, legend_colours
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


def memory_picture(candidate, folder, usable=USABLE):
    return draw(lambda path: draw_memory(candidate, MEMORY, usable, path), folder)


def test_a_part_of_memory_keeps_its_colour_over_all_runs(tmp_path) -> None:
    best = best_of(FOUR)
    for names in (
        ("weights", "gradients", "optimizer", "logits", "activations"),
        ("weights", "activations", "working"),
        tuple(reversed(MEMORY_PARTS)),
    ):
        found = legend_colours(memory_picture(with_parts(best, *names), tmp_path))
        for name in names:
            assert to_hex(found[name]) == MEMORY_PARTS[name]


def test_both_limits_of_memory_are_drawn_and_named(tmp_path) -> None:
    picture = memory_picture(best_of(FOUR), tmp_path)
    assert {"usable: 72 GiB", "device: 80 GiB"} <= set(picture.words)
    over_time, peaks = picture.figure.axes
    heights = [line.get_ydata() for line in over_time.lines]
    assert [72.0, 72.0] in [list(line) for line in heights]
    assert [80.0, 80.0] in [list(line) for line in heights]
    assert {72.0, 80.0} <= {float(line.get_xdata()[0]) for line in peaks.lines}


def test_a_device_without_overhead_has_one_limit(tmp_path) -> None:
    picture = memory_picture(best_of(FOUR), tmp_path, usable=MEMORY)
    assert "usable: 80 GiB" in picture.words
    assert not [word for word in picture.words if word.startswith("device")]


def gap_picture(terms: dict[str, float], folder):
    best = best_of(FOUR)
    best = replace(
        best,
        planned=replace(best.planned, iteration_time=1.0),
        verdict=replace(best.verdict, gap=Gap(total=sum(terms.values()), terms=terms)),
    )
    return draw(lambda path: draw_gap(best, (best,), path), folder)


@pytest.mark.parametrize(
    "terms",
    [
        {"contention": -0.08, "synchronisation": 0.02},
        {"contention": -0.03, "synchronisation": -0.03},
        {"contention": 0.05, "synchronisation": -0.02},
    ],
)
def test_no_number_of_the_gap_stands_on_the_zero_line_or_on_a_bar(
    terms: dict[str, float], tmp_path
) -> None:
    picture = gap_picture(terms, tmp_path)
    assert not picture.cut_off
    assert not picture.overlapping
    axes = picture.figure.axes[1]
    bars = {bar.get_y() + bar.get_height() / 2: bar for bar in axes.patches}
    lengths = [bars[row].get_width() for row in sorted(bars)]
    assert np.sign(lengths[:-1]).tolist() == np.sign(list(terms.values())).tolist()
    assert [to_hex(bars[row].get_facecolor()) for row in sorted(bars)] == [
        LONGER if length > 0 else SHORTER for length in lengths
    ]
    zero = axes.transData.transform((0.0, 0.0))[0]
    numbers = [text.get_text() for text in axes.texts]
    assert len(numbers) == len(terms) + 1
    right = max(bar.get_window_extent().x1 for bar in axes.patches)
    for words, box in picture.boxes:
        if words in numbers and words.startswith(("+", "-")):
            assert not box.x0 <= zero <= box.x1
            assert box.x0 > right


def test_a_gap_of_nothing_says_so(tmp_path) -> None:
    picture = gap_picture({"contention": 0.0, "synchronisation": 1e-12}, tmp_path)
    assert "No difference beyond rounding." in picture.words
    assert "synchronisation" not in picture.words


def test_a_level_has_the_colour_that_the_picture_of_the_network_gives_it(
    job, tmp_path
) -> None:
    network = job.network
    picture = draw(lambda path: draw_links(best_of(job), network, path), tmp_path)
    colours = legend_colours(picture)
    numbers = {f"level {one.name}": n for n, one in enumerate(network.levels)}
    assert len(colours) > 0 or "No link carried anything" in picture.words
    for name, colour in colours.items():
        assert to_hex(colour) == level_colour(numbers[name])


def test_the_scale_of_links_says_what_it_counts(tmp_path) -> None:
    picture = draw(lambda path: draw_links(best_of(FOUR), FOUR.network, path), tmp_path)
    assert "share of capacity in use [%]" in picture.words
