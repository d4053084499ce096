"""Records of networks that join equal parts: pods, dragonflies, HyperX.

All of them are copies of one network, each with a way out, and a graph of switches that
the ways lead into: a data-centre network between pods, groups of switches that are
joined all to all, or switches that are joined all to all along each dimension.

References
----------
.. [1] J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable
   Dragonfly Topology", ISCA 2008: ``p`` terminals, ``a`` switches of a group, ``h``
   global links of a switch, ``g`` groups, ``g <= a h + 1``; minimal and Valiant's
   routing, the latter to a random group in between.
.. [2] A. Shpiner et al., "Dragonfly+: Low Cost Topology for Scaling Datacenters",
   HiPINEB 2017: groups of leaves and spines, global links between spines.
.. [3] J. H. Ahn, N. Binkert, A. Davis, M. McLaren, R. S. Schreiber, "HyperX: Topology,
   Routing, and Packaging of Efficient Large-Scale Networks", SC 2009: ``L`` dimensions
   of ``S_k`` switches, joined by links of relative bandwidth ``K_k``, ``T`` terminals.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, Self

from topologies.errors import (
    InputError,
    check_bandwidth,
    check_choice,
    check_count,
    check_efficiency,
    check_latency,
    check_ratio,
)
from topologies.records import FabricRecord, Tiers, Ways, check_num_devices
from topologies.specs import BasicSpec, FatTreeSpec

MAX_SWITCHES = 2048
"""Most switches of a graph: the distance of every two of them is kept."""

PathChoice = Literal["minimal", "valiant"]
"""Whether routes are shortest, or go by a part in between that a hash picks."""


def check_num_switches(where: str, value: int) -> None:
    """Refuse a graph of more than `MAX_SWITCHES`, or of one."""
    if not 2 <= value <= MAX_SWITCHES:
        expected = f"2 to {MAX_SWITCHES} of them"
        raise InputError(
            "wrong number of switches", where=where, got=value, expected=expected
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSpec(FabricRecord):
    """Equal pods, each a network of its own, joined by a data-centre network.

    Between pods traffic goes through adapters that are no part of the pod's network.
    """

    kind: ClassVar[str] = "pods"

    pod: BasicSpec
    """One pod."""

    num_pods: int
    """Number of pods, 2 or more."""

    nic_bandwidth: float
    """Bandwidth of one adapter to the data-centre network, per direction [byte/s]."""

    nic_latency: float
    """Latency from a device to the switch of its pod [s]."""

    latency: float
    """Latency of the link from a pod's switch to the core of the data centre [s]."""

    devices_per_nic: int = 1
    """Devices in a row that share an adapter, those of one host."""

    oversubscription: float = 1.0
    """Bandwidth of a pod's adapters over that of the pod's link to the core."""

    nic_efficiency: float = 1.0
    """Fraction of the bandwidth between pods that traffic reaches."""

    def __post_init__(self) -> None:
        check_num_switches("count", self.num_pods)
        check_bandwidth("nic_bandwidth", self.nic_bandwidth)
        check_latency("nic_latency", self.nic_latency)
        check_latency("latency", self.latency)
        check_count("devices_per_nic", self.devices_per_nic)
        check_ratio("oversubscription", self.oversubscription)
        check_efficiency("nic_efficiency", self.nic_efficiency)
        check_num_devices("count", self.num_devices)
        if self.pod.num_devices % self.devices_per_nic:
            raise InputError(
                "does not divide a pod",
                where="devices_per_nic",
                got=self.devices_per_nic,
                expected=f"a divisor of {self.pod.num_devices} devices",
            )

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.num_pods * self.pod.num_devices

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that say more than the record does: the pod's."""
        return self.pod.files

    def without_folders(self) -> Self:
        """Return the same record wherever its files lie."""
        return replace(self, pod=self.pod.without_folders())

    def located(self, error: InputError, table: str) -> InputError:
        """Return an error of the network with the setting of a table that it is of."""
        return self.pod.located(error, table)

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return pods whose networks have separate cables, picked by a hash."""
        return replace(self, pod=self.pod.with_ecmp_seed(seed))

    def with_oversubscription(self, tiers: Tiers, number: int, ratio: float) -> Self:
        """Return the network with other links up: between pods, or inside of each.

        The last tier but one is the pod's adapters.
        """
        inside = len(tiers) - 2
        if number >= inside:
            return replace(self, oversubscription=ratio)
        if number == inside - 1:
            return FabricRecord.with_oversubscription(self, tiers, number, ratio)
        pod = self.pod.with_oversubscription(tiers[:inside], number, ratio)
        return replace(self, pod=pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SwitchGraphRecord(FabricRecord):
    """Switches with the nodes below them, joined among each other."""

    below: FatTreeSpec
    """What stands below one switch, the outermost level being the switch's."""

    routing: PathChoice = "minimal"
    """``"minimal"``: shortest routes, with the fewest global links. ``"valiant"``: a
    hash of source and target picks a group in between, or a switch in HyperX."""

    trunk: Ways = "ideal"
    """``"ideal"``: pairs of switches take turns over equally short ways. ``"ecmp"``: a
    hash of the two devices picks one at each switch."""

    ecmp_seed: int = 0
    """Seed of the hash."""

    efficiency: float = 1.0
    """Fraction of the bandwidth of links between switches that traffic reaches."""

    def with_ecmp_seed(self, seed: int) -> Self:
        """Return the network whose ways are picked by a hash of this seed."""
        return replace(self, trunk="ecmp", ecmp_seed=seed)

    def check_graph(self) -> None:
        """Refuse values that neither kind can have."""
        check_choice("routing", self.routing, ("minimal", "valiant"))
        check_choice("trunk", self.trunk, ("ideal", "ecmp"))
        check_efficiency("efficiency", self.efficiency)


@dataclass(frozen=True, slots=True, kw_only=True)
class DragonflySpec(_SwitchGraphRecord):
    """Groups of switches, joined all to all by global links [1]_ [2]_."""

    switches_per_group: int
    """Switches of a group that have nodes, ``a``: leaves where there are spines."""

    num_groups: int
    """Groups, ``g``, 2 or more."""

    global_links: int
    """Global links of a switch, ``h``, or of a spine. The same number joins every two
    groups; what is left over stays unused."""

    local_bandwidth: float
    """Bandwidth of a link inside a group, per direction [byte/s]."""

    local_latency: float
    """Latency of a link inside a group [s]."""

    global_bandwidth: float
    """Bandwidth of a global link, per direction [byte/s]."""

    global_latency: float
    """Latency of a global link [s]."""

    spines_per_group: int = 0
    """Spines of a group: a leaf is joined to each of them, and they have the global
    links. None: a dragonfly, whose switches of a group are joined all to all."""

    @property
    def kind(self) -> str:
        """``"dragonfly+"`` with spines, else ``"dragonfly"``."""
        return "dragonfly+" if self.spines_per_group else "dragonfly"

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.below.num_devices * self.switches_per_group * self.num_groups

    @property
    def num_routers(self) -> int:
        """Switches of a group that have global links."""
        return self.spines_per_group or self.switches_per_group

    @property
    def links_between_groups(self) -> int:
        """Global links that join two groups."""
        return self.num_routers * self.global_links // (self.num_groups - 1)

    def __post_init__(self) -> None:
        self.check_graph()
        for name in ("switches_per_group", "num_groups", "global_links"):
            check_count(name, getattr(self, name))
        for name in ("local_bandwidth", "global_bandwidth"):
            check_bandwidth(name, getattr(self, name))
        for name in ("local_latency", "global_latency"):
            check_latency(name, getattr(self, name))
        check_num_devices("num_groups", self.num_devices)
        size = self.switches_per_group + self.spines_per_group
        check_num_switches("num_groups", self.num_groups * size)
        if not 2 <= self.num_groups <= self.num_routers * self.global_links + 1:
            raise InputError(
                "groups cannot be joined all to all",
                where="num_groups",
                got=self.num_groups,
                expected=f"2 to {self.num_routers * self.global_links + 1}, one more "
                "than a group has global links",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperXSpec(_SwitchGraphRecord):
    """Switches on a grid, those of each line joined all to all [3]_, or in a ring."""

    dimensions: tuple[int, ...]
    """Switches along each dimension, ``S_k``; the last is numbered fastest."""

    bandwidths: tuple[float, ...]
    """Bandwidth between two switches of a line, by dimension, per direction
    [byte/s]."""

    latency: float
    """Latency of a link between switches [s]."""

    num_cables: int = 1
    """Cables that a link between two switches consists of, for counts alone."""

    rings: bool = False
    """Whether lines are rings and not joined all to all: a torus of switches."""

    @property
    def kind(self) -> str:
        """``"node-torus"`` with rings, else ``"hyperx"``."""
        return "node-torus" if self.rings else "hyperx"

    @property
    def num_devices(self) -> int:
        """Devices of the cluster."""
        return self.below.num_devices * math.prod(self.dimensions)

    def __post_init__(self) -> None:
        self.check_graph()
        for index, size in enumerate(self.dimensions):
            if size < 2:
                raise InputError(
                    "joins nothing",
                    where=f"dimensions[{index}]",
                    got=size,
                    expected="2 switches or more",
                    hint="leave the dimension out",
                )
        if len(self.bandwidths) != len(self.dimensions):
            raise InputError(
                "must have one entry per dimension",
                where="bandwidths",
                got=len(self.bandwidths),
                expected=f"{len(self.dimensions)} bandwidths",
            )
        for index, bandwidth in enumerate(self.bandwidths):
            check_bandwidth(f"bandwidths[{index}]", bandwidth)
        check_latency("latency", self.latency)
        check_count("num_cables", self.num_cables)
        check_num_switches("dimensions", math.prod(self.dimensions))
        check_num_devices("dimensions", self.num_devices)


NetworkSpec = BasicSpec | DragonflySpec | HyperXSpec | PodsSpec
"""What any network is built from."""
