"""Figures: drawn, small, the same twice, to be read, without global traces."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest

from nestsim.document.parts import Document
from nestsim.document.sheet import draw_document, has_picture
from nestsim.evaluate.results import JobResult
from nestsim.features.run.command import PICTURES
from nestsim.features.run.document import run_document
from nestsim.features.run.record import reported_candidate
from nestsim.features.run.timeline_picture import _shades, draw_timeline
from tests import failures
from tests.nestsim.document.pictures import draw
from tests.nestsim.features.run.examples import (
    FOUR_STAGES,
    INTERLEAVED,
    ONE_STAGE,
    Shape,
    make_job,
)

FOUR = make_job(*FOUR_STAGES)
JOBS = {
    "four stages": FOUR,
    "one stage": make_job(*ONE_STAGE),
    "one device group": make_job(Shape(p=1, d=1, t=8, m=1)),
    "deep": make_job(Shape(p=16, d=1, t=8, m=80)),
    "two chunks": make_job(*INTERLEAVED),
    "deep with three chunks": make_job(Shape(p=8, v=3, d=1, t=8, m=64)),
    "very deep": make_job(Shape(p=34, d=1, t=1, m=40)),
}


SHOWN = [name.removeprefix("figures/") for name in PICTURES]
DOCUMENTS = {id(job): run_document(job) for job in JOBS.values()}


def part_of(job: JobResult, name: str) -> Document:
    """Return what a picture of a run shows."""
    document = DOCUMENTS.get(id(job)) or run_document(job)
    return document.with_figures(*PICTURES[f"figures/{name}"])


def drawing(name: str) -> Callable[[JobResult, Path], None]:
    return lambda job, path: draw_document(part_of(job, name), path)


FIGURES: dict[str, Callable[[JobResult, Path], None]] = {
    "timeline": lambda job, path: draw_timeline(best_of(job), path),
    **{name: drawing(name) for name in SHOWN},
}
DRAWN = [
    pytest.param(name, job, id=f"{name} of {title}")
    for name in FIGURES
    for title, job in JOBS.items()
    if name == "timeline" or has_picture(part_of(job, name))
]


def best_of(job: JobResult):  # type: ignore[no-untyped-def]
    best = reported_candidate(job)
    assert best is not None
    return best


@failures.over(("name", "job"), DRAWN)
def test_figures_are_small_and_cut_or_cover_no_word(
    name: str, job: JobResult, tmp_path: Path
) -> None:
    picture = draw(lambda path: FIGURES[name](job, path), tmp_path)
    (file,) = tmp_path.iterdir()
    data = file.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 400_000
    assert not picture.cut_off
    assert not picture.overlapping


@failures.over("name", FIGURES)
def test_the_same_result_gives_the_same_picture(name: str, tmp_path: Path) -> None:
    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path in paths:
        FIGURES[name](FOUR, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert b"matplotlib" not in first.lower()


@failures.over("num_chunks", [1, 2, 3, 8])
def test_chunks_have_shades_of_one_colour_the_last_one_that_colour(
    num_chunks: int,
) -> None:
    colour = (0.2, 0.4, 0.9)
    shades = _shades(colour, num_chunks)
    assert shades[-1] == pytest.approx(colour)
    assert len(set(shades)) == num_chunks
    assert shades == sorted(shades, reverse=True)
    assert all(0 <= part <= 1 for shade in shades for part in shade)


def test_drawing_leaves_the_users_settings_alone(tmp_path: Path) -> None:
    with mpl.rc_context({"lines.linewidth": 7.0, "font.size": 31.0}):
        before = dict(mpl.rcParams)
        FIGURES["gap"](FOUR, tmp_path / "odd.png")
        assert dict(mpl.rcParams) == before
    FIGURES["gap"](FOUR, tmp_path / "plain.png")
    odd, plain = ((tmp_path / f"{n}.png").read_bytes() for n in ("odd", "plain"))
    assert odd == plain
