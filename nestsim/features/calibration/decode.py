"""``python -m nestsim.features.calibration.decode``: fit laws of decoding kernels.

Reads tables of measured kernels (parquet files of AIConfigurator, a folder for each
system, framework and version) and prints the values of
``estimators/generation/decode_laws.toml``. Every fifth curve is held out.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from estimators.operators.shape_tables import product_roofline, product_table
from nestsim.features.calibration.operators import CHIPS
from topologies.accelerators import Accelerator, load_accelerator
from topologies.arrays import FloatArray

_Shape = tuple[int, int, int, int, int]
_KEYS = (64, 65536)
_HELD = 5


class DecodeKernels(NamedTuple):
    """Kernels of one chip: what they do, and how long they take."""

    shapes: FloatArray
    """A row for each kernel, the columns that `_fitted` names."""
    times: FloatArray
    """Measured times [s]."""
    held: FloatArray
    """1 for rows that are not fitted."""


def newest(folder: Path, name: str) -> list[Path]:
    """Return the tables of the newest version of each framework."""
    latest: dict[str, tuple[tuple[int, ...], Path]] = {}
    for path in sorted(folder.glob(f"*/*/*/{name}.parquet")):
        version = tuple(map(int, re.findall(r"\d+", path.parent.name)))
        framework = path.parent.parent.name
        latest[framework] = max(latest.get(framework, ((), path)), (version, path))
    return [path for _, path in latest.values()]


def attention_curve(
    folder: Path, chip: Accelerator, width: int, name: str
) -> DecodeKernels:
    """Return the fastest kernels for each shape of one width of cached numbers.

    Columns: numbers of all queries, bytes and FLOP over the chip's rates [s].
    """
    from pyarrow import parquet

    best: dict[_Shape, float] = {}
    latent = name == "generation_mla_perf"
    for path in newest(folder, name):
        table = parquet.read_table(path).to_pylist()
        times: dict[_Shape, float] = {}
        for row in table:
            size = 1 if row["kv_cache_dtype"] == "fp8" else 2
            heads, keys = row["num_heads"], row["step"] + row["isl"]
            head_size = 576 if latent else row["head_dim"]
            groups = 1 if latent else row["num_key_value_heads"] or heads
            if size == width and not row.get("window_size"):
                shape = row["batch_size"], heads, groups, head_size, keys
                time = min(times.get(shape, 1.0), row["latency"] * 1e-3)
                times[shape] = time
        # Above the bandwidth something else was measured.
        rate = chip.memory_bandwidth
        read = {
            s: (2 - latent) * s[0] * s[2] * s[3] * s[4] * width / rate for s in times
        }
        wrong = [s for s in times if s[4] >= 1024 and read[s] > 1.02 * times[s]]
        if len(wrong) <= 0.01 * len(times):
            for shape, time in times.items():
                best[shape] = min(best.get(shape, 1.0), time)
    rows, taken, held = [], [], []
    for (batch, heads, groups, head_size, keys), time in sorted(best.items()):
        if not _KEYS[0] <= keys <= _KEYS[1] or (
            not latent and head_size not in {64, 128}
        ):
            continue
        numbers = batch * heads * head_size
        moved = (2 - latent) * batch * groups * head_size * keys * width
        flops = 2 * (1088 if latent else 0) * batch * heads * keys
        rows.append(
            (numbers, moved / chip.memory_bandwidth, flops / chip.peak_flops["bf16"])
        )
        taken.append(time)
        held.append((batch * 7 + heads * 13 + groups * 31 + head_size) % _HELD == 0)
    return DecodeKernels(
        np.array(rows), np.array(taken), np.array(held, dtype=np.float64)
    )


def law(values: FloatArray, shapes: FloatArray) -> FloatArray:
    """Return what kernels take: a kernel, its queries, then bytes or FLOP [s]."""
    numbers, moved, computed = shapes.T
    work = np.maximum(moved / values[2], computed / values[3])
    times: FloatArray = values[0] + values[1] * numbers + work
    return times


def fitted(curve: DecodeKernels) -> tuple[FloatArray, float]:
    """Return the law of least mean error, and the median error of held-out rows."""
    from scipy.optimize import minimize

    kept = curve.held == 0
    shapes, times = curve.shapes[kept], curve.times[kept]

    def error(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        return float(np.mean(np.abs(np.log(law(np.exp(logs), shapes) / times))))

    start = np.log(np.array([8e-6, 1e-11, 0.85, 0.6]))
    least = minimize(
        error,
        start,
        method="Nelder-Mead",
        options={"maxiter": 6000, "maxfev": 6000, "xatol": 1e-5, "fatol": 1e-8},
    )
    values: FloatArray = np.exp(least.x)
    apart = ~kept
    parts = law(values, curve.shapes[apart]) / curve.times[apart]
    return values, float(np.median(np.abs(parts - 1.0)))


def small_products(folder: Path, chip: Accelerator, number_format: str) -> float:
    """Return what products of up to 64 rows take of what tables say of them."""
    from pyarrow import parquet

    if number_format not in chip.peak_flops:
        return 1.0
    stored = {"bf16": "bfloat16"}.get(number_format, number_format)
    width = (2.0, 2.0) if number_format == "bf16" else (1.0, 2.0)
    best: dict[tuple[int, int, int], float] = {}
    for path in newest(folder, "gemm_perf"):
        for row in parquet.read_table(path).to_pylist():
            shape = row["m"], row["n"], row["k"]
            if row["gemm_dtype"] == stored and shape[0] <= 64 and min(shape[1:]) >= 512:
                best[shape] = min(best.get(shape, 1.0), row["latency"] * 1e-3)
    if not best:
        return 1.0
    table = product_table(chip.name, number_format)
    rates = chip.peak_flops[number_format], chip.memory_bandwidth
    parts = [
        time
        / (table.slowdown(*shape) * product_roofline((*shape, 1.0), *rates, width)[1])
        for shape, time in best.items()
    ]
    return float(np.median(parts))


def sums(folder: Path) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield the fastest all-reduces of a node by ranks: bytes and us, never falling."""
    from pyarrow import parquet

    best: dict[int, dict[int, float]] = {}
    for path in newest(folder, "custom_allreduce_perf"):
        for row in parquet.read_table(path).to_pylist():
            if "eager" in str(row.get("backend")):
                continue
            sizes = best.setdefault(row["num_gpus"], {})
            size = 2 * row["message_size"]
            sizes[size] = min(sizes.get(size, 1e9), row["latency"] * 1e3)
    for ranks, times in sorted(best.items()):
        knots: list[tuple[int, float]] = []
        for size in sorted(times):
            if size >= 2048 and size.bit_length() % 2 == 0:
                floor = knots[-1][1] if knots else 0.0
                knots.append((size, max(floor, times[size])))
        yield ranks, knots


_Chips = dict[str, tuple[Path, Accelerator]]


def _law_lines(kind: str, chips: _Chips) -> Iterator[str]:
    latent = kind == "latent"
    table = f"generation_{'mla' if latent else 'attention'}_perf"
    yield f"[{kind}]"
    for name, (folder, chip) in chips.items():
        for width in (2, 1):
            curve = attention_curve(folder, chip, width, table)
            if len(curve.times):
                values, error = fitted(curve)
                shown = [f"{v:.3g}" for v in (*values[: 3 + latent], error)]
                yield f'"{name}/{width}" = [{", ".join(shown)}]'


def _product_lines(chips: _Chips) -> Iterator[str]:
    yield "[small_products]"
    for name, (folder, chip) in chips.items():
        parts = (small_products(folder, chip, kind) for kind in ("bf16", "fp8"))
        yield f"{name} = [{', '.join(f'{part:.3f}' for part in parts)}]"


def _sum_lines(chips: _Chips) -> Iterator[str]:
    for name, (folder, chip) in chips.items():
        yield f"[all_reduce.{name}]\nbandwidth = {chip.interconnect_bandwidth:.4g}"
        yield f"[all_reduce.{name}.curves.all_reduce]"
        for ranks, knots in sums(folder):
            shown = [f"[{size}, {time:.4g}]" for size, time in knots]
            yield f"{ranks} = [{', '.join(shown)}]"


def main() -> int:
    """Fit, and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m nestsim.features.calibration.decode"
    )
    parser.add_argument("data", type=Path, help="folder of systems")
    options = parser.parse_args()
    chips = {
        name: (options.data / system, load_accelerator(name))
        for system, name in CHIPS.items()
        if (options.data / system).is_dir()
    }
    tables = (
        _law_lines("attention", chips),
        _law_lines("latent", chips),
        _product_lines(chips),
        _sum_lines(chips),
    )
    for line in chain(*tables):
        sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
