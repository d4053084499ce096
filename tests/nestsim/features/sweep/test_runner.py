"""Points evaluated on any number of workers, once, whatever happens to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nestsim.features.sweep.executors import protocol
from nestsim.features.sweep.executors.protocol import (
    DIED,
    OUT_OF_MEMORY,
    Evaluate,
    TimeIsUpError,
)
from nestsim.features.sweep.job import csv_text, write_parquet
from nestsim.features.sweep.runner import run_sweep
from nestsim.running.store import Store
from tests.nestsim.features.sweep.tasks import Square
from topologies.errors import InputError

POINTS = [
    {"x": 0, "tag": 1},
    {"x": 1, "mishap": "input"},
    {"x": 2, "mishap": "nothing"},
    {"x": 3, "mishap": "memory"},
    {"x": 4, "tag": "text"},
    {"x": 5, "tag": [1, 2]},
]
REASONS = [
    "",
    "a.b: is wrong (got: 1; expected: another)",
    "nothing fits",
    OUT_OF_MEMORY,
    "",
    "",
]


@pytest.mark.parametrize("workers", [1, 2, None])
def test_failures_are_recorded_with_their_reason_and_the_sweep_goes_on(workers) -> None:
    result = run_sweep(POINTS, Square(), workers=workers)
    assert [one.reason for one in result.outcomes] == REASONS
    assert [one.number for one in result.outcomes] == list(range(6))
    assert [one.point for one in result.outcomes] == POINTS
    squares = [None if row is None else row["square"] for row in result.rows]
    assert squares == [0, None, None, None, 16, 25]
    assert [one.number for one in result.failed] == [1, 2, 3]


def test_exports_are_the_same_bytes_on_1_and_2_workers(tmp_path: Path) -> None:
    one, two = (run_sweep(POINTS, Square(), workers=n).outcomes for n in (1, 2))
    assert csv_text(one) == csv_text(two)
    files = tmp_path / "one", tmp_path / "two"
    for outcomes, file in zip((one, two), files, strict=True):
        write_parquet(outcomes, file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_the_table_has_every_value() -> None:
    import io

    import pandas as pd

    outcomes = run_sweep(POINTS, Square()).outcomes
    frame = pd.read_csv(io.StringIO(csv_text(outcomes)), keep_default_na=False)
    assert list(frame) == [
        *("number", "x", "tag", "mishap", "state", "failure"),
        *("square", "third", "text"),
    ]
    assert list(frame["tag"]) == ["1", "", "", "", "text", "[1,2]"]
    assert list(frame["state"]) == ["done", *["failed"] * 3, "done", "done"]
    assert list(frame["failure"]) == REASONS
    assert float(frame["third"][5]) == 5 / 3


def test_a_worker_that_dies_costs_its_own_point_only() -> None:
    points = [{"x": x} for x in range(8)]
    points[3]["mishap"] = "death"
    result = run_sweep(points, Square(), workers=2)
    assert [one.reason for one in result.outcomes] == ["", "", "", DIED, *[""] * 4]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_point_that_takes_too_long_fails(workers) -> None:
    points = [{"x": 1}, {"x": 2, "seconds": 60}, {"x": 3}]
    result = run_sweep(points, Square(), workers=workers, time_limit=0.5)
    reasons = [one.reason for one in result.outcomes]
    assert reasons == ["", "took longer than 500 ms", ""]


def test_a_point_has_a_row_or_a_reason_when_the_alarm_rings_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def alarm(_: float | None) -> Iterator[None]:
        yield
        raise TimeIsUpError

    monkeypatch.setattr(protocol, "alarm", alarm)
    answer = Evaluate(Square(), 0.5)(0, {"x": 1})
    assert (answer.row, answer.reason) == (None, "took longer than 500 ms")


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_done_is_not_done_again(tmp_path: Path, workers) -> None:
    count = tmp_path / "count"
    points = [{"x": x, "count": str(count)} for x in range(6)]
    path = tmp_path / "sweep.sqlite"
    points[1] |= {"mishap": "input"}
    points[4] |= {"mishap": "bug"}
    with Store(path) as store, pytest.raises(ZeroDivisionError):
        run_sweep(points, Square(), store)
    with Store(path) as store:
        assert list(store.keys()) == [0, 1, 2, 3]
    assert count.read_text() == "xxxxx"

    class Mended(Square):
        def __call__(self, point):
            return super().__call__({"mishap": "", **point} | {"mishap": ""})

    with Store(path) as store:
        result = run_sweep(points, Mended(), store, workers=workers)
    assert count.read_text() == "xxxxxxx"
    assert [one.row is None for one in result.outcomes] == [False, True, *[False] * 4]


def test_a_point_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="points 1 and 3 are the same"):
        run_sweep([{"x": 1}, {"x": 2}, {"x": 1}], Square())


@pytest.mark.parametrize("points", [[{"x": 5}, {"x": 2}], [{"x": 1}]])
def test_a_store_of_other_points_is_refused(tmp_path: Path, points) -> None:
    with Store(tmp_path / "sweep.sqlite") as store:
        run_sweep([{"x": 1}, {"x": 2}], Square(), store)
        with pytest.raises(InputError, match="holds points of another sweep"):
            run_sweep(points, Square(), store)


def test_progress_tells_count_rate_and_time_left() -> None:
    told: list[tuple[str, float | None]] = []
    points = [{"x": x} for x in range(4)]
    run_sweep(points, Square(), progress=lambda text, share: told.append((text, share)))
    assert told[0] == ("point 0 of 4", 0.0)
    assert [share for _, share in told] == [0.0, 0.25, 0.5, 0.75, 1.0]
    for text, _ in told[1:]:
        assert "/s, " in text
        assert text.endswith(" s left")


def test_no_points_make_no_results() -> None:
    assert run_sweep([], Square(), workers=2).outcomes == ()
