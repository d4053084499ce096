"""Fit what collective libraries reach to published curves, and cross-validate it.

Each interconnect has constants of its own, fitted to its rows in the logarithm of time
with a robust loss (soft L1), from the same start for all: nothing of an earlier fit
enters. A weak pull towards the start keeps constants there that no row decides; those
of one interconnect that another's rows decide better are tied to it.

Three ways of holding out: random points in five folds (how well a known curve is
filled in), whole curves, and whole sources. Where a source was all that was known of an
interconnect, its rows are predicted by constants fitted to the other machines' rows
together: what a machine never seen would get.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.collectives.transports import Transport, transports
from nestsim.features.validation.collective_rows import (
    CollectiveCase,
    predicted_time,
    read_collective,
)
from nestsim.features.validation.columns import Row, RowRefusedError
from nestsim.features.validation.results import (
    RowResult,
    ValidationResult,
    curve_of,
)

_LOSS_SCALE = 0.1
"""Relative errors beyond this count linearly."""

_PULL = 0.03
"""What a constant that is off its start by a factor e costs, as a relative error."""

START: Mapping[str, float] = MappingProxyType(
    {
        "launch": 15e-6,
        "per_rank": 2e-6,
        "per_doubling": 15e-6,
        "ramp": 20e-6,
        "efficiency": 0.8,
        "multicast_efficiency": 0.65,
        "send_launch": 10e-6,
        "send_efficiency": 0.85,
        "host_time": 25e-6,
        "arrival_a100": 40e-6,
        "arrival_h100": 40e-6,
    }
)
"""Values where fits begin, and that are taken where no row decides."""

HIGHEST: Mapping[str, float] = MappingProxyType(
    {
        "efficiency": 1.0,
        "multicast_efficiency": 1.0,
        "send_efficiency": 1.0,
    }
)
"""Upper bounds of the constants that are fractions."""

_LEAST, _MOST = 1e-7, 1e-2
"""Bounds of a constant that is a time [s]; the least fraction is 1 %."""


METHOD = ("host_time", "arrival_a100", "arrival_h100")
"""Constants of ways of measuring, which no interconnect has."""


def changed(transport: Transport, values: Mapping[str, float]) -> Transport:
    """Return a transport with other constants, by the law alone.

    A switch that is off stays off.
    """
    fields: dict[str, Any] = {
        name: value for name, value in values.items() if name not in METHOD
    }
    if not transport.multicast_efficiency:
        fields.pop("multicast_efficiency", None)
    return replace(transport, curves=None, **fields)


def solve(
    cases: Sequence[CollectiveCase],
    names: tuple[str, ...],
    tied: Mapping[str, float],
    methods: Mapping[str, float],
    highest: Mapping[str, float],
) -> dict[str, float]:
    """Return fitted and tied constants of the interconnect that cases are about.

    Parameters
    ----------
    cases
        What is fitted to.
    names
        Constants to fit.
    tied
        Constants that stay as they are.
    methods
        Those of ways of measuring, where they are not fitted here.
    highest
        Bounds of some of ``names``.
    """
    from scipy.optimize import least_squares

    measured = np.log([case.measured for case in cases])
    start = np.log([START[name] for name in names])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        values = {**tied, **dict(zip(names, np.exp(logs).tolist(), strict=True))}
        method = {name: values.get(name, methods[name]) for name in METHOD}
        predicted = [predicted_by(_with(case, values), method) for case in cases]
        return np.concatenate([np.log(predicted) - measured, _PULL * (logs - start)])

    low = np.log([0.01 if name in HIGHEST else _LEAST for name in names])
    high = np.log([highest.get(name, _MOST) for name in names])
    solved = least_squares(
        residuals,
        np.clip(start, low, high - 1e-3),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_LOSS_SCALE,
    )
    return {**tied, **dict(zip(names, np.exp(solved.x).tolist(), strict=True))}


def _with(case: CollectiveCase, values: Mapping[str, float]) -> CollectiveCase:
    """Return a case whose outermost interconnect has other constants."""
    if case.across is not None:
        return replace(case, across=changed(case.across, values))
    return replace(case, inside=changed(case.inside, values))


def predicted_by(case: CollectiveCase, methods: Mapping[str, float]) -> float:
    """Return the time of a case with other constants of its method [s]."""
    return predicted_time(
        case,
        host_times={"tests": 0.0, "kernel": 0.0, "torch": methods["host_time"]},
        arrival_times={
            name.removeprefix("arrival_"): value
            for name, value in methods.items()
            if name.startswith("arrival_")
        },
    )


NUM_FOLDS = 5
"""Folds that the points of curves are split into."""

_SEED = 5
"""Seed of the order in which points are dealt to folds."""


class _FitPlan(NamedTuple):
    """What is fitted of one interconnect, and what is taken from others."""

    fitted: tuple[str, ...]
    """Constants that are fitted to the interconnect's rows."""

    tied: Mapping[str, str]
    """Constant -> interconnect, fitted earlier, that it is taken from."""
    highest: Mapping[str, float] = MappingProxyType({})
    """Constant -> upper bound for this interconnect."""


_LATENCY = ("launch", "per_rank")
"""Constants of the latency of a collective."""

_SEND = ("send_launch", "send_efficiency")
"""Constants of a message from one device to another."""

_PLANS: Mapping[str, _FitPlan] = MappingProxyType(
    {
        # Rings reach no more than copies between two devices: 376 of 450 GB/s
        # (ml-engineering, p2pBandwidthLatencyTest).
        "nvswitch-h100": _FitPlan(
            (
                *_LATENCY,
                "ramp",
                "efficiency",
                "multicast_efficiency",
                *_SEND,
                "arrival_h100",
            ),
            {},
            {"efficiency": 376 / 450},
        ),
        "nvswitch-a100": _FitPlan(
            (*_LATENCY, "ramp", "efficiency", *_SEND, "arrival_a100"), {}
        ),
        "nvswitch-b200": _FitPlan(
            ("ramp", "efficiency", "multicast_efficiency", "host_time"),
            dict.fromkeys((*_LATENCY, "send_launch"), "nvswitch-h100"),
        ),
        "cube-mesh-v100": _FitPlan(
            (*_LATENCY, "ramp", "efficiency"), {"send_launch": "nvswitch-a100"}
        ),
        "pcie-peer": _FitPlan(("launch", "ramp", "efficiency"), {}),
        "nvlink-pair": _FitPlan(
            ("launch", "ramp", "efficiency", *_SEND), {"per_rank": "nvswitch-a100"}
        ),
        "default-fabric": _FitPlan(_SEND, dict.fromkeys(_LATENCY, "nvswitch-a100")),
        "efa": _FitPlan(
            ("per_doubling", "ramp", "efficiency"),
            dict.fromkeys(_LATENCY, "nvswitch-b200"),
        ),
        "nic-staged": _FitPlan(
            ("efficiency", *_SEND), dict.fromkeys(_LATENCY, "nvswitch-a100")
        ),
        "omni-path": _FitPlan(
            ("efficiency",), dict.fromkeys(_LATENCY, "nvswitch-a100")
        ),
    }
)
"""Interconnect -> what is fitted of it, in the order of the fits."""

_POOLED = ("nvswitch-a100", "nvswitch-b200", "nvswitch-h100")
"""Interconnects whose rows together tell what an unknown machine would get."""

_POOL = ("launch", "per_rank", "ramp", "efficiency", *_SEND)
"""Constants that are fitted to the rows of `_POOLED`."""

Constants = dict[str, dict[str, float]]
"""Interconnect -> constant -> value; those of methods under ``"methods"``."""


class TransportConstant(NamedTuple):
    """One constant and how firm it is."""

    transport: str
    """Name of the interconnect, ``"methods"`` for what belongs to ways of measuring."""
    constant: str
    """Name of the constant."""

    value: float
    """Value fitted to all rows, in the constant's unit."""

    low: float
    """Least value over the folds, in the constant's unit."""
    high: float
    """Largest value over the folds, in the constant's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportFit:
    """Fitted interconnects, and errors beside those of rows held out."""

    transports: Mapping[str, Transport]
    """Fitted interconnects, by name."""

    constants: tuple[TransportConstant, ...]
    """Fitted constants with their ranges over folds."""

    in_sample: ValidationResult
    """Predictions of every row by the fit to all of them."""

    folds: ValidationResult
    """Predictions of each fold by the fit to the others; points of a curve are spread
    over folds."""

    curves_left_out: ValidationResult
    """Predictions of each curve by the fit to all others."""

    sources_left_out: ValidationResult
    """Predictions of each source by the fit to all others."""


class _Point(NamedTuple):
    row: Row
    """Row as it was written."""

    case: CollectiveCase
    """Case that the row describes."""

    @property
    def transport(self) -> str:
        return (self.case.across or self.case.inside).name


def fit_transports(rows: Sequence[Row]) -> TransportFit:
    """Fit all interconnects that rows are about, and hold out in three ways.

    Rows that cannot be predicted are left out. The same rows give the same numbers.

    Parameters
    ----------
    rows
        Of a file about collectives.
    """
    points = _points(rows)
    fitter = _Fitter(points)
    everything = fitter.fit(frozenset(range(len(points))))
    sources = [point.row.source for point in points]
    curves = [str(curve_of(point.row, point.case)) for point in points]
    order = np.random.default_rng(_SEED).permutation(len(points)) % NUM_FOLDS
    folds = [str(fold) for fold in order.tolist()]
    fits = [fitter.fit(fitter.without(folds, str(fold))) for fold in range(NUM_FOLDS)]
    return TransportFit(
        transports={
            name: changed(transports()[name], values)
            for name, values in everything.items()
            if name != "methods"
        },
        constants=_table(everything, fits),
        in_sample=fitter.score(dict.fromkeys(range(len(points)), everything)),
        folds=fitter.held_out(folds),
        curves_left_out=fitter.held_out(curves),
        sources_left_out=fitter.held_out(sources),
    )


def _points(rows: Sequence[Row]) -> list[_Point]:
    points = []
    for row in rows:
        try:
            points.append(_Point(row, read_collective(row)))
        except RowRefusedError:
            continue
    return points


def _table(
    everything: Constants, fits: Sequence[Constants]
) -> tuple[TransportConstant, ...]:
    return tuple(
        TransportConstant(
            name,
            constant,
            value,
            min(fit.get(name, values)[constant] for fit in fits),
            max(fit.get(name, values)[constant] for fit in fits),
        )
        for name, values in everything.items()
        for constant, value in values.items()
        if name == "methods" or constant in _fitted_of(name)
    )


def _fitted_of(name: str) -> tuple[str, ...]:
    return _POOL if name == "default-node" else _PLANS[name].fitted


class _Fitter:
    """Fits to some of the points, and remembers what it has fitted."""

    def __init__(self, points: Sequence[_Point]) -> None:
        self.points = points
        self._done: dict[object, dict[str, float]] = {}

    def without(self, groups: Sequence[str], group: str) -> frozenset[int]:
        """Return the points of all other groups."""
        return frozenset(i for i, other in enumerate(groups) if other != group)

    def held_out(self, groups: Sequence[str]) -> ValidationResult:
        """Predict each group by a fit to all others."""
        fits: dict[int, Constants] = {}
        for group in dict.fromkeys(groups):
            fit = self.fit(self.without(groups, group))
            fits.update({i: fit for i, member in enumerate(groups) if member == group})
        return self.score(fits)

    def score(self, fits: Mapping[int, Constants]) -> ValidationResult:
        """Predict every point by its constants."""
        results = []
        for index, point in enumerate(self.points):
            constants = fits[index]
            case = point.case
            changes: dict[str, Any] = {"inside": _applied(case.inside, constants)}
            if case.across is not None:
                changes["across"] = _applied(case.across, constants)
            predicted = predicted_by(replace(case, **changes), constants["methods"])
            results.append(
                RowResult(
                    row=point.row,
                    measured=case.measured,
                    predicted=predicted,
                    collective=case,
                )
            )
        return ValidationResult(name="fit", kind="collectives", rows=tuple(results))

    def fit(self, chosen: frozenset[int]) -> Constants:
        """Fit everything that the chosen points are about."""
        methods = {name: START[name] for name in METHOD}
        fitted: Constants = {"methods": methods}
        for name, plan in _PLANS.items():
            points = tuple(i for i in sorted(chosen) if self._about(i) == name)
            if not points:
                continue
            tied = {
                constant: fitted[other].get(constant, START[constant])
                for constant, other in plan.tied.items()
                if other in fitted
            }
            bounds = {**HIGHEST, **plan.highest}
            values = self._least_squares(points, plan.fitted, tied, methods, bounds)
            methods.update({key: values.pop(key) for key in METHOD if key in values})
            fitted[name] = {**tied, **values}
        points = tuple(i for i in sorted(chosen) if self._about(i) in _POOLED)
        if points:
            fitted["default-node"] = self._least_squares(
                points, _POOL, {"multicast_efficiency": 0.0}, methods, HIGHEST
            )
            del fitted["default-node"]["multicast_efficiency"]
        return fitted

    def _about(self, index: int) -> str:
        return self.points[index].transport

    def _least_squares(
        self,
        points: tuple[int, ...],
        names: tuple[str, ...],
        tied: Mapping[str, float],
        methods: Mapping[str, float],
        highest: Mapping[str, float],
    ) -> dict[str, float]:
        """Return fitted and tied constants; robust, in the logarithms of both sides."""
        key = (points, names, *tied.items(), *methods.items())
        if key not in self._done:
            self._done[key] = solve(
                [self.points[i].case for i in points], names, tied, methods, highest
            )
        return dict(self._done[key])


def _applied(transport: Transport, constants: Constants) -> Transport:
    """Return a transport as fitted, or as that of a machine never seen."""
    if transport.name in constants:
        return changed(transport, constants[transport.name])
    unseen = constants.get("default-node", {}) if transport.scope == "node" else {}
    known: dict[str, Any] = {**START, **unseen, "multicast_efficiency": 0.0}
    if transport.scope == "node":
        known["per_doubling"] = 0.0
    known = {name: value for name, value in known.items() if name not in METHOD}
    return replace(transport, curves=None, **known)
