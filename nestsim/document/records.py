"""Records: what stored results hold, as typed classes that write and read them.

A record's fields are the keys of a JSON object, in their order. `Record.dump` makes the
object from a result, and `Record.read` a record from the object.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Self,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from nestsim.document.dumps import plain_values

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pydantic import TypeAdapter

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
            key: _dumped(value, hints[key])
            for key, value in read.items()
            if value is not ABSENT
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
