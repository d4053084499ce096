"""Links of a network that a program describes, put together as a list.

Lists of links are what `topologies.fabrics.custom` builds networks from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from topologies.errors import InputError
from topologies.link_file import (
    MAX_CUSTOM_DEVICES,
    MAX_CUSTOM_VERTICES,
    LinkList,
    ListedLink,
)
from topologies.readers.slurm import SwitchBranch


class LinkCollector:
    """Collects links between vertices by name; parallel ones act as one.

    Parameters
    ----------
    devices
        Names of the devices, in the order of their numbers.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        if not 1 <= len(devices) <= MAX_CUSTOM_DEVICES:
            raise InputError(
                "too many devices for a network without a regular form"
                if devices
                else "has no devices",
                got=len(devices),
                expected=f"1 to {MAX_CUSTOM_DEVICES:,} devices",
            )
        self.num_devices = len(devices)
        self._numbers = {name: number for number, name in enumerate(devices)}
        assert len(self._numbers) == len(devices), "every device has a name of its own"
        self._links: dict[tuple[int, int], tuple[float, float]] = {}

    def join(self, one: str, other: str, bandwidth: float, latency: float) -> None:
        """Join two vertices both ways; names that are new become switches.

        Parameters
        ----------
        one, other
            Names of the vertices.
        bandwidth
            In one direction [byte/s].
        latency
            Of the link [s].
        """
        ends = tuple(
            self._numbers.setdefault(name, len(self._numbers)) for name in (one, other)
        )
        if len(self._numbers) > MAX_CUSTOM_VERTICES:
            raise InputError(
                "too many devices and switches",
                expected=f"at most {MAX_CUSTOM_VERTICES:,}",
            )
        for source, target in (ends, ends[::-1]):
            had, waited = self._links.get((source, target), (0.0, 0.0))
            self._links[source, target] = had + bandwidth, max(waited, latency)

    def listed(self) -> LinkList:
        """Return all links."""
        return LinkList(
            num_devices=self.num_devices,
            vertex_names=tuple(self._numbers),
            links=tuple(
                ListedLink(source, target, bandwidth, latency)
                for (source, target), (bandwidth, latency) in self._links.items()
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRates:
    """How fast the links of a tree of switches are, which its file does not say."""

    devices_per_node: int
    """Number of devices of one node."""

    node_bandwidth: float
    """Bandwidth of a device's link inside the node, per direction [byte/s]."""

    node_latency: float
    """Latency of a device's link inside the node [s]."""

    nic: Literal["device", "node"]
    """Whether every device has a NIC, or a node's devices share one."""

    nic_bandwidth: float
    """Bandwidth of one NIC, per direction [byte/s]."""

    nic_latency: float
    """Latency of the link from a NIC to its switch [s]."""

    switch_latency: float
    """Latency of a link between switches [s]."""

    oversubscription: tuple[float, ...]
    """Bandwidth of a switch's links downwards over that of its link upwards, by level,
    from the nodes outwards; 1 for levels that are not there."""


def tree_links(root: SwitchBranch, rates: TreeRates) -> LinkList:
    """Return the links of a tree of switches of any form.

    A switch has one link up, of the bandwidth of its links down together divided by the
    oversubscription of its level; levels count from the nodes.

    Raises
    ------
    InputError
        If it is too large to list.
    """
    count = root.num_nodes() * rates.devices_per_node
    if count > MAX_CUSTOM_DEVICES:
        raise InputError(
            "too many devices for a tree whose switches are not alike",
            got=f"{count:,} devices",
            expected=f"at most {MAX_CUSTOM_DEVICES:,}, or switches of a level with "
            "equally many children",
            hint="choose alike parts of the cluster with nodes = ..",
        )
    joined = LinkCollector(
        [name for node in _nodes(root) for name in _devices(node, rates)]
    )
    _join_branch(joined, root, rates)
    return joined.listed()


def _nodes(branch: SwitchBranch) -> list[str]:
    below = [node for one in branch.branches for node in _nodes(one)]
    return [*branch.nodes, *below]


def _devices(node: str, rates: TreeRates) -> list[str]:
    if rates.devices_per_node == 1:
        return [node]
    return [f"{node} device {i}" for i in range(rates.devices_per_node)]


def _join_branch(
    joined: LinkCollector, branch: SwitchBranch, rates: TreeRates
) -> tuple[int, float]:
    """Join all below a switch; return its height and the bandwidth of its link up."""
    height, capacity = 0, 0.0
    switch = f"switch {branch.name}"
    for node in branch.nodes:
        capacity += _join_node(joined, node, switch, rates)
    for one in branch.branches:
        below, bandwidth = _join_branch(joined, one, rates)
        joined.join(f"switch {one.name}", switch, bandwidth, rates.switch_latency)
        capacity += bandwidth
        height = max(height, below + 1)
    ratios = rates.oversubscription
    return height, capacity / (ratios[height] if height < len(ratios) else 1.0)


def _join_node(
    joined: LinkCollector, node: str, switch: str, rates: TreeRates
) -> float:
    """Join a node's devices with each other and with its switch."""
    devices = _devices(node, rates)
    inside = f"node {node}" if len(devices) > 1 else devices[0]
    if len(devices) > 1:
        for device in devices:
            joined.join(device, inside, rates.node_bandwidth, rates.node_latency)
    ends = devices if rates.nic == "device" else [inside]
    for end in ends:
        joined.join(end, switch, rates.nic_bandwidth, rates.nic_latency)
    return len(ends) * rates.nic_bandwidth
