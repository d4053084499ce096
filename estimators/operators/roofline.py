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
from typing import NamedTuple

from estimators.constants import (
    AcceleratorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.layers.work import OperatorWork
from estimators.software import IDEAL, Software
from estimators.training import NARROW_FORMATS, TrainingSpec
from topologies import InputError
from topologies.accelerators import Accelerator

TILES = ((256, 128, 1.00), (128, 128, 0.92), (128, 64, 0.74), (64, 64, 0.50))
"""Rows, columns and relative efficiency of the tiles of a matrix product [2]_."""

LAUNCH_TIME = 5e-6
"""Time from one kernel's end to the next one's start when launches queue up [s]: 4 to 6
us on CUDA devices."""

GRAPH_LAUNCH_TIME = 0.5e-6
"""Time from one kernel's end to the next one's start inside a CUDA graph [s]: kernels
of 2.9 us follow each other every 3.4 us (A. Gray, "Getting Started with CUDA Graphs",
NVIDIA, 2019)."""

ATTENTION_BACKWARD_SLOWDOWN = 1.15
"""Factor of a fused attention's forward rate over its backward rate: the atomics and
extra passes of FlashAttention-2 (Dao, 2023, figures 4 to 6)."""


_ALIGNMENT = 8
"""Multiple of elements that matrix units need, 16 bytes of 16-bit numbers [2]_, section
"Tensor Core Requirements"."""

_NARROW_TRAFFIC = 1.5
"""Bytes per operand and result of an 8-bit product: operands in 8 bits, results in
16, and the cast before it fused with what comes before [byte]."""


def _peak(accelerator: Accelerator, precision: str, where: str) -> float:
    if precision not in accelerator.peak_flops:
        raise InputError(
            f"{accelerator.name} has no rate for this number format",
            where=where,
            got=precision,
            expected=f"one of {', '.join(sorted(accelerator.peak_flops))}",
        )
    return accelerator.peak_flops[precision]


def _narrow_rate(
    accelerator: Accelerator, narrow: str, reached: AcceleratorConstants
) -> float:
    """Return the rate of products with operands in a narrow format [FLOP/s]."""
    known = NARROW_FORMATS[narrow]
    rate = _peak(accelerator, known.rate, "training.matmul_precision")
    return rate * (reached.matmul_4bit if known.bits == 4 else reached.matmul_8bit)


def _attention(reached: AcceleratorConstants, software: Software) -> float:
    """Return the part of the matrix rate that attention reaches with many keys."""
    if software.attention_kernel == "fused":
        return reached.fused_attention
    return reached.flash_attention


class OperatorTime(NamedTuple):
    """Forward and backward time of one operator [s]."""

    forward: float
    """Time of the forward pass [s]."""
    backward: float
    """Time of the backward pass, with the weight's gradient [s]."""
    weight_gradient: float = 0.0
    """Part of `backward` that the weight's gradient takes [s]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """Operator times on one accelerator at one precision."""

    matmul_rate: float
    """Rate of products of activations: full tiles on all compute units [FLOP/s]."""

    weight_matmul_rate: float
    """Rate of products with weights, in the format that the job has for them
    [FLOP/s]."""

    attention_rate: float
    """Rate of a fused attention kernel with many keys [FLOP/s]."""

    attention_half_length: float
    """Number of keys with which fused attention reaches half of its rate."""

    memory_rate: float
    """Memory traffic of streaming kernels [byte/s]."""

    num_compute_units: int
    """Number ``U`` of compute units."""

    wave_quantisation: float
    """Part ``z`` of an unfilled wave's idle time that is lost."""

    launch_time: float
    """Time from one kernel's end to the next one's start [s]."""

    element_bytes: int
    """Size of an operand's element of a matrix product [byte]."""

    weight_element_bytes: float
    """Size of an operand's or result's element of a product with weights, on average
    [byte]."""

    software: SoftwareConstants
    """Constants of what the framework fuses away of the traffic, and of what unaligned
    sizes cost."""

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        training: TrainingSpec,
        software: Software = IDEAL,
        constants: Constants | None = None,
    ) -> "OperatorModel":
        """Build the model of an accelerator.

        Parameters
        ----------
        accelerator
            The device.
        training
            Number formats.
        software
            Which kernels are used, and how well they are fused.
        constants
            Fractions of datasheet rates; those that are shipped if None.

        Raises
        ------
        InputError
            If the accelerator has no rate for the precision.
        """
        known = load_constants() if constants is None else constants
        reached = known.accelerator(accelerator.constants_name, software.name)
        peak = _peak(accelerator, training.precision, "training.precision")
        narrow = training.matmul_precision
        weight_rate = peak * reached.matmul
        if narrow:
            # Where a narrow format has no faster units, no kernel has to use them.
            weight_rate = max(weight_rate, _narrow_rate(accelerator, narrow, reached))
        return cls(
            matmul_rate=peak * reached.matmul,
            weight_matmul_rate=weight_rate,
            attention_rate=peak * _attention(reached, software),
            attention_half_length=reached.attention_half_length,
            memory_rate=accelerator.memory_bandwidth * reached.memory,
            num_compute_units=accelerator.num_compute_units,
            wave_quantisation=reached.wave_quantisation,
            launch_time=GRAPH_LAUNCH_TIME if software.cuda_graphs else LAUNCH_TIME,
            element_bytes=training.element_bytes,
            weight_element_bytes=_NARROW_TRAFFIC if narrow else training.element_bytes,
            software=known.software(software.name),
        )

    def matmul_time(
        self, m: float, n: float, k: float, batch: float, *, weighted: bool = False
    ) -> float:
        """Return the time of ``batch`` products of shape ``(m, k) x (k, n)`` [s].

        ``w = ceil(m / tm) ceil(n / tn) batch / U`` waves of tiles, at least one; each
        wave takes ``2 tm tn k U / rate``. A last wave that is not full takes as long as
        a full one, unless split-k and stream-k kernels fill it [2]_: ``w + z (ceil(w) -
        w)`` counts, with ``z`` between 0 and 1.
        """
        if min(m, n, k, batch) <= 0:
            return 0.0
        units = self.num_compute_units
        rate = self.weight_matmul_rate if weighted else self.matmul_rate
        width = self.weight_element_bytes if weighted else self.element_bytes
        compute = min(
            self._waves(math.ceil(m / tm) * math.ceil(n / tn) * batch / units)
            * (units * 2.0 * tm * tn * k)
            / (rate * relative)
            for tm, tn, relative in TILES
        )
        traffic = width * batch * (m * k + k * n + m * n)
        return max(compute, traffic / self.memory_rate) + self.launch_time

    def _waves(self, waves: float) -> float:
        """Return how many full waves of tiles a product takes as long as."""
        full = math.ceil(waves)
        return max(1.0, waves + self.wave_quantisation * (full - waves))

    def memory_time(self, num_bytes: float) -> float:
        """Return the time of a kernel bound by memory traffic [s]."""
        if num_bytes <= 0:
            return 0.0
        return num_bytes / self.memory_rate + self.launch_time

    def operator_time(self, work: OperatorWork) -> OperatorTime:
        """Return forward and backward time of one operator."""
        if work.kind == "matmul":
            return self._product(work)
        if work.kind == "attention":
            # Blocks of queries begin and end, and along the diagonal of a causal mask
            # they are half empty: a loss for each that keys make up for.
            lost = 1.0 + self.attention_half_length / work.keys if work.keys else 1.0
            forward = lost * work.forward_flops / self.attention_rate
            backward = lost * work.backward_flops / self.attention_rate
            return OperatorTime(
                max(forward, work.forward_bytes / self.memory_rate) + self.launch_time,
                max(
                    backward * ATTENTION_BACKWARD_SLOWDOWN,
                    work.backward_bytes / self.memory_rate,
                )
                + self.launch_time,
            )
        assert work.kind == "memory", f"unknown operator kind {work.kind!r}"
        part = self._traffic(work)
        return OperatorTime(
            self.memory_time(part * work.forward_bytes),
            self.memory_time(part * work.backward_bytes),
        )

    def _product(self, work: OperatorWork) -> OperatorTime:
        """Price a product, and its backward pass as the two products that it is.

        The gradient of the input is ``(m, n) x (n, k)``, that of the weight ``(n, m) x
        (m, k)``. Only that of a weight can be put off: products of activations are one
        step of a chain. Those of a chunked scan are made again first.
        """
        m, n, k, batch = work.m, work.n, work.k, work.batch
        weighted = work.weight_flops > 0
        slower = 1.0
        if not _aligned(n, k):
            slower = (
                self.software.unaligned_weight_slowdown
                if weighted
                else self.software.unaligned_slowdown
            )
        if work.is_grouped:
            slower /= self._grouped_rate(m)
        forward = self.matmul_time(m, n, k, batch, weighted=weighted)
        first = self.matmul_time(m, k, n, batch, weighted=weighted)
        second = self.matmul_time(n, k, m, batch, weighted=weighted)
        return OperatorTime(
            slower * forward,
            slower * (first + second + (forward if work.is_scan else 0.0)),
            slower * second if weighted else 0.0,
        )

    def _grouped_rate(self, rows: float) -> float:
        """Return what grouped products reach of the rate of dense ones.

        Tokens are sorted, padded and cast expert by expert: a cost for each expert that
        many tokens make up for.
        """
        known = self.software
        return known.grouped_rate * rows / (rows + known.grouped_half_rows)

    def _traffic(self, work: OperatorWork) -> float:
        """Return the part of an operator's traffic that is left after fusion."""
        if work.core:
            return self.software.score_traffic
        if work.operation == "cross entropy":
            return self.software.loss_traffic
        return self.software.elementwise_traffic


def _aligned(n: float, k: float) -> bool:
    """Return whether 16-bit operands run on matrix units as they are [2]_.

    Widths that are not whole numbers are shares of padded ones.
    """
    return not any(size.is_integer() and size % _ALIGNMENT for size in (n, k))
