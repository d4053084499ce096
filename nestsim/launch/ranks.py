"""Ranks of a framework on devices: as a file, and as a nesting of dimensions.

Where a plan's ranks do not stand in the order of a framework, each format writes the
same rank map beside its files: a table with a row for each rank, its node and the
device of the node.
"""

import re
from collections.abc import Sequence

import numpy as np

from nestsim.launch.read import MOST_DEVICES
from planner.plans.spec import order_names
from planner.plans.written import order_of
from planner.search.placements import Extents
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.input_file import Value

RANK_MAP = "rank_map.csv"
"""Name of the file."""

_HEADING = "rank,node,device"
_ROW = re.compile(r"([0-9]{1,8}),([0-9]{1,8}),([0-9]{1,8})")


def rank_map(devices: IntArray, devices_per_node: int) -> str:
    """Return the node and the device of every rank, as lines of a table.

    Parameters
    ----------
    devices
        Device of each rank, shape ``(ranks,)``.
    devices_per_node
        Devices of a node.
    """
    rows = (
        f"{rank},{device // devices_per_node},{device % devices_per_node}"
        for rank, device in enumerate(devices.tolist())
    )
    return "\n".join((_HEADING, *rows)) + "\n"


def parsed_rank_map(text: str, devices_per_node: int) -> IntArray:
    """Return the device of each rank of a rank map, shape ``(ranks,)``.

    Raises
    ------
    InputError
        If it is none, or a rank or a device is missing or there twice.
    """
    lines = text.split()
    expected = f"{_HEADING}, and a row for each rank from 0 on"
    if len(lines) > MOST_DEVICES:
        raise InputError("is too long", where=RANK_MAP, expected=expected)
    devices = np.full(max(len(lines) - 1, 0), -1, dtype=np.int64)
    for line in lines[1:]:
        row = _ROW.fullmatch(line)
        rank, node, device = (-1, 0, 0) if row is None else map(int, row.groups())
        if not 0 <= rank < devices.size or devices[rank] >= 0:
            raise Value(line[:40], RANK_MAP).error(
                "is no row of a rank of its own", expected
            )
        if device >= devices_per_node:
            raise Value(line[:40], RANK_MAP).error(
                "is no device of a node", f"0 to {devices_per_node - 1}"
            )
        devices[rank] = node * devices_per_node + device
    if lines[:1] != [_HEADING] or np.unique(devices).size < max(devices.size, 1):
        raise InputError("is no rank map", where=RANK_MAP, expected=expected)
    return devices


def nesting(devices: IntArray, extents: Extents, order: str) -> str | None:
    """Return the name of the placement in which ranks stand on devices.

    Parameters
    ----------
    devices
        Device of each rank, shape ``(ranks,)``.
    extents
        Sizes of the parallel dimensions.
    order
        How ranks are numbered, innermost dimension first, joined by dashes.

    Returns
    -------
    str or None
        Factors, innermost first, as `planner.search.placements` names them; None if
        the devices are no nesting.
    """
    names = order_names(order)
    sizes = [getattr(extents, name) for name in names]
    grid = devices.reshape(sizes[::-1])
    factors: list[tuple[int, int, str]] = []  # stride, size, dimension
    rebuilt = np.zeros((1,) * len(sizes), dtype=np.int64)
    for axis, (name, size) in enumerate(zip(names, sizes, strict=True)):
        place = tuple(
            slice(None) if other == axis else 0 for other in reversed(range(len(sizes)))
        )
        offsets = grid[place]
        parts = _runs(offsets.tolist())
        if parts is None or int(grid.flat[0]) != 0:
            return None
        factors += [(stride, count, name) for stride, count in parts if count > 1]
        shape = [1] * len(sizes)
        shape[len(sizes) - 1 - axis] = size
        rebuilt = rebuilt + offsets.reshape(shape)
    if not np.array_equal(rebuilt, grid):
        return None
    return _name(sorted(factors), extents.tp)


def placement_settings(
    devices: IntArray | None, extents: Extents, order: str
) -> dict[str, str]:
    """Return what [plan] says of where ranks stand: an order, a placement, or nothing.

    Raises
    ------
    InputError
        If the devices are no nesting of the parallel dimensions.
    """
    if devices is None or bool((devices == np.arange(devices.size)).all()):
        return {}
    name = nesting(devices, extents, order)
    if name is None:
        raise InputError(
            "ranks do not stand in a nesting of the parallel dimensions",
            where=RANK_MAP,
            expected="equal distances between the ranks of each dimension",
            hint="nodes in another order than that of their numbers cannot be imported",
        )
    written = order_of(name)
    return {"placement": name} if written is None else {"order": written}


def _runs(offsets: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return stride and size of the one or two factors of a dimension."""
    size = len(offsets)
    if size == 1:
        return [(1, 1)]
    stride = offsets[1] - offsets[0]
    inner = 1
    while inner < size and offsets[inner] - offsets[inner - 1] == stride:
        inner += 1
    if inner == size:
        return [(stride, size)]
    outer = offsets[inner] - offsets[0]
    if any(
        offsets[k] - offsets[0] != k % inner * stride + k // inner * outer
        for k in range(size)
    ):
        return None
    return [(stride, inner), (outer, -(-size // inner))]


def _name(factors: Sequence[tuple[int, int, str]], tp: int) -> str | None:
    """Return the factors by stride, with a slash where devices are left out."""
    parts, extent = ([f"tp{tp}"], tp) if tp == 1 else ([], 1)
    for stride, size, name in factors:
        if stride != extent:
            if stride < extent or not parts:
                return None
            parts[-1] += f"/{stride}"
        parts.append(f"{name}{size}")
        extent = stride * size
    return " ".join(parts)
