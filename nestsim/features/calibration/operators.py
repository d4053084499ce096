"""Tables of the times of products and attention, from measured kernels.

Reads tables of measured kernels (parquet files of AIConfigurator [1]_) and makes what
`estimators.operators.shape_tables` ships. A table minimises the squared errors of the
logarithms, plus its second differences, which fill nodes that no shape is near, and a
little of its first ones::

    sum_i (log(t_i / roofline_i) - table(shape_i))^2
        + s (sum (second differences)^2 + f sum (first differences)^2)

Of products, a smaller one never takes longer than a larger one: it could be padded. So
of all nodes that are as large in every size, the least time counts, except where that
misses held-out shapes by more: some kernels were measured for some shapes only.

A fifth of the shapes, drawn with a seed, is held out of a first fit, to say how far off
the table is for shapes that it has not seen; the tables that are written know all.

References
----------
.. [1] https://github.com/ai-dynamo/aiconfigurator, systems/data.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.linalg import spsolve

from estimators.operators.shape_tables import (
    GRIDS,
    KERNEL_TIME,
    QUERY_BLOCK,
    product_roofline,
)
from topologies.accelerators import Accelerator, load_accelerator
from topologies.arrays import BoolArray, FloatArray, IntArray

CHIPS: Mapping[str, str] = MappingProxyType(
    {
        "a100_sxm": "a100-80gb",
        "h100_sxm": "h100-sxm",
        "h200_sxm": "h200",
        "b200_sxm": "b200",
        "b300_sxm": "b300",
        "gb200": "gb200",
        "gb300": "gb300",
        "l40s": "l40s",
    }
)
"""System of the measurements -> accelerator of the catalogue."""

FORMATS: Mapping[str, tuple[str, str, float]] = MappingProxyType(
    {
        "bfloat16": ("bf16", "bf16", 2.0),
        "fp8": ("fp8", "fp8", 1.0),
        "fp8_block": ("fp8-blockwise", "fp8", 1.0),
        "nvfp4": ("nvfp4", "nvfp4", 0.5625),
    }
)
"""Number format of the measurements -> its name in a table, its rate in the datasheet,
and bytes of an operand's element."""

RESULT_BYTES = 2.0
"""Size of a result's element, bf16 [byte]."""

SMOOTHING = 0.02
"""Weight ``s`` of squared second differences beside squared errors: a choice, by the
errors of held-out shapes."""

FLATNESS = 4e-4
"""Weight ``f`` of squared first differences beside second ones."""

HELD_OUT = 0.2
"""Part of the shapes that are held out to measure the error."""

BOUND_ERROR = 1.1
"""Largest error with larger shapes as bounds of smaller ones, over that without."""

FEWEST_SHAPES = 1000
"""Fewest shapes that a table of attention is made of: with 400, for heads of 192, are
kernels that reach a quarter of what SimuMax measured on B200."""

LARGEST_ERROR = 0.25
"""Largest error of held-out shapes with which a table is kept: above it kernels do
something else than their roofline has, such as work on what a window hides."""


class Shapes(NamedTuple):
    """Measured shapes of one table."""

    sizes: FloatArray
    """Sizes along each axis of the grid, shapes by axes."""

    logs: FloatArray
    """Logarithm of measured over roofline time of each shape."""

    rooflines: FloatArray | None
    """Logarithm of the roofline time of each node, where larger shapes bound smaller
    ones."""


class Prompts(NamedTuple):
    """Causal attention that was measured, a number or an array for all shapes."""

    batch: FloatArray
    """Sequences."""
    length: FloatArray
    """Tokens of a sequence."""
    heads: FloatArray
    """Heads of queries."""
    groups: FloatArray
    """Heads of keys and values."""
    seen: FloatArray
    """Keys that a query sees at most."""

    def shapes(
        self, widths: tuple[int, int], chip: Accelerator, times: FloatArray
    ) -> Shapes:
        """Return the shapes of a table.

        Parameters
        ----------
        widths
            Width of a query's and of a value's head.
        chip
            Where they were measured.
        times
            What each took [s].
        """
        batch, length, heads, groups, seen = self
        pairs = seen * (seen + 1) / 2 + (length - seen) * seen
        flops = 2.0 * batch * heads * pairs * sum(widths)
        moved = RESULT_BYTES * batch * length * (heads + groups) * sum(widths)
        roofline = KERNEL_TIME + np.maximum(
            flops / chip.peak_flops["bf16"], moved / chip.memory_bandwidth
        )
        blocks = batch * heads * np.ceil(length / QUERY_BLOCK)
        sizes = np.stack(
            [blocks / chip.num_compute_units, seen, heads / groups], axis=1
        )
        return Shapes(sizes, np.log(times / roofline), None)


def hat_matrix(
    grid: tuple[tuple[float, ...], ...], sizes: FloatArray
) -> sparse.csr_array:
    """Return the weight of every node for every shape, shapes by nodes."""
    extents = tuple(len(axis) for axis in grid)
    places: list[tuple[IntArray, FloatArray]] = []
    for axis, column in zip(grid, np.log2(sizes).T, strict=True):
        knots = np.array(axis, dtype=np.float64)
        place = np.clip(column, knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, place, "right") - 1, 0, knots.size - 2)
        places.append((left, (place - knots[left]) / np.diff(knots)[left]))
    rows, nodes, weights = [], [], []
    for corner in np.ndindex(*(2,) * len(grid)):
        index = [left + side for (left, _), side in zip(places, corner, strict=True)]
        parts = [
            part if side else 1.0 - part
            for (_, part), side in zip(places, corner, strict=True)
        ]
        rows.append(np.arange(len(sizes)))
        nodes.append(np.ravel_multi_index(index, extents))
        weights.append(np.prod(parts, axis=0))
    return sparse.csr_array(
        (np.concatenate(weights), (np.concatenate(rows), np.concatenate(nodes))),
        shape=(len(sizes), int(np.prod(extents))),
    )


def differences(grid: tuple[tuple[float, ...], ...]) -> sparse.csr_array:
    """Return the matrix of second differences, and of a little of the first ones."""
    extents = [len(axis) for axis in grid]
    numbers = np.arange(np.prod(extents)).reshape(extents)
    blocks = []
    for along, axis in enumerate(grid):
        steps = np.diff(axis)
        lines: list[tuple[tuple[int, ...], tuple[float, ...]]] = [
            ((i, i + 1), (-(FLATNESS**0.5), FLATNESS**0.5)) for i in range(len(steps))
        ]
        lines += [
            ((i, i + 1, i + 2), (1 / a, -1 / a - 1 / b, 1 / b))
            for i, (a, b) in enumerate(pairwise(steps))
        ]
        for places, weights in lines:
            nodes = [np.take(numbers, place, axis=along).ravel() for place in places]
            rows = np.tile(np.arange(nodes[0].size), len(nodes))
            values = np.repeat(weights, nodes[0].size)
            blocks.append(
                sparse.csr_array(
                    (values, (rows, np.concatenate(nodes))),
                    shape=(nodes[0].size, numbers.size),
                )
            )
    return sparse.csr_array(sparse.vstack(blocks))


def fitted_nodes(kind: str, shapes: Shapes) -> FloatArray:
    """Return the nodes of the table of some shapes."""
    grid = GRIDS[kind]
    hats, rough = hat_matrix(grid, shapes.sizes), differences(grid)
    normal = hats.T @ hats + SMOOTHING * (rough.T @ rough)
    solved = spsolve(sparse.csc_array(normal), hats.T @ shapes.logs)
    nodes: FloatArray = np.asarray(solved).reshape([len(axis) for axis in grid])
    if shapes.rooflines is None:
        return nodes
    # Nodes that no shape is near say nothing of others.
    seen = hats.sum(axis=0).reshape(nodes.shape) > 0.5
    times = nodes + shapes.rooflines
    least = np.where(seen, times, np.inf)
    for axis in range(times.ndim):
        least = np.flip(np.minimum.accumulate(np.flip(least, axis), axis), axis)
    return np.asarray(np.minimum(times, least) - shapes.rooflines)


def held_out_error(kind: str, shapes: Shapes, held: BoolArray) -> float:
    """Return the mean error of held-out shapes, as a part of their times."""
    nodes = fitted_nodes(
        kind,
        shapes._replace(sizes=shapes.sizes[~held], logs=shapes.logs[~held]),
    )
    misses = hat_matrix(GRIDS[kind], shapes.sizes[held]) @ nodes.ravel()
    return float(np.mean(np.abs(np.expm1(misses - shapes.logs[held]))))


def fitted_table(kind: str, shapes: Shapes) -> tuple[FloatArray, float]:
    """Return the nodes of a table of all shapes, and the error of held-out ones."""
    held = np.random.default_rng(0).random(len(shapes.logs)) < HELD_OUT
    free = shapes._replace(rooflines=None)
    error, unbound = (held_out_error(kind, of, held) for of in (shapes, free))
    if error > BOUND_ERROR * unbound:
        return fitted_nodes(kind, free), unbound
    return fitted_nodes(kind, shapes), error


def product_shapes(data: Path) -> Iterator[tuple[str, Shapes]]:
    """Yield name and shapes of each table of products."""
    rows = pd.read_parquet(data / "products.parquet")
    keys = ["system", "gemm_dtype", "m", "n", "k"]
    best = rows.groupby(keys).latency_ms.min().reset_index()
    for (system, device), (measured, known) in product(CHIPS.items(), FORMATS.items()):
        name, rate, width = known
        chip = load_accelerator(device)
        group = best[(best.system == system) & (best.gemm_dtype == measured)]
        if group.empty or rate not in chip.peak_flops:
            continue
        sizes = group[["m", "n", "k"]].to_numpy(np.float64)
        nodes = np.stack(np.meshgrid(*GRIDS["product"], indexing="ij"))
        roofline, of_nodes = (
            product_roofline(
                (*shape, np.ones(shape[0].shape)),
                chip.peak_flops[rate],
                chip.memory_bandwidth,
                (width, RESULT_BYTES),
            )[1]
            for shape in (sizes.T, 2.0**nodes)
        )
        logs = np.log(group.latency_ms.to_numpy() * 1e-3 / roofline)
        yield f"product/{chip.name}/{name}", Shapes(sizes, logs, np.log(of_nodes))


def attention_shapes(data: Path) -> Iterator[tuple[str, Shapes]]:
    """Yield name and shapes of each table of causal attention in bf16.

    Queries see the whole prompt, or a window of any width.
    """
    rows = pd.read_parquet(data / "attention_forward.parquet")
    rows = rows[rows.system.isin(list(CHIPS)) & (rows.attn_dtype == "bfloat16")]
    rows = rows.assign(window_size=rows.window_size.fillna(0).astype(int))
    shape = ["batch_size", "isl", "num_heads", "num_key_value_heads", "window_size"]
    keys = ["system", "head_dim", *shape]
    best = rows.groupby(keys).latency_ms.min().reset_index()
    best["windowed"] = (best.window_size > 0) & (best.window_size < best.isl)
    head_sizes = sorted(best.head_dim.unique())
    for (system, device), size, windowed in product(
        CHIPS.items(), head_sizes, (False, True)
    ):
        group = best[
            (best.system == system)
            & (best.head_dim == size)
            & (best.windowed == windowed)
        ]
        if len(group) < FEWEST_SHAPES:
            continue
        chip = load_accelerator(device)
        batch, length, heads, groups, window = group[shape].to_numpy(np.float64).T
        seen = np.where(window > 0, np.minimum(window, length), length)
        prompts = Prompts(batch, length, heads, groups, seen)
        times = group.latency_ms.to_numpy() * 1e-3
        name = f"attention/{chip.name}/{size}/{'window' if windowed else 'all'}"
        yield name, prompts.shapes((size, size), chip, times)
