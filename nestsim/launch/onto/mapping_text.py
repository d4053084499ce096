"""Configurations of names and values, and the same text with other values.

Of YAML and JSON the parser of YAML says where each value stands; a file in TOML is gone
through line by line. Comments, order, spaces and quotes of everything else stay. Which
kind of file a launch is changed in, and how its changes are shown, is here, too.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from typing import Any

import tomli
import yaml

from nestsim.launch.carried import leaves, nested
from nestsim.launch.onto.script_text import Edit, ScriptText, applied
from nestsim.launch.read import LaunchSource
from nestsim.scenario.editing import toml_text
from topologies.errors import InputError
from topologies.input_file import parse_toml, parse_yaml

_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?")
_KEY = re.compile(r"\s*([\w.\"' -]+?)\s*=\s*")


@dataclass(slots=True, kw_only=True)
class TreeText:
    """A file in YAML or JSON."""

    text: str
    """All of it."""

    order: Sequence[str] = ()
    """Names of options, neighbours next to each other: where what is new goes."""

    _keys: dict[str, yaml.Node] = field(default_factory=dict)
    _values: dict[str, yaml.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Look for values, tabs taken as spaces: they are as long."""
        root = yaml.compose(self.text.replace("\t", " "), Loader=yaml.SafeLoader)
        if isinstance(root, yaml.MappingNode):
            self._walk(root, "")

    def _walk(self, node: yaml.MappingNode, outer: str) -> None:
        self._values[outer] = node
        for key, value in node.value:
            name = f"{outer}.{key.value}" if outer else str(key.value)
            self._keys[name], self._values[name] = key, value
            if isinstance(value, yaml.MappingNode):
                self._walk(value, name)

    def options(self) -> dict[str, Any]:
        """Return the value of each option by its dotted name."""
        document = yaml.safe_load(self.text.replace("\t", " "))
        return dict(leaves(document)) if isinstance(document, dict) else {}

    def edited(self, changes: Mapping[str, Any]) -> str:
        """Return the file with other values; an option goes where there is None."""
        edits = []
        new: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            if value is None:
                edits += [self._removed(name)] if name in self._values else []
            elif name in self._values:
                node = self._values[name]
                start, end = node.start_mark.index, node.end_mark.index
                edits.append(Edit(start, end, _like(node, value)))
            else:
                table = name.rpartition(".")[0]
                while table and not isinstance(
                    self._values.get(table), yaml.MappingNode
                ):
                    table = table.rpartition(".")[0]
                key = name[len(table) :].lstrip(".")
                new.setdefault(table, {})[key] = value
        gone = {name for name, value in changes.items() if value is None}
        for table, values in new.items():
            if self._values[table].flow_style:
                edits += self._added(table, values, gone)
            else:
                for key, value in values.items():
                    edits += self._added(table, {key: value}, gone)
        return applied(self.text, edits)

    def _removed(self, name: str) -> Edit:
        """Return what takes an option out with its line, or with its comma."""
        start = self._keys[name].start_mark.index
        end = self._values[name].end_mark.index
        behind = re.compile(r"[ \t]*,?[ \t]*(#.*)?").match(self.text, end)
        end = end if behind is None else behind.end()
        begin = self.text.rfind("\n", 0, start) + 1
        if not self.text[begin:start].strip() and self.text[end : end + 1] in "\r\n":
            newline = self.text.find("\n", end)
            start, end = begin, len(self.text) if newline < 0 else newline + 1
        closes = re.compile(r"\s*[}\]]").match(self.text, end)
        comma = re.search(r",\s*\Z", self.text[:start])
        if closes and comma:  # the last one takes the comma of that before along
            start, end = comma.start(), min(end, closes.end())
            return Edit(start, end, "\n" if self.text[end - 1] == "\n" else "")
        return Edit(start, end, "")

    def _added(
        self, table: str, values: Mapping[str, Any], gone: set[str]
    ) -> Iterator[Edit]:
        """Yield what puts options at the end of a table."""
        node = self._values[table]
        tables = nested(values.items())
        prefix = f"{table}." if table else ""
        stays = {
            prefix + key.value: (key, inner)
            for key, inner in node.value
            if prefix + key.value not in gone
        }
        flow = bool(node.flow_style)
        if not stays:
            place = node.start_mark.index + flow
            written = json.dumps(tables)[1:-1]
            yield Edit(place, place, written if flow else f"{_block(tables, '')}\n")
            return
        first = prefix + next(iter(values))
        neighbours = [] if flow else [*reversed(_until(self.order, first))]
        key, last_node = next(
            (stays[name] for name in neighbours if name in stays), [*stays.values()][-1]
        )
        end = self._end(last_node)
        begin = self.text.rfind("\n", 0, key.start_mark.index) + 1
        indent = self.text[begin : key.start_mark.index]
        if flow:
            unit = len(indent) // (1 + table.count(".") + bool(table))
            unit = 0 if indent.strip() else unit
            between = f",\n{indent}" if not indent.strip() and begin else ", "
            written = between.join(
                f"{json.dumps(name)}: {_indented(value, indent, unit)}"
                for name, value in tables.items()
            )
            yield Edit(end, end, between + written)
        else:
            newline = self.text.find("\n", end)
            end = len(self.text) if newline < 0 else newline
            yield Edit(end, end, f"\n{_block(tables, indent)}")

    def _end(self, node: yaml.Node) -> int:
        """Return where a value ends; a table in lines, with its last value."""
        while isinstance(node, yaml.CollectionNode) and not node.flow_style:
            inner = node.value[-1]
            node = inner[1] if isinstance(inner, tuple) else inner
        return int(node.end_mark.index)


def _like(node: yaml.Node, value: Any) -> str:
    """Write a value as the one that stands there is written."""
    is_bare = isinstance(node, yaml.ScalarNode) and not node.style
    if is_bare and isinstance(value, str) and value.isidentifier():
        return value
    if isinstance(value, float) and value.is_integer() and node.tag.endswith(":int"):
        return str(int(value))
    return json.dumps(value)


def _until(names: Sequence[str], name: str) -> Sequence[str]:
    """Return the names before one of them."""
    return names[: names.index(name)] if name in names else ()


def _indented(value: Any, indent: str, unit: int) -> str:
    if not isinstance(value, dict) or not unit:
        return json.dumps(value)
    return json.dumps(value, indent=unit).replace("\n", f"\n{indent}")


def _block(values: Mapping[str, Any], indent: str) -> str:
    return "\n".join(
        f"{indent}{name}: {json.dumps(value)}" for name, value in values.items()
    )


@dataclass(slots=True, kw_only=True)
class TomlText:
    """A file in TOML."""

    text: str
    """All of it."""

    _spans: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """Option -> begin of its lines, begin and end of its value, end of its lines."""

    _tables: dict[str, int] = field(default_factory=dict)
    """Table -> behind its last option."""

    def __post_init__(self) -> None:
        """Look for tables and values."""
        lines = self.text.splitlines(keepends=True)
        table, place, position = "", 0, 0
        while place < len(lines):
            line = lines[place]
            header, key = _HEADER.fullmatch(line.rstrip()), _KEY.match(line)
            count = 1
            if header is not None:
                table = _bare(header[1])
                self._tables[table] = position + len(line)
            elif key is not None and not line.lstrip().startswith("#"):
                count, length = _length(lines[place:], key.end())
                end = position + sum(map(len, lines[place : place + count]))
                name = f"{table}.{_bare(key[1])}" if table else _bare(key[1])
                begin = position + key.end()
                self._spans[name] = position, begin, begin + length, end
                self._tables[table] = end
            position += sum(map(len, lines[place : place + count]))
            place += count

    def options(self) -> dict[str, Any]:
        """Return the value of each option by its dotted name."""
        return dict(leaves(tomli.loads(self.text)))

    def edited(self, changes: Mapping[str, Any]) -> str:
        """Return the file with other values; an option goes where there is None."""
        edits = []
        for name, value in changes.items():
            start, begin, end, stop = self._spans.get(name, (0, 0, 0, 0))
            table, _, key = name.rpartition(".")
            if value is None:
                edits.append(Edit(start, stop, ""))
                continue
            written = toml_text({key: value}).rstrip("\n")
            if name in self._spans:
                edits.append(Edit(begin, end, written.split(" = ", 1)[1]))
                continue
            place = self._tables.get(table, len(self.text))
            line = f"{written}\n"
            if place and self.text[place - 1] != "\n":
                line = f"\n{line}"
            if table not in self._tables and table:
                is_first = not any(f"[{table}]" in edit.text for edit in edits)
                line = f"\n[{table}]\n{line}" if is_first else line
            edits.append(Edit(place, place, line))
        return applied(self.text, sorted(edits, key=lambda edit: edit[:2]))


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _length(lines: list[str], begin: int) -> tuple[int, int]:
    """Return how many lines a value takes, and its letters without a comment."""
    written = ""
    for count, line in enumerate(lines, start=1):
        written += line[begin:] if count == 1 else line
        ends = [match.start() for match in re.finditer(r"\s*(#|$)", written)]
        for end in ends:
            if _is_value(written[:end]):
                return count, len(written[:end].rstrip())
    return 1, len(lines[0][begin:].rstrip())


def _is_value(written: str) -> bool:
    try:
        tomli.loads(f"x = {written}\n")
    except tomli.TOMLDecodeError:
        return False
    return True


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
