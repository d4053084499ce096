"""Links of a network that a program describes, reduced and put together as a list.

Whoever describes a machine lists ports, adapters and slots one by one. Routes between
devices do not depend on them: vertices that lead nowhere carry nothing, equal switches
beside each other carry what they do together, and what merely passes on is a part of
its link.

Links of a network that a program describes, put together as a list.

Lists of links are what `topologies.fabrics.custom` builds networks from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from topologies.errors import InputError
from topologies.link_file import (
    MAX_CUSTOM_DEVICES,
    MAX_CUSTOM_VERTICES,
    LinkList,
    ListedLink,
)
from topologies.readers.slurm import SwitchBranch

T = TypeVar("T")

_ROUNDS = 100
"""Most rounds; each makes chains of vertices shorter."""


class PathRate(NamedTuple):
    """How fast one link is, or several, one behind the other."""

    bandwidth: float
    """Least bandwidth on the way, in one direction [byte/s]."""

    latency: float
    """Latencies of the way together [s]."""

    is_path: bool
    """Whether it stands for several links."""


Rated = dict[str, dict[str, PathRate]]
"""Vertex -> its neighbours -> the link to each; the same both ways."""


def leave_out_ends(around: dict[str, dict[str, T]], kept: frozenset[str]) -> None:
    """Leave out vertices that no route between kept ones passes, one by one.

    Parameters
    ----------
    around
        Vertex -> its neighbours, both ways; changed.
    kept
        Vertices that stay.
    """
    ends = [one for one, near in around.items() if len(near) < 2 and one not in kept]
    while ends:
        name = ends.pop()
        for other in around.pop(name, {}):
            del around[other][name]
            if len(around[other]) < 2 and other not in kept:
                ends.append(other)


def reduce_graph(around: Rated, kept: frozenset[str]) -> int:
    """Merge equal switches and shorten paths; return how many switches were merged.

    Parameters
    ----------
    around
        The graph; changed.
    kept
        Vertices that stay.
    """
    merged = 0
    for _ in range(_ROUNDS):
        now = _merge_equals(around, kept)
        merged += now
        if not now + _shorten(around, kept):
            break
    return merged


def _merge_equals(around: Rated, kept: frozenset[str]) -> int:
    """Let vertices with the same neighbours act as one; return how many went.

    Those of two neighbours are paths beside each other, see `_shorten`.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, others in around.items():
        if name not in kept and len(others) > 2:
            groups.setdefault(tuple(sorted(others)), []).append(name)
    gone = 0
    for neighbours, names in groups.items():
        # An earlier group may have taken neighbours away.
        if len(names) > 1 and all(other in around for other in neighbours):
            _merge(around, neighbours, names)
            gone += len(names) - 1
    return gone


def _merge(around: Rated, neighbours: Sequence[str], names: Sequence[str]) -> None:
    """Put the links of several vertices with the same neighbours together."""
    first, *rest = names
    for other in neighbours:
        rates = [around[name][other] for name in names]
        rate = PathRate(
            sum(one.bandwidth for one in rates),
            max(one.latency for one in rates),
            any(one.is_path for one in rates),
        )
        for name in rest:
            del around[other][name]
        around[first][other] = around[other][first] = rate
    for name in rest:
        del around[name]


def _shorten(around: Rated, kept: frozenset[str]) -> int:
    """Make vertices with two neighbours a part of the link between these.

    Paths beside each other carry what they do together. Where there is a link already
    that is no such path, routes take it: the vertex stays.
    """
    gone = 0
    for name in [one for one in around if one not in kept]:
        if len(around[name]) != 2:
            continue
        (one, first), (other, second) = around[name].items()
        there = around[one].get(other)
        if there is not None and not there.is_path:
            continue
        bandwidth = min(first.bandwidth, second.bandwidth)
        latency = first.latency + second.latency
        if there is not None:
            bandwidth += there.bandwidth
            latency = max(latency, there.latency)
        del around[one][name], around[other][name], around[name]
        around[one][other] = around[other][one] = PathRate(bandwidth, latency, True)
        gone += 1
    return gone


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
