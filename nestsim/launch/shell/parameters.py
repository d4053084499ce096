"""What stands for ``${..}``: parameters with defaults, cut, replaced, counted.

After the GNU Bash manual, section 3.5.3.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nestsim.launch.shell.marks import (
    first_unknown,
    is_set_by_machine,
    unknown,
    without_unset,
)
from nestsim.launch.shell.patterns import expression
from nestsim.launch.shell.syntax import lexer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nestsim.launch.shell.state import Expanding

_BODY = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#?$!-])"
    r"(?:\[(?P<index>(?:[^\[\]]|\[[^\]]*\])*)\])?"
    r"(?P<op>:?[-=?+]|/[/#%]?|%%?|##?|\^\^?|,,?|:|@(?=[A-Za-z]$))?(?P<word>.*)",
    re.DOTALL,
)
_LONGEST = 5_000
_ALL = ("@", "*")


@dataclass(frozen=True, slots=True)
class Inline:
    """A word that stands in place of a parameter, to be expanded there."""

    word: str


Found = str | list[str] | Inline
"""One text, a list of words, or a word that is still written."""


def expand_parameter(expander: "Expanding", body: str, *, quoted: bool) -> Found:
    """Return what stands for ``${body}``."""
    return _Parameter(expander, body, is_quoted=quoted).found()


@dataclass(slots=True)
class _Parameter:
    """A parameter on its way to what stands for it."""

    expander: "Expanding"
    body: str
    is_quoted: bool

    def found(self) -> Found:  # noqa: PLR0911 - one for each form
        """Return what stands for it."""
        body = self.body
        is_length = body.startswith("#") and len(body) > 1
        is_indirect = body.startswith("!") and len(body) > 1
        parts = _BODY.fullmatch(body[1:] if is_length or is_indirect else body)
        if parts is None or (not parts["op"] and parts["word"]):
            return self._unknown()
        name, index = parts["name"], parts["index"]
        if is_indirect:
            return self._indirect(parts)
        if is_length:
            return self._length(name, index)
        op, word = parts["op"] or "", parts["word"]
        if name in _ALL or index in _ALL:
            return self._list(name, index, op, word)
        value = self._value(name, index)
        if op in ("", ":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._with_default(name, index, value, op, word)
        if value is None:
            return self._unset(name)
        return self._changed(value, op, word)

    def _unknown(self) -> str:
        return unknown(f"${{{self.body}}}")

    def _is_known(self, name: str) -> bool:
        """Whether the script knows of a variable, be it that it is unset."""
        expander = self.expander
        known = name in expander.variables.table
        known = known or (name.isdecimal() and expander.knows_arguments)
        return known or (expander.is_bare and not is_set_by_machine(name))

    def _unset(self, name: str) -> str:
        """Return what stands for a variable that is not set, and has no default."""
        self.expander.shell.note_unset()
        return "" if self._is_known(name) else unknown("$" + name)

    def _value(self, name: str, index: str | None) -> str | None:
        """Return a parameter; None if it is not set."""
        expander = self.expander
        if not name[0].isalpha() and name[0] != "_":
            return expander.shell.special(name)
        found = expander.variables.table.get(name)
        if found is None:
            return unknown("$" + name) if is_set_by_machine(name) else None
        if index is None:
            return found.text
        return found.items.get(expander.key(name, index))

    def _elements(self, name: str) -> list[str] | None:
        """Return the arguments, or the elements of an array; None if not set."""
        if name in _ALL:
            return list(self.expander.arguments)
        found = self.expander.variables.table.get(name)
        self._note_order(name)
        return None if found is None else list(found.items.values())

    def _note_order(self, name: str) -> None:
        """Note that elements with keys come in the order in which they were set."""
        found = self.expander.variables.table.get(name)
        if found is not None and found.is_map and len(found.items) > 1:
            self.expander.shell.note(
                f"Elements of {name} come as they were set, in line {{line}}."
            )

    def _joined(self, words: list[str], *, star: bool) -> str | list[str]:
        """Return a list of words, as one text for ``"$*"``."""
        if star and self.is_quoted:
            return self.expander.separator().join(words)
        return words

    def _indirect(self, parts: "re.Match[str]") -> Found:
        """Return the keys of an array, or what the variable that is named holds."""
        name, index = parts["name"], parts["index"]
        variables = self.expander.variables.table
        if index in _ALL and not parts["op"]:
            found = variables.get(name)
            self._note_order(name)
            keys = [] if found is None else [str(key) for key in found.items]
            return self._joined(keys, star=index == "*")
        named = self._value(name, index)
        rest = self.body[1 + len(name) + (len(index) + 2 if index is not None else 0) :]
        if not named or not re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", named) or index:
            return self._unknown()
        return expand_parameter(self.expander, named + rest, quoted=self.is_quoted)

    def _length(self, name: str, index: str | None) -> str:
        if name in _ALL:
            return str(len(self.expander.arguments))
        if index in _ALL:
            held = self.expander.variables.table.get(name)
            words = None if held is None else held.items
            return str(len(words)) if words is not None else self._unknown()
        value = self._value(name, index)
        if value is None:
            return "0" if self._is_known(name) else self._unknown()
        return self._unknown() if first_unknown(value) is not None else str(len(value))

    def _list(self, name: str, index: str | None, op: str, word: str) -> Found:
        """Return a list with what is done to each of its words."""
        words, star = self._elements(name), "*" in (name, index)
        if op in (":-", "-", ":+", "+", ":?", "?", ":=", "="):
            empty = not words or (op[0] == ":" and words == [""])
            if op[-1] == "+":
                return [] if empty else Inline(word)
            if empty:
                return Inline(word) if op[-1] == "-" else self._unknown()
        if words is None:
            if self._is_known(name):
                return []
            return unknown("$" + name)
        if op == ":":
            zero = [self.expander.shell.special("0") or ""]
            return self._joined(
                self._sliced(words, word, zero if name in _ALL else None), star=star
            )
        if op and op[-1] not in "-+?=":
            words = [self._changed(one, op, word) for one in words]
        return self._joined(words, star=star)

    def _sliced(self, words: list[str], word: str, zero: list[str] | None) -> list[str]:
        """Return a part of a list; of arguments the first is number 1."""
        bounds = self._bounds(word)
        if bounds is None:
            return [self._unknown()]
        start, length = bounds
        if zero is not None:
            words = zero + words
        start = start + len(words) if start < 0 else start
        if start < 0 or (length or 0) < 0:
            return []
        return words[start:][:length] if length is not None else words[start:]

    def _bounds(self, word: str) -> tuple[int, int | None] | None:
        """Return where a part begins and how long it is; None if nobody knows."""
        lexer, at = lexer_of(word), 0
        while at < len(word) and word[at] != ":":
            at = lexer.behind_part(at)
        start = self.expander.sum(word[:at])
        length = self.expander.sum(word[at + 1 :]) if at < len(word) else None
        if start is None or (length is None and at < len(word)):
            return None
        return start, length

    def _with_default(  # noqa: PLR0911 - one for each form
        self, name: str, index: str | None, value: str | None, op: str, word: str
    ) -> Found:
        """Return a parameter, or what stands for it where it is not set."""
        missing = value is None or (op[:1] == ":" and without_unset(value) == "")
        if not op:
            if value is not None:
                return value
            return self._unset(name)
        if op[-1] == "+":
            return "" if missing else Inline(word)
        if not missing and value is not None:
            return value
        if op[-1] == "?":
            self.expander.shell.note(f"{name} is set, as line {{line}} demands.")
            return unknown("$" + name)
        if op[-1] == "=":
            text = self.expander.one(word)
            if index is None:
                self.expander.variables.assign(name, text)
            else:
                key = self.expander.key(name, index)
                self.expander.variables.assign_at(name, key, text)
            return text
        return Inline(word)

    def _changed(self, value: str, op: str, word: str) -> str:
        """Return a text that is cut, replaced or written large or small."""
        if first_unknown(value) is not None or op == "@":
            return self._unknown()
        if op == ":":
            return self._cut(value, word)
        if op[0] in "^,":
            return self._written(value, op, word)
        if op[0] == "/":
            return self._replaced(value, op, word)
        pattern = self.expander.pattern(word)
        return self._stripped(value, op, pattern)

    def _cut(self, value: str, word: str) -> str:
        bounds = self._bounds(word)
        if bounds is None:
            return self._unknown()
        start, length = bounds
        start = start + len(value) if start < 0 else start
        if not 0 <= start <= len(value):
            return ""
        end = len(value) if length is None else start + length
        if length is not None and length < 0:
            end = len(value) + length
        return value[start:end] if end >= start else self._unknown()

    def _written(self, value: str, op: str, word: str) -> str:
        if word:
            return self._unknown()
        change: Callable[[str], str] = str.upper if op[0] == "^" else str.lower
        return change(value) if len(op) > 1 else change(value[:1]) + value[1:]

    def _replaced(self, value: str, op: str, word: str) -> str:
        begins = op == "//" and word[:1] == "/"  # the pattern itself
        lexer, at = lexer_of(word), int(begins)
        while at < len(word) and word[at] != "/":
            at = lexer.behind_part(at)
        pattern = expression(self.expander.pattern(word[:at]))
        by = self.expander.one(word[at + 1 :])
        if pattern is None or "&" in by or len(value) > _LONGEST:
            return self._unknown()
        if not pattern and op in ("/#", "/%"):
            return by + value if op == "/#" else value + by
        if not pattern:
            return value
        pattern = {"/#": rf"\A(?:{pattern})", "/%": rf"(?:{pattern})\Z"}.get(
            op, pattern
        )
        try:
            return re.sub(
                pattern,
                lambda found: by if found[0] or op in ("/#", "/%") else "",
                value,
                count=0 if op == "//" else 1,
                flags=re.DOTALL,
            )
        except re.error:
            return self._unknown()

    def _stripped(self, value: str, op: str, pattern: str) -> str:
        """Return a text without the shortest or longest begin or end."""
        written = expression(pattern)
        long = len(value) > _LONGEST
        if written is None or long or first_unknown(pattern) is not None:
            return self._unknown()
        try:
            compiled = re.compile(written, re.DOTALL)
        except re.error:
            return self._unknown()
        size = range(len(value) + 1)
        lengths: Sequence[int] = size if len(op) == 1 else size[::-1]
        for length in lengths:
            part = value[:length] if op[0] == "#" else value[len(value) - length :]
            if compiled.fullmatch(part):
                return value[length:] if op[0] == "#" else value[: len(value) - length]
        return value
