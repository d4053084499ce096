"""Read a file of measurements: one row for each measured configuration.

The columns are those of published collections; only few must be there, and which of
them are filled in decides what can be said about a row, and what has to be assumed. A
file is about time, memory or collectives, as its columns show. A row that is not
predicted has a reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from topologies.csv_file import csv_cells
from topologies.errors import InputError, Problems, readable
from topologies.input_file import read_text
from topologies.units import NUMBER_PATTERN

LONGEST = 1000
"""Characters of a reason or an assumption that are shown."""

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "missing-column": "a column that decides the result is empty",
        "missing-measurement": "the row states nothing that can be compared",
        "ambiguous-measurement": "it is not stated which FLOPs are counted",
        "unknown-accelerator": "the catalogue has no such device",
        "unknown-network": "the links are not stated in a form that can be read",
        "unknown-precision": "the number format is not known",
        "low-precision": "a number format that the accelerator has no rate for",
        "unknown-recompute": "what is recomputed is not one of the modelled modes",
        "unknown-sharding": "what is sharded is not one of the modelled ways",
        "uneven-plan": "stages with unlike parallel sizes or recompute",
        "fine-tuning": "adapters (LoRA) whose rank and targets are not stated",
        "unknown-model": "the architecture has parts that are not modelled",
        "contradiction": "columns contradict each other",
        "no-such-model": "the columns do not make an architecture",
        "no-such-cluster": "the columns do not make a cluster",
        "no-such-plan": "the planner cannot express the plan",
        "other-collective": "the operation is not one that is predicted",
        "other-bandwidth": "the bandwidth is not defined by time and size",
        "undocumented-ratio": "a ratio without the measurement behind it",
        "broken-cluster": "the source itself calls the cluster misconfigured",
        "imprecise-measurement": "printed with too few digits to compare",
        "other-metric": "the metric is not a size of memory",
        "other-place": "it is not stated in a known way which device was measured",
    }
)
"""Stable code -> what it means."""


class RowRefusedError(Exception):
    """A row that cannot be expressed, and why.

    Parameters
    ----------
    code
        A key of `REFUSALS`.
    reason
        One sentence about this row.
    """

    def __init__(self, code: str, reason: str) -> None:
        assert code in REFUSALS
        self.code, self.reason = code, readable(reason, LONGEST)
        super().__init__(self.reason)


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """Refuse the row, with this code, for what is wrong with its values."""
    try:
        yield
    except InputError as error:
        raise RowRefusedError(code, error.one_line()) from None


MAX_FILE = 16_000_000
"""A longer file is no table of measurements [byte]."""

MAX_COLUMNS = 500
"""Columns of a file at most."""

MAX_CELL = 10_000
"""Characters of one value."""

_EXPECTED = "a table of measurements in CSV"
"""Description of a file of measurements in messages."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that no text has, but for tabs and ends of lines."""

_NUMBER = re.compile(NUMBER_PATTERN, re.ASCII)
_LEAST, _MOST = 1e-15, 1e15
"""Bounds of a positive number."""

MEMORY_COLUMNS = ("metric", "value_gib")
"""What only files about memory have."""

TIME_COLUMNS = (
    "iter_time_s",
    "iter_time_s_derived",
    "tokens_per_s_per_device",
    "samples_per_s",
    "tflops_per_device",
)
"""What says how long a step took; files about time have one of them at least."""

NEEDED_COLUMNS = (
    "row_id",
    "accelerator",
    "num_devices",
    "layers",
    "hidden",
    "heads",
    "seq_len",
    "global_batch",
    "micro_batch",
    "tp",
    "pp",
)
"""Every file has these; their values may be empty, and the row is refused then."""

WHOLE_COLUMNS = frozenset(
    {
        *NEEDED_COLUMNS[2:],
        "devices_per_node",
        "ffn",
        "kv_heads",
        "head_dim",
        "vocab",
        "num_experts",
        "moe_topk",
        "moe_ffn",
        "vpp",
        "dp",
        "cp",
        "ep",
        "num_ranks",
        "num_nodes",
    }
)
"""Columns of whole numbers, of at least 1."""

RUN_COLUMNS = (
    "moe_overlap",
    "moe_dispatcher",
    "cuda_graphs",
    "recompute_modules",
    "overlaps",
    "offload",
    "lora",
    "expandable_segments",
)
"""What ran beside sizes, in words; published recipes fill these in."""

UNEVEN_COLUMNS = frozenset({"tp", "dp", "micro_batch"})
"""May hold ``a/b`` where the stages of a pipeline differ."""

COLLECTIVE_COLUMNS = (
    "row_id",
    "accelerator",
    "collective",
    "num_ranks",
    "message_bytes",
)
"""What files about collectives have, and one of `COLLECTIVE_RESULTS`."""

COLLECTIVE_RESULTS = ("time_us", "busbw_GBps")
"""What says how long a collective took."""

NUMBER_COLUMNS = frozenset(
    {*TIME_COLUMNS, "accel_mem_gb", "value_gib", "message_bytes", "time_us"}
)
"""Positive numbers."""

BANDWIDTH_COLUMNS = frozenset({"algbw_GBps", "busbw_GBps"})
"""Numbers that may have been rounded to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured configuration, as it is written."""

    row_id: str
    """The file's name for it."""

    source: str
    """``source_key``: rows of one origin, whose errors are reported together."""

    values: Mapping[str, str]
    """Column -> text, blanks at the ends removed."""

    def words(self, column: str) -> str:
        """Return the text of a column; empty where the file has no such column."""
        return self.values.get(column, "")

    def number(self, column: str) -> float | None:
        """Return a number, None where it is not stated."""
        text = self.words(column)
        return float(text) if text else None

    def whole(self, column: str) -> int | None:
        """Return a whole number, None where it is not stated.

        Raises
        ------
        RowRefusedError
            If the stages of the pipeline differ in it.
        """
        text = self.words(column)
        if "/" in text:
            raise RowRefusedError(
                "uneven-plan", f"{column} differs between stages: {text}"
            )
        return int(float(text)) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """A file of measurements."""

    name: str
    """The file's, without its folder."""

    kind: str
    """``"throughput"``, ``"memory"`` or ``"collectives"``."""

    rows: tuple[Row, ...]
    """Rows in the order of the file."""


def read_measurements(path: Path) -> Measurements:
    """Read a file of measurements and check every number in it.

    Raises
    ------
    InputError
        If the file cannot be read, lacks a column, or holds what is not a number,
        with file, row and column in ``where``.
    """
    try:
        text = read_text(path, expected=_EXPECTED, most_bytes=MAX_FILE)
        header, lines = csv_cells(text, _EXPECTED)
        kind = _kind(header)
        problems, rows = Problems(), []
        for line, cells in lines:
            with problems.noted():
                rows.append(_row(header, line, cells, problems))
        with problems.noted():
            _check_names(rows)
        problems.refuse()
    except InputError as error:
        raise error.at(str(path), ": ") from None
    return Measurements(name=path.name, kind=kind, rows=tuple(rows))


def _kind(header: Sequence[str]) -> str:
    """Tell files about time, about memory and about collectives apart."""
    if len(header) > MAX_COLUMNS:
        raise InputError(
            "has too many columns",
            where="header",
            got=len(header),
            expected=f"at most {MAX_COLUMNS}",
        )
    for name in header:
        _check_text("header", name)
        if name and header.count(name) > 1:
            raise InputError(
                "two columns of one name",
                where="header",
                got=name,
                expected="another name for every column",
            )
    if "collective" in header:
        return _collectives(header)
    missing = [name for name in NEEDED_COLUMNS if name not in header]
    if missing:
        raise InputError(
            "columns are missing",
            where="header",
            expected=f"also {', '.join(missing)}",
            hint="a column may be empty, but has to be there",
        )
    if all(name in header for name in MEMORY_COLUMNS):
        return "memory"
    if any(name in header for name in TIME_COLUMNS):
        return "throughput"
    raise InputError(
        "nothing measured in it",
        where="header",
        expected=f"one of {', '.join(TIME_COLUMNS)}, or {' and '.join(MEMORY_COLUMNS)}",
    )


def _collectives(header: Sequence[str]) -> str:
    missing = [name for name in COLLECTIVE_COLUMNS if name not in header]
    if not any(name in header for name in COLLECTIVE_RESULTS):
        missing.append(" or ".join(COLLECTIVE_RESULTS))
    if missing:
        raise InputError(
            "columns are missing",
            where="header",
            expected=f"also {', '.join(missing)}",
            hint="a file with a column collective is about collectives",
        )
    return "collectives"


def _row(
    header: Sequence[str], line: int, cells: Sequence[str], problems: Problems
) -> Row:
    """Return a row; values that are none are noted."""
    if len(cells) != len(header):
        raise InputError(
            "another number of cells than the header has",
            where=f"line {line}",
            got=len(cells),
            expected=f"{len(header)} cells, one for each column",
        )
    values = {
        name: cell.strip() for name, cell in zip(header, cells, strict=True) if name
    }
    name = values["row_id"] or f"line {line}"
    for column, text in values.items():
        with problems.noted():
            _check_text(f"row {name}: column {column}", text)
            if text:
                _check_value(f"row {name}: column {column}", column, text)
    source = values.get("source_key") or "measurements"
    return Row(row_id=name, source=source, values=values)


def _check_text(where: str, text: str) -> None:
    """Refuse what reports cannot write out."""
    if len(text) > MAX_CELL or _CONTROL.search(text):
        raise InputError(
            "is not readable text",
            where=where,
            got=text,
            expected=f"at most {MAX_CELL:,} readable characters",
        )


def _check_value(where: str, column: str, text: str) -> None:
    """Refuse what is not a number where one is needed."""
    if column in WHOLE_COLUMNS:
        parts = text.split("/") if column in UNEVEN_COLUMNS else [text]
        if not all(_is_number(part, whole=True) for part in parts):
            expected = "a whole number such as 8, or nothing if it is not known"
            raise InputError(
                "no whole number", where=where, got=text, expected=expected
            )
    elif column in BANDWIDTH_COLUMNS:
        is_zero = _NUMBER.fullmatch(text) is not None and float(text) == 0
        if not (is_zero or _is_number(text, whole=False)):
            expected = "a bandwidth such as 3.25, or nothing if it is not known"
            raise InputError("no number", where=where, got=text, expected=expected)
    elif column in NUMBER_COLUMNS and not _is_number(text, whole=False):
        expected = "a positive number such as 3.25, or nothing if it is not known"
        raise InputError("no number", where=where, got=text, expected=expected)


def _is_number(text: str, *, whole: bool) -> bool:
    """Tell whether a text is a positive number that is measured somewhere."""
    if not _NUMBER.fullmatch(text):
        return False
    value = float(text)
    if whole:
        return 1 <= value < _MOST and value.is_integer()
    return _LEAST <= value <= 1 / _LEAST


def _check_names(rows: Sequence[Row]) -> None:
    seen: set[str] = set()
    for row in rows:
        if row.row_id in seen:
            raise InputError(
                "is used for two rows",
                where=f"row {row.row_id}: column row_id",
                expected="a name of its own for every row",
            )
        seen.add(row.row_id)
