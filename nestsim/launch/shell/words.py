"""Words of a shell script expanded: quotes, variables, arrays, what commands print.

Nothing is executed: what only a run would tell stays in a word as a mark (`marks`).
After POSIX, "Shell Command Language", section 2.6, and the GNU Bash manual, section
3.5; patterns of file names stay as they are.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from nestsim.launch.shell.expressions import (
    escaped,
    expression,
    spread_braces,
    unescaped,
    value_of,
)
from nestsim.launch.shell.marks import (
    HERE,
    MARK,
    first_unknown,
    is_set_by_machine,
    unknown,
    without_unset,
)
from nestsim.launch.shell.state import Inside, Variables, separators
from nestsim.launch.shell.tree import (
    MOST_NESTED,
    Code,
    Span,
    document_of,
    parse,
    refuse_size,
    word_of,
)
from topologies.errors import InputError

_LETTERS = re.compile(
    rf"({MARK.pattern.replace('(', '(?:')}|[^\\$\ufdd0]+|\$(?!\w|[@*#?$!-]))"
    r"|\\(\r?\n|.|\Z)|\$([A-Za-z_]\w*|[0-9]|[@*#?$!-])",
    re.DOTALL | re.ASCII,
)
_GLOB = re.compile(r"[*?]|\[.+\]")
_LISTED = re.compile(r"[\[\]()0-9*+, |EtmL]+")
"""Patterns of layers, which are no names of files."""

PLAIN, INLINE, QUOTED, DOCUMENT = "plain", "inline", "quoted", "document"
"""Where letters stand: outside of quotes, there in ``${..}``, in double quotes, in a
here-document."""

_KEPT = {QUOTED: '"\\$`', DOCUMENT: "\\$`"}
"""Letters that lose a backslash in front of them; elsewhere all do."""

_HOME = re.compile(r"~[\w-]*(?=/|$|:)")

_BODY = re.compile(
    r"(?P<kind>[#!](?=.))?(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<index>(?:[^\[\]]|\[[^\]]*\])*)\])?"
    r"(?P<op>:?[-=?+]|/[/#%]?|%%?|##?|\^\^?|,,?|:|@(?=[A-Za-z]$))?(?P<word>.*)",
    re.DOTALL,
)
_LONGEST = 5_000
_ALL = ("@", "*")

Value = str | list[str] | Span
"""One text, a list of words, or a word that is still written."""

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

    def fields(self, word: Span) -> list[str]:
        """Return the words that one written word becomes."""
        words = spread_braces(word) if "{" in word.text else [word]
        return [text for part in words for text in self._expanded(part).fields()]

    def one(self, word: Span | str) -> str:
        """Return a written word as one text, not split at blanks."""
        if isinstance(word, str):
            return word
        return " ".join(self._expanded(word, splits=False).texts())

    @contextmanager
    def without_unset(self, *, is_bare: bool = True) -> Iterator[None]:
        """Take variables that nothing sets as empty."""
        before, self.is_bare = self.is_bare, is_bare
        try:
            yield
        finally:
            self.is_bare = before

    def bare(self, word: Span) -> str:
        """Return a word as one text, variables that nothing sets being empty."""
        with self.without_unset():
            return self.one(word)

    def document(self, text: str, line: int) -> str:
        """Return a here-document expanded: double quotes in it are letters."""
        word = self._expanded(document_of(text, line), splits=False, mode=DOCUMENT)
        return " ".join(word.texts())

    def pattern(self, word: Span, escape: Callable[[str], str] = escaped) -> str:
        """Return a pattern in which what was quoted is escaped."""
        pieces = self._expanded(word, splits=False).pieces()
        return "".join(escape(text) if shut else text for text, shut in pieces)

    def sum(self, text: Span | str) -> int | None:
        """Return the value of an arithmetic expression; None if it is not known."""
        if isinstance(text, Span):
            word = self._expanded(text, splits=False, mode=QUOTED)
            text = " ".join(word.texts())
        return value_of(text, self)

    def number_text(self, name: str, index: str | None) -> str | None:
        """Return what arithmetic reads of a variable; None if nobody knows."""
        held = self.variables.table.get(name)
        if held is None:
            unset = self.is_bare and not is_set_by_machine(name)
            return "" if unset else None
        text = held.text or ""
        if index is not None:
            text = held.items.get(self.key(name, index), "")
        text = without_unset(text) if self.is_bare else text
        return None if first_unknown(text) is not None else text

    def set_number(self, name: str, index: str | None, value: int) -> None:
        """Set a variable to a number."""
        key = None if index is None else self.key(name, index)
        self.variables.assign(name, str(value), key)

    def key(self, name: str, index: Span | str) -> int | str:
        """Return the number or the key of an element.

        Raises
        ------
        InputError
            If nobody knows it.
        """
        held = self.variables.table.get(name)
        if held is not None and held.is_map:
            return self.one(index)
        number = self.sum(index)
        if number is None:
            raise InputError(
                "is no number that is known",
                where=f"{name}[..]",
                got=(index if isinstance(index, str) else index.text)[:60],
                expected="a number of an element",
            )
        return number if number >= 0 or held is None else number + held.following

    def blanks(self) -> str:
        """Return the letters that separate fields."""
        given = self.variables.text("IFS")
        return " \t\n" if given is None else given

    def take_patterns(self) -> list[str]:
        """Return words with patterns of file names since the last time."""
        taken, self.patterns = self.patterns, []
        return taken

    def _expanded(
        self, span: Span, *, splits: bool = True, mode: str = PLAIN
    ) -> "_Word":
        word = _Word(self, splits=splits)
        word.walk(span, mode)
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
            plain = "".join(MARK.sub("", part) for part, shut in pieces if not shut)
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

    def walk(self, span: Span, mode: str) -> None:
        """Add what a part of a script becomes."""
        expander = self.expander
        expander.depth += 1
        if expander.depth > MOST_NESTED:
            refuse_size("brackets are nested too deep", f"{MOST_NESTED} times")
        at = 0
        for part in span.parts():
            self._letters(span, at, part.start - span.start, mode)
            self._part(part, mode)
            at = part.end - span.start
        self._letters(span, at, span.end - span.start, mode)
        expander.depth -= 1

    def _letters(self, span: Span, start: int, end: int, mode: str) -> None:
        """Add letters that stand for themselves."""
        text, is_quoted = span.text[start:end], mode in _KEPT
        if not is_quoted and span.text[end : end + 1] == '"' and text[-2:-1] != "\\":
            text = text.removesuffix("$")
        home = None if is_quoted or start else _HOME.match(text)
        if home is not None:
            self._add(unknown("$HOME" if home[0] == "~" else home[0]), True)
        for part in _LETTERS.finditer(text, home.end() if home else 0):
            plain, letter, name = part.groups()
            if name:
                at = start + part.start(3)
                self._parameter(span.part(at, at + len(name)), is_quoted=is_quoted)
            elif letter is None:
                add = self._put if mode == INLINE else self._add
                add(plain, is_quoted=is_quoted)
            elif letter[-1:] != "\n":
                kept = letter in _KEPT.get(mode, letter) and letter
                self._add(letter if kept else "\\" + letter, True)

    def _part(self, part: Code, mode: str) -> None:
        """Add what a quotation or an expansion becomes."""
        is_quoted, text = mode in _KEPT, part.text
        if part.kind == "string":
            self._add("", is_quoted=True)
            self.walk(part.part(1, len(text) - 1), QUOTED)
        elif is_quoted and part.kind == "raw_string":
            self.walk(word_of(text, '"'), mode)
        elif part.kind == "raw_string":
            self._add(text[1:-1], is_quoted=True)
        elif part.kind == "ansi_c_string":
            self._add(text if is_quoted else unescaped(text[2:-1]), is_quoted=True)
        elif part.kind == "expansion":
            self._parameter(part.part(2, len(text) - 1), is_quoted=is_quoted)
        else:
            value = self._substituted(part)
            add = self._add if value is None else self._put
            add(text if value is None else value, is_quoted=is_quoted)

    def _substituted(self, part: Code) -> str | None:
        """Return what stands for arithmetic or a command; None if it is neither."""
        text, shell = part.text, self.expander.shell
        if part.is_arithmetic():
            number = self.expander.sum(part.part(3, len(text) - 2))
            if number is None:
                shell.note(f"{text} in line {{line}} of the script is not known.")
            return unknown(text) if number is None else str(number)
        if text[0] == "`":
            inner = re.sub(r"\\([`$\\])", r"\1", text[1:-1])
            return shell.output_of(parse(inner, part.line), inner)
        if part.kind == "process_substitution":
            shell.output_of(part, text)
            return unknown(text)
        is_command = part.kind == "command_substitution"
        return shell.output_of(part, text[2:-1]) if is_command else None

    def _parameter(self, body: Span, *, is_quoted: bool) -> None:
        """Add what stands for ``${body}``."""
        value = expand_parameter(self.expander, body, is_quoted=is_quoted)
        if isinstance(value, Span):
            self.walk(value, QUOTED if is_quoted else INLINE)
        elif isinstance(value, str):
            self._put(value, is_quoted=is_quoted)
        else:
            self._all(value, is_quoted=is_quoted)

    def _all(self, words: Sequence[str], *, is_quoted: bool) -> None:
        """Add each word of a list as a field of its own."""
        if not words and is_quoted and self.current == [("", True)]:
            self.current = None
        for number, word in enumerate(words):
            if number:
                self._break()
            self._put(word, is_quoted=is_quoted)

    def _put(self, text: str, *, is_quoted: bool) -> None:
        """Add what an expansion gave: outside of quotes its blanks separate fields."""
        expander = self.expander
        text = without_unset(text) if expander.is_bare else text
        expander.variables.grow(len(text))
        if is_quoted or not self.splits:
            self._add(text, is_quoted)
            return
        between, other = separators(expander.blanks())
        at = 0
        for gap in re.finditer(f"({MARK.pattern})|({between})", text):
            if gap[1]:
                continue
            if gap.start() > at:
                self._add(text[at : gap.start()], is_quoted=False)
            if re.search(other, gap[0]) and self.current is None:
                self.current = []
            self._break()
            at = gap.end()
        if at < len(text):
            self._add(text[at:], is_quoted=False)

    def _add(self, text: str, is_quoted: bool) -> None:
        if self.current is None:
            self.current = []
        self.current.append((text, is_quoted))

    def _break(self) -> None:
        if self.current is not None:
            self.done.append(self.current)
        self.current = None


def expand_parameter(expander: Expander, body: Span, *, is_quoted: bool) -> Value:
    """Return what stands for ``${body}``."""
    parts = _BODY.fullmatch(body.text)
    if parts is None or (not parts["op"] and parts["word"]):
        return unknown(f"${{{body.text}}}")
    parameter = _Parameter(expander, body, parts, is_quoted=is_quoted)
    return parameter.value(parts["kind"] or "")


class _Parameter:
    """A parameter on its way to what stands for it."""

    def __init__(
        self, expander: Expander, body: Span, parts: re.Match[str], *, is_quoted: bool
    ) -> None:
        self.expander, self.body, self.is_quoted = expander, body, is_quoted
        self.name, self.op = parts["name"], parts["op"] or ""
        self.index = None
        if parts["index"] is not None:
            self.index = body.part(*parts.span("index"))
        self.word = body.part(*parts.span("word"))
        self.counts = parts["kind"] == "#"

    def value(self, kind: str) -> Value:
        """Return what stands for it."""
        if kind:
            return self._indirect() if kind == "!" else self._length()
        if self._takes_all():
            return self._list()
        held = self._held()
        if self.op == "" or self.op[-1] in "-=+?":
            return self._with_default(held)
        if held is None:
            return self._unset()
        return self._changed(held)

    def _takes_all(self) -> str:
        """Return ``@`` or ``*`` where all elements or arguments are meant."""
        index = "" if self.index is None else self.index.text
        return self.name if self.name in _ALL else index if index in _ALL else ""

    def _unknown(self) -> str:
        return unknown(f"${{{self.body.text}}}")

    def _is_known(self) -> bool:
        """Whether the script knows of a variable, be it that it is unset."""
        expander, name = self.expander, self.name
        known = name in expander.variables.table
        known = known or (name.isdecimal() and expander.knows_arguments)
        return known or (expander.is_bare and not is_set_by_machine(name))

    def _unset(self) -> str:
        """Return what stands for a variable that is not set, and has no default."""
        self.expander.shell.note_unset()
        return "" if self._is_known() else unknown("$" + self.name)

    def _held(self) -> str | None:
        """Return what a parameter holds; None if it is not set."""
        expander, name = self.expander, self.name
        if not name[0].isalpha() and name[0] != "_":
            return expander.shell.special(name)
        held = expander.variables.table.get(name)
        if held is None:
            return unknown("$" + name) if is_set_by_machine(name) else None
        if self.index is None:
            return held.text
        return held.items.get(expander.key(name, self.index))

    def _elements(self) -> dict[int | str, str] | None:
        """Return the arguments, or the elements of an array; None if not set."""
        if self.name in _ALL:
            return dict(enumerate(self.expander.arguments))
        held = self.expander.variables.table.get(self.name)
        if held is not None and held.is_map and len(held.items) > 1 and not self.counts:
            self.expander.shell.note(
                f"Elements of {self.name} come as they were set, in line {{line}}."
            )
        return None if held is None else held.items

    def _joined(self, words: list[str]) -> str | list[str]:
        """Return a list of words, as one text for ``"$*"``."""
        if self._takes_all() == "*" and self.is_quoted:
            return self.expander.blanks()[:1].join(words)
        return words

    def _indirect(self) -> Value:
        """Return the keys of an array, or what the variable that is named holds."""
        if self._takes_all() and not self.op:
            return self._joined([str(key) for key in self._elements() or ()])
        named = self._held()
        if self.index or not named or not re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", named):
            return self._unknown()
        body = f"{named}{self.op}{self.word.text}"
        span = word_of(f"${{{body}}}", '"').part(2, 2 + len(body))
        return expand_parameter(self.expander, span, is_quoted=self.is_quoted)

    def _length(self) -> str:
        if self._takes_all():
            elements = self._elements()
            return self._unknown() if elements is None else str(len(elements))
        held = self._held()
        if held is None:
            return "0" if self._is_known() else self._unknown()
        return self._unknown() if first_unknown(held) is not None else str(len(held))

    def _list(self) -> Value:
        """Return a list with what is done to each of its words."""
        elements, op = self._elements(), self.op
        words = list((elements or {}).values())
        if op and op[-1] in "-+?=":
            is_empty = not words or (op[0] == ":" and words == [""])
            if op[-1] == "+":
                return [] if is_empty else self.word
            if is_empty:
                return self.word if op[-1] == "-" else self._unknown()
        elif elements is None:
            return [] if self._is_known() else unknown("$" + self.name)
        elif op == ":":
            words = self._sliced(words)
        elif op:
            words = [self._changed(word) for word in words]
        return self._joined(words)

    def _sliced(self, words: list[str]) -> list[str]:
        """Return a part of a list; of arguments the first is number 1."""
        if self.name in _ALL:
            words = [self.expander.shell.special("0") or "", *words]
        bounds = self._bounds(len(words))
        if bounds is None:
            return [self._unknown()]
        start, length = bounds
        if start < 0 or (length or 0) < 0:
            return []
        return words[start:] if length is None else words[start:][:length]

    def _bounds(self, size: int) -> tuple[int, int | None] | None:
        """Return where a part begins and how long it is; None if nobody knows."""
        first, *others = self.word.split(":")
        start = self.expander.sum(first)
        length = self.expander.sum(others[0]) if others else None
        if start is None or (length is None and others):
            return None
        return start + size if start < 0 else start, length

    def _with_default(self, held: str | None) -> Value:
        """Return a parameter, or what stands for it where it is not set."""
        expander, op = self.expander, self.op
        is_missing = held is None or (op[:1] == ":" and without_unset(held) == "")
        if op[-1:] == "+":
            return "" if is_missing else self.word
        if held is not None and not (op and is_missing):
            return held
        if not op:
            return self._unset()
        if op[-1] == "-":
            return self.word
        if op[-1] == "?":
            expander.shell.note(f"{self.name} is set, as line {{line}} demands.")
            return unknown("$" + self.name)
        text = expander.one(self.word)
        key = None if self.index is None else expander.key(self.name, self.index)
        expander.variables.assign(self.name, text, key)
        return text

    def _changed(self, held: str) -> str:
        """Return a text that is cut, replaced or written large or small."""
        op = self.op
        is_path = held.startswith(HERE) and op[0] in "#%"
        if first_unknown(held.removeprefix(HERE if is_path else "")) is not None:
            return self._unknown()
        if op == "@" or len(held) > _LONGEST:
            return self._unknown()
        if op == ":":
            return self._cut(held)
        if op[0] in "^,":
            return self._written(held)
        try:
            return self._replaced(held) if op[0] == "/" else self._stripped(held)
        except re.error:
            return self._unknown()

    def _cut(self, held: str) -> str:
        bounds = self._bounds(len(held))
        if bounds is None:
            return self._unknown()
        start, length = bounds
        if not 0 <= start <= len(held):
            return ""
        end = len(held) if length is None else start + length
        if length is not None and length < 0:
            end = len(held) + length
        return held[start:end] if end >= start else self._unknown()

    def _written(self, held: str) -> str:
        if self.word.text:
            return self._unknown()
        change = str.upper if self.op[0] == "^" else str.lower
        return change(held) if len(self.op) > 1 else change(held[:1]) + held[1:]

    def _replaced(self, held: str) -> str:
        op, size = self.op, len(self.word.text)
        begin = int(op == "//" and self.word.text[:1] == "/")  # the pattern itself
        end = begin + len(self.word.part(begin, size).split("/")[0].text)
        pattern = expression(self.expander.pattern(self.word.part(0, end)))
        by = self.expander.one(self.word.part(min(end + 1, size), size))
        if pattern is None or "&" in by:
            return self._unknown()
        if not pattern:
            return {"/#": by + held, "/%": held + by}.get(op, held)
        where = {"/#": rf"\A(?:{pattern})", "/%": rf"(?:{pattern})\Z"}
        return re.sub(
            where.get(op, pattern),
            lambda match: by if match[0] or op in where else "",
            held,
            count=0 if op == "//" else 1,
            flags=re.DOTALL,
        )

    def _stripped(self, held: str) -> str:
        """Return a text without the shortest or longest begin or end."""
        pattern = self.expander.pattern(self.word)
        written = expression(pattern)
        if written is None or first_unknown(pattern) is not None:
            return self._unknown()
        compiled = re.compile(written, re.DOTALL)
        sizes: Sequence[int] = range(len(held) + 1)
        for size in sizes if len(self.op) == 1 else sizes[::-1]:
            stop = len(held) - size
            if self.op[0] == "#" and compiled.fullmatch(held[:size]):
                return held[size:]
            if self.op[0] == "%" and compiled.fullmatch(held[stop:]):
                return held[:stop]
        return held
