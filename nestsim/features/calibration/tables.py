"""``python -m nestsim.features.calibration.tables``: fit tables of kernels' times.

Reads tables of measured kernels (parquet files of AIConfigurator) and writes what
`estimators.operators.shape_tables` ships, with the errors of held-out shapes.
"""

import argparse
import datetime as dt
import io
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from estimators.operators.shape_tables import GRIDS
from nestsim.features.calibration.experts import expert_shapes, fitted_experts
from nestsim.features.calibration.mixers import (
    convolution_shapes,
    latent_shapes,
    recurrence_shapes,
)
from nestsim.features.calibration.operators import (
    LARGEST_ERROR,
    Shapes,
    attention_shapes,
    fitted_table,
    product_shapes,
)
from topologies.arrays import FloatArray


class FittedTable(NamedTuple):
    """A table, and how far off it is."""

    kind: str
    """Kind of kernel."""

    name: str
    """Its name in the index."""

    num_shapes: int
    """Shapes that were measured."""

    nodes: FloatArray
    """Nodes of a table of all shapes."""

    error: float
    """Mean error of held-out shapes, as a part of their times."""


def fitted_tables(data: Path) -> Iterator[FittedTable]:
    """Yield the tables of every kind, fitted."""
    products: dict[str, FloatArray] = {}
    for name, shapes in product_shapes(data):
        table = _fitted(name, shapes)
        products[name] = table.nodes
        yield table
    for name, shapes in chain(
        attention_shapes(data),
        latent_shapes(data, products),
        convolution_shapes(data),
        recurrence_shapes(data),
    ):
        yield _fitted(name, shapes)
    for name, layers in expert_shapes(data):
        yield FittedTable("experts", name, len(layers.logs), *fitted_experts(layers))


def _fitted(name: str, shapes: Shapes) -> FittedTable:
    kind = name.partition("/")[0]
    return FittedTable(kind, name, len(shapes.logs), *fitted_table(kind, shapes))


def main() -> int:
    """Fit, print the errors, and write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m nestsim.features.calibration.tables"
    )
    parser.add_argument("data", type=Path, help="folder of parquet files")
    parser.add_argument("--write", type=Path, metavar="DIR", help="folder to write to")
    options = parser.parse_args()
    nodes: dict[str, list[FloatArray]] = {kind: [] for kind in GRIDS}
    lines = [f'fitted = "{dt.datetime.now(dt.UTC).date().isoformat()}"\n\n[held_out]\n']
    errors: dict[str, list[float]] = {kind: [] for kind in GRIDS}
    for table in fitted_tables(options.data):
        kept = table.error <= LARGEST_ERROR
        count = f"{table.num_shapes:,}{'' if kept else ', not kept'}"
        sys.stdout.write(f"{table.name}: {100 * table.error:.1f} % of {count}\n")
        if kept:
            errors[table.kind].append(table.error)
            nodes[table.kind].append(table.nodes)
            lines.append(f'"{table.name}" = {table.error:.4f}\n')
    for kind, known in errors.items():
        median = 100 * float(np.median(known))
        sys.stdout.write(f"{kind}: median {median:.1f} % of held-out shapes\n")
    if options.write:
        stored = io.BytesIO()
        halves = {kind: np.array(tables, "f2") for kind, tables in nodes.items()}
        np.savez_compressed(stored, allow_pickle=False, **halves)
        (options.write / "shape_tables.npz").write_bytes(stored.getvalue())
        path = options.write / "shape_tables.toml"
        head = path.read_text("utf-8").partition("fitted = ")[0]
        path.write_text(head + "".join(lines), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
