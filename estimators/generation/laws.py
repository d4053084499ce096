"""How long kernels take that generation has and training does not.

One new token of a sequence reads all keys and values before it. Its kernel takes

    t = t0 + c q + max(bytes / (e B), FLOP / (f P))

with ``q`` numbers of all queries, ``B`` the bandwidth of the memory, ``P`` the rate of
products in 16 bits. Heads of keys and values are read once for all their queries, which
is bound by the bandwidth; latent attention reads so few bytes for so many heads that
its products count, too. Time is a line over the keys of all sequences together, which
lets `estimators.generation.batching` take many steps at once.

Products of few rows are close to what tables of more rows say of them
(`estimators.operators.shape_tables`), but for a factor of chip and number format; it
fades from 64 to 256 rows.

Tensor-parallel ranks add up small messages: engines do that with kernels of their own,
which read the neighbours' memory, in a third to a tenth of NCCL's time.

Constants stand in ``decode_laws.toml``, with their source and the errors of curves that
were held out; chips without tables take those of a relative
(`estimators.operators.shape_tables.measured_relative`).
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypedDict, cast

import tomli

from estimators.collectives.curves import MeasuredCurves, read_curves
from estimators.operators.shape_tables import measured_relative
from topologies.accelerators import Accelerator

SMALL_ROWS = 64
"""Rows of a product up to which the factor of small products holds; from four times as
many on there is none."""


class _Laws(TypedDict):
    """What ``decode_laws.toml`` holds."""

    attention: dict[str, list[float]]
    latent: dict[str, list[float]]
    small_products: dict[str, list[float]]
    all_reduce: dict[str, dict[str, object]]


@cache
def _laws() -> _Laws:
    file = files("estimators.generation").joinpath("decode_laws.toml")
    laws: _Laws = cast("_Laws", tomli.loads(file.read_text("utf-8")))
    return laws


def _attention(*, latent: bool) -> dict[str, list[float]]:
    return _laws()["latent"] if latent else _laws()["attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw:
    """Time of attention of one new token of each sequence, on one chip."""

    kernel: float
    """Time of a kernel with next to no keys [s]."""

    per_query: float
    """Time of each number of all queries [s]."""

    bandwidth: float
    """Rate at which keys and values are read [byte/s]."""

    rate: float
    """Rate of products; infinite where the bandwidth alone counts [FLOP/s]."""

    @classmethod
    def of(
        cls, accelerator: Accelerator, width: float, *, latent: bool
    ) -> "AttentionLaw":
        """Return that of an accelerator.

        Parameters
        ----------
        accelerator
            The device.
        width
            Size of a cached number; less than 2 is taken as 1 was measured [byte].
        latent
            Whether attention is latent.
        """
        table = _attention(latent=latent)
        chip = measured_relative(accelerator.constants_name)
        usual = "h100-sxm" if latent else "a100-80gb"
        measured = 2 if width >= 2.0 else 1
        names = (f"{name}/{size}" for size in (measured, 2) for name in (chip, usual))
        values = table[next(name for name in names if name in table)]
        peaks = accelerator.peak_flops
        peak = peaks.get("bf16") or peaks.get("fp16") or max(peaks.values())
        return cls(
            kernel=values[0],
            per_query=values[1],
            bandwidth=values[2] * accelerator.memory_bandwidth,
            rate=values[3] * peak if latent else math.inf,
        )

    def per_key(self, num_bytes: float, flops: float) -> float:
        """Return the time of a key that one sequence reads [s].

        Parameters
        ----------
        num_bytes, flops
            Of a key, all heads of the device together [byte, FLOP].
        """
        return max(num_bytes / self.bandwidth, flops / self.rate)


def held_out_error(chip: str, width: int, *, latent: bool = False) -> float:
    """Return the median error of a law on curves that were held out."""
    return _attention(latent=latent)[f"{chip}/{width}"][-1]


def small_product_factor(
    accelerator: Accelerator, number_format: str, rows: float
) -> float:
    """Return what a product takes of what tables say of it.

    Parameters
    ----------
    accelerator
        The device.
    number_format
        Of its operands.
    rows
        Of its result: tokens.
    """
    if rows >= 4 * SMALL_ROWS:
        return 1.0
    chip = measured_relative(accelerator.constants_name)
    plain, narrow = _laws()["small_products"].get(chip, (1.0, 1.0))
    part = plain if number_format in {"bf16", "fp16"} else narrow
    faded = max(0.0, math.log2(rows / SMALL_ROWS) / 2)
    return math.pow(part, 1.0 - faded)


@cache
def all_reduce_curves(accelerator_name: str) -> MeasuredCurves | None:
    """Return all-reduces of engines' own kernels in a node; None if not measured."""
    table = _laws()["all_reduce"].get(measured_relative(accelerator_name))
    return None if table is None else read_curves(table)
