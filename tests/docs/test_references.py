"""The references have every setting and every option, in words to be read alone."""

import re
from functools import cache

from pydantic.fields import FieldInfo

from docs.builder.commands import commands_reference
from docs.builder.settings import (
    TableReference,
    settings,
    settings_reference,
    tables,
    unit,
)
from nestsim.registry import COMMANDS
from tests.nestsim.scenario.table_classes import table_classes

REFERENCE = cache(settings_reference)


@cache
def fields() -> list[tuple[str, TableReference, str, FieldInfo]]:
    """Return name, table, key and field of every setting."""
    return [
        (f"{table.anchor}.{key}", table, key, field)
        for table in tables()
        for key, field in settings(table.model).items()
    ]


LEANING = re.compile(
    r"\b(likewise|that link|that hash|of it\b|the same as above)", re.I
)
"""Words by which a description leans on the one before it."""


def entry(table: TableReference, key: str) -> str:
    """Return what the reference says of a key."""
    start = REFERENCE().index(f"{{ #{table.anchor}.{key} }}\n")
    return REFERENCE()[start:].split("\n##")[0]


def test_every_table_of_a_scenario_is_described() -> None:
    assert {table.model for table in tables()} == table_classes()


def test_no_two_tables_or_keys_share_an_anchor() -> None:
    names = re.findall(r"\{ #(\S+) \}$", REFERENCE(), re.MULTILINE)
    assert len(names) == len(set(names))


def test_every_key_has_type_default_example_and_words() -> None:
    def holds(table: TableReference, key: str, field: FieldInfo) -> bool:
        text = entry(table, key)
        shown = ("**Example** ", "[table", "*Deprecated.*")
        return (
            text.split("\n")[2].rstrip("*").endswith(".")
            and "**Type** " in text
            and "**Default** " in text
            and any(one in text for one in shown)
            and ("**Unit** " in text) == bool(unit(field))
        )

    assert len(fields()) > 400
    assert [name for name, *one in fields() if not holds(*one)] == []


def test_the_words_of_a_key_can_be_read_alone() -> None:
    def can(field: FieldInfo) -> bool:
        words = " ".join((field.description or "").split())
        measured = unit(field) or "1"
        has_unit = measured in {"1", "tokens/s"} or f"[{measured}]" in words
        leans = LEANING.search(words) or re.match(r"(Of|Which:|Which,)\b", words)
        return has_unit and not leans

    assert [name for name, _, _, field in fields() if not can(field)] == []


def test_every_command_and_option_is_described() -> None:
    reference = commands_reference()
    for command in COMMANDS:
        section = reference.split(f"{{ #{command.name} }}\n")[1].split("\n## ")[0]
        for option in command.options:
            assert option.words, f"{command.name} {option.name}"
            assert f"`{option.name}" in section or f"`[{option.name}" in section
