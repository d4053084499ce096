"""No figure of a run cuts a word off or writes one over another."""

from pathlib import Path

from tests import failures
from tests.nestsim.document.pictures import draw
from tests.nestsim.features.run.test_figures import DRAWN, FIGURES


@failures.over(("name", "job"), DRAWN)
def test_words_of_a_run_can_be_read(name: str, job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    picture = draw(lambda path: FIGURES[name](job, path), tmp_path)
    assert not picture.cut_off
    assert not picture.overlapping
