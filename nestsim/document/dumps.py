"""Records as JSON, CSV and pandas' tables: the same bytes every time.

A number that does not exist (infinite, not a number) is ``null`` in JSON, and nothing
in CSV. A `Record` is what stored results hold: its fields are the keys of a JSON
object, `Record.dump` makes the object from a result, and `Record.read` a record from
the object. pandas and pydantic are imported where they are used.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from io import StringIO
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Hashable

    import pandas as pd
    from pydantic import TypeAdapter

FORMAT = 1
"""Number of the form of all JSON that is written: higher where a key goes or changes
its meaning, the same where one is added (docs/stability.md)."""

_LINE_LENGTH = 100


def dump_json(data: object) -> str:
    r"""Write plain values as JSON text that ends in a newline.

    Keys keep their order, objects and lists that fit on a line of 100 characters take
    one, and long lists of numbers are filled line by line.

    Examples
    --------
    >>> dump_json({"devices": [0, 1], "lower_bound_s": float("inf")})
    '{"devices": [0, 1], "lower_bound_s": null}\n'
    """
    return "".join(json_pieces(data))


def json_pieces(data: object) -> Iterator[str]:
    """Yield the text of `dump_json` in small pieces: for what is too large for one."""
    for piece in _layout(data, indent=""):
        yield _printable(piece)
    yield "\n"


def _printable(text: str) -> str:
    """Escape what a terminal would act upon instead of showing it.

    Only texts can hold any, since all else that JSON consists of is printable.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
        for letter in text
    )


def plain_values(value: Any) -> Any:
    """Return plain JSON values: no numpy, no tuples, no NaN or infinity."""
    value = _plain(value)
    if isinstance(value, dict):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_values(item) for item in value]
    return value


_AS_THEY_ARE = frozenset({str, int, bool, type(None), dict, list})

_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what a list or an object holds stays as it is."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):  # numpy's float64 as well
        return float(value) if math.isfinite(value) else None
    return _other_plain(value)


def _other_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if isinstance(value, dict) else dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return value if isinstance(value, list) else list(value)
    return _plain(value.item()) if isinstance(value, np.generic) else value


def plain_record(record: Mapping[str, object]) -> dict[str, object]:
    """Return a record as plain JSON values."""
    return {str(key): plain_values(value) for key, value in record.items()}


def _layout(value: Any, indent: str, used: int = 0) -> Iterator[str]:
    """Write one value; ``used`` characters of its first line are taken already."""
    value = _plain(value)
    is_long = isinstance(value, dict | list) and _room_left(value, _LINE_LENGTH) < used
    if not is_long:
        line = _line(value)
        fits = used + len(line) <= _LINE_LENGTH
        if fits or not (isinstance(value, dict | list) and value):
            yield line
            return
    deeper = indent + "  "
    if isinstance(value, dict):
        begin, end = "{\n", "}"
        for key, item in value.items():
            named = f"{deeper}{_line(str(key))}: "
            yield begin + named
            yield from _layout(item, deeper, len(named) + 1)
            begin = ",\n"
    elif any(isinstance(_plain(item), dict | list) for item in value):
        begin, end = "[\n", "]"
        for item in value:
            yield begin + deeper
            yield from _layout(item, deeper, len(deeper) + 1)
            begin = ",\n"
    else:
        end = "]"
        yield "[\n" + _filled([_line(item) for item in value], deeper)
    yield f"\n{indent}{end}"


def _line(value: Any) -> str:
    return _ENCODE(plain_values(value))


def _room_left(value: Any, room: int) -> int:
    """Return at most how much of a room a value leaves on its line [character].

    Less than 0 if it does not fit, however little of it was looked at.
    """
    value = _plain(value)
    if isinstance(value, str):
        return room - len(value) - 2
    if not isinstance(value, dict | list):
        return room - 1
    room -= 2 * max(len(value), 1)  # brackets and what stands between items
    items = value.values() if isinstance(value, dict) else value
    for key in value if isinstance(value, dict) else ():
        room -= len(str(key)) + 4
        if room < 0:
            return room
    for item in items:
        if room < 0:
            return room
        room = _room_left(item, room)
    return room


def _filled(items: list[str], indent: str) -> str:
    """Return items separated by commas, as many on a line as fit."""
    lines, line = [], indent + items[0]
    for item in items[1:]:
        if len(line) + len(item) + 3 > _LINE_LENGTH:
            lines.append(line + ",")
            line = indent + item
        else:
            line += ", " + item
    return "\n".join([*lines, line])


def frame_of(rows: Sequence[Mapping[str, object]]) -> "pd.DataFrame":
    """Return rows as a table."""
    import pandas as pd

    return pd.DataFrame.from_records([dict(row) for row in rows])


def csv_of(
    rows: Sequence[Mapping[str, object]] | Sequence[Sequence[Any]],
    columns: Sequence[str] | None = None,
) -> str:
    """Return rows as CSV (RFC 4180, but for its line ends).

    Numbers are written exactly, whole ones without a point; nothing stands where there
    is none, or is not a number.

    Parameters
    ----------
    rows
        Values by column; without names in the order of the columns.
    columns
        Names of the columns; None for those of the rows.
    """
    if not rows and columns is None:
        return ""
    if columns is None:
        columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = map(row.get, columns) if isinstance(row, Mapping) else row
        writer.writerow("" if _is_nothing(value) else value for value in values)
    return lines.getvalue()


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


_UNIT = re.compile("_(bytes_per_s|per_s|bytes|s|w)$")
"""Unit at the end of a key."""


class Of(NamedTuple):
    """Source of a record's field, where the field's name does not say it."""

    path: str
    """Attributes, methods and positions, one in the other: ``"bands.0.value"``."""

    nothing: object = None
    """Value where the path ends early, at a None."""


ABSENT = object()
"""Value of a key that is left out."""

LEFT_OUT = Of("", ABSENT)
"""Marks a key that is left out unless its value is given; the field has a default."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Record:
    """A frozen dataclass whose fields are the keys of a JSON object.

    Examples
    --------
    >>> class LinkRecord(Record):
    ...     share: float | None
    ...     latency_s: Annotated[float, Of("real")]
    >>> data = LinkRecord.dump(2.0, share=math.nan)
    >>> data
    {'share': None, 'latency_s': 2.0}
    >>> LinkRecord.read(data).latency_s
    2.0
    """

    keys: ClassVar[tuple[str, ...]] = ()
    """Order of the keys; empty for that of the fields."""

    def __init_subclass__(cls) -> None:
        """Make a class of fields a dataclass."""
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def dump(cls, source: object = None, **values: object) -> dict[str, object]:
        """Return the plain JSON values of a record, by key.

        A value that is not given is an attribute of the source: the one that the
        field's `Of` names, or that of the field's name, without its unit where there is
        none with it, and with ``num_`` or ``is_`` before it. Methods are called.
        Records inside are dumped likewise, and an empty text is null where the type
        allows null.

        Parameters
        ----------
        source
            What holds the values that are not given, or such a record.
        values
            Values by key; `ABSENT` for a key that is left out.

        Raises
        ------
        AttributeError
            If nothing in the source belongs to a field.
        """
        hints = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        assert values.keys() <= hints.keys(), f"{cls} has not all of {[*values]}"
        if isinstance(source, cls):
            values = vars(source)
        read = {
            key: values[key] if key in values else _value(source, key, hint)
            for key, hint in hints.items()
        }
        return {
            key: _dumped(read[key], hints[key])
            for key in cls.keys or hints
            if read[key] is not ABSENT
        }

    @classmethod
    def read(cls, data: Mapping[str, object]) -> Self:
        """Return the record of plain values; other keys than its fields are not read.

        Raises
        ------
        ValueError
            If a value is missing, or of another type.
        """
        return cast("Self", _reader(cast("Hashable", cls)).validate_python(data))


@cache
def _reader(kind: Any) -> "TypeAdapter[object]":
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _value(source: object, key: str, hint: object) -> object:
    """Return what a source holds of a key."""
    stems = key, _UNIT.sub("", key)
    usual = (Of(begin + stem) for stem in stems for begin in ("", "num_", "is_"))
    for path, nothing in [of for of in get_args(hint) if isinstance(of, Of)] or usual:
        value: Any = source
        for step in path.split("."):
            if value is None:
                return nothing
            is_place = step.isdigit()
            value = value[int(step)] if is_place else getattr(value, step, ABSENT)
            value = value() if callable(value) else value
        if value is not ABSENT:
            return value
    raise AttributeError(f"{type(source).__name__} has nothing for the key {key}")


def _dumped(value: Any, hint: Any) -> object:
    """Return the plain JSON value of what a field of a type holds."""
    origin, inner = get_origin(hint), get_args(hint)
    if not inner and issubclass(hint, Record) and not isinstance(value, Mapping):
        return hint.dump(value)
    value = value._asdict() if hasattr(value, "_asdict") else value
    if value is None or (origin is UnionType and isinstance(value, str) and not value):
        return None
    if origin is tuple:
        return [_dumped(item, inner[0]) for item in value]
    if origin is Mapping:
        return {str(key): _dumped(item, inner[1]) for key, item in value.items()}
    if inner:  # Annotated, or None beside it
        return _dumped(value, inner[0])
    return plain_values(value)
