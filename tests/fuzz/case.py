"""One input: a command line and the files that it is run beside, as one JSON record.

A record says everything, so that a reproducer repeats an input whatever has become of
the strategies that drew it.
"""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

OUTPUT = "out"
"""Where commands are told to write, below the folder of the input."""


class Special(NamedTuple):
    """Something in the folder that is no plain file."""

    form: str
    """``"folder"``, ``"fifo"``, ``"link"`` to a target, or ``"sparse"``: a file of
    zeros that takes no room on the disk."""

    target: str = ""
    """What a link points to; the size of a sparse file [byte]."""


Content = bytes | Special


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line and its files."""

    kind: str
    """What of the input is special; results are counted by it."""

    argv: tuple[str, ...]
    """Arguments of the command line; names of files are relative to the folder."""

    files: Mapping[str, Content] = field(default_factory=dict)
    """Name -> content, in the order in which they are made."""

    is_mutated: bool = False
    """Whether anything was changed after a valid input had been drawn."""

    def materialise(self, folder: Path) -> None:
        """Write the files into an empty folder."""
        for name, content in self.files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            elif content.form == "folder":
                file.mkdir(exist_ok=True)
            elif content.form == "fifo":
                os.mkfifo(file)
            elif content.form == "link":
                file.symlink_to(content.target)
            else:
                with file.open("wb") as stream:
                    stream.truncate(int(content.target))

    def with_file(self, name: str, content: bytes) -> "Case":
        """Return the input with another content of one file."""
        return replace(self, files={**self.files, name: content})

    def without_file(self, name: str) -> "Case":
        """Return the input without one file."""
        left = {key: value for key, value in self.files.items() if key != name}
        return replace(self, files=left)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "kind": self.kind,
            "argv": list(self.argv),
            "is_mutated": self.is_mutated,
            "files": {name: _encoded(one) for name, one in self.files.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Case":
        """Return what `to_json` made a record of."""
        return cls(
            kind=record["kind"],
            argv=tuple(record["argv"]),
            files={name: _decoded(one) for name, one in record["files"].items()},
            is_mutated=record["is_mutated"],
        )


def write_reproducer(case: Case, file: Path, **facts: Any) -> None:
    """Write an input and what came of it."""
    record = {**case.to_json(), **facts}
    text = json.dumps(record, indent=1, ensure_ascii=True)
    file.write_text(f"{text}\n", encoding="utf-8")


def read_reproducer(file: Path) -> Case:
    """Read an input back."""
    return Case.from_json(json.loads(file.read_text(encoding="utf-8")))


def _encoded(content: Content) -> dict[str, str]:
    if isinstance(content, Special):
        return content._asdict()
    try:
        return {"text": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}


def _decoded(record: Mapping[str, str]) -> Content:
    if "form" in record:
        return Special(**record)
    if "text" in record:
        return record["text"].encode("utf-8")
    return base64.b64decode(record["base64"])
