"""A shell script as the tree that tree-sitter makes of it.

What tree-sitter sees is the *shape* of a script: a text of the same length, all ASCII,
in which what its grammar of Bash (0.25) stumbles over is written as something plainer.
So a place in the tree is a place in the script, and each word is read of the script.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, NoReturn

import tree_sitter
import tree_sitter_bash

from nestsim.launch.shell.marks import MARK, unknown
from topologies.errors import InputError

MOST_LETTERS = 1_000_000
"""Longest script that is read."""

MOST_NESTED = 50
"""Deepest nesting of brackets and quotations."""

_GRAMMAR = tree_sitter.Language(tree_sitter_bash.language())
_KINDS = """
string raw_string ansi_c_string expansion command_substitution arithmetic_expansion
process_substitution array comment
"""
_PARTS = frozenset(_KINDS.split())
"""What stands in a word, or between words, as a node of its own."""

_PLACEHOLDER = re.compile(r"(?<=[A-Za-z0-9_]=)<[^<>\n|&;$]+>")
"""``PATH=<where the data is>``: no redirection, but to be filled in."""

_DOCUMENT = re.compile(r"(?<!<)<<(-?)(?!<)[ \t]*(\\?[^\s\\'\"|&;<>()]+|'.*?'|\".*?\")")
_BLANK = re.compile(r"(?:\s|\\\n)*")
_COMMANDS = re.compile(r"(\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)|\"")
_TOKEN = re.compile(
    r"(?P<blank>(?:\s|\\\n)+)"
    r"|(?P<operator>(?:\d+|\{\w+\})?(?:<<<|<&|<>|<|>>|>&|>\||>)|&>>?)"
    r"|(?:(?!&>)[^\s<>\\]|\\\n|\\\Z)+"
)
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\n]*)\])?(\+?)=")
_IN_BODY = str.maketrans("|;[]<>()&*?!~# \t+,:=%/^@{", "x" * 25)
_CLOSERS = {"$(": ")", "${": "}", "$((": "))", "((": "))", "(": ")", "{": "}"}
_CLOSERS |= {"if": "fi", "case": "esac", "do": "done", "[[": "]]", "<(": ")"}
_CLOSERS |= {"for": "done", "while": "done", "until": "done", '"': '"', "`": "`"}


def _same_length(by: str) -> Callable[[re.Match[str]], str]:
    return lambda match: by * len(match[0])


def _as_default(match: re.Match[str]) -> str:
    """Return ``${..`` with any operator as one with a plain word as its default."""
    return match[1] + "-" + "x" * (len(match[2]) - 1) + match[3].translate(_IN_BODY)


_SHAPES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (MARK.pattern, _same_length("x")),
    (r"\A\ufeff", _same_length(" ")),
    (r"\\\r\n", lambda _: " \\\n"),
    (r"\r", _same_length(" ")),
    (r"[^\t\n -~]", _same_length("x")),
    # A last line that goes on; a dollar in front of quotes, which is a word there.
    (r"\\(?:\n\s*)?\Z", _same_length(" ")),
    (r"\\[ \t](?=[ \t]*$)", _same_length("x")),
    (r"\$(?=\")", _same_length("_")),
    # `time` is a command there; `[` has operators, but not all of them.
    (
        r"(?:^|(?<=[;&|({!])|(?<=\bthen|\belse)|(?<=\bdo|\bif))"
        r"[ \t]*\btime[ \t]+(?:-p\s)?",
        _same_length(" "),
    ),
    (r"(?<![^\s;&|({!`])\[(?=[ \t])", _same_length("x")),
    (
        r"(\$\{!?(?:\w+|[@*])(?:\[[^]\[]*\])?)"
        r"(:?[-=?+]|/[/#%]?|%%?|##?|\^\^?|,,?|:)([^}\"'$`\\\n]*)",
        _as_default,
    ),
    (r"(?<=\(\()[^;\n\"'`]+(?=\)\))", lambda match: match[0].replace(",", "+")),
)
"""What is written as something plainer."""


class Script:
    """A text, and its tree.

    Parameters
    ----------
    text
        The text.
    line
        Line that it begins in, from 1.
    is_document
        Whether it is a here-document in double quotes, in which others are letters.

    Raises
    ------
    InputError
        If it is too long.
    """

    def __init__(self, text: str, line: int = 1, *, is_document: bool = False) -> None:
        if len(text) > MOST_LETTERS:
            raise InputError(
                "is too long for a launch script",
                got=f"{len(text):,} letters",
                expected=f"at most {MOST_LETTERS:,}",
            )
        self.text = _PLACEHOLDER.sub(lambda match: unknown(match[0]), text)
        self.first = line
        self.breaks = [match.start() for match in re.finditer("\n", self.text)]
        self.documents: dict[int, tuple[str, bool]] = {}
        """Place of ``<`` -> a here-document, and whether it is expanded."""

        shape = self.text
        for pattern, by in _SHAPES:
            shape = re.sub(pattern, by, shape, flags=re.MULTILINE)
        if is_document:
            inner = _COMMANDS.sub(lambda match: match[1] or "'", shape[3:-1])
            shape = f': "{inner}"'
        self._parse(shape)
        place = len(shape) if is_document else 0
        while match := _DOCUMENT.search(self.shape, place):
            place = match.end()
            token = self.root.descendant_for_byte_range(
                match.start(), match.start() + 2
            )
            around = token and token.type in ("<<", "<<-") and token.parent
            if around and around.type in ("heredoc_redirect", "ERROR"):
                self._take_document(match)

    def _parse(self, shape: str) -> None:
        self.shape = shape
        self.root = tree_sitter.Parser(_GRAMMAR).parse(shape.encode()).root_node

    def _take_document(self, match: re.Match[str]) -> None:
        """Keep a here-document, and read on as if its text were blank."""
        written = self.text[match.start(2) : match.end(2)]
        delimiter = re.sub(r"[\\'\"]", "", written)
        begin = self.shape.find("\n", match.end())
        begin = end = begin if begin >= 0 else len(self.shape)
        lines: list[str] = []
        for written_line in self.text[begin + 1 :].split("\n"):
            end += 1 + len(written_line)
            line = written_line.lstrip("\t") if match[1] else written_line
            if line.rstrip("\r") == delimiter or end >= len(self.shape):
                break
            lines.append(line + "\n")
        end = min(end, len(self.shape))
        self.documents[match.start()] = "".join(lines), delimiter == written
        operator = "<".ljust(2 + len(match[1]))
        behind = self.shape[match.start() + len(operator) : begin]
        before = self.shape[: match.start()]
        blank = " " * (end - begin)
        self._parse(before + operator + behind + blank + self.shape[end:])

    def line(self, place: int) -> int:
        """Return the line of a place."""
        return self.first + bisect_left(self.breaks, place)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A part of a script, such as a word."""

    script: Script
    start: int
    end: int

    @property
    def text(self) -> str:
        """Its text."""
        return self.script.text[self.start : self.end]

    def __str__(self) -> str:
        return self.text

    @property
    def line(self) -> int:
        """Its line."""
        return self.script.line(self.start)

    def part(self, start: int, end: int) -> "Span":
        """Return a part of it, by places in its text."""
        return Span(self.script, self.start + start, self.start + end)

    def parts(self) -> Iterator["Code"]:
        """Yield quotations, expansions and comments in it, in order."""
        root, start, end = self.script.root, self.start, self.end
        stack = [root.descendant_for_byte_range(start, end) or root]
        while stack:
            node = stack.pop()
            begins, stops = node.start_byte, node.end_byte
            if node.type in _PARTS:  # it takes blanks in front of a dollar with it
                begins = _BLANK.match(self.script.shape, begins).end()  # type: ignore[union-attr]
            if start <= begins and stops <= end and node.type in _PARTS:
                yield Code(self.script, begins, stops, node)
            elif begins < end and stops > start:
                stack += reversed(node.children)

    def outline(self, text: str | None = None) -> str:
        """Return its shape, or its text, with letters in place of its parts."""
        shape = self.script.shape[self.start : self.end] if text is None else text
        outline = re.sub(r"\\.", "xx", shape)
        for part in self.parts():
            start, end = part.start - self.start, part.end - self.start
            blank = " " if part.kind == "comment" else "x"
            outline = outline[:start] + blank * (end - start) + outline[end:]
        return outline

    def tokens(self) -> Iterator["Token"]:
        """Yield its words, and where they stand behind a redirection."""
        operator, place, is_new_line = "", 0, False
        for match in _TOKEN.finditer(self.outline()):
            is_new_line = is_new_line or "\n" in (match["blank"] or "").replace(
                "\\\n", ""
            )
            if match["operator"]:
                operator, place = match[0], self.start + match.end() - 1
            elif not match["blank"]:
                yield Token(self.part(*match.span()), operator, place, is_new_line)
                operator, is_new_line = "", False

    def words(self) -> list["Span"]:
        """Return its words."""
        return [token.word for token in self.tokens() if not token.operator]

    def split(self, by: str) -> list["Span"]:
        """Return its parts between letters that are not quoted."""
        pieces, at = [], 0
        for piece in self.outline(self.text).split(by):
            pieces.append(self.part(at, at + len(piece)))
            at += len(piece) + 1
        return pieces

    def assignment(self) -> "Assignment | None":
        """Return the variable that it sets; None if it sets none."""
        match = _ASSIGNED.match(self.text)
        if match is None:
            return None
        value = self.part(match.end(), self.end - self.start)
        index = None if match[2] is None else self.part(*match.span(2))
        items = None
        if value.text[:1] == "(":
            items = tuple(value.part(1, len(value.text) - 1).words())
        return Assignment(match[1], index, value, items, bool(match[3]))


class Token(NamedTuple):
    """A word of a command, or of a redirection."""

    word: Span
    operator: str
    """``<``, ``2>`` and so on; empty for a word of the command."""

    place: int
    """Where the operator ends, which names a here-document."""

    is_new_line: bool
    """Whether a line begins with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """A variable that is set."""

    name: str
    index: "Span | str | None" = None
    value: Span | str | None = None
    """What is expanded, or a text as it is; None where nothing is set."""

    items: tuple[Span, ...] | None = None
    """Words of an array."""

    adds: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Code(Span):
    """A node of the tree, with the redirections behind it."""

    node: tree_sitter.Node

    @property
    def kind(self) -> str:
        """What it is, in words of the grammar."""
        return self.node.type

    @property
    def children(self) -> "list[Code]":
        """What it is made of."""
        return [self._of(child) for child in self.node.children]

    def _of(self, node: tree_sitter.Node) -> "Code":
        return Code(self.script, node.start_byte, node.end_byte, node)

    def field(self, name: str) -> "Code | None":
        """Return what has a role in it."""
        node = self.node.child_by_field_name(name)
        return None if node is None else self._of(node)

    def until(self, end: int) -> "Code":
        """Return it with what stands behind it."""
        return Code(self.script, self.start, end, self.node)

    def between(self, first: str, *last: str) -> "list[Code]":
        """Return what stands behind a word, up to one of others."""
        children = self.children
        kinds = [child.kind for child in children]
        begin = kinds.index(first) + 1 if first in kinds else 0
        ends = [n for n, kind in enumerate(kinds) if n >= begin and kind in last]
        return children[begin : ends[0] if ends else len(kinds)]

    def is_arithmetic(self) -> bool:
        """Whether it is ``$((..))``, which the grammar does not know everywhere."""
        subshells = [child for child in self.children if child.kind == "subshell"]
        is_one = len(subshells) == 1 and self.node.child_count == 3
        is_one = is_one and subshells[0].end - subshells[0].start == len(self.text) - 3
        return self.kind == "arithmetic_expansion" or (is_one and ";" not in self.text)

    def check(self, *, is_deep: bool) -> None:
        """Refuse it if the grammar does not understand it.

        Raises
        ------
        InputError
            If an error stands in it, or deep in it.
        """
        for child in self.children if self.node.has_error else ():
            if child.node.is_error or child.node.is_missing:
                child.refuse(self.children[0])
            if is_deep:
                child.check(is_deep=True)

    def refuse(self, opener: "Code") -> NoReturn:
        """Refuse what stands here.

        Raises
        ------
        InputError
            Always.
        """
        if not self.node.is_missing:
            opener = self._left_open() or self
        line = self.script.line(opener.start)
        mark = opener.text[:1] if opener.text[:1] in "'\"`" else opener.kind
        if mark == "'" or mark in _CLOSERS:
            closer = _CLOSERS.get(mark, mark)
            raise InputError(f"{mark} is left open in line {line}", expected=closer)
        raise InputError(
            f"is no shell script that is understood, in line {self.line}",
            got=self.script.text[self.start :].strip().split("\n")[0][:60]
            or "the end of the script",
            expected="a shell script",
        )

    def _left_open(self) -> "Code | None":
        """Return the last of what opens in an error and does not close."""
        stack: list[Code] = []
        pending = [self]
        while pending:
            code = pending.pop()
            pending += reversed(code.children)
            if stack and code.kind == _CLOSERS.get(stack[-1].kind):
                stack.pop()
            elif code.kind in _CLOSERS or (
                code.node.is_error and code.text.startswith("'")
            ):
                stack.append(code)
        return stack[-1] if stack else None


def refuse_size(problem: str, most: str) -> NoReturn:
    """Refuse what is more than any script needs.

    Raises
    ------
    InputError
        Always.
    """
    raise InputError(problem, got=f"more than {most}", expected="a launch script")


def statements(children: Sequence[Code]) -> Iterator[tuple[Code, bool]]:
    """Yield commands, and whether nobody waits for them.

    Raises
    ------
    InputError
        If there is something else among them.
    """
    for number, child in enumerate(children):
        if child.node.is_error or child.node.is_missing:
            child.refuse(children[0])
        if child.node.is_named and child.kind != "comment":
            yield child, [c.kind for c in children[number + 1 : number + 2]] == ["&"]


@lru_cache(maxsize=256)
def parse(text: str, line: int = 1) -> Code:
    """Return the tree of a script that begins in a line.

    Raises
    ------
    InputError
        If it is too long.
    """
    script = Script(text, line)
    return Code(script, 0, len(script.text), script.root)


@lru_cache(maxsize=1024)
def word_of(text: str, around: str = "") -> Span:
    """Return a text as one word, with what quotes it around."""
    script = Script(f": {around}{text}{around}")
    return Span(script, 2 + len(around), len(script.text) - len(around))


@lru_cache(maxsize=256)
def document_of(text: str, line: int) -> Span:
    """Return a here-document behind a line as a word."""
    script = Script(f': "{text}"', line + 1, is_document=True)
    return Span(script, 3, len(script.text) - 1)
