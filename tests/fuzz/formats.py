"""Trees of plain values as TOML, JSON or CSV, and back: strategies change trees.

The format follows from a file's name. A CSV file is a list of rows of cells.
"""

import csv
import datetime as dt
import io
import json
import re
from collections.abc import Mapping
from typing import Any

import tomli

Tree = Any
"""Dictionaries, lists and plain values."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NOT_IN_A_STRING = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')


def dump(name: str, tree: Tree) -> bytes:
    """Return a tree in the format of a file's name."""
    if name.endswith(".toml"):
        text = _toml(tree)
    elif name.endswith(".csv"):
        text = _csv(tree)
    else:
        text = json.dumps(tree, indent=1, ensure_ascii=False, default=str)
    return text.encode("utf-8", errors="surrogatepass")


def parse(name: str, content: bytes) -> Tree:
    """Return the tree of a file, None if there is none in it."""
    try:
        text = content.decode("utf-8")
        if name.endswith(".toml"):
            return tomli.loads(text)
        if name.endswith(".csv"):
            return list(csv.reader(io.StringIO(text), strict=True))
        return json.loads(text)
    except (ValueError, RecursionError, csv.Error):
        return None


def _toml(tree: Mapping[str, Tree]) -> str:
    """Write tables of the first level under headings, all others inline."""
    lines, tables = [], []
    for key, value in tree.items():
        if isinstance(value, dict):
            tables.append(f"\n[{_key(key)}]")
            tables += [f"{_key(k)} = {_inline(v)}" for k, v in value.items()]
        else:
            lines.append(f"{_key(key)} = {_inline(value)}")
    return "\n".join([*lines, *tables, ""])


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    def escaped(found: re.Match[str]) -> str:
        letter = found[0]
        if "\ud800" <= letter <= "\udfff":
            return "?"  # TOML has no way to write one half of a pair
        return f"\\{letter}" if letter in '"\\' else f"\\u{ord(letter):04x}"

    return f'"{_NOT_IN_A_STRING.sub(escaped, text)}"'


def _inline(value: Tree) -> str:
    """Write a value on one line; null, which TOML has not, as an empty string."""
    text = '""'
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = _string(value)
    elif isinstance(value, int | float):
        text = repr(value)
    elif isinstance(value, dt.date | dt.time):
        text = value.isoformat()
    elif isinstance(value, dict):
        pairs = (f"{_key(key)} = {_inline(one)}" for key, one in value.items())
        text = f"{{{', '.join(pairs)}}}"
    elif isinstance(value, list):
        text = f"[{', '.join(map(_inline, value))}]"
    return text


def _csv(rows: Tree) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows if isinstance(rows, list) else []:
        writer.writerow(row if isinstance(row, list) else [row])
    return text.getvalue()
