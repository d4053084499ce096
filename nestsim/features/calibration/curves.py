"""Curves of collectives from measurements, and how well they tell those held out.

Measurements are rows of a system, an operation, a number of ranks, a size and a time,
as NVIDIA's AIConfigurator publishes them (``nccl.csv``). Systems whose devices have one
interconnect are measured again and again by it: of each size the median counts.

Curves that nobody measured are inferred from those that were, size by size, by kriging
[1]_ in the logarithm of time over the share of the tensor that passes a port: the
covariance of two curves grows with what they have in common, an interconnect, an
operation, about as many ranks. Curves never fall (isotonic regression), and keep as few
knots as tell all points within `_TOLERANCE`.

References
----------
.. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning",
   MIT Press 2006, equation 2.23.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimators.collectives.curves import TimeCurve
from estimators.collectives.transports import (
    WIRE_FRACTIONS,
    find_transport,
    transports,
)
from nestsim.features.validation.collective_rows import HOST_TIMES, read_collective
from nestsim.features.validation.columns import Row, RowRefusedError
from topologies.arrays import FloatArray, IntArray
from topologies.errors import InputError

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Operations that have curves."""

_COLUMNS = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency_ms", "system")
_WIDTHS: Mapping[str, int] = MappingProxyType({"half": 2, "int8": 1, "float": 4})
"""Number format of a row -> bytes of an element."""

_PORTS: Mapping[str, float] = MappingProxyType(
    {
        "nvswitch-a100": 300e9,
        "nvswitch-h100": 450e9,
        "nvswitch-b200": 900e9,
        "pcie-l40s": 31.5e9,
        "pcie5-peer": 63e9,
    }
)
"""Transport -> bandwidth of a rank's port, one direction: third, fourth and fifth
NVLink by NVIDIA's datasheets of A100, H100 and B200, 16 lanes of PCIe 4.0 and 5.0
[byte/s]."""

LARGE = 2.0**26
"""Size from which messages count as large [byte]."""

_TOLERANCE = 0.02
"""Relative error of a point between knots up to which it is no knot."""


class MeasuredKey(NamedTuple):
    """What a curve is about."""

    system: str
    """Name of the system or of the transport."""

    operation: str
    """One of `OPERATIONS`."""

    num_ranks: int
    """Members of the group."""


Points = Mapping[MeasuredKey, Mapping[int, float]]
"""Curve -> bytes of the full tensor -> time [s]."""


def read_curve_points(path: Path) -> Points:
    """Return the median time of each point of a file like ``nccl.csv``.

    Raises
    ------
    InputError
        If the file lacks a column, or a row says what is not understood.
    """
    found: dict[MeasuredKey, dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (rows.fieldnames or ())]
        if missing:
            raise InputError(
                f"has no column {missing[0]}",
                where=str(path),
                expected="the columns " + ", ".join(_COLUMNS),
            )
        for number, row in enumerate(rows, 2):
            operation = row["op_name"].replace("alltoall", "all_to_all")
            width = _WIDTHS.get(row["nccl_dtype"], 0)
            if operation not in OPERATIONS or not width:
                raise InputError(
                    "names no operation or number format that curves are made of",
                    where=f"{path}: line {number}",
                    got=f"{row['op_name']} of {row['nccl_dtype']}",
                    expected=f"{', '.join(OPERATIONS)} of {', '.join(_WIDTHS)}",
                )
            key = MeasuredKey(row["system"], operation, int(row["num_gpus"]))
            size = int(row["message_size"]) * width
            found[key][size].append(float(row["latency_ms"]) * 1e-3)
    return _medians(found)


def transport_of(system: str) -> str:
    """Return the name of the transport inside a system's nodes; a transport's is its.

    Raises
    ------
    InputError
        If nobody wrote down how fast its ports are.
    """
    name = system
    if system not in transports():
        name = find_transport(system.replace("_", "-"), inside_node=True).name
    if name not in _PORTS:
        raise InputError(
            "has links whose datasheet is not known here",
            where=f"system {system}",
            expected="systems of " + ", ".join(_PORTS),
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTable:
    """Complete curves of all interconnects that were measured."""

    curves: Mapping[MeasuredKey, tuple[IntArray, FloatArray]]
    """Curve, by the name of its transport -> bytes of the full tensor [byte] and time
    [s] at all points, ``(K,)`` each."""

    measured: frozenset[MeasuredKey]
    """Those that were measured; the others are inferred."""


def extended(points: Points, rows: Sequence[Row]) -> Points:
    """Return measurements with those of large messages in other publications.

    Where no system of an interconnect has a point from `LARGE` on, the median of what
    rows about collectives say is one, under the name of its transport.
    """
    known = {
        (transport_of(key.system), key.operation, key.num_ranks, size)
        for key, curve in points.items()
        for size in curve
    }
    alike = {(*key[1:], transport_of(key.system)) for key in points}
    names, ranks = {name for *_, name in alike}, {n for _, n, _ in alike}
    found: dict[MeasuredKey, dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        try:
            case = read_collective(row)
        except RowRefusedError:
            continue
        size, name = int(case.num_bytes), case.inside.name
        key = MeasuredKey(name, case.operation, case.num_ranks)
        is_alike = case.across is None and name in names and key.num_ranks in ranks
        is_new = size >= LARGE and (*key, size) not in known
        if is_alike and is_new and case.operation in OPERATIONS:
            host = HOST_TIMES[case.method]
            found[key][size].append(case.measured - host)
    return {**points, **_medians(found)}


def _medians(
    found: Mapping[MeasuredKey, Mapping[int, Sequence[float]]],
) -> dict[MeasuredKey, Mapping[int, float]]:
    return {
        key: {size: median(times) for size, times in sorted(points.items())}
        for key, points in found.items()
    }


def curve_table(points: Points) -> CurveTable:
    """Return the curves of every operation and number of ranks that is measured at all.

    Of sizes that only few were measured at, none is inferred.
    """
    sizes = np.array(sorted({size for curve in points.values() for size in curve}))
    pooled: dict[MeasuredKey, list[list[float]]] = defaultdict(list)
    for key, curve in points.items():
        row = [math.log(curve.get(int(size), math.nan)) for size in sizes]
        pooled[key._replace(system=transport_of(key.system))].append(row)
    ranks = sorted({key.num_ranks for key in pooled})
    names = dict.fromkeys(key.system for key in pooled)
    keys = [
        MeasuredKey(name, operation, n)
        for name in names
        for operation in OPERATIONS
        for n in ranks
    ]
    nothing = [[math.nan] * len(sizes)]
    rows = [np.array(pooled.get(key, nothing)) for key in keys]
    times = np.array([_middle(row) for row in rows])
    usual = (~np.isnan(times)).sum(axis=0) > len(pooled) / 2
    times[:, usual] = _completed(keys, times[:, usual])
    found = {}
    for key, row in zip(keys, times, strict=True):
        there = ~np.isnan(row)
        found[key] = sizes[there], np.exp(rising(row[there]))
    return CurveTable(curves=found, measured=frozenset(pooled))


def _middle(rows: FloatArray) -> FloatArray:
    """Return the median of each column, and lines over gaps between them; NaN outside.

    Sizes are spaced evenly in their logarithms.
    """
    columns = [column[~np.isnan(column)] for column in rows.T]
    row = np.array([np.median(c) if c.size else math.nan for c in columns])
    there = np.flatnonzero(~np.isnan(row))
    if there.size:
        inner = np.arange(there[0], there[-1] + 1)
        row[inner] = np.interp(inner, there, row[there])
    return row


_TREND, _NOISE = 1.5, 0.02
"""Standard deviations of the logarithm of time between interconnects, and of a point
around its curve; here and below chosen such that curves that are left out, one by one
and a quarter at a time, are told best."""

_RANKS, _RING_RANKS = 2.0, 0.34
"""Standard deviations of what a number of ranks does to all operations of one
interconnect (and to those of all switches, or all PCIe nodes), and to its rings."""

_OPERATION, _OPERATION_HERE = 0.13, 0.08
"""Standard deviations of what an operation does on all interconnects, and on one."""

_BOTH, _BOTH_HERE = 0.11, 0.15
"""Standard deviations of what an operation does at a number of ranks, likewise."""


def _covariance(a: MeasuredKey, b: MeasuredKey) -> float:
    """Return what two curves have in common, at any size."""
    doublings = math.log2(a.num_ranks / b.num_ranks)
    ranks = math.exp(-0.5 * doublings**2)
    here, alike = a.system == b.system, _is_pcie(a.system) == _is_pcie(b.system)
    operation = a.operation == b.operation
    rings = (a.operation == "all_to_all") == (b.operation == "all_to_all")
    return (
        _TREND**2 * here
        + _RANKS**2 * ranks * (here + alike)
        + _RING_RANKS**2 * ranks * here * rings
        + _OPERATION**2 * operation
        + _OPERATION_HERE**2 * operation * here
        + _BOTH**2 * operation * ranks * alike
        + _BOTH_HERE**2 * operation * ranks * here
    )


def _is_pcie(transport: str) -> bool:
    return transport.startswith("pcie")


def _completed(keys: Sequence[MeasuredKey], times: FloatArray) -> FloatArray:
    """Return logarithms of time, shape ``(keys, sizes)``, with what is missing."""
    shares = [WIRE_FRACTIONS[key.operation](key.num_ranks) for key in keys]
    rows = times - np.log(shares)[:, None]
    covariance = np.array([[_covariance(a, b) for b in keys] for a in keys])
    for column in rows.T:
        known = ~np.isnan(column)
        mean = column[known].mean()
        among = covariance[np.ix_(known, known)] + _NOISE**2 * np.eye(known.sum())
        weights = np.linalg.solve(among, column[known] - mean)
        column[~known] = covariance[np.ix_(~known, known)] @ weights + mean
    return rows + np.log(shares)[:, None]


def rising(row: FloatArray) -> FloatArray:
    """Return the nearest row, by squares, that never falls: pool adjacent violators."""
    pools: list[tuple[float, int]] = []
    for value in row.tolist():
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, weight = pools.pop()
            mean = (mean * count + before * weight) / (count + weight)
            count += weight
        pools.append((mean, count))
    return np.repeat([mean for mean, _ in pools], [count for _, count in pools])


def knots(sizes: IntArray, times: FloatArray) -> list[int]:
    """Return the places of as few points as tell all others within the tolerance.

    The point that is furthest from the curve becomes a knot, until none is too far
    (Ramer, Douglas and Peucker); the last interval, whose slope counts, is kept.
    """
    x, y = np.log(sizes), np.log(times)
    chosen = sorted({0, len(x) - 2, len(x) - 1})
    while True:
        far = np.abs(np.interp(x, x[chosen], y[chosen]) - y)
        worst = int(far.argmax())
        if far[worst] <= _TOLERANCE:
            return chosen
        chosen = sorted({*chosen, worst})


class CurveScore(NamedTuple):
    """How well curves are told that were held out."""

    name: str
    """What was held out, or in."""

    error: float
    """Mean absolute error of all points, relative."""

    error_of_large: float
    """Mean absolute error from `LARGE` on, relative."""

    worst: tuple[tuple[MeasuredKey, float], ...]
    """The worst curves and their mean absolute errors."""


def curve_scores(points: Points) -> tuple[CurveScore, ...]:
    """Return errors of all curves, and of what is held out in several ways."""
    keys = sorted(points)
    random = np.random.default_rng(_SEED)
    alone: list[Points] = [{key: points[key]} for key in keys]
    quarters: list[Points] = []
    scattered: list[Points] = []
    for _ in range(_DEALS):
        order = random.permutation(len(keys))
        quarters += [{keys[i]: points[keys[i]] for i in order[q::4]} for q in range(4)]
    every = [(key, size) for key in keys for size in points[key]]
    order = random.permutation(len(every))
    for quarter in range(4):
        part: dict[MeasuredKey, dict[int, float]] = defaultdict(dict)
        for key, size in (every[i] for i in order[quarter::4]):
            part[key][size] = points[key][size]
        scattered.append(part)
    return (
        _score("all in the fit", points, [points], hold_out=False),
        _score("a quarter of the points held out", points, scattered),
        _score("each curve held out", points, alone),
        _score("a quarter of the curves held out", points, quarters),
    )


_DEALS = 5
"""Times that curves are dealt to quarters."""

_SEED = 5
"""Seed of the order in which curves are dealt to quarters."""


def _score(
    name: str, points: Points, parts: Sequence[Points], *, hold_out: bool = True
) -> CurveScore:
    errors: dict[MeasuredKey, list[tuple[int, float]]] = defaultdict(list)
    for part in parts:
        used = _without(points, part) if hold_out else points
        curves = _curves(curve_table(used))
        for key, curve in part.items():
            told = curves[key._replace(system=transport_of(key.system))]
            errors[key] += [
                (size, abs(told.time(size) / time - 1.0))
                for size, time in curve.items()
            ]
    every = [pair for pairs in errors.values() for pair in pairs]
    by_curve = [
        (key, float(np.mean([error for _, error in pairs])))
        for key, pairs in errors.items()
    ]
    return CurveScore(
        name,
        float(np.mean([error for _, error in every])),
        float(np.mean([error for size, error in every if size >= LARGE])),
        tuple(sorted(by_curve, key=lambda item: -item[1])[:5]),
    )


def _without(points: Points, part: Points) -> Points:
    """Return the points that are not in a part."""
    left = {
        key: {s: t for s, t in curve.items() if s not in part.get(key, {})}
        for key, curve in points.items()
    }
    return {key: curve for key, curve in left.items() if curve}


def _curves(table: CurveTable) -> dict[MeasuredKey, TimeCurve]:
    found = {}
    for key, (sizes, times) in table.curves.items():
        chosen = knots(sizes, times)
        found[key] = TimeCurve(
            tuple(sizes[chosen].astype(float).tolist()),
            tuple(times[chosen].tolist()),
        )
    return found


def curves_toml(points: Points) -> str:
    """Return the text of ``collective_curves.toml``."""
    table = curve_table(points)
    found = _curves(table)
    lines = [
        "# Collectives inside a node: [bytes of the full tensor, us] by operation and",
        "# ranks. Written by nestsim.features.calibration.curves, which says how; read",
        "# by estimators.collectives.curves.",
        *_SOURCE,
    ]
    for name in sorted({key.system for key in found}, key=list(transports()).index):
        systems = sorted(
            {
                key.system
                for key in points
                if transport_of(key.system) == name != key.system
            }
        )
        inferred = [
            f"{key.operation} of {key.num_ranks}"
            for key in sorted(found)
            if key.system == name and key not in table.measured
        ]
        lines += [
            "",
            f"[{name}]",
            f"bandwidth = {_PORTS[name]:g}",
            f'measured_on = "{", ".join(systems)}"',
            f'inferred = "{", ".join(inferred) or "none"}"',
        ]
        for operation in OPERATIONS:
            lines.append(f"[{name}.curves.{operation}]")
            lines += [
                f"{key.num_ranks} = [{_knots_text(curve)}]"
                for key, curve in sorted(found.items())
                if (key.system, key.operation) == (name, operation)
            ]
    return "\n".join(lines) + "\n"


_SOURCE = (
    "#",
    "# Source: NVIDIA's AIConfigurator (ai-dynamo/aiconfigurator, 095f58a51c), medians",
    "# of nccl-tests with NCCL 2.27 and 2.29; all-reduces of 8 A100 from 64 MiB, all",
    "# from 1 GiB: vTrain, ml-engineering, NVIDIA DGX Cloud benchmarking. Nobody",
    "# measured what is called inferred.",
)
"""What the file's head says of the measurements."""


def _knots_text(curve: TimeCurve) -> str:
    pairs = zip(curve.sizes, curve.times, strict=True)
    return ", ".join(f"[{size:.0f}, {time * 1e6:.4g}]" for size, time in pairs)
