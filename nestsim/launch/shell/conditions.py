"""Conditions of a shell script: ``[ .. ]`` and ``[[ .. ]]``.

After POSIX, "test", and the GNU Bash manual, section 6.4. Variables that nothing sets
are empty; files are taken to exist, which is told.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from nestsim.launch.shell.marks import first_unknown, readable
from nestsim.launch.shell.patterns import matches

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {
        "-eq": operator.eq,
        "-ne": operator.ne,
        "-lt": operator.lt,
        "-le": operator.le,
        "-gt": operator.gt,
        "-ge": operator.ge,
    }
)
_TEXTS = frozenset({"=", "==", "!=", "<", ">", "=~"})
_FILES = frozenset({"-f", "-d", "-e", "-r", "-w", "-x", "-s", "-L", "-h", "-a"})
_OTHER_FILES = frozenset({"-b", "-c", "-g", "-k", "-p", "-u", "-G", "-N", "-O", "-S"})
_TWO_FILES = frozenset({"-nt", "-ot", "-ef"})
_WHOLE = re.compile(r"\s*[-+]?\d{1,18}\s*")
_REPEATED = re.compile(r"\)[*+{]")
_LONGEST = 500

Holds = bool | None
"""Whether a condition holds; None if only the machine could tell."""


class ConditionError(Exception):
    """A condition that Bash refuses: its status is 2."""


class Asked(Protocol):
    """What conditions ask the shell."""

    def is_set(self, name: str) -> Holds:
        """Whether a variable is set."""

    def has_file(self, name: str, operator: str) -> Holds:
        """Whether a file is there; notes what is taken."""


class Brackets:
    """``[ .. ]``: words that were expanded already."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def holds(self, words: Sequence[str]) -> Holds:
        """Return whether the condition holds.

        Raises
        ------
        ConditionError
            If it is none.
        """
        if len(words) == 0:
            return False
        if len(words) == 1:
            return _filled(words[0])
        if len(words) == 3 and self._is_binary(words[1]):
            return self._binary(*words)
        if words[0] == "!":
            return _not(self.holds(words[1:]))
        if len(words) == 2:
            return self._unary(*words)
        return self._long(words)

    def _long(self, words: Sequence[str]) -> Holds:
        for joint, join in (("-o", _any), ("-a", _all)):
            inside = 0
            for index in range(1, len(words) - 1):
                before = words[index - 1]
                inside += (before == "(") - (before == ")")
                if (
                    inside == 0
                    and words[index] == joint
                    and not self._is_binary(before)
                ):
                    first, second = words[:index], words[index + 1 :]
                    return join([self.holds(first), self.holds(second)])
        if words[0] == "(" and words[-1] == ")":
            return self.holds(words[1:-1])
        raise ConditionError

    @staticmethod
    def _is_binary(word: str) -> bool:
        return word in _NUMBERS or word in _TEXTS - {"=~"} or word in _TWO_FILES

    def _unary(self, sign: str, word: str) -> Holds:
        return unary(self.asked, sign, word)

    def _binary(self, left: str, sign: str, right: str) -> Holds:
        if first_unknown(left + right) is not None:
            return None
        if sign in _NUMBERS:
            if not _WHOLE.fullmatch(left) or not _WHOLE.fullmatch(right):
                raise ConditionError
            return _NUMBERS[sign](int(left), int(right))
        if sign in _TWO_FILES:
            return None
        return _ordered(left, sign, right)


class Expressions(Protocol):
    """How words of ``[[ .. ]]`` are expanded."""

    def bare(self, raw: str) -> str:
        """Return a word as one text."""

    def pattern(self, raw: str) -> str:
        """Return a pattern."""

    def expression(self, raw: str) -> str:
        """Return a regular expression."""

    def sum(self, text: str) -> int | None:
        """Return the value of arithmetic."""


class DoubleBrackets:
    """``[[ .. ]]``: words as written, read from left to right."""

    def __init__(
        self,
        words: Sequence[str],
        asked: Asked,
        expressions: Expressions,
        matched: Callable[[Sequence[str]], None],
    ) -> None:
        self.words, self.asked, self.expressions = words, asked, expressions
        self.matched = matched
        self.at = 0
        self.is_skipped = False

    def holds(self) -> Holds:
        """Return whether the condition holds.

        Raises
        ------
        ConditionError
            If it is none.
        """
        found = self._either()
        if self.at != len(self.words):
            raise ConditionError
        return found

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _next(self) -> str:
        if self.at >= len(self.words):
            raise ConditionError
        self.at += 1
        return self.words[self.at - 1]

    def _either(self) -> Holds:
        found = self._both()
        while self._peek() == "||":
            self.at += 1
            found = _any([found, self._if(self._both, reads=found is not True)])
        return found

    def _both(self) -> Holds:
        found = self._not()
        while self._peek() == "&&":
            self.at += 1
            found = _all([found, self._if(self._not, reads=found is not False)])
        return found

    def _if(self, read: Callable[[], Holds], *, reads: bool) -> Holds:
        """Read a part, without asking anything where it does not matter."""
        before, self.is_skipped = self.is_skipped, self.is_skipped or not reads
        found = read()
        self.is_skipped = before
        return found

    def _not(self) -> Holds:
        if self._peek() == "!":
            self.at += 1
            return _not(self._not())
        if self._peek() == "(":
            self.at += 1
            found = self._either()
            if self._next() != ")":
                raise ConditionError
            return found
        return self._one()

    def _one(self) -> Holds:
        first = self._next()
        sign = self._peek()
        known = sign in _NUMBERS or sign in _TEXTS or sign in _TWO_FILES
        if known and self.at + 1 < len(self.words):
            self.at += 1
            right = self._next()
            return False if self.is_skipped else self._binary(first, sign, right)
        if re.fullmatch(r"-[A-Za-z]", first) and sign not in ("", "&&", "||", ")"):
            word = self._next()
            if self.is_skipped:
                return False
            return unary(self.asked, first, self.expressions.bare(word))
        return False if self.is_skipped else _filled(self.expressions.bare(first))

    def _binary(self, left: str, sign: str, right: str) -> Holds:
        words = self.expressions
        if sign in _NUMBERS:
            one, other = words.sum(words.bare(left)), words.sum(words.bare(right))
            if one is None or other is None:
                return None
            return _NUMBERS[sign](one, other)
        text = words.bare(left)
        if sign in ("=", "==", "!="):
            pattern = words.pattern(right)
            if first_unknown(text + pattern) is not None:
                return None
            found = matches(text, pattern)
            return _not(found) if sign == "!=" else found
        if sign == "=~":
            return self._searched(text, words.expression(right))
        return None if sign in _TWO_FILES else _ordered(text, sign, words.bare(right))

    def _searched(self, text: str, pattern: str) -> Holds:
        """Return whether a regular expression is in a text; keep what it found."""
        odd = _REPEATED.search(pattern) or "[:" in pattern.replace("[:digit:]", "")
        if odd or first_unknown(text + pattern) is not None or len(text) > _LONGEST:
            return None
        try:
            found = re.search(pattern.replace("[:digit:]", "0-9"), text)
        except re.error:
            return None
        self.matched(
            [] if found is None else [found[0], *(g or "" for g in found.groups())]
        )
        return found is not None


def unary(asked: Asked, sign: str, word: str) -> Holds:
    """Return whether a word is as an operator says.

    Raises
    ------
    ConditionError
        If there is no such operator.
    """
    if sign in ("-n", "-z"):
        filled = _filled(word)
        return filled if sign == "-n" else _not(filled)
    if sign == "-v":
        return asked.is_set(word)
    if sign in _FILES:
        return asked.has_file(readable(word), sign) if word else False
    if sign in _OTHER_FILES or sign in ("-t", "-o", "-R"):
        return None
    raise ConditionError


def _filled(word: str) -> Holds:
    """Return whether a word is not empty; what a command prints may be."""
    if first_unknown(word) is None:
        return word != ""
    plain = first_unknown(word)
    return None if plain is not None and "$(" in plain else True


def _ordered(left: str, sign: str, right: str) -> Holds:
    if first_unknown(left + right) is not None:
        return None
    if sign in ("=", "=="):
        return left == right
    if sign == "!=":
        return left != right
    return left < right if sign == "<" else left > right


def _not(found: Holds) -> Holds:
    return None if found is None else not found


def _any(parts: Sequence[Holds]) -> Holds:
    if True in parts:
        return True
    return None if None in parts else False


def _all(parts: Sequence[Holds]) -> Holds:
    if False in parts:
        return False
    return None if None in parts else True
