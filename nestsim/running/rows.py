"""Records as rows of a store, and back: dataclasses as plain JSON values.

Numbers that JSON does not have are written in words, so that they come back.
"""

import json
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter

from nestsim.running.store import Row

Record = TypeVar("Record")
"""A frozen dataclass."""

_ADAPTERS: dict[type, TypeAdapter[Any]] = {}
"""What reads and writes records of a kind, made once."""


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        # A tuple, as the settings of a dataclass are its own.
        config = ConfigDict(ser_json_inf_nan="strings")
        _ADAPTERS[kind] = TypeAdapter(tuple[kind], config=config)  # type: ignore[valid-type]  # a type at run time
    return _ADAPTERS[kind]


def row_of(record: object) -> Row:
    """Return a record as plain JSON values."""
    (row,) = json.loads(_adapter(type(record)).dump_json((record,)))
    plain: Row = row
    return plain


def value_of(kind: type[Record], row: Row) -> Record:
    """Read back what `row_of` made of a record of this kind."""
    (record,) = _adapter(kind).validate_python((row,))
    assert isinstance(record, kind)
    return record
