"""Rows of measurements as a fit sees them: a case, what was measured, a weight."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nestsim.calibration.parameters import FitSpec
from nestsim.validation.measured import measured_time
from nestsim.validation.metrics import grouped
from nestsim.validation.predict import Predictor
from nestsim.validation.rows.columns import Row, RowRefusedError
from nestsim.validation.rows.plan import Case, read_case
from topologies.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A row that can be predicted and has a measured time."""

    case: Case
    """What was run."""

    measured: float
    """Time of a step [s]."""

    group: int
    """Number of its group: rows of one configuration, or of one cell, have the same,
    and are never on both sides of a split."""

    configuration: int
    """Number of its configuration: predictions of equal ones are equal."""

    excluded: str = ""
    """Why nothing is fitted to it; empty if it is fitted to."""

    @property
    def row(self) -> Row:
        """As it was written."""
        return self.case.row


_ASSUMED = "a size that decides the time is an assumption"
"""Reason why nothing is fitted to a row."""


def read_observations(
    rows: Iterable[Row], spec: FitSpec, predictor: Predictor
) -> tuple[Observation, ...]:
    """Return the rows that can be predicted, in their order; others are left out.

    A row that the simulator refuses is found by predicting it, which `predictor`
    keeps.
    """
    cases: list[tuple[Case, float]] = []
    for row in rows:
        try:
            case = predictor.settled(read_case(row))
            predictor.predict(case)
            cases.append((case, measured_time(case, predictor.graph(case)).value))
        except RowRefusedError:
            continue
    configurations = _numbered([configuration_of(case) for case, _ in cases])
    cells = _numbered([_cell(case.row, spec) for case, _ in cases])
    groups = _joined(configurations, cells)
    return tuple(
        Observation(
            case=case,
            measured=measured,
            group=groups[index],
            configuration=configurations[index],
            excluded=_ASSUMED if case.assumes_layout else spec.exclusion(case.row),
        )
        for index, (case, measured) in enumerate(cases)
    )


def configuration_of(case: Case) -> Hashable:
    """Return what a prediction depends on."""
    return (
        case.model,
        case.training,
        case.accelerator.name,
        case.software,
        case.network,
        case.plan,
        case.alternatives,
        case.stages,
        case.execution,
    )


def _cell(row: Row, spec: FitSpec) -> Hashable:
    columns = spec.cells.get(row.source)
    if columns is None:
        return row.row_id
    return (row.source, *(row.words(column) for column in columns))


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _joined(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return class numbers, the smallest classes with rows equal in either in one."""
    parent = list(range(len(first)))

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    for keys in (first, second):
        seen: dict[int, int] = {}
        for index, key in enumerate(keys):
            other = root(seen.setdefault(key, index))
            this = root(index)
            parent[max(this, other)] = min(this, other)
    return _numbered([root(index) for index in range(len(first))])


def row_weights(observations: Sequence[Observation], chosen: IntArray) -> FloatArray:
    """Return how much each of the chosen rows counts.

    A source with ``n`` configurations counts as ``sqrt(n)`` rows, however many of them
    were chosen, each chosen configuration alike: rows of one source share its habits,
    and are not ``n`` independent witnesses of a constant.
    """
    usable = grouped(
        (one.row.source, one.configuration) for one in observations if not one.excluded
    )
    keyed = grouped(
        (observations[index].row.source, observations[index].configuration)
        for index in chosen
    )
    weight = {
        source: math.sqrt(len(set(usable.get(source, own)))) / len(set(own))
        for source, own in keyed.items()
    }
    repeats = Counter((source, one) for source, own in keyed.items() for one in own)
    pairs = [
        (observations[index].row.source, observations[index].configuration)
        for index in chosen
    ]
    return np.array([weight[pair[0]] / repeats[pair] for pair in pairs])


def fitted_rows(observations: Sequence[Observation], spec: FitSpec) -> IntArray:
    """Return the indexes of the rows that constants are fitted to.

    Of a source in ``spec.samples`` only so many: one of each group in turn, in the
    order of the file.
    """
    usable = [index for index, one in enumerate(observations) if not one.excluded]
    by_source = grouped((observations[index].row.source, index) for index in usable)
    chosen: list[int] = []
    for source, rows in by_source.items():
        limit = spec.samples.get(source, len(rows))
        chosen += rows if limit >= len(rows) else _spread(observations, rows, limit)
    return np.array(sorted(chosen), dtype=np.int64)


def _spread(
    observations: Sequence[Observation], rows: Sequence[int], limit: int
) -> list[int]:
    """Take rows of all groups in turn, evenly spaced within each."""
    groups = list(grouped((observations[i].group, i) for i in rows).values())
    share, rest = divmod(limit, len(groups))
    chosen: list[int] = []
    for number, group in enumerate(groups):
        count = min(share + (number < rest), len(group))
        chosen += [group[(2 * k + 1) * len(group) // (2 * count)] for k in range(count)]
    return chosen
