"""Ranks of the framework on devices, as a file of lines, and back as a nesting.

A rank map has a line for each device of the cluster, in the order of hosts and their
slots: the rank that runs there, or a hyphen.
"""

from collections.abc import Sequence

import numpy as np

from nestsim.launch.shell.training import MOST_DEVICES
from planner.plans.spec import order_names
from planner.plans.written import order_of
from planner.search.placements import Extents
from topologies.arrays import IntArray
from topologies.errors import InputError

IDLE = "-"
"""What stands for no rank."""


def rank_map(devices: IntArray, num_devices: int) -> str:
    """Return the text of a rank map.

    Parameters
    ----------
    devices
        Device of each rank, shape ``(ranks,)``.
    num_devices
        Devices of the cluster.
    """
    lines = [IDLE] * num_devices
    for rank, device in enumerate(devices.tolist()):
        lines[device] = str(rank)
    return "\n".join(lines) + "\n"


def parsed_rank_map(text: str) -> IntArray:
    """Return the device of each rank of a rank map.

    Raises
    ------
    InputError
        If it is none, or a rank is missing or there twice.
    """
    lines = text.split()
    ranks = [(line, device) for device, line in enumerate(lines) if line != IDLE]
    expected = "a line for each device: its rank, each from 0 on once, or a hyphen"
    if len(lines) > MOST_DEVICES:
        raise InputError("is too long", expected=expected)
    for line, _ in ranks:
        if not line.isdecimal() or len(line) > len(str(MOST_DEVICES)):
            raise InputError("is no rank", got=line[:40], expected=expected)
    devices = np.full(len(ranks), -1, dtype=np.int64)
    for line, device in ranks:
        if int(line) >= len(ranks) or devices[int(line)] >= 0:
            raise InputError(
                "is not a rank of its own", got=int(line), expected=expected
            )
        devices[int(line)] = device
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
            expected="equal distances between the ranks of each dimension",
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
