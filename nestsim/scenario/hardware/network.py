"""The table [cluster.network].

Networks have one variant per kind, named as `topologies.specs` is. Transports that
links name are made into efficiencies and latencies here, so that all below the scenario
reads links alone.
"""

from itertools import accumulate, takewhile
from operator import mul
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from estimators.collectives.transports import Scope, transports
from nestsim.scenario.base import Table, input_file
from topologies.errors import MAX_RATIO, MIN_EFFICIENCY, MIN_RATIO, InputError, located
from topologies.joined_specs import MAX_SWITCHES, PodsSpec
from topologies.records import Trunk
from topologies.settings import Bandwidth, Count, Latency, NameChoice, Seed, Text
from topologies.specs import (
    BasicSpec,
    CustomSpec,
    FatTreeSpec,
    LevelSpec,
    RailSpec,
    SpineLeafSpec,
    TorusSpec,
)

Ratio = Annotated[float, Field(ge=MIN_RATIO, le=MAX_RATIO)]
"""Capacity from below over capacity upwards."""

Efficiency = Annotated[float, Field(ge=MIN_EFFICIENCY, le=1, examples=[0.9])]
"""Fraction of a link's bandwidth that collectives reach."""


def _names(scope: Scope) -> tuple[str, ...]:
    return tuple(
        name for name, transport in transports().items() if transport.scope == scope
    )


TransportName = Annotated[str, NameChoice(tuple(transports()))]
"""Table of `estimators/transports.toml`."""

NodeTransportName = Annotated[str, NameChoice(_names("node"))]
FabricTransportName = Annotated[str, NameChoice(_names("fabric"))]

Shape = Annotated[list[Count], Field(min_length=1, max_length=3)]
Wrap = Annotated[list[bool], Field(min_length=1, max_length=3)]


class Reached(NamedTuple):
    """What a link's transport says of it."""

    latency: float
    """At least [s]."""

    efficiency: float


def reached(name: str | None) -> Reached:
    """Return what a transport says of a link; nothing without one."""
    if name is None:
        return Reached(0.0, 1.0)
    transport = transports()[name]
    return Reached(transport.step / 2, transport.efficiency)


class LinkNames(NamedTuple):
    """Transports that a network's links name, as `estimators.software` keeps them."""

    node: tuple[tuple[int, str], ...] = ()
    fabric: str = ""


class PodsTable(Table):
    """Equal pods, each the network above, joined by a data-centre network."""

    count: Annotated[int, Field(ge=2, le=MAX_SWITCHES)] = Field(examples=[2])
    """Pods of the cluster."""

    nic_bandwidth: Bandwidth
    """Bandwidth of one adapter to the data-centre network, per direction [byte/s]."""

    nic_latency: Latency
    """Latency from a device to the switch of its pod, over the adapter [s]."""

    latency: Latency
    """Latency of the link from a pod's switch to the core of the data centre [s]."""

    devices_per_nic: Count = Field(1, examples=[4])
    """Devices in a row that share an adapter, those of one host."""

    oversubscription: Ratio = Field(1.0, examples=[2.0])
    """Bandwidth of a pod's adapters together over that of its link to the core."""

    nic_efficiency: Efficiency = 1.0
    """Fraction of the bandwidth between pods that collectives reach."""

    def build(self, pod: BasicSpec) -> PodsSpec:
        """Return the record for the builder."""
        values = self.model_dump(exclude={"count"})
        return PodsSpec(pod=pod, num_pods=self.count, **values)


class PodTable(Table):
    """A network that may be one pod of several."""

    kind: str
    """Name of this kind of network."""

    pods: PodsTable | None = None
    """What joins several of these networks, each a pod; left out, there is one."""


class LevelTable(Table):
    """One tier of switches of a fat-tree."""

    name: Text = Field(examples=["leaf"])
    """Name of the level, as people call it: "node", "leaf", "spine"."""

    fan_out: Count = Field(examples=[8])
    """Children of one switch: devices at the first level, blocks of the level below
    at the others."""

    latency: Latency
    """Latency of one child's link into the level's switch [s]."""

    bandwidth: Bandwidth | None = None
    """Bandwidth of one child's link into the level's switch, per direction [byte/s].
    Left out, it is what the child's own children have together, divided by the
    oversubscription of the level below. The first level must say."""

    oversubscription: Ratio | None = Field(None, examples=[2.0])
    """Bandwidth of the children's links together over that of the link to the level
    above: 2 for 2:1."""

    num_cables: Count | None = Field(None, examples=[8])
    """Cables that one child's link into the level's switch consists of, which ECMP
    tells apart. Left out, one where the bandwidth is given, else as many as the
    child's own children have, divided by the oversubscription."""

    efficiency: Efficiency | None = Field(None, examples=[0.9])
    """Fraction of the link's bandwidth that collectives reach. Left out, that of the
    transport, or 1."""

    transport: TransportName | None = Field(None, examples=["efa"])
    """Table of `estimators/transports.toml` that says what collective libraries reach
    on the level's links: the efficiency where `efficiency` is left out, and the time of
    a step from node to node, which the latencies of the two links make up at least.
    Levels with transports inside of nodes, such as "pcie-peer", are a node's own."""

    def build(self) -> LevelSpec:
        """Return the level for the builder."""
        found = reached(self.transport)
        return LevelSpec(
            name=self.name,
            fan_out=self.fan_out,
            latency=max(self.latency, found.latency),
            bandwidth=self.bandwidth,
            oversubscription=self.oversubscription,
            num_cables=self.num_cables,
            efficiency=found.efficiency if self.efficiency is None else self.efficiency,
        )


class SumsTable(Table):
    """What a node's switches do."""

    kind: str
    """Name of this kind of network."""

    nvls: bool = Field(False, examples=[True])
    """Whether a node's switches add up all-reduces and multicast the sums (NVLink
    SHARP): so NVSwitches do from Hopper on, those of H100, H200, B200 and GB200."""

    nvls_efficiency: Efficiency | None = Field(None, examples=[0.7])
    """Fraction of the bandwidth inside a node that sums in its switches reach. Left
    out, that of the node's transport, or as much as all else."""


class SwitchesTable(SumsTable):
    """What switches outside and inside of nodes do, of whatever network."""

    kind: str
    """Name of this kind of network."""

    trunk: Trunk = "ideal"
    """Whether parallel links of a switch act as one ("ideal": as where each packet
    takes the next one, "spraying", or the one with the shortest queue, "adaptive"), or
    are separate and a hash of source and target picks one at each level ("ecmp")."""

    ecmp_seed: Seed = 0
    """Seed of the hash that picks a cable with `trunk = "ecmp"`."""

    sharp: bool = Field(False, examples=[True])
    """Whether switches outside nodes add up all-reduces on their way (SHARP): each byte
    goes up once and comes down once, in a time that does not grow with the nodes."""


class NodeLinksTable(Table):
    """What collectives reach inside a node."""

    kind: str
    """Name of this kind of network."""

    node_latency: Latency
    """Latency of a device's link inside the node [s]."""

    node_efficiency: Efficiency | None = Field(None, examples=[0.8])
    """Fraction of the bandwidth inside the node that collectives reach. Left out, that
    of the transport, or 1."""

    node_transport: NodeTransportName | None = Field(None, examples=["nvswitch-h100"])
    """Table of `estimators/transports.toml` that says what collective libraries reach
    inside a node: the efficiency where `node_efficiency` is left out, and the latency
    at least."""


class TransportsTable(NodeLinksTable):
    """What collectives reach inside a node, and between nodes."""

    kind: str
    """Name of this kind of network."""

    nic_efficiency: Efficiency | None = Field(None, examples=[0.9])
    """Fraction of the NICs' bandwidth that collectives reach. Left out, that of the
    transport, or 1."""

    nic_transport: FabricTransportName | None = Field(None, examples=["efa"])
    """Table of `estimators/transports.toml` that says what collective libraries reach
    between nodes: the efficiency where `nic_efficiency` is left out, and the time of a
    step from node to node, which the latencies of two NICs make up at least."""


class NodesTable(TransportsTable):
    """Nodes of so many devices, and their NICs."""

    devices_per_node: Count = Field(examples=[8])
    """Devices of one node; behind rails also its NICs."""

    node_bandwidth: Bandwidth
    """Bandwidth of a device's link inside the node, per direction [byte/s]."""

    nic_bandwidth: Bandwidth
    """Bandwidth of one NIC, per direction [byte/s]."""

    nic_latency: Latency
    """Latency of the link from a NIC to its switch [s]."""


class SpinesTable(NodesTable, SwitchesTable, PodTable):
    """Nodes below leaf or rail switches below spines."""

    num_spines: Count = Field(1, examples=[2])
    """Spine switches, in rail-only networks of each rail; a leaf or rail switch has one
    link to each."""

    oversubscription: Ratio = Field(1.0, examples=[2.0])
    """Bandwidth of a leaf's or rail switch's links to NICs together over that of its
    links to spines together: 2 for 2:1."""

    spine_efficiency: Efficiency = 1.0
    """Fraction of the bandwidth of links to spines that collectives reach."""


class FatTreeTable(SwitchesTable, PodTable):
    """A tree of switches."""

    kind: Literal["fat-tree"]
    """Name of this kind of network."""

    levels: list[LevelTable] = Field(min_length=1, max_length=16)
    """The tiers of switches, from the inside out."""

    nic: Literal["node", "device"] = "node"
    """Whether the devices of a node share one link out of the node, or have one
    each."""

    def build(self) -> BasicSpec:
        """Return the record for the builder."""
        levels = []
        for index, level in enumerate(self.levels):
            with located(f"levels[{index}]"):
                levels.append(level.build())
        return FatTreeSpec(
            levels=tuple(levels),
            nic=self.nic,
            trunk=self.trunk,
            ecmp_seed=self.ecmp_seed,
            node_levels=max(1, self._node_levels()),
            sharp=self.sharp,
            nvls=self.nvls,
            nvls_efficiency=sums_efficiency(self, self.levels[0].transport),
        )

    def _node_levels(self) -> int:
        """Return how many levels are a node's own, by their transports."""
        inside = (_is_inside(level.transport) for level in self.levels)
        return sum(1 for _ in takewhile(bool, inside))

    def link_names(self) -> LinkNames:
        """Return the transports that the levels name."""
        sizes = accumulate((level.fan_out for level in self.levels), mul)
        names = [level.transport for level in self.levels]
        count = self._node_levels()
        node = tuple(zip(sizes, (str(name) for name in names[:count]), strict=False))
        fabric = (name for name in names[count:] if name and not _is_inside(name))
        return LinkNames(node, next(fabric, ""))


def _is_inside(name: str | None) -> bool:
    return name is not None and transports()[name].scope == "node"


class SpineLeafTable(SpinesTable):
    """Nodes below leaf switches below spines."""

    kind: Literal["spine-leaf"]
    """Name of this kind of network."""

    nodes_per_leaf: Count = Field(examples=[4])
    """Nodes below one leaf switch."""

    num_leaves: Count = Field(examples=[4])
    """Leaf switches of the network."""

    spine_latency: Latency
    """Latency of a link from a leaf to a spine [s]."""

    nic: Literal["device", "node"] = "device"
    """Whether every device has a NIC, or a node's devices share one."""

    def build(self) -> BasicSpec:
        """Return the record for the builder."""
        values = with_transports(self)
        values["nvls_efficiency"] = sums_efficiency(self, self.node_transport)
        return SpineLeafSpec(**values)


class RailTable(SpinesTable):
    """Rail-optimised nodes: equal local ranks of a scalable unit share a switch."""

    kind: Literal["rail"]
    """Name of this kind of network."""

    nodes_per_unit: Count = Field(examples=[32])
    """Nodes of a scalable unit: what one rail switch joins."""

    num_units: Count = Field(examples=[4])
    """Scalable units of the cluster."""

    spine_latency: Latency | None = None
    """Latency of a link from a rail switch to a spine [s]. Needed where there are
    spines: everywhere but in rail-only networks of one unit."""

    pxn: bool = Field(True, examples=[True])
    """Whether traffic for another local rank first crosses the sender's node to the
    device on the receiver's rail (NCCL's PXN). If not, it goes through the spine."""

    rail_only: bool = Field(False, examples=[True])
    """Whether nothing joins rails but the nodes: each rail has spines of its own, or
    none where one rail switch joins all nodes (`num_units = 1`)."""

    def build(self) -> BasicSpec:
        """Return the record for the builder."""
        if self.spine_latency is None and (self.num_units > 1 or not self.rail_only):
            raise InputError(
                "is missing",
                where="spine_latency",
                expected='a latency, e.g. "1 us"',
                hint="only rail-only networks of one unit have no spines",
            )
        values = with_transports(self)
        values["nvls_efficiency"] = sums_efficiency(self, self.node_transport)
        values["spine_latency"] = self.spine_latency or 0.0
        return RailSpec(**values)


def with_transports(table: NodeLinksTable) -> dict[str, Any]:
    """Return the values of a table, and what its transports say where it does not."""
    values = table.model_dump(
        exclude={"kind", "pods", "node_transport", "nic_transport"}
    )
    links = [("node", table.node_transport)]
    if isinstance(table, TransportsTable):
        links.append(("nic", table.nic_transport))
    for part, name in links:
        found = reached(name)
        latency, efficiency = f"{part}_latency", f"{part}_efficiency"
        values[latency] = max(values[latency], found.latency)
        if values[efficiency] is None:
            values[efficiency] = found.efficiency
    return values


def sums_efficiency(table: SumsTable, transport: str | None) -> float | None:
    """Return what sums in a node's switches reach, as said or as its transport has it.

    Raises
    ------
    InputError
        If the transport is of switches that add up nothing.
    """
    if not table.nvls or table.nvls_efficiency is not None or transport is None:
        return table.nvls_efficiency
    found = transports()[transport].multicast_efficiency
    if not found:
        raise InputError(
            f"switches of {transport} add up nothing",
            where="nvls",
            got=True,
            expected="NVSwitches from Hopper on, e.g. nvswitch-h100",
        )
    return found


class GridTable(PodTable):
    """Devices in a line, a grid or a cube, each joined to its neighbours."""

    kind: Literal["torus", "mesh"]
    """Name of this kind of network: a torus joins the ends of its dimensions, a mesh
    does not."""

    dimensions: Shape = Field(examples=[[4, 8, 8]])
    """Devices along each of 1 to 3 dimensions; the last is numbered fastest."""

    wrap: Wrap | None = Field(None, examples=[[True, True, False]])
    """For each dimension of a torus, whether its ends are joined. Left out, all
    dimensions of a torus wrap around, and none of a mesh."""

    bandwidth: Bandwidth
    """Bandwidth of one link between neighbours, per direction [byte/s]."""

    latency: Latency
    """Latency of one link between neighbours [s]."""

    efficiency: Efficiency = 1.0
    """Fraction of a link's bandwidth that collectives reach."""

    def build(self) -> BasicSpec:
        """Return the record for the builder."""
        joined = self.kind == "torus"
        wrap = [joined] * len(self.dimensions) if self.wrap is None else self.wrap
        if any(wrap) != joined:
            raise InputError(
                f"does not go with kind {self.kind}",
                where="wrap",
                got=wrap,
                expected="true for one dimension of a torus at least, none of a mesh",
                hint=f'write kind = "{"mesh" if joined else "torus"}"',
            )
        return TorusSpec(
            dimensions=tuple(self.dimensions),
            wrap=tuple(wrap),
            bandwidth=self.bandwidth,
            latency=self.latency,
            efficiency=self.efficiency,
        )


class CustomTable(PodTable):
    """A network listed link by link in a file."""

    kind: Literal["custom"]
    """Name of this kind of network."""

    path: Text = Field(examples=["links.toml"])
    """File with the devices, switches and links, relative to the scenario's folder."""

    def build(self, folder: Path) -> BasicSpec:
        """Return the record for the builder.

        Parameters
        ----------
        folder
            The scenario file's.
        """
        expected = "a TOML file of links, relative to the scenario's folder"
        return CustomSpec(path=input_file(folder, self.path, "path", expected))
