"""What all tables of a scenario share, and the files that they name."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import no_info_after_validator_function

from topologies.errors import InputError
from topologies.input_file import file_problem
from topologies.settings import Derived, Examples, Spec, described, docstrings


class Table(BaseModel):
    """A table of a scenario: nothing converted silently, nothing unknown accepted."""

    model_config = ConfigDict(frozen=True, defer_build=True, **Spec.__pydantic_config__)  # type: ignore[typeddict-item]

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        keys = {k: v.alias for k, v in cls.model_fields.items() if v.alias}
        return described(cls, handler(schema), handler, keys)


AnyTable = type[Table] | type[Spec]
"""A table: a model of pydantic, or the dataclass that the rest of the code reads."""


def is_table(kind: object) -> bool:
    """Tell whether a type is that of a table."""
    return isinstance(kind, type) and issubclass(kind, Table | Spec)


def settings(table: type[Any]) -> Mapping[str, FieldInfo]:
    """Return the settings of a table under the names that files have for them."""
    form: Any = table  # mypy takes some classes for unhashable
    return _settings(form)


@cache  # a schema takes 15 ms, and importers ask with each file
def _settings(table: Any) -> Mapping[str, FieldInfo]:
    if issubclass(table, Table):
        for name, field in table.model_fields.items():
            field.description = docstrings(table).get(name)
        return {
            field.alias or name: field for name, field in table.model_fields.items()
        }
    hints = get_type_hints(table, include_extras=True)
    words = docstrings(table)
    known = {}
    for field in fields(table):
        needed = field.default is field.default_factory is MISSING
        setting = (
            FieldInfo.from_annotation(hints[field.name])
            if needed
            else FieldInfo.from_annotated_attribute(hints[field.name], field)
        )
        if any(isinstance(mark, Derived) for mark in setting.metadata):
            continue
        setting.description = words[field.name]
        marks = (mark for mark in setting.metadata if isinstance(mark, Examples))
        if any(mark.default is None for mark in marks):  # that of something else
            setting.default = None
        known[setting.alias or field.name] = setting
    return known


class BuiltFrom:
    """Marks what a table of another form is made into, by its method ``build``.

    Parameters
    ----------
    table
        The form that it has in files.
    """

    def __init__(self, table: type[Table]) -> None:
        self.table = table

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        return no_info_after_validator_function(
            lambda table: table.build(), handler.generate_schema(self.table)
        )


def input_file(folder: Path, name: str, where: str, expected: str) -> Path:
    """Return the path of a file that a scenario names.

    Parameters
    ----------
    folder
        The scenario file's; relative names start there.
    name
        As written in the scenario.
    where
        The setting that names it.
    expected
        What kind of file it is.

    Raises
    ------
    InputError
        If there is no such file, it is not a regular one, or its folder cannot be
        read.
    """
    path = folder / name
    problem = file_problem(path)
    if problem:
        raise InputError(problem, where=where, got=name, expected=expected)
    return path
