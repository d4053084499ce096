"""A short `repr` for records that hold a lot: what is inside is counted, not written.

The `repr` of a dataclass writes everything that hangs below it, which for a result is
hundreds of thousands of characters. Records that people look at in a console set
``__repr__ = short_repr`` instead.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from topologies.errors import shown

MOST = 1_500
"""Characters of a record's `repr`."""

_MOST_VALUE = 80
"""Characters of one value's."""

_MOST_ENTRIES = 25
"""Of a list that is written out, if it is as short as that."""

_DEEPEST = 2
"""Records and lists inside each other that are looked into."""


def short_repr(record: Any) -> str:
    """Return the class of a dataclass's record and its fields, each in a few words.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Many:
    ...     name: str
    ...     times: list[int]
    ...     __repr__ = short_repr
    >>> Many("steps", list(range(1000)))
    Many(name='steps', times=<list of 1,000>)
    """
    text = _record(record, _DEEPEST)
    return text if len(text) <= MOST else f"{text[:MOST]}..)"


def shortened(value: object, depth: int = _DEEPEST) -> str:
    """Return what a value is in at most a line; what is deeper inside is counted."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        shape = " x ".join(str(length) for length in value.shape) or "1"
        return f"<array of {shape}, {value.dtype}>"
    if isinstance(value, str | bytes):
        return shown(value, _MOST_VALUE)
    count, text = "", ""
    if isinstance(value, Mapping | Sequence | Set) and not isinstance(value, range):
        count = f" of {len(value):,}"
        if depth and len(value) <= _MOST_ENTRIES:
            text = _entries(value, depth - 1)
    elif is_dataclass(value):
        text = _record(value, depth - 1) if depth else ""
    else:
        text = repr(value)
    return text if 0 < len(text) <= _MOST_VALUE else f"<{kind}{count}>"


def _record(record: Any, depth: int) -> str:
    parts = [
        f"{one.name}={shortened(getattr(record, one.name), depth)}"
        for one in fields(record)
    ]
    return f"{type(record).__name__}({', '.join(parts)})"


def _entries(value: Any, depth: int) -> str:
    """Return the `repr` of a few values, each of them shortened."""
    if isinstance(value, Mapping):
        items = (
            f"{shortened(key, depth)}: {shortened(one, depth)}"
            for key, one in value.items()
        )
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        items = (f"{name}={shortened(one, depth)}" for name, one in pairs)
        return f"{type(value).__name__}({', '.join(items)})"
    items = (shortened(one, depth) for one in value)
    if isinstance(value, tuple):
        return f"({', '.join(items)}{',' if len(value) == 1 else ''})"
    opening, closing = ("{", "}") if isinstance(value, Set) else ("[", "]")
    return f"{opening}{', '.join(items)}{closing}"
