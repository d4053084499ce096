"""What a network is made of: switches, ports and cables, counted as one would buy them.

A network's file speaks of links and of switches as traffic meets them. One link may
stand for several cables, and one switch of a block for the whole layer of switches that
the block has. Both are counted here by two rules:

- a link that is wider than a port consists of as many cables as fill it, ports being as
  fast as those of NICs (the cables of the first tier outside of nodes);
- a switch with more cables than a switch has ports consists of as many switches as have
  that many, and of no fewer than the file says. Without a word on it a switch has the
  ports that those next to the NICs need, which all other switches have too.

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
from dataclasses import dataclass
from typing import NamedTuple

from topologies.network import Network, Tier

ROUNDING = 1e-9
"""Part of a port by which a link may be wider without another cable."""


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
        Any; what is slow or gone counts all the same, but for links of custom networks
        that are gone. Of custom networks a link is a cable, a vertex a switch, and
        nothing is taken to be inside of nodes. Hosts are left out.
    port_bandwidth
        Bandwidth of a port outside of nodes, per direction; None for that of one cable
        of the first tier there [byte/s].
    switch_ports
        Ports of a switch outside of nodes; None for what those of the first tier there
        need.
    """
    network = network.without_host()
    family = network.routing.family
    if family == "custom":
        tiers = _listed_parts(network)
    elif family == "torus":
        tiers = tuple(_ring_parts(tier) for tier in network.tiers())
    else:
        assert network.rules is not None
        first = network.rules.node_levels
        tiers = _tree_parts(network.tiers(), first, port_bandwidth, switch_ports)
    return Inventory(num_devices=network.num_devices, tiers=tiers)


def _tree_parts(
    tiers: Sequence[Tier],
    first: int,
    port_bandwidth: float | None,
    switch_ports: int | None,
) -> tuple[TierParts, ...]:
    """Count a tree of which tier number ``first`` is the first outside of nodes."""
    fabric = tiers[first:]
    port = port_bandwidth or (fabric[0].link_bandwidth if fabric else math.inf)
    widths = [1] * first + [_fill(tier.link_bandwidth, port) for tier in fabric]
    cables = [tier.num_links * wide for tier, wide in zip(tiers, widths, strict=True)]
    found: list[TierParts] = []
    for k, tier in enumerate(tiers):
        vertices = tier.num_blocks * tier.num_planes * tier.num_spines
        joins_devices = k in {0, first} or tier.joins_devices
        goes_up = k + 1 < len(tiers) and not tiers[k + 1].joins_devices
        # A node has NICs where it would have the links of its switch.
        up = cables[k + 1] if goes_up and k + 1 != first else 0
        used = math.ceil((cables[k] + up) / vertices)
        if k == first:
            switch_ports = switch_ports or used
        apiece = tier.num_switches
        if k >= first:
            assert switch_ports is not None
            apiece = max(apiece, -(-used // switch_ports))
        found.append(
            TierParts(
                name=tier.name,
                is_inside_nodes=k < first,
                num_cables=cables[k],
                cable_bandwidth=tier.link_bandwidth / widths[k],
                num_device_ports=cables[k] if joins_devices else 0,
                num_switch_ports=cables[k] if joins_devices else 2 * cables[k],
                num_switches=vertices * apiece,
                ports_per_switch=-(-used // apiece),
            )
        )
    return tuple(found)


def _fill(bandwidth: float, port: float) -> int:
    """Return how many ports a link of this bandwidth fills."""
    return max(1, math.ceil(bandwidth / port - ROUNDING))


def _ring_parts(tier: Tier) -> TierParts:
    """Count one dimension of a torus, whose devices switch by themselves."""
    return TierParts(
        name=tier.name,
        is_inside_nodes=False,
        num_cables=tier.num_links,
        cable_bandwidth=tier.link_bandwidth,
        num_device_ports=2 * tier.num_links,
        num_switch_ports=0,
        num_switches=0,
        ports_per_switch=0,
    )


class _Listed(NamedTuple):
    """One cable of a list."""

    level: int
    bandwidth: float
    ends: tuple[int, int]


def _listed_parts(network: Network) -> tuple[TierParts, ...]:
    """Count a list of links: two of opposite direction and one speed are a cable.

    A switch counts to the innermost level of its cables.
    """
    cables = _listed_cables(network)
    home: dict[int, int] = {}
    ports: Counter[int] = Counter()
    for cable in cables.elements():
        for end in cable.ends:
            if end >= network.num_devices:
                home[end] = min(home.get(end, cable.level), cable.level)
                ports[end] += 1
    kinds = sorted({(cable.level, -cable.bandwidth) for cable in cables})
    found: list[TierParts] = []
    for level, bandwidth in kinds:
        ends = [
            end
            for cable in cables.elements()
            if (cable.level, -cable.bandwidth) == (level, bandwidth)
            for end in cable.ends
        ]
        at_devices = sum(end < network.num_devices for end in ends)
        is_first = not any(
            one[0] == level for one in kinds[: kinds.index((level, bandwidth))]
        )
        switches = [one for one, its in home.items() if its == level and is_first]
        found.append(
            TierParts(
                name=network.levels[level].name,
                is_inside_nodes=False,
                num_cables=len(ends) // 2,
                cable_bandwidth=-bandwidth,
                num_device_ports=at_devices,
                num_switch_ports=len(ends) - at_devices,
                num_switches=len(switches),
                ports_per_switch=max((ports[one] for one in switches), default=0),
            )
        )
    return tuple(found)


def _listed_cables(network: Network) -> Counter[_Listed]:
    """Return the cables of a list of directed links, and how many of each there are."""
    links = network.links
    ways: Counter[tuple[int, float, int, int]] = Counter(
        zip(
            links.level.tolist(),
            links.bandwidth.tolist(),
            links.source.tolist(),
            links.target.tolist(),
            strict=True,
        )
    )
    cables: Counter[_Listed] = Counter()
    for (level, bandwidth, source, target), count in ways.items():
        back = ways.get((level, bandwidth, target, source), 0)
        ends = (min(source, target), max(source, target))
        cables[_Listed(level, bandwidth, ends)] = max(count, back)
    return cables


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
    if network.routing is not network.routing.built or network.routing.family == (
        "custom"
    ):
        return "largest flow between the two halves of the device numbers"
    if network.routing.family == "torus":
        return "smallest cut by a plane"
    nodes = network.num_devices // (network.rules.node_size if network.rules else 1)
    has_planes = any(tier.num_planes > 1 for tier in network.tiers())
    if has_planes and nodes % 2:
        return "cut along nodes, an upper bound"
    return "smallest cut into halves, by tiers"
