"""What a refit says to developers: errors, constants and coverage."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nestsim.document.parts import (
    Cell,
    DataTable,
    Document,
    Headline,
    Section,
    Sentences,
    cell,
    table_section,
)
from nestsim.document.wording import number, percent, signed_percent
from nestsim.evaluate.uncertainty import Setting
from nestsim.features.calibration.bands import (
    COUNTED,
    Coverage,
    Miss,
    memory_coverage,
    memory_deciles,
)
from nestsim.features.calibration.calibrate import Calibration, witnesses
from nestsim.features.calibration.curves import CurveScore
from nestsim.features.calibration.observations import Observation
from nestsim.features.calibration.transports import TransportFit
from nestsim.features.validation.results import Errors, errors_of, grouped
from topologies.arrays import FloatArray

LARGE_SINGLE = "vtrain_single"
"""Small models within a node: reported apart from the rest, 700 of 1,000 rows."""


def _document(verdict: str, *tables: DataTable, ends: Sequence[str] = ()) -> Document:
    """Return tables, a section each, and sentences behind the last."""
    sections = [
        table_section(f"part-{place}", table) for place, table in enumerate(tables)
    ]
    if ends:
        sentences = Sentences(tuple(ends))
        sections.append(Section("ends", "Left out", (sentences,)))
    return Document(
        subject="nestsim.features.calibration",
        doing="refit",
        headline=Headline(verdict=verdict, tone="plain"),
        sections=tuple(sections),
    )


def calibration_document(calibration: Calibration) -> Document:
    """Return everything that a refit of the constants says."""
    mapes = [
        _errors(calibration, fold.left_out.tolist(), calibration.left_out).mape
        for fold in calibration.sources
    ]
    left_out = (
        f"A source left out is {percent(float(np.median(mapes)))} off in the median "
        f"source, {percent(max(mapes))} in the worst of {len(mapes)}."
    )
    wider = ", ".join(
        f"{cause} {percent(added)}"
        for cause, added in calibration.uncertainty.wider.items()
    )
    untold = [
        f"Without {fold.name}, no other row tells {', '.join(fold.untold)}."
        for fold in calibration.sources
        if fold.untold
    ]
    return _document(
        "CONSTANTS",
        _errors_table(calibration),
        _constants_table(calibration),
        _coverage_table("Rows left out", _parts(calibration)),
        _classes_table(calibration),
        ends=(
            *untold,
            left_out,
            f"Bands widen, by the squares: {wider or 'by nothing'}.",
        ),
    )


def _errors_table(calibration: Calibration) -> DataTable:
    def errors(residuals: FloatArray) -> Callable[[tuple[str, list[int]]], Errors]:
        return lambda line: _errors(calibration, line[1], residuals)

    before, fitted = errors(calibration.before), errors(calibration.fitted)
    folds, left_out = errors(calibration.held_out), errors(calibration.left_out)
    return DataTable.of(
        "Errors by source",
        _row_groups(calibration).items(),
        {
            "Source": lambda line: line[0],
            "Rows": lambda line: cell(len(line[1]), number),
            "Was": lambda line: cell(before(line).mape, percent),
            "Fitted": lambda line: cell(fitted(line).mape, percent),
            "Folds": lambda line: cell(folds(line).mape, percent),
            "Median": lambda line: cell(folds(line).median_ape, percent),
            "90th pct": lambda line: cell(folds(line).p90_ape, percent),
            "Bias": lambda line: cell(folds(line).bias, signed_percent),
            "Kendall": lambda line: cell(folds(line).kendall_tau, "{:.3f}".format),
            "Left out": lambda line: cell(left_out(line).mape, percent),
        },
    )


def _row_groups(calibration: Calibration) -> dict[str, list[int]]:
    """Return the rows of each source, and of groups that are looked at apart."""
    observations = calibration.observations
    fitted = [
        i for i, observation in enumerate(observations) if not observation.excluded
    ]
    by_source = grouped((observations[i].row.source, i) for i in fitted)
    rest = [i for i in fitted if observations[i].row.source != LARGE_SINGLE]
    dense = [i for i in rest if not observations[i].case.model.num_moe_experts]
    groups = {source: by_source[source] for source in sorted(by_source)}
    if len(rest) < len(fitted):
        groups[f"all but {LARGE_SINGLE}"] = rest
    if len(dense) < len(rest):
        groups["of these, dense"] = dense
        groups["of these, experts"] = sorted(set(rest) - set(dense))
    groups["all that are fitted to"] = fitted
    excluded = [i for i, row in enumerate(observations) if row.excluded]
    if excluded:
        groups["excluded rows"] = excluded
    return groups


def _errors(
    calibration: Calibration, rows: Sequence[int], residuals: FloatArray
) -> Errors:
    known = [index for index in rows if not np.isnan(residuals[index])]
    measured = [calibration.observations[index].measured for index in known]
    factors = np.exp([residuals[index] for index in known])
    return errors_of(measured, (np.array(measured) * factors).tolist())


def _short(value: float | None) -> str | Cell:
    return cell(value, "{:.4g}".format)


def _constants_table(calibration: Calibration) -> DataTable:
    folds = np.exp([fold.logarithms for fold in calibration.folds])
    sources = np.exp([fold.logarithms for fold in calibration.sources])
    entries = calibration.entries("")
    return DataTable.of(
        "Constants",
        enumerate(calibration.fit.parameters),
        {
            "Constant": lambda line: line[1].name,
            "Value": lambda line: _short(entries[line[1].name].value),
            "Over folds": lambda line: _range(folds[:, line[0]]),
            "Left out": lambda line: _range(sources[:, line[0]]),
            "Prior": lambda line: _short(line[1].prior),
            "Was": lambda line: _short(calibration.was.get(line[1].name)),
            "Told by": lambda line: (
                ", ".join(witnesses(calibration, line[0])) or "no row"
            ),
        },
    )


def _range(values: FloatArray) -> str:
    return f"{values.min():.3g} .. {values.max():.3g}"


class Covered(NamedTuple):
    """Rows that were held against a band."""

    name: str
    """Name of the fold, the source or the class."""

    rows: int
    """Number of the rows."""

    share: float
    """Part of them that lies in the band."""


def _parts(calibration: Calibration) -> Iterator[Covered]:
    """Yield folds and sources, each with what they come to together."""
    folds, sources = calibration.coverage, calibration.coverage_new
    rows = sum(coverage.rows for coverage in folds.values())
    inside = sum(coverage.inside for coverage in folds.values())
    yield from _covered(folds)
    yield Covered("all folds", rows, inside / rows)
    rows = sum(coverage.rows for coverage in sources.values())
    share = float(np.mean([coverage.share for coverage in sources.values()]))
    yield from _covered(sources)
    yield Covered("all sources, each alike", rows, share)


def _covered(parts: Mapping[str, Coverage]) -> Iterator[Covered]:
    for name, coverage in parts.items():
        yield Covered(name, coverage.rows, coverage.share)


def _coverage_table(
    caption: str,
    lines: Iterator[Covered],
    **more: Callable[[Covered], str | Cell],
) -> DataTable:
    return DataTable.of(
        caption,
        lines,
        {
            "Name": lambda line: line.name,
            "Rows": lambda line: cell(line.rows, number),
            "In the band": lambda line: cell(line.share, percent),
            **more,
        },
    )


def _classes_table(calibration: Calibration) -> DataTable:
    """Return classes and chips: all public rows beside held-out ones, and bands."""
    observations = calibration.observations
    groups = grouped(
        (name, index)
        for index, observation in enumerate(observations)
        for name in _groups_of(observation)
    )
    folds, new = calibration.coverage_of_classes, calibration.coverage_of_new_classes

    def three(residuals: FloatArray, rows: Sequence[int]) -> str:
        errors = _errors(calibration, rows, residuals)
        parts = (errors.mape, errors.median_ape, errors.p90_ape)
        return ", ".join(percent(part) for part in parts)

    def chosen(name: str) -> list[int]:
        return [index for index in groups[name] if not observations[index].excluded]

    def shipped(name: str) -> str | Cell:
        sizes = {index: abs(calibration.fitted[index]) for index in groups[name]}
        inside = [
            size <= calibration.uncertainty.half_width(_setting(observations[index]))
            for index, size in sizes.items()
        ]
        return cell(float(np.mean(inside)), percent)

    def inside(coverages: Mapping[str, Coverage], name: str) -> str | Cell:
        return cell(coverages[name].share if name in coverages else None, percent)

    def width(name: str) -> str | Cell:
        known = calibration.uncertainty.measured.get(name)
        return cell(None if known is None else math.expm1(known), percent)

    return DataTable.of(
        "Classes and chips: mean, median and 90th percentile of errors",
        sorted(name for name in groups if len(groups[name]) >= COUNTED),
        {
            "Name": lambda name: name,
            "All rows": lambda name: cell(len(groups[name]), number),
            "Constants": lambda name: three(calibration.fitted, groups[name]),
            "In the band": shipped,
            "Fitted rows": lambda name: cell(len(chosen(name)), number),
            "Folds": lambda name: three(calibration.held_out, chosen(name)),
            "Folds in the band": lambda name: inside(folds, name),
            "Width": width,
            "Source left out, in the band": lambda name: inside(new, name),
        },
    )


def _setting(observation: Observation) -> Setting:
    return observation.case.setting(observation.row.source)


def _groups_of(observation: Observation) -> tuple[str, ...]:
    """Return classes of a row, its chip, and whether it is one of the dense."""
    setting = observation.case.setting()
    is_small = observation.row.source == LARGE_SINGLE
    kind = "experts" if setting.has_experts else "dense"
    apart = LARGE_SINGLE if is_small else f"{kind} but {LARGE_SINGLE}"
    names = (*setting.classes(), setting.chip, apart)
    return tuple(name for name in names if name != f"experts but {LARGE_SINGLE}")


def memory_document(misses: Sequence[Miss]) -> Document:
    """Return how wide bands of memory are, and what they cover."""
    deciles = memory_deciles(misses)

    def end(place: int) -> Callable[[Covered], str | Cell]:
        return lambda line: cell(math.expm1(deciles[line.name][place]), percent)

    lines = _covered(memory_coverage(misses))
    table = _coverage_table("By framework", lines, From=end(0), To=end(-1))
    return _document("BANDS OF MEMORY", table)


def curves_document(scores: Sequence[CurveScore]) -> Document:
    """Return how well curves of collectives are told, in the fit and held out."""

    def worst(score: CurveScore) -> str:
        key, error = score.worst[0]
        return (
            f"{key.operation} of {key.num_ranks} on {key.system}, "
            f"{percent(error)} on average"
        )

    return _document(
        "CURVES",
        DataTable.of(
            "Errors of collectives in a node",
            scores,
            {
                "Points": lambda score: score.name,
                "MAPE": lambda score: cell(score.error, percent),
                "MAPE of large messages": lambda score: cell(
                    score.error_of_large, percent
                ),
                "Worst curve": worst,
            },
        ),
    )


def transports_document(fit: TransportFit) -> Document:
    """Return errors in the fit and held out, then every constant with its range."""
    results = {
        "all of them": fit.in_sample,
        "the other four fifths of each curve": fit.folds,
        "all other curves": fit.curves_left_out,
        "all other sources": fit.sources_left_out,
    }
    return _document(
        "INTERCONNECTS",
        DataTable.of(
            "Errors by what is fitted to",
            results.items(),
            {
                "Rows predicted by the fit to": lambda line: line[0],
                "Curves": lambda line: cell(len(line[1].curves()), number),
                "Median curve": lambda line: cell(line[1].median_of_curves(), percent),
                "MAPE": lambda line: cell(line[1].errors().mape, percent),
            },
        ),
        DataTable.of(
            "Constants",
            fit.constants,
            {
                "Interconnect": lambda constant: constant.transport,
                "Constant": lambda constant: constant.constant,
                "Value": lambda constant: _short(constant.value),
                "Over folds": lambda constant: (
                    f"{constant.low:.4g} .. {constant.high:.4g}"
                ),
            },
        ),
    )
