"""CSV files that users wrote: a header, lines, and the place of each value in messages.

As spreadsheets and scripts write them (RFC 4180 [1]_): columns in any order, spaces
around names and values, empty lines anywhere, values left off at the end of a line.
What is quoted has to be quoted whole, so that a file that was cut off is refused.

References
----------
.. [1] Y. Shafranovich, "Common Format and MIME Type for Comma-Separated Values (CSV)
   Files", RFC 4180, 2005.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from topologies.errors import InputError


@dataclass(frozen=True, slots=True)
class CsvLine:
    """A line behind the header."""

    number: int
    """Number of the line in the file, from 1; the last one of several."""

    values: dict[str, str]
    """Column -> what the line has there, without spaces around; empty for nothing."""

    @property
    def where(self) -> str:
        """What messages call the line."""
        return f"line {self.number}"

    def place(self, column: str) -> str:
        """Return what messages call a value."""
        return f"{self.where}: {column}"


def csv_cells(
    text: str, expected: str
) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the header's names, and the number and the cells of each other line.

    Parameters
    ----------
    text
        What the file says; lines without a letter are left out.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is no CSV.
    """
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        return header, [(reader.line_num, cells) for cells in reader if any(cells)]
    except csv.Error as error:
        where = f"line {reader.line_num}"
        raise InputError(f"not CSV: {error}", where=where, expected=expected) from None


def csv_lines(text: str, columns: Sequence[str], expected: str) -> list[CsvLine]:
    """Return the lines of a file that has some columns, and maybe others.

    Parameters
    ----------
    text
        What the file says.
    columns
        Names that the header must have.
    expected
        What it should be, for messages.

    Raises
    ------
    InputError
        If it is no CSV, a column is missing or there twice, or a line has more values
        than there are columns.
    """
    header, lines = csv_cells(text, expected)
    got = ", ".join(header) or "none"
    if not {*columns} <= {*header}:
        raise InputError(
            "columns are missing", where="header", got=got, expected=expected
        )
    if any(header.count(name) > 1 for name in columns):
        raise InputError(
            "two columns of one name", where="header", got=got, expected=expected
        )
    known = []
    for number, cells in lines:
        if len(cells) > len(header):
            raise InputError(
                "has more values than there are columns",
                where=f"line {number}",
                got=f"{len(cells)} values",
                expected=f"at most {len(header)}",
            )
        values = dict.fromkeys(header, "")
        values |= zip(header, map(str.strip, cells), strict=False)
        known.append(CsvLine(number, values))
    return known
