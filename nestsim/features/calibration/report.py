"""Calibrations for people: tables of errors, constants and coverage."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nestsim.document.terminal import add_row, new_table
from nestsim.document.wording import percent, signed_percent
from nestsim.features.calibration.calibrate import Calibration, witnesses
from nestsim.features.calibration.transports import TransportFit
from nestsim.features.validation.collective_runner import CollectivesValidation
from nestsim.features.validation.metrics import Errors, errors_of, grouped
from topologies.arrays import FloatArray

LARGE_SINGLE = "vtrain_single"
"""Small models within a node: reported apart from the rest, 700 of 1,000 rows."""


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print everything that a refit says."""
    console.print(_errors_table(calibration))
    console.print()
    console.print(_constants_table(calibration))
    console.print()
    console.print(_coverage_table(calibration))
    console.print(_classes_table(calibration))
    console.print()
    for fold in calibration.sources:
        if fold.untold:
            names = ", ".join(fold.untold)
            console.print(Text(f"Without {fold.name}, no other row tells {names}."))
    console.print(Text(_left_out_sentence(calibration)))


def _errors_table(calibration: Calibration) -> Table:
    headings = (
        "Rows",
        "Was",
        "Fitted",
        "Folds",
        "Median",
        "90th pct",
        "Bias",
        "Kendall",
        "Left out",
    )
    table = new_table("Source", *headings, numbers=headings)
    fitted = [i for i, one in enumerate(calibration.observations) if not one.excluded]
    by_source = grouped((calibration.observations[i].row.source, i) for i in fitted)
    for source, rows in sorted(by_source.items()):
        add_row(table, source, *_error_cells(calibration, rows))
    rest = [i for i in fitted if calibration.observations[i].row.source != LARGE_SINGLE]
    if len(rest) < len(fitted):
        cells = _error_cells(calibration, rest)
        add_row(table, f"all but {LARGE_SINGLE}", *cells, style="bold")
    dense = [
        i for i in rest if not calibration.observations[i].case.model.num_moe_experts
    ]
    if len(dense) < len(rest):
        add_row(
            table, "of these, dense", *_error_cells(calibration, dense), style="bold"
        )
        routed = [index for index in rest if index not in set(dense)]
        cells = _error_cells(calibration, routed)
        add_row(table, "of these, experts", *cells, style="bold")
    add_row(
        table,
        "all that are fitted to",
        *_error_cells(calibration, fitted),
        style="bold",
    )
    excluded = [i for i, one in enumerate(calibration.observations) if one.excluded]
    if excluded:
        add_row(table, "excluded rows", *_error_cells(calibration, excluded))
    return table


def _error_cells(calibration: Calibration, rows: Sequence[int]) -> list[str]:
    folds = _errors(calibration, rows, calibration.held_out)
    left_out = _errors(calibration, rows, calibration.left_out)
    return [
        f"{len(rows):,}",
        percent(_errors(calibration, rows, calibration.before).mape),
        percent(_errors(calibration, rows, calibration.fitted).mape),
        percent(folds.mape),
        percent(folds.median_ape),
        percent(folds.p90_ape),
        signed_percent(folds.bias),
        "-" if np.isnan(folds.kendall_tau) else f"{folds.kendall_tau:.3f}",
        percent(left_out.mape) if left_out.rows else "-",
    ]


def _errors(
    calibration: Calibration, rows: Sequence[int], residuals: FloatArray
) -> Errors:
    known = [index for index in rows if not np.isnan(residuals[index])]
    measured = [calibration.observations[index].measured for index in known]
    predicted = [
        one * float(np.exp(residuals[index]))
        for one, index in zip(measured, known, strict=True)
    ]
    return errors_of(measured, predicted)


def _constants_table(calibration: Calibration) -> Table:
    numbers = ("Value", "Over folds", "Left out", "Prior", "Was")
    table = new_table("Constant", *numbers, "Told by", numbers=numbers)
    folds = np.exp([fold.logarithms for fold in calibration.folds])
    sources = np.exp([fold.logarithms for fold in calibration.sources])
    entries = calibration.entries("")
    for number, parameter in enumerate(calibration.fit.parameters):
        was = calibration.was.get(parameter.name)
        add_row(
            table,
            parameter.name,
            f"{entries[parameter.name].value:.4g}",
            _range(folds[:, number]),
            _range(sources[:, number]),
            f"{parameter.prior:.4g}",
            "-" if was is None else f"{was:.4g}",
            ", ".join(witnesses(calibration, number)) or "no row",
        )
    return table


def _range(values: FloatArray) -> str:
    return f"{values.min():.3g} .. {values.max():.3g}"


def _coverage_table(calibration: Calibration) -> Table:
    table = new_table(
        "Left out", "Rows", "In the band", numbers=("Rows", "In the band")
    )
    for parts in (calibration.coverage, calibration.coverage_new):
        for name, coverage in parts.items():
            add_row(table, name, f"{coverage.rows:,}", percent(coverage.share))
        rows = sum(coverage.rows for coverage in parts.values())
        if parts is calibration.coverage:
            share = sum(coverage.inside for coverage in parts.values()) / rows
            add_row(table, "all folds", f"{rows:,}", percent(share), style="bold")
        else:
            share = float(np.mean([coverage.share for coverage in parts.values()]))
            title = "all sources, each alike"
            add_row(table, title, f"{rows:,}", percent(share), style="bold")
    return table


def _classes_table(calibration: Calibration) -> Table:
    table = new_table(
        "Class",
        "Rows",
        "In the band",
        "Width",
        numbers=("Rows", "In the band", "Width"),
    )
    for name, coverage in calibration.coverage_of_classes.items():
        width = calibration.uncertainty.measured.get(name)
        shown = "-" if width is None else percent(float(np.expm1(width)))
        add_row(table, name, f"{coverage.rows:,}", percent(coverage.share), shown)
    return table


def _left_out_sentence(calibration: Calibration) -> str:
    mapes = [
        _errors(calibration, [int(i) for i in fold.left_out], calibration.left_out).mape
        for fold in calibration.sources
    ]
    return (
        f"A source left out is {percent(float(np.median(mapes)))} off in the median "
        f"source, {percent(max(mapes))} in the worst of {len(mapes)}."
    )


def print_transports(fit: TransportFit, console: Console) -> None:
    """Print errors in the fit and held out, then every constant with its range."""
    errors = Table("Rows predicted by the fit to", "Curves", "Median curve", "MAPE")
    for what, result in (
        ("all of them", fit.in_sample),
        ("the other four fifths of each curve", fit.folds),
        ("all other curves", fit.curves_left_out),
        ("all other sources", fit.sources_left_out),
    ):
        errors.add_row(
            what,
            str(len(result.curves())),
            f"{_median_curve(result):.1%}",
            f"{result.errors().mape:.1%}",
        )
    console.print(errors)
    constants = Table("Interconnect", "Constant", "Value", "Over folds")
    for constant in fit.constants:
        constants.add_row(
            constant.transport,
            constant.constant,
            f"{constant.value:.4g}",
            f"{constant.low:.4g} .. {constant.high:.4g}",
        )
    console.print(constants)


def _median_curve(result: CollectivesValidation) -> float:
    """Return the median over curves of each curve's median error."""
    return median(
        median(abs(point.error) for point in points)
        for points in result.curves().values()
    )
