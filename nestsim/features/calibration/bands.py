"""Held-out predictions, and how wide the bands of `nestsim.evaluate.uncertainty` are.

Constants are refitted without some rows, then those rows are predicted. A fold's
constants come from the full fit's linear model without the rows left out, which costs
nothing; the rows left out are then predicted on the real path. What the other rows do
not inform of goes back to its prior, so that nothing leaks. Excluded rows are held out
as others are; no fit has them.

Half widths are quantiles of held-out errors by class; a class of few rows leans on
the next wider one. Coverage is counted on rows whose own fold, or source, had no part
in the width that they are held against.

Sizes of memory have bands by framework. What memory holds is counted, and few constants
are fitted by hand to some of the same rows; so its deciles are those of all rows'
errors, with their sign, and what the outer two cover is counted in folds of
configurations, each held against the deciles of the others.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nestsim.evaluate.uncertainty import (
    NUM_DECILES,
    SHARE,
    Setting,
    Uncertainty,
    load_uncertainty,
)
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
from nestsim.features.validation.columns import Row, RowRefusedError
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.results import grouped
from nestsim.features.validation.runner import score_memory
from topologies.arrays import BoolArray, FloatArray, IntArray

NUM_FOLDS = 5
"""Folds that rows are split into."""

_FAR = 3.0
"""Distance that a refit may go from the full fit, in the logarithm: anywhere."""

_INFORMED = 0.7
"""Rows inform of a constant if they shrink its prior's deviation below this part."""


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
    untold = (spread > _INFORMED * box.sigma) & (
        full.deviations <= _INFORMED * box.sigma
    )
    names = tuple(
        parameter.name
        for parameter, lost in zip(full.parameters, untold, strict=True)
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


LEANING = 8.0
"""Rows that the next wider class counts as."""

FEWEST = 4
"""Rows that make a class of their own."""


COUNTED = 20
"""Rows of a class from which on its coverage says something."""


class Error(NamedTuple):
    """A held-out prediction's error."""

    setting: Setting
    """Setting of the job that was predicted."""

    size: float
    """Size of the error, ``|log(predicted / measured)|``."""

    weight: float
    """How much it counts where rows of several sources are taken together."""

    part: str
    """Name of the fold it was held out in."""


def errors_of_folds(
    observations: Sequence[Observation], folds: Sequence[HeldOut], *, is_new: bool
) -> tuple[Error, ...]:
    """Return the errors of held-out rows that constants are fitted to."""
    weights = row_weights(observations, np.arange(len(observations)))
    return tuple(
        Error(
            observations[index].case.setting(
                "" if is_new else observations[index].row.source
            ),
            abs(float(residual)),
            float(weights[index]),
            fold.name,
        )
        for fold in folds
        for index, residual in zip(fold.left_out, fold.residuals, strict=True)
        if not observations[index].excluded
    )


def half_widths(errors: Iterable[Error]) -> dict[str, float]:
    """Return class -> half width of its band.

    ``exp(mean of logarithms)`` of the class's own quantile and of the wider one's,
    weighted with the class's rows and `LEANING`.
    """
    classes = grouped(
        (name, error) for error in errors for name in error.setting.classes()
    )
    widths: dict[str, float] = {}
    for name, errors_of_class in sorted(
        classes.items(), key=lambda item: _depth(item[0])
    ):
        # Sources count as the square root of their rows, but for the narrowest classes:
        # there it is the rows that are alike.
        is_narrowest = name == errors_of_class[0].setting.classes()[-1]
        weights = [1.0 if is_narrowest else error.weight for error in errors_of_class]
        quantile = weighted_quantile(
            np.array([error.size for error in errors_of_class]), np.array(weights)
        )
        if _depth(name) == 0:
            widths[name] = quantile
        elif len(errors_of_class) >= FEWEST:
            wider = widths[_wider(name)]
            total = len(errors_of_class) + LEANING
            logs = len(errors_of_class) * math.log(quantile) + LEANING * math.log(wider)
            widths[name] = math.exp(logs / total)
    # A class too small for one of its own has none; the next wider one holds.
    return widths


def _depth(name: str) -> int:
    return 0 if name == "all" else 1 + name.count(" ")


def _wider(name: str) -> str:
    return name.rpartition(" ")[0] or "all"


def weighted_quantile(sizes: FloatArray, weights: FloatArray) -> float:
    """Return the conformal quantile of sizes of errors, a little above nothing."""
    return max(_quantile(sizes, weights, SHARE), 1e-6)


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    """Return the conformal quantile: one more row, as large as can be, is counted."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    needed = share * (reached[-1] + float(weights.mean()))
    place = min(int(np.searchsorted(reached, needed)), len(values) - 1)
    return float(values[order][place])


def deciles(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the nine deciles, the lower ones as those of the values turned round."""
    shares = np.arange(1, NUM_DECILES + 1) / (NUM_DECILES + 1)
    return np.array(
        [
            _quantile(values, weights, share)
            if share >= 0.5
            else -_quantile(-values, weights, 1.0 - share)
            for share in shares.tolist()
        ]
    )


def fitted_uncertainty(
    measured: Sequence[Error], new: Sequence[Error], observations: Sequence[Observation]
) -> Uncertainty:
    """Return the bands by errors of folds, and of sources left out."""
    fitted = [observation for observation in observations if not observation.excluded]
    widths = half_widths(new)
    return Uncertainty(
        measured=MappingProxyType(half_widths(measured)),
        new=MappingProxyType({**widths, "unknown": _unknown(new, widths)}),
        memory=load_uncertainty().memory,
        sources=frozenset(observation.row.source for observation in fitted),
        software=frozenset(observation.case.software.name for observation in fitted),
        accelerators=frozenset(
            observation.case.accelerator.name for observation in fitted
        ),
    )


def _unknown(new: Sequence[Error], widths: Mapping[str, float]) -> float:
    """Return the half width where software or device were in no other source."""
    systems = grouped(
        (kind, error.part)
        for error in new
        for kind in (error.setting.software, error.setting.accelerator)
    )
    alone = [
        error
        for error in new
        if len(set(systems[error.setting.software])) == 1
        or len(set(systems[error.setting.accelerator])) == 1
    ]
    if len(alone) < FEWEST:
        return widths["all"]
    sizes = np.array([error.size for error in alone])
    weights = np.array([error.weight for error in alone])
    return max(widths["all"], weighted_quantile(sizes, weights))


class Coverage(NamedTuple):
    """How many of some rows lie in their 80 % band."""

    inside: int
    """Rows that lie in their band."""

    rows: int
    """Rows that were held against a band."""

    @property
    def share(self) -> float:
        """As a part; NaN of no rows."""
        return self.inside / self.rows if self.rows else math.nan


def coverage_by(errors: Sequence[Error]) -> dict[str, Coverage]:
    """Return the coverage of each part by the widths that the others give."""
    return _counted((error.part, inside) for error, inside in _held_against(errors))


def coverage_by_class(errors: Sequence[Error]) -> dict[str, Coverage]:
    """Return the same for each class that has `COUNTED` rows."""
    coverages = _counted(
        (name, inside)
        for error, inside in _held_against(errors)
        for name in error.setting.classes()
    )
    return {
        name: coverage
        for name, coverage in sorted(coverages.items())
        if coverage.rows >= COUNTED
    }


def _held_against(errors: Sequence[Error]) -> Iterator[tuple[Error, bool]]:
    """Yield errors, and whether they are in the bands that other parts give."""
    for part, held_out in grouped((error.part, error) for error in errors).items():
        others = [error for error in errors if error.part != part]
        if not others:
            continue
        widths = half_widths(others)
        for error in held_out:
            names = reversed(error.setting.classes())
            yield error, error.size <= next(widths[n] for n in names if n in widths)


def _counted(outcomes: Iterable[tuple[str, bool]]) -> dict[str, Coverage]:
    return {
        name: Coverage(sum(inside), len(inside))
        for name, inside in grouped(outcomes).items()
    }


def uncertainty_toml(uncertainty: Uncertainty) -> str:
    """Return the text of ``uncertainty.toml``."""
    lines = [
        "# Half widths of the 80 % band of a predicted step time, by class of job;",
        "# deciles of a device's measured memory over the predicted, by preset. Both",
        "# in the logarithm.",
        "# Written by `python -m nestsim.features.calibration --write`.",
        "",
        "[fitted]",
        *(
            f"{name} = [{', '.join(_quoted(item) for item in sorted(items))}]"
            for name, items in (
                ("sources", uncertainty.sources),
                ("software", uncertainty.software),
                ("accelerators", uncertainty.accelerators),
            )
        ),
    ]
    tables = {"measured": uncertainty.measured, "new": uncertainty.new}
    for title, widths in tables.items():
        lines += ["", f"[{title}]"]
        lines += [f"{_quoted(name)} = {widths[name]:.4f}" for name in sorted(widths)]
    lines += ["", "[memory]"]
    for name in sorted(uncertainty.memory):
        listed = ", ".join(f"{decile:.4f}" for decile in uncertainty.memory[name])
        lines += [f"{_quoted(name)} = [{listed}]"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return f'"{text}"'


class Miss(NamedTuple):
    """The error of one predicted size of memory."""

    software: str
    """Name of the preset."""

    source: str
    """Source of the row."""

    error: float
    """``log(measured / predicted)``."""

    fold: int
    """Number of the fold that the row is held out in."""


def read_misses(rows: Iterable[Row], predictor: Predictor) -> list[Miss]:
    """Return the errors of all rows that can be predicted and measured a size."""
    misses = []
    for row in rows:
        try:
            score = score_memory(predictor, row)
        except RowRefusedError:
            continue
        if math.isnan(score.measured):
            continue
        error = math.log(score.measured / score.predicted)
        # Rows that one prediction answers are one configuration.
        key = f"{row.source} {score.predicted!r}".encode()
        fold = int.from_bytes(hashlib.sha256(key).digest()[:4], "big") % NUM_FOLDS
        misses.append(Miss(score.preset, row.source, error, fold))
    return misses


def memory_deciles(misses: Sequence[Miss]) -> dict[str, tuple[float, ...]]:
    """Return preset, or ``"all"``, -> deciles of the errors.

    A source of ``n`` rows counts as ``sqrt(n)`` where sources are taken together; a
    preset of few rows leans on all.
    """
    counts = {key: len(of_preset) for key, of_preset in _by_source(misses).items()}
    weights = np.array([1.0 / math.sqrt(counts[miss.source]) for miss in misses])
    errors = np.array([miss.error for miss in misses])
    every = deciles(errors, weights)
    by_preset = {"all": every}
    for preset, of_preset in sorted(
        grouped((miss.software, miss) for miss in misses).items()
    ):
        if len(of_preset) < FEWEST:
            continue
        alike = np.array([miss.error for miss in of_preset])
        of_alike = deciles(alike, np.ones(len(of_preset)))
        total = len(of_preset) + LEANING
        by_preset[preset] = (len(of_preset) * of_alike + LEANING * every) / total
    return {name: tuple(values.tolist()) for name, values in by_preset.items()}


def memory_coverage(misses: Sequence[Miss]) -> dict[str, Coverage]:
    """Return the coverage of all, and of each preset with many rows."""
    outcomes: dict[str, list[bool]] = {}
    for fold in sorted({miss.fold for miss in misses}):
        others = [miss for miss in misses if miss.fold != fold]
        if not others:
            continue
        by_preset = memory_deciles(others)
        for miss in misses:
            if miss.fold == fold:
                ends = by_preset.get(miss.software, by_preset["all"])
                inside = ends[0] <= miss.error <= ends[-1]
                for name in ("all", miss.software):
                    outcomes.setdefault(name, []).append(inside)
    return {
        name: Coverage(sum(inside), len(inside))
        for name, inside in sorted(outcomes.items())
        if name == "all" or len(inside) >= COUNTED
    }


def _by_source(misses: Sequence[Miss]) -> dict[str, list[Miss]]:
    return grouped((miss.source, miss) for miss in misses)
