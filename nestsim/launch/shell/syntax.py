"""The syntax of a shell script: the commands that its text forms.

After POSIX, "Shell Command Language", sections 2.9 and 2.10, with Bash's arrays,
``[[``, ``((`` and C-style ``for``.
"""

import re
from collections.abc import Callable
from typing import NoReturn

from nestsim.launch.shell.lexer import BLANKS, Lexer, check_depth
from nestsim.launch.shell.nodes import (
    Arithmetic,
    Assignment,
    BackgroundCommand,
    Branches,
    CaseBranch,
    Condition,
    CountingLoop,
    ForLoop,
    Grouped,
    Joined,
    Node,
    PipedCommands,
    Redirect,
    Redirected,
    ShellFunction,
    SimpleCommand,
    Switch,
    WhileLoop,
)
from topologies.errors import InputError

MOST_LETTERS = 1_000_000
"""Longest script that is read."""

DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
"""Commands whose arguments set variables."""

_CONTINUED = re.compile(r"\\\r?\n")
_REDIRECT = re.compile(r"(\d*|\{[A-Za-z_]\w*\})(<<<|<<-?|<&|<>|<|>>|>&|>\||>)|()(&>>?)")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]\n]*)\])?(\+?)=")
_NAME = re.compile(r"[^\s()<>|&;\"'`$\\]+")
_BRACKETS = re.compile(r"[ \t]*\([ \t]*\)")
_CLOSES = frozenset({"then", "elif", "else", "fi", "do", "done", "esac", "}", "in"})
_SEPARATORS = ("\n", ";", "&")


def parse(text: str, line: int = 1) -> tuple[Node, ...]:
    """Return the commands of a script.

    Parameters
    ----------
    text
        The script.
    line
        Line that it begins in.

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
    parser = _Parser(text, line=line)
    nodes = parser.nodes(())
    if parser.at < len(text):
        parser.refuse()
    return nodes


def lexer_of(text: str, depth: int = 0) -> Lexer:
    """Return what finds the ends of parts of a word."""
    return _Parser(text, depth=depth).lexer


class _Parser:
    """Makes commands of a text, from a position to its end or to a bracket."""

    def __init__(
        self,
        text: str,
        *,
        line: int = 1,
        at: int = 0,
        depth: int = 0,
        ends: dict[int, int] | None = None,
    ) -> None:
        self.text, self.at, self.depth = text, at, depth
        self.lexer = Lexer(text, self._behind_commands, depth)
        self.pending: list[tuple[Redirect, str, bool]] = []
        self._first, self._line, self._counted = line, line, at
        self._ends: dict[int, int] = {} if ends is None else ends

    def _behind_commands(self, at: int, depth: int) -> int:
        """Return where commands that begin inside of a word end, found once."""
        if at not in self._ends:
            inner = _Parser(self.text, at=at, depth=depth, ends=self._ends)
            inner.nodes(())
            self._ends[at] = inner.at
        return self._ends[at]

    def line(self) -> int:
        """Return the line of what stands here."""
        if self.at > self._counted:
            self._line += self.text.count("\n", self._counted, self.at)
            self._counted = self.at
        return self._line

    def refuse(self, expected: str = "a shell script") -> NoReturn:
        """Refuse what stands here.

        Raises
        ------
        InputError
            Always.
        """
        if self.at >= len(self.text):
            raise InputError("the script ends too early", expected=expected)
        line = self._first + self.text.count("\n", 0, self.at)
        raise InputError(
            f"is no shell script that is understood, in line {line}",
            got=self.text[self.at :].split("\n")[0].strip()[:60] or "the end of a line",
            expected=expected,
        )

    def nodes(self, until: tuple[str, ...]) -> tuple[Node, ...]:
        """Return commands up to one of some keywords, or a bracket; it is left."""
        self.depth += 1
        check_depth(self.depth)
        found: list[Node] = []
        while True:
            self._pass_lines()
            if self._peek("&") and not self._peek("&>"):
                self.at += 1
                continue
            if self.at >= len(self.text) or self.text[self.at] == ")":
                break
            if self._peek(";;") or self._peek(";&"):
                break
            if until and self._keyword() in until:
                break
            found.append(self._chain())
        self.depth -= 1
        return tuple(found)

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _pass_blanks(self) -> None:
        """Pass blanks, continued lines and comments."""
        text = self.text
        while self.at < len(text):
            if text[self.at] in BLANKS:
                self.at += 1
            elif (continued := _CONTINUED.match(text, self.at)) is not None:
                self.at = continued.end()
            elif text[self.at] == "#":
                end = text.find("\n", self.at)
                self.at = len(text) if end < 0 else end
            else:
                return

    def _pass_lines(self, also: str = ";") -> None:
        """Pass ends of lines and of commands, with here-documents that follow."""
        while True:
            self._pass_blanks()
            if self._peek("\n"):
                self.at += 1
                self._documents()
            elif also and self._peek(also) and not self._peek(";;"):
                if self._peek(";&"):
                    return
                self.at += 1
            else:
                return

    def _documents(self) -> None:
        """Read the texts of here-documents, which follow their line."""
        for redirect, delimiter, strips in self.pending:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                one = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                one = one.lstrip("\t") if strips else one
                if one.rstrip("\r") == delimiter:
                    break
                lines.append(one + "\n")
            redirect.document = "".join(lines)
        self.pending.clear()

    def _keyword(self) -> str:
        """Return the plain word that stands here; empty if there is none."""
        end = self.lexer.behind_word(self.at)
        return self.text[self.at : end]

    def _take(self, word: str) -> None:
        """Pass a keyword or an operator, which must stand here."""
        self._pass_lines()
        if not self._peek(word) or (word.isalpha() and self._keyword() != word):
            self.refuse(word)
        self.at += len(word)

    def _chain(self) -> Node:
        line = self.line()
        first, others = self._pipeline(), []
        self._pass_blanks()
        while self._peek("&&") or self._peek("||"):
            operator = self.text[self.at : self.at + 2]
            self.at += 2
            self._pass_lines(also="")
            others.append((operator, self._pipeline()))
            self._pass_blanks()
        node = Joined(first=first, others=tuple(others), line=line) if others else first
        if self._peek("&") and not self._peek("&>"):
            self.at += 1
            return BackgroundCommand(body=node, line=line)
        return node

    def _pipeline(self) -> Node:
        line, negated = self.line(), False
        while (word := self._keyword()) in ("!", "time", "-p"):
            negated ^= word == "!"
            self.at += len(word)
            self._pass_blanks()
        parts = [self._one()]
        self._pass_blanks()
        while self._peek("|") and not self._peek("||"):
            self.at += 2 if self._peek("|&") else 1
            self._pass_lines(also="")
            parts.append(self._one())
            self._pass_blanks()
        if len(parts) == 1 and not negated:
            return parts[0]
        return PipedCommands(parts=tuple(parts), is_negated=negated, line=line)

    def _one(self) -> Node:
        """Read one command, with its redirections."""
        self.depth += 1
        check_depth(self.depth)
        line, word = self.line(), self._keyword()
        read = self._compounds().get(word)
        if self._peek("("):
            node = self._brackets()
        elif read is not None:
            self.at += len(word)
            node = read(line)
        elif word in _CLOSES:
            self.refuse("a command")
        elif self._is_function(word):
            self.at += len(word)
            node = self._function(line, word)
        else:
            node = self._simple(line)
        self.depth -= 1
        if isinstance(node, SimpleCommand | ShellFunction):
            return node
        redirects = self._redirects()
        if not redirects:
            return node
        return Redirected(body=node, redirects=redirects, line=line)

    def _is_function(self, word: str) -> bool:
        named = _NAME.fullmatch(word) and not _ASSIGNED.match(word)
        return bool(named and _BRACKETS.match(self.text, self.at + len(word)))

    def _compounds(self) -> dict[str, Callable[[int], Node]]:
        return {
            "if": self._if,
            "case": self._case,
            "for": self._for,
            "while": self._while,
            "until": self._until,
            "{": self._braces,
            "[[": self._condition,
            "function": self._named_function,
            "select": self._unread,
            "coproc": self._unread,
        }

    def _unread(self, line: int) -> Node:
        raise InputError(
            f"`select` or `coproc` in line {line} is not followed",
            expected="a script without it",
        )

    def _if(self, line: int) -> Node:
        branches: list[tuple[tuple[Node, ...], tuple[Node, ...]]] = []
        otherwise: tuple[Node, ...] = ()
        while True:
            condition = self.nodes(("then",))
            self._take("then")
            branches.append((condition, self.nodes(("elif", "else", "fi"))))
            if self._keyword() != "elif":
                break
            self.at += len("elif")
        if self._keyword() == "else":
            self.at += len("else")
            otherwise = self.nodes(("fi",))
        self._take("fi")
        return Branches(branches=tuple(branches), otherwise=otherwise, line=line)

    def _word(self) -> str:
        """Return the word that stands here, and pass it."""
        self._pass_blanks()
        start = self.at
        self.at = self.lexer.behind_word(start)
        return self.text[start : self.at]

    def _case(self, line: int) -> Node:
        word = self._word()
        self._take("in")
        branches = []
        self._pass_lines()
        while self.at < len(self.text) and self._keyword() != "esac":
            branches.append(self._branch())
            self._pass_lines(also="")
        self._take("esac")
        return Switch(word=word, branches=tuple(branches), line=line)

    def _branch(self) -> CaseBranch:
        if self._peek("("):
            self.at += 1
        patterns = [self._word()]
        self._pass_blanks()
        while self._peek("|"):
            self.at += 1
            patterns.append(self._word())
            self._pass_blanks()
        self._take(")")
        body = self.nodes(("esac",))
        for end in (";;&", ";;", ";&"):
            if self._peek(end):
                self.at += len(end)
                return CaseBranch(patterns=tuple(patterns), body=body, end=end)
        return CaseBranch(patterns=tuple(patterns), body=body)

    def _for(self, line: int) -> Node:
        self._pass_blanks()
        if self._peek("(("):
            return self._counting(line)
        name = self._word()
        words: list[str] | None = None
        self._pass_lines(also="")
        if self._keyword() == "in":
            self.at += len("in")
            words = []
            while word := self._word():
                words.append(word)
        return ForLoop(
            name=name,
            words=None if words is None else tuple(words),
            body=self._loop_body(),
            line=line,
        )

    def _counting(self, line: int) -> Node:
        end = self.lexer.behind_arithmetic(self.at)
        parts = self.text[self.at + 2 : (end or 2) - 2].split(";")
        if end is None or len(parts) != 3:
            self.refuse("for ((first; test; step))")
        self.at = end
        first, test, step = parts
        body = self._loop_body()
        return CountingLoop(first=first, test=test, step=step, body=body, line=line)

    def _loop_body(self) -> tuple[Node, ...]:
        self._pass_lines()
        opens, closes = ("{", "}") if self._keyword() == "{" else ("do", "done")
        self._take(opens)
        body = self.nodes((closes,))
        self._take(closes)
        return body

    def _while(self, line: int) -> Node:
        condition = self.nodes(("do",))
        return WhileLoop(condition=condition, body=self._loop_body(), line=line)

    def _until(self, line: int) -> Node:
        condition = self.nodes(("do",))
        body = self._loop_body()
        return WhileLoop(condition=condition, body=body, is_until=True, line=line)

    def _braces(self, line: int) -> Node:
        body = self.nodes(("}",))
        self._take("}")
        return Grouped(body=body, line=line)

    def _brackets(self) -> Node:
        """Read commands in brackets, or arithmetic in two of them."""
        line = self.line()
        if self._peek("(("):
            end = self.lexer.behind_arithmetic(self.at)
            if end is not None:
                text, self.at = self.text[self.at + 2 : end - 2], end
                return Arithmetic(text=text, line=line)
        self.at += 1
        body = self.nodes(())
        self._take(")")
        return Grouped(body=body, is_subshell=True, line=line)

    def _named_function(self, line: int) -> Node:
        return self._function(line, self._word())

    def _function(self, line: int, name: str) -> Node:
        found = _BRACKETS.match(self.text, self.at)
        self.at = self.at if found is None else found.end()
        self._pass_lines(also="")
        return ShellFunction(name=name, body=self._one(), line=line)

    def _condition(self, line: int) -> Node:
        """Read the words of ``[[ .. ]]``; a regular expression is one word."""
        words: list[str] = []
        while True:
            self._pass_lines(also="")
            start = self.at
            if words[-1:] == ["=~"]:
                self.at = self._behind_expression()
            elif self.text[start : start + 2] in ("&&", "||"):
                self.at += 2
            elif self.text[start : start + 1] in ("(", ")", "<", ">"):
                self.at += 1
            else:
                self.at = self.lexer.behind_word(start)
            if self.at == start:
                self.refuse("]]")
            words.append(self.text[start : self.at])
            if words[-1] == "]]":
                return Condition(words=tuple(words[:-1]), line=line)

    def _behind_expression(self) -> int:
        """Return the position behind a regular expression: blanks in brackets count."""
        at, inside = self.at, 0
        while at < len(self.text):
            letter = self.text[at]
            inside += (letter == "(") - (letter == ")")
            if inside < 0 or (letter in BLANKS + "\n" and not inside):
                break
            at = self.lexer.behind_part(at)
        return at

    def _simple(self, line: int) -> SimpleCommand:
        """Read assignments, words and redirections up to the end of the command."""
        words: list[str | Assignment] = []
        assignments: list[Assignment] = []
        redirects: list[Redirect] = []
        begin = self.at
        while True:
            self._pass_blanks()
            redirect = self._redirect()
            if redirect is not None:
                redirects.append(redirect)
                continue
            found = self._assigned(words)
            if isinstance(found, Assignment) and not words:
                assignments.append(found)
            elif found:
                words.append(found)
            else:
                break
        if self.at == begin or self._peek("("):
            self.refuse("a command")
        return SimpleCommand(
            words=tuple(words),
            line=line,
            assignments=tuple(assignments),
            redirects=tuple(redirects),
        )

    def _assigned(self, words: list[str | Assignment]) -> str | Assignment:
        """Return a word, or what sets a variable in front or behind a command."""
        start = self.at
        sets = not words or words[0] in DECLARING
        found = _ASSIGNED.match(self.text, start) if sets else None
        if found is None:
            word = self._word()
            if word and self._peek("("):
                self.refuse("a command")
            return word
        self.at = found.end()
        name, index, adds = found[1], found[2], bool(found[3])
        if self._peek("("):
            items = self._items()
            return Assignment(name=name, index=index, items=items, adds=adds)
        end = self.lexer.behind_word(self.at)
        word, self.at = self.text[self.at : end], end
        return Assignment(name=name, index=index, word=word, adds=adds)

    def _items(self) -> tuple[str, ...]:
        """Read the words of an array."""
        line = self.line()
        items: list[str] = []
        self.at += 1
        while True:
            self._pass_lines(also="")
            if self._peek(")"):
                self.at += 1
                return tuple(items)
            word = self._word()
            if not word:
                raise InputError(
                    f"an array does not close, in line {line}", expected=")"
                )
            items.append(word)

    def _redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while True:
            self._pass_blanks()
            one = self._redirect()
            if one is None:
                return tuple(found)
            found.append(one)

    def _redirect(self) -> Redirect | None:
        """Read a redirection, if one stands here."""
        found = _REDIRECT.match(self.text, self.at)
        if found is None or self.text.startswith(("<(", ">("), self.at):
            return None
        line = self.line()
        operator = found[2] or found[4]
        self.at = found.end()
        word = self._word()
        redirect = Redirect(
            operator=operator.rstrip("-") if operator == "<<-" else operator,
            descriptor=found[1] or "",
            word=word,
            line=line,
        )
        if operator in ("<<", "<<-"):
            delimiter = re.sub(r"[\\'\"]", "", word)
            redirect.expands = delimiter == word
            self.pending.append((redirect, delimiter, operator == "<<-"))
        return redirect
