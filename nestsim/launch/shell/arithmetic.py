"""Arithmetic of a shell script: C's expressions over whole numbers of 64 bits.

After the GNU Bash manual, section 6.5. The tree has no part in it: Bash expands the
dollars of an expression before it reads what the expression is, and the grammar binds
``**``, ``=`` and signs otherwise than Bash.
"""

import operator
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from nestsim.launch.shell.marks import MARK

_LONGEST = 2_000
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
    if depth > _DEEPEST or len(text) > _LONGEST or MARK.search(text):
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
