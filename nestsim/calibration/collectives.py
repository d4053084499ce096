"""Refit interconnects to curves of collectives, and print how far off they are."""

from statistics import median
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from nestsim.validation.fit_transports import TransportFit

if TYPE_CHECKING:
    from nestsim.validation.collective_runner import CollectivesResult


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
    for one in fit.constants:
        constants.add_row(
            one.transport,
            one.constant,
            f"{one.value:.4g}",
            f"{one.low:.4g} .. {one.high:.4g}",
        )
    console.print(constants)


def _median_curve(result: "CollectivesResult") -> float:
    """Return the median over curves of each curve's median error."""
    return median(
        median(abs(point.error) for point in points)
        for points in result.curves().values()
    )
