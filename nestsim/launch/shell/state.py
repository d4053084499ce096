"""What a shell keeps on its way through a script: variables, files, where it is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Protocol

from nestsim.launch.shell.nodes import Node
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
        table = {
            name: Variable(value=value, is_exported=True)
            for name, value in given.items()
        }
        return cls(table=table, fixed=frozenset(given))

    def copy(self, *, exported: bool = False) -> "Variables":
        """Return variables of a shell that begins with these, or with the exported."""
        table = {
            name: replace(
                one,
                value=dict(one.value) if isinstance(one.value, dict) else one.value,
                is_readonly=one.is_readonly and not exported,
            )
            for name, one in self.table.items()
            if not exported or one.is_seen
        }
        self.grow(sum(len(one.items) for one in table.values()))
        return Variables(
            table=table,
            fixed=self.fixed,
            exported=set(self.exported),
            exports_all=self.exports_all and not exported,
            grown=self.grown,
        )

    def text(self, name: str) -> str | None:
        """Return a variable as one text; None if it is not set."""
        found = self.table.get(name)
        return None if found is None else found.text

    def texts(self) -> dict[str, str]:
        """Return all that are set, as texts."""
        self.grow(len(self.table))
        return {
            name: one.text for name, one in self.table.items() if one.text is not None
        }

    def environment(self) -> dict[str, str]:
        """Return those that commands see."""
        return {
            name: text
            for name, text in self.texts().items()
            if self.table[name].is_seen
        }

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
        found = self.table.setdefault(name, new)
        found.is_exported = found.is_exported or self.exports_all
        if found.is_readonly:
            raise InputError(
                "is read-only in the script, which sets it again",
                where=name,
                expected="a variable that is set once",
            )
        return found

    def assign(self, name: str, value: str | Sequence[str]) -> None:
        """Set a variable to a text, or to the elements of an array."""
        found = self.changed(name)
        if found is None:
            return
        if not isinstance(value, str):
            found.value = dict(enumerate(value))
            self.grow(sum(map(len, value)))
        elif isinstance(found.value, dict):
            found.value["0" if found.is_map else 0] = value
        else:
            found.value = value
        if isinstance(value, str):
            self.grow(len(value))

    def assign_at(self, name: str, index: int | str, value: str) -> None:
        """Set an element of an array; a number below 0 counts from the end."""
        found = self.changed(name)
        if found is None:
            return
        if not isinstance(found.value, dict):
            found.value = {} if found.value is None else {0: found.value}
        if isinstance(index, int) and index < 0:
            index += max((int(one) for one in found.value), default=-1) + 1
        found.value[index] = value
        self.grow(len(value) + 1)

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
            raise InputError(
                "variables of the script grow without bound",
                got=f"more than {MOST_LETTERS:,} letters",
                expected="a launch script",
            )


Status = int | None
"""What a command returns; None if only a run would tell."""


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
        found, self.at = self.text[self.at :], len(self.text)
        return found

    def line(self, end: str = "\n") -> tuple[str, bool] | None:
        """Read a line; return it, and whether it has an end. None if not known."""
        if self.text is None:
            return None
        stop = self.text.find(end, self.at) if end else -1
        if stop < 0:
            return self.rest() or "", False
        found, self.at = self.text[self.at : stop], stop + 1
        return found, True


@dataclass(slots=True)
class State:
    """What all shells of a script share."""

    commands: list[Started] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    steps: int = 0

    def file(self, name: str) -> str | None:
        """Return the text of a file that the script wrote; None if there is none."""
        plain = str(PurePosixPath(name)) if "\0" not in name else name
        return self.files.get(name, self.files.get(plain))


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

    depth: int = 0
    line: int = 1
    status: Status = 0
    """Of the last command."""

    substituted: Status = 0
    """Of the last command whose words were taken over."""

    doubt: str = ""
    """The last command whose status nobody knows."""

    doubt_line: int = 1
    doubts_test: bool = False
    """Whether it was a condition."""

    letter: int = 1
    """Letter of an option where ``getopts`` is."""

    sets_arguments: bool = False
    """Whether ``set`` gave arguments since a file began to be read."""

    @contextmanager
    def looping(self) -> Iterator[None]:
        """Count a loop."""
        self.loops += 1
        try:
            yield
        finally:
            self.loops -= 1

    def inner(self, *, is_program: bool) -> "Flow":
        """Return where a shell begins that this one starts."""
        if is_program:
            return Flow(stdin=self.stdin, depth=self.depth, line=self.line)
        return replace(
            self,
            options=set(self.options),
            exit_trap="",
            out=None,
            loops=0,
            scopes=[dict(hidden) for hidden in self.scopes],
        )


class Inside(Protocol):
    """What words need of the shell that they stand in."""

    def output_of(self, text: str) -> str:
        """Return what commands print; a mark if nobody knows."""

    def special(self, name: str) -> str | None:
        """Return ``$?``, ``$#`` and the like, or an argument; None if not set."""

    def note(self, sentence: str) -> None:
        """Note what is taken."""

    def note_unset(self) -> None:
        """Note that a variable which nothing sets is set, where it must be."""


class Expanding(Protocol):
    """What commands and parameters need of the expansion of words."""

    variables: Variables
    shell: Inside
    arguments: list[str]
    knows_arguments: bool
    is_bare: bool

    def fields(self, raw: str) -> list[str]:
        """Return a word as the words that it becomes."""

    def one(self, raw: str) -> str:
        """Return a word as one."""

    def bare(self, raw: str) -> str:
        """Return a word in which what nothing sets is empty."""

    def pattern(self, raw: str) -> str:
        """Return a word as a pattern."""

    def sum(self, text: str) -> int | None:
        """Return the value of arithmetic, None if nobody knows."""

    def key(self, name: str, index: str) -> int | str:
        """Return which element of an array an index names."""

    def separator(self) -> str:
        """Return what joins words in ``"$*"``."""

    def blanks(self) -> str:
        """Return what splits words."""


class Interpreter(Inside, Protocol):
    """What commands need of the shell that they run in."""

    variables: Variables
    state: State
    functions: dict[str, Node]
    flow: Flow

    @property
    def expander(self) -> Expanding:
        """Expands words with its variables."""

    def nodes(self, nodes: Sequence[Node]) -> Status:
        """Follow commands in turn; return the status of the last one."""

    def tested(self, nodes: Sequence[Node]) -> Status:
        """Follow commands whose failure stops nothing."""

    def start(self, words: list[str]) -> Status:
        """Start a command: a function, one of Bash's own, or a program."""

    def source(self, text: str, arguments: list[str]) -> Status:
        """Follow another file in this shell."""

    def emit(self, text: str) -> None:
        """Print a text."""

    def write(self, name: str, adds: bool, text: str) -> None:
        """Keep the text of a file that the script writes."""

    def bare_sum(self, text: str) -> int | None:
        """Return the value of arithmetic in which what nothing sets is 0."""

    def note_patterns(self) -> None:
        """Note words with patterns of file names, which stay as they are."""
