"""Validate a file of measurements: predict every row that can be expressed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nestsim.evaluate.uncertainty import Band, Setting, band, memory_band
from nestsim.features.validation.measured import measured_time
from nestsim.features.validation.memory_rows import score_memory
from nestsim.features.validation.metrics import (
    Errors,
    Ranking,
    errors_of,
    grouped,
    ranking_of,
)
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.rows.columns import Measurements, Row, RowRefusedError
from nestsim.features.validation.rows.plan import Case, read_case
from nestsim.features.validation.rows.stages import with_notes_of_run
from planner.step.memory import judge_room
from planner.work import Progress
from topologies.short_repr import short_repr

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


FULL_QUALITY = ("A", "A-")
"""Quality of rows that describe their whole configuration."""


class Judgement(NamedTuple):
    """Whether plans that were run are judged to fit in memory."""

    ran: int
    """Rows of runs that happened."""
    ran_but_too_large: int
    """Rows of runs that happened and are judged not to fit."""
    complete: int
    """Rows of runs that happened and describe their whole configuration."""
    complete_but_too_large: int
    """Rows of runs that happened, describe their whole configuration and are judged not
    to fit."""
    out_of_memory: int
    """Rows of runs that ran out of memory."""
    out_of_memory_but_fit: int
    """Rows of runs that ran out of memory and are judged to fit."""
    largest_share: float
    """Tensors at their peak over the memory for them, the largest of a run that
    happened; NaN of none."""

    @property
    def misjudged(self) -> int:
        """Rows that are judged against what happened."""
        return self.ran_but_too_large + self.out_of_memory_but_fit


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """What became of one row."""

    row: Row
    """Row as it was written."""

    code: str = ""
    """Code of the reason why the row was refused, a key of
    `nestsim.features.validation.rows.columns.REFUSALS`; empty if it was predicted."""

    reason: str = ""
    """Reason why the row was refused, in a sentence."""

    basis: str = ""
    """Column, or metric, that `measured` is from."""

    measured: float = math.nan
    """Time of a step [s] or memory [byte]; NaN for a run that ran out of memory."""

    predicted: float = math.nan
    """Time of a step [s] or memory [byte] by the replay."""

    planned: float = math.nan
    """Time of a step by the planner's timeline [s]; NaN for memory."""

    band: Band | None = None
    """Factors on `predicted`: eight of ten measured ones are to lie between them;
    None with ideal software."""

    memory_share: float = math.nan
    """Predicted peak of the fullest device's tensors over what it has for them, which
    decides whether a scenario's plan is feasible."""

    preset: str = ""
    """Name of the framework's preset."""

    assumed: tuple[str, ...] = ()
    """What the row does not say."""

    __repr__ = short_repr

    @property
    def is_scored(self) -> bool:
        """Whether there is an error to count."""
        return not self.code and not math.isnan(self.measured)

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the measured run did, and was predicted."""
        return not self.code and math.isnan(self.measured)

    @property
    def fits(self) -> bool:
        """Whether the plan of a predicted row fits in memory by the estimate."""
        return self.memory_share <= 1.0

    @property
    def is_infeasible(self) -> bool:
        """Whether the whole band of what it needs is above what there is."""
        known = memory_band(self.preset)
        low = 1.0 if known is None else known.band.low
        share = self.memory_share
        return judge_room(share, low * share, 1.0) == "infeasible"

    @property
    def is_misjudged(self) -> bool:
        """Whether it fits and ran out of memory, or ran and is infeasible."""
        if self.code:
            return False
        return self.fits if self.ran_out_of_memory else self.is_infeasible

    @property
    def is_complete(self) -> bool:
        """Whether the row tells all that decides the result: quality A or A-."""
        return self.row.words("quality") in FULL_QUALITY

    @property
    def is_inside(self) -> bool:
        """Whether the measured time lies in the prediction's band."""
        if self.band is None or not self.is_scored:
            return False
        low, high = self.band
        return low * self.predicted <= self.measured <= high * self.predicted

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

    __repr__ = short_repr

    @property
    def scored(self) -> tuple[RowResult, ...]:
        """Rows with an error."""
        return tuple(row for row in self.rows if row.is_scored)

    def judgement(self) -> "Judgement":
        """Return how feasible the plans of all predicted rows are judged to be."""
        return _judgement(tuple(row for row in self.rows if not row.code))

    def judgement_by(self, column: str) -> "dict[str, Judgement]":
        """Return the same for rows that agree in a column."""
        keyed = ((_key(row, column), row) for row in self.rows if not row.code)
        return {key: _judgement(tuple(rows)) for key, rows in grouped(keyed).items()}

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

    def coverage(self) -> float:
        """Return the part of scored rows that lie in their band; NaN of none."""
        banded = [row for row in self.scored if row.band is not None]
        if not banded:
            return math.nan
        return sum(row.is_inside for row in banded) / len(banded)

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


def _judgement(rows: tuple[RowResult, ...]) -> Judgement:
    ran = [row for row in rows if not row.ran_out_of_memory]
    complete = [row for row in ran if row.is_complete]
    gone = [row for row in rows if row.ran_out_of_memory]
    return Judgement(
        ran=len(ran),
        ran_but_too_large=sum(row.is_misjudged for row in ran),
        complete=len(complete),
        complete_but_too_large=sum(row.is_misjudged for row in complete),
        out_of_memory=len(gone),
        out_of_memory_but_fit=sum(row.is_misjudged for row in gone),
        largest_share=max((row.memory_share for row in ran), default=math.nan),
    )


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
        What `nestsim.features.validation.rows.columns.read_measurements` read.
    progress
        Called with every row.
    """
    predictor = Predictor()
    score = _score_time if measurements.kind == "throughput" else _score_memory
    rows = measurements.rows
    if measurements.kind == "memory":
        rows = with_notes_of_run(rows)
    results = []
    for index, row in enumerate(rows):
        if progress is not None:
            progress(f"row {index + 1:,} of {len(rows):,}", index / len(rows))
        results.append(_result(predictor, row, score))
    return ValidationResult(
        name=measurements.name, kind=measurements.kind, rows=tuple(results)
    )


Score = Callable[[Predictor, Row], RowResult]
"""Function that predicts a row and holds it against what was measured."""


def _result(predictor: Predictor, row: Row, score: Score) -> RowResult:
    try:
        return score(predictor, row)
    except RowRefusedError as refusal:
        return RowResult(row=row, code=refusal.code, reason=refusal.reason)


def _score_time(predictor: Predictor, row: Row) -> RowResult:
    case = predictor.settled(read_case(row))
    measured = measured_time(case, predictor.graph(case))
    predicted = predictor.predict(case, memory=True)
    return RowResult(
        row=row,
        basis=measured.basis,
        measured=measured.value,
        predicted=predicted.iteration_time,
        planned=predicted.planned_time,
        band=_band(case),
        memory_share=predicted.memory_share,
        preset=case.preset,
        assumed=case.assumed,
    )


def _band(case: Case) -> Band | None:
    return band(
        Setting(
            source=case.row.source,
            software=case.software.name,
            accelerator=case.accelerator.name,
            num_devices=case.num_devices,
            has_experts=bool(case.model.num_moe_experts),
            assumes_layout=case.assumes_layout,
        )
    )


def _memory_band(preset: str) -> Band | None:
    known = memory_band(preset)
    return None if known is None else known.band


def _score_memory(predictor: Predictor, row: Row) -> RowResult:
    score = score_memory(predictor, row)
    return RowResult(
        row=row,
        basis=score.measured.basis,
        measured=score.measured.value,
        predicted=score.predicted,
        band=_memory_band(score.case.preset),
        memory_share=score.memory_share,
        preset=score.case.preset,
        assumed=score.case.assumed,
    )
