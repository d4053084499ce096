"""What a network is built of: bundles of cables and switches, counted as one buys them.

Cables are counted for ports of a speed that somebody sells, not for those that a
scenario happens to draw: a stressed network has the same links with less bandwidth, and
what it saves are ports. A *bundle* is all cables of one child into a tier, or between
two neighbours. What is slow or gone has been bought, so tiers are as built; but for
custom networks, which only know what is left of their links' bandwidth.

What a network is made of: switches, ports and cables, counted as one would buy them.

A network's file speaks of links and of switches as traffic meets them. One link may
stand for several cables, and one switch of a block for the whole layer of switches that
the block has (here). Where nothing says which cables and switches
are bought, two rules count them:

- what joins a child to its tier consists of as many cables as it takes ports, ports
  being as fast as those of NICs (the cables of the first tier outside of nodes);
- a layer with more cables than a switch has ports consists of as many switches as have
  that many, and of no fewer than the file says. A switch has as many ports as those
  next to the NICs need.

So a fat-tree of ``k``-port switches [1]_, ``k^3 / 4`` hosts below three tiers of which
a switch has ``k / 2`` children in the lower two and ``k`` in the upper one, counts
``5 k^2 / 4`` switches; a torus has two ports for each device and dimension, one where
the dimension has two devices.

References
----------
.. [1] Al-Fares, Loukissas, Vahdat, "A scalable, commodity data center network
   architecture", SIGCOMM 2008, section 3.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray
from topologies.fabrics.joined import JoinedRouting
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
        cabled = [bundle.tier for bundle in self.bundles]
        return tuple(dict.fromkeys(cabled + [switch.tier for switch in self.switches]))


def network_parts(network: Network) -> NetworkParts:
    """Return what a network is built of; host links are no part of it.

    Tiers that join nothing, of one child, are left out: they are drawn so that a
    network of one leaf or one unit can be of the same kind as larger ones.
    """
    built = network.routing.built
    if isinstance(built, JoinedRouting):
        return _joined_parts(built)
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


def _tree_parts(
    tiers: tuple[Tier, ...], inside: int, *, goes_on: bool = False
) -> NetworkParts:
    """Return cables and switches of a tree with so many tiers inside nodes.

    The first cables outside nodes start at NICs, whoever shares them. The outermost
    switch of a tree that ``goes_on`` has other links, and counts with a single child.
    """
    used = [
        tier
        for tier in tiers
        if _num_children(tier) > tier.num_blocks or (goes_on and tier is tiers[-1])
    ]
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


def _joined_parts(routing: JoinedRouting) -> NetworkParts:
    """Return the parts of all copies, of their ways out, and of the graph.

    A root is the outermost switch of its copy, or stands apart from it, as pods' do.
    """
    copy, graph, count = routing.copy, routing.graph, routing.num_copies
    inner, rules = copy.inner, copy.inner.rules
    outward = copy.tiers[len(inner.tiers()) :]
    inside = rules.node_levels if rules else 0
    parts = network_parts(inner)
    if not outward:
        parts = _tree_parts(inner.tiers(), inside, goes_on=True)
    at_nodes = not outward and inside == len(inner.levels)
    bundles = [replace(part, count=part.count * count) for part in parts.bundles]
    bundles += [_bundles(tier, tier.num_links * count, 1) for tier in outward]
    root = parts.switches[-1] if parts.switches and not outward else None
    down = [*((len(bundles) - 1, tier.num_links) for tier in outward)]
    first = len(bundles)
    for tier in graph.tiers:
        number = tier.num_links // tier.num_parallel
        bundles.append(_bundles(tier, number, 2 if at_nodes else 0))
    switches = [
        replace(group, count=group.count * count)
        for group in parts.switches
        if group is not root
    ]
    names = [root.tier if root else outward[-1].name] * count
    names += [name.rsplit(" ", 1)[0] for name in graph.names]
    ends = np.zeros((graph.num_vertices, len(graph.tiers)), dtype=np.int64)
    np.add.at(ends, (graph.links.source, graph.links.level), 1)
    alike: Counter[tuple[str, bool, tuple[int, ...]]] = Counter(
        (name, vertex < count, tuple(row))
        for vertex, (name, row) in enumerate(zip(names, ends.tolist(), strict=True))
    )
    for (name, is_root, row), number in alike.items():
        below = (*(root.ends if root else ()), *down) if is_root else ()
        links = tuple((first + at, some) for at, some in enumerate(row) if some)
        switches.append(
            SwitchGroups(
                tier=name,
                inside_node=is_root and at_nodes,
                count=number,
                ends=(*below, *(() if at_nodes else links)),
            )
        )
    return NetworkParts(bundles=tuple(bundles), switches=tuple(switches))


def _bundles(tier: Tier, count: int, device_ends: int) -> Bundles:
    """Return the cables of a tier outside of nodes."""
    return Bundles(
        tier=tier.name,
        inside_node=False,
        count=count,
        bandwidth=tier.bandwidth,
        cable_bandwidth=tier.link_bandwidth,
        device_ends=device_ends,
    )


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
    alike = Counter(tuple(sorted(port.items())) for port in ports.values())
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParts:
    """Cables of one tier, and the switches that they lead into from below."""

    name: str
    """Name of the tier."""

    is_inside_nodes: bool
    """Whether the tier is a node's own, such as NVLink and its switches."""

    num_cables: int
    """Cables of the tier; each carries both directions."""

    cable_bandwidth: float
    """Bandwidth of one cable, per direction [byte/s]."""

    num_device_ports: int
    """Ends of these cables at devices or at the NICs of nodes."""

    num_switch_ports: int
    """Ends of these cables at switches, of this tier and of the one below."""

    num_switches: int
    """Switches of the tier."""

    ports_per_switch: int
    """Ports that each of these switches uses, down and up; 0 without switches."""

    @property
    def bandwidth(self) -> float:
        """Bandwidth of all cables together, per direction [byte/s]."""
        return self.num_cables * self.cable_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything that a network is made of."""

    num_devices: int
    """Devices that it joins."""

    tiers: tuple[TierParts, ...]
    """Its tiers, from the inside out."""

    @property
    def fabric(self) -> tuple[TierParts, ...]:
        """The tiers outside of nodes."""
        return tuple(tier for tier in self.tiers if not tier.is_inside_nodes)

    @property
    def inside_nodes(self) -> tuple[TierParts, ...]:
        """The tiers that are nodes' own."""
        return tuple(tier for tier in self.tiers if tier.is_inside_nodes)

    @property
    def num_nic_ports(self) -> int:
        """Ports of devices, or of the NICs of nodes, outside of nodes."""
        return sum(tier.num_device_ports for tier in self.fabric)

    @property
    def num_switches(self) -> int:
        """Switches outside of nodes."""
        return sum(tier.num_switches for tier in self.fabric)

    @property
    def num_switch_ports(self) -> int:
        """Ports of switches outside of nodes that a cable is in."""
        return sum(tier.num_switch_ports for tier in self.fabric)

    @property
    def num_ports(self) -> int:
        """Ports outside of nodes, of NICs and of switches: two for each cable."""
        return self.num_nic_ports + self.num_switch_ports

    @property
    def num_cables(self) -> int:
        """Cables outside of nodes."""
        return sum(tier.num_cables for tier in self.fabric)

    @property
    def bandwidth(self) -> float:
        """Bandwidth of all cables outside of nodes, per direction [byte/s]."""
        return sum(tier.bandwidth for tier in self.fabric)

    @property
    def port_bandwidth(self) -> float:
        """Bandwidth of all ports outside of nodes, per direction [byte/s]."""
        return 2 * self.bandwidth


def count_parts(
    network: Network,
    *,
    port_bandwidth: float | None = None,
    switch_ports: int | None = None,
) -> Inventory:
    """Count what a network is made of, as it was built.

    Parameters
    ----------
    network
        Any; hosts are left out. Of custom networks and tori a link is a cable, a
        vertex that is no device one switch, and nothing inside of nodes.
    port_bandwidth
        Bandwidth of a port outside of nodes, per direction; None for that of one cable
        of the first tier there [byte/s].
    switch_ports
        Ports of a switch outside of nodes; None for what those of the first tier there
        need, or those that the network says the number of, if they need more.
    """
    parts = network_parts(network)
    port = port_bandwidth or _nic_bandwidth(network, parts)
    cables = [_cables_each(bundles, port) for bundles in parts.bundles]
    used = [
        sum(count * cables[number] for number, count in group.ends)
        for group in parts.switches
    ]
    said = [_said(network, group) for group in parts.switches]
    radix = switch_ports or _radix(parts.switches, used, said)
    stacks: dict[str, list[_Stack]] = {}
    for group, ports, at_least in zip(parts.switches, used, said, strict=True):
        each = at_least
        if (network.is_tree or network.kind == "pods") and not group.inside_node:
            each = max(at_least, -(-ports // radix))
        stack = _Stack(group.count * each, -(-ports // each))
        stacks.setdefault(group.tier, []).append(stack)
    tiers = []
    for bundles, each in zip(parts.bundles, cables, strict=True):
        tiers.append(_tier_parts(bundles, each, stacks.pop(bundles.tier, [])))
    for name, left in stacks.items():
        tiers.append(_switches_alone(name, left))
    return Inventory(num_devices=network.num_devices, tiers=tuple(tiers))


class _Stack(NamedTuple):
    """Switches that are alike."""

    num_switches: int
    ports: int


def _nic_bandwidth(network: Network, parts: NetworkParts) -> float | None:
    """Return the bandwidth of cables at NICs below switches, None without these."""
    fabric = [bundle for bundle in parts.bundles if not bundle.inside_node]
    joined = network.routing.family == "joined" and network.kind != "pods"
    has_nics = network.is_tree or (joined and fabric and fabric[0].device_ends == 1)
    return fabric[0].cable_bandwidth if has_nics and fabric else None


def _cables_each(bundles: Bundles, port: float | None) -> int:
    """Return the cables of one bundle."""
    if port is None or bundles.inside_node:
        port = bundles.cable_bandwidth
    return bundles.cables_each(port)


def _said(network: Network, group: SwitchGroups) -> int:
    """Return how many switches the network says that a group consists of."""
    numbers = (
        tier.num_switches * tier.num_spines
        for tier in network.tiers()
        if tier.name == group.tier
    )
    return next(numbers, 1)


def _radix(
    groups: Sequence[SwitchGroups], used: Sequence[int], said: Sequence[int]
) -> int:
    """Return the ports of a switch outside of nodes that suits what is said of some."""
    fabric = [
        (ports, number)
        for group, ports, number in zip(groups, used, said, strict=True)
        if not group.inside_node
    ]
    known = [-(-ports // number) for ports, number in fabric if number > 1]
    return max([ports for ports, _ in fabric[:1]] + known, default=1)


def _tier_parts(bundles: Bundles, each: int, switches: Sequence[_Stack]) -> TierParts:
    count = bundles.count * each
    return TierParts(
        name=bundles.tier,
        is_inside_nodes=bundles.inside_node,
        num_cables=count,
        cable_bandwidth=bundles.bandwidth / each,
        num_device_ports=bundles.device_ends * count,
        num_switch_ports=(2 - bundles.device_ends) * count,
        num_switches=sum(switch.num_switches for switch in switches),
        ports_per_switch=max((switch.ports for switch in switches), default=0),
    )


def _switches_alone(name: str, switches: Sequence[_Stack]) -> TierParts:
    """Return switches that no tier of cables leads into alone: those of a list."""
    return TierParts(
        name=name,
        is_inside_nodes=False,
        num_cables=0,
        cable_bandwidth=0.0,
        num_device_ports=0,
        num_switch_ports=0,
        num_switches=sum(switch.num_switches for switch in switches),
        ports_per_switch=max(switch.ports for switch in switches),
    )


def links_up(network: Network) -> float:
    """Return what NICs can send over what reaches the top of a tree, 1 elsewhere.

    The product of the oversubscriptions of all tiers outside of nodes.
    """
    if network.rules is None:
        return 1.0
    fabric = network.tiers()[network.rules.node_levels :]
    return math.prod(tier.oversubscription for tier in fabric)


def bisection_rule(network: Network) -> str:
    """Say how `Network.bisection_bandwidth` finds the bisection of this network."""
    is_built = network.routing is network.routing.built
    if not is_built or network.routing.family in {"custom", "joined"}:
        return "largest flow between the two halves of the device numbers"
    if network.routing.family == "torus":
        return "smallest cut by a plane"
    nodes = network.num_devices // (network.rules.node_size if network.rules else 1)
    has_planes = any(tier.num_planes > 1 for tier in network.tiers())
    if has_planes and nodes % 2:
        return "cut along nodes, an upper bound"
    return "smallest cut into halves, by tiers"
