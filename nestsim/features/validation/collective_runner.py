"""Validate a file of collectives: predict every row that can be, curve by curve.

A curve is the time over message size of one operation on one group of devices. Sizes
of a curve are not independent, and curves have unlike numbers of them, so the headline
is the median over curves of the median error of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nestsim.features.validation.collective_rows import (
    CollectiveCase,
    predicted_time,
    read_collective,
)
from nestsim.features.validation.metrics import Errors, errors_of, grouped
from nestsim.features.validation.rows.columns import Measurements, Row, RowRefusedError
from planner.work import Progress
from topologies.errors import short_repr


class Curve(NamedTuple):
    """What the points of a curve have in common."""

    source: str
    """Source of the measurements."""

    accelerator: str
    """Name of the device."""

    link: str
    """Links as the rows describe them."""

    operation: str
    """Operation that was measured."""

    num_ranks: int
    """Devices that take part."""

    num_nodes: int
    """Nodes that the devices are in."""

    def label(self) -> str:
        """Return a short name of a curve."""
        nodes = f" in {self.num_nodes} nodes" if self.num_nodes > 1 else ""
        return f"{self.source}: {self.operation}, {self.num_ranks} ranks{nodes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveResult:
    """What became of one row."""

    row: Row
    """Row as it was written."""

    code: str = ""
    """Why it was refused, a key of `validation.rows.columns.REFUSALS`; empty if
    it was predicted."""

    reason: str = ""
    """Why it was refused, in a sentence."""

    case: CollectiveCase | None = None
    """What was predicted; None if it was refused."""

    predicted: float = math.nan
    """Predicted time [s]."""

    __repr__ = short_repr

    @property
    def measured(self) -> float:
        """Of the row [s]; NaN if it was refused."""
        return math.nan if self.case is None else self.case.measured

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return (self.predicted - self.measured) / self.measured

    @property
    def curve(self) -> Curve:
        """The curve that the row is a point of."""
        assert self.case is not None
        return curve_of(self.row, self.case)


def curve_of(row: Row, case: CollectiveCase) -> Curve:
    """Return the curve that a row is a point of."""
    return Curve(
        row.source,
        row.words("accelerator"),
        row.words("link"),
        case.operation,
        case.num_ranks,
        row.whole("num_nodes") or 1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesValidation:
    """What became of a file of collectives."""

    name: str
    """The file's."""

    kind: str = "collectives"
    """Always that."""

    rows: tuple[CollectiveResult, ...]
    """One for each row, in the order of the file."""

    __repr__ = short_repr

    @property
    def scored(self) -> tuple[CollectiveResult, ...]:
        """Rows that were predicted."""
        return tuple(row for row in self.rows if not row.code)

    @property
    def refused(self) -> tuple[CollectiveResult, ...]:
        """Rows that could not be."""
        return tuple(row for row in self.rows if row.code)

    def curves(self) -> dict[Curve, list[CollectiveResult]]:
        """Return the scored rows of each curve, smallest message first."""
        by_curve = grouped((row.curve, row) for row in self.scored)
        return {curve: sorted(rows, key=_size) for curve, rows in by_curve.items()}

    def errors(self) -> Errors:
        """Return the errors of all scored rows."""
        return _errors(self.scored)

    def errors_by(self, column: str) -> dict[str, Errors]:
        """Return the errors of scored rows that agree in a column."""
        keyed = (
            (r.row.source if column == "source_key" else r.row.words(column), r)
            for r in self.scored
        )
        return {key: _errors(rows) for key, rows in grouped(keyed).items()}

    def errors_by_family(self) -> dict[str, Errors]:
        """Return the errors of all scored rows of one family of accelerators."""
        keyed = ((family(row), row) for row in self.scored)
        return {key: _errors(rows) for key, rows in grouped(keyed).items()}

    def errors_by_curve(self) -> dict[Curve, Errors]:
        """Return the errors of each curve."""
        return {curve: _errors(rows) for curve, rows in self.curves().items()}

    def median_of_curves(self) -> float:
        """Return the median over curves of each one's median error; NaN if none."""
        medians = [errors.median_ape for errors in self.errors_by_curve().values()]
        return float(np.median(medians)) if medians else math.nan


def family(row: CollectiveResult) -> str:
    """Return the accelerator without its variant, as the links know it."""
    assert row.case is not None
    return row.case.device


def _size(row: CollectiveResult) -> float:
    assert row.case is not None
    return row.case.num_bytes


def _errors(rows: Sequence[CollectiveResult]) -> Errors:
    return errors_of([row.measured for row in rows], [row.predicted for row in rows])


def validate_collectives(
    measurements: Measurements, *, progress: Progress | None = None
) -> CollectivesValidation:
    """Predict every row of a file that can be expressed.

    Parameters
    ----------
    measurements
        What `nestsim.features.validation.rows.columns.read_measurements` read.
    progress
        Called with every row.
    """
    results = []
    for index, row in enumerate(measurements.rows):
        if progress is not None:
            done = index / len(measurements.rows)
            progress(f"row {index + 1:,} of {len(measurements.rows):,}", done)
        results.append(_result(row))
    return CollectivesValidation(name=measurements.name, rows=tuple(results))


def _result(row: Row) -> CollectiveResult:
    try:
        case = read_collective(row)
    except RowRefusedError as refusal:
        return CollectiveResult(row=row, code=refusal.code, reason=refusal.reason)
    return CollectiveResult(row=row, case=case, predicted=predicted_time(case))
