"""What a shell keeps on its way through a script: variables, files, where it is."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from nestsim.launch.shell.marks import HERE, MARK
from nestsim.launch.shell.tree import Code, refuse_size
from topologies.errors import InputError

MOST_STEPS = 50_000
"""Most commands that are followed of one script, rounds of loops counted."""

MOST_LETTERS = 2_000_000
"""Longest text that variables may grow to."""


@dataclass(slots=True, kw_only=True)
class Variable:
    """A variable that the script, or what surrounds it, has to do with."""

    value: str | dict[int | str, str] | None = None
    """Its text, or elements by number or key; None if it is known to be unset."""

    is_exported: bool = False
    """Whether commands see it."""

    is_readonly: bool = False
    """Whether it keeps its value."""

    is_integer: bool = False
    """Whether what is assigned is arithmetic."""

    is_map: bool = False
    """Whether its elements have keys."""

    case: str = ""
    """``u`` or ``l`` where its letters are made large or small."""

    @property
    def text(self) -> str | None:
        """Its text, or its element 0; None if it has none."""
        if isinstance(self.value, dict):
            return self.value.get("0" if self.is_map else 0)
        return self.value

    @property
    def is_seen(self) -> bool:
        """Whether commands see it: no arrays."""
        return self.is_exported and not isinstance(self.value, dict)

    @property
    def items(self) -> dict[int | str, str]:
        """Its elements in order."""
        if isinstance(self.value, dict):
            if self.is_map:
                return self.value
            return dict(sorted(self.value.items(), key=lambda item: int(item[0])))
        return {} if self.value is None else {0: self.value}

    @property
    def following(self) -> int:
        """Number behind its last element."""
        return max((int(key) for key in self.items), default=-1) + 1


@dataclass(slots=True)
class Variables:
    """All variables of a shell, and how far they have grown."""

    table: dict[str, Variable] = field(default_factory=dict)
    """Those that are known, by name."""

    fixed: frozenset[str] = frozenset()
    """Names that keep the value that the user gave them."""

    exported: set[str] = field(default_factory=set)
    """Names that commands are to see once they are set."""

    exports_all: bool = False
    """Whether commands are to see all that is set from here on."""

    grown: list[int] = field(default_factory=lambda: [0])
    """Letters that expansions have made so far, in all shells of the script."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Variables":
        """Return variables that the user gave: exported, and kept."""
        held = {name: Variable(value=v, is_exported=True) for name, v in given.items()}
        return cls(table=held, fixed=frozenset(given))

    def copy(self, *, exported: bool = False) -> "Variables":
        """Return variables of a shell that begins with these, or with the exported."""
        table = {
            name: replace(
                held,
                value=dict(held.value) if isinstance(held.value, dict) else held.value,
                is_readonly=held.is_readonly and not exported,
            )
            for name, held in self.table.items()
            if not exported or held.is_seen
        }
        self.grow(sum(len(held.items) for held in table.values()))
        return Variables(
            table=table,
            fixed=self.fixed,
            exported=set(self.exported),
            exports_all=self.exports_all and not exported,
            grown=self.grown,
        )

    def text(self, name: str) -> str | None:
        """Return a variable as one text; None if it is not set."""
        held = self.table.get(name)
        return None if held is None else held.text

    def texts(self) -> dict[str, str]:
        """Return all that are set, as texts."""
        self.grow(len(self.table))
        return {
            name: held.text
            for name, held in self.table.items()
            if held.text is not None
        }

    def environment(self) -> dict[str, str]:
        """Return those that commands see."""
        texts, table = self.texts(), self.table
        return {name: text for name, text in texts.items() if table[name].is_seen}

    def changed(self, name: str) -> Variable | None:
        """Return a variable to be changed; None if it keeps what the user gave.

        Raises
        ------
        InputError
            If it is read-only.
        """
        if name in self.fixed:
            return None
        new = Variable(is_exported=name in self.exported)
        held = self.table.setdefault(name, new)
        held.is_exported = held.is_exported or self.exports_all
        if held.is_readonly:
            raise InputError(
                "is read-only in the script, which sets it again",
                where=name,
                expected="a variable that is set once",
            )
        return held

    def assign(
        self, name: str, value: str | Sequence[str], key: int | str | None = None
    ) -> None:
        """Set a variable, or an element of it, or all elements of an array."""
        held = self.changed(name)
        if held is None:
            return
        self.grow(len(value) + 1 if isinstance(value, str) else sum(map(len, value)))
        if not isinstance(value, str):
            held.value = dict(enumerate(value))
        elif key is None and not isinstance(held.value, dict):
            held.value = value
        else:
            if not isinstance(held.value, dict):
                held.value = held.items
            held.value[("0" if held.is_map else 0) if key is None else key] = value

    def restore(self, hidden: Mapping[str, Variable | None]) -> None:
        """Bring back variables that were hidden; None for those that were not set."""
        for name, held in hidden.items():
            self.table.pop(name, None)
            if held is not None:
                self.table[name] = held

    def unset(self, name: str) -> None:
        """Forget a variable; it is known to be unset."""
        if self.changed(name) is not None:
            self.table[name] = Variable()

    def grow(self, letters: int) -> None:
        """Count what expansions make.

        Raises
        ------
        InputError
            If it is more than any script needs.
        """
        self.grown[0] += letters
        if self.grown[0] > MOST_LETTERS:
            problem = "variables of the script grow without bound"
            refuse_size(problem, f"{MOST_LETTERS:,} letters")


Status = int | None
"""What a command returns; None if only a run would tell."""


class ConditionError(Exception):
    """A condition that Bash refuses: its status is 2."""


class Ended(Exception):  # noqa: N818 - the end of the script, not an error
    """The shell ends here."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


class Returned(Ended):
    """A function, or a file that is read, ends here."""


class Jumped(Exception):  # noqa: N818 - ``break`` or ``continue``, not an error
    """A loop is left, or goes on with its next round."""

    def __init__(self, levels: int, *, is_break: bool) -> None:
        super().__init__(levels)
        self.levels, self.is_break = levels, is_break


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One command that a script starts."""

    words: tuple[str, ...]
    """Its words, expanded."""

    line: int
    """Line of the script, from 1."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it sees."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """All variables of the script where it starts."""


@dataclass(slots=True)
class Stdin:
    """What a command reads."""

    text: str | None
    """The text; None if nobody knows."""

    at: int = 0
    """How much of it is read."""

    def rest(self) -> str | None:
        """Read all that is left."""
        if self.text is None:
            return None
        text, self.at = self.text[self.at :], len(self.text)
        return text

    def line(self, end: str = "\n") -> tuple[str, bool] | None:
        """Read a line; return it, and whether it has an end. None if not known."""
        if self.text is None:
            return None
        stop = self.text.find(end, self.at) if end else -1
        if stop < 0:
            return self.rest() or "", False
        text, self.at = self.text[self.at : stop], stop + 1
        return text, True


@dataclass(slots=True)
class State:
    """What all shells of a script share."""

    commands: list[Started] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    """Where the script lies; None if nobody knows."""

    assumptions: list[str] = field(default_factory=list)
    steps: int = 0

    def file(self, name: str) -> str | None:
        """Return the text of a file that the script wrote; None if there is none."""
        plain = str(PurePosixPath(name)) if "\0" not in name else name
        return self.files.get(name, self.files.get(plain))

    def beside(self, name: str) -> Path | None:
        """Return a file that lies beside the script; None if nobody knows of one.

        Bash begins relative paths in the folder that it is started in, which nobody
        knows: that is the script's, the one of today, or one around the script. Of a
        path of another machine, or behind what is not known, the end suffices.

        Parameters
        ----------
        name
            Its path.
        """
        begin, slash, rest = name.partition("/")
        if self.folder is None or not name or MARK.search(rest):
            return None
        if begin == HERE:
            return self.folder / rest
        is_elsewhere = bool(slash) and (not begin or MARK.search(begin) is not None)
        parts = (rest if is_elsewhere else name).split("/")
        above = self.folder.resolve().parents[:3]
        places = (
            folder.joinpath(*parts[begin:])
            for begin in range(max(len(parts) - 1, 1) if is_elsewhere else 1)
            for folder in (self.folder, Path.cwd(), *above)
        )
        return next((place for place in places if place.is_file()), None)


@dataclass(slots=True)
class Flow:
    """Where one shell is."""

    out: list[str] | None = None
    """What it prints; None if nobody reads that."""

    stdin: Stdin | None = None
    """What it reads; None for what the user types."""

    options: set[str] = field(default_factory=set)
    """Letters and names of ``set``."""

    is_doubtful: bool = False
    """Whether what follows is reached only if a command succeeds that nobody knows."""

    exit_trap: str = ""
    """Commands that are left to be done at its end."""

    exported_functions: set[str] = field(default_factory=set)
    scopes: list[dict[str, Variable | None]] = field(default_factory=list)
    """Variables that functions hide, the innermost last."""

    loops: int = 0
    """Loops around."""

    sourced: int = 0
    """Files that are being read."""

    tested: int = 0
    """Conditions around, where a failure stops nothing."""

    folder: str = ""
    """Where it works, if that is a place beside the script."""

    depth: int = 0
    line: int = 1
    status: Status = 0
    """Of the last command."""

    substituted: Status = 0
    """Of the last command whose words were taken over."""

    doubt: tuple[str, int, bool] = ("", 1, False)
    """The last command whose status nobody knows, its line, whether it was a test."""

    letter: int = 1
    """Letter of an option where ``getopts`` is."""

    sets_arguments: bool = False
    """Whether ``set`` gave arguments since a file began to be read."""

    def inner(self, *, is_program: bool) -> "Flow":
        """Return where a shell begins that this one starts."""
        if is_program:
            return Flow(
                stdin=self.stdin, depth=self.depth, line=self.line, folder=self.folder
            )
        return replace(
            self,
            options=set(self.options),
            exit_trap="",
            out=None,
            loops=0,
            scopes=[dict(hidden) for hidden in self.scopes],
        )


def separators(blanks: str) -> tuple[str, str]:
    """Return what separates fields, as regular expressions: any, and but blanks.

    Parameters
    ----------
    blanks
        What ``IFS`` holds.
    """
    nothing = "(?!)"
    white, other = (
        "|".join(
            re.escape(letter) for letter in blanks if (letter in " \t\n") == is_white
        )
        or nothing
        for is_white in (True, False)
    )
    return f"(?:{white})*(?:{other})(?:{white})*|(?:{white})+", other


class Inside(Protocol):
    """What words need of the shell that they stand in."""

    def output_of(self, code: Code, text: str) -> str:
        """Return what commands print; a mark with their text if nobody knows."""

    def special(self, name: str) -> str | None:
        """Return ``$?``, ``$#`` and the like, or an argument; None if not set."""

    def note(self, sentence: str) -> None:
        """Note what is taken."""

    def note_unset(self) -> None:
        """Note that a variable which nothing sets is set, where it must be."""
