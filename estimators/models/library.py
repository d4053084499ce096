"""Named models, each with the place where its architecture was published.

The library is TOML beside this module, a file for related families. A table is a model,
or, with ``models`` inside, a series of models with words in common. It holds

``source``
    Publication of the model, and what was chosen where it is silent.
``note``
    What is to be added to that for this model.
``like``
    Name of a model or series, of any file, whose words hold where the table has none.
    A model of a series is like the series unless it says otherwise.
``columns``, ``sizes``
    Names of words, and their values in that order: the columns and rows of a paper's
    table. A model that is nothing but ``sizes`` is their list.

and words of `estimators.models.words`. ``position`` is that of a file among the others.

Parameter counts that follow from these entries are tested against the published
ones to the unit, where one was published to the unit.
"""

import difflib
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from estimators.models.spec import TransformerSpec, with_sequence_length
from estimators.models.words import build_spec, read_tables, resolve_table, table_files
from topologies.errors import InputError


class PublishedModel(NamedTuple):
    """An entry of the library."""

    spec: TransformerSpec
    """Architecture of the model, at the sequence length that it was mainly trained
    with."""

    source: str
    """Publication of the model, and what was chosen where it is silent."""


class _Tables(NamedTuple):
    """The library's files."""

    words: dict[str, dict[str, Any]]
    """Name of a model or a series -> what is written there, sizes under their names."""

    models: tuple[str, ...]
    """Names of the models, in the order of files."""


@cache
def _tables() -> _Tables:
    files = [read_tables("library", name) for name in table_files("library")]
    tables: dict[str, dict[str, Any]] = {}
    models: list[str] = []
    for file in sorted(files, key=lambda file: file.pop("position")):
        for name, table in file.items():
            rows = table.pop("models", None)
            tables[name] = table
            models += [name] if rows is None else rows
            for model, row in (rows or {}).items():
                given = {"sizes": row} if isinstance(row, list) else row
                tables[model] = {"like": name} | given
    for name, table in tables.items():
        if "sizes" in table:
            columns = resolve_table(tables, name)["columns"]
            table.update(zip(columns, table.pop("sizes"), strict=True))
    return _Tables(tables, tuple(models))


def model_names() -> tuple[str, ...]:
    """Return the names that `load_model` knows, families together, small to large."""
    return _tables().models


def model_words(name: str) -> dict[str, Any]:
    """Return what the library writes of a model: words, source and note."""
    words = resolve_table(_tables().words, name)
    words.pop("columns", None)
    return words


@cache
def published_model(name: str) -> PublishedModel:
    """Return an entry of the library, of a name that is one of `model_names`."""
    words = model_words(name)
    source, note = words.pop("source"), words.pop("note", "")
    return PublishedModel(build_spec(words), f"{source}; {note}" if note else source)


def load_model(
    name: str,
    *,
    sequence_length: int | None = None,
    attention_implementation: str | None = None,
) -> TransformerSpec:
    """Return a model of the library.

    Parameters
    ----------
    name
        One of `model_names`; upper case and underscores are forgiven.
    sequence_length
        Instead of the library's. A learned position embedding has as many rows as
        published, or as many as are needed if that is more.
    attention_implementation
        ``"flash"`` or ``"plain"`` instead of the library's ``"flash"``.

    Raises
    ------
    InputError
        If there is no such model, or a value is not possible.
    """
    key = name.lower().replace("_", "-")
    if key not in model_names():
        near = difflib.get_close_matches(key, model_names(), n=1, cutoff=0.5)
        raise InputError(
            "no such model",
            where="name",
            got=name,
            expected="one of " + ", ".join(model_names()),
            hint=f'did you mean "{near[0]}"?' if near else "",
        )
    spec = published_model(key).spec
    if attention_implementation is not None:
        spec = replace(spec, attention_implementation=attention_implementation)
    if sequence_length is not None:
        spec = with_sequence_length(spec, sequence_length)
    return spec
