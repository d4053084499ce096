"""The settings that a sweep varies, and the points that they make together."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli

from nestsim.running.store import Point, plain_json
from nestsim.scenario.editing import parse_path
from topologies.errors import InputError

MOST_POINTS = 1_000_000
"""A product with more is a slip of the keyboard."""

OWN_TABLES = (
    *("sweep", "stress", "jitter", "goodput", "rl", "sites"),
    *("launch", "assert"),
)
"""Tables of a scenario that say nothing of the job itself."""

_OPENING, _CLOSING = "[{", "]}"
"""Brackets inside of which commas do not part values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One setting and its values."""

    path: str
    """Dotted path of the setting."""

    values: tuple[object, ...]
    """Plain JSON values, each once."""


def axis(path: str, values: Sequence[object]) -> Axis:
    """Return a setting with its values, checked.

    Raises
    ------
    InputError
        If the path is none, or names what is no part of the job; or a value is not
        one that a setting can have, or stands there twice.
    """
    root = parse_path(path)[0]
    if root in OWN_TABLES:
        raise InputError(
            f"[{root}] is not a part of what is evaluated at a point",
            got=path,
            expected="a setting of the model, the job, the cluster or the plan",
        )
    if not values:
        raise InputError(
            "has no values", where=path, expected="a list of at least one value"
        )
    seen: dict[str, int] = {}
    for index, value in enumerate(values):
        text = _text(path, value)
        if text in seen:
            raise InputError(
                "stands in the list twice",
                where=path,
                got=value,
                expected="every value once",
            )
        seen[text] = index
    return Axis(path=path, values=tuple(values))


def _text(path: str, value: object) -> str:
    try:
        return plain_json(value, sort_keys=True)
    except (TypeError, ValueError):  # a date, or a number such as nan
        raise InputError(
            "is no value of a setting",
            where=path,
            got=str(value),
            expected="a number, true or false, a string, a list or a table",
        ) from None


def axis_of_text(text: str) -> Axis:
    """Read ``path=v1,v2,..``: what ``--set`` is given.

    Values are written as in TOML; what is not TOML, such as ``400 Gbit/s``, is a
    string and needs no quotes. One list stands for its entries, so that the list
    ``[1, 2]`` as a value is written ``[[1, 2]]``.

    Examples
    --------
    >>> axis_of_text("cluster.network.nic_bandwidth=200 Gbit/s,400 Gbit/s").values
    ('200 Gbit/s', '400 Gbit/s')
    >>> axis_of_text("search.micro_batch_sizes=[1,2],[4]").values
    ([1, 2], [4])
    """
    path, equals, listed = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise InputError(
            "is not a setting with values",
            got=text,
            expected="PATH=VALUE,.., e.g. training.global_batch_size=256,512",
        )
    values = [_value(path, part) for part in _split(path, listed)]
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    return axis(path, values)


def _split(path: str, text: str) -> list[str]:
    """Split at commas outside quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPENING:
            depth += 1
        elif letter in _CLOSING:
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append("")
            continue
        parts[-1] += letter
    parts = [part.strip() for part in parts]
    if quote or depth or not all(parts):
        raise InputError(
            "is not a list of values",
            where=path,
            got=text,
            expected="values separated by commas, brackets and quotes closed",
        )
    return parts


def _value(path: str, text: str) -> Any:
    """Return what a value is in TOML, or the text itself where it is none."""
    try:
        document = tomli.loads(f"value = {text}")
    except tomli.TOMLDecodeError:
        document = {}
    if document.keys() == {"value"}:
        return document["value"]
    if text[0] in _OPENING + "\"'":
        raise InputError(
            "is not TOML", where=path, got=text, expected='e.g. [1, 2] or "400 Gbit/s"'
        )
    return text


def axes_of_texts(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Read what every ``--set`` is given.

    Raises
    ------
    InputError
        If an axis is wrong, or given twice.
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        try:
            axis_read = axis_of_text(text)
        except InputError as error:
            raise error.at("--set", ": ") from None
        if axis_read.path in axes:
            raise InputError(
                "the setting is given twice",
                where="--set",
                got=axis_read.path,
                expected="all its values in one --set",
            )
        axes[axis_read.path] = axis_read
    return tuple(axes.values())


def merged(
    table: Mapping[str, Sequence[object]], given: Sequence[Axis]
) -> tuple[Axis, ...]:
    """Return the axes of a table [sweep.set], with given ones put over them.

    Those that the table does not have come after it.

    Raises
    ------
    InputError
        If an axis of the table is wrong, or there is none.
    """
    axes = {}
    for path, values in table.items():
        try:
            axes[path] = axis(path, values)
        except InputError as error:
            raise error.at("sweep.set", ": ") from None
    axes |= {chosen.path: chosen for chosen in given}
    if not axes:
        raise InputError(
            "there is nothing to vary",
            where="--set",
            expected="PATH=VALUE,.., or a table [sweep.set] in the scenario",
        )
    return tuple(axes.values())


def product(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Return every combination of values; the last setting changes fastest.

    Raises
    ------
    InputError
        If there are more than `MOST_POINTS`.
    """
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise InputError(
            "makes too many points",
            where="--set",
            got=f"{count:,} points",
            expected=f"at most {MOST_POINTS:,}",
        )
    paths = [axis.path for axis in axes]
    # One level of JSON: points do not share lists with each other.
    return tuple(
        dict(zip(paths, json.loads(plain_json(values)), strict=True))
        for values in itertools.product(*(axis.values for axis in axes))
    )
