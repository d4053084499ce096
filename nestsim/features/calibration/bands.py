"""How wide the bands of `nestsim.evaluate.uncertainty` are, by held-out errors.

Half widths are quantiles of held-out errors by class; a class of few rows, or sources,
leans on the next wider one. What a chip, a framework, a release or a kind of model adds
that no row had is what errors needed beyond these widths where such were left out as a
whole. Coverage is counted on rows whose own fold, or source, had no part in the width
that they are held against.

Sizes of memory have bands by framework. What memory holds is counted, and few constants
are fitted by hand to some of the same rows; so its deciles are those of all rows'
errors, with their sign, and what the outer two cover is counted in folds of
configurations, each held against the deciles of the others.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nestsim.evaluate.uncertainty import (
    NUM_DECILES,
    SHARE,
    Fitted,
    Setting,
    Uncertainty,
    load_uncertainty,
    narrowest,
    release_number,
)
from nestsim.features.calibration.held_out import NUM_FOLDS, HeldOut
from nestsim.features.calibration.observations import Observation, row_weights
from nestsim.features.validation.columns import Row, RowRefusedError
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.results import grouped
from nestsim.features.validation.runner import score_memory
from topologies.arrays import FloatArray, IntArray

LEANING = 8.0
"""Rows, or sources left out, that the next wider class counts as."""

FEWEST = 4
"""Rows that make a class of their own."""


COUNTED = 20
"""Rows of a class from which on its coverage says something."""


class Error(NamedTuple):
    """A held-out prediction's error."""

    setting: Setting
    """Setting of the job that was predicted, as the fit without it saw it."""

    size: float
    """Size of the error, ``|log(predicted / measured)|``."""

    weight: float
    """How much it counts where rows of several sources are taken together."""

    part: str
    """Name of the fold it was held out in."""

    causes: tuple[str, ...] = ()
    """Causes by which the job is unlike the rows that were not left out."""


def fitted_facts(
    observations: Iterable[Observation], releases: Mapping[str, tuple[str, ...]]
) -> Fitted:
    """Return what constants are fitted to.

    Parameters
    ----------
    observations
        The rows.
    releases
        Name of software -> releases of rows that do not say theirs.
    """
    used = [observation for observation in observations if not observation.excluded]
    settings = [observation.case.setting() for observation in used]
    stated = [
        (setting.software, setting.release) for setting in settings if setting.release
    ]
    newest = {
        software: (*releases.get(software, ()), max(numbers, key=release_number))
        for software, numbers in grouped(stated).items()
    }
    return Fitted(
        sources=frozenset(observation.row.source for observation in used),
        software=frozenset(setting.software for setting in settings),
        accelerators=frozenset(setting.accelerator for setting in settings),
        traits={
            software: frozenset().union(*kinds)
            for software, kinds in grouped(
                (setting.software, setting.traits) for setting in settings
            ).items()
        },
        releases={**releases, **newest},
    )


def errors_of_folds(
    observations: Sequence[Observation], rows: IntArray, folds: Sequence[HeldOut]
) -> tuple[Error, ...]:
    """Return the errors of held-out rows that constants may be fitted to.

    Parameters
    ----------
    observations
        All rows.
    rows
        Indexes of those that constants are fitted to.
    folds
        What was held out.
    """
    weights = row_weights(observations, np.arange(len(observations)))
    errors = []
    for fold in folds:
        gone = set(fold.left_out.tolist())
        rest = [observations[index] for index in rows.tolist() if index not in gone]
        facts = fitted_facts(rest, {})
        for index, residual in zip(fold.left_out, fold.residuals, strict=True):
            observation = observations[index]
            if observation.excluded:
                continue
            source = observation.row.source
            known = source if source in facts.sources else ""
            setting = observation.case.setting(known)
            causes = tuple(distance.cause for distance in facts.distances(setting))
            size, weight = abs(float(residual)), float(weights[index])
            errors.append(Error(setting, size, weight, fold.name, causes))
    return tuple(errors)


def half_widths(
    errors: Iterable[Error], least: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return class -> half width of its band.

    ``exp(mean of logarithms)`` of the class's own quantile and of the wider one's,
    weighted with how often the class was tried and `LEANING`.

    Parameters
    ----------
    errors
        Held-out errors.
    least
        Half widths on measured clusters where the errors are of sources that were left
        out as a whole: those of a source err together, and count as one try; and no
        band is narrower on a new cluster. None where they are of folds.
    """
    of_parts = least is not None
    classes = grouped(
        (name, error) for error in errors for name in error.setting.classes()
    )
    widths: dict[str, float] = {}
    for name, of_class in sorted(classes.items(), key=lambda item: _depth(item[0])):
        # Sources count as the square root of their rows, but for the narrowest classes:
        # there it is the rows that are alike.
        is_narrowest = name == of_class[0].setting.classes()[-1]
        alike = is_narrowest and not of_parts
        quantile = weighted_quantile(
            np.array([error.size for error in of_class]),
            np.array([1.0 if alike else error.weight for error in of_class]),
        )
        if _depth(name) == 0:
            width = quantile
        elif len(of_class) < FEWEST:
            # The next wider class holds.
            continue
        else:
            parts = {error.part for error in of_class}
            count = len(parts) if of_parts else len(of_class)
            logs = count * math.log(quantile) + LEANING * math.log(widths[_wider(name)])
            width = math.exp(logs / (count + LEANING))
        widths[name] = max(width, (least or {}).get(name, 0.0))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutErrors:
    """Errors of everything that was left out."""

    folds: tuple[Error, ...]
    """Errors of folds of rows."""

    sources: tuple[Error, ...]
    """Errors of sources left out as a whole."""

    kinds: tuple[Error, ...]
    """Errors of chips and traits of models left out as a whole."""


def fitted_uncertainty(
    errors: HeldOutErrors,
    observations: Sequence[Observation],
    residuals: FloatArray,
    releases: Mapping[str, tuple[str, ...]],
) -> Uncertainty:
    """Return the bands.

    Parameters
    ----------
    errors
        What was held out.
    observations, residuals
        All rows, and ``log(predicted / measured)`` of each by the constants.
    releases
        As `fitted_facts` takes them.
    """
    measured = half_widths(errors.folds)
    new = half_widths(errors.sources, measured)
    changes = release_changes(observations, residuals)
    wider = wider_by_cause((*errors.sources, *errors.kinds), measured, new)
    if changes:
        wider["release"] = _units_quantile(changes)
    return Uncertainty(
        measured=MappingProxyType(measured),
        new=MappingProxyType(new),
        wider=MappingProxyType(wider),
        memory=load_uncertainty().memory,
        fitted=fitted_facts(observations, releases),
    )


def wider_by_cause(
    errors: Iterable[Error], measured: Mapping[str, float], new: Mapping[str, float]
) -> dict[str, float]:
    """Return cause of a distance -> what it adds to half widths, by the squares.

    What each error that has this cause alone needed beyond the band that the job has
    without it; chips, traits and software count as the square root of their rows.
    """
    needed = grouped(
        (error.causes[0], (error.part, _needed(error, measured, new)))
        for error in errors
        if len(error.causes) == 1
    )
    # A release counts by what it changed in the same job.
    return {
        cause: _units_quantile(units)
        for cause, units in sorted(needed.items())
        if cause != "release"
    }


def _needed(
    error: Error, measured: Mapping[str, float], new: Mapping[str, float]
) -> float:
    setting = error.setting
    # What is not known has no class.
    if "software" in error.causes:
        setting = replace(setting, software="")
    elif {"chip", "kernels"} & set(error.causes):
        setting = replace(setting, accelerator="")
    width = narrowest(measured if setting.source else new, setting)
    return math.sqrt(max(error.size**2 - width**2, 0.0))


def _units_quantile(sizes: Sequence[tuple[str, float]]) -> float:
    """Return the quantile of sizes of rows that are of units: names and sizes."""
    rows = Counter(unit for unit, _ in sizes)
    weights = np.array([1.0 / math.sqrt(rows[unit]) for unit, _ in sizes])
    return weighted_quantile(np.array([size for _, size in sizes]), weights)


_JOB = ("accelerator", "precision", "num_devices", "seq_len")
"""Columns beside the model that rows of one job in several releases agree in."""


def release_changes(
    observations: Sequence[Observation], residuals: FloatArray
) -> list[tuple[str, float]]:
    """Return job and size of each step from its release to the next one measured.

    The size is what the logarithm of predicted over measured moved by: what the
    release changed, and no prediction knew.
    """
    jobs = grouped(
        (_job(observation.row), (release_number(release), float(residual)))
        for observation, residual in zip(observations, residuals, strict=True)
        if (release := observation.case.setting().release) and not observation.excluded
    )
    return [
        (job, abs(later[1] - earlier[1]))
        for job, runs in jobs.items()
        for earlier, later in pairwise(sorted(runs))
        if later[0] > earlier[0]
    ]


def _job(row: Row) -> str:
    # What stands in brackets are variants of a recipe.
    model = row.words("model").partition(" (")[0]
    return " ".join((row.source, model, *(row.words(column) for column in _JOB)))


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


def coverage_by(
    errors: HeldOutErrors, known: Uncertainty | None
) -> dict[str, Coverage]:
    """Return the coverage of each part by the widths that the others give.

    Parameters
    ----------
    errors
        What was held out.
    known
        What bands widen by, to count sources that were left out; None to count folds.
    """
    return _counted((error.part, inside) for error, inside in _held(errors, known))


def coverage_by_class(
    errors: HeldOutErrors, known: Uncertainty | None
) -> dict[str, Coverage]:
    """Return the same for each class, and each chip, that has `COUNTED` rows."""
    coverages = _counted(
        (name, inside)
        for error, inside in _held(errors, known)
        for name in (*error.setting.classes(), error.setting.chip)
    )
    return {
        name: coverage
        for name, coverage in sorted(coverages.items())
        if coverage.rows >= COUNTED
    }


def _held(
    errors: HeldOutErrors, known: Uncertainty | None
) -> Iterator[tuple[Error, bool]]:
    """Yield errors, and whether they are in the bands that other parts give."""
    tried = errors.folds if known is None else errors.sources
    for part, held_out in grouped((error.part, error) for error in tried).items():
        others = [error for error in tried if error.part != part]
        if not others:
            continue
        least = None
        if known is not None:
            least = half_widths(
                error for error in errors.folds if error.setting.source != part
            )
        widths = half_widths(others, least)
        for error in held_out:
            added = () if known is None else map(known.added, error.causes)
            width = math.hypot(narrowest(widths, error.setting), *added)
            yield error, error.size <= width


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
            _listed(name, getattr(uncertainty.fitted, name))
            for name in ("sources", "software", "accelerators")
        ),
        "",
        "# What of models the rows of each framework had.",
        "[traits]",
        *(
            _listed(name, kinds)
            for name, kinds in sorted(uncertainty.fitted.traits.items())
            if kinds
        ),
        "",
        "# Newest releases of rows that constants were fitted to.",
        "[releases]",
        *(
            _listed(name, newest)
            for name, newest in sorted(uncertainty.fitted.releases.items())
        ),
        "",
        "# What a job adds to the half width, by the squares, that is unlike all rows.",
        "[wider]",
        *(f"{cause} = {added:.4f}" for cause, added in uncertainty.wider.items()),
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


def _listed(name: str, items: Iterable[str]) -> str:
    return f"{name} = [{', '.join(_quoted(item) for item in sorted(items))}]"


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
