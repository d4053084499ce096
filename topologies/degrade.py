"""Networks of which parts have been slowed or removed.

Links keep their numbers, also those that are removed: no route uses them. So what two
states of a network carry can be compared link by link, and routes that avoid what was
removed are the same, link for link.

What is wrong is one frozen record of slowed and removed parts, `Degradation`. Links are
named by text (`topologies.selectors`), devices by number.

A pair keeps its level. A level's bandwidth is that of the slowest link left among those
that its undisturbed routes may cross; its latency stays. Detours are longer, and may be
narrower: they are no part of any level, and are priced link by link. What each family
of routing rules makes of its links and levels, `Routing.reroute` says.

Devices that cannot reach each other any more are refused, by name.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.errors import InputError
from topologies.fabrics.shortest_paths import shortest_paths
from topologies.network import Links, Network
from topologies.selectors import select_links, select_switches
from topologies.specs import MAX_SLOWDOWN


def _check_factor(value: float) -> None:
    if isinstance(value, bool) or not (value >= 1 and math.isfinite(value)):
        raise InputError(
            "must be a finite factor of at least 1",
            where="factor",
            got=value,
            expected="a number of at least 1, e.g. 2 for half as fast",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLinks:
    """Links that carry less than they were built for."""

    links: str
    """Names of the links: ``"leaf 0 -> spine 1"``, ``"leaf 0 <-> spine *"`` or
    ``"level spine"``."""

    factor: float
    """What the links' bandwidth is divided by, at least 1."""

    def __post_init__(self) -> None:
        _check_factor(self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowDevice:
    """A device that computes more slowly than the others."""

    device: int
    """Number of the device."""

    factor: float
    """What the device's compute times are multiplied by, at least 1."""

    def __post_init__(self) -> None:
        _check_factor(self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Everything that is slowed or removed; nothing by default.

    What is named several times is slowed by the product of the factors.
    """

    slow_links: tuple[SlowLinks, ...] = ()
    """Links with less bandwidth."""

    removed_links: tuple[str, ...] = ()
    """Links that are gone, named as in `SlowLinks`."""

    removed_switches: tuple[str, ...] = ()
    """Switches that are gone with all their links, by name; ``*`` stands for any
    text."""

    slow_devices: tuple[SlowDevice, ...] = ()
    """Devices that compute more slowly."""


def degrade(network: Network, degradation: Degradation) -> Network:
    """Return the network with parts slowed and removed.

    Parameters
    ----------
    network
        As it was built, or degraded already: what is wrong then adds up.
    degradation
        What to slow and to remove. Slow devices are only checked, as a network does
        not compute; see `slowdowns`.

    Returns
    -------
    Network
        With the same vertices, link numbers and block sizes; the same object if no
        link is touched. Routes: `topologies.fabrics.detours`. Custom networks get new
        classes of pairs. In others a pair keeps its level, and `topologies.degrade`
        says what becomes of the levels' numbers.

    Raises
    ------
    InputError
        If a name is wrong, or devices are cut off from others, which it names.
    """
    slowdowns(degradation, network.num_devices)
    factor = _link_factors(network, degradation)
    removed = _removed_links(network, degradation)
    if not removed.any() and (factor == 1).all():
        return network
    kept = network.routing.kept & ~removed
    links = replace(network.links, bandwidth=network.links.bandwidth / factor)
    refuse_islands(network, links, kept)
    rerouted = network.routing.reroute(network.levels, links, kept)
    return replace(
        network,
        links=rerouted.links,
        levels=rerouted.levels,
        routing=rerouted.routing,
    )


def slowdowns(degradation: Degradation, num_devices: int) -> FloatArray:
    """Return what each device's compute times are multiplied by, shape ``(N,)``.

    Raises
    ------
    InputError
        If there is no such device.
    """
    factors = np.ones(num_devices)
    for index, slow in enumerate(degradation.slow_devices):
        if not 0 <= slow.device < num_devices:
            raise InputError(
                "no such device",
                where=f"slow_devices[{index}].device",
                got=slow.device,
                expected=f"device numbers 0 to {num_devices - 1}",
            )
        factors[slow.device] *= slow.factor
        with _located(f"slow_devices[{index}]"):
            _check_product(factors[slow.device])
    return factors


def _check_product(product: float) -> None:
    """Refuse what is slowed so often that next to nothing is left of it."""
    if product > MAX_SLOWDOWN:
        raise InputError(
            "is slowed too much, by all factors together",
            where="factor",
            got=float(product),
            expected=f"a product of at most {MAX_SLOWDOWN:g}",
        )


def _link_factors(network: Network, degradation: Degradation) -> FloatArray:
    factor = np.ones(len(network.links))
    for index, slow in enumerate(degradation.slow_links):
        with _located(f"slow_links[{index}].links"):
            chosen = select_links(network, slow.links)
        factor[chosen] *= slow.factor
        with _located(f"slow_links[{index}]"):
            _check_product(factor[chosen].max())
    return factor


def _removed_links(network: Network, degradation: Degradation) -> BoolArray:
    links = network.links
    removed = np.zeros(len(links), dtype=np.bool_)
    for index, selector in enumerate(degradation.removed_links):
        with _located(f"removed_links[{index}]"):
            removed |= select_links(network, selector)
    for index, selector in enumerate(degradation.removed_switches):
        with _located(f"removed_switches[{index}]"):
            switches = select_switches(network, selector)
            removed |= np.isin(links.source, switches)
            removed |= np.isin(links.target, switches)
    return removed


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise error.at(where) from None


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
    parts = _device_names(network, outside)
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


def _device_names(network: Network, devices: IntArray) -> list[str]:
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
