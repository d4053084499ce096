"""Where in a scenario a setting stands, and a scenario with other values there."""

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any

from topologies.errors import InputError

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
