"""A whole calibration: the fit, its folds, what they say of rows and constants.

Fitted values go into the file of constants, in which nothing else is touched. A
constant's entry is one line, ``name = { value = .., source = ".." }``, below the head
of its section. Entries that are there are replaced; new ones come after the last one of
their section, and new sections after the last one of their group.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nestsim.evaluate.uncertainty import Uncertainty
from nestsim.features.calibration.bands import (
    Coverage,
    HeldOutErrors,
    coverage_by,
    coverage_by_class,
    errors_of_folds,
    fitted_uncertainty,
)
from nestsim.features.calibration.fit import Box, Fit, Report, fit
from nestsim.features.calibration.held_out import (
    HeldOut,
    grouped_folds,
    hold_out,
    kind_folds,
    residuals_of,
    source_folds,
)
from nestsim.features.calibration.observations import (
    Observation,
    Residuals,
    constants_of,
    row_weights,
)
from nestsim.features.calibration.parameters import FitSpec
from topologies.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantEntry:
    """What is written of a constant."""

    value: float
    """Fitted value, in the constant's unit."""

    source: str
    """Measurements that the value comes from."""

    low: float
    """Least value over the folds."""

    high: float
    """Largest value over the folds."""

    def text(self, name: str) -> str:
        """Return the entry's line."""
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
        Text of the file.
    entries
        Dotted name, ``group.section.constant``, -> what is written.
    """
    lines = text.split("\n")
    for dotted, entry in entries.items():
        section, name = dotted.rsplit(".", 1)
        _write(lines, section, name, entry.text(name))
    return "\n".join(lines)


def _write(lines: list[str], section: str, name: str, line: str) -> None:
    heads = [number for number, text in enumerate(lines) if text.startswith("[")]
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


_INFORMED = 0.9
"""Sources of a constant are looked for if rows shrink its prior's deviation below this
part."""

_WITNESS = 0.1
"""A source informs of a constant if it has this part of all that rows say of it."""

_MOST_NAMED = 5
"""Sources that a constant's entry names."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Fitted constants, and how well they predict rows that they were not fitted to."""

    spec: FitSpec
    """What was fitted to which rows."""

    observations: tuple[Observation, ...]
    """Rows that can be predicted."""

    fit: Fit
    """The fit to all rows."""

    was: Mapping[str, float]
    """Dotted name -> value of the constants that there were."""

    before: FloatArray
    """``log(predicted / measured)`` of all rows under the constants that there were."""

    fitted: FloatArray
    """``log(predicted / measured)`` of all rows under the constants of the fit."""

    folds: tuple[HeldOut, ...]
    """Groups of rows left out in turn."""

    sources: tuple[HeldOut, ...]
    """Sources left out in turn."""

    uncertainty: Uncertainty
    """Bands of predictions, by the errors of the folds and of sources left out."""

    coverage: dict[str, Coverage]
    """Coverage of each fold, by the widths of the other folds."""

    coverage_of_classes: dict[str, Coverage]
    """Coverage of each class of jobs with many rows, over all folds."""

    coverage_new: dict[str, Coverage]
    """Coverage of each source left out, by the widths of the other sources."""

    coverage_of_new_classes: dict[str, Coverage]
    """Coverage of each class of jobs with many rows, over all sources left out."""

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
            sources = witnesses(self, number)
            source = (
                f"fit: {', '.join(sources)}; {date}"
                if sources
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
    progress: Report | None = None,
) -> Calibration:
    """Fit constants and hold rows and sources out.

    Parameters
    ----------
    evaluate
        Predicts rows; its constants are those that there were.
    spec
        What is fitted to which rows.
    start
        Values to start from instead.
    progress
        Called with a line on each step.
    """
    report = progress if progress is not None else _silent
    observations = evaluate.observations
    everything = np.arange(len(observations))
    before = evaluate.residuals({}, everything)
    full = fit(evaluate, spec, start=start, progress=progress)
    report("folds")
    folds = hold_out(evaluate, spec, full, grouped_folds(observations))
    report("sources left out")
    sources = hold_out(evaluate, spec, full, source_folds(observations))
    report("chips and kinds of models left out")
    kinds = hold_out(evaluate, spec, full, kind_folds(observations, full.rows))
    errors = HeldOutErrors(
        folds=errors_of_folds(observations, full.rows, folds),
        sources=errors_of_folds(observations, full.rows, sources),
        kinds=errors_of_folds(observations, full.rows, kinds),
    )
    changes = constants_of(full.parameters, full.logarithms)
    fitted = evaluate.residuals(changes, everything)
    uncertainty = fitted_uncertainty(errors, observations, fitted, spec.releases)
    return Calibration(
        spec=spec,
        observations=observations,
        fit=full,
        was=evaluate.constants.values,
        before=before,
        fitted=fitted,
        folds=folds,
        sources=sources,
        uncertainty=uncertainty,
        coverage=coverage_by(errors, None),
        coverage_of_classes=coverage_by_class(errors, None),
        coverage_new=coverage_by(errors, uncertainty),
        coverage_of_new_classes=coverage_by_class(errors, uncertainty),
    )


def _silent(_: str) -> None:
    return


def witnesses(calibration: Calibration, number: int) -> tuple[str, ...]:
    """Return the sources that inform of a constant, those that say most first.

    None if the rows leave its prior as wide as it was.
    """
    full = calibration.fit
    box = Box.of(full.parameters)
    if full.deviations[number] > _INFORMED * box.sigma[number]:
        return ()
    rows = [calibration.observations[index].row for index in full.rows]
    allowed = full.parameters[number].only_sources
    weights = row_weights(calibration.observations, full.rows)
    curvature: dict[str, float] = {}
    for row, weight, slope in zip(rows, weights, full.jacobian[:, number], strict=True):
        if not allowed or row.source in allowed:
            added = float(weight * slope**2)
            curvature[row.source] = curvature.get(row.source, 0.0) + added
    total = sum(curvature.values())
    ranked = sorted(curvature, key=lambda source: (-curvature[source], source))
    return tuple(
        source
        for source in ranked[:_MOST_NAMED]
        if curvature[source] >= _WITNESS * total
    )
