"""Read a JSON file of limited length, or say in one clause why it is none."""

import json
from pathlib import Path
from typing import Any, NoReturn

from topologies.errors import InputError


def read_json(
    path: Path, *, expected: str, most_bytes: int, whole_numbers: bool = False
) -> Any:
    """Return what a file holds, as plain values.

    Parameters
    ----------
    path
        The file; UTF-8, with or without a byte order mark.
    expected
        What the file should be, for messages.
    most_bytes
        A longer file is refused [byte].
    whole_numbers
        Refuse numbers with a fraction or an exponent.

    Raises
    ------
    InputError
        If the file cannot be read or is not JSON. The message does not name the file.
    """
    return _parsed(_content(path, expected, most_bytes), whole_numbers=whole_numbers)


def _content(path: Path, expected: str, most_bytes: int) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except IsADirectoryError:
        raise InputError("is a folder, not a file", expected=expected) from None
    except FileNotFoundError:
        raise InputError("no such file", expected=expected) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read: {reason}", expected=expected) from None
    if len(content) > most_bytes:
        raise InputError(f"is longer than {most_bytes} bytes", expected=expected)
    return content


def _parsed(content: bytes, *, whole_numbers: bool) -> Any:
    parse_float = _refuse_fraction if whole_numbers else None
    try:
        return json.loads(
            content.decode("utf-8-sig"),
            parse_float=parse_float,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", expected="JSON in UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"not JSON: {error.msg} at {where}", expected="JSON") from None
    except RecursionError:
        raise InputError("not JSON: nested too deeply", expected="JSON") from None
    except InputError:
        raise
    except ValueError:  # Python's limit on the digits of a number
        raise InputError("not JSON: a number is too long", expected="JSON") from None


def _refuse_constant(constant: str) -> NoReturn:
    raise InputError("not JSON: a number is not finite", got=constant, expected="JSON")


def _refuse_fraction(number: str) -> NoReturn:
    raise InputError("must be a whole number", got=number[:40], expected="8, not 8.0")
