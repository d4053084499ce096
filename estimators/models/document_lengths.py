"""How long documents are, as a histogram: distinct lengths, and how many have each.

A sample and a file of counts are one thing here: lengths that occur several times are
kept once, in order, with their count. All sums over them are of whole numbers, so that
a histogram gives the bytes that its sample gives.

A file is CSV with the columns ``length`` (tokens of a document) and ``count`` (how many
documents have so many), in any order; other columns are not read. A length may stand in
several lines, whose counts are added up, and a count may be 0.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from estimators.models.limits import MAX_SEQUENCE
from topologies.csv_file import CsvLine, csv_lines
from topologies.errors import InputError, located
from topologies.input_file import read_text

COLUMNS = ("length", "count")
"""Columns that a file has."""

MAX_FILE = 10_000_000
"""Longest file that is read [byte]."""

MOST_LENGTHS = 1 << 14
"""Most lengths of a file: what documents leave to attention takes time for each."""

MOST_DOCUMENTS = 10**12
"""Most documents of one length."""


def histogram(
    lengths: Sequence[int], counts: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return distinct lengths in order, and how many documents have each.

    Parameters
    ----------
    lengths
        Of documents; one may occur several times [tokens].
    counts
        How many documents there are of each of ``lengths``; empty for one of each.

    Raises
    ------
    InputError
        If there are not as many counts as lengths.
    """
    if counts and len(counts) != len(lengths):
        raise InputError(
            "are not as many as lengths",
            where="document_length_counts",
            got=f"{len(counts):,} counts",
            expected=f"{len(lengths):,}, or none to count each length once",
        )
    total = Counter[int]()
    for length, count in zip(lengths, counts or [1] * len(lengths), strict=True):
        total[length] += count
    ordered = sorted(length for length in total if total[length])
    return tuple(ordered), tuple(total[length] for length in ordered)


def counted_lengths(
    file: str | None, samples: tuple[int, ...], folder: Path
) -> dict[str, tuple[int, ...]]:
    """Return what a file of lengths says of an architecture; nothing without a file.

    Parameters
    ----------
    file, folder
        Name of the file, and the folder where it starts.
    samples
        Lengths that are given beside it.

    Raises
    ------
    InputError
        If there are both, or the file is none of lengths.
    """
    if file is None:
        return {}
    if samples:
        raise InputError(
            "is a file of what document_length_samples says, too",
            where="document_lengths",
            got=file,
            expected="one of the two",
        )
    with located("document_lengths", ": "):
        lengths, counts = read_lengths(folder / file)
    return {"document_length_samples": lengths, "document_length_counts": counts}


def read_lengths(
    path: Path, column: str = COLUMNS[0], least: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of a file, and how many documents have each.

    Parameters
    ----------
    path
        The file.
    column, least
        Column of the lengths, and the shortest; what is counted may be something else.

    Raises
    ------
    InputError
        If it is no such file, or has too many lengths or none. The message names file
        and line.
    """
    expected = f"CSV with the columns {column} and count"
    with located(str(path), ": "):
        text = read_text(path, expected=expected, most_bytes=MAX_FILE)
        lines = csv_lines(text, (column, COLUMNS[1]), expected)
        lengths, counts = histogram(
            [_whole(line, column, least, MAX_SEQUENCE) for line in lines],
            [_whole(line, COLUMNS[1], 0, MOST_DOCUMENTS) for line in lines],
        )
        if not lengths:
            raise InputError(
                "counts nothing",
                where=COLUMNS[1],
                got="0 in all lines",
                expected="at least 1 in one of them",
            )
        if len(lengths) > MOST_LENGTHS:
            raise InputError(
                "has too many lengths",
                where=column,
                got=f"{len(lengths):,} lengths",
                expected=f"at most {MOST_LENGTHS:,}",
                hint="round them, for example lengths to multiples of 16 tokens",
            )
    return lengths, counts


def _whole(line: CsvLine, column: str, least: int, most: int) -> int:
    digits = line.values[column]
    is_whole = digits.isascii() and digits.isdigit() and len(digits) <= len(str(most))
    if not is_whole or not least <= int(digits) <= most:
        raise InputError(
            "is not possible",
            where=line.place(column),
            got=digits or "nothing",
            expected=f"a whole number from {least} to {most:,}",
        )
    return int(digits)
