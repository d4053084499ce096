"""How long kernels of a shape take beside their roofline: tables of measured times.

A table holds ``log(measured / roofline)`` at the nodes of a grid over the binary
logarithms of a shape's sizes; between nodes it is multilinear, beyond the grid the
nearest node counts. The roofline is that of the datasheet [1]_, so that one table holds
what tiles, waves, pipelines and kernel choice cost, smoothly, and a chip without a table
of its own may borrow that of a relative.

Tables are fitted to isolated kernels at full clock, the fastest of those that were
measured for a shape: ``shape_tables.toml`` has sources, dates and the errors of shapes
that were held out, ``shape_tables.npz`` the nodes.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from types import MappingProxyType

import numpy as np

from topologies.arrays import FloatArray

GRIDS: Mapping[str, tuple[tuple[float, ...], ...]] = MappingProxyType(
    {
        "product": (
            (7, 8, 9, 10, 11, 12, 13, 15),
            (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16),
            (5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16),
        ),
    }
)
"""Kind of kernel -> binary logarithms of the grid's sizes, for each size of a shape: a
product's rows ``m``, columns ``n`` and inner dimension ``k``."""


def node_weights(
    grid: Sequence[Sequence[float]], sizes: Sequence[float]
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield the nodes that a shape lies between, with the weight of each.

    Weights are positive and add up to 1.
    """
    sides = []
    for axis, size in zip(grid, sizes, strict=True):
        place = min(max(float(np.log2(size)), axis[0]), axis[-1])
        left = min(int(np.searchsorted(axis, place, side="right")) - 1, len(axis) - 2)
        part = (place - axis[left]) / (axis[left + 1] - axis[left])
        sides.append(((left, 1.0 - part), (left + 1, part)))
    for corner in product(*sides):
        weight = float(np.prod([part for _, part in corner]))
        if weight > 0:
            yield tuple(index for index, _ in corner), weight


@dataclass(frozen=True, slots=True, eq=False)
class ShapeTable:
    """What one kind of kernel takes on one chip in one number format."""

    kind: str
    """Of `GRIDS`."""

    nodes: FloatArray
    """Logarithm of measured over roofline time at each node of the grid."""

    def slowdown(self, *sizes: float) -> float:
        """Return the measured time of a shape over its roofline time."""
        weights = node_weights(GRIDS[self.kind], sizes)
        return float(np.exp(sum(self.nodes[node] * part for node, part in weights)))


@cache
def shape_tables() -> Mapping[tuple[str, str, str], ShapeTable]:
    """Return the shipped tables by kind, chip and number format."""
    path = files("estimators.operators") / "shape_tables.npz"
    with path.open("rb") as file, np.load(file) as nodes:
        tables = {
            tuple(name.split("/")): ShapeTable(
                name.split("/")[0], nodes[name].astype(np.float64)
            )
            for name in nodes.files
        }
    return MappingProxyType(tables)  # type: ignore[arg-type]
