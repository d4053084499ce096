"""Operator times from a measured profile instead of the roofline.

A shape that was measured takes the time that was measured. Between measured shapes the
logarithm of the achieved rate (FLOP/s of products and attention, byte/s of all else)
is interpolated over the logarithms of the sizes: linearly where memory traffic is the
only size, and by the inverse squared distance to the nearest shapes [1]_ where there
are several. Outside the range of the measured sizes the rate at its edge is kept, and
`ProfiledTimes.is_outside` says so. No pass takes less than the launch of a kernel.

Sizes: rows, columns, inner size and count of a product; FLOPs and bytes of fused
attention, which together tell the number of tokens from the width; bytes of all else.

References
----------
.. [1] D. Shepard, "A two-dimensional interpolation function for irregularly-spaced
   data", ACM National Conference, 1968.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from estimators.layers.work import OperatorWork
from estimators.models.spec import TransformerSpec
from estimators.operators.profile import PRODUCTS, Measurement, Profile
from estimators.operators.roofline import OperatorTime
from topologies.arrays import FloatArray
from topologies.errors import InputError

NEIGHBOURS = 6
"""Measured shapes that take part in one interpolation over several sizes: with the
four sizes of a product, about one on each side of those that vary."""


class OperatorTimes(Protocol):
    """Whatever knows how long an operator takes."""

    def operator_time(self, work: OperatorWork) -> OperatorTime:
        """Return forward and backward time of one operator."""


class _Curve(NamedTuple):
    """All measurements of one operation."""

    sizes: FloatArray
    """Base-2 logarithms of the measured sizes, shape ``(P, D)``."""

    log_rates: FloatArray
    """Natural logarithms of forward, backward and weight-gradient rate, NaN where a
    pass was not measured, shape ``(P, 3)``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfiledTimes:
    """Operator times on a measured device at one precision."""

    curves: Mapping[str, _Curve]
    """Operation -> measured rates by size."""

    names: Mapping[str, str]
    """Operation of a traced model -> its name in the profile, where that differs."""

    launch_time: float
    """Least time of a pass [s]."""

    precision: str
    """Number format of the measurements, for messages."""

    @classmethod
    def of(
        cls, profile: Profile, precision: str, spec: TransformerSpec
    ) -> "ProfiledTimes":
        """Take from a profile what concerns one architecture.

        Parameters
        ----------
        profile
            The measurements.
        precision
            Of weights, activations and products.
        spec
            Says which norm and which activation its layers have.

        Raises
        ------
        InputError
            If nothing was measured at this precision.
        """
        rows: dict[str, list[Measurement]] = {}
        for measurement in profile.measurements:
            if measurement.precision == precision:
                rows.setdefault(measurement.operation, []).append(measurement)
        if not rows:
            known = sorted(
                {measurement.precision for measurement in profile.measurements}
            )
            raise InputError(
                "the profile has no measurement in this number format",
                where="training.precision",
                got=precision,
                expected=f"one of {', '.join(known)}",
            )
        gated = spec.gated_linear_unit or spec.num_moe_experts > 0
        return cls(
            curves={name: _curve(measured) for name, measured in rows.items()},
            names={
                "norm": spec.normalization,
                "activation": "silu" if gated else "gelu",
            },
            launch_time=profile.launch_time,
            precision=precision,
        )

    def operator_time(self, work: OperatorWork) -> OperatorTime:
        """Return forward and backward time of one operator.

        Raises
        ------
        InputError
            If its operation was not measured.
        """
        amount = work.forward_flops or work.forward_bytes
        if amount <= 0:
            return OperatorTime(0.0, 0.0)
        log_rates = _interpolated(self._curve(work), _sizes_of_work(work))
        times = amount / np.exp(log_rates)
        forward, backward, weight = (
            0.0 if math.isnan(time) else max(float(time), self.launch_time)
            for time in times
        )
        has_weight = work.weight_flops > 0
        return OperatorTime(
            forward, backward, min(weight, backward) if has_weight else 0.0
        )

    def is_outside(self, work: OperatorWork) -> bool:
        """Say whether a size lies outside the range of what was measured."""
        sizes, measured = _sizes_of_work(work), self._curve(work).sizes
        beyond = (sizes < measured.min(axis=0)) | (sizes > measured.max(axis=0))
        return bool(beyond.any())

    def _curve(self, work: OperatorWork) -> _Curve:
        name = self.names.get(work.operation, work.operation)
        if name not in self.curves:
            raise InputError(
                f"the profile has no measurement of {name!r} in {self.precision}, "
                f"which {work.name or 'the model'} needs",
                expected=f"a profile with it; this one has {', '.join(self.curves)}",
                hint="measure again with a larger --budget",
            )
        return self.curves[name]


def _curve(measured: Sequence[Measurement]) -> _Curve:
    sizes = np.array([_sizes_of_measurement(measurement) for measurement in measured])
    log_rates = np.full((len(measured), 3), np.nan)
    for row, measurement in enumerate(measured):
        passes = (
            measurement.forward,
            measurement.backward,
            measurement.weight_gradient,
        )
        for column, timing in enumerate(passes):
            if timing is not None:
                log_rates[row, column] = math.log(measurement.work / timing.seconds)
    # Shapes of the same sizes, say as many bytes in other rows, count as one point.
    points, place = np.unique(sizes, axis=0, return_inverse=True)
    means = [log_rates[place.ravel() == i].mean(axis=0) for i in range(len(points))]
    return _Curve(points, np.array(means))


def _sizes_of_measurement(measurement: Measurement) -> FloatArray:
    if measurement.operation in PRODUCTS:
        return _logs(measurement.shape)
    if measurement.operation == "attention":
        return _logs((measurement.flops, measurement.num_bytes))
    return _logs((measurement.num_bytes,))


def _sizes_of_work(work: OperatorWork) -> FloatArray:
    if work.operation in PRODUCTS:
        return _logs((work.m, work.n, work.k, work.batch))
    if work.operation == "attention":
        return _logs((work.forward_flops, work.forward_bytes))
    return _logs((work.forward_bytes,))


def _logs(sizes: Sequence[float]) -> FloatArray:
    logs: FloatArray = np.log2(np.array(sizes, dtype=np.float64))
    return logs


def _interpolated(curve: _Curve, sizes: FloatArray) -> FloatArray:
    """Return the logarithms of the three rates at some sizes, shape ``(3,)``."""
    points, log_rates = curve
    at = np.clip(sizes, points.min(axis=0), points.max(axis=0))
    if points.shape[1] == 1:
        columns = [np.interp(at[0], points[:, 0], column) for column in log_rates.T]
        return np.array(columns)
    squared = ((points - at) ** 2).sum(axis=1)
    nearest = np.argsort(squared, kind="stable")[:NEIGHBOURS]
    if squared[nearest[0]] == 0.0:
        exact: FloatArray = log_rates[nearest[0]]
        return exact
    weights = 1.0 / squared[nearest]
    mean: FloatArray = weights @ log_rates[nearest] / weights.sum()
    return mean
