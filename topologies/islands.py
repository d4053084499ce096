"""Devices that cannot reach each other any more, and what to call them."""

from dataclasses import replace

import numpy as np

from topologies.errors import InputError
from topologies.network import BoolArray, IntArray, Links, Network
from topologies.shortest_paths import shortest_paths

_MOST_NAMED = 8
"""Parts of the network that a message names."""


def refuse_islands(network: Network, links: Links, kept: BoolArray) -> None:
    """Raise an error if some devices cannot reach some others over the links kept.

    The largest part in which all reach each other counts as the network, the first one
    of several; the message names the devices outside of it, whole blocks of a level by
    the block.
    """
    island = device_islands(links, kept, len(network.vertex_names), network.num_devices)
    sizes = np.bincount(island, minlength=1)
    outside = np.flatnonzero(island != int(sizes.argmax()))
    if not outside.size:
        return
    parts = _names(network, outside)
    more = len(parts) - _MOST_NAMED
    shown = ", ".join(parts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    count = f"{outside.size} of {network.num_devices} devices"
    raise InputError(
        "cuts devices off from the others",
        got=f"{count}: {shown}",
        expected="links left over that join every device with every other, both ways",
    )


def device_islands(
    links: Links, kept: BoolArray, num_vertices: int, num_devices: int
) -> IntArray:
    """Return a number for each device, the same for those that reach each other.

    Numbers are those of the first device of each island. O(islands E).
    """
    back = replace(links, source=links.target, target=links.source)
    island = np.full(num_devices, -1, dtype=np.int64)
    for device in range(num_devices):
        if island[device] < 0:
            both = np.ones(num_devices, dtype=np.bool_)
            for direction in (links, back):
                paths = shortest_paths(
                    direction, num_vertices, np.array([device]), kept
                )
                both &= np.isfinite(paths.latency[0, :num_devices])
            island[both] = device
    return island


def _names(network: Network, devices: IntArray) -> list[str]:
    """Return names for devices, rising: blocks, runs of neighbours, single ones."""
    runs = np.split(devices, np.flatnonzero(np.diff(devices) > 1) + 1)
    return [
        name
        for run in runs
        for name in _run_names(network, int(run[0]), int(run[-1]) + 1)
    ]


def _run_names(network: Network, start: int, stop: int) -> list[str]:
    """Name devices ``start`` to ``stop - 1``: the largest blocks first, then the rest.

    Only trees have a vertex for each block, of the name of the level and a number.
    """
    names = network.vertex_names
    for level in reversed(network.levels):
        size = level.block_size
        first, last = -(-start // size), stop // size
        if size > 1 and first < last and f"{level.name} {first}" in names:
            spans = [_span(names, b * size, (b + 1) * size) for b in range(first, last)]
            return [
                *(_run_names(network, start, first * size)),
                *(f"{level.name} {first + i} ({s})" for i, s in enumerate(spans)),
                *(_run_names(network, last * size, stop)),
            ]
    return [_span(names, start, stop)] if start < stop else []


def _span(names: tuple[str, ...], start: int, stop: int) -> str:
    return names[start] if stop - start == 1 else f"{names[start]} to {names[stop - 1]}"
