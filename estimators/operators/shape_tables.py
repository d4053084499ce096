"""How long kernels of a shape take beside their roofline: tables of measured times.

A table holds ``log(measured / roofline)`` at the nodes of a grid over the binary
logarithms of a shape's sizes; between nodes it is multilinear, beyond the grid the
nearest node counts. The roofline is that of the datasheet [1]_, so that a table holds
what tiles, waves, pipelines and the choice of kernels cost, and a chip without a table
of its own may borrow that of a relative, at its own datasheet's rates. Latent attention
has tables of its own: one of 192 channels a query and 128 a value is that of heads of
160, the mean.

Tables are fitted to isolated kernels at full clock, the fastest of those that were
measured for a shape. ``shape_tables.toml`` has names, sources, dates and the errors of
shapes that were held out; ``shape_tables.npz`` has the nodes, kind by kind.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import tomli

from topologies.arrays import FloatArray

GRIDS: Mapping[str, tuple[tuple[float, ...], ...]] = MappingProxyType(
    {
        "product": (
            (7, 8, 9, 10, 11, 12, 13, 15),
            (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16),
            (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16),
        ),
        "attention": (
            (-6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 10),
            (8, 9, 10, 11, 12, 13, 14),
            (0, 2, 5),
        ),
        "experts": (
            (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12),
            (0, 2, 4, 6, 7, 9),
            (5, 7, 8, 9, 10, 11, 12, 13),
            (10, 11, 12, 13, 15),
        ),
        "convolution": ((18, 20, 22, 24, 26, 28, 30, 32),),
        "recurrence": (
            (7, 8, 9, 10, 11, 12, 13, 14, 15),
            (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
        ),
    }
)
"""Kind of kernel -> binary logarithms of the grid's sizes, for each size of a shape: a
product's rows, columns and inner dimension; for attention blocks of `QUERY_BLOCK`
queries for each compute unit, keys, and query heads for each head of keys; for grouped
products the rows of an expert, the experts, and the two sizes of their weights, the
smaller one first; for the convolution before a scan the bytes it moves; for the gated
delta rule the tokens of a sequence, and heads of values of all sequences."""

QUERY_BLOCK = 128
"""Queries that a compute unit works on at a time: FlashAttention's blocks on most chips
(Dao, "FlashAttention-2", 2023, section 3.3)."""

KERNEL_TIME = 3e-6
"""Time of a kernel with next to no work, as the tables' rooflines have it [s]: the
fastest of the measured products."""


@dataclass(frozen=True, slots=True, eq=False)
class ShapeTable:
    """What one kind of kernel takes on one chip in one number format."""

    axes: tuple[tuple[float, ...], ...]
    """Grid over the binary logarithms of a shape's sizes."""

    nodes: tuple[float, ...]
    """Logarithm of measured over roofline time at each node, the last axis fastest."""

    corners: tuple[int, ...] = field(init=False)
    """Distance of a cell's corners from its first one among the nodes."""

    def __post_init__(self) -> None:
        corners = [0]
        for axis in self.axes:
            corners = [len(axis) * node + side for node in corners for side in (0, 1)]
        object.__setattr__(self, "corners", tuple(corners))

    def slowdown(self, *sizes: float) -> float:
        """Return the measured time of a shape over its roofline time."""
        return _slowdown(self, sizes)


@lru_cache(maxsize=1 << 14)
def _slowdown(table: ShapeTable, sizes: tuple[float, ...]) -> float:
    """Interpolate between the corners of a cell, the last axis first.

    Kept, as the same shapes come again with other links, plans and constants.
    """
    first, parts = 0, []
    for axis, size in zip(table.axes, sizes, strict=True):
        place = math.log2(size)
        left, part = 0, 0.0
        if place >= axis[-1]:
            left, part = len(axis) - 2, 1.0
        elif place > axis[0]:
            left = bisect_right(axis, place) - 1
            part = (place - axis[left]) / (axis[left + 1] - axis[left])
        first = first * len(axis) + left
        parts.append(part)
    values = [table.nodes[first + corner] for corner in table.corners]
    for part in reversed(parts):
        values = [
            values[i] + part * (values[i + 1] - values[i])
            for i in range(0, len(values), 2)
        ]
    return math.exp(values[0])


@cache
def _index() -> Mapping[str, Any]:
    text = files("estimators.operators").joinpath("shape_tables.toml").read_text()
    return MappingProxyType(tomli.loads(text))


@cache
def _tables() -> Mapping[tuple[str, ...], ShapeTable]:
    """Return the shipped tables by kind, chip and what else their names say."""
    tables = {}
    path = files("estimators.operators").joinpath("shape_tables.npz")
    with path.open("rb") as file, np.load(file) as stored:
        for kind, grid in GRIDS.items():
            names = [name for name in _index()["held_out"] if name.startswith(kind)]
            for name, nodes in zip(names, stored[kind], strict=True):
                table = _table(kind, grid, nodes.astype(np.float64))
                tables[tuple(name.split("/"))] = table
    return MappingProxyType(tables)


def _table(
    kind: str, grid: tuple[tuple[float, ...], ...], nodes: FloatArray
) -> ShapeTable:
    """Return a table; one of attention with twice as many keys as were measured.

    With them it gains half of what it gained by the doubling before, as it does with a
    cost of each block beside its keys. Tables of up to 16,384 keys miss latent
    attention with 32,768 by 2 to 6 % (means of six chips), by 3 to 9 % with the last
    node alone; those of up to 4,096 miss plain attention with 8,192 by 1 to 5 %, and by
    5 to 11 %. Beyond that nothing is gained: kernels of SimuMax 1.2 on B200 get slower
    by 15 % from 32,768 to 131,072 keys.
    """
    if kind == "attention":
        units, keys, heads = grid
        gained = nodes[:, -1:] - nodes[:, -2:-1]
        grid = units, (*keys, keys[-1] + 1), heads
        nodes = np.concatenate([nodes, nodes[:, -1:] + gained / 2], axis=1)
    return ShapeTable(grid, tuple(nodes.ravel().tolist()))


@cache
def measured_relative(name: str) -> str:
    """Return the measured chip whose kernels those of an accelerator are like.

    The longest entry of ``relatives`` that its name begins with; where there is none,
    a chip with no more than what all of them have.
    """
    relatives: Mapping[str, str] = _index()["relatives"]
    prefixes = (name[:length] for length in range(len(name), 0, -1))
    known = next((prefix for prefix in prefixes if prefix in relatives), "default")
    return relatives[known]


@cache
def product_table(accelerator: str, number_format: str) -> ShapeTable:
    """Return the table of products on an accelerator.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    number_format
        Of the operands, as settings have it; where it was not measured, products run
        like those in 16 bits, at the rate of their own format.
    """
    chip, tables = measured_relative(accelerator), _tables()
    stored = _index()["formats"].get(number_format, "bf16")
    plain = tables["product", chip, "bf16"]
    return tables.get(("product", chip, stored), plain)


@cache
def experts_table(accelerator: str, number_format: str) -> ShapeTable | None:
    """Return the table of grouped products; None where none was measured.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    number_format
        Of the operands, as settings have it.
    """
    chip, stored = measured_relative(accelerator), _index()["formats"]
    return _tables().get(("experts", chip, stored.get(number_format, "bf16")))


@cache
def attention_table(accelerator: str, head_size: int, variant: str) -> ShapeTable:
    """Return the table of causal attention that is nearest to a head size.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    head_size
        Elements of a query's head, or the mean of a query's and a value's.
    variant
        `estimators.layers.work.OperatorWork.variant`; where it was not measured,
        queries see all keys.
    """
    chip = measured_relative(accelerator)
    tables = {
        (name[3], int(name[2])): table
        for name, table in _tables().items()
        if name[:2] == ("attention", chip)
    }
    known = variant if any(name == variant for name, _ in tables) else "all"
    size = min(
        (size for name, size in tables if name == known),
        key=lambda size: abs(math.log2(size / head_size)),
    )
    return tables[known, size]


@cache
def backward_slowdown(accelerator: str, variant: str) -> float:
    """Return what a FLOP of attention takes backward over what it takes forward.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    variant
        `estimators.layers.work.OperatorWork.variant`.
    """
    known: Mapping[str, float] = _index()["backward"]
    return known.get(f"{variant}/{measured_relative(accelerator)}", known[variant])


def eight_bit_attention(accelerator: str, variant: str) -> tuple[float, float]:
    """Return what attention in 8 bits takes of its time in 16, forward and backward.

    1 where no such kernel was measured.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    variant
        `estimators.layers.work.OperatorWork.variant`.
    """
    chip = measured_relative(accelerator)
    forward, backward = _index()["eight_bits"].get(f"{variant}/{chip}", (1.0, 1.0))
    return forward, backward


@cache
def convolution_table(accelerator: str) -> ShapeTable | None:
    """Return the table of Mamba-2's convolution; None where none was measured.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    """
    return _tables().get(("convolution", measured_relative(accelerator)))


@cache
def recurrence_table(accelerator: str) -> ShapeTable:
    """Return the table of the gated delta rule, an H100's where none was measured.

    Parameters
    ----------
    accelerator
        Name in the catalogue.
    """
    tables = _tables()
    measured = tables.get(("recurrence", measured_relative(accelerator)))
    return measured or tables["recurrence", "h100-sxm"]


def recurrence_roofline(flops: Any, moved: Any, peak: float, bandwidth: float) -> Any:
    """Return the datasheet's time of the kernels of a recurrence [s].

    Parameters
    ----------
    flops, moved
        Products of a pass and the bytes it moves, numbers or arrays [FLOP, byte].
    peak, bandwidth
        Rates of products and of the memory [FLOP/s, byte/s].
    """
    larger = np.maximum if isinstance(flops, np.ndarray) else max
    return larger(flops / peak, moved / bandwidth) + KERNEL_TIME


def product_roofline(
    sizes: Sequence[Any], peak: float, bandwidth: float, widths: tuple[float, float]
) -> tuple[Any, Any]:
    """Return the datasheet's time of the FLOPs of products, and of their kernel [s].

    Parameters
    ----------
    sizes
        Rows, columns, inner dimension and independent products; numbers or arrays.
    peak
        Rate of products [FLOP/s].
    bandwidth
        Of the memory [byte/s].
    widths
        Bytes of an operand's and of a result's element [byte].
    """
    m, n, k, batch = sizes
    compute = 2.0 * m * n * k * batch / peak
    traffic = batch * (widths[0] * (m * k + k * n) + widths[1] * m * n) / bandwidth
    larger = np.maximum if isinstance(compute, np.ndarray) else max
    return compute, larger(compute, traffic) + KERNEL_TIME
