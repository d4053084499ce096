"""A profile: the operator times that were measured on one device, as plain data.

Nothing here measures or needs torch: `estimators.measuring` makes a profile, and
`estimators.operators.profiled_times` lets it stand in for the roofline of
`estimators.operators.roofline`. The file is JSON in SI units, one record a measured
shape.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from topologies.errors import InputError, Problems
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
        found = data.get("format") if isinstance(data, dict) else None
        if found != FORMAT:
            raise InputError(
                "is not a profile that this version reads",
                where="format",
                got=found,
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
    found = Measurement(
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
    if found.operation in PRODUCTS and len(found.shape) != 4:
        expected = "rows, columns, inner size and count of a product"
        raise row["shape"].error("is not the shape of a product", expected)
    if found.operation == "attention" and not found.flops:
        raise row["flops"].error("attention has products", "a number above 0")
    return found


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
    try:
        data = read_json(file, expected=expected, most_bytes=MAX_FILE)
        return Profile.from_json(data)
    except InputError as error:
        raise error.at(str(file), ": ") from None


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
