"""The store: whole points, once each, of one sweep."""

import os
import random
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from nestsim.running.store import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    Outcome,
    Store,
    content_key,
    is_part_of_store,
    is_store,
    plain_json,
    remove_store,
)
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
    waits = []
    with Store(path, FACTS):
        for _ in range(3):
            begun = time.monotonic()
            with pytest.raises(InputError, match="being written by another process"):
                Store(path, FACTS)
            waits.append(time.monotonic() - begun)
    assert min(waits) < 0.5, "it waits for the other one"


def test_a_file_of_other_origin_is_refused_and_kept(path: Path) -> None:
    content = b"not SQLite, " * 100
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a store that nestsim can take up"):
        Store(path, FACTS)
    assert path.read_bytes() == content


@pytest.mark.parametrize("restart", [False, True])
def test_a_foreign_database_is_refused_and_never_removed(
    path: Path, restart: bool
) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE points (mine TEXT)")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.close()
    content = path.read_bytes()
    assert not is_store(path)
    with pytest.raises(InputError, match="is not a store that nestsim can take up"):
        Store(path, FACTS, restart=restart)
    assert path.read_bytes() == content


@pytest.mark.parametrize("restart", [False, True])
def test_a_link_to_a_store_is_not_followed(path: Path, restart: bool) -> None:
    other = path.with_name("other.sqlite")
    Store(other, FACTS).close()
    path.symlink_to(other)
    with pytest.raises(InputError, match="is not a store"):
        Store(path, FACTS, restart=restart)
    assert is_store(other)
    assert not is_store(path)


def test_a_link_beside_a_store_is_not_followed(path: Path) -> None:
    mine = path.with_name("thesis.tex")
    mine.write_text("years of work")
    journal = path.with_name(f"{path.name}-journal")
    journal.symlink_to(mine)
    with pytest.raises(InputError, match="is not a store"):
        Store(path, FACTS)
    assert not is_part_of_store(journal)
    assert mine.read_text() == "years of work"


def test_what_is_no_file_is_no_store(path: Path) -> None:
    os.mkfifo(path)
    assert not is_store(path)
    assert not is_store(path.parent)
    assert not is_store(path.with_name("none.sqlite"))


def test_stores_from_before_they_had_a_mark_are_known(path: Path) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.0)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 0")
    connection.close()
    assert is_store(path)
    with Store(path, FACTS) as store:
        assert len(store.keys()) == 1
    Store(path, {"scenario": "other"}, restart=True).close()


def test_what_lies_beside_a_store_is_a_part_of_it(path: Path) -> None:
    beside = path.with_name(f"{path.name}-journal")
    beside.touch()
    assert not is_part_of_store(beside)
    Store(path, FACTS).close()
    assert is_part_of_store(beside)
    assert is_part_of_store(path)
    remove_store(path)
    assert list(path.parent.iterdir()) == []


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


def damaged(whole: bytes, number: int, draw: random.Random) -> bytes:
    """Return a file with some bytes exchanged, or its end cut off."""
    content = bytearray(whole)
    if number % 5 == 4:
        del content[draw.randrange(len(content)) :]
    used = [place for place, byte in enumerate(content) if byte]  # most are empty
    for _ in range(1 + number % 3) if number % 5 < 4 else ():
        content[draw.choice(used)] = draw.randrange(256)
    return bytes(content)


def test_damage_is_told_in_a_sentence_and_nothing_changed_is_read(path: Path) -> None:
    recorded = [outcome(number, failed=number % 3 == 2) for number in range(12)]
    with Store(path, FACTS) as store:
        for one in recorded:
            store.record(one, 0.5)
    whole, draw, problems, refused = path.read_bytes(), random.Random(0), [], 0
    for number in range(400):
        path.write_bytes(damaged(whole, number, draw))
        try:
            with Store(path, FACTS) as store:
                found = list(store.outcomes())
                assert all(isinstance(one, float) for one in store.seconds().values())
                store.record(outcome(99), 1.0)
            problems += [(number, one) for one in found if one not in recorded]
        except InputError as error:
            refused += error.where == str(path)
        except Exception as error:
            problems.append((number, repr(error)))
        for beside in path.parent.iterdir():
            beside.unlink()
    assert not problems
    assert refused > 200


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE facts SET name = x'ff00' WHERE name = (SELECT max(name) FROM facts)",
        "UPDATE facts SET value = x'ff00'",
        "DROP TABLE facts",
        "DROP TABLE points",
        "DROP TABLE durations",
    ],
)
def test_a_store_that_lost_a_part_can_be_begun_anew(path: Path, statement: str) -> None:
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.5)
    with closing(sqlite3.connect(path)) as changed:
        changed.execute(statement)
        changed.commit()
    with (
        pytest.raises(InputError, match="not a store") as caught,
        Store(path, FACTS) as store,
    ):
        store.seconds()
    assert "--restart" in caught.value.hint


HEADER = b"SQLite format 3\0"
"""How each database begins."""


@pytest.mark.parametrize(("place", "size"), [(68, 100), (69, 100), (68, 99), (68, 101)])
def test_a_store_is_known_by_its_header(path: Path, place: int, size: int) -> None:
    mark = APPLICATION_ID.to_bytes(4, "big")
    head = HEADER.ljust(place, b"\0") + mark
    path.write_bytes(head.ljust(size, b"\0"))
    assert is_store(path) == (place == 68 and size >= 100)
    path.write_bytes(b"?" + head.ljust(size, b"\0")[1:])
    assert not is_store(path)
    path.write_bytes(b"")
    assert is_store(path)


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


OURS = f"PRAGMA application_id = {APPLICATION_ID}"
VERSION = f"PRAGMA user_version = {SCHEMA_VERSION}"


@pytest.mark.parametrize(
    "statements",
    [
        (OURS, "CREATE TABLE notes (text TEXT)"),
        (OURS, VERSION),
        (OURS, VERSION, "CREATE TABLE notes (text TEXT)"),
        (OURS, f"PRAGMA user_version = {SCHEMA_VERSION - 1}"),
    ],
)
def test_tables_are_made_in_an_empty_store_alone(
    path: Path, statements: tuple[str, ...]
) -> None:
    changed(path, *statements)
    content = path.read_bytes()
    with pytest.raises(InputError, match="is not a store that nestsim can take up"):
        Store(path, FACTS)
    assert path.read_bytes() == content


def test_tables_are_made_in_a_store_that_is_not_begun(path: Path) -> None:
    changed(path, OURS)
    with Store(path, FACTS) as store:
        store.record(outcome(0), 0.5)
        assert store.keys() == {0: "key 0"}


@pytest.mark.parametrize(
    "tables", [("facts", "points"), ("facts", "points", "durations", "more")]
)
def test_stores_without_a_mark_are_known_by_all_their_tables(
    path: Path, tables: tuple[str, ...]
) -> None:
    changed(path, VERSION, *(f"CREATE TABLE {name} (x TEXT)" for name in tables))
    assert is_store(path) == (len(tables) > 2)
    for other in (SCHEMA_VERSION + 1, SCHEMA_VERSION + 2**24, SCHEMA_VERSION * 256):
        changed(path, f"PRAGMA user_version = {other}")
        assert not is_store(path)


@pytest.mark.parametrize("column", ["key", "point", "row"])
def test_each_changed_cell_is_noticed(path: Path, column: str) -> None:
    for value in ("x'ff00'", "'{}'"):
        with Store(path, FACTS, restart=True) as store:
            for number in range(3):
                store.record(outcome(number), 0.5)
        changed(path, f"UPDATE points SET {column} = {value} WHERE number = 1")
        with pytest.raises(InputError, match="not a store") as caught:
            Store(path, FACTS)
        assert "--restart" in caught.value.hint


def test_one_changed_duration_is_noticed(path: Path) -> None:
    with Store(path, FACTS) as store:
        for number in range(3):
            store.record(outcome(number), 0.5)
    changed(path, "UPDATE durations SET seconds = x'ff' WHERE number = 1")
    with Store(path, FACTS) as store, pytest.raises(InputError, match="not a store"):
        store.seconds()


def test_one_fact_that_is_no_text_is_noticed(path: Path) -> None:
    Store(path, FACTS).close()
    changed(path, "UPDATE facts SET value = x'61' WHERE name = 'scenario'")
    with pytest.raises(InputError, match="not a store") as caught:
        Store(path, FACTS)
    assert "facts as they were recorded" in str(caught.value)


def test_facts_that_are_missing_or_new_are_named(path: Path) -> None:
    Store(path, FACTS).close()
    with pytest.raises(InputError, match="belongs to another sweep") as caught:
        Store(path, {"scenario": "abc", "zone": "1"})
    assert caught.value.problem.endswith("other version of nestsim, zone")


def test_a_link_among_what_lies_beside_is_enough_to_refuse(path: Path) -> None:
    Store(path, FACTS).close()
    for suffix in ("-journal", "-wal", "-shm"):
        link = path.with_name(path.name + suffix)
        link.symlink_to(path.with_name("elsewhere"))
        with pytest.raises(InputError, match="is not a store"):
            Store(path, FACTS)
        assert not is_part_of_store(link)
        link.unlink()


def test_what_is_part_of_a_store_has_its_name_and_its_mark(path: Path) -> None:
    Store(path, FACTS).close()
    other = path.with_suffix(".db")
    other.write_bytes(path.read_bytes())
    assert is_store(other)
    assert not is_part_of_store(other)
    foreign = path.with_name("foreign.sqlite")
    changed(foreign, "CREATE TABLE notes (text TEXT)")
    assert not is_part_of_store(foreign)


def test_keys_and_json_do_not_depend_on_order_but_on_content() -> None:
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})
    assert plain_json({"b": "é", "a": [1, 2]}) == '{"b":"é","a":[1,2]}'
    with pytest.raises(ValueError, match="JSON"):
        plain_json(float("inf"))
