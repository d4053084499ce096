"""The commands of a shell script, as a tree. Words keep their quotes and dollars."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Redirect:
    """A redirection of what a command reads or prints."""

    operator: str
    """``<``, ``>``, ``>>``, ``<<``, ``<<<``, ``>&`` and so on."""

    line: int
    """Line of the script, from 1."""

    descriptor: str = ""
    """Number in front of it."""

    word: str = ""
    """What stands behind it."""

    document: str = ""
    """Text of a here-document, which follows its line."""

    expands: bool = True
    """Whether variables in the here-document are expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A variable that is set."""

    name: str
    index: str | None = None
    word: str = ""
    items: tuple[str, ...] | None = None
    adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """Assignments, and the words of a command; those of ``declare`` set variables."""

    words: tuple[str | Assignment, ...]
    line: int
    assignments: tuple[Assignment, ...] = ()
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What stands between ``[[`` and ``]]``, word by word."""

    words: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """What stands between ``((`` and ``))``."""

    text: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Commands joined by ``&&`` and ``||``."""

    first: "Node"
    others: tuple[tuple[str, "Node"], ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipedCommands:
    """Commands that hand on what they print, or one whose status is turned round."""

    parts: tuple["Node", ...]
    line: int
    is_negated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCommand:
    """A command that nobody waits for."""

    body: "Node"
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The branches of an if with their conditions, and what is done otherwise."""

    branches: tuple[tuple[tuple["Node", ...], tuple["Node", ...]], ...]
    otherwise: tuple["Node", ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseBranch:
    """Patterns of a case, what is done, and how the branch ends."""

    patterns: tuple[str, ...]
    body: tuple["Node", ...]
    end: str = ";;"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A word, and branches with their patterns."""

    word: str
    branches: tuple[CaseBranch, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForLoop:
    """A variable that takes some words in turn; None for all arguments."""

    name: str
    words: tuple[str, ...] | None
    body: tuple["Node", ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingLoop:
    """C's for: what is done first, tested in each round, and done behind it."""

    first: str
    test: str
    step: str
    body: tuple["Node", ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhileLoop:
    """What is done while, or until, commands succeed."""

    condition: tuple["Node", ...]
    body: tuple["Node", ...]
    line: int
    is_until: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Commands in braces, or in brackets: a shell of their own."""

    body: tuple["Node", ...]
    line: int
    is_subshell: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirected:
    """A compound command with redirections."""

    body: "Node"
    redirects: tuple[Redirect, ...]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFunction:
    """Commands under a name."""

    name: str
    body: "Node"
    line: int


Node = (
    SimpleCommand
    | Condition
    | Arithmetic
    | Joined
    | PipedCommands
    | BackgroundCommand
    | Branches
    | Switch
    | ForLoop
    | CountingLoop
    | WhileLoop
    | Grouped
    | Redirected
    | ShellFunction
)
