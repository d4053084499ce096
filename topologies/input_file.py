"""Read the files that people hand in: regular ones, of bounded size, text in UTF-8.

Every reader of the project begins here, so that a device, a pipe without a writer, a
link to itself, a file of gigabytes, or values nested 100,000 deep end in a sentence:
nothing blocks, and nothing is taken into memory that is longer than the file may be.

What a JSON file says is read value by value (`Value`), with the place in every error.

Read YAML that people hand in: no tags, no references, no deep nesting.
"""

import codecs
import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import tomli

from topologies.errors import InputError

MAX_DEPTH = 64
"""Most lists and tables inside each other."""

MAX_DIGITS = 300
"""Most digits of a whole number that can be calculated with."""

_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)

_KINDS = (
    (stat.S_ISDIR, "is a folder, not a file"),
    (stat.S_ISFIFO, "is a pipe, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)

_FAILURES = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "is a folder, not a file",
    errno.ELOOP: "is a link that leads to itself",
    errno.ENXIO: "is a socket, not a file",
    errno.ENAMETOOLONG: "has too long a name for a file",
}


class UnreadableFile(NamedTuple):
    """Why a file cannot be read."""

    found: str
    """What `file_problem` says, empty if it finds a regular file."""

    problem: str
    """What `read_file` says."""


CarriedFile = bytes | UnreadableFile
"""What a file holds, or why it cannot be read."""

_NO_NAME = "has a name that no file has"


class _Carried(NamedTuple):
    """Files by name, on a machine that does not have them."""

    files: Mapping[str, CarriedFile]

    alone: bool
    """Whether no other file may be read."""


_NOTHING = _Carried({}, alone=False)
_CARRIED: ContextVar[_Carried] = ContextVar("_CARRIED", default=_NOTHING)

_NOT_CARRIED = UnreadableFile("no such file", "no such file")

_MOST_CARRIED = 1 << 28
"""A longer file is not carried: none that is read here is so long [byte]."""


def files_to_carry(paths: Iterable[Path]) -> dict[str, CarriedFile]:
    """Return files by all names under which another machine may read them.

    Whoever reads there what cannot be read here is told the same as here.
    """
    files: dict[str, CarriedFile] = {}
    for path in dict.fromkeys(paths):
        content: CarriedFile
        try:
            content = read_file(path, expected="a file", most_bytes=_MOST_CARRIED)
        except InputError as error:
            content = UnreadableFile(file_problem(path), error.problem)
        files[str(path)] = files[_real_name(path)] = content
    return files


@contextmanager
def carried_files(
    files: Mapping[str, CarriedFile], *, alone: bool = False
) -> Iterator[None]:
    """Read what files held elsewhere instead of what is there under their names.

    Parameters
    ----------
    files
        What files hold, by name.
    alone
        Read no other file, and run none: who asks is not who owns this machine. A
        block inside cannot lift it.
    """
    outer = _CARRIED.get()
    inner = {_real_name(name): files[name] for name in files}
    held = outer.files if outer.alone else {}
    token = _CARRIED.set(_Carried({**held, **inner}, alone or outer.alone))
    try:
        yield
    finally:
        _CARRIED.reset(token)


def is_trusted() -> bool:
    """Return whether files of this machine may be read, and code of users run."""
    return not _CARRIED.get().alone


def _carried(path: Path) -> CarriedFile | None:
    """Return a file that is carried; None if it is not."""
    files, alone = _CARRIED.get()
    if not files and not alone:
        return None
    return files.get(_real_name(path), _NOT_CARRIED if alone else None)


def _real_name(path: Path | str) -> str:
    """Return where a path leads to; the path itself if its name is none."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a null character in the name
        return str(path)


def read_file(path: Path, *, expected: str, most_bytes: int) -> bytes:
    """Return what a regular file holds.

    Parameters
    ----------
    path
        The file.
    expected
        What the file should be, for messages.
    most_bytes
        A longer file is refused [byte].

    Raises
    ------
    InputError
        If there is no such file, it is not a regular one, cannot be read, or is too
        long. The message does not name the file.
    """
    carried = _carried(path)
    if isinstance(carried, UnreadableFile):
        raise InputError(carried.problem, expected=expected)
    if carried is not None:
        _check_length(len(carried), most_bytes, expected)
        return carried
    try:
        stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except OSError as error:
        raise InputError(read_failure(error), expected=expected) from None
    except ValueError:  # a null character in the name
        raise InputError(_NO_NAME, expected=expected) from None
    with stream:
        status = os.fstat(stream.fileno())
        problem = kind_problem(status.st_mode)
        if problem:
            raise InputError(problem, expected=expected)
        _check_length(status.st_size, most_bytes, expected)
        try:
            content = stream.read(most_bytes + 1)
        except OSError as error:
            raise InputError(read_failure(error), expected=expected) from None
    # A file may grow while it is read, and those of the kernel have no length.
    _check_length(len(content), most_bytes, expected)
    return content


def read_text(path: Path, *, expected: str, most_bytes: int) -> str:
    """Return a file's text; UTF-8, with or without a byte order mark.

    See `read_file`.
    """
    content = read_file(path, expected=expected, most_bytes=most_bytes)
    return decode(content)


def read_json(
    path: Path,
    *,
    expected: str,
    most_bytes: int,
    whole_numbers: bool = False,
    infinities: bool = False,
) -> Any:
    """Return what a JSON file holds, as plain values.

    Parameters
    ----------
    path
        The file.
    expected
        What the file should be, for messages.
    most_bytes
        A longer file is refused [byte].
    whole_numbers
        Refuse numbers with a fraction or an exponent.
    infinities
        Read ``Infinity``, which JSON does not have but Python writes, as null.

    Raises
    ------
    InputError
        As `read_file` does, or if it is not JSON: syntax, encoding, a number that is
        not finite, an object with a key twice, or values nested too deeply.
    """
    text = read_text(path, expected=expected, most_bytes=most_bytes)
    return parse_json(
        text, expected=expected, whole_numbers=whole_numbers, infinities=infinities
    )


def parse_json(
    text: str, *, expected: str, whole_numbers: bool = False, infinities: bool = False
) -> Any:
    """Return what a JSON text holds, as plain values; see `read_json`."""
    try:
        value = json.loads(
            text,
            parse_int=_whole,
            parse_float=_refuse_fraction if whole_numbers else _finite,
            parse_constant=_null_if_infinite if infinities else _refuse_constant,
            object_pairs_hook=_table,
        )
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(
            f"not JSON: {error.msg} at {where}", expected=expected
        ) from None
    except RecursionError:
        raise _too_deep("JSON") from None
    check_depth(value, "JSON")
    return value


def file_in(path: Path, name: str) -> Path:
    """Return the file of a name in a folder; the path itself if it is no folder."""
    try:
        return path / name if path.is_dir() else path
    except OSError:  # as of a name that is too long: whoever reads it says so
        return path


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return what a TOML document says, as plain values.

    Raises
    ------
    InputError
        If it is not TOML, or values are nested too deeply. The message does not name
        the file.
    """
    expected = "TOML, see https://toml.io"
    text = decode(content)
    try:
        document = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        raise InputError(f"not TOML: {error}", expected=expected) from None
    except RecursionError:
        raise _too_deep("TOML") from None
    except ValueError:  # Python's limit on the digits of a number
        raise InputError("not TOML: a number is too long", expected=expected) from None
    check_depth(document, "TOML")
    return document


def decode(content: bytes) -> str:
    """Return bytes as text; UTF-8, with or without a byte order mark.

    Raises
    ------
    InputError
        If they are in another encoding, with the line.
    """
    for mark, encoding in _OTHER_ENCODINGS:
        if content.startswith(mark):
            raise InputError(
                f"is encoded in {encoding}",
                expected="UTF-8",
                hint="save the file as UTF-8",
            )
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8 text (line {line})",
            got=content[error.start : error.start + 1],
            expected="UTF-8",
            hint="save the file as UTF-8",
        ) from None


def check_depth(value: object, language: str) -> None:
    """Refuse values nested so deeply that whoever walks through them cannot."""
    layer: list[object] = [value]
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            for inner in _members(outer)
            if isinstance(inner, list | dict)
        ]
        if not layer:
            return
    raise _too_deep(language)


def _members(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file as `open` does; it would wait for somebody to write into a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def file_problem(path: Path) -> str:
    """Say why there is no regular file at a path, empty if there is one."""
    carried = _carried(path)
    if carried is not None:
        return carried.found if isinstance(carried, UnreadableFile) else ""
    try:
        return kind_problem(path.stat().st_mode)
    except OSError as error:
        return read_failure(error)
    except ValueError:  # a null character in the name
        return _NO_NAME


def kind_problem(mode: int) -> str:
    """Say what a file of this mode is, empty if it is a regular one."""
    if stat.S_ISREG(mode):
        return ""
    named = (problem for is_kind, problem in _KINDS if is_kind(mode))
    return next(named, "is not a regular file")


def read_failure(error: OSError) -> str:
    """Say why a file cannot be read."""
    if error.errno in _FAILURES:
        return _FAILURES[error.errno]
    return f"cannot be read: {error.strerror or error}"


def _check_length(length: int, most_bytes: int, expected: str) -> None:
    if length > most_bytes:
        raise InputError(
            "is too long",
            got=f"{length:,} bytes" if length > most_bytes + 1 else None,
            expected=f"{expected}, of at most {most_bytes:,} bytes",
        )


def _too_deep(language: str) -> InputError:
    return InputError(
        f"not {language}: nested too deeply",
        expected=f"at most {MAX_DEPTH} lists and tables inside each other",
    )


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, each key once: of two values nobody can tell which is meant."""
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise InputError(
                "not JSON: a key is there twice",
                got=key,
                expected="every key of an object once",
            )
        seen.add(key)
    raise AssertionError("of so many pairs, two have the same key")


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(
            "not JSON: a number is too long",
            got=digits,
            expected=f"numbers of at most {MAX_DIGITS} digits",
        )
    return int(digits)


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise InputError(
            "not JSON: a number is too large",
            got=number,
            expected="numbers below 1e308",
        )
    return value


def _refuse_constant(constant: str) -> NoReturn:
    raise InputError(
        "not JSON: a number is not finite",
        got=constant,
        expected="finite numbers, as JSON has",
    )


def _null_if_infinite(constant: str) -> None:
    if constant == "NaN":
        _refuse_constant(constant)


def _refuse_fraction(number: str) -> NoReturn:
    raise InputError(
        "must be a whole number", got=number, expected="whole numbers: 8, not 8.0"
    )


_LARGEST = 1e30
"""What the published NEST artifact takes for infinity; no size or time is larger."""

_LONGEST_TEXT = 200


class Value:
    """One value of a file and where it stands.

    Parameters
    ----------
    raw
        As the JSON parser gave it.
    where
        Dotted path of keys, e.g. ``nodes.4[0].parameterSize``.
    """

    def __init__(self, raw: Any, where: str = "") -> None:
        self.raw, self.where = raw, where

    def __getitem__(self, key: str) -> "Value":
        """Return the value of a key that must be there."""
        table = self.table()
        if key not in table:
            raise InputError(
                "key is missing",
                where=self._inner(key),
                expected=f'an object with "{key}"',
            )
        return Value(table[key], self._inner(key))

    def get(self, key: str, default: Any) -> "Value":
        """Return the value of a key, or the default if it is not there."""
        return Value(self.table().get(key, default), self._inner(key))

    def items(self) -> Iterator[tuple[str, "Value"]]:
        """Yield keys and values of an object."""
        for key, raw in self.table().items():
            yield key, Value(raw, self._inner(key))

    def table(self) -> dict[str, Any]:
        """Return an object's raw values by key."""
        if not isinstance(self.raw, dict):
            raise self.error("has the wrong type", "an object")
        return self.raw

    def array(self, *, least: int = 0, most: int | None = None) -> list["Value"]:
        """Return the values of an array of at least and at most so many."""
        if not isinstance(self.raw, list):
            raise self.error("has the wrong type", "an array")
        if len(self.raw) < least:
            raise self.error("is too short", f"an array of at least {least}")
        if most is not None and len(self.raw) > most:
            raise self.error("is too long", f"an array of at most {most:,}")
        return [Value(raw, f"{self.where}[{i}]") for i, raw in enumerate(self.raw)]

    def number(self, *, least: float = 0.0) -> float:
        """Return a finite number that is not below ``least``."""
        raw = self.raw
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise self.error("has the wrong type", "a number")
        if not least <= raw <= _LARGEST:  # also NaN
            expected = f"a number from {least:g} to {_LARGEST:g}"
            raise self.error("is out of range", expected)
        return float(raw)

    def whole(self, *, least: int, most: int) -> int:
        """Return a whole number in a range; 8.0 counts as 8."""
        raw = self.raw
        expected = f"a whole number from {least} to {most}"
        if isinstance(raw, float) and raw.is_integer():
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise self.error("has the wrong type", expected)
        if not least <= raw <= most:
            raise self.error("is out of range", expected)
        return raw

    def text(self) -> str:
        """Return one line of readable text that is not empty, nor very long."""
        raw = self.raw
        if not isinstance(raw, str):
            raise self.error("has the wrong type", "a text in quotes")
        if not raw.strip() or not raw.isprintable() or len(raw) > _LONGEST_TEXT:
            expected = f"one line of at most {_LONGEST_TEXT} readable characters"
            raise self.error("is not readable text", expected)
        return raw

    def flag(self) -> bool:
        """Return true or false."""
        if not isinstance(self.raw, bool):
            raise self.error("has the wrong type", "true or false")
        return self.raw

    def choice(self, choices: Sequence[str]) -> str:
        """Return one of some texts."""
        if self.raw not in choices or not isinstance(self.raw, str):
            words = " or ".join(f'"{choice}"' for choice in choices)
            raise self.error("is not one of the known values", words)
        return self.raw

    def each(
        self,
        read: Callable[["Value"], Any],
        *,
        least: int = 0,
        most: int | None = None,
    ) -> tuple[Any, ...]:
        """Return what ``read`` makes of each value of an array."""
        return tuple(read(value) for value in self.array(least=least, most=most))

    def error(self, problem: str, expected: str) -> InputError:
        """Return an error about this value."""
        return InputError(problem, where=self.where, got=self.raw, expected=expected)

    def _inner(self, key: str) -> str:
        name = key if key.isprintable() and key else repr(key)
        return f"{self.where}.{name}" if self.where else name


def parse_yaml(text: str, *, expected: str) -> Any:
    """Return what a YAML text says, as plain values.

    References between values are refused: a few lines of them stand for gigabytes.

    Parameters
    ----------
    text
        The text.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is not such YAML. The message does not name the file.
    """
    import yaml

    try:
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        depth = 0
        for event in events:
            if isinstance(event, yaml.AliasEvent):
                raise InputError(
                    "has references (&, *) between its values", expected=expected
                )
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(
                    f"is nested more than {MAX_DEPTH} deep", expected=expected
                )
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise InputError(f"is not YAML{line}", expected=expected) from None
    except InputError:
        raise
    except (ValueError, OverflowError):
        raise InputError("has a value that cannot be read", expected=expected) from None
