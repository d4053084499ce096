"""Records as JSON, CSV and pandas' tables: the same bytes every time.

A number that does not exist (infinite, not a number) is ``null`` in JSON, and nothing
in CSV. pandas is imported where a table is made.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_LINE_LENGTH = 100


def dump_json(data: object) -> str:
    r"""Write plain values as JSON text that ends in a newline.

    Keys keep their order, objects and lists that fit on a line of 100 characters take
    one, and long lists of numbers are filled line by line.

    Examples
    --------
    >>> dump_json({"devices": [0, 1], "lower_bound_s": float("inf")})
    '{"devices": [0, 1], "lower_bound_s": null}\n'
    """
    return _printable(_layout(plain_values(data), indent="")) + "\n"


def _printable(text: str) -> str:
    """Escape what a terminal would act upon instead of showing it.

    Only texts can hold any, since all else that JSON consists of is printable.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else json.dumps(letter)[1:-1]
        for letter in text
    )


def plain_values(value: Any) -> Any:
    """Return plain JSON values: no numpy, no tuples, no NaN or infinity."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain_values(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_values(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def plain_record(record: Mapping[str, object]) -> dict[str, object]:
    """Return a record as plain JSON values."""
    return {str(key): plain_values(value) for key, value in record.items()}


def _layout(value: Any, indent: str, used: int = 0) -> str:
    """Write one value; ``used`` characters of its first line are taken already."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if used + len(line) <= _LINE_LENGTH or not isinstance(value, dict | list):
        return line
    deeper = indent + "  "
    if isinstance(value, dict):
        keys = (f"{deeper}{json.dumps(key, ensure_ascii=False)}: " for key in value)
        items = (
            key + _layout(item, deeper, len(key) + 1)
            for key, item in zip(keys, value.values(), strict=True)
        )
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if any(isinstance(item, dict | list) for item in value):
        rows = (deeper + _layout(item, deeper, len(deeper) + 1) for item in value)
        body = ",\n".join(rows)
    else:
        body = _filled([json.dumps(item, ensure_ascii=False) for item in value], deeper)
    return f"[\n{body}\n{indent}]"


def _filled(items: list[str], indent: str) -> str:
    """Return items separated by commas, as many on a line as fit."""
    lines, line = [], indent + items[0]
    for item in items[1:]:
        if len(line) + len(item) + 3 > _LINE_LENGTH:
            lines.append(line + ",")
            line = indent + item
        else:
            line += ", " + item
    return "\n".join([*lines, line])


def frame_of(rows: Sequence[Mapping[str, object]]) -> "pd.DataFrame":
    """Return rows as a table."""
    import pandas as pd

    return pd.DataFrame.from_records([dict(row) for row in rows])


def csv_of(
    rows: Sequence[Mapping[str, object]] | Sequence[Sequence[Any]],
    columns: Sequence[str] | None = None,
) -> str:
    """Return rows as CSV (RFC 4180, but for its line ends).

    Numbers are written exactly, whole ones without a point; nothing stands where there
    is none, or is not a number.

    Parameters
    ----------
    rows
        Values by column; without names in the order of the columns.
    columns
        Names of the columns; None for those of the rows.
    """
    import pandas as pd

    if not rows and columns is None:
        return ""
    names = None if columns is None else list(columns)
    frame = pd.DataFrame(rows, columns=names, dtype=object)  # type: ignore[call-overload, unused-ignore]  # sequences of rows
    return frame.to_csv(index=False, lineterminator="\n")
