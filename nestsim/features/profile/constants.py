"""Fit few constants to a user's own runs, beginning with the shipped ones.

The fit is that of `features.calibration`: logarithms of constants, a robust loss, and a
Gaussian prior for each. Here the prior is the shipped value, so that few rows move
little, and only what a user's runs inform of is fitted: what products and attention
reach of the accelerators, gaps between layers, the fixed time of a step, and what
collectives reach of links where all rows have links of one kind. Rows of one
``source_key`` share their habits: ``n`` of them count as ``sqrt(n)``. A table for
people says how firm each constant is.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType

import numpy as np

from estimators.collectives.transports import Scope
from estimators.constants import Constants, load_constants
from estimators.user_files import FRACTIONS, LINK_EFFICIENCIES, FittedEntry
from nestsim.features.calibration.fit import Box, Fit, fit
from nestsim.features.calibration.held_out import hold_out, residuals_of
from nestsim.features.calibration.observations import (
    Observation,
    Residuals,
    constants_of,
    read_observations,
)
from nestsim.features.calibration.parameters import FitSpec, Parameter, load_fit_spec
from nestsim.features.validation.case import Case, read_case
from nestsim.features.validation.columns import Measurements, Row, RowRefusedError
from nestsim.features.validation.predict import Predictor
from nestsim.features.validation.results import Errors, errors_of, grouped
from nestsim.features.validation.runner import measured_time
from planner.work import Progress
from topologies.arrays import FloatArray
from topologies.errors import InputError

FITTED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "accelerator": ("matmul", "matmul_8bit", "flash_attention", "fused_attention"),
        "software": ("layer_gap", "iteration_time", "iteration_time_many_nodes"),
    }
)
"""Group of constants -> those of each of its members that are fitted."""

NARROWER = 0.5
"""Deviation of a prior over that in ``fit.toml``, which is of what one would write down
without any measurement; shipped values were fitted. A choice."""

LINK_SIGMAS: Mapping[Scope, float] = MappingProxyType({"node": 0.1, "fabric": 0.4})
"""Deviation of the prior of what collectives reach of links, a choice: inside nodes
published curves say 0.78 to 0.92, between nodes 0.14 (Omni-Path) to 1 (EFA)."""

_LEAST_EFFICIENCY = 0.02
"""Least share of a link's bandwidth that a fit may find."""

TOLD = 0.9
"""Rows tell a constant if they shrink its prior's deviation below this part."""

FEWEST_LEFT_OUT = 4
"""With fewer different configurations none is left out: too little would be left."""

_MANY_ROWS = 64
"""Rows from which on several processes predict them: each process takes seconds to
begin."""

_NO_EFFECT = 1e-9
"""Largest derivative of a residual by a constant that counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnConstant:
    """One constant and what the rows say of it."""

    name: str
    """Dotted name in `estimators.constants`."""

    shipped: float
    """Shipped value, which is the prior."""

    value: float
    """Value with the rows, in the constant's unit."""

    prior_deviation: float
    """Standard deviation of the logarithm without the rows."""

    deviation: float
    """Standard deviation of the logarithm with the rows, by the curvature of the
    objective."""

    @property
    def is_told(self) -> bool:
        """Whether the rows say something of it."""
        return self.deviation <= TOLD * self.prior_deviation


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that cannot be expressed."""

    row_id: str
    """Name of the row."""

    code: str
    """Code of the reason, a key of `validation.columns.REFUSALS`."""

    reason: str
    """Reason in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCalibration:
    """What came out of a user's rows."""

    name: str
    """Name of the file."""

    num_rows: int
    """Rows that were fitted to."""

    constants: tuple[OwnConstant, ...]
    """Constants that the rows' times depend on, the accelerators' first."""

    before: Errors
    """Errors of the rows with the shipped constants."""

    after: Errors
    """Errors of the rows with the fitted constants."""

    left_out: Errors | None
    """Errors of each configuration with constants fitted to the others; None if there
    are fewer than `FEWEST_LEFT_OUT`."""

    refused: tuple[RefusedRow, ...]
    """Rows that cannot be predicted."""

    def entries(self) -> list[FittedEntry]:
        """Return what a file of constants has of each."""
        return [
            FittedEntry(
                name=constant.name,
                value=constant.value,
                shipped=constant.shipped,
                deviation=constant.deviation,
            )
            for constant in self.constants
        ]


def calibrate_runs(
    measurements: Measurements, *, progress: Progress | None = None
) -> RunCalibration:
    """Fit constants to the rows of a file, and say how far to trust them.

    Parameters
    ----------
    measurements
        A file about the time of a step.
    progress
        Called with every step.

    Raises
    ------
    InputError
        If the file is about something else, or no row can be predicted.
    """
    if measurements.kind != "throughput":
        raise InputError(
            "says nothing of the time of a step",
            where=measurements.name,
            got=f"a file about {measurements.kind}",
            expected="a column iter_time_s, or another that says how long a step took",
        )
    report = progress if progress is not None else _silent
    report("predict the rows", None)
    base, known = Predictor(load_constants()), load_fit_spec()
    rows = measurements.rows
    refused = tuple(one for row in rows if (one := _refusal(row, base)) is not None)
    bare = FitSpec(
        parameters=(), exclusions=(), row_error=known.row_error, cells={}, samples={}
    )
    observations = read_observations(rows, bare, base)
    if not observations:
        raise InputError(
            "has no row that can be predicted",
            where=measurements.name,
            got="; ".join(
                f"{refusal.row_id}: {refusal.reason}" for refusal in refused[:3]
            ),
            expected="rows as nestsim validate compares them",
        )
    parameters = run_parameters(observations, base.constants, known)
    everything = np.arange(len(observations))
    workers = (os.cpu_count() or 1) if len(observations) >= _MANY_ROWS else 1
    with Residuals(
        observations, base.constants, predictor=base, workers=workers
    ) as evaluate:
        spec = replace(bare, parameters=_with_effect(evaluate, parameters))
        full = fit(evaluate, spec, progress=lambda line: report(f"fit: {line}", None))
        fitted = constants_of(full.parameters, full.logarithms)
        report("leave each row out", None)
        return RunCalibration(
            name=measurements.name,
            num_rows=len(observations),
            constants=_fitted(full),
            before=_errors_of(observations, evaluate.residuals({}, everything)),
            after=_errors_of(observations, evaluate.residuals(fitted, everything)),
            left_out=_left_out(evaluate, spec, full),
            refused=refused,
        )


def _silent(_: str, __: float | None) -> None:
    return


def _refusal(row: Row, predictor: Predictor) -> RefusedRow | None:
    """Return why a row cannot be fitted to, None if it can."""
    try:
        case = predictor.settled(read_case(row))
        predictor.predict(case)
        measured_time(case, predictor.graph(case))
    except RowRefusedError as refusal:
        return RefusedRow(row_id=row.row_id, code=refusal.code, reason=refusal.reason)
    return None


def run_parameters(
    observations: Sequence[Observation], constants: Constants, known: FitSpec
) -> tuple[Parameter, ...]:
    """Return what is fitted: constants of the rows' devices and software.

    Each has the name that no other device or software shares but those that share
    the shipped constants' table.
    """
    cases = [case.case for case in observations]
    pairs = dict.fromkeys((case.accelerator.name, case.software.name) for case in cases)
    parameters: dict[str, Parameter] = {}
    for group, members in FITTED.items():
        for accelerator, software in pairs:
            named = {
                "accelerator": constants.accelerator(accelerator, software),
                "software": constants.software(software),
            }[group]
            whose = {"accelerator": (accelerator, software), "software": (software, "")}
            for constant in members:
                value = getattr(named, constant)
                name = constant_name(constants, group, *whose[group], constant)
                if value > 0:
                    parameters.setdefault(name, _parameter(name, value, known))
    return (*parameters.values(), *_link_parameters(cases))


def _link_parameters(cases: Sequence[Case]) -> list[Parameter]:
    """Return what is reached of links, where all rows take the same for it."""
    taken: dict[Scope, set[float]] = {"node": set(), "fabric": set()}
    for case in cases:
        inner, *outer = case.network.levels
        taken["node"].add(inner.efficiency)
        taken["fabric"].update(level.efficiency for level in outer)
    return [
        Parameter(
            name=name,
            prior=value,
            sigma=LINK_SIGMAS[scope],
            lower=min(value, _LEAST_EFFICIENCY),
            upper=1.0,
        )
        for scope, name in LINK_EFFICIENCIES.items()
        if len(taken[scope]) == 1
        for value in taken[scope]
    ]


def constant_name(
    constants: Constants, group: str, member: str, software: str, constant: str
) -> str:
    """Return the dotted name under which a member's own value of a constant stands.

    That of the longest table of the shipped constants whose name the member's begins
    with; without one, a table of the member's own. ``software`` is that which drives
    an accelerator: where both together have the constant, it is theirs.
    """
    sections = {
        name.split(".")[1] for name in constants.values if name.startswith(f"{group}.")
    }
    for section in sorted(sections, key=len, reverse=True):
        prefix, paired, framework = section.partition("-with-")
        if paired and member.startswith(prefix) and software.startswith(framework):
            name = f"{group}.{section}.{constant}"
            if name in constants.values:
                return name
    fitting = [section for section in sections if member.startswith(section)]
    return f"{group}.{max(fitting, key=len, default=member)}.{constant}"


def _parameter(name: str, value: float, known: FitSpec) -> Parameter:
    """Return a constant around its shipped value, as wide as ``fit.toml`` suggests."""
    constant = name.rsplit(".", 1)[1]
    alike = [
        parameter
        for parameter in known.parameters
        if parameter.name.endswith(f".{constant}")
    ]
    exact = [
        parameter for parameter in alike if name in {parameter.name, *parameter.tied}
    ]
    sigma = NARROWER * float(
        np.median([parameter.sigma for parameter in exact or alike])
    )
    upper = max(value, *(parameter.upper for parameter in alike))
    return Parameter(
        name=name,
        prior=value,
        sigma=sigma,
        lower=min(value, *(parameter.lower for parameter in alike)),
        upper=min(upper, 1.0) if constant in FRACTIONS else upper,
    )


def _with_effect(
    evaluate: Residuals, parameters: Sequence[Parameter]
) -> tuple[Parameter, ...]:
    """Return the constants that the time of some row depends on."""
    rows = np.arange(len(evaluate.observations))
    start = np.log([parameter.prior for parameter in parameters])
    slopes = evaluate.jacobian(
        parameters,
        start,
        evaluate.residuals(constants_of(parameters, start), rows),
        rows,
        [rows] * len(parameters),
    )
    largest = np.max(np.abs(slopes), axis=0)
    pairs = zip(parameters, largest, strict=True)
    return tuple(parameter for parameter, slope in pairs if slope > _NO_EFFECT)


def _fitted(full: Fit) -> tuple[OwnConstant, ...]:
    widths = Box.of(full.parameters).sigma
    return tuple(
        OwnConstant(
            name=parameter.name,
            shipped=parameter.prior,
            value=float(np.exp(full.logarithms[number])),
            prior_deviation=float(widths[number]),
            deviation=float(full.deviations[number]),
        )
        for number, parameter in enumerate(full.parameters)
    )


def _left_out(evaluate: Residuals, spec: FitSpec, full: Fit) -> Errors | None:
    """Return the errors of configurations left out, None if there are too few."""
    observations = evaluate.observations
    groups = grouped(
        (observation.group, index) for index, observation in enumerate(observations)
    )
    if len(groups) < FEWEST_LEFT_OUT:
        return None
    splits = {str(name): np.array(members) for name, members in groups.items()}
    folds = hold_out(evaluate, spec, full, splits)
    return _errors_of(observations, residuals_of(folds, len(observations)))


def _errors_of(observations: Sequence[Observation], residuals: FloatArray) -> Errors:
    measured = [observation.measured for observation in observations]
    predicted = np.array(measured) * np.exp(residuals)
    return errors_of(measured, predicted.tolist())


def calibration_json(calibration: RunCalibration) -> dict[str, object]:
    """Return a calibration as JSON values."""
    return {
        "file": calibration.name,
        "rows": calibration.num_rows,
        "constants": [
            asdict(item) | {"told_by_rows": item.is_told}
            for item in calibration.constants
        ],
        "errors": {
            "shipped": calibration.before._asdict(),
            "fitted": calibration.after._asdict(),
            "left_out": calibration.left_out._asdict()
            if calibration.left_out
            else None,
        },
        "refused": [asdict(item) for item in calibration.refused],
    }
