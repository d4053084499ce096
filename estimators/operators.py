"""Time of one operator on one accelerator: a roofline with tiles and waves.

A matrix product runs in tiles, one tile on one compute unit at a time, so small
products leave units idle; a fused attention kernel reaches a fraction of the matrix
rate; everything else moves bytes. Each operator costs at least one kernel launch.

Letters: ``m n k`` a product's rows, columns and inner dimension; ``U`` compute
units; ``e`` the fraction of the datasheet's rate that full tiles reach.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
.. [2] NVIDIA, "Matrix Multiplication Background User's Guide", 2023: tile and wave
   quantisation, tile sizes and their relative efficiency.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import tomli

from estimators.layer_work import OperatorWork
from topologies import InputError
from topologies.accelerators import Accelerator

TILES = ((256, 128, 1.00), (128, 128, 0.92), (128, 64, 0.74), (64, 64, 0.50))
"""Rows, columns and relative efficiency of the tiles of a matrix product [2]_."""

MEMORY_EFFICIENCY = 0.8
"""Fraction of the datasheet's memory bandwidth that streaming kernels reach: between
the 0.75 to 0.9 that STREAM-like measurements of HBM devices report."""

LAUNCH_TIME = 5e-6
"""From one kernel's end to the next one's start when launches queue up [s]: 4 to 6
us on CUDA devices."""

ATTENTION_BACKWARD_SLOWDOWN = 1.15
"""A fused attention backward runs at 1/1.15 of the forward's rate: the atomics and
extra passes of FlashAttention-2 (Dao, 2023, figures 4 to 6)."""


class Efficiency(NamedTuple):
    """What one accelerator reaches, as fractions of its datasheet rate."""

    matmul: float
    attention: float
    source: str


@cache
def _efficiencies() -> dict[str, Any]:
    return tomli.loads(files("estimators").joinpath("efficiency.toml").read_text())


def efficiency_of(accelerator_name: str) -> Efficiency:
    """Return the fractions for the longest matching name, else the default ones.

    ``"a100-80gb"`` matches ``a100``, ``"tpu-v5e"`` itself.
    """
    table = _efficiencies()
    matches = [name for name in table if accelerator_name.startswith(name)]
    return Efficiency(**table[max(matches, key=len) if matches else "default"])


class OperatorTime(NamedTuple):
    """Forward and backward time of one operator [s]."""

    forward: float
    backward: float
    weight_gradient: float = 0.0
    """Part of `backward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """Operator times on one accelerator at one precision."""

    matmul_rate: float
    """Of full tiles on all compute units [FLOP/s]."""

    attention_rate: float
    """Of a fused attention kernel [FLOP/s]."""

    memory_rate: float
    """Of streaming kernels [byte/s]."""

    num_compute_units: int
    """Compute units ``U``."""

    element_bytes: int
    """Of an operand of a matrix product [byte]."""

    @classmethod
    def of(
        cls, accelerator: Accelerator, precision: str, element_bytes: int
    ) -> "OperatorModel":
        """Build the model of an accelerator.

        Raises
        ------
        InputError
            If the accelerator has no rate for the precision.
        """
        if precision not in accelerator.peak_flops:
            raise InputError(
                f"{accelerator.name} has no rate for this number format",
                where="training.precision",
                got=precision,
                expected=f"one of {', '.join(sorted(accelerator.peak_flops))}",
            )
        efficiency = efficiency_of(accelerator.name)
        peak = accelerator.peak_flops[precision]
        return cls(
            matmul_rate=peak * efficiency.matmul,
            attention_rate=peak * efficiency.attention,
            memory_rate=accelerator.memory_bandwidth * MEMORY_EFFICIENCY,
            num_compute_units=accelerator.num_compute_units,
            element_bytes=element_bytes,
        )

    def matmul_time(self, m: float, n: float, k: float, batch: float) -> float:
        """Return the time of ``batch`` products of shape ``(m, k) x (k, n)`` [s].

        ``w = ceil(m / tm) ceil(n / tn) batch / U`` waves of tiles, at least one; each
        wave takes ``2 tm tn k U / rate``. The fraction of a last wave is not rounded
        up: split-k and stream-k kernels fill it [2]_.
        """
        if min(m, n, k, batch) <= 0:
            return 0.0
        units = self.num_compute_units
        compute = min(
            max(1.0, math.ceil(m / tm) * math.ceil(n / tn) * batch / units)
            * (units * 2.0 * tm * tn * k)
            / (self.matmul_rate * relative)
            for tm, tn, relative in TILES
        )
        traffic = self.element_bytes * batch * (m * k + k * n + m * n)
        return max(compute, traffic / self.memory_rate) + LAUNCH_TIME

    def memory_time(self, num_bytes: float) -> float:
        """Return the time of a kernel bound by memory traffic [s]."""
        return num_bytes / self.memory_rate + LAUNCH_TIME if num_bytes > 0 else 0.0

    def operator_time(self, work: OperatorWork) -> OperatorTime:
        """Return forward and backward time of one operator.

        A product's backward pass is two products, priced as such: the gradient of
        the input ``(m, n) x (n, k)`` and of the weight ``(n, m) x (m, k)``. Only that
        of a weight can be put off: products of activations are one step of a chain.
        """
        if work.kind == "matmul":
            m, n, k, batch = work.m, work.n, work.k, work.batch
            first = self.matmul_time(m, k, n, batch)
            second = self.matmul_time(n, k, m, batch)
            return OperatorTime(
                self.matmul_time(m, n, k, batch),
                first + second,
                second if work.weight_flops > 0 else 0.0,
            )
        if work.kind == "attention":
            forward = work.forward_flops / self.attention_rate
            backward = work.backward_flops / self.attention_rate
            return OperatorTime(
                max(forward, work.forward_bytes / self.memory_rate) + LAUNCH_TIME,
                max(
                    backward * ATTENTION_BACKWARD_SLOWDOWN,
                    work.backward_bytes / self.memory_rate,
                )
                + LAUNCH_TIME,
            )
        assert work.kind == "memory", f"unknown operator kind {work.kind!r}"
        return OperatorTime(
            self.memory_time(work.forward_bytes), self.memory_time(work.backward_bytes)
        )
