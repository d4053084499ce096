"""The JSON Schema of scenario files, as editors want it.

pydantic says of a table that may have several forms that it is one of them. An editor
that is told so reports everything that is wrong with every form. Here a table says by
what it holds which form it has (``if kind = "rail"``), and only that one is checked.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from nestsim.scenario.table import OWN_TABLES, ScenarioTable
from topologies.settings import docstrings

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""The draft that all schemas of nestsim are written in."""

_FORMS_OF_MODELS: Mapping[str, Schema] = MappingProxyType(
    {
        "HuggingFaceModel": {"required": ["config"]},
        "ModuleModel": {"required": ["module"]},
        "LibraryModel": {"required": ["name"]},
        "EncoderDecoderModel": {
            "required": ["family"],
            "properties": {"family": {"const": "t5"}},
        },
        "VisionModel": {
            "required": ["family"],
            "properties": {"family": {"const": "vit"}},
        },
        "SpelledOutModel": {},
    }
)
"""Form of the table [model] -> what tells it from those below, in the order in which
`nestsim.scenario.model` asks."""


def identifier(name: str) -> str:
    """Return the ``$id`` of one of the schemas: a name, no address to fetch it from."""
    return f"urn:nestsim:{name}"


def record_schema(name: str, record: type) -> Schema:
    """Return the JSON Schema of what a record writes; it may have more keys.

    Parameters
    ----------
    name
        What the JSON is called.
    record
        A `nestsim.document.dumps.Record`, whose docstrings describe it.
    """
    schema: Schema = TypeAdapter(record).json_schema()
    for table in {record, *_inner(record)}:
        described = schema.get("$defs", {}).get(table.__name__, schema)
        described["description"] = str(table.__doc__)
        for key, words in docstrings(table).items():
            if key in described["properties"]:
                described["properties"][key]["description"] = words
            described["properties"].get(key, {}).pop("default", None)
    head = {"$schema": DIALECT, "$id": identifier(name)}
    return {**head, **_in_words(schema, has_null=True), "title": f"nestsim {name}"}


def _inner(kind: Any) -> Iterator[type]:
    """Yield the records inside of one, or of a type."""
    for part in get_args(kind):
        yield from _inner(part)
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _inner(hint)


def scenario_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) that editors check scenarios with."""
    schema = described_schema()
    schema = _chosen(schema, schema["$defs"])
    # Several jobs may have all of their models and batches for themselves.
    always = [name for name in schema["required"] if name not in OWN_TABLES]
    alone = [name for name in schema["required"] if name in OWN_TABLES]
    # The first group's accelerator stands for a cluster that names none.
    schema["$defs"]["ClusterTable"] |= {
        "required": [],
        "anyOf": [{"required": [name]} for name in ("accelerator", "groups", "system")],
    }
    schema |= {
        "required": always,
        "if": {"required": ["jobs"]},
        "then": {},
        "else": {"required": alone},
    }
    head = {"$schema": DIALECT, "$id": identifier("scenario")}
    return {**head, **schema, "title": "nestsim scenario"}


def described_schema() -> Schema:
    """Return what pydantic says of scenarios, with the words of the docstrings."""
    schema: Schema = _in_words(TypeAdapter(ScenarioTable).json_schema())
    return schema


def _in_words(schema: Any, *, has_null: bool = False) -> Any:
    """Undo the line breaks of docstrings, and leave out null, which TOML has not."""
    if isinstance(schema, list):
        return [_in_words(value, has_null=has_null) for value in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {k: _in_words(v, has_null=has_null) for k, v in schema.items()}
    if "written_default" in plain:  # with its unit; none where it depends
        plain["default"] = plain.pop("written_default")
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(plain["description"].split())
    if "default" in plain and plain["default"] is None:
        del plain["default"]
    if "anyOf" in plain and not has_null:
        plain["anyOf"] = [one for one in plain["anyOf"] if one != {"type": "null"}]
        if len(plain["anyOf"]) == 1:
            (variant,) = plain.pop("anyOf")
            plain = {**variant, **plain}
    return plain


def _chosen(schema: Any, tables: Mapping[str, Schema]) -> Any:
    """Return a schema in which the value says which of several forms it has.

    Parameters
    ----------
    schema
        As pydantic makes it.
    tables
        Those that references name.
    """
    if isinstance(schema, list):
        return [_chosen(value, tables) for value in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _chosen(value, tables) for key, value in schema.items()}
    for key in ("oneOf", "anyOf"):
        if key in plain and all("required" not in form for form in plain[key]):
            forms, kinds = plain.pop(key), plain.pop("discriminator", None)
            plain |= _chain(_told_apart(forms, kinds, tables))
            if kinds:
                names = sorted(kinds["mapping"])
                plain |= {"type": "object", "required": ["kind"]}
                plain["properties"] = {"kind": {"enum": names}}
    return plain


def _told_apart(
    forms: list[Schema], kinds: Mapping[str, Any] | None, tables: Mapping[str, Schema]
) -> list[tuple[Schema, Schema]]:
    """Return what tells each form from those behind it, and the form."""
    if kinds is not None:
        return [
            (_is_kind(kind), {"$ref": table})
            for kind, table in sorted(kinds["mapping"].items())
        ]
    named = {form.get("$ref", "").rpartition("/")[2]: form for form in forms}
    if named.keys() == _FORMS_OF_MODELS.keys():
        return [(tells, named[name]) for name, tells in _FORMS_OF_MODELS.items()]
    types = [_type(form, tables) for form in forms]
    assert len({*types}) == len(types), f"forms of one type: {forms}"
    return [({"type": kind}, form) for kind, form in zip(types, forms, strict=True)]


def _is_kind(kind: str) -> Schema:
    return {"properties": {"kind": {"const": kind}}, "required": ["kind"]}


def _type(form: Schema, tables: Mapping[str, Schema]) -> str:
    """Return the type of what has this form."""
    if "$ref" in form:
        form = tables[form["$ref"].rpartition("/")[2]]
    return str(form["type"])


def _chain(choices: Iterable[tuple[Schema, Schema]]) -> Schema:
    """Return the schema of what has the first form that it is told by, else the last.

    A kind that is none of the known ones is what the list of kinds refuses: no form.
    """
    *others, (last, rest) = choices
    chain = {"if": last, "then": rest} if "properties" in last else rest
    for tells, form in reversed(others):
        chain = {"if": tells, "then": form, "else": chain}
    return chain
