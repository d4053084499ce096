"""Rows of results as pandas' tables: what figures, CSV and notebooks are made of.

pandas is imported where a table is made.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table."""
    import pandas as pd

    return pd.DataFrame.from_records([dict(row) for row in rows])


def csv_of(
    rows: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]],
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
