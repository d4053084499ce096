"""The reference of scenarios: every table and every key, from the pydantic models.

A key's words are its docstring; its type, default and example are those of the JSON
Schema, its unit that of the quantity that it is written as.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from pydantic.fields import FieldInfo

from nestsim.scenario.assertions import Compared
from nestsim.scenario.base import AnyTable, BuiltFrom, is_table, settings
from nestsim.scenario.schema import described_schema
from nestsim.scenario.table import ScenarioTable
from topologies.settings import Quantity

UNITS: Mapping[str, str] = MappingProxyType(
    {
        "duration": "s",
        "lifetime": "s",
        "size": "byte",
        "bandwidth": "byte/s",
        "rate": "FLOP/s",
        "throughput": "tokens/s",
        "share": "1",
        "power": "W",
        "price": "currency",
        "price of time": "currency/s",
        "price of energy": "currency/J",
    }
)
"""Dimension of a quantity -> its unit, as docstrings and reports write it."""

TOP = "scenario"
"""Title of the outermost table."""


_MARKUP = re.compile(r"([*\[\]])")
"""What Markdown would read as its own in the words of a docstring."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """One table of a scenario, as it is written."""

    path: str
    """Dotted path of the table, ``"cluster.network"``; empty for the outermost one."""

    in_list: bool
    """Whether the table is written with double brackets, once for each entry."""

    variant: str
    """What tells it from other tables of the same path, ``'kind = "fat-tree"'``."""

    model: AnyTable
    """The model that checks it."""

    @property
    def title(self) -> str:
        """The heading of the table, in Markdown."""
        if not self.path:
            return "The outermost keys"
        brackets = f"[[{self.path}]]" if self.in_list else f"[{self.path}]"
        return f"`{brackets}`" + (f" with `{self.variant}`" if self.variant else "")

    @property
    def link(self) -> str:
        """A link to the table, in Markdown."""
        words = f"table with `{self.variant}`" if self.variant else "table"
        return f"[{words}](#{self.anchor})"

    @property
    def anchor(self) -> str:
        """The name that links to the table use."""
        parts = [self.path.replace(".", "-") or TOP]
        if self.variant:
            names = _names(self.model)[1]
            parts.append(names[0] if names else self.variant)
        return "-".join(parts).lower().split(" ")[0]


def tables() -> list[TableReference]:
    """Return every table of a scenario once, outermost first."""
    found: list[TableReference] = []
    seen: set[AnyTable] = set()

    def visit(table: TableReference) -> None:
        if table.model in seen:
            return
        seen.add(table.model)
        found.append(table)
        for key, field in settings(table.model).items():
            marked = [one for mark in field.metadata for one in _tables_of(mark)]
            inner = marked or list(_tables_of(field.annotation))
            path = f"{table.path}.{key}".lstrip(".")
            for model, in_list in inner:
                variant = _variant(model) if len(inner) > 1 else ""
                visit(TableReference(path, in_list, variant, model))

    visit(TableReference("", False, "", ScenarioTable))
    return found


def unit(field: FieldInfo) -> str:
    """Return the unit of a quantity or of what it is compared with, "" if it has none.

    Parameters
    ----------
    field
        The key's.
    """
    for mark in [*field.metadata, *_marks(field.annotation)]:
        if isinstance(mark, Quantity | Compared):
            return UNITS[mark.dimension]
    return ""


def settings_reference() -> str:
    """Return the reference of all tables and keys as Markdown."""
    schema = described_schema()
    links = {table.model.__name__: table.link for table in tables()}
    lines: list[str] = []
    for table in tables():
        plain = schema["$defs"].get(table.model.__name__, schema)
        lines += [f"## {table.title} {{ #{table.anchor} }}", ""]
        lines += [_words(table.model.__doc__ or ""), ""]
        for key, field in settings(table.model).items():
            lines += [f"#### `{key}` {{ #{table.anchor}.{key} }}", ""]
            described = plain["properties"][key]
            lines += [_words(field.description or "") + _moved(described), ""]
            facts = _facts(key, field, plain, links)
            lines += [f"{' · '.join(facts)}", "{ .facts }", ""]
    return "\n".join(lines)


def _words(text: str) -> str:
    """Return a docstring with its paragraphs on one line each."""
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return _MARKUP.sub(r"\\\1", "\n\n".join(paragraphs)).replace("<", "&lt;")


def _moved(described: Mapping[str, Any]) -> str:
    return " *Deprecated.*" if described.get("deprecated") else ""


def _facts(
    key: str, field: FieldInfo, table: Mapping[str, Any], links: Mapping[str, str]
) -> list[str]:
    described = table["properties"][key]
    facts = [f"**Type** {_type_words(described, links, unit(field))}"]
    if measured := unit(field):
        facts.append(f"**Unit** {measured if measured != '1' else 'none, or %'}")
    if field.is_required():
        facts.append("**Default** none: must be given")
    elif "default" in described:
        facts.append(f"**Default** {_code(described['default'])}")
    else:
        facts.append("**Default** left out")
    if (example := _example(described)) is not None:
        facts.append(f"**Example** {_code(example)}")
    return facts


def _example(described: Mapping[str, Any]) -> Any:
    """Return a value that the key may have, None for a table."""
    if described.get("examples"):
        return described["examples"][0]
    if "const" in described:
        return described["const"]
    if "enum" in described:
        others = [one for one in described["enum"] if one != described.get("default")]
        return others[0]
    if described.get("type") == "boolean":
        return not described.get("default", False)
    return described.get("default") or None


def _type_words(
    schema: Mapping[str, Any], links: Mapping[str, str], measured: str = ""
) -> str:
    """Say what a value may be."""
    if "$ref" in schema:
        return links[schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema or "anyOf" in schema:
        parts = schema.get("oneOf") or schema["anyOf"]
        return " or ".join(_type_words(part, links, measured) for part in parts)
    if "const" in schema or "enum" in schema:
        names = [schema["const"]] if "const" in schema else schema["enum"]
        return ", ".join(_code(name) for name in names)
    if schema.get("type") == "array":
        each = _type_words(schema["items"], links, measured)
        distinct = ", all different" if schema.get("uniqueItems") else ""
        return f"list ({each}{distinct})"
    if schema.get("type") == "object":
        return _table_words(schema, links, measured)
    return _plain_words(schema, measured)


def _table_words(
    schema: Mapping[str, Any], links: Mapping[str, str], measured: str
) -> str:
    values = schema.get("additionalProperties", {})
    if values is True:
        return "table of settings"
    names = schema.get("propertyNames")
    keys = f"{_type_words(names, links)} = " if names else "name = "
    return f"table ({keys}{_type_words(values, links, measured)})"


def _plain_words(schema: Mapping[str, Any], measured: str) -> str:
    kind = schema.get("type")
    if kind == "boolean":
        return "`true` or `false`"
    if kind == "string":
        compared = str(schema.get("pattern", "")).startswith(r"^\s*(<=")
        if compared:
            return "operator and bound"
        return "number with a unit" if measured else "text"
    if kind in {"integer", "number"}:
        word = "whole number" if kind == "integer" else "number"
        return f"{word}{_range_words(schema)}"
    return "any value"


def _range_words(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    parts = [
        *([f"at least {least:,.12g}"] if least is not None else []),
        *([f"above {above:,.12g}"] if above is not None else []),
        *([f"at most {most:,.12g}"] if most is not None and most < 2**31 else []),
        *([f"below {below:,.12g}"] if below is not None else []),
    ]
    return f", {', '.join(parts)}" if parts else ""


def _code(value: Any) -> str:
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    """Write a value as TOML has it."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    return json.dumps(value)


def _toml_key(key: str) -> str:
    return json.dumps(key) if "." in key or " " in key else key


def _variant(model: AnyTable) -> str:
    """Return the key that tells a table from others of the same path."""
    key, names = _names(model)
    if names:
        return f"{key} = " + " or ".join(json.dumps(name) for name in names)
    return next(key for key, field in settings(model).items() if field.is_required())


def _names(model: AnyTable) -> tuple[str, tuple[str, ...]]:
    """Return the key whose names tell a table from others, and its names.

    A kind, or a family that has a table of its own; no names if there is neither.
    """
    fields = settings(model)
    for key, most in (("kind", 99), ("family", 1)):
        names = get_args(fields[key].annotation) if key in fields else ()
        if 0 < len(names) <= most:
            return key, tuple(str(name) for name in names)
    return "", ()


def _tables_of(
    annotation: Any, in_list: bool = False
) -> Iterator[tuple[AnyTable, bool]]:
    """Yield the tables that a field may hold, and whether in a list."""
    if isinstance(annotation, BuiltFrom):
        annotation = annotation.table
    if is_table(annotation):
        yield annotation, in_list
        return
    origin = getattr(annotation, "__origin__", None)
    for part in get_args(annotation):
        yield from _tables_of(part, in_list or origin in {list, tuple})


def _marks(annotation: Any) -> Iterator[Any]:
    """Yield what annotations inside of a type are marked with."""
    yield from getattr(annotation, "__metadata__", ())
    for part in get_args(annotation):
        yield from _marks(part)
