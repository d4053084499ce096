"""What a setting may be: marks in the annotations of specs, read where files come in.

A spec, a frozen dataclass, is the table of a scenario, too. Bounds are those of
`annotated_types`; the marks here say what these cannot: units, names of a registry,
lists whose entries differ, examples. They answer pydantic's two questions with its
plain dictionaries, so that nothing but the border has to import it.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from annotated_types import Ge, Le, MaxLen, MinLen

from topologies.errors import InputError
from topologies.units import EXAMPLES, NUMBER_PATTERN, UNIT_PATTERN, parse_quantity

MOST_STAGES = 10_000
"""Stages of a pipeline, at most."""

MAX_COUNT = 1_000_000
"""No cluster has more devices, and no model more layers or a wider one."""

_SMALL_B = re.compile(r"(?<![A-Za-z])([kMGTPE]i?)b(?![a-z])")

T = TypeVar("T")
Schema = dict[str, Any]
Handler = Callable[[Any], Schema]

Argument = str | int | float | bool | list[str | int | float | bool]
"""What an option of a command, or of a user's function, takes."""


class Spec:
    """Base of frozen dataclasses that a table of a file is read into.

    Its subclasses check in ``__post_init__`` what settings say together.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[Schema] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: Any) -> Schema:
        # A table comes as a dictionary, also where numbers must be numbers.
        schema: Schema = handler(source)
        table = handler.resolve_ref_schema(schema)
        table["strict"] = False
        for field in table["schema"]["fields"]:
            if field["schema"].get("schema", {}).get("type") == "any":  # `Derived`
                field["init"] = False
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Schema, handler: Any) -> Schema:
        reference: Schema = handler(schema)
        table = handler.resolve_ref_schema(reference)
        settings = table.get("properties", {}).items()
        table["properties"] = {k: v for k, v in settings if not v.get("derived")}
        fields = schema["schema"]["fields"]
        keys = {
            f["name"]: f["validation_alias"] for f in fields if "validation_alias" in f
        }
        return described(cls, reference, handler, keys)


def docstrings(table: type) -> Mapping[str, str]:
    """Return what stands below the attributes of a class and of its bases.

    They are read where words are asked for. pydantic would read the source of 65
    classes as a scenario's tables are imported: 0.2 s of every command.
    """
    words: dict[str, str] = {}
    for base in reversed(table.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "pydantic"):
            continue
        for name in inspect.get_annotations(base):
            words.pop(name, None)
        words |= _docstrings(base.__module__, base.__qualname__)
    return words


@cache
def _docstrings(module: str, name: str) -> Mapping[str, str]:
    inner: Any = _syntax(module)
    for part in name.replace(".<locals>", "").split("."):
        inner = [node for node in inner.body if getattr(node, "name", "") == part][-1]
    return {
        node.target.id: inspect.cleandoc(words.value.value)
        for node, words in pairwise(inner.body)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
        and isinstance(words.value.value, str)
    }


@cache
def _syntax(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def described(
    table: type, reference: Schema, handler: Any, keys: Mapping[str, str]
) -> Schema:
    """Return the JSON Schema of a table, with docstrings for its settings.

    As pydantic does, it leaves out what the schema says that a setting refers to, if
    there is one by then.

    Parameters
    ----------
    table
        Whose attributes have the docstrings.
    reference
        The table's schema, or what refers to it.
    handler
        pydantic's, which follows references.
    keys
        Attribute -> key in files, where they differ.
    """
    settings = handler.resolve_ref_schema(reference).get("properties", {})
    for name, words in docstrings(table).items():
        setting = settings.get(keys.get(name, name))
        if setting is None:
            continue
        with suppress(LookupError):
            if handler.resolve_ref_schema(setting).get("description") == words:
                continue
        setting["description"] = words
    return reference


@dataclass(frozen=True, slots=True)
class Quantity:
    """Marks a float that is written as a number with a unit.

    Parameters
    ----------
    dimension
        A key of `topologies.units.BASE_UNITS`.
    examples
        As people write it.
    may_be_zero
        Whether 0 is a value, as for latencies.
    """

    dimension: str
    examples: tuple[str, ...]
    may_be_zero: bool = False

    def parse(self, value: object) -> float:
        """Return the value in base units; refuse what no hardware has."""
        try:
            number = parse_quantity(value, self.dimension)
        except InputError as error:
            raise _with_hint(error) from None
        if number == 0 and not self.may_be_zero:
            expected = f"more than 0, e.g. {EXAMPLES[self.dimension]}"
            raise InputError("must be more than 0", got=value, expected=expected)
        return number

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        return {"type": "function-plain", "function": _without_info(self.parse)}

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Handler) -> Schema:
        return {
            "type": "string",
            "pattern": rf"^\s*{NUMBER_PATTERN}\s*{UNIT_PATTERN}$",
            "examples": list(self.examples),
        }


def _without_info(function: Callable[[Any], Any]) -> Schema:
    return {"type": "no-info", "function": function}


def _with_hint(error: InputError) -> InputError:
    """Add what was probably meant where people mix units up."""
    text = error.got if isinstance(error.got, str) else ""
    if bits := _SMALL_B.search(text):
        prefix = bits.group(1)
        hint = f"write {prefix}bit for bits or {prefix}B for bytes"
    elif "FLOPS" in text.upper():
        hint = "write FLOP/s for a rate"
    else:
        return error
    return InputError(error.problem, got=text, expected=error.expected, hint=hint)


@dataclass(frozen=True, slots=True)
class NameChoice:
    """Marks a string that is one of some names, which a registry holds."""

    names: tuple[str, ...]

    check: Callable[[Any], Any] | None = None
    """What looks at a value first, where a refusal has more to say."""

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        names = {"type": "literal", "expected": list(self.names)}
        if self.check is None:
            return names
        checked = _without_info(self.check)
        return {"type": "function-before", "function": checked, "schema": names}


class Derived:
    """Marks a field that follows from other settings: no file may have it."""

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        return {"type": "any"}

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Handler) -> Schema:
        return {"derived": True}


class Examples:
    """Marks a setting with values that it may have, and its default as it is written.

    Parameters
    ----------
    examples
        Values, as in a file.
    default
        The default, where that is written with a unit; None where it is the framework's
        or follows from other settings.
    """

    def __init__(self, *examples: object, default: object = "") -> None:
        self.examples, self.default = examples, default

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Handler) -> Schema:
        known = handler(schema)
        if self.examples:
            known["examples"] = list(self.examples)
        if self.default != "":
            known["written_default"] = self.default
        return known


@dataclass(frozen=True, slots=True)
class CheckedBy:
    """Marks a value that a function looks at, once it has its type."""

    check: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        checked = _without_info(self.check)
        return {
            "type": "function-after",
            "function": checked,
            "schema": handler(source),
        }


@dataclass(frozen=True, slots=True)
class Parsed:
    """Marks a value that a function makes of what files have.

    Parameters
    ----------
    parse
        The function; it refuses what it cannot read with an `InputError`.
    schema
        What files have, as a JSON Schema.
    """

    parse: Callable[[Any], Any]
    schema: Schema

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        return {"type": "function-plain", "function": _without_info(self.parse)}

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Handler) -> Schema:
        return dict(self.schema)


@dataclass(frozen=True, slots=True)
class Listed:
    """Marks a tuple that is written as a list, and bounds its length."""

    least: int = 0
    most: int | None = 1000

    def __get_pydantic_core_schema__(self, source: object, handler: Handler) -> Schema:
        (item,) = handler(source)["items_schema"]
        return self.schema(item)

    def schema(self, item: Schema) -> Schema:
        """Return the schema of the list, given that of an entry."""
        entries: Schema = {"type": "list", "items_schema": item}
        if self.most is not None:
            entries["max_length"] = self.most
        if self.least:
            entries["min_length"] = self.least
        frozen = _without_info(tuple)
        return {
            "type": "function-after",
            "function": frozen,
            "schema": entries,
            "serialization": {"type": "any"},
        }


class _OneOrEach:
    """Marks what is one value for all stages, or a list with one for each."""

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Schema:
        value = handler.generate_schema(get_args(source)[0])
        return {
            "type": "tagged-union",
            "choices": {"one": value, "each": Listed(1, MOST_STAGES).schema(value)},
            "discriminator": lambda given: "each" if isinstance(given, list) else "one",
        }


class _Unique(CheckedBy):
    """Marks a list in which nothing stands twice."""

    def __get_pydantic_json_schema__(self, schema: Schema, handler: Handler) -> Schema:
        return {**handler(schema), "uniqueItems": True}


def _printable(value: str) -> str:
    if not value.strip() or not value.isprintable():
        expected = "one line of readable text"
        raise InputError("is not readable text", got=value, expected=expected)
    return value


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(
                "stands in the list twice",
                where=f"[{index}]",
                got=value,
                expected="every value once",
            )
    return values


Bandwidth = Annotated[float, Quantity("bandwidth", ("450 GB/s", "400 Gbit/s"))]
"""More than 0, in one direction [byte/s]."""

Latency = Annotated[float, Quantity("duration", ("2 us", "500 ns"), may_be_zero=True)]
"""0 or more [s]."""

Duration = Annotated[float, Quantity("duration", ("60 s", "5 min"))]
"""More than 0 [s]."""

Size = Annotated[float, Quantity("size", ("80 GiB", "80 GB"))]
"""More than 0 [byte]."""

SizeOrNothing = Annotated[float, Quantity("size", ("2 GiB", "0 B"), may_be_zero=True)]
"""0 or more [byte]."""

Rate = Annotated[float, Quantity("rate", ("989 TFLOP/s", "1.98 PFLOP/s"))]
"""More than 0 [FLOP/s]."""

Power = Annotated[float, Quantity("power", ("700 W", "1.2 kW"), may_be_zero=True)]
"""0 or more [W]."""

Count = Annotated[int, Ge(1), Le(MAX_COUNT)]
"""A whole number of things."""

Factor = Annotated[float, Ge(1), Le(1e6)]
"""At least 1."""

Fraction = Annotated[float, Ge(0), Le(1)]
"""A share, none and all included."""

Seed = Annotated[int, Ge(0), Le(2**63 - 1), Examples(0)]
"""Of what is drawn at random."""

Text = Annotated[str, MinLen(1), MaxLen(200), CheckedBy(_printable)]
"""One line for people."""

Distinct = Annotated[tuple[T, ...], Listed(1), _Unique(_distinct)]
"""A list with at least one entry and no entry twice."""

OfStages = Annotated[T | tuple[T, ...], _OneOrEach()]
"""One value for all stages, or a list with one for each."""
