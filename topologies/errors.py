"""The one exception for mistakes in the input, worded so that they can be fixed.

Checks of single values that many records make raise it.

What a message quotes is bounded and escaped here, in one place: a value of a megabyte
or an escape sequence in a name never reaches a terminal or a report.

A short `repr` for records that hold a lot: what is inside is counted, not written.

The `repr` of a dataclass writes everything that hangs below it, which for a result is
hundreds of thousands of characters. Records that people look at in a console set
``__repr__ = short_repr`` instead.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

MOST_LISTED = 20
"""Most mistakes of one input that are listed; the others are counted."""

_LONGEST_VALUE = 120
_LONGEST_PLACE = 500
_LONGEST_SENTENCE = 1000
_LONGEST_ASIDE = 200
_LARGEST_WRITTEN = 10**40
_DEEPEST = 4


class InputError(ValueError):
    """A mistake in the input.

    Low-level code raises it without knowing the file or the setting; callers on the
    way up add *where* with `at`, until the command line prints it without a
    traceback and exits with status 2.

    Parameters
    ----------
    problem
        What is wrong, in one clause.
    where
        Dotted path of the setting, e.g. ``cluster.network.levels[1].bandwidth``.
    got
        The value found; None when there is nothing to show.
    expected
        What would have been accepted, with an example.
    hint
        A likely fix. Leave out rather than guess.
    others
        What else is wrong with the same file; see `Problems`.
    num_unlisted
        How many mistakes of the file there are beside `others`.
    """

    def __init__(  # noqa: PLR0913 - one for each line of a message
        self,
        problem: str,
        *,
        where: str = "",
        got: object = None,
        expected: str = "",
        hint: str = "",
        others: "Sequence[InputError]" = (),
        num_unlisted: int = 0,
    ) -> None:
        self.problem, self.where, self.got = problem, where, got
        self.expected, self.hint = expected, hint
        self.others = tuple(others[:MOST_LISTED])
        self.num_unlisted = num_unlisted + len(others) - len(self.others)
        self.is_final = False
        super().__init__(problem)

    def __str__(self) -> str:
        lines = [f"{self._headline()}{self._count()}"]
        if self.got is not None:
            lines.append(f"  got:      {shown(self.got)}")
        if self.expected:
            lines.append(f"  expected: {readable(self.expected)}")
        if self.hint:
            lines.append(f"  hint:     {readable(self.hint)}")
        heads = ["  others:   "] + ["            "] * (MOST_LISTED - 1)
        lines += [
            f"{head}{other.one_line()}"
            for head, other in zip(heads, self.others, strict=False)
        ]
        if self.num_unlisted:
            lines.append(f"            .. and {self.num_unlisted:,} more")
        return "\n".join(lines)

    def one_line(self) -> str:
        """Return the mistake in one line, for tables and lists; no hint."""
        text = self._headline()
        if self.got is not None:
            text += f"; got {shown(self.got)}"
        if self.expected:
            text += f"; expected {readable(self.expected, _LONGEST_ASIDE)}"
        return text

    def at(self, where: str, separator: str = ".") -> "InputError":
        """Return a copy whose location is prefixed with ``where``.

        So are those of the others, until the file is named: that they have in common.
        """
        path = f"{where}{separator}{self.where}" if self.where else where
        return self.moved(path, [o.inside(where, separator) for o in self.others])

    def moved(
        self, where: str, others: "Sequence[InputError] | None" = None
    ) -> "InputError":
        """Return a copy at another location, with as many others if they are given."""
        return InputError(
            self.problem,
            where=where,
            got=self.got,
            expected=self.expected,
            hint=self.hint,
            others=self.others if others is None else tuple(others),
            num_unlisted=self.num_unlisted,
        )

    def inside(self, where: str, separator: str) -> "InputError":
        """Return a copy located inside its file; naming the file makes it final."""
        if self.is_final:
            return self
        if separator == ".":
            return self.at(where, separator)
        final = self.moved(self.where)
        final.is_final = True
        return final

    def _headline(self) -> str:
        problem = readable(self.problem, _LONGEST_PLACE)
        where = readable(self.where, _LONGEST_PLACE)
        return f"{where}: {problem}" if where else problem

    def _count(self) -> str:
        count = len(self.others) + self.num_unlisted
        if count == 0:
            return ""
        what = "1 other problem" if count == 1 else f"{count:,} others"
        return f" (and {what} in this file)"


class Problems:
    """Collects what is wrong with one file, to tell all of it at once.

    Examples
    --------
    >>> problems = Problems()
    >>> for index in (0, 1):
    ...     with problems.noted(f"links[{index}]"):
    ...         raise InputError("is missing", where="latency")
    >>> [error.where for error in problems.errors]
    ['links[0].latency', 'links[1].latency']
    """

    def __init__(self) -> None:
        self.errors: list[InputError] = []

    def noted(self, where: str = "", separator: str = ".") -> "_Noted":
        """Keep a mistake that is made inside instead of passing it on."""
        return _Noted(self.errors, where, separator)

    def refuse(self) -> None:
        """Raise the first mistake with all others, if there is one."""
        if not self.errors:
            return
        first, *rest = self.errors
        others = [other for error in rest for other in (error, *error.others)]
        raise InputError(
            first.problem,
            where=first.where,
            got=first.got,
            expected=first.expected,
            hint=first.hint,
            others=(*first.others, *others),
            num_unlisted=sum(error.num_unlisted for error in self.errors),
        )


class _Noted:
    """Puts a mistake into a list, with its place in front."""

    def __init__(self, errors: list[InputError], where: str, separator: str) -> None:
        self._errors, self._where, self._separator = errors, where, separator

    def __enter__(self) -> None:
        pass

    # Returning bool, not None, tells type checkers that what follows is reached.
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, InputError):
            return False
        place = self._where
        self._errors.append(error.at(place, self._separator) if place else error)
        return True


@contextmanager
def located(where: str, separator: str = ".") -> Iterator[None]:
    """Prefix the location of an `InputError` that is raised meanwhile."""
    try:
        yield
    except InputError as error:
        raise error.at(where, separator) from None


@contextmanager
def naming(file: Path | None) -> Iterator[None]:
    """Prefix the location of an `InputError` with the file that it is in, if any."""
    try:
        yield
    except InputError as error:
        raise (error if file is None else error.at(str(file), ": ")) from None


def shown(value: object, longest: int = _LONGEST_VALUE) -> str:
    """Return a value as a message quotes it: as Python writes it, but bounded.

    Examples
    --------
    >>> shown("a" * 1000, 10)
    "'aaaaaaaaa.."
    >>> shown([1, 2, 3])
    '[1, 2, 3]'
    """
    text = ""
    for part in _parts(value, longest, _DEEPEST):
        text += part
        if len(text) > longest:
            return f"{text[:longest]}.."
    return text


def readable(text: str, longest: int = _LONGEST_SENTENCE) -> str:
    r"""Return a text without control characters, shortened in its middle.

    Examples
    --------
    >>> print(readable(chr(27) + "[31mred"))
    \x1b[31mred
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}..{text[-half:]}"
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


def _parts(value: object, longest: int, depth: int) -> Iterator[str]:
    """Yield the pieces of what `repr` would return, none of them long."""
    if isinstance(value, str | bytes):
        yield repr(value[: longest + 1])
    elif isinstance(value, date | time):
        yield value.isoformat()
    elif isinstance(value, int) and not -_LARGEST_WRITTEN < value < _LARGEST_WRITTEN:
        # Python refuses to write numbers of thousands of digits.
        yield f"a number of about {value.bit_length() * 0.30103:.0f} digits"
    elif type(value) in {list, tuple, dict} and depth == 0:
        yield ".."
    elif type(value) is dict:
        yield "{"
        yield from _joined(value, longest, depth)
        yield "}"
    elif type(value) in {list, tuple}:
        assert isinstance(value, list | tuple)
        yield "[" if type(value) is list else "("
        yield from _joined(value, longest, depth)
        if type(value) is tuple:
            yield ",)" if len(value) == 1 else ")"
        else:
            yield "]"
    else:
        yield readable(repr(value), longest + 1)


def _joined(
    values: Sequence[object] | Mapping[object, object], longest: int, depth: int
) -> Iterator[str]:
    for index, entry in enumerate(values):
        if index:
            yield ", "
        yield from _parts(entry, longest, depth - 1)
        if isinstance(values, Mapping):
            yield ": "
            yield from _parts(values[entry], longest, depth - 1)


MIN_RATIO, MAX_RATIO = 1e-6, 1e6
"""Smallest and largest oversubscription that a switch has."""

MIN_EFFICIENCY = 1e-6
"""Smallest fraction of a bandwidth that counts as reached."""


def check_count(where: str, value: object) -> None:
    """Refuse what is not a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problem = "must be a whole number of at least 1"
        expected = "a positive whole number, e.g. 8"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_bandwidth(where: str, value: float) -> None:
    """Refuse what is not positive and finite, NaN included."""
    if not (value > 0 and math.isfinite(value)):
        problem = "must be a positive, finite bandwidth"
        expected = "a positive number of bytes per second, e.g. 450e9"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_latency(where: str, value: float) -> None:
    """Refuse what is negative, infinite or not a number."""
    if not (value >= 0 and math.isfinite(value)):
        problem = "must be a finite latency that is not negative"
        raise InputError(
            problem, where=where, got=value, expected="0 s or more, e.g. 2e-6"
        )


def check_ratio(where: str, value: float) -> None:
    """Refuse an oversubscription that no switch has."""
    if not MIN_RATIO <= value <= MAX_RATIO:
        problem = "must be a positive, finite ratio"
        expected = f"from {MIN_RATIO:g} to {MAX_RATIO:g}, e.g. 2 for 2:1"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_efficiency(where: str, value: float) -> None:
    """Refuse what is no fraction of a bandwidth."""
    if not MIN_EFFICIENCY <= value <= 1:
        problem = "must be more than 0 and at most 1"
        expected = f"a fraction from {MIN_EFFICIENCY:g} to 1, e.g. 0.9"
        raise InputError(problem, where=where, got=value, expected=expected)


def check_choice(where: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a word that is not one of the choices."""
    if value not in choices:
        expected = " or ".join(f'"{choice}"' for choice in choices)
        raise InputError("unknown choice", where=where, got=value, expected=expected)


MOST = 1_500
"""Characters of a record's `repr`."""

_MOST_VALUE = 80
"""Characters of one value's."""

_MOST_ENTRIES = 25
"""Of a list that is written out, if it is as short as that."""

_DEEPEST_RECORD = 2
"""Records and lists inside each other that are looked into."""


def short_repr(record: Any) -> str:
    """Return the class of a dataclass's record and its fields, each in a few words.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Many:
    ...     name: str
    ...     times: list[int]
    ...     __repr__ = short_repr
    >>> Many("steps", list(range(1000)))
    Many(name='steps', times=<list of 1,000>)
    """
    text = _record(record, _DEEPEST_RECORD)
    return text if len(text) <= MOST else f"{text[:MOST]}..)"


def shortened(value: object, depth: int = _DEEPEST_RECORD) -> str:
    """Return what a value is in at most a line; what is deeper inside is counted."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        shape = " x ".join(str(length) for length in value.shape) or "1"
        return f"<array of {shape}, {value.dtype}>"
    if isinstance(value, str | bytes):
        return shown(value, _MOST_VALUE)
    count, text = "", ""
    if isinstance(value, Mapping | Sequence | Set) and not isinstance(value, range):
        count = f" of {len(value):,}"
        if depth and len(value) <= _MOST_ENTRIES:
            text = _entries(value, depth - 1)
    elif is_dataclass(value):
        text = _record(value, depth - 1) if depth else ""
    else:
        text = repr(value)
    return text if 0 < len(text) <= _MOST_VALUE else f"<{kind}{count}>"


def _record(record: Any, depth: int) -> str:
    parts = [
        f"{field.name}={shortened(getattr(record, field.name), depth)}"
        for field in fields(record)
    ]
    return f"{type(record).__name__}({', '.join(parts)})"


def _entries(value: Any, depth: int) -> str:
    """Return the `repr` of a few values, each of them shortened."""
    if isinstance(value, Mapping):
        items = (
            f"{shortened(key, depth)}: {shortened(one, depth)}"
            for key, one in value.items()
        )
        return f"{{{', '.join(items)}}}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = zip(value._fields, value, strict=True)
        items = (f"{name}={shortened(one, depth)}" for name, one in pairs)
        return f"{type(value).__name__}({', '.join(items)})"
    items = (shortened(one, depth) for one in value)
    if isinstance(value, tuple):
        return f"({', '.join(items)}{',' if len(value) == 1 else ''})"
    opening, closing = ("{", "}") if isinstance(value, Set) else ("[", "]")
    return f"{opening}{', '.join(items)}{closing}"


def has_packages(*names: str) -> bool:
    """Return whether packages that extras of nestsim bring can be imported."""
    # A name that stands for nothing in `sys.modules` counts as not installed.
    return all(
        sys.modules[name] is not None if name in sys.modules else find_spec(name)
        for name in names
    )


def import_extra(name: str, extra: str, *, where: str = "") -> ModuleType:
    """Return a package that an extra of nestsim brings.

    Parameters
    ----------
    name
        Of the package.
    extra
        Extra of pyproject.toml that has it.
    where
        Setting that needs it.

    Raises
    ------
    InputError
        If it is not installed.
    """
    if not has_packages(name):
        raise InputError(
            f"{name} is not installed",
            where=where,
            expected=f"an installation with the extra {extra}",
            hint=f'pip install "nestsim[{extra}]"',
        )
    return import_module(name)
