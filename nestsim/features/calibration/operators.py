"""``python -m nestsim.features.calibration.operators``: fit tables of kernels' times.

Reads tables of measured kernels (parquet files of AIConfigurator [1]_) and writes what
`estimators.operators.shape_tables` ships. A table minimises the squared errors of the
logarithms, plus its second differences, which fill nodes that no shape is near::

    sum_i (log(t_i / roofline_i) - table(shape_i))^2 + s^2 sum (second differences)^2

A fifth of the shapes, drawn with a seed, is held out of a first fit, to say how far off
the table is for shapes that it has not seen; the tables that are written know all.

References
----------
.. [1] https://github.com/ai-dynamo/aiconfigurator, systems/data.
"""

import argparse
import datetime as dt
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.linalg import spsolve

from estimators.operators.shape_tables import GRIDS
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

FORMATS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "bfloat16": ("bf16", 2.0),
        "fp8": ("fp8", 1.0),
        "fp8_block": ("fp8", 1.0),
        "nvfp4": ("nvfp4", 0.5625),
    }
)
"""Number format of the measurements -> rate of the datasheet, bytes of an operand."""

SMOOTHING = 0.02
"""Square of the weight of second differences beside errors."""

LAUNCH = 3e-6
"""Time of a kernel without work, in the roofline [s]."""

HELD_OUT = 0.2
"""Part of the shapes that are held out to measure the error."""


def product_roofline(
    chip: Accelerator, number_format: str, m: FloatArray, n: FloatArray, k: FloatArray
) -> FloatArray:
    """Return the datasheet's time of products [s]: compute or traffic, and a launch."""
    rate, width = FORMATS[number_format]
    traffic = width * (m * k + k * n) + 2.0 * m * n
    compute = 2.0 * m * n * k / chip.peak_flops[rate]
    return np.asarray(np.maximum(compute, traffic / chip.memory_bandwidth) + LAUNCH)


def hat_matrix(
    grid: tuple[tuple[float, ...], ...], sizes: FloatArray
) -> sparse.csr_array:
    """Return the weight of every node for every shape, shapes by nodes."""
    extents = tuple(len(axis) for axis in grid)
    places: list[tuple[IntArray, FloatArray]] = []
    for axis, column in zip(grid, np.log2(sizes).T, strict=True):
        knots = np.array(axis)
        place = np.clip(column, knots[0], knots[-1])
        left = np.clip(np.searchsorted(knots, place, "right") - 1, 0, knots.size - 2)
        places.append((left, (place - knots[left]) / np.diff(knots)[left]))
    rows, nodes, weights = [], [], []
    for corner in np.ndindex(*(2,) * len(grid)):
        index = [left + side for (left, _), side in zip(places, corner, strict=True)]
        parts = [
            p if side else 1.0 - p for (_, p), side in zip(places, corner, strict=True)
        ]
        rows.append(np.arange(len(sizes)))
        nodes.append(np.ravel_multi_index(index, extents))
        weights.append(np.prod(parts, axis=0))
    return sparse.csr_array(
        (np.concatenate(weights), (np.concatenate(rows), np.concatenate(nodes))),
        shape=(len(sizes), int(np.prod(extents))),
    )


def second_differences(grid: tuple[tuple[float, ...], ...]) -> sparse.csr_array:
    """Return the matrix of second differences along every axis of a grid."""
    numbers = np.arange(np.prod([len(axis) for axis in grid]))
    numbers = numbers.reshape([len(axis) for axis in grid])
    blocks = []
    for along, axis in enumerate(grid):
        for i in range(1, len(axis) - 1):
            before, after = axis[i] - axis[i - 1], axis[i + 1] - axis[i]
            trio = [np.take(numbers, j, axis=along).ravel() for j in (i - 1, i, i + 1)]
            weights = (1 / before, -1 / before - 1 / after, 1 / after)
            rows = np.arange(trio[0].size)
            blocks.append(
                sparse.csr_array(
                    (
                        np.repeat(weights, rows.size),
                        (np.tile(rows, 3), np.concatenate(trio)),
                    ),
                    shape=(rows.size, numbers.size),
                )
            )
    return sparse.csr_array(sparse.vstack(blocks))


def fitted_nodes(kind: str, sizes: FloatArray, logs: FloatArray) -> FloatArray:
    """Return the nodes of a table that fits logarithms of times over rooflines."""
    grid = GRIDS[kind]
    hats, rough = hat_matrix(grid, sizes), second_differences(grid)
    normal = hats.T @ hats + SMOOTHING * (rough.T @ rough)
    normal = normal + 1e-9 * sparse.eye_array(normal.shape[0])
    solved = spsolve(sparse.csc_array(normal), hats.T @ logs)
    return np.asarray(solved).reshape([len(axis) for axis in grid])


def held_out_error(
    kind: str, sizes: FloatArray, logs: FloatArray, held: BoolArray
) -> float:
    """Return the mean error of held-out shapes, as a part of their times."""
    nodes = fitted_nodes(kind, sizes[~held], logs[~held])
    misses = hat_matrix(GRIDS[kind], sizes[held]) @ nodes.ravel() - logs[held]
    return float(np.mean(np.abs(np.expm1(misses))))


def product_tables(data: Path) -> tuple[dict[str, FloatArray], dict[str, float]]:
    """Return nodes and held-out error of each table of products."""
    rows = pd.read_parquet(data / "products.parquet")
    rows = rows[rows.system.isin(list(CHIPS)) & rows.gemm_dtype.isin(list(FORMATS))]
    best = rows.groupby(["system", "gemm_dtype", "m", "n", "k"]).latency_ms.min()
    nodes, errors = {}, {}
    for (system, number_format), group in best.groupby(level=[0, 1]):
        sizes = np.array(
            [group.index.get_level_values(axis) for axis in "mnk"], dtype=np.float64
        ).T
        chip = load_accelerator(CHIPS[system])
        roofline = product_roofline(chip, number_format, *sizes.T)
        logs = np.log(group.to_numpy() * 1e-3 / roofline)
        held = np.random.default_rng(0).random(len(logs)) < HELD_OUT
        name = f"product/{CHIPS[system]}/{number_format}"
        errors[name] = held_out_error("product", sizes, logs, held)
        nodes[name] = fitted_nodes("product", sizes, logs)
    return nodes, errors


def main() -> int:
    """Fit, print the errors, and write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m nestsim.features.calibration.operators"
    )
    parser.add_argument("data", type=Path, help="folder of parquet files")
    parser.add_argument(
        "--write", type=Path, metavar="DIR", help="write the tables there"
    )
    options = parser.parse_args()
    nodes, errors = product_tables(options.data)
    for name, error in errors.items():
        sys.stdout.write(f"{name}: {100 * error:.1f} % of held-out shapes\n")
    sys.stdout.write(f"median {100 * float(np.median([*errors.values()])):.1f} %\n")
    if options.write:
        stored = {name: values.astype(np.float16) for name, values in nodes.items()}
        np.savez_compressed(options.write / "shape_tables.npz", **stored)
        lines = [f'fitted = "{dt.date.today().isoformat()}"\n', "[held_out_error]\n"]
        lines += [f'"{name}" = {error:.4f}\n' for name, error in errors.items()]
        (options.write / "shape_tables.toml").write_text("".join(lines), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
