"""Patterns of a shell as regular expressions, and braces as words.

After the GNU Bash manual, sections 3.5.1 and 3.5.8.1.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nestsim.launch.shell.lexer import MOST_NESTED, Lexer
from topologies.errors import InputError

MOST_WORDS = 50_000
"""Most words that braces may make."""

_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "alpha": "A-Za-z",
        "digit": "0-9",
        "alnum": "A-Za-z0-9",
        "upper": "A-Z",
        "lower": "a-z",
        "space": r"\s",
        "blank": " \t",
        "xdigit": "0-9A-Fa-f",
        "word": r"\w",
        "punct": r"!-/:-@\[-`{-~",
    }
)
_MOST_STARS = 6
_RANGE = re.compile(
    r"\{(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?\}", re.ASCII
)


def escaped(text: str) -> str:
    """Return a text as the pattern of itself."""
    return re.sub(r"([\\*?\[\]()|@!+])", r"\\\1", text)


def expression(pattern: str) -> str | None:
    """Return a pattern as a regular expression; None where it is not understood."""
    found, at = "", 0
    if pattern.count("*") > _MOST_STARS:
        return None
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            found += re.escape(pattern[at + 1 : at + 2])
            at += 2
        elif letter in "@?*+!" and pattern[at + 1 : at + 2] == "(":
            return None
        elif letter == "[":
            end, part = _bracketed(pattern, at)
            found += part
            at = end
        else:
            found += {"*": ".*", "?": "."}.get(letter, re.escape(letter))
            at += 1
    return found


def _bracketed(pattern: str, at: int) -> tuple[int, str]:
    """Return the end of ``[..]``, and it as a regular expression."""
    found = re.compile(r"\[([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]").match(pattern, at)
    if found is None:
        return at + 1, r"\["
    inner = ""
    for part in re.findall(r"\[:(\w+):\]|(\\.)|(.)", found[2], re.DOTALL):
        name, quoted, letter = part
        if name:
            inner += _CLASSES.get(name, "")
        else:
            inner += quoted or ("\\" + letter if letter in "[]^&~|" else letter)
    return found.end(), f"[{'^' if found[1] else ''}{inner}]"


def matches(text: str, pattern: str) -> bool | None:
    """Return whether a pattern is the whole text; None if that is not known."""
    written = expression(pattern)
    if written is None:
        return None
    try:
        return re.fullmatch(written, text, re.DOTALL) is not None
    except re.error:
        return None


def spread_braces(raw: str, lexer_of: Callable[[str], Lexer]) -> list[str]:
    """Return the words that braces make of one: ``a{b,c}``, ``{1..8}``.

    Raises
    ------
    InputError
        If there are more than any script needs.
    """
    done, open_words = [], [("", raw)]
    while open_words:
        before, word = open_words.pop()
        lexer = lexer_of(word)
        at, end, parts = 0, 0, list[str]()
        while at < len(word) and not parts:
            if word[at] == "{":
                end, parts = _parts(word, at, lexer)
            at = at if parts else lexer.behind_part(at)
        if not parts:
            done.append(before + word)
        _check(len(done) + len(open_words) + len(parts))
        open_words += [
            (before + word[:at], part + word[end:]) for part in reversed(parts)
        ]
    return done


def _check(count: int) -> None:
    if count > MOST_WORDS:
        raise InputError(
            "braces make more words than any script needs",
            got=f"more than {MOST_WORDS:,}",
            expected="a launch script",
        )


def _parts(raw: str, at: int, lexer: Lexer) -> tuple[int, list[str]]:
    """Return the end of braces and their parts; none where they are letters."""
    found = _RANGE.match(raw, at)
    if found is not None:
        return found.end(), _range(found[1], found[2], found[3])
    parts, inside, start, here = [], 0, at + 1, at
    while here < len(raw):
        letter = raw[here]
        inside += (letter == "{") - (letter == "}")
        if inside > MOST_NESTED:
            break
        if letter in ",}" and inside == (letter == ","):
            parts.append(raw[start:here])
            start = here + 1
        if inside == 0:
            return here + 1, parts if len(parts) > 1 else []
        here = lexer.behind_part(here)
    return at, []


def _range(first: str, last: str, step: str | None) -> list[str]:
    numeric = first.lstrip("-").isdigit()
    if numeric != last.lstrip("-").isdigit():
        return []
    low, high = (int(first), int(last)) if numeric else (ord(first), ord(last))
    by = abs(int(step or 1)) or 1
    _check(abs(high - low) // by)
    numbers = range(low, high + (1 if high >= low else -1), by if high >= low else -by)
    if not numeric:
        return [chr(number) for number in numbers]
    padded = any(re.match(r"-?0\d", one) for one in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]
