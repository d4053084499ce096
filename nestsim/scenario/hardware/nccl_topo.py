"""The kind "nccl-topo" of [cluster.network]: a node as NCCL saw it, many times."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nestsim.scenario.base import input_file
from nestsim.scenario.hardware.described import DescribedNetwork, level_table
from nestsim.scenario.hardware.network import (
    FatTreeTable,
    LevelTable,
    NodeTransportName,
    RailTable,
    Ratio,
    TransportsTable,
)
from topologies.errors import InputError, located
from topologies.readers.nccl_topo import InsideOptions, NodeInside, read_nccl_topo
from topologies.settings import Bandwidth, Count, Distinct, Latency, Text
from topologies.units import format_bandwidth


class NcclTopoTable(TransportsTable):
    """Nodes as NCCL saw one of them; what joins the nodes is said here."""

    kind: Literal["nccl-topo"]
    """Name of this kind of network."""

    file: Text = Field(examples=["node.xml"])
    """What NCCL wrote to `NCCL_TOPO_DUMP_FILE` on one node, relative to the scenario's
    folder: its GPUs, NVLinks, tree of PCIe and adapters."""

    num_nodes: Count = Field(1, examples=[16])
    """Nodes of the cluster, all alike."""

    nic_latency: Latency | None = Field(None, examples=["3 us"])
    """Latency of the link from an adapter to its switch [s]. Needed with several
    nodes."""

    fabric: Literal["fat-tree", "rail"] = "fat-tree"
    """What joins the nodes: a tree in which leaf switches join whole nodes, or rails,
    in which equal local ranks share a switch."""

    nodes_per_leaf: Count | None = Field(None, examples=[4])
    """Nodes below one leaf switch, or of a scalable unit of rails. Left out, all."""

    spine_latency: Latency | None = Field(None, examples=["1 us"])
    """Latency of a link from a leaf or rail switch to a spine [s]. Left out, that of an
    adapter's link."""

    oversubscription: Ratio = Field(1.0, examples=[2.0])
    """Bandwidth of a leaf's or rail switch's links downwards over that of its links to
    spines: 2 for 2:1."""

    nics: Distinct[Text] | None = Field(None, examples=[["mlx5_0", "mlx5_1"]])
    """Adapters that are used. Left out, the fastest ones."""

    nic_bandwidth: Bandwidth | None = Field(None, examples=["400 Gbit/s"])
    """Bandwidth of one adapter, per direction [byte/s]. Left out, its speed in the
    file, or that of its PCIe slot if that is less."""

    nvlink_bandwidth: Bandwidth | None = Field(None, examples=["25 GB/s"])
    """Bandwidth of one NVLink or xGMI link, per direction [byte/s]. Left out, that of
    the GPU's generation."""

    socket_bandwidth: Bandwidth | None = Field(None, examples=["40 GB/s"])
    """Bandwidth of the link between two processors, per direction [byte/s]. Left out,
    what NCCL takes for such processors. Counts where PCIe joins the GPUs."""

    node_transport: NodeTransportName | None = Field(None, examples=["nvswitch-h100"])
    """Table of `estimators/transports.toml` that says what collective libraries reach
    inside a node: the efficiency where `node_efficiency` is left out, and the latency
    at least. Left out, "nvlink-pair" and "pcie-peer" in nodes of several tiers."""

    def read(self, folder: Path) -> DescribedNetwork:
        """Return the network of the file and the settings.

        Parameters
        ----------
        folder
            The scenario file's.

        Raises
        ------
        InputError
            If the file is wrong, or does not go with the settings.
        """
        expected = "what NCCL wrote to NCCL_TOPO_DUMP_FILE"
        path = input_file(folder, self.file, "file", expected)
        options = InsideOptions(
            link_bandwidth=self.nvlink_bandwidth,
            socket_bandwidth=self.socket_bandwidth,
            nics=tuple(self.nics or ()),
        )
        with located("file", ": "):
            node = read_nccl_topo(path, options)
        assumed = [self._said(node), *node.assumed]
        if self.num_nodes == 1:
            table = FatTreeTable.model_construct(
                kind="fat-tree", levels=self.inside(node)
            )
            return DescribedNetwork(table, tuple(assumed))
        fabric = _Fabric(self, node)
        found = fabric.rails() if self.fabric == "rail" else fabric.tree()
        return DescribedNetwork(found, (*assumed, fabric.said()))

    def inside(self, node: NodeInside) -> list[LevelTable]:
        """Return the levels inside a node."""
        several = len(node.tiers) > 1
        levels = []
        for tier in node.tiers:
            usual = "nvlink-pair" if tier.is_nvlink else "pcie-peer"
            rates = {"bandwidth": tier.bandwidth, "latency": self.node_latency}
            said = {
                "efficiency": self.node_efficiency,
                "transport": self.node_transport or (usual if several else None),
            }
            levels.append(level_table(tier.name, tier.fan_out, rates, said))
        return levels

    def _said(self, node: NodeInside) -> str:
        """Say what the file tells of the node."""
        tiers = ", ".join(
            f"{tier.fan_out} x {format_bandwidth(tier.bandwidth)} "
            f"({'NVLink' if tier.is_nvlink else 'PCIe'})"
            for tier in node.tiers
        )
        words = f"node of {self.file}: {node.num_gpus} GPUs; {tiers}"
        if len(node.tiers) > 1 and self.node_transport is None:
            words += "; collectives inside it reach what nvlink-pair and pcie-peer say"
        return words


class _Fabric:
    """What joins nodes.

    Parameters
    ----------
    table
        The settings.
    node
        What a node consists of.
    """

    def __init__(self, table: NcclTopoTable, node: NodeInside) -> None:
        self.table, self.node = table, node
        latency = table.nic_latency
        if latency is None:
            raise InputError(
                "setting is missing",
                where="nic_latency",
                expected='needed with several nodes, e.g. "3 us"',
            )
        if not node.nics:
            raise InputError(
                "has no network adapters",
                where="file",
                got=table.file,
                expected="elements <net ..> with a speed",
            )
        self.latency = latency
        self.per_leaf = table.nodes_per_leaf or table.num_nodes
        if table.num_nodes % self.per_leaf:
            raise InputError(
                "does not divide the nodes",
                where="nodes_per_leaf",
                got=self.per_leaf,
                expected=f"a divisor of num_nodes, {table.num_nodes}",
            )
        given = table.nic_bandwidth
        self.rates = [given or nic.bandwidth for nic in node.nics]

    @property
    def _per_device(self) -> bool:
        """Whether every device has as many adapters as every other."""
        return len(self.rates) % self.node.num_gpus == 0

    @property
    def _of_device(self) -> float:
        """Adapters of one device together [byte/s]."""
        return sum(self.rates) / self.node.num_gpus

    def tree(self) -> FatTreeTable:
        """Return nodes below leaves below spines."""
        table = self.table
        own = self._per_device and len(self.node.tiers) == 1
        said = {"efficiency": table.nic_efficiency, "transport": table.nic_transport}
        rates = {
            "bandwidth": self._of_device if own else sum(self.rates),
            "latency": self.latency,
        }
        num_leaves = table.num_nodes // self.per_leaf
        over: dict[str, Any] = {}
        if num_leaves > 1:
            over["oversubscription"] = table.oversubscription
        levels = [
            *table.inside(self.node),
            level_table("leaf", self.per_leaf, rates, said, over),
        ]
        if num_leaves > 1:
            above = {"latency": self._spine_latency()}
            levels.append(level_table("spine", num_leaves, above, said))
        return FatTreeTable.model_construct(
            kind="fat-tree", levels=levels, nic="device" if own else "node"
        )

    def rails(self) -> RailTable:
        """Return rail-optimised units."""
        table, tiers = self.table, self.node.tiers
        if not self._per_device or len(tiers) > 1:
            raise InputError(
                "needs nodes that NVLink joins, with an adapter for each GPU",
                where="fabric",
                got=f"{len(self.rates)} adapters of {self.node.num_gpus} GPUs"
                + (f", {len(tiers)} tiers" if len(tiers) > 1 else ""),
                expected='fabric = "fat-tree"',
            )
        given: dict[str, Any] = {
            "node_efficiency": table.node_efficiency,
            "nic_efficiency": table.nic_efficiency,
            "node_transport": table.node_transport,
            "nic_transport": table.nic_transport,
        }
        return RailTable.model_construct(
            kind="rail",
            devices_per_node=self.node.num_gpus,
            node_bandwidth=tiers[0].bandwidth,
            node_latency=table.node_latency,
            nodes_per_unit=self.per_leaf,
            num_units=table.num_nodes // self.per_leaf,
            nic_bandwidth=self._of_device,
            nic_latency=self.latency,
            spine_latency=self._spine_latency(),
            oversubscription=table.oversubscription,
            **{name: one for name, one in given.items() if one is not None},
        )

    def said(self) -> str:
        """Say which adapters belong to which devices."""
        nics = self.node.nics
        near = "; ".join(
            f"{nic.name} nearest to GPU {', '.join(map(str, nic.nearest))}"
            for nic in nics[:8]
            if len(nic.nearest) < self.node.num_gpus
        )
        whose = "as many for each GPU" if self._per_device else "shared by the GPUs"
        words = (
            f"adapters: {len(nics)}, {format_bandwidth(sum(self.rates))} "
            f"together, {whose}"
        )
        return f"{words}: {near}" if near else words

    def _spine_latency(self) -> float:
        given = self.table.spine_latency
        return self.latency if given is None else given
