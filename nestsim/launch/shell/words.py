"""Words of a shell script expanded: quotes, variables, arrays, what commands print.

Nothing is executed: what only a run would tell stays in a word as a mark (`marks`).
After POSIX, "Shell Command Language", section 2.6, and the GNU Bash manual, section
3.5; patterns of file names stay as they are.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nestsim.launch.shell.arithmetic import value_of
from nestsim.launch.shell.lexer import Lexer, check_depth
from nestsim.launch.shell.marks import (
    MARK,
    behind_mark,
    first_unknown,
    is_set_by_machine,
    unknown,
    without_unset,
)
from nestsim.launch.shell.parameters import Inline, expand_parameter
from nestsim.launch.shell.patterns import escaped, spread_braces
from nestsim.launch.shell.state import Inside, Variables
from nestsim.launch.shell.syntax import lexer_of
from topologies.errors import InputError

_LONGEST_BRACES = 20_000
_PLAIN = re.compile(r"[^\\'\"`$~<>\ufdd0\n]+|\n+")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9]|[@*#?$!-]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b"}
_GLOB = re.compile(r"[*?]|\[.+\]")
_LISTED = re.compile(r"[\[\]()0-9*+, |EtmL]+")
"""Patterns of layers, which are no names of files."""

PLAIN, INLINE, QUOTED, DOCUMENT = "plain", "inline", "quoted", "document"
"""Where letters stand: outside of quotes, there in ``${..}``, in double quotes, in a
here-document."""

_QUOTES = frozenset({QUOTED, DOCUMENT})
_HOME = re.compile(r"~[\w-]*(?=/|$|:)")

Pieces = list[tuple[str, bool]]
"""Texts of a word, and whether each was quoted."""


@dataclass(slots=True)
class Expander:
    """Expands words with the variables of a shell."""

    variables: Variables
    shell: Inside
    arguments: list[str] = field(default_factory=list)
    """``$1`` and so on."""

    zero: str = ""
    """``$0``, where it is known."""

    knows_arguments: bool = False
    """Whether there are no arguments but these."""

    is_bare: bool = False
    """Whether variables that nothing sets are empty, as in conditions."""

    patterns: list[str] = field(default_factory=list)
    """Words with patterns of file names that stayed as they are."""

    depth: int = 0

    def fields(self, raw: str) -> list[str]:
        """Return the words that one written word becomes."""
        written = [raw]
        if "{" in raw:
            if len(raw) > _LONGEST_BRACES:
                raise InputError(
                    "a word with braces is too long", expected="a launch script"
                )
            written = spread_braces(raw, self._lexer)
        return [word for one in written for word in self._expanded(one).fields()]

    def one(self, raw: str) -> str:
        """Return a written word as one text, not split at blanks."""
        return " ".join(self._expanded(raw, splits=False).texts())

    def bare(self, raw: str) -> str:
        """Return a word as one text, variables that nothing sets being empty."""
        before, self.is_bare = self.is_bare, True
        try:
            return self.one(raw)
        finally:
            self.is_bare = before

    def quoted(self, raw: str) -> str:
        """Return a text as it would be in double quotes."""
        return " ".join(self._expanded(raw, splits=False, mode=QUOTED).texts())

    def document(self, text: str) -> str:
        """Return a here-document expanded: double quotes in it are letters."""
        return " ".join(self._expanded(text, splits=False, mode=DOCUMENT).texts())

    def pattern(self, raw: str) -> str:
        """Return a pattern in which what was quoted is escaped."""
        pieces = self._expanded(raw, splits=False).pieces()
        return "".join(escaped(text) if shut else text for text, shut in pieces)

    def expression(self, raw: str) -> str:
        """Return a regular expression in which what was quoted is escaped."""
        pieces = self._expanded(raw, splits=False).pieces()
        return "".join(re.escape(text) if shut else text for text, shut in pieces)

    def sum(self, text: str) -> int | None:
        """Return the value of an arithmetic expression; None if it is not known."""
        plain = self.quoted(text) if re.search(r"[$`\\\"]", text) else text
        return value_of(plain, self)

    def number_text(self, name: str, index: str | None) -> str | None:
        """Return what arithmetic reads of a variable; None if nobody knows."""
        found = self.variables.table.get(name)
        if found is None:
            unset = self.is_bare and not is_set_by_machine(name)
            return "" if unset else None
        if index is None:
            text = found.text or ""
        else:
            text = found.items.get(self.key(name, index), "")
        text = without_unset(text) if self.is_bare else text
        return None if first_unknown(text) is not None else text

    def set_number(self, name: str, index: str | None, value: int) -> None:
        """Set a variable to a number."""
        if index is None:
            self.variables.assign(name, str(value))
        else:
            self.variables.assign_at(name, self.key(name, index), str(value))

    def key(self, name: str, index: str) -> int | str:
        """Return the number or the key of an element.

        Raises
        ------
        InputError
            If nobody knows it.
        """
        found = self.variables.table.get(name)
        if found is not None and found.is_map:
            return self.one(index)
        number = self.sum(index)
        if number is None:
            raise InputError(
                "is no number that is known",
                where=f"{name}[..]",
                got=index[:60],
                expected="a number of an element",
            )
        if number < 0 and found is not None:
            number += max((int(one) for one in found.items), default=-1) + 1
        return number

    def separator(self) -> str:
        """Return what joins ``$*``."""
        given = self.variables.text("IFS")
        return " " if given is None else given[:1]

    def blanks(self) -> str:
        """Return the letters that separate fields."""
        given = self.variables.text("IFS")
        return " \t\n" if given is None else given

    def take_patterns(self) -> list[str]:
        """Return words with patterns of file names since the last time."""
        found, self.patterns = self.patterns, []
        return found

    def _lexer(self, text: str) -> Lexer:
        return lexer_of(text)

    def _expanded(self, raw: str, *, splits: bool = True, mode: str = PLAIN) -> "_Word":
        self.depth += 1
        check_depth(self.depth)
        word = _Word(self, splits=splits)
        word.walk(raw, mode)
        self.depth -= 1
        return word


class _Word:
    """One written word on its way to fields."""

    def __init__(self, expander: Expander, *, splits: bool) -> None:
        self.expander, self.splits = expander, splits
        self.done: list[Pieces] = []
        self.current: Pieces | None = None

    def texts(self) -> list[str]:
        """Return the fields."""
        self._break()
        texts = ["".join(text for text, _ in pieces) for pieces in self.done]
        self.expander.variables.grow(sum(map(len, texts)))
        return texts

    def fields(self) -> list[str]:
        """Return the fields, and note which have patterns of file names."""
        texts = self.texts()
        for pieces, text in zip(self.done, texts, strict=True):
            plain = "".join(MARK.sub("", one) for one, shut in pieces if not shut)
            if _GLOB.search(plain) and not _LISTED.fullmatch(text):
                self.expander.patterns.append(text)
        return texts

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Return all pieces as those of one word."""
        self._break()
        for number, pieces in enumerate(self.done):
            if number:
                yield " ", True
            yield from pieces

    def walk(self, raw: str, mode: str) -> None:
        """Add what a text becomes."""
        lexer, at, quoted = lexer_of(raw, self.expander.depth), 0, mode in _QUOTES
        lexer.is_quoted = quoted
        while at < len(raw):
            letter = raw[at]
            if quoted and letter in "\"'":
                # In quotes again inside of ${..}, or a letter of a document.
                self._add(letter if letter == "'" or mode == DOCUMENT else "", quoted)
                at += 1
                continue
            end = lexer.behind_part(at) if letter in "\\`$\"'" else at
            if letter == "\\":
                self._escaped(raw[at + 1 : end], mode)
            elif letter == "'":
                self._add(raw[at + 1 : end - 1], quoted=True)
            elif letter == '"':
                self._add("", quoted=True)
                self.walk(raw[at + 1 : end - 1], QUOTED)
            elif letter == "`":
                inner = re.sub(r"\\([`$\\])", r"\1", raw[at + 1 : end - 1])
                self._put(self.expander.shell.output_of(inner), quoted=quoted)
            elif letter == "$":
                end = self._dollar(raw, at, end, quoted=quoted)
            else:
                end = self._letters(raw, at, lexer, mode)
            at = end

    def _letters(self, raw: str, at: int, lexer: Lexer, mode: str) -> int:
        """Add letters that stand for themselves; return the position behind them."""
        quoted = mode in _QUOTES
        if not quoted and raw.startswith(("<(", ">("), at):
            end = lexer.behind_word(at)
            self.expander.shell.output_of(raw[at + 2 : end - 1])
            self._add(unknown(raw[at:end]), quoted=True)
            return end
        home = _HOME.match(raw) if at == 0 and not quoted else None
        if home is not None:
            self._add(unknown("$HOME" if home[0] == "~" else home[0]), quoted=True)
            return home.end()
        plain = _PLAIN.match(raw, at)
        end = plain.end() if plain is not None else behind_mark(raw, at)
        if mode == INLINE:
            self._put(raw[at:end], quoted=False)
        else:
            self._add(raw[at:end], quoted)
        return end

    def _escaped(self, letter: str, mode: str) -> None:
        """Add a letter behind a backslash."""
        if letter == "\n":
            return
        kept = {PLAIN: letter, INLINE: letter, QUOTED: '"\\$`', DOCUMENT: "\\$`"}[mode]
        self._add(letter if letter in kept else "\\" + letter, quoted=True)

    def _dollar(self, raw: str, at: int, end: int, *, quoted: bool) -> int:
        """Expand what begins here; return the position behind it."""
        following = raw[at + 1 : at + 2]
        if following == "'" and not quoted:
            self._add(_ansi(raw[at + 2 : end - 1]), quoted=True)
        elif following == '"' and not quoted:
            self._add("", quoted=True)
            self.walk(raw[at + 2 : end - 1], QUOTED)
        elif raw.startswith("$((", at) and raw.endswith("))", at, end):
            value = self.expander.sum(raw[at + 3 : end - 2])
            if value is None:
                self.expander.shell.note(
                    f"{raw[at:end]} in line {{line}} of the script is not known."
                )
            text = unknown(raw[at:end]) if value is None else str(value)
            self._put(text, quoted=quoted)
        elif following == "(":
            inner = raw[at + 2 : end - 1]
            self._put(self.expander.shell.output_of(inner), quoted=quoted)
        elif following == "{":
            self._parameter(raw[at + 2 : end - 1], quoted=quoted)
        else:
            name = _NAME.match(raw, at + 1)
            if name is None:
                self._add("$", quoted)
                return at + 1
            self._parameter(name[0], quoted=quoted)
            return name.end()
        return end

    def _parameter(self, body: str, *, quoted: bool) -> None:
        """Add what stands for ``${body}``."""
        found = expand_parameter(self.expander, body, quoted=quoted)
        if isinstance(found, Inline):
            self.expander.depth += 1
            check_depth(self.expander.depth)
            self.walk(found.word, QUOTED if quoted else INLINE)
            self.expander.depth -= 1
        elif isinstance(found, str):
            self._put(found, quoted=quoted)
        else:
            self._all(found, quoted=quoted)

    def _all(self, words: Sequence[str], *, quoted: bool) -> None:
        """Add each word of a list as a field of its own."""
        if not words and quoted and self.current == [("", True)]:
            self.current = None
        for number, word in enumerate(words):
            if number:
                self._break()
            self._put(word, quoted=quoted)

    def _put(self, text: str, *, quoted: bool) -> None:
        """Add what an expansion gave: outside of quotes its blanks separate fields."""
        expander = self.expander
        text = without_unset(text) if expander.is_bare else text
        expander.variables.grow(len(text))
        if quoted or not self.splits:
            self._add(text, quoted=quoted)
        else:
            self._split(text)

    def _split(self, text: str) -> None:
        given = self.expander.blanks()
        white = "".join(re.escape(one) for one in given if one in " \t\n")
        other = "".join(re.escape(one) for one in given if one not in " \t\n")
        between = "|".join(
            part
            for part in (
                f"[{white}]*[{other}][{white}]*" if white and other else "",
                f"[{other}]" if other and not white else "",
                f"[{white}]+" if white else "",
            )
            if part
        )
        if not between:
            self._add(text, quoted=False) if text else None
            return
        at = 0
        for found in re.finditer(f"({MARK.pattern})|({between})", text):
            if found[1]:
                continue
            if found.start() > at:
                self._add(text[at : found.start()], quoted=False)
            if other and re.search(f"[{other}]", found[0]) and self.current is None:
                self.current = []
            self._break()
            at = found.end()
        if at < len(text):
            self._add(text[at:], quoted=False)

    def _add(self, text: str, quoted: bool) -> None:
        if self.current is None:
            self.current = []
        self.current.append((text, quoted))

    def _break(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None


def _ansi(text: str) -> str:
    """Return the text of ``$'..'``."""

    def letter(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "xuU":
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 else ""
        if code[0].isdigit():
            return chr(int(code, 8) % 256)
        return _ESCAPES.get(code, code if code in "\\'\"?" else "\\" + code)

    return re.sub(
        r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|[0-7]{1,3}|.)",
        letter,
        text,
        flags=re.DOTALL,
    )


class _NoShell:
    """Nothing around the words of a plain text."""

    def output_of(self, text: str) -> str:
        """Return a mark."""
        return unknown(f"$({text})")

    def special(self, name: str) -> str | None:
        """Return the mark of a parameter."""
        return unknown("$" + name)

    def note(self, sentence: str) -> None:
        """Note nothing."""

    def note_unset(self) -> None:
        """Note nothing."""


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a plain text of options, quotes and comments as in a shell."""
    expander = Expander(Variables(), _NoShell())
    for line in text.replace("\\\n", " ").splitlines():
        plain = line.split(" #")[0].strip()
        if not plain.startswith("#"):
            for word in re.findall(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+", plain):
                yield from expander.fields(word)
