"""Widths of texts, and what is done with those that are too wide."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestsim.document.canvas import WIDTH, figure_with_headline, save_figure
from nestsim.document.lettering import (
    fits,
    shortened,
    size_that_fits,
    spaced,
    text_width,
    widest,
    wrapped,
)
from tests.nestsim.document.pictures import draw


@pytest.mark.parametrize(("words", "size"), [("1.000", 11.0), ("a longer text", 18.0)])
def test_widths_are_those_that_are_drawn(words, size, tmp_path) -> None:
    def picture(path) -> None:
        with figure_with_headline("x", "y") as (figure, _):
            figure.text(0.1, 0.5, words, size=size)
            save_figure(figure, path)

    drawn = draw(picture, tmp_path)
    (box,) = (box for text, box in drawn.boxes if text == words)
    assert text_width(words, size) == pytest.approx(box.width / 100, rel=0.02)


WORDS = st.text(string.printable.strip() + " ·µ…", min_size=1, max_size=40)
SIZES = st.sampled_from([8.0, 8.5, 9.5, 10.0, 11.0, 12.0, 13.0, 18.0])


@given(WORDS, SIZES, st.sampled_from(["normal", "bold"]), st.floats(0.7, 1.4))
def test_what_fits_is_what_is_laid_out_no_wider(words, size, weight, share) -> None:
    width = text_width(words, size, weight)
    for room in (width, share * width, width - 1e-6):
        assert fits(words, size, room, weight) == (width <= room)


@given(WORDS, SIZES, st.floats(0.1, 2.0))
def test_a_text_is_cut_at_the_last_place_that_fits(words, size, room) -> None:
    kept = len(words)
    while kept and text_width(f"{words[:kept]}…", size) > room:
        kept -= 1
    cut = words if text_width(words, size) <= room else f"{words[:kept].rstrip()}…"
    assert shortened(words, size, room) == cut


def test_of_several_lines_the_widest_counts() -> None:
    assert text_width("ab\nabcdef\na", 12.0) == text_width("abcdef", 12.0)
    assert widest([], 12.0) == 0.0


def test_a_text_that_is_too_wide_ends_in_an_ellipsis() -> None:
    assert shortened("short", 12.0, 5.0) == "short"
    cut = shortened("n" * 100, 12.0, 2.0)
    assert cut.endswith("…")
    assert 1.7 < text_width(cut, 12.0) <= 2.0


def test_lines_fit_where_words_do() -> None:
    text = wrapped("one two three four five six seven eight", 11.0, 0.8, most_lines=2)
    assert text.count("\n") == 1
    assert text_width(text, 11.0) <= 0.8
    assert text.endswith("…")


def test_the_size_is_the_largest_that_fits() -> None:
    size = size_that_fits(["1.000"], 0.4, largest=11.0, smallest=7.0)
    assert size is not None
    assert text_width("1.000", size) <= 0.4 < text_width("1.000", size + 0.5)
    assert size_that_fits(["1.000"], 0.1, largest=11.0, smallest=7.0) is None


def test_names_on_an_axis_do_not_touch() -> None:
    places = [0.0, 0.1, 0.2, 1.0, 2.0, 2.1]
    kept = spaced(places, ["100 Gbit/s"] * 6, 11.0)
    assert kept == [0, 3, 5]
    assert spaced([0.0, 3.0], ["a", "b"], 11.0) == [0, 1]
    assert spaced([0.0, 0.01], ["a", "b"], 11.0) == [0]
    assert spaced([], [], 11.0) == []


def test_headlines_of_any_length_stay_on_the_sheet(tmp_path) -> None:
    def picture(path) -> None:
        with figure_with_headline("long title " * 14, "subtitle " * 40) as (figure, _):
            save_figure(figure, path)

    drawn = draw(picture, tmp_path)
    assert not drawn.cut_off
    title, subtitle = drawn.words
    assert title == "long title " * 14 or title.endswith("…")
    assert subtitle.endswith("…")
    assert all(box.x1 < 100 * WIDTH for _, box in drawn.boxes)
