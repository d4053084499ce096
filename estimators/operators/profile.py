"""A profile of measured operator times, and layers timed by it.

Nothing here measures or needs torch: `estimators.measuring` makes a profile, and
`estimators.operators.profile` lets it stand in for the roofline of
`estimators.operators.roofline`. The file is JSON in SI units, one record a measured
shape.

Operator times from a measured profile instead of the roofline.

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

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from estimators.layers.work import OperatorWork
from estimators.models.spec import TransformerSpec
from estimators.operators.roofline import OperatorTime
from topologies.arrays import FloatArray
from topologies.errors import InputError, Problems, located
from topologies.input_file import Value, read_json

FORMAT = "nestsim profile 1"
"""First value of every file; changes when old files can no longer be read."""

PRECISIONS = ("bf16", "fp16", "fp32")
"""Number formats that operators are measured in."""

MAX_FILE = 16 * 2**20
"""Longest file that is read as a profile; a measured device takes some hundred kB
[byte]."""

MAX_MEASUREMENTS = 10_000
"""Most measurements of a profile: sorting them by size takes time with its square."""

_MOST = 2**53
_MOST_SIZES = 8
_SHORTEST = 1e-12

PRODUCTS = frozenset({"linear", "matmul"})
"""Operations whose shape is that of a matrix product."""


class OperatorTiming(NamedTuple):
    """One time, measured several times."""

    seconds: float
    """Median of the samples [s]."""

    spread: float
    """Distance from the first to the third quartile of the samples [s]."""

    samples: int
    """Number of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operator of one shape in one number format."""

    operation: str
    """Name of the operation, as `OperatorWork.operation`, but norms and activations by
    their own names: ``"layernorm"``, ``"rmsnorm"``, ``"gelu"``, ``"silu"``. ``"adam"``
    is a step of the optimizer, in fp32."""

    precision: str
    """Number format of the operation: ``"bf16"``, ``"fp16"`` or ``"fp32"``."""

    shape: tuple[int, ...]
    """Sizes of the operation: rows, columns, inner size and count of a product; batch,
    heads, tokens and head size of fused attention; the result's shape of an embedding;
    else the shape of the first tensor."""

    flops: float
    """FLOPs of the forward pass; 0 for what is bound by memory traffic [FLOP]."""

    num_bytes: float
    """Memory traffic of the forward pass as `OperatorWork` counts it [byte]."""

    forward: OperatorTiming
    """Time of the forward pass."""

    backward: OperatorTiming | None = None
    """Time of the whole backward pass; None where there is none."""

    weight_gradient: OperatorTiming | None = None
    """Time of the part of the backward pass that makes a weight's gradient; None where
    there is none."""

    @property
    def work(self) -> float:
        """What a rate is a rate of: FLOPs if there are any, else bytes."""
        return self.flops or self.num_bytes

    @property
    def timings(self) -> dict[str, OperatorTiming]:
        """The passes that were measured, by name."""
        named = {
            "forward": self.forward,
            "backward": self.backward,
            "weight_gradient": self.weight_gradient,
        }
        return {name: timing for name, timing in named.items() if timing is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured on one device."""

    device: str
    """Name of the device, as the driver or the operating system has it."""

    driver: str
    """Driver of the device and its toolkit; of a CPU the operating system."""

    date: str
    """Date of the measurement, as whoever asked for it gave it, e.g.
    ``"2026-03-31"``."""

    torch_version: str
    """Version of torch, whose operators were measured."""

    num_threads: int
    """Threads of a CPU that took part; 0 for an accelerator."""

    launch_time: float
    """Time of a kernel that does next to nothing, one after the other [s]."""

    measurements: tuple[Measurement, ...] = field(repr=False)
    """Measurements in the order in which they were made."""

    num_skipped: int = 0
    """Shapes that were planned, but that the time or the memory did not suffice for."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        rows = [_record(entry) for entry in self.measurements]
        return {"format": FORMAT, **values, "measurements": rows}

    @classmethod
    def from_json(cls, data: Any) -> "Profile":
        """Read back what `to_json` wrote.

        Raises
        ------
        InputError
            If it is no profile, or holds what cannot have been measured.
        """
        file_format = data.get("format") if isinstance(data, dict) else None
        if file_format != FORMAT:
            raise InputError(
                "is not a profile that this version reads",
                where="format",
                got=file_format,
                expected=f'"{FORMAT}", which nestsim profile writes',
            )
        file, problems = Value(data), Problems()
        rows = []
        with problems.noted():
            values = {name: read(file[name]) for name, read in _FACTS.items()}
        for row in file["measurements"].array(least=1, most=MAX_MEASUREMENTS):
            with problems.noted():
                rows.append(_measurement(row))
        problems.refuse()
        return cls(measurements=tuple(rows), **values)


def _record(measurement: Measurement) -> dict[str, Any]:
    """Return the record of one measurement."""
    passes = {name: timing._asdict() for name, timing in measurement.timings.items()}
    missing = dict.fromkeys(("backward", "weight_gradient"))
    return asdict(measurement) | {"shape": list(measurement.shape)} | missing | passes


def _measurement(row: Value) -> Measurement:
    """Read one record."""
    measurement = Measurement(
        operation=row["operation"].text(),
        precision=row["precision"].choice(PRECISIONS),
        shape=row["shape"].each(
            lambda size: size.whole(least=1, most=_MOST), least=1, most=_MOST_SIZES
        ),
        flops=row["flops"].number(),
        num_bytes=row["num_bytes"].number(least=1.0),
        forward=_timing(row["forward"]),
        backward=_timing_or_none(row["backward"]),
        weight_gradient=_timing_or_none(row["weight_gradient"]),
    )
    if measurement.operation in PRODUCTS and len(measurement.shape) != 4:
        expected = "rows, columns, inner size and count of a product"
        raise row["shape"].error("is not the shape of a product", expected)
    if measurement.operation == "attention" and not measurement.flops:
        raise row["flops"].error("attention has products", "a number above 0")
    return measurement


def _timing(value: Value) -> OperatorTiming:
    return OperatorTiming(
        seconds=value["seconds"].number(least=_SHORTEST),
        spread=value["spread"].number(),
        samples=value["samples"].whole(least=1, most=_MOST),
    )


def _timing_or_none(value: Value) -> OperatorTiming | None:
    return None if value.raw is None else _timing(value)


_FACTS: Mapping[str, Callable[[Value], Any]] = MappingProxyType(
    {
        "device": Value.text,
        "driver": Value.text,
        "date": Value.text,
        "torch_version": Value.text,
        "num_threads": lambda value: value.whole(least=0, most=_MOST),
        "launch_time": lambda value: value.number(),
        "num_skipped": lambda value: value.whole(least=0, most=_MOST),
    }
)
"""Entries of a profile beside its measurements, and how they are read."""


def read_profile(file: Path) -> Profile:
    """Read a profile from a file.

    Raises
    ------
    InputError
        If there is none, or it is damaged.
    """
    expected = "a file that nestsim profile wrote"
    with located(str(file), ": "):
        data = read_json(file, expected=expected, most_bytes=MAX_FILE)
        return Profile.from_json(data)


def write_profile(profile: Profile, file: Path) -> None:
    """Write a profile to a file.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    text = json.dumps(profile.to_json(), indent=1, allow_nan=False)
    file.write_text(f"{text}\n", encoding="utf-8")


def is_profile(ends: bytes) -> bool:
    """Return whether a file of this beginning and end is one of `write_profile`."""
    head = ends.decode("utf-8", errors="replace").split()
    return " ".join(head[:5]).startswith(f'{{ "format": "{FORMAT}"')


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
        if work.is_frozen:
            backward = max(backward - weight, 0.0)
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
