"""What kind of file a launch is changed in, and how its changes are shown."""

import re
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

from nestsim.launch.onto.mapping_text import TomlText, TreeText
from nestsim.launch.onto.script_text import ScriptText
from nestsim.launch.read import LaunchSource
from topologies.errors import InputError
from topologies.input_file import parse_toml, parse_yaml

OptionText = ScriptText | TreeText | TomlText
"""A text, and where its options stand."""


def values_of(editor: OptionText) -> Mapping[str, Any]:
    """Return the value of each option, a script followed."""
    return editor.values() if isinstance(editor, ScriptText) else editor.options()


def number_of(value: Any) -> float | None:
    """Return the number that an option says; None if it says none."""
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def word_of(value: Any) -> str:
    """Return a value as a word of a command."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def tree_options(files: Mapping[str, str], ending: str) -> dict[str, Any]:
    """Return the options of the file with an ending."""
    text = next(text for name, text in files.items() if name.endswith(ending))
    return TreeText(text=text).options()


def is_tree(text: str) -> bool:
    """Whether a text is names and values in YAML."""
    try:
        return isinstance(parse_yaml(text, expected="YAML"), dict)
    except InputError:
        return False


def is_toml(text: str) -> bool:
    """Whether a text is TOML."""
    try:
        return bool(parse_toml(text.encode()))
    except InputError:
        return False


def first_like(files: Mapping[str, Any], source: LaunchSource, format_name: str) -> str:
    """Return the name of the file of a plan that is of the same kind."""
    ending = ".sh"
    if source.text.lstrip().startswith("{"):
        ending = ".json"
    elif format_name == "maxtext":
        ending = ".yml"
    elif format_name == "torchtitan" and is_toml(source.text):
        ending = ".toml"
    return next(name for name in files if name.endswith(ending))


def unified(name: str, before: str, after: str) -> Iterator[str]:
    """Yield the lines of a difference, as ``diff -u`` has them."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    for line in unified_diff(old, new, fromfile=name, tofile=name):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
