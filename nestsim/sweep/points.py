"""Points, the rows that come of them, and what both are told apart by.

A point is a mapping of names to plain JSON values, and so is the row of results that a
task makes of it. Neither holds a time of day, a duration of the computation, or a
number that JSON does not have, so that the same point gives the same bytes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Point = Mapping[str, Any]
"""Names of settings -> plain JSON values."""

Row = Mapping[str, Any]
"""Names of results -> plain JSON values."""


class Task(Protocol):
    """What is done with each point; it travels to other processes by pickle."""

    def __call__(self, point: Point) -> Row:
        """Return the results of a point, the same ones wherever and whenever.

        Raises
        ------
        InputError
            If the point asks for something that cannot be: recorded as its failure.
        PointFailedError
            If nothing was found: likewise.
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
    """Position among the points, from 0."""

    key: str
    """What the task tells the point by."""

    point: Point
    """Its settings."""

    row: Row | None
    """Its results; None if it failed."""

    reason: str = ""
    """Why it failed, on one line; empty if it did not."""


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
