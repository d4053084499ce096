"""Least squares for the constants of one interconnect, robust and in logarithms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimators.collectives.transports import Transport
from nestsim.validation.collective_case import CollectiveCase, predicted_time

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
"""Where fits begin, and what is taken where no row decides."""

HIGHEST: Mapping[str, float] = MappingProxyType(
    {
        "efficiency": 1.0,
        "multicast_efficiency": 1.0,
        "send_efficiency": 1.0,
    }
)
"""Constants that have a bound."""

_LEAST, _MOST = 1e-7, 1e-2
"""Of a constant that is a time [s]; of fractions the least is 1 %."""


METHOD = ("host_time", "arrival_a100", "arrival_h100")


def changed(transport: Transport, values: Mapping[str, float]) -> Transport:
    """Return a transport with other constants; a switch that is off stays off."""
    fields: dict[str, Any] = {
        name: value for name, value in values.items() if name not in METHOD
    }
    if not transport.multicast_efficiency:
        fields.pop("multicast_efficiency", None)
    return replace(transport, **fields)


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
        said = [predicted_by(_with(case, values), method) for case in cases]
        return np.concatenate([np.log(said) - measured, _PULL * (logs - start)])

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
