"""Arithmetic of a shell script: C's expressions over whole numbers of 64 bits.

After the GNU Bash manual, section 6.5.
"""

import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from nestsim.launch.shell.marks import MARK

_LONGEST = 2_000
_DEEPEST = 12
_MOST_TERMS = 60
_TOKEN = re.compile(
    r"0[xX][0-9A-Fa-f]+|\d+#[0-9A-Za-z@_]+|\d+|[A-Za-z_]\w*"
    r"|<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]="
    r"|[-+*/%<>=!~&|^?:,()\[\]]"
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_NAME = re.compile(r"[A-Za-z_]\w*")
_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
"""Operators between two terms, from the loosest."""

_ASSIGNING = frozenset(
    {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
)


def _quotient(left: int, right: int) -> int:
    """Return a quotient towards zero."""
    _refuse(right == 0)
    size = abs(left) // abs(right)
    return size if (left < 0) == (right < 0) else -size


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {
        "|": operator.or_,
        "^": operator.xor,
        "&": operator.and_,
        "==": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "<<": lambda left, right: left << (right & 63),
        ">>": lambda left, right: left >> (right & 63),
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": _quotient,
        "%": lambda left, right: left - right * _quotient(left, right),
    }
)


class Numbers(Protocol):
    """Variables as arithmetic reads and sets them."""

    def number_text(self, name: str, index: str | None) -> str | None:
        """Return what a variable holds; None if nobody knows."""

    def set_number(self, name: str, index: str | None, value: int) -> None:
        """Set a variable."""


class _NoValueError(Exception):
    """The expression has no value that is known."""


def _refuse(is_wrong: bool) -> None:
    if is_wrong:
        raise _NoValueError


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
    if depth > _DEEPEST or len(text) > _LONGEST or MARK.search(text):
        return None
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != re.sub(r"\s+|\\\n", "", text):
        return None
    if not tokens:
        return 0
    try:
        return _Expression(tokens, numbers, depth).value()
    except (_NoValueError, RecursionError):
        return None


def _wrapped(value: int) -> int:
    """Return a number as 64 bits hold it."""
    return (value + 2**63) % 2**64 - 2**63


class _Expression:
    """Tokens on their way to a value."""

    def __init__(self, tokens: list[str], numbers: Numbers, depth: int) -> None:
        self.tokens, self.numbers, self.depth = tokens, numbers, depth
        self.at = 0
        self.skips = 0
        self.nested = 0

    def value(self) -> int:
        """Return the value of all tokens."""
        value = self._comma()
        _refuse(self.at != len(self.tokens))
        return value

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _took(self, *texts: str) -> str:
        found = self._peek()
        if found not in texts or not found:
            return ""
        self.at += 1
        return found

    def _comma(self) -> int:
        value = self._assigned()
        while self._took(","):
            value = self._assigned()
        return value

    def _assigned(self) -> int:
        """Return the value of an assignment, or of a choice of two."""
        self.nested += 1
        _refuse(self.nested > _MOST_TERMS)
        start = self.at
        if _NAME.fullmatch(self._peek()):
            name, index = self._variable()
            sign = self._took(*_ASSIGNING)
            if sign:
                value = self._assigned()
                if sign != "=":
                    before = self._held(name, index)
                    value = self._two(sign[:-1], before, value)
                self.nested -= 1
                return self._set(name, index, value)
            self.at = start
        value = self._choice()
        self.nested -= 1
        return value

    def _choice(self) -> int:
        test = self._level(0)
        if not self._took("?"):
            return test
        first = self._skipped(self._comma, skip=not test)
        _refuse(not self._took(":"))
        second = self._skipped(self._assigned, skip=bool(test))
        return first if test else second

    def _skipped(self, read: Callable[[], int], *, skip: bool) -> int:
        """Read a part; of one that is skipped nothing is set."""
        self.skips += skip
        value = read()
        self.skips -= skip
        return value

    def _level(self, level: int) -> int:
        if level == len(_LEVELS):
            return self._power()
        value = self._level(level + 1)
        while sign := self._took(*_LEVELS[level]):
            if sign in ("&&", "||"):
                decided = bool(value) == (sign == "||")
                right = self._skipped(lambda: self._level(level + 1), skip=decided)
                value = int(bool(value) if decided else bool(right))
            else:
                value = self._two(sign, value, self._level(level + 1))
        return value

    def _two(self, sign: str, left: int, right: int) -> int:
        if self.skips:
            return 0
        return _wrapped(int(_OPERATIONS[sign](left, right)))

    def _power(self) -> int:
        base = self._unary()
        if not self._took("**"):
            return base
        exponent = self._power()
        _refuse(exponent < 0)
        return _wrapped(pow(base, exponent, 2**64))

    def _unary(self) -> int:
        sign = self._took("!", "~", "-", "+", "++", "--")
        if not sign:
            return self._term()
        self.nested += 1
        _refuse(self.nested > _MOST_TERMS)
        if sign in ("++", "--"):
            name, index = self._variable()
            by = 1 if sign == "++" else -1
            value = self._set(name, index, self._held(name, index) + by)
        else:
            inner = self._unary()
            value = {"!": int(not inner), "~": ~inner, "-": -inner, "+": inner}[sign]
        self.nested -= 1
        return _wrapped(value)

    def _term(self) -> int:
        if self._took("("):
            value = self._comma()
            _refuse(not self._took(")"))
            return value
        token = self._peek()
        if _NAME.fullmatch(token):
            name, index = self._variable()
            value = self._held(name, index)
            if sign := self._took("++", "--"):
                self._set(name, index, value + (1 if sign == "++" else -1))
            return value
        self.at += 1
        return _constant(token)

    def _variable(self) -> tuple[str, str | None]:
        """Return a name and the index behind it."""
        name = self._peek()
        _refuse(not _NAME.fullmatch(name))
        self.at += 1
        if not self._took("["):
            return name, None
        start, inside = self.at, 1
        while inside and self.at < len(self.tokens):
            token = self._peek()
            inside += (token == "[") - (token == "]")
            self.at += 1
        _refuse(inside > 0)
        return name, "".join(self.tokens[start : self.at - 1])

    def _held(self, name: str, index: str | None) -> int:
        if self.skips:
            return 0
        text = self.numbers.number_text(name, index)
        _refuse(text is None)
        value = value_of(text or "", self.numbers, self.depth + 1)
        _refuse(value is None)
        return value or 0

    def _set(self, name: str, index: str | None, value: int) -> int:
        value = _wrapped(value)
        if not self.skips:
            self.numbers.set_number(name, index, value)
        return value


def _constant(token: str) -> int:
    """Return a number: decimal, octal, hexadecimal, or of another base."""
    base, mark, digits = token.partition("#")
    if mark:
        number = int(base)
        _refuse(not 2 <= number <= 64)
        digits = digits.lower() if number <= 36 else digits
        values = [_DIGITS.index(digit) for digit in digits]
        _refuse(max(values) >= number)
        value = 0
        for one in values:
            value = value * number + one
        return _wrapped(value)
    _refuse(not token[:1].isdigit())
    if token[:2].lower() == "0x":
        return _wrapped(int(token, 16))
    if token[0] == "0" and len(token) > 1:
        _refuse(re.search("[89]", token) is not None)
        return _wrapped(int(token, 8))
    return _wrapped(int(token))
