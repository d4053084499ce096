"""Conditions of a shell script: ``[ .. ]`` and ``[[ .. ]]``."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from nestsim.launch.shell.words import (
    first_unknown,
    without_unknown,
)

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
_FILES = frozenset({"-f", "-d", "-e", "-r", "-w", "-x", "-s", "-L", "-h"})


def holds(words: Sequence[str]) -> bool | None:
    """Return whether a condition holds; None if only the machine could tell.

    Variables that nothing sets are empty, files are there.

    Parameters
    ----------
    words
        Between the brackets, expanded.
    """
    for joint, join in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if joint in words[1:-1]:
            index = list(words).index(joint, 1)
            parts = [holds(words[:index]), holds(words[index + 1 :])]
            return None if None in parts else join(parts)
    if words and words[0] == "(" and words[-1] == ")":
        return holds(words[1:-1])
    if words and words[0] == "!":
        inner = holds(words[1:])
        return None if inner is None else not inner
    return _simple(list(words))


def _simple(words: list[str]) -> bool | None:
    if any("$(" in (first_unknown(word) or "") for word in words):
        return None
    plain = [without_unknown(word) for word in words]
    if len(plain) == 1:
        return plain[0] != ""
    if len(plain) == 2:
        return _unary(plain[0], plain[1])
    if len(plain) == 3:
        return _binary(*plain)
    return False if not plain else None


def _unary(op: str, word: str) -> bool | None:
    if op == "-n":
        return word != ""
    if op == "-z":
        return word == ""
    return True if op in _FILES else None


def _binary(left: str, op: str, right: str) -> bool | None:
    if op in ("=", "==", "!="):
        return fnmatchcase(left, right) == (op != "!=")
    if op in _NUMBERS:
        try:
            return _NUMBERS[op](int(left or "0"), int(right or "0"))
        except ValueError:
            return None
    if op == "=~" and re.fullmatch(r"[\w^$ -]*", right):
        return re.search(right, left) is not None
    return None
