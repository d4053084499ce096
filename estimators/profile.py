"""A profile: the operator times that were measured on one device, as plain data.

Nothing here measures or needs torch: `estimators.measuring` makes a profile, and
`estimators.profiled_times` lets it stand in for the roofline of
`estimators.operators`. The file is JSON in SI units, one record a measured shape.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from topologies.errors import InputError

FORMAT = "nestsim profile 1"
"""First value of every file; changes when old files can no longer be read."""

PRODUCTS = frozenset({"linear", "matmul"})
"""Operations whose shape is that of a matrix product."""


class Timing(NamedTuple):
    """One time, measured several times."""

    seconds: float
    """Median [s]."""

    spread: float
    """From the first to the third quartile [s]."""

    samples: int
    """How many times it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operator of one shape in one number format."""

    operation: str
    """As `OperatorWork.operation`, but norms and activations by their own names:
    ``"layernorm"``, ``"rmsnorm"``, ``"gelu"``, ``"silu"``. ``"adam"`` is a step of the
    optimizer, in fp32."""

    precision: str
    """``"bf16"``, ``"fp16"`` or ``"fp32"``."""

    shape: tuple[int, ...]
    """Rows, columns, inner size and count of a product; batch, heads, tokens and head
    size of fused attention; the result's shape of an embedding; else the shape of the
    first tensor."""

    flops: float
    """Of the forward pass; 0 for what is bound by memory traffic [FLOP]."""

    num_bytes: float
    """Memory traffic of the forward pass as `OperatorWork` counts it [byte]."""

    forward: Timing
    """Of the forward pass."""

    backward: Timing | None = None
    """Of the whole backward pass; None where there is none."""

    weight_gradient: Timing | None = None
    """Of the part of the backward pass that makes a weight's gradient."""

    @property
    def work(self) -> float:
        """What a rate is a rate of: FLOPs if there are any, else bytes."""
        return self.flops or self.num_bytes

    @property
    def timings(self) -> dict[str, Timing]:
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
    """As the driver or the operating system calls it."""

    driver: str
    """Of the device and its toolkit; of a CPU the operating system."""

    date: str
    """When it was measured, as whoever asked for it says, e.g. ``"2026-03-31"``."""

    torch_version: str
    """Whose operators were measured."""

    num_threads: int
    """Of a CPU that took part; 0 for an accelerator."""

    launch_time: float
    """Time of a kernel that does next to nothing, one after the other [s]."""

    measurements: tuple[Measurement, ...] = field(repr=False)
    """In the order in which they were made."""

    num_skipped: int = 0
    """Shapes that were planned, but that the time or the memory did not suffice for."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        rows = [_record(one) for one in self.measurements]
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
        try:
            values = {one.name: data[one.name] for one in fields(cls)}
            rows = [_measurement(row) for row in values.pop("measurements")]
            profile = cls(measurements=tuple(rows), **values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"has a record that cannot be read: {error!r}",
                where="measurements",
                expected="what nestsim profile wrote, unchanged",
            ) from None
        return profile


def _record(one: Measurement) -> dict[str, Any]:
    """Return the record of one measurement."""
    passes = {name: timing._asdict() for name, timing in one.timings.items()}
    missing = dict.fromkeys(("backward", "weight_gradient"))
    return asdict(one) | {"shape": list(one.shape)} | missing | passes


def _measurement(row: Mapping[str, Any]) -> Measurement:
    """Read one record; what is wrong shows as ValueError and the like."""
    values = dict(row)
    values["forward"] = Timing(**row["forward"])
    for name in ("backward", "weight_gradient"):
        values[name] = None if row[name] is None else Timing(**row[name])
    values["shape"] = tuple(int(count) for count in row["shape"])
    found = Measurement(**values)
    times = [timing.seconds for timing in found.timings.values()]
    positive = (*times, found.num_bytes, *found.shape)
    if not all(math.isfinite(one) and one > 0 for one in positive):
        raise ValueError(f"{found.operation} {found.shape} has a size or time of 0")
    if found.operation in PRODUCTS and len(found.shape) != 4:
        raise ValueError(f"{found.operation} {found.shape} is no product")
    return found


def read_profile(file: Path) -> Profile:
    """Read a profile from a file.

    Raises
    ------
    InputError
        If there is none, or it is damaged.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
        raise InputError(
            problem,
            where=str(file),
            expected="a file that nestsim profile wrote",
        ) from None
    except ValueError:
        raise InputError(
            "is not JSON",
            where=str(file),
            expected="a file that nestsim profile wrote",
        ) from None
    try:
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
