"""Tables of TOML beside this module, which may be like each other."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

import tomli

_FOLDER = resources.files("estimators") / "models"
_SUFFIX = ".toml"


def read_tables(*place: str) -> dict[str, Any]:
    """Return the tables of a file, whose place is relative to this module's folder."""
    return tomli.loads(_FOLDER.joinpath(*place).read_text(encoding="utf-8"))


def table_files(folder: str) -> list[str]:
    """Return the names of a folder's files of tables."""
    names = (file.name for file in (_FOLDER / folder).iterdir())
    return [name for name in names if name.endswith(_SUFFIX)]


def resolve_table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table with what it leaves out taken from the one that it is ``like``.

    Tables inside it are taken entry by entry.
    """
    table = dict(tables[name])
    if "like" not in table:
        return table
    base = resolve_table(tables, table.pop("like"))
    for key, value in table.items():
        inner = isinstance(value, dict) and key in base
        base[key] = base[key] | value if inner else value
    return base
