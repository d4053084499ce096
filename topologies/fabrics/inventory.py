"""What a network is made of: switches, ports and cables, counted as one would buy them.

A network's file speaks of links and of switches as traffic meets them. One link may
stand for several cables, and one switch of a block for the whole layer of switches that
the block has (`topologies.fabrics.parts`). Where nothing says which cables and switches
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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from topologies.fabrics.parts import (
    Bundles,
    NetworkParts,
    SwitchGroups,
    network_parts,
)
from topologies.network import Network


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
        if network.is_tree and not group.inside_node:
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
    """Return the bandwidth of a tree's cables at NICs, None where links are cables."""
    fabric = [one for one in parts.bundles if not one.inside_node]
    return fabric[0].cable_bandwidth if network.is_tree and fabric else None


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
        num_switches=sum(one.num_switches for one in switches),
        ports_per_switch=max((one.ports for one in switches), default=0),
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
        num_switches=sum(one.num_switches for one in switches),
        ports_per_switch=max(one.ports for one in switches),
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
