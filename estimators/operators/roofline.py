"""Time of one operator on one accelerator: a roofline, and how far kernels are from it.

Products and fused attention take the datasheet's roofline times what measured kernels
of their shape took beside it (`estimators.operators.shape_tables`), and longer where a
job that runs for minutes cannot sustain the clock of an isolated kernel; everything
else moves bytes. Each operator costs at least one kernel launch.

Letters: ``m n k`` a product's rows, columns and inner dimension.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
.. [2] NVIDIA, "Matrix Multiplication Background User's Guide", 2023.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from estimators.constants import (
    AcceleratorConstants,
    Constants,
    SoftwareConstants,
    load_constants,
)
from estimators.layers.work import OperatorWork
from estimators.operators.shape_tables import (
    KERNEL_TIME,
    QUERY_BLOCK,
    ShapeTable,
    attention_table,
    backward_slowdown,
    convolution_table,
    eight_bit_attention,
    experts_table,
    product_roofline,
    product_table,
    recurrence_roofline,
    recurrence_table,
)
from estimators.software import IDEAL, Software
from estimators.training import NARROW_FORMATS, TrainingSpec
from topologies import InputError
from topologies.accelerators import Accelerator

LAUNCH_TIME = 5e-6
"""Time from one kernel's end to the next one's start when launches queue up [s]: 4 to 6
us on CUDA devices."""

GRAPH_LAUNCH_TIME = 0.5e-6
"""Time from one kernel's end to the next one's start inside a CUDA graph [s]: kernels
of 2.9 us follow each other every 3.4 us (A. Gray, "Getting Started with CUDA Graphs",
NVIDIA, 2019)."""

ATTENTION_BACKWARD_BLOCKS = 2.0
"""Blocks of a backward pass for each block of queries of the forward pass: it works on
blocks of keys as well. 1 fits pairs of SimuMax 1.2 on A100 best, 2.5 those on B200."""

_ALIGNMENT = 8
"""Multiple of elements that matrix units need, 16 bytes of 16-bit numbers [2]_, section
"Tensor Core Requirements"."""

_SORTED_TRAFFIC = 3.0
"""What sorting copies of tokens reads and writes, over reading them or writing them
once: the copies are written, read in another order and written again."""

_RESULT_BYTES = 2.0
"""Size of an element of the result of a product in fewer bits, or of experts
[byte]."""


def _peak(accelerator: Accelerator, precision: str, where: str) -> float:
    if precision not in accelerator.peak_flops:
        raise InputError(
            f"{accelerator.name} has no rate for this number format",
            where=where,
            got=precision,
            expected=f"one of {', '.join(sorted(accelerator.peak_flops))}",
        )
    return accelerator.peak_flops[precision]


def _attention(reached: AcceleratorConstants, software: Software) -> float:
    """Return the part of the isolated kernels' rate that attention sustains."""
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
class ProductKernels:
    """Matrix products in one number format on one accelerator."""

    peak: float
    """Datasheet's rate of the format [FLOP/s]."""

    sustained: float
    """Part of the isolated kernels' rate that a job sustains."""

    bandwidth: float
    """Datasheet's memory bandwidth [byte/s]."""

    widths: tuple[float, float]
    """Size of an operand's and of a result's element [byte]."""

    table: ShapeTable
    """Time of isolated kernels beside their roofline."""

    experts: ShapeTable | None = None
    """Time of grouped products beside their roofline, None if no kernel multiplies the
    rows of several experts together."""

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        number_format: str,
        reached: AcceleratorConstants,
        widths: tuple[float, float],
    ) -> "ProductKernels":
        """Build those of a format that `training` names."""
        narrow = NARROW_FORMATS.get(number_format)
        sustained = reached.matmul
        if narrow is not None:
            sustained = reached.matmul_4bit if narrow.bits == 4 else reached.matmul_8bit
        return cls(
            peak=_peak(
                accelerator,
                number_format if narrow is None else narrow.rate,
                "training.precision" if narrow is None else "training.matmul_precision",
            ),
            sustained=sustained,
            bandwidth=accelerator.memory_bandwidth,
            widths=widths,
            table=product_table(accelerator.constants_name, number_format),
            experts=experts_table(accelerator.constants_name, number_format),
        )

    def time(self, m: float, n: float, k: float, batch: float = 1.0) -> float:
        """Return the time of ``batch`` products ``(m, k) x (k, n)``, unlaunched [s].

        Independent products fill the device together: to the table they are more rows.
        Only what computes waits for the clock.
        """
        sizes = (m, n, k, batch)
        compute, roofline = product_roofline(
            sizes, self.peak, self.bandwidth, self.widths
        )
        slower = self.table.slowdown(m * batch, n, k)
        lost = (1.0 / self.sustained - 1.0) * compute
        return float(slower * (roofline + lost))

    def grouped_time(
        self,
        sizes: tuple[float, float, float],
        experts: float,
        shape: tuple[float, float, float],
        result: float,
    ) -> float:
        """Return the time of the products of experts, unlaunched [s].

        One kernel for all of them, or one for each, whichever takes less. The latter is
        what Transformer Engine's ``GroupedLinear`` launches, on several streams (its
        ``nvte_multi_stream_cublas_gemm``): 94 grouped products that SimuMax 1.2 has
        measured on A100 and B200 miss it by as much as dense ones.

        Parameters
        ----------
        sizes
            Rows, columns and inner dimension of an expert's product in this pass.
        experts
            How many there are.
        shape
            Tokens of an expert, and the sizes of its weight, the smaller one first.
        result
            Bytes moved for each element of a result [byte].
        """
        limits = self.peak, self.bandwidth, (self.widths[0], result)
        compute, alone = product_roofline((*sizes, 1.0), *limits)
        lost = (1.0 / self.sustained - 1.0) * compute
        apart = experts * self.table.slowdown(*sizes) * (alone + lost)
        if self.experts is None:
            return float(apart)
        _, roofline = product_roofline((*sizes, experts), *limits)
        slower = self.experts.slowdown(shape[0], experts, *shape[1:])
        return float(min(apart, slower * (roofline + experts * lost)))

    @property
    def large_rate(self) -> float:
        """Rate of a large square product [FLOP/s]."""
        side = 8192.0
        return 2.0 * side**3 / self.time(side, side, side)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorModel:
    """Operator times on one accelerator at one precision."""

    accelerator: Accelerator
    """The device."""

    products: ProductKernels
    """Products of activations."""

    summed_bytes: float
    """Bytes read and written for each element of a weight's gradient as it is added to
    those of the microbatches before [byte]."""

    weight_products: tuple[ProductKernels, ...]
    """Products with weights, in the format that the job has for them; where that is a
    narrow one, also in 16 bits: no kernel has to use narrow units that are slower."""

    attention_rate: float
    """Part of the isolated kernels' rate that fused attention sustains."""

    memory_rate: float
    """Memory traffic of streaming kernels [byte/s]."""

    convolutions: ShapeTable | None
    """Time of the convolution before a scan beside that of its traffic, None if it was
    not measured."""

    launch_time: float
    """Time from one kernel's end to the next one's start [s]."""

    software: SoftwareConstants
    """Constants of what the framework fuses away of the traffic, and of what unaligned
    sizes cost."""

    sorts_copies: bool = False
    """As `Software.sorts_copies`."""

    eight_bit_attention: bool = False
    """As `Software.fp8_dot_product_attention`."""

    _known: dict[tuple[float, ...], OperatorTime] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    """What the time of a product depends on -> that time: layers have many alike."""

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
            Parts of isolated kernels' rates; those that are shipped if None.

        Raises
        ------
        InputError
            If the accelerator has no rate for the precision.
        """
        known = load_constants() if constants is None else constants
        reached = known.accelerator(accelerator.constants_name, software.name)
        width = float(training.element_bytes)
        plain = ProductKernels.of(
            accelerator, training.precision, reached, (width, width)
        )
        weighted: tuple[ProductKernels, ...] = (plain,)
        if narrow := training.matmul_precision:
            widths = (NARROW_FORMATS[narrow].activation_bytes, _RESULT_BYTES)
            weighted += (ProductKernels.of(accelerator, narrow, reached, widths),)
        return cls(
            accelerator=accelerator,
            products=plain,
            weight_products=weighted,
            summed_bytes=2.0
            * (4.0 if training.gradient_precision == "fp32" else width),
            attention_rate=_attention(reached, software),
            memory_rate=accelerator.memory_bandwidth * reached.memory,
            convolutions=convolution_table(accelerator.constants_name),
            launch_time=GRAPH_LAUNCH_TIME if software.captures_step else LAUNCH_TIME,
            software=known.software(software.name),
            sorts_copies=software.sorts_copies,
            eight_bit_attention=software.fp8_dot_product_attention,
        )

    def matmul_time(
        self, m: float, n: float, k: float, batch: float, *, weighted: bool = False
    ) -> float:
        """Return the time of ``batch`` products of shape ``(m, k) x (k, n)`` [s]."""
        if min(m, n, k, batch) <= 0:
            return 0.0
        kernels = self.weight_products if weighted else (self.products,)
        return min(kernel.time(m, n, k, batch) for kernel in kernels) + self.launch_time

    def attention_time(
        self, work: OperatorWork, flops: float, num_bytes: float, blocks: float
    ) -> float:
        """Return the time of a fused attention kernel, unlaunched [s].

        Parameters
        ----------
        work
            Its shape.
        flops, num_bytes
            Of the pass [FLOP, byte].
        blocks
            Blocks of the pass for each block of queries.
        """
        table = attention_table(
            self.accelerator.constants_name, round(work.k), work.variant
        )
        compute = flops / self.products.peak
        slower = table.slowdown(
            blocks
            * work.batch
            * max(1.0, work.m / QUERY_BLOCK)
            / self.accelerator.num_compute_units,
            work.n,
            work.heads_per_group,
        )
        moved = num_bytes / self.accelerator.memory_bandwidth
        lost = (1.0 / self.attention_rate - 1.0) * compute
        return slower * (max(compute, moved) + KERNEL_TIME + lost)

    def recurrence_time(
        self, work: OperatorWork, flops: float, num_bytes: float
    ) -> float:
        """Return the time of a recurrence's kernels, unlaunched [s].

        Only the forward pass of the gated delta rule was measured: other recurrences,
        and backward passes, are taken to be as far from their roofline.

        Parameters
        ----------
        work
            Its shape.
        flops, num_bytes
            Of the pass [FLOP, byte].
        """
        table = recurrence_table(self.accelerator.constants_name)
        peak, bandwidth = self.products.peak, self.accelerator.memory_bandwidth
        lost = (1.0 / self.attention_rate - 1.0) * flops / peak
        roofline: float = recurrence_roofline(flops, num_bytes, peak, bandwidth)
        return table.slowdown(work.m, max(work.batch, 1.0)) * (roofline + lost)

    def memory_time(self, num_bytes: float) -> float:
        """Return the time of a kernel bound by memory traffic [s]."""
        if num_bytes <= 0:
            return 0.0
        return num_bytes / self.memory_rate + self.launch_time

    def operator_time(self, work: OperatorWork) -> OperatorTime:
        """Return forward and backward time of one operator."""
        if work.kind == "matmul":
            kind = work.has_weight, work.is_frozen, work.is_scan, work.weight_flops > 0
            key = work.m, work.n, work.k, work.batch, *kind
            if key not in self._known:
                self._known[key] = self._product(work)
            return self._known[key]
        if work.kind == "attention":
            forward = self.attention_time(
                work, work.forward_flops, work.forward_bytes, 1.0
            )
            slower = backward_slowdown(self.accelerator.constants_name, work.variant)
            backward = self.attention_time(
                work,
                work.backward_flops * slower,
                work.backward_bytes,
                ATTENTION_BACKWARD_BLOCKS,
            )
            if self.eight_bit_attention:
                name = self.accelerator.constants_name
                parts = eight_bit_attention(name, work.variant)
                forward, backward = forward * parts[0], backward * parts[1]
            return OperatorTime(forward + self.launch_time, backward + self.launch_time)
        if work.kind == "recurrence":
            forward, backward = (
                self.recurrence_time(work, flops, num_bytes) + self.launch_time
                for flops, num_bytes in (
                    (work.forward_flops, work.forward_bytes),
                    (work.backward_flops, work.backward_bytes),
                )
            )
            return OperatorTime(forward, backward)
        assert work.kind == "memory", f"unknown operator kind {work.kind!r}"
        if work.operation == "convolution" and self.convolutions is not None:
            return OperatorTime(
                self._convolution_time(self.convolutions, work.forward_bytes),
                self._convolution_time(self.convolutions, work.backward_bytes),
            )
        part = self._traffic(work)
        return OperatorTime(
            self.memory_time(part * work.forward_bytes),
            self.memory_time(part * work.backward_bytes),
        )

    def _convolution_time(self, table: ShapeTable, num_bytes: float) -> float:
        """Return the time of a pass of a convolution, which no other kernel does [s].

        Only its forward pass was measured.
        """
        if num_bytes <= 0:
            return 0.0
        streamed = num_bytes / self.accelerator.memory_bandwidth + KERNEL_TIME
        return table.slowdown(num_bytes) * streamed + self.launch_time

    def _product(self, work: OperatorWork) -> OperatorTime:
        """Price a product, and its backward pass as the two products that it is.

        The gradient of the input is ``(m, n) x (n, k)``, that of the weight ``(n, m) x
        (m, k)``. Only that of a weight can be put off: products of activations are one
        step of a chain. Those of a chunked scan are made again first.
        """
        m, n, k, batch = work.m, work.n, work.k, work.batch
        weighted = work.has_weight
        slower = 1.0
        if not _aligned(n, k):
            slower = (
                self.software.unaligned_weight_slowdown
                if weighted
                else self.software.unaligned_slowdown
            )
        passes = (m, n, k), (m, k, n), (n, k, m)
        if work.is_grouped:
            forward, first, second = self._grouped(work, passes)
        else:
            forward, first, second = (
                self.matmul_time(*sizes, batch, weighted=weighted) for sizes in passes
            )
        if work.is_frozen:
            second = 0.0
        return OperatorTime(
            slower * forward,
            slower * (first + second + (forward if work.is_scan else 0.0)),
            slower * second if work.weight_flops > 0 else 0.0,
        )

    def _grouped(
        self, work: OperatorWork, passes: Sequence[tuple[float, float, float]]
    ) -> list[float]:
        """Return the time of each pass of the products of experts [s].

        The last one adds its result to the gradients of other microbatches, which is
        most of what it does for experts with few tokens.
        """
        if min(work.m, work.n, work.k) <= 0:
            return [0.0] * len(passes)
        shape = work.m, min(work.n, work.k), max(work.n, work.k)
        return [
            min(
                kernel.grouped_time(sizes, work.batch, shape, result)
                for kernel in self.weight_products
            )
            + self.launch_time
            for sizes, result in zip(
                passes, (_RESULT_BYTES, _RESULT_BYTES, self.summed_bytes), strict=True
            )
        ]

    def _traffic(self, work: OperatorWork) -> float:
        """Return the part of an operator's traffic that is left after fusion."""
        if work.core:
            return self.software.score_traffic
        if work.operation == "dequantize":
            return 1.0
        if work.operation == "cross entropy":
            return self.software.loss_traffic
        if self.sorts_copies and work.operation in {"dispatch", "combine"}:
            return _SORTED_TRAFFIC
        return self.software.elementwise_traffic


def _aligned(n: float, k: float) -> bool:
    """Return whether 16-bit operands run on matrix units as they are [2]_.

    Widths that are not whole numbers are shares of padded ones.
    """
    return not any(size.is_integer() and size % _ALIGNMENT for size in (n, k))
