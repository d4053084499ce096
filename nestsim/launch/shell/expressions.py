"""What words of a shell script stand for: patterns, braces, escapes, arithmetic.

Patterns as regular expressions, braces as words, escapes as letters, after the GNU Bash
manual, sections 3.1.2.4, 3.5.1 and 3.5.8.1. C's expressions over whole numbers of 64
bits, after section 6.5: the tree has no part in them, as Bash expands the dollars of an
expression before it reads what it is, and the grammar binds ``**``, ``=`` and signs
otherwise than Bash.
"""

import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

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

    def letter(escape: re.Match[str]) -> str:
        if escape[5]:
            return _LETTERS.get(escape[5], escape[0])
        code = int(escape[4], 8) % 256 if escape[4] else int(escape[0][2:], 16)
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

    def part(match: re.Match[str]) -> str:
        quoted, turned, listed, letter = match.groups()
        if quoted is not None:
            return re.escape(quoted)
        if listed is None:
            return {"*": ".*", "?": "."}.get(letter, re.escape(letter))
        inner = re.sub(
            r"\[:(\w+):\]|(\\.)|([\[\]^&~|])",
            lambda inside: _CLASSES.get(
                inside[1] or "", inside[2] or "\\" + (inside[3] or "")
            ),
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
    plain = re.sub(whole, lambda match: keep(match[0]), plain, flags=re.DOTALL)
    texts = _spread(plain)
    if texts == [plain]:
        return [word]
    last = chr(_KEPT + len(kept))
    return [
        word_of(
            re.sub(f"[\ue000-{last}]", lambda match: kept[ord(match[0]) - _KEPT], text)
        )
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
    numbers = _RANGE.match(text, at)
    if numbers is not None:
        return numbers.end(), _range(numbers[1], numbers[2], numbers[3])
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


_LONGEST_SUM = 2_000
_DEEPEST = 12
_TOKEN = re.compile(
    r"0[xX][0-9A-Fa-f]+|\d+#[0-9A-Za-z@_]+|\d+|[A-Za-z_]\w*"
    r"|<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]="
    r"|[-+*/%<>=!~&|^?:,()\[\]]"
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_NAME = re.compile(r"[A-Za-z_]\w*")
_SIGNS_BY_LEVEL = (
    ", ; = += -= *= /= %= &= |= ^= <<= >>= ; ? ; || ; && ; | ; ^ ; & ; == != ; "
    "< <= > >= ; << >> ; + - ; * / % ; **"
)
_LEVELS = _SIGNS_BY_LEVEL.split(";")
"""Operators behind a term, from the loosest."""

_BINDING = {sign: n for n, signs in enumerate(_LEVELS) for sign in signs.split()}
_SETTING = 1


def _quotient(left: int, right: int) -> int:
    """Return a quotient towards zero."""
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


def _power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ValueError(exponent)
    return pow(base, exponent, 2**64)


_PLAIN_SIGNS = "| ^ & == != < <= > >= + - *"
_OPERATORS = "or_ xor and_ eq ne lt le gt ge add sub mul"
_PLAIN = zip(_PLAIN_SIGNS.split(), _OPERATORS.split(), strict=True)
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {sign: getattr(operator, name) for sign, name in _PLAIN}
    | {
        "<<": lambda left, right: left << (right & 63),
        ">>": lambda left, right: left >> (right & 63),
        "%": lambda left, right: left - right * _quotient(left, right),
        ",": lambda _, right: right,
        "/": _quotient,
        "**": _power,
    }
)
_SIGNS: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {"!": operator.not_, "~": operator.inv, "-": operator.neg, "+": operator.pos}
)


class Numbers(Protocol):
    """Variables as arithmetic reads and sets them."""

    def number_text(self, name: str, index: str | None) -> str | None:
        """Return what a variable holds; None if nobody knows."""

    def set_number(self, name: str, index: str | None, value: int) -> None:
        """Set a variable."""


def value_of(text: str, numbers: Numbers, depth: int = 0) -> int | None:
    """Return the value of an expression; None if it is not known, or is none.

    Parameters
    ----------
    text
        The expression, its dollars expanded.
    numbers
        The variables.
    depth
        How many variables that hold expressions led here.
    """
    if depth > _DEEPEST or len(text) > _LONGEST_SUM or MARK.search(text):
        return None
    plain = re.sub(r"\\\n|\\(?=\")|\"", "", text)
    tokens = _TOKEN.findall(plain)
    if "".join(tokens) != re.sub(r"\s+", "", plain):
        return None
    expression = _Expression([*tokens, ""], numbers, depth)
    try:
        value = expression.value() if tokens else 0
    except (ArithmeticError, LookupError, ValueError, RecursionError):
        return None
    return value if expression.at == len(tokens) else None


def _wrapped(value: int) -> int:
    """Return a number as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


class _Expression:
    """Tokens, the last one empty, on their way to a value; errors where there is none.

    What is skipped sets nothing.
    """

    def __init__(self, tokens: list[str], numbers: Numbers, depth: int) -> None:
        self.tokens, self.numbers, self.depth = tokens, numbers, depth
        self.at = self.skips = 0

    def value(self, loosest: int = 0, *, skip: bool = False) -> int:
        """Return the value up to an operator that binds looser than some level."""
        self.skips += skip
        value = self._term(loosest)
        while (level := _BINDING.get(self.tokens[self.at], -1)) >= loosest:
            value = self._joined(self._next(), level, value)
        self.skips -= skip
        return value

    def _next(self, expected: str = "") -> str:
        token = self.tokens[self.at]
        self.at += 1
        if expected and token != expected:
            raise ValueError(token)
        return token

    def _joined(self, sign: str, level: int, left: int) -> int:
        """Return the value of what was read, an operator, and what follows."""
        if sign == "?":
            first = self.value(skip=not left)
            self._next(":")
            second = self.value(_SETTING, skip=bool(left))
            return first if left else second
        if sign in ("&&", "||"):
            is_decided = bool(left) == (sign == "||")
            right = self.value(level + 1, skip=is_decided)
            return int(bool(left if is_decided else right))
        return self._two(sign, left, self.value(level + (sign != "**")))

    def _two(self, sign: str, left: int, right: int) -> int:
        operation = _OPERATIONS[sign]
        return 0 if self.skips else _wrapped(int(operation(left, right)))

    def _term(self, loosest: int) -> int:
        """Return the value of a number, a variable or what stands in brackets."""
        token = self._next()
        if token == "(":
            value = self.value()
            self._next(")")
            return value
        if token in ("++", "--"):
            name, index = self._variable(self._next())
            return self._set(name, index, self._held(name, index) + int(token[0] + "1"))
        if token in _SIGNS:
            return _wrapped(int(_SIGNS[token](self._term(len(_LEVELS)))))
        if not _NAME.fullmatch(token):
            return _constant(token)
        name, index = self._variable(token)
        sign = self.tokens[self.at]
        if _BINDING.get(sign) == _SETTING and loosest <= _SETTING:
            self.at += 1
            before = 0 if sign == "=" else self._held(name, index)
            value = self.value(_SETTING)
            if sign != "=":
                value = self._two(sign[:-1], before, value)
            return self._set(name, index, value)
        value = self._held(name, index)
        if sign in ("++", "--"):
            self.at += 1
            self._set(name, index, value + int(sign[0] + "1"))
        return value

    def _variable(self, name: str) -> tuple[str, str | None]:
        """Return a name and the index behind it."""
        if not _NAME.fullmatch(name):
            raise ValueError(name)
        if self.tokens[self.at] != "[":
            return name, None
        start, inside = self.at + 1, 0
        while self.at < start or inside:
            token = self._next()
            inside += (token == "[") - (token == "]")
        return name, "".join(self.tokens[start : self.at - 1])

    def _held(self, name: str, index: str | None) -> int:
        if self.skips:
            return 0
        text = self.numbers.number_text(name, index)
        value = None if text is None else value_of(text, self.numbers, self.depth + 1)
        if value is None:
            raise ValueError(name)
        return value

    def _set(self, name: str, index: str | None, value: int) -> int:
        if not self.skips:
            self.numbers.set_number(name, index, _wrapped(value))
        return _wrapped(value)


def _constant(token: str) -> int:
    """Return a number: decimal, octal, hexadecimal, or of another base."""
    base, mark, digits = token.partition("#")
    if not mark:
        is_octal = token[:1] == "0" and token.isdigit()
        return _wrapped(int(token, 8 if is_octal else 0))
    number = int(base)
    values = [_DIGITS.index(d) for d in (digits.lower() if number <= 36 else digits)]
    if not 2 <= number <= 64 or max(values) >= number:
        raise ValueError(token)
    return _wrapped(sum(v * number**n for n, v in enumerate(reversed(values))))
