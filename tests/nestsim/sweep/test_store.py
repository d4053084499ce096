"""The store: whole points, once each, of one sweep."""

import sqlite3
from pathlib import Path

import pytest

from nestsim.sweep.points import Outcome
from nestsim.sweep.store import Store
from topologies.errors import InputError

FACTS = {"scenario": "abc", "version of nestsim": "1"}


def outcome(number: int, key: str = "", *, failed: bool = False) -> Outcome:
    return Outcome(
        number=number,
        key=key or f"key {number}",
        point={"x": number},
        row=None if failed else {"z": 0.1 + number, "a": [1, "é"]},
        reason="it does not fit" if failed else "",
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sweep.sqlite"


def test_what_is_recorded_comes_back_by_number(path: Path) -> None:
    recorded = [outcome(2), outcome(0, failed=True), outcome(1)]
    with Store(path, FACTS) as store:
        for one in recorded:
            store.record(one, 0.5)
    with Store(path, FACTS) as store:
        assert list(store.outcomes()) == sorted(recorded, key=lambda one: one.number)
        assert store.keys() == {0: "key 0", 1: "key 1", 2: "key 2"}
        assert store.seconds() == {0: 0.5, 1: 0.5, 2: 0.5}
        assert list(next(iter(store.outcomes())).point) == ["x"]


def test_rows_keep_the_order_of_their_names(path: Path) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.0)
        (one,) = store.outcomes()
    assert one.row is not None
    assert list(one.row) == ["z", "a"]


@pytest.mark.parametrize("second", [outcome(0, "other"), outcome(1, "key 0")])
def test_no_number_and_no_key_is_recorded_twice(path: Path, second: Outcome) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.0)
        with pytest.raises(sqlite3.IntegrityError):
            store.record(second, 0.0)
        assert list(store.outcomes()) == [outcome(0)]


def test_a_point_whose_duration_cannot_be_written_is_not_there(path: Path) -> None:
    with Store(path, FACTS) as store:
        with pytest.raises(sqlite3.IntegrityError):
            store.record(outcome(0), None)  # type: ignore[arg-type]
        assert store.keys() == {}


def test_the_store_of_another_sweep_is_refused(path: Path) -> None:
    Store(path, FACTS).close()
    with pytest.raises(InputError) as caught:
        Store(path, {**FACTS, "scenario": "abd"})
    assert caught.value.problem == "belongs to another sweep: other scenario"
    assert "--restart" in caught.value.hint


def test_a_restart_forgets_what_was_there(path: Path) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.0)
    with Store(path, {"scenario": "other"}, restart=True) as store:
        assert store.keys() == {}


def test_two_processes_do_not_write_the_same_store(path: Path) -> None:
    with (
        Store(path, FACTS),
        pytest.raises(InputError, match="being written by another process"),
    ):
        Store(path, FACTS)


def test_a_file_of_other_origin_is_refused_and_kept(path: Path) -> None:
    content = b"not SQLite, " * 100
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a store that nestsim can take up"):
        Store(path, FACTS)
    assert path.read_bytes() == content


def test_another_schema_is_refused(path: Path) -> None:
    Store(path, FACTS).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InputError, match="is not a store that nestsim can take up"):
        Store(path, FACTS)


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        Store(tmp_path / "no" / "sweep.sqlite", FACTS)


def test_one_file_is_left(path: Path) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.0)
    assert [one.name for one in path.parent.iterdir()] == [path.name]
