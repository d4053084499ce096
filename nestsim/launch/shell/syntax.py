"""The syntax of a shell script: tokens, and the commands that they form.

After POSIX, "Shell Command Language", sections 2.3, 2.9 and 2.10, with Bash's arrays,
``[[`` and ``((``. Words keep their quotes and dollars: `words` expands them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nestsim.launch.shell.words import behind_mark, behind_quotes, closing
from topologies.errors import InputError

MOST_LETTERS = 1_000_000
"""Longest script that is read."""

_MOST_DEPTH = 40
_BLANKS = " \t\r"
_OPERATORS = (";;", "&&", "||", "|&", "|", "&", ";", "(", ")", "\n")
_CLOSERS: Mapping[str, str] = MappingProxyType(
    {"'": "'", '"': '"', "`": "`", "$(": ")", "${": "}"}
)
"""What opens a part of a word -> what closes it."""
_CONTINUED = re.compile(r"\\\r?\n")
_REDIRECT = re.compile(r"\d*(?:<<<|>>|>&|>\||<&|<>|>|<)|&>>?")
_ADDS = frozenset({">>>", ">1>>", ">&>>"})
_WRITES = _ADDS | {">>", ">1>", ">>|", ">1>|", ">&>"}
"""Redirections of what a command prints, as `_Lexer` marks them."""
_HEREDOC = re.compile(r"\d*<<(-?)(?!<)[ \t]*(\\?)(['\"]?)([\w.!%-]+)\3")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[[^\]]*\])?(\+?)=")


@dataclass(slots=True)
class Token:
    """A word, or an operator between words."""

    text: str
    """The word as written, or the operator."""

    line: int
    """Line that it stands in, from 1."""

    is_word: bool = False
    """Whether it is a word."""

    items: tuple[str, ...] | None = None
    """Words of an array that is assigned; None for anything else."""

    heredoc: str | None = None
    """Text of a here-document; None for anything else."""

    expands: bool = True
    """Whether variables in the here-document are expanded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A variable that is set."""

    name: str
    word: str = ""
    items: tuple[str, ...] | None = None
    adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """Assignments, and the words of a command."""

    words: tuple[str, ...]
    line: int
    assignments: tuple[Assignment, ...] = ()
    heredoc: str = ""
    heredoc_expands: bool = True
    target: str = ""
    adds: bool = False
    is_condition: bool = False
    is_arithmetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Commands joined by ``&&``, ``||`` or a pipe."""

    first: "Node"
    others: tuple[tuple[str, "Node"], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """The branches of an if with their conditions, and what is done otherwise."""

    branches: tuple[tuple[tuple["Node", ...], tuple["Node", ...]], ...]
    otherwise: tuple["Node", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A word, and branches with their patterns."""

    word: str
    branches: tuple[tuple[tuple[str, ...], tuple["Node", ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForLoop:
    """A variable that takes some words in turn."""

    name: str
    words: tuple[str, ...]
    body: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhileLoop:
    """A loop whose rounds nobody can count."""

    body: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouped:
    """Commands in brackets or braces."""

    body: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellFunction:
    """Commands under a name."""

    name: str
    body: tuple["Node", ...]


Node = (
    SimpleCommand
    | Joined
    | Branches
    | Switch
    | ForLoop
    | WhileLoop
    | Grouped
    | ShellFunction
)


def parse(text: str) -> tuple[Node, ...]:
    """Return the commands of a script.

    Raises
    ------
    InputError
        If brackets or keywords do not close, or it is too long for a script.
    """
    if len(text) > MOST_LETTERS:
        raise InputError(
            "is too long for a launch script",
            got=f"{len(text):,} letters",
            expected=f"at most {MOST_LETTERS:,}",
        )
    parser = _Parser(_Lexer(text).tokens())
    nodes = parser.nodes(())
    if parser.more():
        raise parser.refusal()
    return nodes


@dataclass(slots=True)
class _Lexer:
    """Cuts a script into tokens."""

    text: str
    position: int = 0
    start: int = 0
    line: int = 1
    found: list[Token] = field(default_factory=list)
    pending: list[tuple[Token, str, bool]] = field(default_factory=list)

    def tokens(self) -> list[Token]:
        """Return all tokens."""
        while self.position < len(self.text):
            self._next()
        self._heredocs()
        return self.found

    def _next(self) -> None:
        text, at = self.text, self.position
        letter = text[at]
        if letter in _BLANKS:
            self.position += 1
        elif (continued := _CONTINUED.match(text, at)) is not None:
            self.line += 1
            self.position = continued.end()
        elif letter == "#":
            end = text.find("\n", at)
            self.position = len(text) if end < 0 else end
        elif not (self._redirection() or self._bracketed() or self._joint()):
            self._word()

    def _redirection(self) -> bool:
        """Read ``<<EOF``, ``<<<``, ``>`` and the like, if one stands here."""
        text, at = self.text, self.position
        if (here := _HEREDOC.match(text, at)) is not None:
            token = Token("<<", self.line, expands=not (here[2] or here[3]))
            self.found.append(token)
            self.pending.append((token, here[4], bool(here[1])))
            self.position = here.end()
            return True
        found = _REDIRECT.match(text, at)
        if found is None or text.startswith(("<(", ">("), at):
            return False
        self._operator(">" + found[0], len(found[0]))
        return True

    def _bracketed(self) -> bool:
        """Read ``((..))`` and ``<(..)`` as a word, if one stands here."""
        text, at = self.text, self.position
        arithmetic = text.startswith("((", at) and self._at_command()
        if not arithmetic and not text.startswith(("<(", ">("), at):
            return False
        end = closing(text, at + (not arithmetic))
        self._token(text[at:end])
        self.position = end
        return True

    def _joint(self) -> bool:
        """Read an operator between commands, if one stands here."""
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.position):
                self._operator(operator)
                return True
        return False

    def _at_command(self) -> bool:
        """Whether a command may begin here."""
        if not self.found:
            return True
        last = self.found[-1]
        return not last.is_word or last.text in ("if", "while", "then", "do", "!")

    def _operator(self, text: str, length: int = 0) -> None:
        self.found.append(Token(text, self.line))
        self.position += length or len(text)
        if text == "\n":
            self.line += 1
            self._heredocs()

    def _token(self, word: str, items: tuple[str, ...] | None = None) -> None:
        self.found.append(Token(word, self.line, is_word=True, items=items))
        self.line += word.count("\n")

    def _heredocs(self) -> None:
        """Read the texts of here-documents, which follow their line."""
        for token, delimiter, strips in self.pending:
            lines = []
            while self.position < len(self.text):
                end = self.text.find("\n", self.position)
                end = len(self.text) if end < 0 else end
                one = self.text[self.position : end]
                self.position, self.line = end + 1, self.line + 1
                one = one.lstrip("\t") if strips else one
                if one.rstrip("\r") == delimiter:
                    break
                lines.append(one)
            token.heredoc = "\n".join(lines)
        self.pending.clear()

    def _word(self) -> None:
        """Read a word with its quotes and brackets; an array with its words."""
        text, start = self.text, self.position
        self.start = start
        while self.position < len(text):
            letter = text[self.position]
            if letter in _BLANKS or letter in "\n;|&<>":
                break
            if letter == "(":
                if _ASSIGNED.fullmatch(text[start : self.position]):
                    self._array(text[start : self.position])
                    return
                break
            if letter == ")":
                break
            self.position = self._behind_part()
        if self.position == start:
            self.position += 1
        self._token(text[start : self.position])

    def _behind_part(self) -> int:
        """Return the position behind a part of a word, which must be closed."""
        text, at = self.text, self.position
        end = _behind_part(text, at)
        mark = text[at : at + 2] if text[at] == "$" else text[at]
        closer = _CLOSERS.get(mark)
        if closer and (end < at + 2 or text[end - 1] != closer):
            line = self.line + text.count("\n", self.start, at)
            raise InputError(f"{mark} is left open in line {line}", expected=closer)
        return end

    def _array(self, name: str) -> None:
        """Read the words of an array up to its bracket."""
        end = _array_end(self.text, self.position)
        inner = _Lexer(self.text[self.position + 1 : end - 1])
        items = tuple(one.text for one in inner.tokens() if one.is_word)
        line = self.line
        self._token(name, items)
        self.line = line + self.text.count("\n", self.position, end)
        self.position = end


def _array_end(text: str, start: int) -> int:
    """Return the position behind an array's bracket; brackets in comments are none."""
    position = start + 1
    while position < len(text) and text[position] != ")":
        letter = text[position]
        if letter == "#" and text[position - 1] in " \t\n(":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        elif letter == "(":
            position = closing(text, position)
        elif letter in "\\'\"`$":
            position = _behind_part(text, position)
        else:
            position += 1
    if position >= len(text):
        raise InputError("an array does not close", expected=")")
    return position + 1


def _behind_part(text: str, at: int) -> int:
    """Return the position behind a letter, a quotation or an expansion of a word."""
    letter = text[at]
    if letter == "\\":
        return at + 2
    if letter in "'`":
        end = text.find(letter, at + 1)
        return len(text) if end < 0 else end + 1
    if letter == '"':
        return behind_quotes(text, at + 1)
    if letter == "$" and text[at + 1 : at + 2] in ("(", "{"):
        return closing(text, at + 1)
    return behind_mark(text, at)


@dataclass(slots=True)
class _Parser:
    """Makes commands of tokens."""

    tokens: list[Token]
    position: int = 0
    depth: int = 0

    def more(self) -> bool:
        """Whether tokens are left."""
        return self.position < len(self.tokens)

    def refusal(self, expected: str = "a shell script") -> InputError:
        """Return the refusal of what stands here."""
        if not self.more():
            return InputError("the script ends too early", expected=expected)
        token = self.tokens[self.position]
        return InputError(
            f"is no shell script that is understood, in line {token.line}",
            got=token.text.strip()[:60] or "the end of a line",
            expected=expected,
        )

    def nodes(self, until: Sequence[str]) -> tuple[Node, ...]:
        """Return commands up to one of some keywords, which is left."""
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            raise self.refusal("commands that are nested less deep")
        found: list[Node] = []
        while self.more():
            token = self.tokens[self.position]
            if token.text in until:
                break
            if not token.is_word and token.text in ("\n", ";", "&", "|", "|&"):
                self.position += 1
                continue
            if not token.is_word and token.text in (")", ";;"):
                break
            found.append(self._chain())
        self.depth -= 1
        return tuple(found)

    def _chain(self) -> Node:
        first, others = self._one(), []
        while self.more() and self._peek() in ("&&", "||", "|", "|&"):
            op = self._peek()[:1] if self._peek().startswith("|&") else self._peek()
            self.position += 1
            while self.more() and self._peek() == "\n":
                self.position += 1
            if self.more():
                others.append((op, self._one()))
        return Joined(first=first, others=tuple(others)) if others else first

    def _peek(self) -> str:
        """Return the operator or keyword here; empty behind the end."""
        return self.tokens[self.position].text if self.more() else ""

    def _take(self, text: str) -> None:
        while self.more() and self._peek() in ("\n", ";") and text not in ("\n", ";"):
            self.position += 1
        if self._peek() != text:
            raise self.refusal(text)
        self.position += 1

    def _one(self) -> Node:
        token = self.tokens[self.position]
        made = {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "select": self._for,
            "while": self._while,
            "until": self._while,
            "{": self._braces,
            "(": self._brackets,
            "function": self._function,
        }.get(token.text)
        if made is not None and token.items is None:
            return made()
        following = [one.text for one in self.tokens[self.position + 1 :][:2]]
        if token.is_word and following == ["(", ")"]:
            return self._function()
        return self._command()

    def _if(self) -> Node:
        branches: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        otherwise: tuple[Node, ...] = ()
        self.position += 1
        while True:
            condition = self.nodes(("then",))
            self._take("then")
            body = self.nodes(("elif", "else", "fi"))
            branches.append((condition, body))
            if self._peek() != "elif":
                break
            self.position += 1
        if self._peek() == "else":
            self.position += 1
            otherwise = self.nodes(("fi",))
        self._take("fi")
        return Branches(branches=tuple(branches), otherwise=otherwise)

    def _case(self) -> Node:
        self.position += 1
        word = self._peek()
        self.position += 1
        self._take("in")
        branches = []
        while self.more():
            while self._peek() in ("\n", "(", ";;"):
                self.position += 1
            if self._peek() == "esac":
                break
            patterns = []
            while self.more() and self._peek() != ")":
                if self.tokens[self.position].is_word:
                    patterns.append(self._peek())
                self.position += 1
            self._take(")")
            branches.append((tuple(patterns), self.nodes(("esac",))))
        self._take("esac")
        return Switch(word=word, branches=tuple(branches))

    def _for(self) -> Node:
        self.position += 1
        name, words = self._peek(), []
        self.position += 1
        while self._peek() == "\n":
            self.position += 1
        if self._peek() == "in":
            self.position += 1
            while self.more() and self.tokens[self.position].is_word:
                words.append(self._peek())
                self.position += 1
        return ForLoop(name=name, words=tuple(words), body=self._loop_body())

    def _loop_body(self) -> tuple[Node, ...]:
        self._take("do")
        body = self.nodes(("done",))
        self._take("done")
        return body

    def _while(self) -> Node:
        self.position += 1
        self.nodes(("do",))
        return WhileLoop(body=self._loop_body())

    def _braces(self) -> Node:
        self.position += 1
        body = self.nodes(("}",))
        self._take("}")
        return Grouped(body=body)

    def _brackets(self) -> Node:
        self.position += 1
        body = self.nodes(())
        self._take(")")
        return Grouped(body=body)

    def _function(self) -> Node:
        if self._peek() == "function":
            self.position += 1
        name = self._peek()
        self.position += 1
        while self._peek() in ("(", ")", "\n"):
            self.position += 1
        body = self._one() if self.more() else Grouped(body=())
        return ShellFunction(name=name, body=(body,))

    def _command(self) -> Node:
        """Read a simple command, a condition in ``[[``, or arithmetic in ``((``."""
        start = self.tokens[self.position]
        if start.text == "[[":
            return self._condition()
        if start.text.startswith("((") and start.is_word:
            self.position += 1
            inner = start.text[2:].removesuffix("))")
            return SimpleCommand(words=(inner,), line=start.line, is_arithmetic=True)
        return self._simple(start)

    def _simple(self, start: Token) -> SimpleCommand:
        """Read assignments and words up to the end of the command."""
        words: list[str] = []
        assignments: list[Assignment] = []
        heredoc, target, adds = Token("", start.line), "", False
        begin = self.position
        while self.more():
            token = self.tokens[self.position]
            if not token.is_word and not token.text.startswith((">", "<<")):
                break
            self.position += 1
            if token.heredoc is not None:
                heredoc = token
            elif not token.is_word:
                name = self._target()
                if token.text in _WRITES:
                    target, adds = name, token.text in _ADDS
            elif self._sets(token, words):
                assignments.append(_assignment(token))
            else:
                words.append(token.text)
        if self.position == begin:
            raise self.refusal("a command")
        return SimpleCommand(
            words=tuple(words),
            line=start.line,
            assignments=tuple(assignments),
            heredoc=heredoc.heredoc or "",
            heredoc_expands=heredoc.expands,
            target=target,
            adds=adds,
        )

    @staticmethod
    def _sets(token: Token, words: Sequence[str]) -> bool:
        """Whether a word sets a variable: before a command, or an array behind one."""
        return token.items is not None or (
            not words and _ASSIGNED.match(token.text) is not None
        )

    def _target(self) -> str:
        """Return the file of a redirection, which is passed."""
        if not self.more() or not self.tokens[self.position].is_word:
            return ""
        self.position += 1
        return self.tokens[self.position - 1].text

    def _condition(self) -> Node:
        start = self.tokens[self.position]
        words = []
        self.position += 1
        while self.more() and self._peek() != "]]":
            text = self._peek()
            words.append(text.removeprefix(">") if len(text) == 2 else text)
            self.position += 1
        self._take("]]")
        plain = tuple(word for word in words if word != "\n")
        return SimpleCommand(words=plain, line=start.line, is_condition=True)


def _assignment(token: Token) -> Assignment:
    found = _ASSIGNED.match(token.text)
    assert found is not None
    return Assignment(
        name=found[1],
        word=token.text[found.end() :],
        items=token.items,
        adds=bool(found[2]),
    )
