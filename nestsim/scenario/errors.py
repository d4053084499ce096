"""Turn what pydantic found into one `InputError` that a person can act on.

Pydantic reports every problem with its path and a code. They are listed in plain words,
with what the setting accepts, and the nearest spelling where a name is unknown. What is
accepted comes from the JSON Schema that editors check scenarios with, so that the words
are those of the check itself: a range, a choice, a list of such. A setting's
description says what it is, which is no help to somebody who has written it wrongly.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from topologies.errors import MOST_LISTED, InputError, readable

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic says of a setting that a model, or a dataclass, does not have."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
_MOST_LISTED = 8
_LONGEST_EXAMPLE = 200
_LARGE = 10_000

Schema = Mapping[str, Any]

T = TypeVar("T")


class Place(NamedTuple):
    """Where in the scenario a problem is, and what belongs there."""

    where: str
    """Dotted path of the setting."""

    known: Sequence[str]
    """Settings of the table that it belongs to."""

    variants: Sequence[Schema]
    """Schemas of what it may be; none if there is no such setting."""

    expected: str
    """What it accepts, in words."""


def asked(table: T | None, name: str, problem: str, expected: str) -> T:
    """Return a table of a scenario that a command is about.

    Raises
    ------
    InputError
        If the scenario has no such table.
    """
    if table is None:
        raise InputError(
            problem, where=name, got=f"no table [{name}]", expected=expected
        )
    return table


def checked(table: type[T], document: object) -> T:
    """Return a table of a file, read and checked.

    Parameters
    ----------
    table
        What it is.
    document
        What the file says.

    Raises
    ------
    InputError
        If something in it is wrong, with all problems.
    """
    adapter: TypeAdapter[T] = _adapter(cast("Any", table))
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        raise explain(error, table) from None


def explain(error: ValidationError, root: Any) -> InputError:
    """Word all problems of a scenario; of very many, the first ones.

    Parameters
    ----------
    error
        What checking the document against ``root`` raised.
    root
        The scenario's outermost table.
    """
    # A misspelt name also leaves the right one missing: tell the cause first.
    details = sorted(error.errors(), key=lambda one: one["type"] not in _UNKNOWN)
    listed = [_word(detail, root) for detail in details[: MOST_LISTED + 1]]
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


def locate(root: Any, path: Sequence[int | str]) -> Place:
    """Follow pydantic's path through the schema, leaving out the names of variants.

    Parameters
    ----------
    root
        The outermost table.
    path
        Names of settings, positions in lists, and between them the names that
        pydantic has for the variants of a setting.
    """
    whole = _schema(root)
    walk = _Walk(whole.get("$defs", {}))
    where, options = "", [whole]
    known: list[str] = []
    for part in path:
        if part == "[key]":  # the name before it is what is wrong
            return Place(where, known, [], "")
        variants = walk.variants(options)
        if isinstance(part, int):
            where += f"[{part}]"
            options = [variant["items"] for variant in variants if "items" in variant]
        elif chosen := [variant for variant in variants if _is_called(variant, part)]:
            options = (
                chosen  # which variant of the setting it is, not a key of the file
            )
        elif any(variant.get("type") == "object" for variant in variants):
            where += f".{_key(part)}" if where else _key(part)
            known = [
                name for variant in variants for name in variant.get("properties", ())
            ]
            options = list(_values(variants, part))
    return Place(where, known, walk.variants(options), walk.words(options))


@cache
def _adapter(root: Any) -> TypeAdapter[Any]:
    return TypeAdapter(root)


@cache
def _schema(root: Any) -> Schema:
    return _adapter(root).json_schema()


def _values(tables: Sequence[Schema], name: str) -> Iterator[Schema]:
    """Yield what a setting of one of some tables may be."""
    for table in tables:
        value = table.get("properties", {}).get(name, table.get("additionalProperties"))
        if isinstance(value, Mapping):
            yield value


def _is_called(schema: Schema, part: str) -> bool:
    """Tell whether pydantic's path means this variant of a setting."""
    tags = {"each": "array", "a name": "string"}
    return (
        schema.get("title") == part
        or part in _kinds([schema])
        or schema.get("type") == tags.get(part)
    )


def _kinds(variants: Sequence[Schema]) -> list[str]:
    """Return what the setting "kind" of a table may be."""
    kinds = [variant.get("properties", {}).get("kind", {}) for variant in variants]
    return [
        name
        for kind in kinds
        for name in kind.get("enum", [kind["const"]] if "const" in kind else ())
    ]


class _Walk:
    """Follows references and variants of a schema.

    Parameters
    ----------
    tables
        Those that references name.
    """

    def __init__(self, tables: Mapping[str, Schema]) -> None:
        self.tables = tables

    def variants(self, options: Sequence[Schema]) -> list[Schema]:
        """Return what schemas stand for, without references, choices and null."""
        return [variant for option in options for variant in self._variants(option)]

    def words(self, options: Sequence[Schema]) -> str:
        """Return in words what may be one of these, with an example of the first."""
        variants = self.variants(options)
        words = list(dict.fromkeys(self._word(variant) for variant in variants))
        examples = [
            example
            for option in (*options, *variants)
            for example in option.get("examples", ())
        ]
        text = " or ".join(words)
        if not examples or any(
            "enum" in variant or "const" in variant for variant in variants
        ):
            return text
        example = readable(as_toml(examples[0]), _LONGEST_EXAMPLE)
        return f"{text}, e.g. {example}"

    def _variants(self, schema: Schema) -> Iterator[Schema]:
        """Yield what a schema stands for, without references, choices and null."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            yield from self._variants({"title": name, **self.tables[name]})
        elif "properties" not in schema and ("anyOf" in schema or "oneOf" in schema):
            for one in schema.get("anyOf", ()) or schema["oneOf"]:
                yield from self._variants(one)
        elif schema.get("type") != "null":
            yield schema

    def _word(self, schema: Schema) -> str:
        if "const" in schema or "enum" in schema:
            return _choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        if kind == "array":
            return self._list(schema)
        if kind == "object":
            return _table(schema)
        if kind in {"integer", "number"}:
            return _number(schema)
        words = {"boolean": "true or false", "string": _string(schema)}
        return words.get(str(kind), "a value")

    def _list(self, schema: Schema) -> str:
        entries = self.words([schema["items"]]).partition(", e.g.")[0]
        least, most = schema.get("minItems"), schema.get("maxItems")
        length = "a list"
        if least and most:
            length = f"a list of {least} to {most:,} entries"
        if schema.get("uniqueItems"):
            length += " that differ"
        return length if entries in {"", "a value"} else f"{length}, each {entries}"


def _choice(values: Sequence[object]) -> str:
    if len(values) > _MOST_LISTED:
        return f"a name such as {as_toml(values[0])}"
    listed = [as_toml(value) for value in values]
    return " or ".join(listed) if len(listed) < 3 else f"one of {', '.join(listed)}"


def _table(schema: Schema) -> str:
    needed = schema.get("required", ())
    return f"a table with {', '.join(needed)}" if needed else "a table"


def _string(schema: Schema) -> str:
    if "pattern" in schema:
        return "a number with its unit in quotes"
    most = schema.get("maxLength")
    return f"a text in quotes of at most {most:,} characters" if most else "a text"


def _number(schema: Schema) -> str:
    what = "a whole number" if schema["type"] == "integer" else "a number"
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"{what} from {_written(low)} to {_written(high)}"
    bounds = [
        f"{words} {_written(bound)}"
        for words, bound in (
            ("above", above),
            ("of at least", low),
            ("below", below),
            ("of at most", high),
        )
        if bound is not None
    ]
    return f"{what} {' and '.join(bounds)}" if bounds else what


def _written(bound: float) -> str:
    whole = float(bound).is_integer() and abs(bound) >= _LARGE
    return f"{int(bound):,}" if whole else f"{bound:g}"


def as_toml(value: object) -> str:
    """Return a plain value as one writes it in a scenario."""
    if isinstance(value, Mapping):
        pairs = (f"{key} = {as_toml(one)}" for key, one in value.items())
        return f"{{ {', '.join(pairs)} }}"
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else repr(name[:60])


def _word(detail: "ErrorDetails", root: Any) -> InputError:
    cause, path = detail.get("ctx", {}).get("error"), detail["loc"]
    if isinstance(cause, InputError) and len(path) == 1 and is_dataclass(root):
        # A table of the file is found without a schema, which takes 0.2 s to make:
        # changes of a plan that `run` tries are often refused like this.
        return _at(cause, _key(str(path[0])))
    place = locate(root, path)
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
    name = detail["loc"][-1]
    return InputError(
        "unknown setting",
        where=place.where,
        got=name,
        expected="one of " + ", ".join(place.known),
        hint=_NO_CHOICE if name in _OF_CHOICES else nearest(name, place.known),
    )


_OF_CHOICES = frozenset({"trunk", "ecmp_seed"})
"""Settings of networks that have several equally short paths."""

_NO_CHOICE = (
    "this kind has one path from each device to each other one, and no hash a choice: "
    "a torus goes dimension by dimension, a list of links over the fewest"
)


def _missing(_: "ErrorDetails", place: Place) -> InputError:
    return InputError("setting is missing", where=place.where, expected=place.expected)


def _unknown_choice(detail: "ErrorDetails", place: Place) -> InputError:
    expected = str(detail["ctx"]["expected"])
    known = re.findall(r"'([^']*)'", expected)
    if not known:  # numbers
        return InputError(
            "unknown choice", where=place.where, got=detail["input"], expected=expected
        )
    return _not_among(known, detail["input"], place.where, "unknown choice")


def _unknown_kind(detail: "ErrorDetails", place: Place) -> InputError:
    kind = detail["input"]["kind"]
    return _not_among(
        _kinds(place.variants), kind, f"{place.where}.kind", "unknown kind"
    )


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


def _no_kind(detail: "ErrorDetails", place: Place) -> InputError:
    """Word what pydantic reports when it cannot tell which variant is meant."""
    kinds = _kinds(place.variants)
    if kinds and isinstance(detail["input"], dict):
        where = f"{place.where}.kind"
        return InputError("setting is missing", where=where, expected=one_of(kinds))
    return InputError(
        "has the wrong type",
        where=place.where,
        got=detail["input"],
        expected=place.expected,
    )


_SPECIAL: Mapping[str, Callable[["ErrorDetails", Place], InputError]] = (
    MappingProxyType(
        {
            **dict.fromkeys(_UNKNOWN, _unknown_setting),
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
        "mapping_type": "must be a table",
        "model_type": "must be a table",
        "dataclass_type": "must be a table",
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
