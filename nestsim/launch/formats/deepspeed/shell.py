"""The commands of a launch script, with its variables put in; nothing is run.

What scripts that start training are made of: assignments, arrays, ``${NAME:-default}``,
arithmetic, quotes, continued lines, comments, here-documents, and ``if`` about such
values. What only a running shell knows (the output of commands, loops) stays open: a
word that needs it keeps its text.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from topologies.errors import InputError

MAX_WORDS = 100_000
"""Most words of a script."""

MAX_NUMBER = 10**18
"""Numbers that sums stay below."""

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_BRACED = re.compile(
    rf"({_NAME})(?:\[[@*]\])?(?:(:?[-=+])(.*))?|#({_NAME})\[[@*]\]", re.DOTALL
)
_SEPARATORS = ("&&", "||", ";;", ";", "|", "&", "\n")
_PREFIXES = frozenset({"export", "local", "readonly", "declare", "typeset"})
_OPENERS = frozenset({"for", "while", "until", "case", "select"})
_CLOSERS = frozenset({"done", "esac"})


@dataclass(frozen=True, slots=True)
class ReadScript:
    """What a script would run, as far as that can be told without running it."""

    commands: tuple[tuple[str, ...], ...]
    """Words of each command, in order."""

    variables: Mapping[str, tuple[str, ...]]
    """Last values of its variables."""

    files: Mapping[str, str]
    """Files that it writes with here-documents."""

    assumptions: tuple[str, ...]
    """Conditions that could not be told, a sentence each."""


def read_script(text: str, variables: Mapping[str, str]) -> ReadScript:
    """Return the commands of a script.

    Parameters
    ----------
    text
        The script.
    variables
        Values that its surroundings give.

    Raises
    ------
    InputError
        If quotes or brackets are left open, or it is far too long.
    """
    try:
        return _ScriptReader(text, variables).read()
    except RecursionError:
        raise InputError("is nested too deeply", expected="a plain script") from None


@dataclass(slots=True)
class _OpenIf:
    """One ``if`` that is open."""

    taken: bool
    """Whether one of its parts has been read as true."""
    active: bool
    """Whether the part at hand is read."""


@dataclass(slots=True)
class _ScriptReader:
    """Walks through a script once."""

    text: str
    given: Mapping[str, str]
    position: int = 0
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    branches: list[_OpenIf] = field(default_factory=list)
    loops: int = 0
    pending: list[tuple[str, bool]] = field(default_factory=list)
    num_words: int = 0

    def read(self) -> ReadScript:
        self.text = self.text.replace("\r\n", "\n").replace("\\\n", " ")
        self.values.update({name: (value,) for name, value in self.given.items()})
        while self.position < len(self.text):
            self._command(self.words())
        if self.branches:
            raise InputError("an if is left open", expected="fi behind it")
        return ReadScript(
            tuple(self.commands),
            dict(self.values),
            dict(self.files),
            tuple(self.assumptions),
        )

    # Words.

    def words(self) -> list[str]:
        """Return the words up to the next separator, which is passed."""
        words: list[str] = []
        while True:
            self._blanks()
            separator = next(
                (
                    one
                    for one in _SEPARATORS
                    if self.text.startswith(one, self.position)
                ),
                None,
            )
            if self.position >= len(self.text):
                return words
            if separator is not None:
                self.position += len(separator)
                if separator == "\n":
                    self._documents()
                return words
            found = self._word()
            words += found
            self.num_words += len(found)
            if self.num_words > MAX_WORDS:
                raise InputError("is too long", expected=f"{MAX_WORDS:,} words")

    def _blanks(self) -> None:
        text, at = self.text, self.position
        while at < len(text) and text[at] in " \t":
            at += 1
        if at < len(text) and text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        self.position = at

    def _word(self) -> list[str]:
        """Return a word; several where an array or unquoted blanks make them."""
        if self.text.startswith("<<", self.position):
            return self._redirection()
        parts: list[str] = [""]
        start = self.position
        while self.position < len(self.text):
            sign = self.text[self.position]
            if sign in " \t\n;|" or (sign == "&" and self.position == start):
                break
            if sign == "(" and parts[-1].endswith("=") and len(parts) == 1:
                return [parts[0] + self._array()]
            self._sign(sign, parts)
        begun = self.position > start
        return [part for part in parts if part or begun]

    def _sign(self, sign: str, parts: list[str]) -> None:
        """Add what begins with a sign to the last part of a word."""
        if sign == '"':
            self._double(parts)
        elif sign == "$":
            # A value that is assigned is not taken apart at its blanks.
            whole = len(parts) == 1 and _ASSIGNMENT.fullmatch(parts[0]) is not None
            self._append(parts, self._expansion(quoted=whole))
        elif sign == "'":
            parts[-1] += self._until(sign)
        elif sign == "`":
            parts[-1] += sign + self._until(sign) + sign
        elif sign == "\\":
            parts[-1] += self.text[self.position + 1 : self.position + 2]
            self.position += 2
        else:
            parts[-1] += sign
            self.position += 1

    def _append(self, parts: list[str], expanded: list[str]) -> None:
        if not expanded:
            return
        parts[-1] += expanded[0]
        parts.extend(expanded[1:])

    def _until(self, quote: str) -> str:
        """Return what stands between two quotes, and pass both."""
        end = self.text.find(quote, self.position + 1)
        if end < 0:
            raise self._open(quote)
        found = self.text[self.position + 1 : end]
        self.position = end + 1
        return found

    def _open(self, sign: str) -> InputError:
        line = self.text.count("\n", 0, self.position) + 1
        return InputError(f"{sign} is left open in line {line}")

    def _double(self, parts: list[str]) -> None:
        self.position += 1
        while True:
            if self.position >= len(self.text):
                raise self._open('"')
            sign = self.text[self.position]
            if sign == '"':
                self.position += 1
                return
            if sign == "\\":
                following = self.text[self.position + 1 : self.position + 2]
                parts[-1] += following if following in '"\\$`' else "\\" + following
                self.position += 2
            elif sign == "$":
                self._append(parts, self._expansion(quoted=True))
            else:
                parts[-1] += sign
                self.position += 1

    def _array(self) -> str:
        """Return the words between brackets, joined by a sign that no word has."""
        self.position += 1
        words: list[str] = []
        while True:
            self._blanks()
            if self.position >= len(self.text):
                raise self._open("(")
            if self.text[self.position] == "\n":
                self.position += 1
            elif self.text[self.position] == ")":
                self.position += 1
                return "\0" + "\0".join(words)
            else:
                before = self.position
                words += self._array_word()
                if self.position == before:
                    raise self._open("(")

    def _array_word(self) -> list[str]:
        found = self._word()
        # An unquoted bracket ends the array, not the word.
        if found and found[-1].endswith(")") and self.text[self.position - 1] == ")":
            self.position -= 1
            found[-1] = found[-1][:-1]
        return [word for word in found if word]

    # Values.

    def _expansion(self, *, quoted: bool) -> list[str]:
        """Return what a ``$`` stands for, as words."""
        text, at = self.text, self.position
        if text.startswith("$((", at):
            return [self._arithmetic()]
        if text.startswith("$(", at):
            return [self._balanced("(", ")")]
        if text.startswith("${", at):
            inner = self._balanced("{", "}")[2:-1]
            return self._braced(inner, quoted)
        found = re.compile(rf"{_NAME}|\d").match(text, at + 1)
        if found is None:
            self.position += 2 if re.match(r"[@#?*$!-]", text[at + 1 : at + 2]) else 1
            return [text[at : self.position]]
        self.position = found.end()
        if found[0].isdecimal():  # the script is started without arguments
            return self._split(self.values.get(found[0], ("",)), quoted, "")
        return self._split(self.values.get(found[0]), quoted, f"${found[0]}")

    def _balanced(self, opening: str, closing: str) -> str:
        depth, at = 0, self.position
        while at < len(self.text):
            depth += (self.text[at] == opening) - (self.text[at] == closing)
            at += 1
            if depth == 0 and self.text[at - 1] == closing:
                found = self.text[self.position : at]
                self.position = at
                return found
        raise self._open(opening)

    def _braced(self, inner: str, quoted: bool) -> list[str]:
        found = _BRACED.fullmatch(inner)
        if found is None:
            return [f"${{{inner}}}"]
        name, how, other, counted = found.groups()
        if counted:
            return [str(len(self.values.get(counted, ())))]
        value = self.values.get(name)
        is_empty = value is None or (value == ("",) and ":" in (how or ""))
        if how and how[-1] == "+":
            value = None if is_empty else (self._inside(other),)
            return [] if value is None else self._split(value, quoted, "")
        if how and is_empty:
            value = (self._inside(other),)
            if how[-1] == "=":
                self.values[name] = value
        if inner.endswith(("[@]", "[*]")) and value is not None:
            return list(value)
        return self._split(value, quoted, f"${{{inner}}}")

    def _inside(self, text: str) -> str:
        """Return a piece of the script with its variables put in."""
        return " ".join(_ScriptReader(text, {}, values=self.values).words())

    def _split(
        self, value: tuple[str, ...] | None, quoted: bool, unknown: str
    ) -> list[str]:
        if value is None:
            return [unknown] if unknown else []
        text = value[0] if value else ""
        if quoted:
            return [text]
        words = text.split()
        if not words:
            return []
        # Blanks at the ends part what stands beside it.
        first = [""] if text[:1].isspace() else []
        return first + words

    def _arithmetic(self) -> str:
        whole = self._balanced("(", ")")
        inner = whole[3:-2]
        names = re.sub(r"\$\{(\w+)\}|\$?([A-Za-z_]\w*)", self._number, inner)
        try:
            return str(_value(ast.parse(names.strip(), mode="eval").body))
        except (SyntaxError, ArithmeticError, ValueError, KeyError, MemoryError):
            return whole

    def _number(self, found: re.Match[str]) -> str:
        value = self.values.get(found[1] or found[2])
        text = value[0].strip() if value else ""
        return text if re.fullmatch(r"\d{1,18}", text) else "?"

    # Here-documents.

    def _redirection(self) -> list[str]:
        if self.text.startswith("<<<", self.position):
            self.position += 3
            return []
        found = re.compile(r"<<(-?)\s*(['\"]?)([\w.]+)\2").match(
            self.text, self.position
        )
        if found is None:
            self.position += 2
            return []
        self.position = found.end()
        self.pending.append((found[3], found[2] == ""))
        return [f"<<{found[3]}"]

    def _documents(self) -> None:
        """Pass the here-documents that begin behind this line's end."""
        pending, self.pending = self.pending, []
        for word, expands in pending:
            pattern = rf"^\t*{re.escape(word)}[ \t]*$"
            end = re.compile(pattern, re.MULTILINE).search(self.text, self.position)
            if end is None:
                raise InputError(f"<<{word} is left open", expected=f"a line {word}")
            body = self.text[self.position : end.start()]
            if expands:
                body = self._document(body)
            self.files[f"<<{word}"] = body
            self.position = min(end.end() + 1, len(self.text))

    def _document(self, body: str) -> str:
        escaped = body.replace("\\", "\\\\").replace('"', '\\"')
        inner = _ScriptReader(f'"{escaped}"', {}, values=self.values)
        return "".join(inner.words())

    # Commands.

    def _command(self, words: list[str]) -> None:
        head = words[0] if words else ""
        if head in {"then", "else", "do", "{", "}"}:
            if head == "else" and self.branches:
                branch = self.branches[-1]
                branch.active, branch.taken = not branch.taken, True
            self._command(words[1:])
        elif head in {"if", "elif"}:
            self._condition(head, words[1:])
        elif head == "fi":
            del self.branches[-1:]
        elif head in _OPENERS | _CLOSERS:
            self._loop(head)
        elif head and self.loops == 0 and all(one.active for one in self.branches):
            self._plain(words)

    def _loop(self, head: str) -> None:
        if head in _CLOSERS:
            self.loops = max(self.loops - 1, 0)
            return
        self.loops += 1
        self.assumptions.append(f"The script's {head} loops are left out.")

    def _condition(self, head: str, words: list[str]) -> None:
        held = all(branch.active for branch in self.branches)
        if head == "elif" and self.branches:
            held = all(branch.active for branch in self.branches[:-1])
            branch = self.branches[-1]
        else:
            branch = _OpenIf(taken=False, active=False)
            self.branches.append(branch)
        known = _truth(words)
        if known is None and held and not branch.taken:
            said = " ".join(words)[:80]
            self.assumptions.append(f"The condition {said} is taken not to hold.")
        branch.active = bool(known) and not branch.taken
        branch.taken = branch.taken or branch.active

    def _plain(self, words: list[str]) -> None:
        """Keep assignments, written files, and other commands."""
        rest = words[1:] if words[0] in _PREFIXES else words
        while rest:
            found = _ASSIGNMENT.fullmatch(rest[0])
            if found is None:
                break
            self._assign(*found.groups())
            rest = rest[1:]
        if not rest or words[0] in _PREFIXES:
            return
        documents = [word for word in rest if word.startswith("<<")]
        for place, word in enumerate(rest):
            if word.startswith(">") and documents:
                name = word.lstrip(">") or "".join(rest[place + 1 : place + 2])
                self.files[name] = self.files[documents[0]]
        self.commands.append(tuple(word for word in rest if word not in documents))

    def _assign(self, name: str, adds: str, written: str) -> None:
        if written.startswith("\0"):
            value = tuple(one for one in written[1:].split("\0") if one)
            before = self.values.get(name, ()) if adds else ()
            self.values[name] = before + value
        elif name not in self.given:
            before_text = "".join(self.values.get(name, ("",))[:1]) if adds else ""
            self.values[name] = (before_text + written,)


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def _value(node: ast.expr) -> int:
    """Return a sum of whole numbers, as a shell calculates it."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right):
            found = _OPERATIONS[type(op)](_value(left), _value(right))
            if abs(found) < MAX_NUMBER:
                return found
    raise ValueError


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def _is_number(word: str) -> bool:
    return word.isdecimal() and len(word) < len(str(MAX_NUMBER))


def _truth(words: list[str]) -> bool | None:
    """Return whether a test of plain values holds; None if that cannot be told."""
    inner = [word for word in words if word not in {"[", "]", "[[", "]]", "test"}]
    if any("$" in word or "`" in word for word in inner):
        return None
    match inner:
        case ["-z" | "-n" as how, text]:
            return (how == "-n") == bool(text)
        case [left, "=" | "==" | "!=" as how, right]:
            return (how == "!=") != (left == right)
        case ["true" | "false" as word]:
            return word == "true"
        case [left, how, right] if _is_number(left) and _is_number(right):
            compare = _COMPARISONS.get(how)
            return None if compare is None else compare(int(left), int(right))
    return None
