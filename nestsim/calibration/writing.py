"""Write fitted values into the file of constants, and touch nothing else in it.

A constant's entry is one line, ``name = { value = .., source = ".." }``, below the
head of its section. Entries that are there are replaced; new ones come after the last
one of their section, and new sections after the last one of their group.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is written of a constant."""

    value: float
    source: str
    low: float
    """Least value over the folds."""

    high: float
    """Largest value over the folds."""

    def text(self, name: str) -> str:
        """Return its line."""
        source = self.source.replace("\\", "\\\\").replace('"', '\\"')
        return (
            f"{name} = {{ value = {self.value:.4g}, low = {self.low:.4g}, "
            f'high = {self.high:.4g}, source = "{source}" }}'
        )


def replace_entries(text: str, entries: Mapping[str, Entry]) -> str:
    """Return the text of a file of constants with other entries.

    Parameters
    ----------
    text
        Of the file.
    entries
        Dotted name, ``group.section.constant``, -> what is written.
    """
    lines = text.split("\n")
    for dotted, entry in entries.items():
        section, name = dotted.rsplit(".", 1)
        _write(lines, section, name, entry.text(name))
    return "\n".join(lines)


def _write(lines: list[str], section: str, name: str, line: str) -> None:
    heads = [number for number, one in enumerate(lines) if one.startswith("[")]
    head = next((n for n in heads if lines[n].strip() == f"[{section}]"), None)
    if head is None:
        group = section.split(".", maxsplit=1)[0]
        last = max(
            (n for n in heads if lines[n].startswith(f"[{group}.")),
            default=heads[-1] if heads else 0,
        )
        at = _end(lines, last)
        lines[at:at] = ["", f"[{section}]", line]
        return
    end = _end(lines, head)
    for number in range(head + 1, end):
        if re.match(rf"{re.escape(name)}\s*=", lines[number]):
            lines[number] = line
            return
    lines.insert(end, line)


def _end(lines: list[str], head: int) -> int:
    """Return the line after the last entry of a section."""
    end = head + 1
    for number in range(head + 1, len(lines)):
        if lines[number].startswith("["):
            break
        if re.match(r"\w+\s*=", lines[number]):
            end = number + 1
    return end
