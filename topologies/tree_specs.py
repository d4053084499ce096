"""What trees of switches are built from: one frozen record of parameters per kind.

Every value is in base units: bytes per second, seconds. A record checks itself when
it is made, so that a builder never meets an impossible one.

References
----------
.. [1] NVIDIA, "DGX SuperPOD Reference Architecture (H100)", 2023: scalable units,
   one leaf switch per rail.
.. [2] NVIDIA, "Doubling all2all Performance with NCCL 2.12", 2022: PXN.
.. [3] R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)",
   COMHPC 2016.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from topologies.checks import (
    MAX_SPINE_LINKS,
    check_bandwidth,
    check_choice,
    check_count,
    check_efficiency,
    check_latency,
    check_num_devices,
    check_ratio,
)
from topologies.errors import InputError
from topologies.level_spec import LevelSpec

Nic = Literal["node", "device"]
Trunk = Literal["ideal", "ecmp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTreeSpec:
    """A tree of switches; a child has one link to its switch, of one or more cables."""

    kind: ClassVar[str] = "fat-tree"

    levels: tuple[LevelSpec, ...]
    """From the inside out."""

    nic: Nic = "node"
    """``"node"``: the link into level 1 is one that the node's devices share, and
    routes cross the node's switch. ``"device"``: every device has a link of its own,
    of level 1's bandwidth, to the level-1 switch, and routes to other nodes do not
    cross the node's switch."""

    trunk: Trunk = "ideal"
    """``"ideal"``: the cables of a link act as one. ``"ecmp"``: they are separate, and
    a hash of source and target picks one at each level."""

    ecmp_seed: int = 0
    """Seed of that hash."""

    node_levels: int = 1
    """Levels inside a node, whose links libraries do not take for a network's: 2 where
    bridges join pairs of devices and PCIe the pairs."""

    sharp: bool = False
    """Whether switches outside nodes add up all-reduces on their way [3]_."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return math.prod(level.fan_out for level in self.levels)

    def __post_init__(self) -> None:
        check_choice("nic", self.nic, ("node", "device"))
        check_choice("trunk", self.trunk, ("ideal", "ecmp"))
        self._check_shape()
        if self.levels[0].bandwidth is None:
            hint = "a device's own link, e.g. NVLink: 450e9"
            raise InputError("is missing", where="levels[0].bandwidth", hint=hint)
        last = len(self.levels) - 1
        for inner in range(last):
            over = self.levels[inner].oversubscription
            if over is not None and self.levels[inner + 1].bandwidth is not None:
                raise InputError(
                    f"contradicts levels[{inner + 1}].bandwidth",
                    where=f"levels[{inner}].oversubscription",
                    got=over,
                    expected="one of the two, as each follows from the other",
                    hint="leave one of them out",
                )
        if self.levels[last].oversubscription not in {None, 1}:
            raise InputError(
                "the outermost level has no links up to oversubscribe",
                where=f"levels[{last}].oversubscription",
                got=self.levels[last].oversubscription,
                hint="set it on the level below" if last else "leave it out",
            )

    def _check_shape(self) -> None:
        if not self.levels:
            expected = "at least one level, the node's"
            raise InputError("must not be empty", where="levels", expected=expected)
        check_num_devices("levels", self.num_devices)
        if not 1 <= self.node_levels <= len(self.levels):
            raise InputError(
                "is not a number of the levels that there are",
                where="node_levels",
                got=self.node_levels,
                expected=f"1 to {len(self.levels)}",
            )
        names = [level.name for level in self.levels]
        for index, name in enumerate(names):
            if name in names[:index] or name == "device":
                raise InputError(
                    "is used twice"
                    if name != "device"
                    else "is what devices are called",
                    where=f"levels[{index}].name",
                    got=name,
                    expected="another name for every level",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineLeafSpec:
    """Nodes below leaf switches below spines."""

    kind: ClassVar[str] = "spine-leaf"

    devices_per_node: int
    """Devices of one node."""

    node_bandwidth: float
    """Of a device's link inside the node, per direction [byte/s]."""

    node_latency: float
    """Of that link [s]."""

    nodes_per_leaf: int
    """Nodes below one leaf switch."""

    num_leaves: int
    """Leaf switches."""

    nic_bandwidth: float
    """Of one NIC, per direction [byte/s]."""

    nic_latency: float
    """Of the link from a NIC to the leaf switch [s]."""

    spine_latency: float
    """Of a link from a leaf to a spine [s]."""

    nic: Nic = "device"
    """Whether every device has a NIC, or a node's devices share one."""

    num_spines: int = 1
    """Spine switches; a leaf has one link to each."""

    oversubscription: float = 1.0
    """A leaf's links to NICs together over its links to spines together."""

    trunk: Trunk = "ideal"
    """``"ideal"``: a leaf's links to all spines act as one. ``"ecmp"``: they are
    separate, and a hash of source and target picks the spine."""

    ecmp_seed: int = 0
    """Seed of that hash."""

    node_efficiency: float = 1.0
    """Fraction of `node_bandwidth` that traffic reaches."""

    nic_efficiency: float = 1.0
    """Of `nic_bandwidth`, likewise."""

    spine_efficiency: float = 1.0
    """Of the links to spines, likewise."""

    sharp: bool = False
    """Whether switches outside nodes add up all-reduces on their way [3]_."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.devices_per_node * self.nodes_per_leaf * self.num_leaves

    def __post_init__(self) -> None:
        _check_nodes(self)
        for name in ("nodes_per_leaf", "num_leaves"):
            check_count(name, getattr(self, name))
        check_choice("nic", self.nic, ("device", "node"))
        check_num_devices("num_leaves", self.num_devices)
        _check_spines(self, "leaves", self.num_leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailSpec:
    """Rail-optimised nodes: equal local ranks of a scalable unit share a switch [1]_.

    Spines join the rail switches of all units.
    """

    kind: ClassVar[str] = "rail"

    devices_per_node: int
    """Devices, NICs and rails of one node."""

    node_bandwidth: float
    """Of a device's link inside the node, per direction [byte/s]."""

    node_latency: float
    """Of that link [s]."""

    nodes_per_unit: int
    """Nodes of a scalable unit: what one rail switch joins."""

    num_units: int
    """Scalable units."""

    nic_bandwidth: float
    """Of one device's NIC, per direction [byte/s]."""

    nic_latency: float
    """Of the link from a NIC to the rail switch [s]."""

    spine_latency: float
    """Of a link from a rail switch to a spine [s]."""

    num_spines: int = 1
    """Spine switches; a rail switch has one link to each."""

    oversubscription: float = 1.0
    """A rail switch's links to NICs together over its links to spines together."""

    pxn: bool = True
    """Whether traffic for another local rank first crosses the sender's node to the
    device on the receiver's rail [2]_. If not, it goes through the spine."""

    trunk: Trunk = "ideal"
    """``"ideal"``: a rail switch's links to all spines act as one. ``"ecmp"``: they are
    separate, and a hash of source and target picks the spine."""

    ecmp_seed: int = 0
    """Seed of that hash."""

    node_efficiency: float = 1.0
    """Fraction of `node_bandwidth` that traffic reaches."""

    nic_efficiency: float = 1.0
    """Of `nic_bandwidth`, likewise."""

    spine_efficiency: float = 1.0
    """Of the links to spines, likewise."""

    sharp: bool = False
    """Whether switches outside nodes add up all-reduces on their way [3]_."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.devices_per_node * self.nodes_per_unit * self.num_units

    def __post_init__(self) -> None:
        _check_nodes(self)
        for name in ("nodes_per_unit", "num_units"):
            check_count(name, getattr(self, name))
        check_num_devices("num_units", self.num_devices)
        _check_spines(self, "rail switches", self.num_units * self.devices_per_node)


def _check_spines(spec: SpineLeafSpec | RailSpec, below: str, count: int) -> None:
    check_choice("trunk", spec.trunk, ("ideal", "ecmp"))
    if count * spec.num_spines > MAX_SPINE_LINKS:
        raise InputError(
            "too many spines",
            where="num_spines",
            got=spec.num_spines,
            expected=f"at most {MAX_SPINE_LINKS} links from {below} to spines",
        )


def _check_nodes(spec: SpineLeafSpec | RailSpec) -> None:
    for name in ("devices_per_node", "num_spines"):
        check_count(name, getattr(spec, name))
    for name in ("node_bandwidth", "nic_bandwidth"):
        check_bandwidth(name, getattr(spec, name))
    for name in ("node_latency", "nic_latency", "spine_latency"):
        check_latency(name, getattr(spec, name))
    for name in ("node_efficiency", "nic_efficiency", "spine_efficiency"):
        check_efficiency(name, getattr(spec, name))
    check_ratio("oversubscription", spec.oversubscription)
