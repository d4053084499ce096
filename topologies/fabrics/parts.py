"""What a network is built of: bundles of cables, and the switches at their ends.

Cables are counted for ports of a speed that somebody sells, not for those that a
scenario happens to draw: a stressed network has the same links with less bandwidth, and
what it saves are ports. A *bundle* is all cables of one child into a tier, or between
two neighbours. What is slow or gone has been bought, so tiers are as built; but for
custom networks, which only know what is left of their links' bandwidth.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray
from topologies.network import Links, Network, Tier

CUSTOM_SWITCHES = "switches"
"""Name of the tier of all switches of a custom network."""

_SAME = 1e-9
"""Share of a port that is too little to need one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundles:
    """Bundles of cables of one tier that are alike."""

    tier: str
    """Name of the tier that the cables lead into."""

    inside_node: bool
    """Whether the tier is inside nodes, whose links come with them."""

    count: int
    """Number of bundles."""

    bandwidth: float
    """Bandwidth of one bundle, per direction [byte/s]."""

    cable_bandwidth: float
    """Bandwidth of one of its cables as the scenario draws them, per direction
    [byte/s]."""

    device_ends: int
    """Ends of a bundle that are at devices or nodes, at a NIC: 0 to 2. The others are
    at switches."""

    def cables_each(self, speed: float) -> int:
        """Return how many cables of a speed [byte/s] one bundle needs, at least 1."""
        return max(1, math.ceil(self.bandwidth / speed - _SAME))


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchGroups:
    """Groups of switches of one tier that are alike.

    A group is what a network of the scenario draws as one switch, or as the spines that
    all children are joined to; it is built of as many switches as its ports need.
    """

    tier: str
    """Name of the tier."""

    inside_node: bool
    """Whether the tier is inside nodes."""

    count: int
    """Number of groups."""

    ends: tuple[tuple[int, int], ...]
    """Which bundles end at one group: number of the bundles, and how many of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkParts:
    """Everything that a network is built of, but for devices."""

    bundles: tuple[Bundles, ...]
    """Cables, from the inside out."""

    switches: tuple[SwitchGroups, ...]
    """Switches, from the inside out."""

    @property
    def tiers(self) -> tuple[str, ...]:
        """Names of all tiers, each once."""
        cabled = [one.tier for one in self.bundles]
        return tuple(dict.fromkeys(cabled + [one.tier for one in self.switches]))


def network_parts(network: Network) -> NetworkParts:
    """Return what a network is built of; host links are no part of it.

    Tiers that join nothing, of one child, are left out: they are drawn so that a
    network of one leaf or one unit can be of the same kind as larger ones.
    """
    if network.routing.family == "custom":
        return _custom_parts(network.without_host())
    tiers = network.tiers()
    if network.routing.family == "torus":
        rings = tuple(_ring(tier) for tier in tiers if tier.num_links)
        return NetworkParts(bundles=rings, switches=())
    inside = network.rules.node_levels if network.rules else 1
    return _tree_parts(tiers, inside)


def _ring(tier: Tier) -> Bundles:
    """Return the links along one dimension, from device to device."""
    return Bundles(
        tier=tier.name,
        inside_node=False,
        count=tier.num_links,
        bandwidth=tier.bandwidth,
        cable_bandwidth=tier.bandwidth,
        device_ends=2,
    )


def _num_children(tier: Tier) -> int:
    return tier.num_links // (tier.num_choices * tier.num_parallel)


def _tree_parts(tiers: tuple[Tier, ...], inside: int) -> NetworkParts:
    """Return cables and switches of a tree with so many tiers inside nodes.

    The first cables outside nodes start at NICs, whoever shares them.
    """
    used = [tier for tier in tiers if _num_children(tier) > tier.num_blocks]
    bundles: list[Bundles] = []
    ends: dict[str, list[tuple[int, int]]] = {tier.name: [] for tier in used}
    for k, tier in enumerate(tiers):
        if tier.name not in ends:
            continue
        number, count = len(bundles), _num_children(tier)
        at_device = tier.joins_devices or k in {0, inside}
        bundles.append(
            Bundles(
                tier=tier.name,
                inside_node=k < inside,
                count=count,
                bandwidth=tier.child_bandwidth,
                cable_bandwidth=tier.link_bandwidth,
                device_ends=1 if at_device else 0,
            )
        )
        ends[tier.name].append((number, count // _num_groups(tier)))
        if not at_device and tiers[k - 1].name in ends:
            ends[tiers[k - 1].name].append((number, 1))
    switches = tuple(
        SwitchGroups(
            tier=tier.name,
            inside_node=k < inside,
            count=_num_groups(tier),
            ends=tuple(ends[tier.name]),
        )
        for k, tier in enumerate(tiers)
        if tier.name in ends
    )
    return NetworkParts(bundles=tuple(bundles), switches=switches)


def _num_groups(tier: Tier) -> int:
    return tier.num_blocks * tier.num_planes


def _custom_parts(network: Network) -> NetworkParts:
    """Return cables and switches of a list of links; a cable has both directions."""
    links, devices = network.links, network.num_devices
    if not len(links):
        return NetworkParts(bundles=(), switches=())
    first, second, bandwidth, level = _cables(links)
    at_device = (first < devices).astype(np.int64) + (second < devices)
    kinds = list(zip(level.tolist(), bandwidth, at_device.tolist(), strict=True))
    names = sorted(Counter(kinds).items(), key=lambda kind: (kind[0][0], -kind[0][1]))
    number = {kind: index for index, (kind, _) in enumerate(names)}
    bundles = tuple(
        Bundles(
            tier=network.level_name(kind[0]),
            inside_node=False,
            count=count,
            bandwidth=kind[1],
            cable_bandwidth=kind[1],
            device_ends=kind[2],
        )
        for kind, count in names
    )
    ports: dict[int, Counter[int]] = {}
    for kind, *vertices in zip(kinds, first.tolist(), second.tolist(), strict=True):
        for vertex in vertices:
            if vertex >= devices:
                ports.setdefault(vertex, Counter())[number[kind]] += 1
    alike = Counter(tuple(sorted(one.items())) for one in ports.values())
    switches = tuple(
        SwitchGroups(tier=CUSTOM_SWITCHES, inside_node=False, count=count, ends=ends)
        for ends, count in sorted(alike.items())
    )
    return NetworkParts(bundles=bundles, switches=switches)


def _cables(links: Links) -> tuple[IntArray, IntArray, list[float], IntArray]:
    """Return both ends, bandwidth and level of each cable.

    Of the links between two vertices the widest of either direction make a cable, then
    the next ones; one direction alone is a cable, too.
    """
    order = np.lexsort((-links.bandwidth, links.target, links.source))
    source, target = links.source[order], links.target[order]
    new = np.r_[True, (np.diff(source) != 0) | (np.diff(target) != 0)]
    places = np.arange(len(order))
    rank = places - np.maximum.accumulate(np.where(new, places, 0))
    low, high = np.minimum(source, target), np.maximum(source, target)
    by_cable = np.lexsort((-links.bandwidth[order], rank, high, low))
    keys = np.stack([low, high, rank])[:, by_cable]
    widest = np.r_[True, np.any(np.diff(keys, axis=1) != 0, axis=0)]
    chosen = order[by_cable][widest]
    return (
        low[by_cable][widest],
        high[by_cable][widest],
        links.bandwidth[chosen].tolist(),
        links.level[chosen],
    )
