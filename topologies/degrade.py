"""Networks of which parts have been slowed or removed.

Links keep their numbers, also those that are removed: no route uses them. So what two
states of a network carry can be compared link by link, and routes that avoid what was
removed are the same, link for link.

What is wrong is one frozen record of slowed and removed parts, `Degradation`. Devices
are named by number, links and switches by text:

===========================  ====================================================
``leaf 0 -> spine 1``        the links from one vertex to another
``leaf 0 <-> spine 1``       those of both directions
``leaf 0 -> spine 1 #2``     of several cables between the same two the third one
``leaf * <-> spine 1``       ``*`` stands for any text in a name
``level spine``              all links of a level, both directions
===========================  ====================================================

Names are those of `Network.vertex_names` and `Network.levels`. Blanks may be left out:
a name is first looked for as it is written, then without its blanks.

A pair keeps its level. A level's bandwidth is that of the slowest link left among those
that its undisturbed routes may cross; its latency stays. Detours are longer, and may be
narrower: they are no part of any level, and are priced link by link. What each family
of routing rules makes of its links and levels, `Routing.reroute` says.

Devices that cannot reach each other any more are refused, by name.
"""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.errors import InputError, located
from topologies.fabrics.routing import shortest_paths
from topologies.network import Links, Network
from topologies.records import MAX_SLOWDOWN

_ARROW = re.compile(
    r"(?P<here>.+?)(?P<both><)?->(?P<there>.+?)(#(?P<cable>[0-9]{1,9}))?"
)

_EXPECTED = '"leaf 0 -> spine 1", "leaf 0 <-> spine *" or "level spine"'


def select_links(network: Network, selector: str) -> BoolArray:
    """Return which links a text names, shape ``(E,)``.

    Raises
    ------
    InputError
        If it names none.
    """
    text = selector.strip()
    arrow = _ARROW.fullmatch(text)
    if arrow:
        return _links_between(network, arrow)
    if text.startswith("level "):
        return _links_of_level(network, text.removeprefix("level "))
    raise InputError("does not name links", got=selector, expected=_EXPECTED)


def select_switches(network: Network, selector: str) -> IntArray:
    """Return the vertices of the switches that a text names.

    Raises
    ------
    InputError
        If there is none of that name, or it is the name of a device.
    """
    vertices = _find_names(network.vertex_names, selector, "switch")
    if vertices[0] < network.num_devices:
        raise InputError(
            "is a device, which cannot be removed",
            got=selector,
            expected="the name of a switch",
        )
    return vertices


def _links_of_level(network: Network, name: str) -> BoolArray:
    names = [level.name for level in network.levels]
    chosen = np.isin(network.links.level, _find_names(names, name, "level"))
    if not chosen.any():
        raise InputError(
            "no links on this level", got=name, expected="a level that joins devices"
        )
    return chosen


def _links_between(network: Network, arrow: re.Match[str]) -> BoolArray:
    here, there, cable = arrow["here"], arrow["there"], arrow["cable"]
    whole = f"{there}#{cable}".strip()
    if whole in network.vertex_names:
        there, cable = whole, None
    directions = [(here, there), (there, here)] if arrow["both"] else [(here, there)]
    chosen = np.zeros(len(network.links), dtype=np.bool_)
    for start, end in directions:
        chosen |= _links_from(network, start, end)
    if cable is not None:
        chosen &= _cable_number(network) == int(cable)
    if not chosen.any():
        raise InputError(
            "no such link",
            got=arrow.string,
            expected="two names of neighbours in the network, and a cable that exists",
        )
    return chosen


def _links_from(network: Network, start: str, end: str) -> BoolArray:
    links, names = network.links, network.vertex_names
    leaves = np.isin(links.source, _find_names(names, start, "vertex"))
    enters = np.isin(links.target, _find_names(names, end, "vertex"))
    return np.asarray(leaves & enters)


def _cable_number(network: Network) -> IntArray:
    """Return each link's place among those that join the same two the same way."""
    links = network.links
    ends = links.source * len(network.vertex_names) + links.target
    order = np.argsort(ends, kind="stable")
    ordered = ends[order]
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return place


def _find_names(names: Sequence[str], name: str, what: str) -> IntArray:
    """Return the places of the names that a name with or without ``*`` stands for."""
    pattern = name.strip()
    places = _match_names(names, pattern) or _match_names(
        ["".join(entry.split()) for entry in names], "".join(pattern.split())
    )
    if not places:
        close = difflib.get_close_matches(pattern, names, n=1)
        raise InputError(
            f"no such {what}",
            got=pattern,
            expected=f'{names[0]!r} to {names[-1]!r}; "*" stands for any text',
            hint=f'did you mean "{close[0]}"?' if close else "",
        )
    return np.array(places)


def _match_names(names: Sequence[str], pattern: str) -> list[int]:
    if "*" not in pattern:
        return [place for place, name in enumerate(names) if name == pattern]
    first, *inner, last = pattern.split("*")
    parts = [part for part in inner if part]
    return [
        place
        for place, name in enumerate(names)
        if _has_parts(name, first, parts, last)
    ]


def _has_parts(name: str, first: str, inner: Sequence[str], last: str) -> bool:
    """Tell whether a name is made of parts in this order, with any text between them.

    Each inner part is taken where it comes first: if the rest can be found behind a
    later place, it can be found behind this one. So no choice is ever taken back, and
    the time is that of reading the name once for each part.
    """
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    position, end = len(first), len(name) - len(last)
    for part in inner:
        start = name.find(part, position, end)
        if start < 0:
            return False
        position = start + len(part)
    return True


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
class SlowFraction:
    """A part of all devices, drawn at random, that compute more slowly."""

    fraction: float
    """Share of the devices that are slow, from 0 to 1: the nearest whole number of
    them, halves up, as a degraded cluster is one cluster, not a mean of many."""

    factor: float
    """What the devices' compute times are multiplied by, at least 1."""

    seed: int = 0
    """Seed of the order in which the devices are drawn, at least 0."""

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        if not 0.0 <= self.fraction <= 1.0:
            raise InputError(
                "must be a share of the devices",
                where="fraction",
                got=self.fraction,
                expected="a number from 0 to 1, e.g. 0.01 for one in a hundred",
            )

    def num_slow(self, num_devices: int) -> int:
        """Return how many devices of so many are slow."""
        return math.floor(self.fraction * num_devices + 0.5)


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

    slow_devices: tuple[SlowDevice | SlowFraction, ...] = ()
    """Devices that compute more slowly, by number or as a share of all. Shares with one
    seed take different devices, as long as there are any left."""


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
        link is touched. Routes: `topologies.fabrics.routing`. Custom networks get new
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
    links = replace(network.links, bandwidth=network.links.bandwidth / factor)
    return _rerouted(network, links, removed)


def without_links(network: Network, removed: BoolArray) -> Network:
    """Return the network without some links, as `degrade` does.

    Parameters
    ----------
    network
        As it was built, or degraded already.
    removed
        Whether each link is gone, shape ``(E,)``.

    Raises
    ------
    InputError
        If devices are cut off from others, which it names.
    """
    return _rerouted(network, network.links, removed) if removed.any() else network


def _rerouted(network: Network, links: Links, removed: BoolArray) -> Network:
    kept = network.routing.kept & ~removed
    refuse_islands(network, links, kept)
    rerouted = network.routing.reroute(network.levels, links, kept)
    return replace(
        network,
        links=rerouted.links,
        levels=rerouted.levels,
        routing=rerouted.routing,
    )


def random_order(num_devices: int, seed: int, *key: int) -> IntArray:
    """Return all devices in an order that is drawn at random, shape ``(N,)``.

    The generator counts (Philox [1]_), and devices are ordered by the raw words that
    they draw: the order depends on seed and key alone, on no version of NumPy.

    Parameters
    ----------
    num_devices
        Devices ``N``.
    seed, key
        The seed, and what else tells the draw from others, at least 0.

    References
    ----------
    .. [1] Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
       SC 2011.
    """
    source = np.random.SeedSequence(seed, spawn_key=key)
    words = np.random.Philox(source).random_raw(num_devices)
    return np.argsort(words, kind="stable").astype(np.int64)


def drawn_devices(
    slow_devices: Sequence[SlowDevice | SlowFraction], num_devices: int, *key: int
) -> tuple[IntArray, ...]:
    """Return the numbers of the devices that each entry is about, rising.

    Fractions of one seed take devices one after another from one order
    (`random_order`), so that a larger fraction has those of a smaller one, and two
    entries have none in common.

    Parameters
    ----------
    slow_devices
        The entries.
    num_devices
        Devices of the network.
    key
        What tells this draw from others of the same seeds, such as a run's number.
    """
    taken: dict[int, int] = {}
    drawn = []
    for slow in slow_devices:
        if isinstance(slow, SlowDevice):
            drawn.append(np.array([slow.device], dtype=np.int64))
            continue
        first = taken.get(slow.seed, 0)
        last = min(first + slow.num_slow(num_devices), num_devices)
        taken[slow.seed] = last
        drawn.append(np.sort(random_order(num_devices, slow.seed, *key)[first:last]))
    return tuple(drawn)


def slowdowns(degradation: Degradation, num_devices: int, *key: int) -> FloatArray:
    """Return what each device's compute times are multiplied by, shape ``(N,)``.

    Parameters
    ----------
    degradation
        Which devices are slow.
    num_devices
        Devices ``N``.
    key
        As `drawn_devices` takes it.

    Raises
    ------
    InputError
        If there is no such device, or a share is none of them.
    """
    factors = np.ones(num_devices)
    slow_devices = degradation.slow_devices
    drawn = drawn_devices(slow_devices, num_devices, *key)
    for index, (slow, devices) in enumerate(zip(slow_devices, drawn, strict=True)):
        if isinstance(slow, SlowDevice) and not 0 <= slow.device < num_devices:
            raise InputError(
                "no such device",
                where=f"slow_devices[{index}].device",
                got=slow.device,
                expected=f"device numbers 0 to {num_devices - 1}",
            )
        if isinstance(slow, SlowFraction) and slow.fraction > 0.0 and not devices.size:
            raise InputError(
                f"slows none of {num_devices:,} devices",
                where=f"slow_devices[{index}].fraction",
                got=slow.fraction,
                expected="half a device or more that no entry before takes, at least "
                f"{0.5 / num_devices:.3g}; or device = 5 in its place",
            )
        factors[devices] *= slow.factor
        with located(f"slow_devices[{index}]"):
            _check_product(factors[devices].max(initial=1.0))
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
        with located(f"slow_links[{index}].links"):
            chosen = select_links(network, slow.links)
        factor[chosen] *= slow.factor
        with located(f"slow_links[{index}]"):
            _check_product(factor[chosen].max())
    return factor


def _removed_links(network: Network, degradation: Degradation) -> BoolArray:
    links = network.links
    removed = np.zeros(len(links), dtype=np.bool_)
    for index, selector in enumerate(degradation.removed_links):
        with located(f"removed_links[{index}]"):
            removed |= select_links(network, selector)
    for index, selector in enumerate(degradation.removed_switches):
        with located(f"removed_switches[{index}]"):
            switches = select_switches(network, selector)
            removed |= np.isin(links.source, switches)
            removed |= np.isin(links.target, switches)
    return removed


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
