"""A whole calibration: the fit, its folds, what they say of rows and constants.

Write fitted values into the file of constants, and touch nothing else in it.

A constant's entry is one line, ``name = { value = .., source = ".." }``, below the
head of its section. Entries that are there are replaced; new ones come after the last
one of their section, and new sections after the last one of their group.

Refit interconnects to curves of collectives, and print how far off they are.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from nestsim.calibration.bands import (
    Coverage,
    coverage_by,
    coverage_by_class,
    errors_of_folds,
    fitted_uncertainty,
)
from nestsim.calibration.cross_validation import (
    HeldOut,
    grouped_folds,
    hold_out,
    residuals_of,
    source_folds,
)
from nestsim.calibration.fit import Box, Fit, Tell, fit
from nestsim.calibration.observations import Observation, row_weights
from nestsim.calibration.parameters import FitSpec
from nestsim.calibration.residuals import Residuals, constants_of
from nestsim.calibration.transports import TransportFit
from nestsim.uncertainty import Uncertainty
from topologies.arrays import FloatArray

if TYPE_CHECKING:
    from nestsim.validation.collective_runner import CollectivesValidation


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantEntry:
    """What is written of a constant."""

    value: float
    source: str
    low: float
    """Least value over the folds."""

    high: float
    """Largest value over the folds."""

    def text(self, name: str) -> str:
        """Return its line."""
        source = self.source.replace("\\", "\\\\").replace('"', '\\"')
        return (
            f"{name} = {{ value = {self.value:.4g}, low = {self.low:.4g}, "
            f'high = {self.high:.4g}, source = "{source}" }}'
        )


def replace_entries(text: str, entries: Mapping[str, ConstantEntry]) -> str:
    """Return the text of a file of constants with other entries.

    Parameters
    ----------
    text
        Of the file.
    entries
        Dotted name, ``group.section.constant``, -> what is written.
    """
    lines = text.split("\n")
    for dotted, entry in entries.items():
        section, name = dotted.rsplit(".", 1)
        _write(lines, section, name, entry.text(name))
    return "\n".join(lines)


def _write(lines: list[str], section: str, name: str, line: str) -> None:
    heads = [number for number, one in enumerate(lines) if one.startswith("[")]
    head = next((n for n in heads if lines[n].strip() == f"[{section}]"), None)
    if head is None:
        group = section.split(".", maxsplit=1)[0]
        last = max(
            (n for n in heads if lines[n].startswith(f"[{group}.")),
            default=heads[-1] if heads else 0,
        )
        at = _end(lines, last)
        lines[at:at] = ["", f"[{section}]", line]
        return
    end = _end(lines, head)
    for number in range(head + 1, end):
        if re.match(rf"{re.escape(name)}\s*=", lines[number]):
            lines[number] = line
            return
    lines.insert(end, line)


def _end(lines: list[str], head: int) -> int:
    """Return the line after the last entry of a section."""
    end = head + 1
    for number in range(head + 1, len(lines)):
        if lines[number].startswith("["):
            break
        if re.match(r"\w+\s*=", lines[number]):
            end = number + 1
    return end


_TOLD = 0.9
"""A constant is told by rows if they shrink its prior's deviation below this part."""

_WITNESS = 0.1
"""A source tells a constant if it has this part of all that rows say about it."""

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """What came out of it."""

    spec: FitSpec
    observations: tuple[Observation, ...]
    fit: Fit
    was: Mapping[str, float]
    """The constants there were."""

    before: FloatArray
    """``log(predicted / measured)`` of all rows under the constants there were."""

    fitted: FloatArray
    """The same under those of the fit."""

    folds: tuple[HeldOut, ...]
    """Groups of rows left out in turn."""

    sources: tuple[HeldOut, ...]
    """Sources left out in turn."""

    uncertainty: Uncertainty
    coverage: dict[str, Coverage]
    """Of each fold, by the widths of the other folds."""

    coverage_of_classes: dict[str, Coverage]
    """Of each class of jobs with many rows, over all folds."""

    coverage_new: dict[str, Coverage]
    """Of each source left out, by the widths of the other sources."""

    @property
    def held_out(self) -> FloatArray:
        """Residuals of all rows in the folds."""
        return residuals_of(self.folds, len(self.observations))

    @property
    def left_out(self) -> FloatArray:
        """Residuals of the rows of each source, it being left out; NaN elsewhere."""
        return residuals_of(self.sources, len(self.observations))

    def entries(self, date: str) -> dict[str, ConstantEntry]:
        """Return what is to be written of each constant, tied ones included."""
        over_folds = np.array([fold.logarithms for fold in self.folds])
        written: dict[str, ConstantEntry] = {}
        for number, parameter in enumerate(self.fit.parameters):
            tellers = witnesses(self, number)
            source = (
                f"fit: {', '.join(tellers)}; {date}"
                if tellers
                else f"no row tells it: near its prior, {parameter.prior:g}; {date}"
            )
            value = float(np.exp(self.fit.logarithms[number]))
            spread = np.exp(over_folds[:, number])
            for name in (parameter.name, *parameter.tied):
                written[name] = ConstantEntry(
                    value=value,
                    source=source if name == parameter.name else f"as {parameter.name}",
                    low=min(value, float(spread.min())),
                    high=max(value, float(spread.max())),
                )
        return written


def calibrate(
    evaluate: Residuals,
    spec: FitSpec,
    *,
    start: Sequence[float] | None = None,
    tell: Tell | None = None,
) -> Calibration:
    """Fit constants and hold rows and sources out.

    Parameters
    ----------
    evaluate
        Predicts rows; its constants are those there were.
    spec
        What is fitted to which rows.
    start
        Values to start from instead.
    tell
        Told about each step.
    """
    say = tell if tell is not None else _silent
    observations = evaluate.observations
    everything = np.arange(len(observations))
    before = evaluate.residuals({}, everything)
    found = fit(evaluate, spec, start=start, tell=tell)
    say("folds")
    folds = hold_out(evaluate, spec, found, grouped_folds(observations))
    say("sources left out")
    sources = hold_out(evaluate, spec, found, source_folds(observations))
    measured = errors_of_folds(observations, folds, is_new=False)
    new = errors_of_folds(observations, sources, is_new=True)
    changes = constants_of(found.parameters, found.logarithms)
    return Calibration(
        spec=spec,
        observations=observations,
        fit=found,
        was=evaluate.constants.values,
        before=before,
        fitted=evaluate.residuals(changes, everything),
        folds=folds,
        sources=sources,
        uncertainty=fitted_uncertainty(measured, new, observations),
        coverage=coverage_by(measured),
        coverage_of_classes=coverage_by_class(measured),
        coverage_new=coverage_by(new),
    )


def _silent(_: str) -> None:
    return


def witnesses(found: Calibration, number: int) -> tuple[str, ...]:
    """Return the sources that tell a constant, those that tell most first.

    None if the rows leave its prior as wide as it was.
    """
    full = found.fit
    box = Box.of(full.parameters)
    if full.deviations[number] > _TOLD * box.sigma[number]:
        return ()
    rows = [found.observations[index] for index in full.rows]
    allowed = full.parameters[number].only_sources
    weights = row_weights(found.observations, full.rows)
    said: dict[str, float] = {}
    for one, weight, slope in zip(rows, weights, full.jacobian[:, number], strict=True):
        if not allowed or one.row.source in allowed:
            source = one.row.source
            said[source] = said.get(source, 0.0) + float(weight * slope**2)
    total = sum(said.values())
    ranked = sorted(said, key=lambda source: (-said[source], source))
    return tuple(
        source for source in ranked[:_MOST_NAMED] if said[source] >= _WITNESS * total
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
    for one in fit.constants:
        constants.add_row(
            one.transport,
            one.constant,
            f"{one.value:.4g}",
            f"{one.low:.4g} .. {one.high:.4g}",
        )
    console.print(constants)


def _median_curve(result: "CollectivesValidation") -> float:
    """Return the median over curves of each curve's median error."""
    return median(
        median(abs(point.error) for point in points)
        for points in result.curves().values()
    )
