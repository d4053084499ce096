"""The store of a sweep: one SQLite file, one transaction for each finished point.

A point is a mapping of names to plain JSON values, and so is the row of results that a
task makes of it. Neither holds a time of day, a duration of the computation, or a
number that JSON does not have, so that the same point gives the same bytes; a hash of
its content is a point's key.

One process writes the store. The journal is SQLite's rollback journal, synchronised
with the disk at each commit: unlike a write-ahead log it leaves one file and works on
network file systems. A process that is killed leaves every point either whole or not
there. Points and rows are kept as JSON, keys in their order. Durations stand in a table
of their own, as they are the only content that differs from one run to the next.
"""

import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from topologies.errors import InputError

Point = Mapping[str, Any]
"""Names of settings -> plain JSON values."""

Row = Mapping[str, Any]
"""Names of results -> plain JSON values."""


class PointTask(Protocol):
    """What is done with each point; it travels to other processes by pickle."""

    def __call__(self, point: Point) -> Row:
        """Return the results of a point, the same ones wherever and whenever.

        Raises
        ------
        InputError
            If the point asks for something that cannot be: recorded as its failure.
        PointFailedError
            If nothing was found: recorded as its failure, too.
        """
        ...

    def key(self, point: Point) -> str:
        """Return what tells the point from all others: `content_key` of its content."""
        ...


class PointFailedError(Exception):
    """A point that has no results, and why; the sweep goes on."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one point."""

    number: int
    """Position of the point among the points, from 0."""

    key: str
    """Hash by which the task recognises the point."""

    point: Point
    """Settings of the point."""

    row: Row | None
    """Results of the point; None if it failed."""

    reason: str = ""
    """Reason why the point failed, on one line; empty if it did not."""


def plain_json(value: object, *, sort_keys: bool = False) -> str:
    """Return plain values as JSON text, as short as it goes.

    Raises
    ------
    ValueError
        If there is a number that JSON does not have: infinite, or none at all.
    """
    return json.dumps(
        value,
        sort_keys=sort_keys,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )


def content_key(value: object) -> str:
    """Return a hash of plain values that does not depend on the order of keys.

    Examples
    --------
    >>> content_key({"a": 1, "b": [2]}) == content_key({"b": [2], "a": 1})
    True
    """
    return hashlib.sha256(plain_json(value, sort_keys=True).encode()).hexdigest()


SCHEMA_VERSION = 2
"""Version of the tables below; stored as SQLite's ``user_version``."""

APPLICATION_ID = 0x4E455354
"""Says that nestsim made a database; stored as SQLite's ``application_id``."""

_LEAVE = "another --output leaves it alone"
"""Hint that leaves a store in place."""

_FORGET = f"--restart forgets it; {_LEAVE}"
"""Hint that deletes a store or leaves it in place."""

_BESIDE = ("-journal", "-wal", "-shm")
"""What SQLite may leave beside a database when it is killed."""

_SCHEMA = (
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE points (number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, "
    "point TEXT NOT NULL, row TEXT, reason TEXT, digest TEXT NOT NULL, "
    "CHECK ((row IS NULL) != (reason IS NULL)))",
    "CREATE TABLE durations (number INTEGER PRIMARY KEY REFERENCES points, "
    "seconds REAL NOT NULL)",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)
"""Statements that make the tables of a store."""


class Store:
    """Finished points on disk, or in memory, for one sweep.

    Parameters
    ----------
    path
        The file, which is made if it is not there; None to keep points in memory.
    facts
        What the points depend on beside their settings, as names and hashes: a store
        with other facts is of another sweep.
    restart
        Forget all that is there.

    Raises
    ------
    InputError
        If the file is none of ours, of another sweep, or being written by another
        process.
    """

    def __init__(
        self,
        path: Path | None = None,
        facts: Mapping[str, str] | None = None,
        *,
        restart: bool = False,
    ) -> None:
        self.path = path
        if path is not None and not _may_be_opened(path):
            raise self._not_ours("the file sweep.sqlite of a sweep, or none")
        if restart and path is not None:
            remove_store(path)
        with self._worded():
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path, isolation_level=None, timeout=0.0
            )
            try:
                self._prepare(dict(facts or {}))
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def keys(self) -> dict[int, str]:
        """Return the key of each finished point by its number, rising."""
        with self._worded():
            rows = self._connection.execute(
                "SELECT number, key FROM points ORDER BY number"
            )
            return dict(rows.fetchall())

    def record(self, outcome: Outcome, seconds: float) -> None:
        """Write a finished point down, whole or not at all.

        Parameters
        ----------
        outcome
            What became of it.
        seconds
            How long that took [s].
        """
        row = None if outcome.row is None else plain_json(outcome.row)
        reason = outcome.reason if outcome.row is None else None
        cells = (outcome.number, outcome.key, plain_json(outcome.point), row, reason)
        with self._worded(), self._transaction():
            self._connection.execute(
                "INSERT INTO points VALUES (?, ?, ?, ?, ?, ?)",
                (*cells, content_key(cells)),
            )
            self._connection.execute(
                "INSERT INTO durations VALUES (?, ?)", (outcome.number, seconds)
            )

    def outcomes(self) -> Iterator[Outcome]:
        """Yield what became of each finished point, by number.

        Raises
        ------
        InputError
            If it is not what was recorded: SQLite does not see a changed byte.
        """
        with self._worded():
            rows = self._connection.execute(
                "SELECT number, key, point, row, reason, digest FROM points "
                "ORDER BY number"
            )
            for *cells, digest in rows:
                if any(isinstance(cell, bytes) for cell in cells) or (
                    digest != content_key(cells)
                ):
                    raise self._not_ours("points as they were recorded", _FORGET)
                number, key, point, row, reason = cells
                yield Outcome(
                    number=number,
                    key=key,
                    point=json.loads(point),
                    row=None if row is None else json.loads(row),
                    reason=reason or "",
                )

    def seconds(self) -> dict[int, float]:
        """Return how long each finished point took, by number [s]."""
        with self._worded():
            rows = self._connection.execute(
                "SELECT number, seconds FROM durations ORDER BY number"
            )
            seconds = dict(rows.fetchall())
        if not all(isinstance(taken, float) for taken in seconds.values()):
            raise self._not_ours("times as they were recorded", _FORGET)
        return seconds

    def _prepare(self, facts: dict[str, str]) -> None:
        """Take hold of the file; make its tables, or check whose they are."""
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = DELETE")
        run("PRAGMA synchronous = FULL")
        with self._transaction():
            (version,) = run("PRAGMA user_version").fetchone()
            (tables,) = run("SELECT count(*) FROM sqlite_master").fetchone()
            if version == 0 and tables == 0:
                for statement in _SCHEMA:
                    run(statement)
                rows = sorted(facts.items())
                self._connection.executemany("INSERT INTO facts VALUES (?, ?)", rows)
                return
            if version != SCHEMA_VERSION:
                raise self._not_ours("a store of this version of nestsim", _FORGET)
            stored = dict(run("SELECT name, value FROM facts").fetchall())
        if any(isinstance(cell, bytes) for pair in stored.items() for cell in pair):
            raise self._not_ours("facts as they were recorded", _FORGET)
        if stored != facts:
            names = sorted(stored.keys() | facts.keys())
            other = ", ".join(n for n in names if stored.get(n) != facts.get(n))
            raise InputError(
                f"belongs to another sweep: other {other}",
                where=str(self.path),
                expected="the sweep that it was begun with, to be taken up again",
                hint=_FORGET,
            )
        for _ in self.outcomes():  # what is damaged is told before hours of work
            pass

    def _not_ours(self, expected: str, hint: str = _LEAVE) -> InputError:
        return InputError(
            "is not a store that nestsim can take up",
            where=str(self.path),
            expected=expected,
            hint=hint,
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN EXCLUSIVE")
        try:
            yield
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    @contextmanager
    def _worded(self) -> Iterator[None]:
        """Say what SQLite reports as a mistake that a user can act on."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # ours: points of the file are whole, `_prepare` has looked
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise InputError(
                    "is being written by another process",
                    where=str(self.path),
                    expected="one sweep at a time in a folder",
                ) from None
            if str(error).startswith("no such"):
                raise self._not_ours("the tables of a sweep", _FORGET) from None
            raise InputError(
                f"cannot be used: {error}",
                where=str(self.path),
                expected="a file that can be written",
            ) from None
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            # SQLite quotes damaged bytes in its messages, which Python cannot read.
            raise self._not_ours("the file sweep.sqlite of a sweep") from None


def is_store(path: Path) -> bool:
    """Return whether nestsim made a file: a store, or one that is not begun yet.

    Links are not followed, and nothing is written.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return False
            head = file.read(100)
    except OSError:
        return False
    if not head:
        return True
    # The header of the file format of SQLite 3, section 1.3.
    if not head.startswith(b"SQLite format 3\0") or len(head) < 100:
        return False
    if int.from_bytes(head[68:72], "big") == APPLICATION_ID:
        return True
    return int.from_bytes(head[60:64], "big") == SCHEMA_VERSION and _has_tables(path)


def _has_tables(path: Path) -> bool:
    """Return whether a database has our tables: stores had no other mark at first."""
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?immutable=1", uri=True
        )
        try:
            rows = connection.execute("SELECT name FROM sqlite_master").fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return False
    return {"facts", "points", "durations"} <= {name for (name,) in rows}


def _may_be_opened(path: Path) -> bool:
    """Return whether there is a store or nothing; SQLite follows links beside it."""
    beside = [path.with_name(path.name + suffix) for suffix in _BESIDE]
    is_free = not os.path.lexists(path) or is_store(path)
    return is_free and not any(file.is_symlink() for file in beside)


def is_part_of_store(path: Path) -> bool:
    """Return whether a file is a store, or what SQLite may have left beside one."""
    for suffix in _BESIDE:
        if path.name.endswith(suffix) and not path.is_symlink():
            path = path.with_name(path.name.removesuffix(suffix))
    return path.suffix == ".sqlite" and is_store(path)


def remove_store(path: Path) -> None:
    """Delete a store of ours, and what SQLite may have left beside it.

    Raises
    ------
    InputError
        If it cannot be deleted.
    """
    assert is_store(path) or not os.path.lexists(path)
    try:
        for suffix in ("", *_BESIDE):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be removed: {error.strerror}", where=str(path)
        ) from None
