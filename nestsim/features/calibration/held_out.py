"""Held-out predictions: constants are refitted without some rows, which they predict.

A fold's constants come from the full fit's linear model without the rows left out,
which costs nothing; the rows left out are then predicted on the real path. What the
other rows do not inform of goes back to its prior, so that nothing leaks. Excluded rows
are held out as others are; no fit has them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nestsim.features.calibration.fit import (
    Box,
    Fit,
    Line,
    deviations,
    rows_of_sources,
    solve,
    stages_of,
)
from nestsim.features.calibration.observations import (
    Observation,
    Residuals,
    constants_of,
    row_weights,
)
from nestsim.features.calibration.parameters import FitSpec
from nestsim.features.validation.results import grouped
from topologies.arrays import BoolArray, FloatArray, IntArray

NUM_FOLDS = 5
"""Folds that rows are split into."""

_FAR = 3.0
"""Distance that a refit may go from the full fit, in the logarithm: anywhere."""

_SETTLED = 0.7
"""All rows settle a constant if they shrink its prior's deviation below this part; what
is left of them does not if the deviation stays above it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """Rows that were left out of a fit, and what came out of it."""

    name: str
    """Name of the source, or number of the fold."""

    left_out: IntArray
    """Indexes of the observations left out."""

    logarithms: FloatArray
    """Logarithms of the constants fitted to the other rows."""

    residuals: FloatArray
    """``log(predicted / measured)`` of the rows left out, under these constants."""

    untold: tuple[str, ...]
    """Constants that only the rows left out inform of: they are at, or near, their
    prior."""


def grouped_folds(
    observations: Sequence[Observation], count: int = NUM_FOLDS
) -> dict[str, IntArray]:
    """Split rows so that those of one group stay together.

    The groups of each source are dealt in an order that depends on nothing but the
    rows' names, each to the fold with the fewest rows of that source so far.
    """
    groups = grouped(
        (observation.group, index) for index, observation in enumerate(observations)
    )
    keyed = grouped(
        (observations[rows[0]].row.source, rows) for _, rows in sorted(groups.items())
    )
    folds: list[list[int]] = [[] for _ in range(count)]
    for _, members in sorted(keyed.items()):
        sizes = [0] * count
        for rows in sorted(members, key=lambda rows: _order(observations, rows)):
            least = min(
                range(count), key=lambda fold: (sizes[fold], len(folds[fold]), fold)
            )
            folds[least] += rows
            sizes[least] += len(rows)
    return {
        f"fold {number + 1}": np.array(sorted(rows), dtype=np.int64)
        for number, rows in enumerate(folds)
        if rows
    }


def _order(observations: Sequence[Observation], rows: Iterable[int]) -> bytes:
    """Return a key that sorts groups in no particular, yet fixed, order."""
    name = min(observations[index].row.row_id for index in rows)
    return hashlib.sha256(name.encode()).digest()


def source_folds(observations: Sequence[Observation]) -> dict[str, IntArray]:
    """Leave out each source in turn, and with it rows of its configurations."""
    folds: dict[str, IntArray] = {}
    keyed = grouped(
        (observation.row.source, index)
        for index, observation in enumerate(observations)
    )
    for source, rows in keyed.items():
        if any(not observations[index].excluded for index in rows):
            folds[source] = np.array(rows, dtype=np.int64)
    return folds


def kind_folds(
    observations: Sequence[Observation], rows: IntArray
) -> dict[str, IntArray]:
    """Leave out each chip, and each trait of models, in turn.

    Parameters
    ----------
    observations
        All rows.
    rows
        Indexes of those that constants are fitted to; no others are predicted anew.
    """
    settings = {index: observations[index].case.setting() for index in rows.tolist()}
    kinds = grouped(
        (kind, index)
        for index, setting in settings.items()
        for kind in (setting.chip, *setting.traits)
    )
    # Without what most rows have there is no fit.
    return {
        kind: np.array(left_out, dtype=np.int64)
        for kind, left_out in sorted(kinds.items())
        if len(left_out) < len(rows)
    }


def hold_out(
    evaluate: Residuals, spec: FitSpec, full: Fit, splits: Mapping[str, IntArray]
) -> tuple[HeldOut, ...]:
    """Predict rows with constants that were fitted without them.

    Parameters
    ----------
    evaluate, spec, full
        The fit to all rows.
    splits
        Name -> indexes of the rows to leave out, as `grouped_folds` or `source_folds`
        return them.
    """
    folds = []
    for name, left_out in splits.items():
        logarithms, untold = refit_without(evaluate, spec, full, left_out)
        changes = constants_of(full.parameters, logarithms)
        folds.append(
            HeldOut(
                name=name,
                left_out=left_out,
                logarithms=logarithms,
                residuals=evaluate.residuals(changes, left_out),
                untold=untold,
            )
        )
    return tuple(folds)


def refit_without(
    evaluate: Residuals, spec: FitSpec, full: Fit, left_out: IntArray
) -> tuple[FloatArray, tuple[str, ...]]:
    """Return constants by the other rows, and the names of those they do not inform of.

    A row of a group that is left out in part is left out as well.
    """
    gone = {evaluate.observations[index].group for index in left_out}
    stays = np.array(
        [evaluate.observations[index].group not in gone for index in full.rows],
        dtype=np.bool_,
    )
    box = Box.of(full.parameters)
    point, spread = full.logarithms.copy(), box.sigma.copy()
    for stage in stages_of(full.parameters):
        free, kept = np.array(stage.free), np.array(stage.kept)
        is_used = np.isin(
            full.rows, rows_of_sources(evaluate, full.rows, stage.sources)
        )
        line = _part(evaluate, full, is_used & stays)
        if not is_used.any() or not kept.any():
            continue
        # What an earlier stage moved has moved the residuals that this one starts from.
        shifted = line.at(np.where(free, full.logarithms, point))
        part = replace(
            line,
            start=full.logarithms[free],
            residuals=shifted,
            jacobian=line.jacobian[:, free],
        )
        result = np.zeros(len(point))
        result[free] = solve(part, box.only(free), spec.row_error, trust=_FAR)
        point = np.where(kept, result, point)
        result[free] = deviations(part, box.only(free), spec.row_error)
        spread = np.where(kept, result, spread)
    unsettled = (spread > _SETTLED * box.sigma) & (
        full.deviations <= _SETTLED * box.sigma
    )
    names = tuple(
        parameter.name
        for parameter, lost in zip(full.parameters, unsettled, strict=True)
        if lost
    )
    return point, names


def _part(evaluate: Residuals, full: Fit, which: BoolArray) -> Line:
    rows = full.rows[which]
    return Line(
        start=full.logarithms,
        rows=rows,
        residuals=full.residuals[which],
        jacobian=full.jacobian[which],
        weights=row_weights(evaluate.observations, rows),
    )


def residuals_of(folds: Sequence[HeldOut], count: int) -> FloatArray:
    """Return the held-out residual of each of ``count`` rows, NaN for the others."""
    result = np.full(count, np.nan)
    for fold in folds:
        result[fold.left_out] = fold.residuals
    return result
