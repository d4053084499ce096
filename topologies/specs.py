"""What a network is built from: one frozen record of parameters per kind.

Every value is in base units: bytes per second, seconds. A record checks itself when
it is made, so that a builder never meets an impossible one. It also answers for itself
what differs between kinds: which files it names, and what another hash seed or another
oversubscription makes of it.

References
----------
.. [1] NVIDIA, "DGX SuperPOD Reference Architecture (H100)", 2023: scalable units,
   one leaf switch per rail.
.. [2] NVIDIA, "Doubling all2all Performance with NCCL 2.12", 2022: PXN.
.. [3] W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs
   with Trillion Parameters", arXiv:2307.12169, 2023.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, get_args

from topologies.errors import (
    InputError,
    check_bandwidth,
    check_choice,
    check_count,
    check_efficiency,
    check_latency,
    check_ratio,
)
from topologies.link_file import LinkList, read_link_file
from topologies.records import (
    MAX_SPINE_LINKS,
    FabricRecord,
    Nic,
    SwitchedRecord,
    Tiers,
    Trunk,
    check_num_devices,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSpec:
    """One tier of switches of a fat-tree."""

    name: str
    """Name of the level, as people call it: ``"node"``, ``"leaf"``, ``"spine"``."""

    fan_out: int
    """Children of one switch: devices at level 0, blocks of the level below above."""

    latency: float
    """Latency of one hop, that is of one child's link [s]."""

    bandwidth: float | None = None
    """Bandwidth of one child's link into this level's switch, per direction. None: what
    the links of the child's children have together, divided by the oversubscription of
    the child's level; level 0 has no such child, and must say [byte/s]."""

    oversubscription: float | None = None
    """Bandwidth of the children's links together over that of the link to the level
    above. None: 1, or what an explicit bandwidth of the level above implies."""

    num_cables: int | None = None
    """Cables that one child's link into this level's switch consists of. None: one if
    the bandwidth is given; else as many as the child has children, times their cables,
    divided by the oversubscription and rounded."""

    efficiency: float = 1.0
    """Fraction of the link's bandwidth that traffic reaches: all times follow from
    bandwidth times efficiency."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            expected = 'a name, e.g. "leaf"'
            raise InputError("must not be empty", where="name", expected=expected)
        check_count("fan_out", self.fan_out)
        check_latency("latency", self.latency)
        if self.bandwidth is not None:
            check_bandwidth("bandwidth", self.bandwidth)
        if self.oversubscription is not None:
            check_ratio("oversubscription", self.oversubscription)
        if self.num_cables is not None:
            check_count("num_cables", self.num_cables)
        check_efficiency("efficiency", self.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class FatTreeSpec(SwitchedRecord):
    """A tree of switches; a child has one link to its switch, of one or more cables."""

    kind: ClassVar[str] = "fat-tree"

    levels: tuple[LevelSpec, ...]
    """Tiers of switches, from the inside out."""

    nic: Nic = "node"
    """``"node"``: the link into level 1 is one that the node's devices share, and
    routes cross the node's switch. ``"device"``: every device has a link of its own,
    of level 1's bandwidth, to the level-1 switch, and routes to other nodes do not
    cross the node's switch."""

    trunk: Trunk = "ideal"
    """``"ideal"``, ``"spraying"``, ``"adaptive"``: the cables of a link act as one.
    ``"ecmp"``: they are separate, and a hash of source and target picks one at each
    level."""

    ecmp_seed: int = 0
    """Seed of the hash that picks with ``trunk="ecmp"``."""

    node_levels: int = 1
    """Levels inside a node, whose links libraries do not take for a network's: 2 where
    bridges join pairs of devices and PCIe the pairs."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return math.prod(level.fan_out for level in self.levels)

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return the tree with separate cables, picked by a hash of this seed."""
        return replace(self, trunk="ecmp", ecmp_seed=seed)

    def with_oversubscription(self, tiers: Tiers, number: int, ratio: float) -> Self:
        """Return the tree with other bandwidth into the level above that numbered.

        There are as many cables as before, so that names and hashes of cables stay what
        they are. Levels further out keep their bandwidth where it is given.
        """
        above = tiers[number + 1]
        levels = list(self.levels)
        levels[number] = replace(levels[number], oversubscription=None)
        levels[number + 1] = replace(
            levels[number + 1],
            bandwidth=above.child_bandwidth * tiers[number].oversubscription / ratio,
            num_cables=above.num_parallel * above.num_cables,
        )
        return replace(self, levels=tuple(levels))

    def with_efficiencies(self, node: float | None, fabric: float | None) -> Self:
        """Return the tree with other efficiencies, of a node and above; None: as is."""
        inner, *outer = self.levels
        if node is not None:
            inner = replace(inner, efficiency=node)
        if fabric is not None:
            outer = [replace(level, efficiency=fabric) for level in outer]
        return replace(self, levels=(inner, *outer))

    def __post_init__(self) -> None:
        check_choice("nic", self.nic, ("node", "device"))
        check_choice("trunk", self.trunk, get_args(Trunk))
        self._check_shape()
        self.check_sums()
        if self.nvls and self.node_levels > 1:
            raise InputError(
                "needs a node whose devices all stand below one level of switches",
                where="nvls",
                got=f"{self.node_levels} levels inside a node",
                expected="one level inside a node, as NVSwitches are",
            )
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
class _SpinesRecord(SwitchedRecord):
    """Nodes below switches below spines."""

    devices_per_node: int
    """Number of devices of one node; with rails also of its NICs and rails."""

    node_bandwidth: float
    """Bandwidth of a device's link inside the node, per direction [byte/s]."""

    node_latency: float
    """Latency of a device's link inside the node [s]."""

    nic_bandwidth: float
    """Bandwidth of one NIC, per direction [byte/s]."""

    nic_latency: float
    """Latency of the link from a NIC to its switch [s]."""

    spine_latency: float
    """Latency of a link from a switch to a spine [s]."""

    num_spines: int = 1
    """Number of spine switches; a switch below them has one link to each."""

    oversubscription: float = 1.0
    """Bandwidth of a switch's links to NICs over that of its links to spines."""

    trunk: Trunk = "ideal"
    """``"ideal"``, ``"spraying"``, ``"adaptive"``: a switch's links to all spines act
    as one. ``"ecmp"``: they are separate, and a hash of source and target picks the
    spine."""

    ecmp_seed: int = 0
    """Seed of the hash that picks with ``trunk="ecmp"``."""

    node_efficiency: float = 1.0
    """Fraction of `node_bandwidth` that traffic reaches."""

    nic_efficiency: float = 1.0
    """Fraction of `nic_bandwidth` that traffic reaches."""

    spine_efficiency: float = 1.0
    """Fraction of the bandwidth of links to spines that traffic reaches."""

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return the network with separate spines, picked by a hash of this seed."""
        return replace(self, trunk="ecmp", ecmp_seed=seed)

    def with_oversubscription(self, tiers: Tiers, number: int, ratio: float) -> Self:
        """Return the network with other NICs (tier 0) or links to spines (tier 1)."""
        if number:
            return replace(self, oversubscription=ratio)
        built = tiers[number].oversubscription
        return replace(self, nic_bandwidth=self.nic_bandwidth * built / ratio)

    def check_nodes(self) -> None:
        """Refuse values that neither kind can have."""
        self.check_sums()
        for name in ("devices_per_node", "num_spines"):
            check_count(name, getattr(self, name))
        for name in ("node_bandwidth", "nic_bandwidth"):
            check_bandwidth(name, getattr(self, name))
        for name in ("node_latency", "nic_latency", "spine_latency"):
            check_latency(name, getattr(self, name))
        for name in ("node_efficiency", "nic_efficiency", "spine_efficiency"):
            check_efficiency(name, getattr(self, name))
        check_ratio("oversubscription", self.oversubscription)

    def check_spines(self, below: str, count: int) -> None:
        """Refuse more links from switches to spines than can be built."""
        check_choice("trunk", self.trunk, get_args(Trunk))
        if count * self.num_spines > MAX_SPINE_LINKS:
            raise InputError(
                "too many spines",
                where="num_spines",
                got=self.num_spines,
                expected=f"at most {MAX_SPINE_LINKS} links from {below} to spines",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpineLeafSpec(_SpinesRecord):
    """Nodes below leaf switches below spines."""

    kind: ClassVar[str] = "spine-leaf"

    nodes_per_leaf: int
    """Number of nodes below one leaf switch."""

    num_leaves: int
    """Number of leaf switches."""

    nic: Nic = "device"
    """Whether every device has a NIC, or a node's devices share one."""

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.devices_per_node * self.nodes_per_leaf * self.num_leaves

    def __post_init__(self) -> None:
        self.check_nodes()
        for name in ("nodes_per_leaf", "num_leaves"):
            check_count(name, getattr(self, name))
        check_choice("nic", self.nic, ("device", "node"))
        check_num_devices("num_leaves", self.num_devices)
        self.check_spines("leaves", self.num_leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailSpec(_SpinesRecord):
    """Rail-optimised nodes: equal local ranks of a scalable unit share a switch [1]_.

    Spines join the rail switches of all units, or those of each rail by themselves.
    """

    kind: ClassVar[str] = "rail"

    nodes_per_unit: int
    """Number of nodes of a scalable unit: what one rail switch joins."""

    num_units: int
    """Number of scalable units."""

    pxn: bool = True
    """Whether traffic for another local rank first crosses the sender's node to the
    device on the receiver's rail [2]_. If not, it goes through the spine."""

    rail_only: bool = False
    """Whether nothing joins rails but nodes [3]_: each has spines of its own, or none
    where one switch of it joins all nodes."""

    @property
    def has_spines(self) -> bool:
        """Whether there is a tier above the rail switches."""
        return self.num_units > 1 or not self.rail_only

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return the network with separate spines, picked by a hash of this seed."""
        if not self.has_spines:
            return FabricRecord.with_ecmp_seed(self, seed)
        return replace(self, trunk="ecmp", ecmp_seed=seed)

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.devices_per_node * self.nodes_per_unit * self.num_units

    def __post_init__(self) -> None:
        self.check_nodes()
        for name in ("nodes_per_unit", "num_units"):
            check_count(name, getattr(self, name))
        check_num_devices("num_units", self.num_devices)
        self.check_spines("rail switches", self.num_units * self.devices_per_node)
        if self.rail_only:
            self._check_rails()

    def _check_rails(self) -> None:
        """Refuse what needs spines that rail-only networks do not have."""
        if not self.pxn:
            raise InputError(
                "leaves no way from one rail to another",
                where="pxn",
                got=False,
                expected="true, or spines that join rails",
                hint="leave rail_only out",
            )
        plain = {"num_spines": 1, "oversubscription": 1.0, "trunk": "ideal"}
        for name, value in plain.items():
            if not self.has_spines and getattr(self, name) != value:
                raise InputError(
                    "is of spines, and there are none",
                    where=name,
                    got=getattr(self, name),
                    expected="spines: more than one unit, or no rail_only",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class TorusSpec(FabricRecord):
    """A torus or, if no dimension wraps around, a mesh; devices are the vertices."""

    dimensions: tuple[int, ...]
    """Devices along each of 1 to 3 dimensions; the last one is numbered fastest."""

    wrap: tuple[bool, ...]
    """Whether the ends of each dimension are joined. Two devices are joined once, also
    if their dimension wraps around."""

    bandwidth: float
    """Bandwidth of one link between neighbours, per direction [byte/s]."""

    latency: float
    """Latency of one link between neighbours [s]."""

    efficiency: float = 1.0
    """Fraction of a link's bandwidth that traffic reaches."""

    @property
    def capacity(self) -> float:
        """What traffic reaches on one link, per direction [byte/s]."""
        return self.bandwidth * self.efficiency

    @property
    def kind(self) -> str:
        """``"torus"`` if any dimension wraps around, else ``"mesh"``."""
        return "torus" if any(self.wrap) else "mesh"

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return math.prod(self.dimensions)

    def __post_init__(self) -> None:
        if not 1 <= len(self.dimensions) <= 3:
            problem, expected = (
                "must have 1 to 3 entries",
                "1 to 3 sizes, e.g. [4, 8, 8]",
            )
            raise InputError(
                problem, where="dimensions", got=self.dimensions, expected=expected
            )
        for index, size in enumerate(self.dimensions):
            check_count(f"dimensions[{index}]", size)
        if len(self.wrap) != len(self.dimensions):
            raise InputError(
                "must have one entry per dimension",
                where="wrap",
                got=self.wrap,
                expected=f"{len(self.dimensions)} times true or false",
            )
        check_bandwidth("bandwidth", self.bandwidth)
        check_latency("latency", self.latency)
        check_efficiency("efficiency", self.efficiency)
        check_num_devices("dimensions", self.num_devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec(FabricRecord):
    """A network listed link by link in a file."""

    kind: ClassVar[str] = "custom"

    path: Path
    """TOML file of nodes and links, as `topologies.link_file` documents."""

    listed: LinkList | None = None
    """Links, where the file is another program's; None where it is such a TOML file."""

    def links(self) -> LinkList:
        """Return the links that the file lists."""
        return self.listed or read_link_file(self.path)

    @property
    def num_devices(self) -> int:
        """Devices that the file lists.

        Raises
        ------
        InputError
            If the file is wrong.
        """
        return self.links().num_devices

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, if the record does not have its links."""
        return () if self.listed else (self.path,)

    def without_folders(self) -> "CustomSpec":
        """Return the same record wherever the file lies."""
        return replace(self, path=Path("links"))

    def located(self, error: InputError, table: str) -> InputError:
        """Return an error of the file with the setting that names it."""
        return error.at(f"{table}.{'file' if self.listed else 'path'}", ": ")


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSpec(FabricRecord):
    """Devices of which nobody said how they are joined: enough to count memory."""

    kind: ClassVar[str] = "none"

    num_devices: int
    """How many there are."""

    def __post_init__(self) -> None:
        check_count("num_devices", self.num_devices)
        check_num_devices("num_devices", self.num_devices)


BasicSpec = (
    FatTreeSpec | SpineLeafSpec | RailSpec | TorusSpec | CustomSpec | DevicesSpec
)
"""What a network is built from whose parts are devices and switches."""
