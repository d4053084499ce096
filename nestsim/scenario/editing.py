"""Where in a scenario a setting stands, and other values there, as TOML.

A scenario that is made in Python, of a dictionary or of another scenario, is written
down like one that somebody typed: folders of results hold it, and commands read it. The
text reads back as the same values.
"""

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from topologies.errors import InputError, located

_PART = re.compile(r'([A-Za-z0-9_-]+|"[^"\\]*")((?:\[\d{1,6}\])*)')
_EXAMPLE = "names with a dot between them, e.g. cluster.network.levels[1].bandwidth"
_LONGEST = 500

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
        found = _PART.match(text, position)
        if found is None or len(text) > _LONGEST:
            raise InputError(
                "is not the path of a setting", got=text, expected=_EXAMPLE
            )
        parts.append(found[1].strip('"'))
        parts += [int(index) for index in re.findall(r"\d+", found[2])]
        position = found.end()
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
        with located(text):
            _put(changed, paths[text], copy.deepcopy(values[text]))
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


def toml_text(document: Mapping[str, Any]) -> str:
    """Return a table as TOML; inner tables get a heading each.

    Numbers of numpy, tuples and paths are written as numbers, lists and strings.

    Raises
    ------
    InputError
        If a key is no string, or a value is none that TOML has.

    Examples
    --------
    >>> print(toml_text({"name": "first", "search": {"zero_stages": (0, 1)}}), end="")
    name = "first"
    <BLANKLINE>
    [search]
    zero_stages = [0, 1]
    """
    return "\n".join(_lines(document, "")).lstrip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield what stands in a table, inner tables last."""
    inner = {}
    for key, value in table.items():
        place = _dotted(path, key)
        if isinstance(value, Mapping):
            inner[place] = value
        else:
            yield f"{_key(key)} = {_value(value, place)}"
    for place, value in inner.items():
        yield ""
        yield f"[{place}]"
        yield from _lines(value, place)


def _dotted(path: str, key: object) -> str:
    """Return the path of a key inside a table."""
    if not isinstance(key, str):
        raise InputError(
            "is no name of a setting", where=path, got=key, expected="a string"
        )
    return f"{path}.{_key(key)}" if path else _key(key)


def _key(key: str) -> str:
    """Write a name, in quotes where TOML needs them."""
    is_bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if is_bare else _string(key, "")


def _value(value: Any, place: str) -> str:
    """Write one value on one line."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | os.PathLike):
        return _string(os.fspath(value), place)
    if isinstance(value, Mapping):
        items = (
            f"{_key(key)} = {_value(one, _dotted(place, key))}"
            for key, one in value.items()
        )
        return f"{{ {', '.join(items)} }}" if value else "{}"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        items = (_value(one, f"{place}[{index}]") for index, one in enumerate(value))
        return f"[{', '.join(items)}]"
    raise InputError(
        "is no value of a setting",
        where=place,
        got=value,
        expected="a number, true or false, a string, a list or a table",
    )


def _string(text: str, place: str) -> str:
    """Write a string in quotes; what does not print is written as an escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            "is not text", where=place, got=text, expected="letters of Unicode"
        ) from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
