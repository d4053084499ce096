"""Fit constants to rows: Gauss-Newton steps within a region of trust.

Each step linearises the predictions, minimises the linear model's robust objective
with its bounds and priors, and is taken if the objective itself, of replayed rows,
falls. Derivatives are those of the planner's timeline. Constants that only some sources
inform of are fitted first, to those alone and together with all else; then they are
kept while the rest is fitted.

The objective is that of bounded, robust least squares with a prior, minimised over the
logarithms ``x`` of the constants::

    sum_i w_i rho(r_i(x) / e) + sum_k ((x_k - prior_k) / sigma_k)^2
    rho(z) = 2 (sqrt(1 + z^2) - 1),   r_i(x) = log(predicted_i / measured_i)

``rho`` grows as a square below ``z = 1`` and linearly above ("soft L1"), so that a row
that is far off for a reason of its own pulls no more than others. Solved by
reweighting: squares with ``w_i / sqrt(1 + z_i^2)`` have the same minimum.

References
----------
.. [1] P. Holland, R. Welsch, "Robust Regression Using Iteratively Reweighted
   Least-Squares", Communications in Statistics 6(9), 1977.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from nestsim.features.calibration.observations import (
    Residuals,
    constants_of,
    fitted_rows,
    row_weights,
)
from nestsim.features.calibration.parameters import FitSpec, Parameter
from topologies.arrays import BoolArray, FloatArray, IntArray

_ROUNDS = 60
"""Reweightings of a linear model at most."""

_CLOSE = 1e-7
"""A reweighting that moves no constant further ends, in the logarithm."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Box:
    """Prior and bounds of some parameters, in the logarithm."""

    prior: FloatArray
    """Logarithm of each prior."""

    sigma: FloatArray
    """Standard deviation of each prior's logarithm."""

    lower: FloatArray
    """Logarithm of each lower bound."""

    upper: FloatArray
    """Logarithm of each upper bound."""

    @classmethod
    def of(cls, parameters: Sequence[Parameter]) -> "Box":
        """Return the prior and bounds of some parameters."""
        return cls(
            prior=np.log([parameter.prior for parameter in parameters]),
            sigma=np.array([p.sigma for p in parameters], dtype=np.float64),
            lower=np.log([parameter.lower for parameter in parameters]),
            upper=np.log([parameter.upper for parameter in parameters]),
        )

    def only(self, which: BoolArray) -> "Box":
        """Return the box of a part of the parameters, by a mask."""
        return Box(
            prior=self.prior[which],
            sigma=self.sigma[which],
            lower=self.lower[which],
            upper=self.upper[which],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Residuals as a linear function of the parameters."""

    start: FloatArray
    """Logarithms of the parameters at the point of linearisation."""

    rows: IntArray
    """Indexes of the observations."""

    residuals: FloatArray
    """Residuals of the rows at the point of linearisation."""

    jacobian: FloatArray
    """Derivatives of the residuals at the point of linearisation, rows by
    parameters."""

    weights: FloatArray
    """How much each row counts."""

    def at(self, point: FloatArray) -> FloatArray:
        """Return the residuals elsewhere."""
        return np.asarray(self.residuals + self.jacobian @ (point - self.start))


def objective(
    residuals: FloatArray,
    weights: FloatArray,
    point: FloatArray,
    box: Box,
    row_error: float,
) -> float:
    """Return what is minimised."""
    scaled = residuals / row_error
    rows = 2.0 * (np.sqrt(1.0 + scaled**2) - 1.0)
    return float(weights @ rows + np.sum(((point - box.prior) / box.sigma) ** 2))


def solve(line: Line, box: Box, row_error: float, *, trust: float) -> FloatArray:
    """Return the best parameters within ``trust`` of the point of linearisation.

    Deterministic; the objective is convex, so that the start does not matter.
    """
    lower = np.maximum(box.lower, line.start - trust)
    upper = np.minimum(box.upper, line.start + trust)
    point = line.start
    for _ in range(_ROUNDS):
        roots = _row_roots(line.at(point), line.weights, row_error)
        matrix = np.vstack(
            [roots[:, np.newaxis] * line.jacobian, np.diag(1.0 / box.sigma)]
        )
        target = np.concatenate(
            [
                roots * (line.jacobian @ line.start - line.residuals),
                box.prior / box.sigma,
            ]
        )
        best = lsq_linear(matrix, target, (lower, upper), tol=1e-12).x
        moved = float(np.max(np.abs(best - point), initial=0.0))
        point = best
        if moved < _CLOSE:
            break
    return np.clip(point, box.lower, box.upper)


def deviations(line: Line, box: Box, row_error: float) -> FloatArray:
    """Return standard deviations of the parameters' logarithms at the line's start.

    Of the Laplace approximation: the inverse of the curvature, rows and prior together.
    A parameter that no row informs of has its prior's.
    """
    roots = _row_roots(line.residuals, line.weights, row_error)
    scaled = roots[:, np.newaxis] * line.jacobian
    curvature = scaled.T @ scaled + np.diag(box.sigma**-2)
    return np.asarray(np.sqrt(np.diag(np.linalg.inv(curvature))))


def _row_roots(
    residuals: FloatArray, weights: FloatArray, row_error: float
) -> FloatArray:
    scaled = residuals / row_error
    return np.asarray(np.sqrt(weights / np.sqrt(1.0 + scaled**2)) / row_error)


FIRST_TRUST = 1.0
"""How far a first step may go, in the logarithm."""

LEAST_TRUST = 0.02
"""A step that does not help within this ends the fit."""

CLOSE_STEP = 0.005
"""A step that moves no constant further ends the fit."""

LEAST_GAIN = 2e-3
"""A step that lowers the objective by less than this part ends the fit."""

Report = Callable[[str], None]
"""Called with a line on each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitStage:
    """Parameters that are fitted together, and the sources that they are fitted to."""

    free: tuple[bool, ...]
    """Whether each parameter is varied."""

    kept: tuple[bool, ...]
    """Whether each parameter keeps the value that comes out."""

    sources: tuple[str, ...]
    """Names of the sources; empty for all."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit:
    """What came out of a fit."""

    parameters: tuple[Parameter, ...]
    """Parameters that were fitted."""

    logarithms: FloatArray
    """Logarithms of the parameters' fitted values."""

    deviations: FloatArray
    """Standard deviations of `logarithms`; the prior's where no row informs."""

    rows: IntArray
    """Indexes of the observations that were fitted to."""

    residuals: FloatArray
    """Residuals of the rows under the fitted values."""

    jacobian: FloatArray
    """Derivatives of the residuals at the fitted values, rows by parameters."""

    @property
    def constants(self) -> dict[str, float]:
        """Return dotted name -> value."""
        return constants_of(self.parameters, self.logarithms)


def stages_of(parameters: Sequence[Parameter]) -> tuple[FitStage, ...]:
    """Return what is fitted in which order: the constants of fewest sources first."""
    kinds = list(dict.fromkeys(p.only_sources for p in parameters if p.only_sources))
    stages = []
    done: set[tuple[str, ...]] = set()
    for sources in [*kinds, ()]:
        stages.append(
            FitStage(
                free=tuple(p.only_sources not in done for p in parameters),
                kept=tuple(p.only_sources == sources for p in parameters),
                sources=sources,
            )
        )
        done.add(sources)
    return tuple(stages)


def fit(
    evaluate: Residuals,
    spec: FitSpec,
    *,
    start: Sequence[float] | None = None,
    most_steps: int = 12,
    progress: Report | None = None,
) -> Fit:
    """Fit the constants of ``spec`` to the observations of ``evaluate``.

    Parameters
    ----------
    evaluate
        Predicts rows; its base constants are where the fit starts from.
    spec
        What is fitted to which rows.
    start
        Values to start from instead.
    most_steps
        Steps of each stage at most.
    progress
        Called with a line on each step.
    """
    parameters = spec.parameters
    box = Box.of(parameters)
    known = evaluate.constants.values
    first = start or [known.get(p.name, p.prior) for p in parameters]
    point = np.clip(np.log(np.maximum(first, 1e-300)), box.lower, box.upper)
    touched = evaluate.touched(parameters, constants_of(parameters, point))
    rows = fitted_rows(evaluate.observations, spec)
    climb = _Climb(evaluate, spec, touched, most_steps, progress or _silent)
    for stage in stages_of(parameters):
        stage_rows = rows_of_sources(evaluate, rows, stage.sources)
        if len(stage_rows) == 0 or not any(stage.kept):
            point = np.where(stage.kept, box.prior, point)
            continue
        reached = climb.run(point, stage_rows, np.array(stage.free))
        point = np.where(stage.kept, reached, point)
    line = climb.line(point, rows, np.ones(len(parameters), dtype=np.bool_))
    return Fit(
        parameters=parameters,
        logarithms=point,
        deviations=_stage_deviations(evaluate, spec, line, rows),
        rows=rows,
        residuals=line.residuals,
        jacobian=line.jacobian,
    )


def rows_of_sources(
    evaluate: Residuals, rows: IntArray, sources: Sequence[str]
) -> IntArray:
    """Return those of some rows that are of some sources; all if none is named."""
    if not sources:
        return rows
    mask = [evaluate.observations[index].row.source in sources for index in rows]
    return rows[np.array(mask, dtype=np.bool_)]


def _stage_deviations(
    evaluate: Residuals, spec: FitSpec, line: Line, rows: IntArray
) -> FloatArray:
    """Return the deviations of each parameter by the rows that it is fitted to."""
    box = Box.of(spec.parameters)
    result = np.zeros(len(spec.parameters))
    for stage in stages_of(spec.parameters):
        is_used = np.isin(rows, rows_of_sources(evaluate, rows, stage.sources))
        free, kept = np.array(stage.free), np.array(stage.kept)
        part = Line(
            start=line.start[free],
            rows=rows[is_used],
            residuals=line.residuals[is_used],
            jacobian=line.jacobian[np.ix_(is_used, free)],
            weights=row_weights(evaluate.observations, rows[is_used]),
        )
        all_of_them = np.zeros(len(spec.parameters))
        all_of_them[free] = deviations(part, box.only(free), spec.row_error)
        result[kept] = all_of_them[kept]
    return result


def _silent(_: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class _Climb:
    """One stage's way down."""

    evaluate: Residuals
    """Predicts rows."""

    spec: FitSpec
    """What is fitted to which rows."""

    touched: Sequence[IntArray]
    """Indexes of the rows that each parameter touches."""

    most_steps: int
    """Steps at most."""

    progress: Report
    """Called with a line on each step."""

    def line(
        self,
        point: FloatArray,
        rows: IntArray,
        free: BoolArray,
        residuals: FloatArray | None = None,
    ) -> Line:
        """Linearise at a point; columns of parameters that are not free are zero."""
        parameters = self.spec.parameters
        if residuals is None:
            changes = constants_of(parameters, point)
            residuals = self.evaluate.residuals(changes, rows)
        none = np.zeros(0, dtype=np.int64)
        touched = [
            rows_touched if varied else none
            for rows_touched, varied in zip(self.touched, free, strict=True)
        ]
        jacobian = self.evaluate.jacobian(parameters, point, residuals, rows, touched)
        weights = row_weights(self.evaluate.observations, rows)
        return Line(
            start=point,
            rows=rows,
            residuals=residuals,
            jacobian=jacobian,
            weights=weights,
        )

    def run(self, point: FloatArray, rows: IntArray, free: BoolArray) -> FloatArray:
        """Return where the objective of some rows is least."""
        box, error = Box.of(self.spec.parameters), self.spec.row_error
        weights = row_weights(self.evaluate.observations, rows)
        residuals = self.evaluate.residuals(
            constants_of(self.spec.parameters, point), rows
        )
        value = objective(residuals, weights, point, box, error)
        self.progress(f"{len(rows)} rows, {int(free.sum())} constants: {value:.2f}")
        trust = FIRST_TRUST
        for number in range(self.most_steps):
            line = self.line(point, rows, free, residuals)
            step = self._step(line, box, free, (value, trust))
            # Rows as they were predicted leave nothing to gain.
            gain = (value - step.value) / max(value, 1e-300)
            point, residuals, value, trust = step
            moved = float(np.max(np.abs(point - line.start)))
            mape = float(np.mean(np.abs(np.expm1(residuals))))
            self.progress(
                f"step {number + 1}: {value:.2f}, moved {moved:.3f}, MAPE {mape:.2%}"
            )
            if moved < CLOSE_STEP or gain < LEAST_GAIN:
                break
        return point

    def _step(
        self,
        line: Line,
        box: Box,
        free: BoolArray,
        now: tuple[float, float],
    ) -> "_Step":
        """Go where the line is lowest, less far if that does not help."""
        parameters, error = self.spec.parameters, self.spec.row_error
        value, trust = now
        while trust >= LEAST_TRUST:
            tried = _solve_part(line, box, free, error, trust)
            there = self.evaluate.residuals(constants_of(parameters, tried), line.rows)
            lower = objective(there, line.weights, tried, box, error)
            if lower < value:
                return _Step(tried, there, lower, min(2.0 * trust, FIRST_TRUST))
            trust /= 4.0
        return _Step(line.start, line.residuals, value, FIRST_TRUST)


class _Step(NamedTuple):
    """Where a step leads."""

    point: FloatArray
    """Logarithms of the parameters."""

    residuals: FloatArray
    """Residuals of the rows there."""

    value: float
    """Objective there."""

    trust: float
    """How far the next step may go, in the logarithm."""


def _solve_part(
    line: Line, box: Box, free: BoolArray, row_error: float, trust: float
) -> FloatArray:
    """Solve for the free parameters; the others stay."""
    part = replace(line, start=line.start[free], jacobian=line.jacobian[:, free])
    result = line.start.copy()
    result[free] = solve(part, box.only(free), row_error, trust=trust)
    return result
