"""Tables of [cluster.network] for switches that are joined among each other."""

from typing import Annotated, Literal

from pydantic import Field

from nestsim.scenario.hardware.network import (
    Efficiency,
    NodeLinksTable,
    NodesTable,
    SumsTable,
    sums_efficiency,
    with_transports,
)
from topologies.errors import InputError
from topologies.joined_specs import DragonflySpec, HyperXSpec, NetworkSpec, PathChoice
from topologies.records import Ways
from topologies.settings import Bandwidth, Count, Latency, Seed
from topologies.specs import FatTreeSpec, LevelSpec

Lines = Annotated[list[Count], Field(min_length=1, max_length=4)]
"""Switches along each dimension of a grid."""


class GraphTable(SumsTable):
    """How routes go from switch to switch."""

    kind: str
    """Name of this kind of network."""

    routing: PathChoice = "minimal"
    """Whether routes are shortest, with the fewest global links, or go by a group that
    a hash of source and target picks, in HyperX by a switch (Valiant)."""

    trunk: Ways = "ideal"
    """Whether pairs of switches take turns over equally short ways, or a hash of source
    and target picks one at each switch."""

    ecmp_seed: Seed = 0
    """Seed of the hash that picks with `trunk = "ecmp"` or `routing = "valiant"`."""

    efficiency: Efficiency = 1.0
    """Fraction of the bandwidth of links between switches that collectives reach."""


class SwitchNodesTable(GraphTable, NodesTable):
    """Nodes below one switch of many."""

    kind: str
    """Name of this kind of network."""

    nodes_per_switch: Count = Field(examples=[2])
    """Nodes below one switch, a leaf where there are spines."""

    nic: Literal["device", "node"] = "device"
    """Whether every device has a NIC, or a node's devices share one."""

    def below(self) -> FatTreeSpec:
        """Return what stands below one switch."""
        values = with_transports(self)
        switch = LevelSpec(
            name="switch",
            fan_out=self.nodes_per_switch,
            latency=values["nic_latency"],
            bandwidth=self.nic_bandwidth,
            efficiency=values["nic_efficiency"],
        )
        return FatTreeSpec(
            levels=(_node_level(self), switch),
            nic=self.nic,
            nvls=self.nvls,
            nvls_efficiency=sums_efficiency(self, self.node_transport),
        )


class DragonflyTable(SwitchNodesTable):
    """Groups of switches, joined all to all by global links."""

    kind: Literal["dragonfly", "dragonfly+"]
    """Name of this kind of network: switches of a group are joined all to all, or
    (dragonfly+) leaves to spines, which have the global links."""

    switches_per_group: Count = Field(examples=[4])
    """Switches of a group that have nodes below them."""

    num_groups: Count = Field(examples=[9])
    """Groups of the network, at most one more than a group has global links."""

    global_links: Count = Field(examples=[2])
    """Global links of a switch, or of a spine. Every two groups have equally many; what
    is left over stays unused."""

    spines_per_group: Count | None = Field(None, examples=[4])
    """Spines of a group of a dragonfly+."""

    local_bandwidth: Bandwidth
    """Bandwidth of a link inside a group, per direction [byte/s]."""

    local_latency: Latency
    """Latency of a link inside a group [s]."""

    global_bandwidth: Bandwidth
    """Bandwidth of a global link, per direction [byte/s]."""

    global_latency: Latency
    """Latency of a global link [s]."""

    def build(self) -> NetworkSpec:
        """Return the record for the builder.

        Raises
        ------
        InputError
            If spines do not go with the kind.
        """
        if (self.spines_per_group is None) != (self.kind == "dragonfly"):
            has = self.kind == "dragonfly+"
            raise InputError(
                "is missing" if has else f"does not go with kind {self.kind}",
                where="spines_per_group",
                got=self.spines_per_group,
                expected="spines of a group" if has else "none",
                hint=f'write kind = "dragonfly{"" if has else "+"}"',
            )
        return DragonflySpec(
            below=self.below(),
            routing=self.routing,
            trunk=self.trunk,
            ecmp_seed=self.ecmp_seed,
            efficiency=self.efficiency,
            switches_per_group=self.switches_per_group,
            num_groups=self.num_groups,
            global_links=self.global_links,
            spines_per_group=self.spines_per_group or 0,
            local_bandwidth=self.local_bandwidth,
            local_latency=self.local_latency,
            global_bandwidth=self.global_bandwidth,
            global_latency=self.global_latency,
        )


class HyperXTable(SwitchNodesTable):
    """Switches on a grid, those of each line joined all to all."""

    kind: Literal["hyperx"]
    """Name of this kind of network."""

    dimensions: Lines = Field(examples=[[4, 4]])
    """Switches along each dimension; the last is numbered fastest."""

    bandwidths: Annotated[list[Bandwidth], Field(min_length=1, max_length=4)] = Field(
        examples=[["400 Gbit/s", "400 Gbit/s"]]
    )
    """Bandwidth between two switches of a line, of each dimension, per direction
    [byte/s]."""

    latency: Latency
    """Latency of a link between switches [s]."""

    def build(self) -> NetworkSpec:
        """Return the record for the builder."""
        return HyperXSpec(
            below=self.below(),
            routing=self.routing,
            trunk=self.trunk,
            ecmp_seed=self.ecmp_seed,
            efficiency=self.efficiency,
            dimensions=tuple(self.dimensions),
            bandwidths=tuple(self.bandwidths),
            latency=self.latency,
        )


class NodeTorusTable(GraphTable, NodeLinksTable):
    """Nodes of devices, their switches joined in a torus."""

    kind: Literal["node-torus"]
    """Name of this kind of network."""

    devices_per_node: Count = Field(examples=[4])
    """Devices of one node."""

    node_bandwidth: Bandwidth
    """Bandwidth of a device's link inside the node, per direction [byte/s]."""

    dimensions: Lines = Field(examples=[[4, 4]])
    """Nodes along each dimension; the last is numbered fastest."""

    bandwidth: Bandwidth
    """Bandwidth between two neighbouring nodes, per direction [byte/s]."""

    latency: Latency
    """Latency of a link between neighbouring nodes [s]."""

    num_cables: Count = Field(1, examples=[4])
    """Cables that a link between neighbouring nodes consists of, for counts of ports
    and cables alone."""

    def build(self) -> NetworkSpec:
        """Return the record for the builder."""
        return HyperXSpec(
            below=FatTreeSpec(
                levels=(_node_level(self),),
                nvls=self.nvls,
                nvls_efficiency=sums_efficiency(self, self.node_transport),
            ),
            routing=self.routing,
            trunk=self.trunk,
            ecmp_seed=self.ecmp_seed,
            efficiency=self.efficiency,
            dimensions=tuple(self.dimensions),
            bandwidths=(self.bandwidth,) * len(self.dimensions),
            latency=self.latency,
            num_cables=self.num_cables,
            rings=True,
        )


def _node_level(table: SwitchNodesTable | NodeTorusTable) -> LevelSpec:
    """Return what joins the devices of a node."""
    values = with_transports(table)
    return LevelSpec(
        name="node",
        fan_out=table.devices_per_node,
        latency=values["node_latency"],
        bandwidth=table.node_bandwidth,
        efficiency=values["node_efficiency"],
    )
