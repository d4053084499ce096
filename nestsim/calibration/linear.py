"""The fit of a linearised model: bounded, robust least squares with a prior.

Minimised over the logarithms ``x`` of the constants::

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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from nestsim.calibration.parameters import Parameter
from topologies.arrays import BoolArray, FloatArray, IntArray

_ROUNDS = 60
_CLOSE = 1e-7


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Box:
    """Prior and bounds of some parameters, in the logarithm."""

    prior: FloatArray
    sigma: FloatArray
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(cls, parameters: Sequence[Parameter]) -> "Box":
        """Return those of some parameters."""
        return cls(
            prior=np.log([one.prior for one in parameters]),
            sigma=np.array([one.sigma for one in parameters], dtype=np.float64),
            lower=np.log([one.lower for one in parameters]),
            upper=np.log([one.upper for one in parameters]),
        )

    def only(self, which: BoolArray) -> "Box":
        """Return those of a part of the parameters, by a mask."""
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
    """The parameters' logarithms where it was drawn up."""

    rows: IntArray
    """Indexes of the observations."""

    residuals: FloatArray
    """Of those, there."""

    jacobian: FloatArray
    """Of those, there; rows by parameters."""

    weights: FloatArray
    """Of those."""

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
    """Return the best parameters within ``trust`` of where the line was drawn up.

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
        found = lsq_linear(matrix, target, (lower, upper), tol=1e-12).x
        moved = float(np.max(np.abs(found - point), initial=0.0))
        point = found
        if moved < _CLOSE:
            break
    return np.clip(point, box.lower, box.upper)


def deviations(line: Line, box: Box, row_error: float) -> FloatArray:
    """Return standard deviations of the parameters' logarithms at the line's start.

    Of the Laplace approximation: the inverse of the curvature, rows and prior together.
    A parameter that no row tells has its prior's.
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
