"""Turn what pydantic found into one `InputError` that a person can act on.

Pydantic reports every problem with its path and a code. They are listed in plain words,
with what the setting accepts, and the nearest spelling where a name is unknown.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, get_args

from nestsim.scenario.accepted import accepted
from nestsim.scenario.base import Table
from topologies.errors import MOST_LISTED, InputError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the scenario a problem is, and what belongs there."""

    where: str
    """Dotted path of the setting."""

    owner: type[Table] | None
    """The table that the setting belongs to."""

    field: "FieldInfo | None"
    """The setting; None if there is none of that name."""

    expected: str
    """What it accepts."""


def explain(error: "ValidationError", root: type[Table]) -> InputError:
    """Word all problems of a scenario; of very many, the first ones.

    Parameters
    ----------
    error
        What checking the document against ``root`` raised.
    root
        The scenario's outermost table.
    """
    # A misspelt name also leaves the right one missing: tell the cause first.
    details = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    listed = [
        _word(one, _locate(root, one["loc"])) for one in details[: MOST_LISTED + 1]
    ]
    return InputError(
        listed[0].problem,
        where=listed[0].where,
        got=listed[0].got,
        expected=listed[0].expected,
        hint=listed[0].hint,
        others=listed[1:],
        num_unlisted=len(details) - len(listed),
    )


def nearest(name: object, known: Sequence[str]) -> str:
    """Return ``did you mean "..."?`` if a known name begins or is spelt like this."""
    wanted = str(name)[:60].lower()
    close = [one for one in known if len(wanted) > 1 and one.startswith(wanted)]
    close = close or get_close_matches(wanted, known, n=1, cutoff=0.6)
    return f'did you mean "{close[0]}"?' if close else ""


def _locate(root: type[Table], path: tuple[int | str, ...]) -> Place:
    """Follow pydantic's path through the tables, leaving out the names of variants."""
    where, owner, field = "", root, None
    tables, choosing = [root], False
    for part in path:
        if part == "[key]":  # the name before it is what is wrong
            break
        if choosing:  # which variant of the table it is, not a key of the file
            tables, choosing = [t for t in tables if _is_variant(t, part)], False
        elif isinstance(part, int):
            where += f"[{part}]"
        else:
            where += f".{_key(part)}" if where else _key(part)
            owner = tables[0] if tables else Table
            field = _fields(owner).get(part)
            tables = list(_tables(field.annotation)) if field else []
            choosing = field is not None and _has_variants(field)
    return Place(where, owner, field, accepted(root, path))


def _fields(table: type[Table]) -> dict[str, "FieldInfo"]:
    """Return the settings of a table under the names that files have for them."""
    fields = table.model_fields.items()
    return {field.alias or name: field for name, field in fields}


def _has_variants(field: "FieldInfo") -> bool:
    """Tell whether pydantic's path says which variant of the setting is meant."""
    from pydantic import Discriminator

    inner = (one for kind in get_args(field.annotation) for one in get_args(kind))
    marked = any(isinstance(one, Discriminator) for one in (*inner, *field.metadata))
    return marked or field.discriminator is not None


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else repr(name[:60])


def _tables(annotation: object) -> Iterator[type[Table]]:
    """Yield every table that a type mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        yield annotation
    for inner in get_args(annotation):
        yield from _tables(inner)


def _is_variant(table: type[Table], tag: int | str) -> bool:
    kind = table.model_fields.get("kind")
    return table.__name__ == tag or (kind is not None and tag in _choices(kind))


def _choices(field: "FieldInfo") -> list[Any]:
    return [one for one in get_args(field.annotation) if not isinstance(one, type)]


def _word(detail: "ErrorDetails", place: Place) -> InputError:
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return _at(cause, place.where)
    word = _SPECIAL.get(detail["type"])
    if word is not None:
        return word(detail, place)
    problem = _PROBLEMS.get(detail["type"], "is not what is expected here")
    bounds = detail.get("ctx", {})
    return InputError(
        problem.format(**bounds),
        where=place.where,
        got=detail["input"],
        expected=place.expected,
    )


def _at(cause: InputError, where: str) -> InputError:
    """Prefix the location with the setting's."""
    return cause.at(where, "" if cause.where.startswith("[") else ".")


def _unknown_setting(detail: "ErrorDetails", place: Place) -> InputError:
    assert place.owner is not None
    known = list(_fields(place.owner))
    name = detail["loc"][-1]
    return InputError(
        "unknown setting",
        where=place.where,
        got=name,
        expected="one of " + ", ".join(known),
        hint=nearest(name, known),
    )


def _missing(_: "ErrorDetails", place: Place) -> InputError:
    return InputError("setting is missing", where=place.where, expected=place.expected)


def _unknown_choice(detail: "ErrorDetails", place: Place) -> InputError:
    known = re.findall(r"'([^']*)'", str(detail["ctx"]["expected"]))
    return _not_among(known, detail["input"], place.where, "unknown choice")


def _unknown_kind(detail: "ErrorDetails", place: Place) -> InputError:
    kind = detail["input"]["kind"]
    return _not_among(_kinds(place.field), kind, f"{place.where}.kind", "unknown kind")


def _not_among(
    known: Sequence[str], value: object, where: str, problem: str
) -> InputError:
    return InputError(
        problem,
        where=where,
        got=value,
        expected=one_of(known),
        hint=nearest(value, known) if isinstance(value, str) else "",
    )


def one_of(known: Sequence[str]) -> str:
    """Return names in quotes, as what is expected."""
    quoted = ", ".join(f'"{name}"' for name in known)
    return f"one of {quoted}" if len(known) > 1 else quoted


def _kinds(field: "FieldInfo | None") -> list[str]:
    """Return what the setting "kind" of a table may be."""
    tables = _tables(field.annotation) if field else []
    return [one for table in tables for one in _choices(table.model_fields["kind"])]


def _no_kind(detail: "ErrorDetails", place: Place) -> InputError:
    """Word what pydantic reports when it cannot tell which variant is meant."""
    by_kind = place.field is not None and isinstance(place.field.discriminator, str)
    if by_kind and isinstance(detail["input"], dict):
        kinds = one_of(_kinds(place.field))
        where = f"{place.where}.kind"
        return InputError("setting is missing", where=where, expected=kinds)
    return InputError(
        "has the wrong type",
        where=place.where,
        got=detail["input"],
        expected=place.expected,
    )


_SPECIAL: Mapping[str, Callable[["ErrorDetails", Place], InputError]] = (
    MappingProxyType(
        {
            "extra_forbidden": _unknown_setting,
            "missing": _missing,
            "literal_error": _unknown_choice,
            "union_tag_invalid": _unknown_kind,
            "union_tag_not_found": _no_kind,
        }
    )
)

_PROBLEMS: Mapping[str, str] = MappingProxyType(
    {
        "int_type": "must be a whole number",
        "float_type": "must be a number",
        "finite_number": "must be a finite number",
        "bool_type": "must be true or false",
        "string_type": "must be a string in quotes",
        "list_type": "must be a list in brackets",
        "dict_type": "must be a table",
        "model_type": "must be a table",
        "model_attributes_type": "must be a table",
        "greater_than": "must be more than {gt}",
        "greater_than_equal": "must be at least {ge}",
        "less_than": "must be less than {lt}",
        "less_than_equal": "must be at most {le}",
        "too_short": "must not be empty",
        "too_long": "has too many entries: at most {max_length} are accepted",
        "string_too_short": "must not be empty",
        "string_too_long": "is too long: at most {max_length} characters",
    }
)
"""Pydantic's code -> plain words."""
