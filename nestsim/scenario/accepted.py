"""What a setting of a scenario accepts, in words: what errors say after "expected:".

The words come from the JSON Schema that editors check scenarios with, so that they are
those of the check itself: a range, a choice, a list of such. A setting's description
says what it is, which is no help to somebody who has written it wrongly.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from nestsim.scenario.base import Table
from topologies.errors import readable

_MOST_LISTED = 8
_LONGEST_EXAMPLE = 200
_LARGE = 10_000

Schema = Mapping[str, Any]


def accepted(root: type[Table], path: Sequence[int | str]) -> str:
    """Return what the setting at pydantic's path accepts, with an example.

    Parameters
    ----------
    root
        The outermost table.
    path
        Names of settings, positions in lists, and between them the names that
        pydantic has for the variants of a setting.

    Returns
    -------
    str
        Such as ``a whole number from 1 to 1,000,000, e.g. 512``; empty if there is no
        such setting.
    """
    whole = _schema(root)
    walk = _Walk(whole.get("$defs", {}))
    options: list[Schema] = [whole]
    for part in path:
        if part == "[key]":
            return ""
        options = walk.inner(options, part)
    return walk.words(options)


@cache
def _schema(root: type[Table]) -> Schema:
    return root.model_json_schema(mode="validation")


class _Walk:
    """Follows references and variants of a schema.

    Parameters
    ----------
    tables
        Those that references name.
    """

    def __init__(self, tables: Mapping[str, Schema]) -> None:
        self.tables = tables

    def inner(self, options: Sequence[Schema], part: int | str) -> list[Schema]:
        """Return what may stand at a part of something that may be one of these."""
        variants = [one for option in options for one in self._variants(option)]
        if isinstance(part, int):
            return [one["items"] for one in variants if "items" in one]
        found = [
            one["properties"][part]
            for one in variants
            if part in one.get("properties", {})
        ]
        if found:
            return found
        chosen = [one for one in variants if _is_called(one, part)]
        if chosen:
            return chosen
        others = (one.get("additionalProperties") for one in variants)
        return [one for one in others if isinstance(one, Mapping)] or variants

    def words(self, options: Sequence[Schema]) -> str:
        """Return in words what may be one of these, with an example of the first."""
        variants = [one for option in options for one in self._variants(option)]
        words = list(dict.fromkeys(self._word(one) for one in variants))
        examples = [
            example
            for one in (*options, *variants)
            for example in one.get("examples", ())
        ]
        text = " or ".join(words)
        if not examples or any("enum" in one or "const" in one for one in variants):
            return text
        example = readable(as_toml(examples[0]), _LONGEST_EXAMPLE)
        return f"{text}, e.g. {example}"

    def _variants(self, schema: Schema) -> Iterator[Schema]:
        """Yield what a schema stands for, without references, choices and null."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            yield from self._variants({"title": name, **self.tables[name]})
        elif "anyOf" in schema or "oneOf" in schema:
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


def _is_called(schema: Schema, part: str) -> bool:
    """Tell whether pydantic's path means this variant of a setting."""
    kind = schema.get("properties", {}).get("kind", {})
    tags = {"each": "array", "name": "string"}
    return (
        schema.get("title") == part
        or part in (kind.get("enum") or [kind.get("const")])
        or schema.get("type") == tags.get(part)
    )


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
