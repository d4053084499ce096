"""What became of measurements: rows with errors, rows that were refused, curves.

A curve is the time over message size of one operation on one group of devices. Sizes
of a curve are not independent, and curves have unlike numbers of them, so the headline
of collectives is the median over curves of the median error of each.

The error of a row is (predicted - measured) / measured. Percentiles interpolate
linearly between order statistics.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from estimators.constants import load_constants
from nestsim.evaluate.uncertainty import (
    NUM_DECILES,
    Band,
    MemoryBand,
    MemoryNeed,
    room_band,
)
from nestsim.features.validation.collective_rows import CollectiveCase
from nestsim.features.validation.columns import Row
from planner.frameworks.framework import PRESETS
from planner.step.memory import judge_room
from topologies.arrays import FloatArray
from topologies.errors import short_repr

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Errors(NamedTuple):
    """Errors of some rows; NaN where there are too few of them."""

    rows: int
    """Rows that were predicted."""

    mape: float
    """Mean absolute error, relative."""
    median_ape: float
    """Median absolute error, relative."""

    p90_ape: float
    """90th percentile of the absolute errors, relative."""

    max_ape: float
    """Largest absolute error, relative."""

    bias: float
    """Mean error with its sign, relative: positive if predictions are too large."""
    kendall_tau: float
    """Kendall's tau-b of predicted against measured values; NaN if either is
    constant."""


class Ranking(NamedTuple):
    """How well groups of comparable rows are put in order."""

    groups: int
    """Groups of at least two rows each."""
    rows: int
    """Rows in the groups."""
    kendall_tau: float
    """Mean over the groups, each weighted with its pairs."""
    top1_regret: float
    """Mean over the groups: how much slower the configuration that was predicted to
    be the fastest is than the fastest one, relative."""
    max_top1_regret: float
    """Largest such regret of a group, relative."""


def errors_of(measured: Sequence[float], predicted: Sequence[float]) -> Errors:
    """Return the errors of rows, given measured and predicted values of each."""
    if not measured:
        nan = math.nan
        return Errors(0, nan, nan, nan, nan, nan, nan)
    truth, prediction = np.array(measured), np.array(predicted)
    signed = (prediction - truth) / truth
    absolute = np.abs(signed)
    return Errors(
        rows=len(measured),
        mape=float(absolute.mean()),
        median_ape=float(np.median(absolute)),
        p90_ape=float(np.percentile(absolute, 90)),
        max_ape=float(absolute.max()),
        bias=float(signed.mean()),
        kendall_tau=kendall_tau(truth, prediction),
    )


def kendall_tau(first: FloatArray, second: FloatArray) -> float:
    """Return Kendall's tau-b of two lists of values; NaN if either is constant.

    tau-b = (C - D) / sqrt((C + D + T1) (C + D + T2)) with C concordant and D discordant
    pairs, T1 and T2 pairs that are tied in the other list alone (Kendall,
    "The Treatment of Ties in Ranking Problems", Biometrika 33, 1945). O(n^2) time,
    O(n) memory.
    """
    agreement, untied_first, untied_second = 0.0, 0, 0
    for index in range(len(first) - 1):
        order = np.sign(first[index + 1 :] - first[index])
        other = np.sign(second[index + 1 :] - second[index])
        agreement += float(order @ other)
        untied_first += int(np.count_nonzero(order))
        untied_second += int(np.count_nonzero(other))
    if not (untied_first and untied_second):
        return math.nan
    return agreement / math.sqrt(float(untied_first) * float(untied_second))


def ranking_of(
    groups: Iterable[tuple[Sequence[float], Sequence[float]]],
) -> Ranking:
    """Return how well groups of comparable rows are put in order.

    Parameters
    ----------
    groups
        Measured and predicted times of each group; those of one row are left out. Of
        rows predicted to be equally fast the first is taken.
    """
    taus: list[float] = []
    weights: list[float] = []
    regrets: list[float] = []
    rows = 0
    for measured, predicted in groups:
        count = len(measured)
        if count < 2:
            continue
        truth, prediction = np.array(measured), np.array(predicted)
        rows += count
        regrets.append(float(truth[np.argmin(prediction)] / truth.min()) - 1.0)
        tau = kendall_tau(truth, prediction)
        if not math.isnan(tau):
            taus.append(tau)
            weights.append(count * (count - 1) / 2)
    return Ranking(
        groups=len(regrets),
        rows=rows,
        kendall_tau=float(np.average(taus, weights=weights)) if taus else math.nan,
        top1_regret=float(np.mean(regrets)) if regrets else math.nan,
        max_top1_regret=max(regrets, default=math.nan),
    )


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the items of each key, keys and items in the order of appearance."""
    groups: dict[K, list[T]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


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
    ran_in_doubt: int
    """Rows of runs that happened and are judged neither to fit nor not to."""
    out_of_memory: int
    """Rows of runs that ran out of memory."""
    out_of_memory_but_fit: int
    """Rows of runs that ran out of memory and are judged to fit."""
    out_of_memory_in_doubt: int
    """Rows of runs that ran out of memory and are judged neither to fit nor not to."""
    largest_share: float
    """Tensors at their peak over the memory for them, the largest of a run that
    happened; NaN of none."""

    @property
    def misjudged(self) -> int:
        """Rows that are judged against what happened."""
        return self.ran_but_too_large + self.out_of_memory_but_fit


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
class RowResult:
    """What became of one row."""

    row: Row
    """Row as it was written."""

    code: str = ""
    """Code of the reason why the row was refused, a key of
    `nestsim.features.validation.columns.REFUSALS`; empty if it was predicted."""

    reason: str = ""
    """Reason why the row was refused, in a sentence."""

    basis: str = ""
    """Column, or metric, that `measured` is from."""

    measured: float = math.nan
    """Time of a step or of a collective [s], or memory [byte]; NaN for a run that ran
    out of memory."""

    predicted: float = math.nan
    """Time by the replay, or of a collective [s], or memory [byte]."""

    planned: float = math.nan
    """Time of a step by the planner's timeline [s]; NaN for memory."""

    band: Band | None = None
    """Factors on `predicted`: eight of ten measured ones are to lie between them;
    None with ideal software, and for collectives."""

    memory_share: float = math.nan
    """Predicted peak of the fullest device's tensors over what it has for them, which
    decides whether a scenario's plan is feasible."""

    preset: str = ""
    """Name of the framework's preset."""

    grows_segments: bool = False
    """Whether segments of the run's allocator grow (`expandable_segments`)."""

    assumed: tuple[str, ...] = ()
    """What the row does not say."""

    collective: CollectiveCase | None = None
    """Collective that was predicted; None for other rows."""

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
    def status(self) -> str:
        """What became of it, in a word or three."""
        if self.code:
            return "refused"
        return "out of memory" if self.ran_out_of_memory else "scored"

    @property
    def need(self) -> MemoryNeed:
        """What the plan of a predicted row needs of a device, which has 1."""
        software = replace(
            PRESETS[self.preset].software, expandable_segments=self.grows_segments
        )
        known = room_band(self.preset, software, load_constants())
        band = MemoryBand((1.0,) * NUM_DECILES) if known is None else known
        return band.need(self.memory_share, 1.0)

    @property
    def fits(self) -> bool:
        """Whether nine of ten jobs like a predicted row have enough memory."""
        return self.need.fits_in_ten == NUM_DECILES + 1

    @property
    def is_infeasible(self) -> bool:
        """Whether the whole band of what it needs is above what there is."""
        need = self.need
        return judge_room(need.estimate, need.low, need.room) == "infeasible"

    @property
    def is_in_doubt(self) -> bool:
        """Whether a predicted row is judged neither to fit nor not to."""
        return not (self.fits or self.is_infeasible)

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
    def ends(self) -> Band:
        """Ends of the band of the prediction [s or byte]; NaN where there is none."""
        low, high = self.band or (math.nan, math.nan)
        return Band(low * self.predicted, high * self.predicted)

    @property
    def is_inside(self) -> bool:
        """Whether the measured value lies in the prediction's band."""
        return self.is_scored and self.ends.low <= self.measured <= self.ends.high

    @property
    def error(self) -> float:
        """Relative, with its sign."""
        return (self.predicted - self.measured) / self.measured

    @property
    def curve(self) -> Curve:
        """The curve that a row about a collective is a point of."""
        assert self.collective is not None
        return curve_of(self.row, self.collective)

    @property
    def family(self) -> str:
        """Accelerator of a collective without its variant, as the links know it."""
        assert self.collective is not None
        return self.collective.device

    @property
    def num_bytes(self) -> float:
        """Size of a collective's full tensor [byte]."""
        assert self.collective is not None
        return self.collective.num_bytes

    def text(self, column: str) -> str:
        """Return the text of a column of the row; ``source_key`` is never empty."""
        return self.row.source if column == "source_key" else self.row.words(column)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationResult:
    """What became of a file of measurements."""

    name: str
    """The file's."""

    kind: str
    """``"throughput"``, ``"memory"`` or ``"collectives"``."""

    rows: tuple[RowResult, ...]
    """One for each row, in the order of the file."""

    __repr__ = short_repr

    @property
    def scored(self) -> tuple[RowResult, ...]:
        """Rows with an error."""
        return tuple(row for row in self.rows if row.is_scored)

    @property
    def refused(self) -> tuple[RowResult, ...]:
        """Rows that could not be expressed."""
        return tuple(row for row in self.rows if row.code)

    def judgement(self) -> Judgement:
        """Return how feasible the plans of all predicted rows are judged to be."""
        return _judgement([row for row in self.rows if not row.code])

    def judgement_by(self, column: str) -> dict[str, Judgement]:
        """Return the same for rows that agree in a column."""
        rows = (row for row in self.rows if not row.code)
        return {key: _judgement(same) for key, same in _by_text(rows, column).items()}

    def errors(self) -> Errors:
        """Return the errors of all scored rows."""
        return _errors(self.scored)

    def errors_by(self, column: str) -> dict[str, Errors]:
        """Return the errors of scored rows that agree in a column."""
        return self.errors_of_groups(lambda row: row.text(column))

    def errors_of_groups(self, key: Callable[[RowResult], K]) -> dict[K, Errors]:
        """Return the errors of scored rows with equal keys."""
        groups = grouped((key(row), row) for row in self.scored)
        return {key: _errors(rows) for key, rows in groups.items()}

    def errors_by_family(self) -> dict[str, Errors]:
        """Return the errors of all collectives of one family of accelerators."""
        return self.errors_of_groups(lambda row: row.family)

    def curves(self) -> dict[Curve, list[RowResult]]:
        """Return the scored rows of each curve, smallest message first."""
        by_curve = grouped((row.curve, row) for row in self.scored)
        return {
            curve: sorted(rows, key=lambda row: row.num_bytes)
            for curve, rows in by_curve.items()
        }

    def errors_by_curve(self) -> dict[Curve, Errors]:
        """Return the errors of each curve."""
        return {curve: _errors(rows) for curve, rows in self.curves().items()}

    def median_of_curves(self) -> float:
        """Return the median over curves of each one's median error; NaN if none."""
        medians = [errors.median_ape for errors in self.errors_by_curve().values()]
        return float(np.median(medians)) if medians else math.nan

    def coverage(self) -> float:
        """Return the part of scored rows that lie in their band; NaN of none."""
        banded = [row for row in self.scored if row.band is not None]
        if not banded:
            return math.nan
        return sum(row.is_inside for row in banded) / len(banded)

    def share_within(self, error: float) -> float:
        """Return the part of scored rows whose error is at most so large."""
        return float(np.mean([abs(row.error) <= error for row in self.scored]))

    def ranking(self) -> Ranking:
        """Return how well different plans for the same job are put in order."""
        return _ranking(self.scored)

    def ranking_by(self, column: str) -> dict[str, Ranking]:
        """Return the same for rows that agree in a column."""
        groups = _by_text(self.scored, column)
        return {key: _ranking(rows) for key, rows in groups.items()}


def _by_text(rows: Iterable[RowResult], column: str) -> dict[str, list[RowResult]]:
    return grouped((row.text(column), row) for row in rows)


def _errors(rows: Sequence[RowResult]) -> Errors:
    return errors_of([row.measured for row in rows], [row.predicted for row in rows])


def _judgement(rows: Sequence[RowResult]) -> Judgement:
    ran = [row for row in rows if not row.ran_out_of_memory]
    complete = [row for row in ran if row.is_complete]
    gone = [row for row in rows if row.ran_out_of_memory]
    return Judgement(
        ran=len(ran),
        ran_but_too_large=sum(row.is_misjudged for row in ran),
        complete=len(complete),
        complete_but_too_large=sum(row.is_misjudged for row in complete),
        ran_in_doubt=sum(row.is_in_doubt for row in ran),
        out_of_memory=len(gone),
        out_of_memory_but_fit=sum(row.is_misjudged for row in gone),
        out_of_memory_in_doubt=sum(row.is_in_doubt for row in gone),
        largest_share=max((row.memory_share for row in ran), default=math.nan),
    )


def _ranking(rows: Sequence[RowResult]) -> Ranking:
    keyed = ((tuple(map(row.text, GROUP_COLUMNS)), row) for row in rows)
    return ranking_of(
        ([row.measured for row in same], [row.predicted for row in same])
        for same in grouped(keyed).values()
    )
