"""Validate a file of measurements: predict every row that can be expressed."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from nestsim.validation.columns import Measurements, Row
from nestsim.validation.measured import (
    Measured,
    measured_memory,
    measured_time,
    memory_parts,
)
from nestsim.validation.metrics import (
    Errors,
    Ranking,
    errors_of,
    grouped,
    ranking_of,
)
from nestsim.validation.predict import Predictor, StageMemory
from nestsim.validation.refusals import RowRefusedError
from nestsim.validation.row_plan import Case, read_case
from planner.progress import Progress

GROUP_COLUMNS = (
    "source_key",
    "accelerator",
    "num_devices",
    "model",
    "layers",
    "hidden",
    "heads",
    "seq_len",
    "global_batch",
    "metric",
    "where",
)
"""Rows that agree in all of these are different plans for the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What became of one row."""

    row: Row
    """As it was written."""

    code: str = ""
    """Why it was refused, a key of `nestsim.validation.refusals.REFUSALS`; empty if
    it was predicted."""

    reason: str = ""
    """Why it was refused, in a sentence."""

    basis: str = ""
    """The column, or the metric, that `measured` is from."""

    measured: float = math.nan
    """Time of a step [s] or memory [byte]; NaN for a run that ran out of memory."""

    predicted: float = math.nan
    """Likewise, by the replay."""

    planned: float = math.nan
    """Time of a step by the planner's closed form [s]; NaN for memory."""

    device_memory: float = math.nan
    """Of the device [byte]."""

    preset: str = ""
    """Name of the framework's preset."""

    assumed: tuple[str, ...] = ()
    """What the row does not say."""

    @property
    def is_scored(self) -> bool:
        """Whether there is an error to count."""
        return not self.code and not math.isnan(self.measured)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the measured run did, and was predicted."""
        return not self.code and math.isnan(self.measured)

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What became of a file of measurements."""

    name: str
    """The file's."""

    kind: str
    """``"throughput"`` or ``"memory"``."""

    rows: tuple[RowResult, ...]
    """One for each row, in the order of the file."""

    @property
    def scored(self) -> tuple[RowResult, ...]:
        """Rows with an error."""
        return tuple(row for row in self.rows if row.is_scored)

    @property
    def refused(self) -> tuple[RowResult, ...]:
        """Rows that could not be expressed."""
        return tuple(row for row in self.rows if row.code)

    def errors(self) -> Errors:
        """Return the errors of all scored rows."""
        return _errors(self.scored)

    def errors_by(self, column: str) -> dict[str, Errors]:
        """Return the errors of scored rows that agree in a column."""
        keyed = ((_key(row, column), row) for row in self.scored)
        return {key: _errors(tuple(rows)) for key, rows in grouped(keyed).items()}

    def ranking(self) -> Ranking:
        """Return how well different plans for the same job are put in order."""
        return _ranking(self.scored)

    def ranking_by(self, column: str) -> dict[str, Ranking]:
        """Return the same for rows that agree in a column."""
        keyed = ((_key(row, column), row) for row in self.scored)
        return {key: _ranking(tuple(rows)) for key, rows in grouped(keyed).items()}


def _key(row: RowResult, column: str) -> str:
    return row.row.source if column == "source_key" else row.row.words(column)


def _errors(rows: tuple[RowResult, ...]) -> Errors:
    return errors_of([row.measured for row in rows], [row.predicted for row in rows])


def _ranking(rows: tuple[RowResult, ...]) -> Ranking:
    keyed = ((tuple(_key(row, name) for name in GROUP_COLUMNS), row) for row in rows)
    return ranking_of(
        ([row.measured for row in own], [row.predicted for row in own])
        for own in grouped(keyed).values()
    )


def validate(
    measurements: Measurements, *, progress: Progress | None = None
) -> ValidationResult:
    """Predict every row of a file that can be expressed.

    Parameters
    ----------
    measurements
        What `nestsim.validation.columns.read_measurements` read.
    progress
        Told about every row.
    """
    predictor = Predictor()
    score = _score_time if measurements.kind == "throughput" else _score_memory
    results = []
    for index, row in enumerate(measurements.rows):
        if progress is not None:
            done = index / len(measurements.rows)
            progress(f"row {index + 1:,} of {len(measurements.rows):,}", done)
        results.append(_result(predictor, row, score))
    return ValidationResult(
        name=measurements.name, kind=measurements.kind, rows=tuple(results)
    )


Score = Callable[[Predictor, Case], tuple[Measured, float, float]]
"""Measured value, predicted one, planned time."""


def _result(predictor: Predictor, row: Row, score: Score) -> RowResult:
    try:
        case = read_case(row)
        measured, predicted, planned = score(predictor, case)
    except RowRefusedError as refusal:
        return RowResult(row=row, code=refusal.code, reason=refusal.reason)
    return RowResult(
        row=row,
        basis=measured.basis,
        measured=measured.value,
        predicted=predicted,
        planned=planned,
        device_memory=case.accelerator.memory_bytes,
        preset=case.preset,
        assumed=case.assumed,
    )


def _score_time(predictor: Predictor, case: Case) -> tuple[Measured, float, float]:
    measured = measured_time(case, predictor.graph(case))
    predicted = predictor.predict(case)
    return measured, predicted.iteration_time, predicted.planned_time


def _score_memory(predictor: Predictor, case: Case) -> tuple[Measured, float, float]:
    measured = measured_memory(case)
    parts = memory_parts(case.row.words("metric"))
    pp = case.plan.pipeline_model_parallel_size
    place = _place(case.row.words("where"), pp)
    stages = predictor.predict(case, memory=True).memory
    if place is not None:
        stages = stages[place : place + 1]
    return measured, max(_held(stage, parts) for stage in stages), math.nan


def _held(stage: StageMemory, parts: tuple[str, ...]) -> float:
    """Return what a device holds of some parts; of all, at the peak, if of none."""
    if not parts:
        return stage.peak
    return sum(float(getattr(stage, part)) for part in parts)


def _place(where: str, num_stages: int) -> int | None:
    """Return the stage that was measured; None for whichever holds most."""
    written = where.lower()
    number = re.match(r"stage (\d+)\b", written)
    if number is not None:
        if int(number[1]) < num_stages:
            return int(number[1])
        raise RowRefusedError("contradiction", f"no {where} among {num_stages} stages")
    if written.startswith("last rank") or written == "last pipeline stage":
        return num_stages - 1
    if written == "first pipeline stage":
        return 0
    if written.startswith(("max", "any", "first/last", "not stated")) or not written:
        return None
    raise RowRefusedError("other-place", f"where is {where}")
