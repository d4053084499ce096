"""Patterns of a shell as regular expressions, braces as words, escapes as letters.

After the GNU Bash manual, sections 3.1.2.4, 3.5.1 and 3.5.8.1.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from nestsim.launch.shell.marks import MARK
from nestsim.launch.shell.tree import MOST_NESTED, Span, refuse_size, word_of

MOST_WORDS = 50_000
"""Most words that braces may make."""

_LISTS = r"""
alpha A-Za-z digit 0-9 alnum A-Za-z0-9 upper A-Z lower a-z space \s blank \x20\t
xdigit 0-9A-Fa-f word \w punct !-/:-@\[-`{-~
"""
_CLASSES: Mapping[str, str] = MappingProxyType(
    dict(zip(_LISTS.split()[::2], _LISTS.split()[1::2], strict=True))
)
_MOST_STARS = 6
_LONGEST_BRACES = 20_000
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,4})|(.))",
    re.DOTALL,
)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "\\": "\\"}
_LETTERS |= {"e": "\x1b", "'": "'", '"': '"', "?": "?"}
_RANGE = re.compile(
    r"\{(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?\}", re.ASCII
)
_KEPT = 0xE000
"""First of the letters that stand for parts which braces leave as they are."""


def unescaped(text: str) -> str:
    r"""Return a text with letters in place of ``\n`` and the like."""

    def letter(found: re.Match[str]) -> str:
        if found[5]:
            return _LETTERS.get(found[5], found[0])
        code = int(found[4], 8) % 256 if found[4] else int(found[0][2:], 16)
        return chr(code) if code < 0x110000 else ""

    return _ESCAPE.sub(letter, text)


def escaped(text: str) -> str:
    """Return a text as the pattern of itself."""
    return re.sub(r"([\\*?\[\]()|@!+])", r"\\\1", text)


def expression(pattern: str) -> str | None:
    """Return a pattern as a regular expression; None where it is not understood."""
    if pattern.count("*") > _MOST_STARS or re.search(r"(?<!\\)[@?*+!]\(", pattern):
        return None
    parts = r"\\(.?)|\[([!^]?)(\]?(?:\[:\w+:\]|\\.|[^\]\\])*)\]|(.)"

    def part(found: re.Match[str]) -> str:
        quoted, turned, listed, letter = found.groups()
        if quoted is not None:
            return re.escape(quoted)
        if listed is None:
            return {"*": ".*", "?": "."}.get(letter, re.escape(letter))
        inner = re.sub(
            r"\[:(\w+):\]|(\\.)|([\[\]^&~|])",
            lambda one: _CLASSES.get(one[1] or "", one[2] or "\\" + (one[3] or "")),
            listed,
            flags=re.DOTALL,
        )
        return f"[{'^' if turned else ''}{inner}]"

    return re.sub(parts, part, pattern, flags=re.DOTALL)


def matches(text: str, pattern: str) -> bool | None:
    """Return whether a pattern is the whole text; None if that is not known."""
    written = expression(pattern)
    if written is None:
        return None
    try:
        return re.fullmatch(written, text, re.DOTALL) is not None
    except re.error:
        return None


def spread_braces(word: Span) -> list[Span]:
    """Return the words that braces make of one: ``a{b,c}``, ``{1..8}``.

    Raises
    ------
    InputError
        If there are more than any script needs.
    """
    if len(word.text) > _LONGEST_BRACES:
        refuse_size("a word with braces is too long", f"{_LONGEST_BRACES:,} letters")
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return chr(_KEPT + len(kept) - 1)

    plain, at = "", 0
    for part in word.parts():
        start, end = part.start - word.start, part.end - word.start
        plain += word.text[at:start] + keep(word.text[start:end])
        at = end
    plain += word.text[at:]
    whole = rf"\\.|{MARK.pattern}"
    plain = re.sub(whole, lambda found: keep(found[0]), plain, flags=re.DOTALL)
    texts = _spread(plain)
    if texts == [plain]:
        return [word]
    last = chr(_KEPT + len(kept))
    return [
        word_of(re.sub(f"[\ue000-{last}]", lambda one: kept[ord(one[0]) - _KEPT], text))
        for text in texts
    ]


def _spread(plain: str) -> list[str]:
    done, pending = list[str](), [("", plain)]
    while pending:
        before, text = pending.pop()
        at, end, parts = 0, 0, list[str]()
        while not parts and (at := text.find("{", at)) >= 0:
            end, parts = _parts(text, at)
            at += not parts
        if not parts:
            done.append(before + text)
        _check(len(done) + len(pending) + len(parts))
        pending += [(before + text[:at], part + text[end:]) for part in reversed(parts)]
    return done


def _check(count: int) -> None:
    if count > MOST_WORDS:
        refuse_size("braces make more words than any script needs", f"{MOST_WORDS:,}")


def _parts(text: str, at: int) -> tuple[int, list[str]]:
    """Return the end of braces and their parts; none where they are letters."""
    found = _RANGE.match(text, at)
    if found is not None:
        return found.end(), _range(found[1], found[2], found[3])
    parts, inside, start = list[str](), 0, at + 1
    for here in range(at, len(text)):
        letter = text[here]
        inside += (letter == "{") - (letter == "}")
        if inside > MOST_NESTED:
            break
        if letter in ",}" and inside == (letter == ","):
            parts.append(text[start:here])
            start = here + 1
        if inside == 0:
            return here + 1, parts if len(parts) > 1 else []
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
    padded = any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in numbers]
