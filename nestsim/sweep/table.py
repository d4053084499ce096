"""The points of a sweep as a table: the same bytes however it came about.

One line for each point, in their order: its number, its settings, ``state`` (``done``
or ``failed``), why it failed, and its results. Lists and tables are written as JSON.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nestsim.sweep.points import Outcome, plain_json

if TYPE_CHECKING:
    import pandas as pd


def columns_of(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """Return the columns of the table, None where a point has no such value."""
    settings = _names(one.point for one in outcomes)
    results = _names(one.row or {} for one in outcomes)
    columns: dict[str, list[Any]] = {
        "number": [one.number for one in outcomes],
        **{name: [_cell(one.point, name) for one in outcomes] for name in settings},
        "state": ["failed" if one.row is None else "done" for one in outcomes],
        "failure": [one.reason or None for one in outcomes],
    }
    for name in results:
        column = f"result.{name}" if name in columns else name
        columns[column] = [_cell(one.row or {}, name) for one in outcomes]
    return columns


def csv_text(outcomes: Sequence[Outcome]) -> str:
    """Return the table as CSV (RFC 4180, but for its line ends), numbers exactly."""
    return _frame(outcomes).to_csv(index=False, lineterminator="\n")


def write_csv(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table as CSV."""
    path.write_text(csv_text(outcomes), encoding="utf-8")


def write_parquet(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table as Parquet."""
    _frame(outcomes).to_parquet(path, engine="pyarrow", index=False)


def _frame(outcomes: Sequence[Outcome]) -> "pd.DataFrame":
    import pandas as pd

    columns = {name: _typed(cells) for name, cells in columns_of(outcomes).items()}
    return pd.DataFrame(columns)


def _typed(cells: Sequence[Any]) -> "pd.Series[Any]":
    """Return a column of one type; text where the values have several."""
    import pandas as pd

    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        cells = [cell if cell is None else _text(cell) for cell in cells]
    names: Mapping[type, str] = {int: "Int64", float: "Float64", bool: "boolean"}
    dtype = names.get(next(iter(kinds)), "string") if len(kinds) == 1 else "string"
    return pd.Series(cells, dtype=dtype)


def _names(rows: Any) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    return plain_json(value) if isinstance(value, list | dict) else value


def _text(cell: Any) -> str:
    return cell if isinstance(cell, str) else plain_json(cell)
