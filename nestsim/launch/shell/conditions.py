"""Conditions of a shell script: ``[ .. ]`` and ``[[ .. ]]``.

After POSIX, "test", and the GNU Bash manual, section 6.4. Variables that nothing sets
are empty; files are taken to exist, which is told.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from nestsim.launch.shell.marks import first_unknown
from nestsim.launch.shell.patterns import matches
from nestsim.launch.shell.state import ConditionError
from nestsim.launch.shell.tree import Span

if TYPE_CHECKING:
    from nestsim.launch.shell.interpreter import Interpreter

_Word = TypeVar("_Word", str, "Span")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = MappingProxyType(
    {f"-{name}": getattr(operator, name) for name in _COMPARED}
)
_TEXTS: Mapping[str, Callable[[str, str], bool]] = MappingProxyType(
    {"=": operator.eq, "==": operator.eq, "!=": operator.ne}
    | {"<": operator.lt, ">": operator.gt}
)
_TWO_FILES = frozenset({"-nt", "-ot", "-ef"})
_BINARY = frozenset({*_NUMBERS, *_TEXTS, *_TWO_FILES, "=~"})
_FILES = frozenset(f"-{letter}" for letter in "fderwxsLha")
_NOT_KNOWN = frozenset(f"-{letter}" for letter in "bcgkpuGNOStoR")
_WHOLE = re.compile(r"\s*[-+]?\d{1,18}\s*")
_TOKEN = re.compile(r"&&|\|\||[()<>]|(?:(?!&&|\|\|)[^\s()<>])+")
_EXPRESSION = re.compile(r"(?:[^\s()]|\([^()]*(?:\([^()]*\)[^()]*)*\))+")
_REPEATED = re.compile(r"\)[*+{]")
_LONGEST = 500

Holds = bool | None
"""Whether a condition holds; None if only the machine could tell."""


def brackets_hold(shell: "Interpreter", words: Sequence[str]) -> Holds:
    """Return whether ``[ .. ]`` holds, of words that were expanded already.

    Raises
    ------
    ConditionError
        If it is no condition.
    """

    def part(words: Sequence[str]) -> Holds:
        if len(words) == 3:
            return _compared(*words)
        return _unary(shell, *words) if len(words) == 2 else _filled(words[0])

    return bool(words) and _joined(words, ("-o", "-a"), part)


def double_brackets_hold(shell: "Interpreter", span: "Span") -> Holds:
    """Return whether ``[[ .. ]]`` holds, of words as written.

    Raises
    ------
    ConditionError
        If it is no condition.
    """
    words = list[Span]()
    outline, pattern, end = span.outline(), _TOKEN, 0
    while token := pattern.search(outline, end):
        end = token.end()
        words.append(span.part(*token.span()))
        pattern = _EXPRESSION if token[0] == "=~" else _TOKEN

    def part(words: "Sequence[Span]") -> Holds:
        if len(words) == 3:
            return _matched(shell, words[0], words[1].text, words[2])
        text = shell.expander.bare(words[-1])
        return _unary(shell, words[0].text, text) if len(words) == 2 else _filled(text)

    return _joined(words, ("||", "&&"), part)


def _joined(
    words: Sequence[_Word],
    joints: tuple[str, str],
    part: Callable[[Sequence[_Word]], Holds],
) -> Holds:
    """Return whether conditions in brackets, or joined by "or" and "and", hold.

    Parameters
    ----------
    words
        All words.
    joints
        The words for "or" and "and"; letters are options, and test both sides.
    part
        Whether a condition of one to three words holds.
    """
    texts = [str(word) for word in words]
    if len(words) == 1 or (len(words) == 3 and texts[1] in _BINARY):
        return part(words)
    for joint, decides in zip(joints, (True, False), strict=True):
        place = _place(texts, joint)
        if place is not None:
            holds = [_joined(words[:place], joints, part)]
            if holds != [decides] or joint[0] == "-":
                holds.append(_joined(words[place + 1 :], joints, part))
            return (
                decides if decides in holds else None if None in holds else not decides
            )
    if texts[:1] == ["!"]:
        return _not(_joined(words[1:], joints, part))
    if texts[:1] == ["("] and texts[-1] == ")":
        return _joined(words[1:-1], joints, part)
    if len(words) != 2:
        raise ConditionError
    return part(words)


def _place(texts: Sequence[str], joint: str) -> int | None:
    """Return where the first of some joints outside of brackets is."""
    inside = 0
    for place, (before, text) in enumerate(pairwise(texts[:-1]), start=1):
        inside += (before == "(") - (before == ")")
        if inside == 0 and text == joint and before not in _BINARY:
            return place
    return None


def _compared(left: str, sign: str, right: str) -> Holds:
    if first_unknown(left + right) is not None or sign in _TWO_FILES:
        return None
    if sign in _TEXTS:
        return _TEXTS[sign](left, right)
    if sign not in _NUMBERS or not all(map(_WHOLE.fullmatch, (left, right))):
        raise ConditionError
    return _NUMBERS[sign](int(left), int(right))


def _matched(shell: "Interpreter", left: "Span", sign: str, right: "Span") -> Holds:
    """Return whether two words are as a sign in double brackets says."""
    words = shell.expander
    text = words.bare(left)
    if sign in _NUMBERS:
        first, second = words.sum(text), words.sum(words.bare(right))
        if first is None or second is None:
            return None
        return _NUMBERS[sign](first, second)
    if sign in ("=", "==", "!="):
        pattern = words.pattern(right)
        if first_unknown(text + pattern) is not None:
            return None
        fits = matches(text, pattern)
        return _not(fits) if sign == "!=" else fits
    if sign == "=~":
        return _searched(shell, text, words.pattern(right, re.escape))
    return _compared(text, sign, words.bare(right))


def _searched(shell: "Interpreter", text: str, pattern: str) -> Holds:
    """Return whether a regular expression is in a text; keep what it found."""
    pattern = pattern.replace("[:digit:]", "0-9")
    odd = _REPEATED.search(pattern) or "[:" in pattern
    if odd or first_unknown(text + pattern) is not None or len(text) > _LONGEST:
        return None
    try:
        match = re.search(pattern, text)
    except re.error:
        return None
    groups = [] if match is None else [match[0], *(g or "" for g in match.groups())]
    shell.variables.assign("BASH_REMATCH", groups)
    return match is not None


def _unary(shell: "Interpreter", sign: str, word: str) -> Holds:
    """Return whether a word is as an operator says."""
    if sign in ("-n", "-z"):
        filled = _filled(word)
        return filled if sign == "-n" else _not(filled)
    if sign == "-v":
        return shell.is_set(word)
    if sign in _FILES:
        return shell.has_file(word, sign) if word else False
    if sign in _NOT_KNOWN:
        return None
    raise ConditionError


def _filled(word: str) -> Holds:
    """Return whether a word is not empty; what a command prints may be."""
    name = first_unknown(word)
    if name is None:
        return word != ""
    return None if "$(" in name else True


def _not(holds: Holds) -> Holds:
    return None if holds is None else not holds
