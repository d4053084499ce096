"""The settings that a sweep varies, and the points that they make together.

An axis names a setting by where it stands in a scenario; a point is a scenario with
other values there.
"""

import copy
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tomli

from nestsim.store import Point, plain_json
from topologies.errors import InputError

_PART = re.compile(r'([A-Za-z0-9_-]+|"[^"\\]*")((?:\[\d{1,6}\])*)')
"""Pattern of a part of a path: a name and indexes into lists."""

_EXAMPLE = "names with a dot between them, e.g. cluster.network.levels[1].bandwidth"
"""Description of a path in messages."""

_LONGEST = 500
"""Characters of a path at most."""

Path = tuple[str | int, ...]
"""Names of tables and settings, and positions in lists."""


def parse_path(text: str) -> Path:
    """Return the parts of a dotted path.

    Examples
    --------
    >>> parse_path("cluster.network.levels[1].bandwidth")
    ('cluster', 'network', 'levels', 1, 'bandwidth')
    """
    parts: list[str | int] = []
    position = 0
    while True:
        match = _PART.match(text, position)
        if match is None or len(text) > _LONGEST:
            raise InputError(
                "is not the path of a setting", got=text, expected=_EXAMPLE
            )
        parts.append(match[1].strip('"'))
        parts += [int(index) for index in re.findall(r"\d+", match[2])]
        position = match.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            raise InputError(
                "is not the path of a setting", got=text, expected=_EXAMPLE
            )
        position += 1


def with_values(document: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return a copy of a document in which settings have other values.

    Tables that are not there are made, entries of lists are not. Outer settings are
    put in before inner ones, so that both may be given.

    Raises
    ------
    InputError
        If a path leads through what is neither a table nor a list that long.
    """
    changed: Any = copy.deepcopy(dict(document))
    paths = {text: parse_path(text) for text in values}
    for text in sorted(paths, key=lambda text: len(paths[text])):
        try:
            _put(changed, paths[text], copy.deepcopy(values[text]))
        except InputError as error:
            raise error.at(text) from None
    return changed


def _put(inner: Any, path: Path, value: Any) -> None:
    *outer, last = path
    for part in outer:
        if isinstance(inner, dict) and isinstance(part, str):
            inner = inner.setdefault(part, {})
        else:
            inner = inner[_checked(inner, part)]
    inner[_checked(inner, last)] = value


def _checked(inner: Any, part: str | int) -> Any:
    """Return the part if it can be a key or a position here."""
    if isinstance(part, str):
        if not isinstance(inner, dict):
            raise InputError(
                f'there is no table that could hold "{part}"',
                got=inner,
                expected="a table before each dot",
            )
    elif not isinstance(inner, list):
        raise InputError(
            f"there is no list that could have an entry [{part}]",
            got=inner,
            expected="a list before each bracket",
        )
    elif part >= len(inner):
        raise InputError(
            f"the list has no entry [{part}]",
            got=f"{len(inner)} entries",
            expected=f"0 to {len(inner) - 1}" if inner else "a list with entries",
        )
    return part


def spelt(values: Mapping[str, Any]) -> str:
    """Return settings and their values as one writes them, on one line."""
    return ", ".join(f"{path} = {_spelt(value)}" for path, value in values.items())


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Sequence):
        return f"[{', '.join(_spelt(one) for one in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {_spelt(v)}' for k, v in value.items())} }}"
    return str(value)


MOST_POINTS = 1_000_000
"""A product with more is a slip of the keyboard."""

OWN_TABLES = ("sweep", "stress", "assert")
"""Tables of a scenario that say nothing of the job itself."""

_OPENING, _CLOSING = "[{", "]}"
"""Brackets inside of which commas do not part values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One setting and its values."""

    path: str
    """Dotted path of the setting."""

    values: tuple[Any, ...]
    """Plain JSON values, each once."""


def axis(path: str, values: Sequence[Any]) -> Axis:
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


def _text(path: str, value: Any) -> str:
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
    values = [_value(path, one) for one in _split(path, listed)]
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


def merged(
    table: Mapping[str, Sequence[Any]], texts: Sequence[str]
) -> tuple[Axis, ...]:
    """Return the axes of a table [sweep.set], with those of ``--set`` put over them.

    Those that the table does not have come after it.

    Raises
    ------
    InputError
        If an axis is wrong, given twice by ``--set``, or there is none.
    """
    axes = {}
    for path, values in table.items():
        try:
            axes[path] = axis(path, values)
        except InputError as error:
            raise error.at("sweep.set", ": ") from None
    given: set[str] = set()
    for text in texts:
        try:
            read = axis_of_text(text)
        except InputError as error:
            raise error.at("--set", ": ") from None
        if read.path in given:
            raise InputError(
                "the setting is given twice",
                where="--set",
                got=read.path,
                expected="all its values in one --set",
            )
        given.add(read.path)
        axes[read.path] = read
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
    count = math.prod(len(one.values) for one in axes)
    if count > MOST_POINTS:
        raise InputError(
            "makes too many points",
            where="--set",
            got=f"{count:,} points",
            expected=f"at most {MOST_POINTS:,}",
        )
    paths = [one.path for one in axes]
    # One level of JSON: points do not share lists with each other.
    return tuple(
        dict(zip(paths, json.loads(plain_json(values)), strict=True))
        for values in itertools.product(*(one.values for one in axes))
    )
