"""Tables of grouped products, from measured layers of experts.

What was measured is a whole layer: tokens are copied to their experts and sorted, two
grouped products with an activation between them, results weighed and added up. Here
memory operators are priced by themselves (`estimators.operators.roofline`), so that a
table must hold the products alone. Both parts are fitted together::

    t = exp(table(shape 1)) roofline 1 + exp(table(shape 2)) roofline 2 + sum_j c_j b_j

where ``b_j`` is the traffic of each tensor beside the products at the datasheet's
bandwidth and ``c_j`` how often the kernels move it: a part that grows with the tokens
of all ranks tells itself apart from one that grows with the rows of local experts. The
``c_j`` are not shipped. Errors are squared logarithms, linear above `ROBUST`: one shape
in ten of some kernels ran with a tactic that is several times slower than its
neighbours.

One kernel makes a table, so that which kernels were measured for a shape is no part of
it: the fastest of those that all models of a format were measured with.
Rows of uneven routing are left out. With as many rows on the rank they take 0 to 12 %
longer from 32 rows an expert on (medians of seven kernels and chips, power laws of 1.01
and 1.2), less with fewer rows; what they take beyond that is the busiest rank's, which
`estimators.layers.routing` has.

Letters: ``h`` hidden size, ``f`` an expert's local width, ``R`` rows on the rank.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.linalg import spsolve

from estimators.operators.shape_tables import GRIDS, product_roofline
from nestsim.features.calibration.operators import (
    CHIPS,
    FEWEST_SHAPES,
    FORMATS,
    HELD_OUT,
    RESULT_BYTES,
    SMOOTHING,
    differences,
    hat_matrix,
)
from topologies.accelerators import Accelerator, load_accelerator
from topologies.arrays import BoolArray, FloatArray

KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "bfloat16": (
            "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts",
            "moe_torch_flow_cutlass",
        ),
        "fp8": (
            "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
            "moe_torch_flow_cutlass",
        ),
        "fp8_block": ("moe_torch_flow_cutlass", "sglang_fused_moe_triton"),
        "nvfp4": (
            "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic",
        ),
    }
)
"""Number format of the measurements -> kernels that tables are made of; of these the
first that a chip was measured with."""

ROBUST = 0.15
"""Error from which on it counts linearly, as a part of the time."""

STEPS = 8
"""Steps of Gauss and Newton's method: the last one changes no node by 1 %."""

_PASSES = (1.0, 0.3, 3.0, 3.0, 3.0)
"""What ``c_j`` are near to, with a standard deviation of a factor of e where a single
shape would tell: tokens of all ranks, their copies, rows and their products once; and
microseconds of launches."""

_SHAPE = (
    *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    *("moe_tp_size", "moe_ep_size"),
)
"""Columns of a shape; of two releases' times the shorter one counts."""

_UNGATED = {"topk": 22, "hidden_size": 2688}
"""Column -> value of models whose experts are two products, without a gate: Nemotron
3's, the only ones among those that were measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpertShapes:
    """Measured layers of experts of one chip, format and kernel; ``n`` shapes."""

    sizes: tuple[FloatArray, FloatArray]
    """Sizes along each axis of the grid for both products, shape ``(n, 4)``."""

    rooflines: tuple[FloatArray, FloatArray]
    """Roofline time of both products, shape ``(n,)`` [s]."""

    beside: FloatArray
    """Time to move each tensor beside the products once, and a launch, ``(n, 5)``
    [s]."""

    logs: FloatArray
    """Logarithm of the measured time, ``(n,)`` [log s]."""

    def fitted(self, kept: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the nodes that fit some of the shapes, and errors of all, ``(n,)``."""
        grid = GRIDS["experts"]
        hats = [hat_matrix(grid, sizes) for sizes in self.sizes]
        rough, around = differences(grid), np.log(_PASSES)
        count = hats[0].shape[1]
        held_by = sparse.block_diag(
            [
                SMOOTHING * (rough.T @ rough) + 1e-6 * sparse.eye(count),
                sparse.eye(around.size),
            ]
        )
        unknown, middle = np.full(count + around.size, 0.7), np.zeros(count)
        unknown[count:] = around
        centre = np.concatenate((middle, around))
        for step in range(STEPS):
            parts, misses = self._misses(hats, unknown)
            slopes = sparse.csr_array(
                sparse.hstack(
                    [
                        sum(
                            sparse.diags_array(part) @ hat
                            for part, hat in zip(parts[:2], hats, strict=True)
                        ),
                        sparse.csr_array(np.stack(parts[2:], axis=1)),
                    ]
                )
            )[kept]
            weights = np.ones(int(kept.sum()))
            if step > 1:
                weights = np.minimum(1.0, ROBUST / np.maximum(abs(misses[kept]), 1e-9))
            turned = slopes.T @ sparse.diags_array(weights)
            right = -(turned @ misses[kept]) - held_by @ (unknown - centre)
            moved = spsolve(sparse.csc_array(turned @ slopes + held_by), right)
            unknown = unknown + np.clip(moved, -1.0, 1.0)
        errors = np.expm1(self._misses(hats, unknown)[1])
        nodes = unknown[:count].reshape([len(axis) for axis in grid])
        return nodes, np.asarray(errors)

    def _misses(
        self, hats: list[sparse.csr_array], unknown: FloatArray
    ) -> tuple[list[FloatArray], FloatArray]:
        """Return the part of the time of each term, and the logarithms' errors."""
        count = hats[0].shape[1]
        terms = [
            np.exp(hat @ unknown[:count]) * roofline
            for hat, roofline in zip(hats, self.rooflines, strict=True)
        ]
        terms += list((self.beside * np.exp(unknown[count:])).T)
        total = np.sum(terms, axis=0)
        return [term / total for term in terms], np.log(total) - self.logs


def fitted_experts(shapes: ExpertShapes) -> tuple[FloatArray, float]:
    """Return the nodes of a table of all shapes, and the error of held-out ones."""
    held = np.random.default_rng(0).random(len(shapes.logs)) < HELD_OUT
    error = float(np.mean(np.abs(shapes.fitted(~held)[1][held])))
    return shapes.fitted(held | True)[0], error


def expert_shapes(data: Path) -> Iterator[tuple[str, ExpertShapes]]:
    """Yield name and shapes of each table of grouped products."""
    rows = pd.read_parquet(data / "experts_forward.parquet")
    rows = rows[rows.distribution == "balanced"].sort_values("latency_ms")
    for (system, device), (measured, kernels) in product(
        CHIPS.items(), KERNELS.items()
    ):
        name, rate, width = FORMATS[measured]
        chip = load_accelerator(device)
        group = rows[(rows.system == system) & (rows.moe_dtype == measured)]
        known = group.kernel_source.value_counts()
        kernel = next((k for k in kernels if known.get(k, 0) >= FEWEST_SHAPES), None)
        if rate in chip.peak_flops and kernel:
            best = group[group.kernel_source == kernel].drop_duplicates(list(_SHAPE))
            shapes = _shapes(best, chip, chip.peak_flops[rate], width)
            yield f"experts/{chip.name}/{name}", shapes


def _shapes(
    rows: pd.DataFrame, chip: Accelerator, peak: float, width: float
) -> ExpertShapes:
    """Return what was measured of one kernel."""
    hidden, tokens, copies = (
        rows[column].to_numpy(np.float64)
        for column in ("hidden_size", "num_tokens", "topk")
    )
    inner = (rows.inter_size / rows.moe_tp_size).to_numpy(np.float64)
    experts = (rows.num_experts / rows.moe_ep_size).to_numpy(np.float64)
    per_expert = tokens * copies / rows.num_experts.to_numpy(np.float64)
    ungated = np.any([rows[name] == value for name, value in _UNGATED.items()], axis=0)
    first = np.where(ungated, 1.0, 2.0) * inner
    moved = RESULT_BYTES / chip.memory_bandwidth
    launch = np.full(len(rows), 1e-6)
    here = per_expert * experts
    return ExpertShapes(
        sizes=(
            _axes(per_expert, experts, first, hidden),
            _axes(per_expert, experts, inner, hidden),
        ),
        rooflines=(
            _roofline((per_expert, first, hidden, experts), peak, chip, width),
            _roofline((per_expert, hidden, inner, experts), peak, chip, width),
        ),
        beside=np.stack(
            [
                tokens * hidden * moved,
                tokens * copies * hidden * moved,
                here * hidden * moved,
                here * inner * moved,
                launch,
            ],
            axis=1,
        ),
        logs=np.log(rows.latency_ms.to_numpy() * 1e-3),
    )


def _axes(
    rows: FloatArray, experts: FloatArray, width: FloatArray, hidden: FloatArray
) -> FloatArray:
    """Return the sizes along the axes of the grid."""
    return np.stack(
        [rows, experts, np.minimum(width, hidden), np.maximum(width, hidden)], axis=1
    )


def _roofline(
    sizes: tuple[FloatArray, ...], peak: float, chip: Accelerator, width: float
) -> FloatArray:
    """Return the roofline time of a grouped product [s]."""
    widths = width, RESULT_BYTES
    return np.asarray(product_roofline(sizes, peak, chip.memory_bandwidth, widths)[1])
