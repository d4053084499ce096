"""Networks that another program's file describes, as tables of [cluster.network].

What such a file does not say stands in settings beside it. Together they become a table
of `nestsim.scenario.hardware.network`, the same that people would have written, or a
list of links where no such table has the network's form. What was assumed is said.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from nestsim.scenario.base import Table, input_file
from nestsim.scenario.hardware.kinds import NetworkTable
from nestsim.scenario.hardware.network import (
    FatTreeTable,
    LevelTable,
    NodesTable,
    Ratio,
    reached,
)
from topologies.errors import InputError, located
from topologies.readers.infragraph import InfraOptions, read_infragraph
from topologies.readers.link_collector import TreeRates, tree_links
from topologies.readers.slurm import SlurmTopology, read_slurm
from topologies.settings import Bandwidth, Latency, Text
from topologies.specs import CustomSpec

MAX_DESCRIBED = 2_000_000
"""Longest file of another program that describes a network [byte]."""

NETWORK_FILES = ("path", "file")
"""Settings of [cluster.network] that name a file, relative to the scenario's folder."""


def with_whole_paths(network: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a table [cluster.network] whose files are found from any folder.

    Parameters
    ----------
    network
        The table, as it is written.
    folder
        Of the file that it stands in.
    """
    named = {
        name: str(folder.resolve() / network[name])
        for name in NETWORK_FILES
        if isinstance(network.get(name), str)
    }
    return {**network, **named}


class DescribedNetwork(NamedTuple):
    """A network as a scenario could have said it."""

    network: NetworkTable | CustomSpec
    """Table of the network, or its links where no table has its form."""

    assumed: tuple[str, ...]
    """Sentences on what the file does not say, or says and does not count."""


class SlurmTable(NodesTable):
    """The switches that Slurm knows; how fast they are is said here."""

    kind: Literal["slurm"]
    """Name of this kind of network."""

    file: Text = Field(examples=["topology.conf"])
    """A `topology.conf` or `topology.yaml` of Slurm, relative to the scenario's folder:
    switches (plugin topology/tree) or blocks (plugin topology/block)."""

    topology: Text | None = Field(None, examples=["gpu-fabric"])
    """Which topology of a `topology.yaml`. Left out, its default, or its only one."""

    nodes: str | None = Field(
        None, min_length=1, max_length=100_000, examples=["node[001-032]"]
    )
    """Nodes that take part, as Slurm writes them. Left out, all. Switches that join
    none of them are left out, and those at the top that join one switch alone."""

    nic: Literal["device", "node"] = "device"
    """Whether every device has a NIC, or a node's devices share one."""

    switch_latency: Latency | None = Field(None, examples=["1 us"])
    """Latency of a link between switches [s]. Left out, that of a NIC's link."""

    oversubscription: list[Ratio] = Field([], max_length=16, examples=[[1.0, 2.0]])
    """Bandwidth of a switch's links downwards over that of its links upwards, for each
    level of switches from the nodes outwards: 2 for 2:1. Levels that are left out have
    1; the switch at the top has no links up."""

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
        path = input_file(folder, self.file, "file", "a topology.conf of Slurm")
        with located("file", ": "):
            found = read_slurm(
                path, topology=self.topology or "", nodes=self.nodes or ""
            )
        num_levels = len(found.level_names)
        if len(self.oversubscription) >= num_levels:
            raise InputError(
                "has more levels than there are below the switch at the top",
                where="oversubscription",
                got=self.oversubscription,
                expected=f"at most {num_levels - 1}, from the nodes outwards",
            )
        assumed = [self._said(found)]
        if found.fan_outs:
            return DescribedNetwork(self._tree(found), tuple(assumed))
        assumed.append(
            f"{self.file} is no regular tree: all links are listed one by one"
        )
        with located(f"file: {path}", ": "):
            listed = tree_links(found.root, self._rates())
        return DescribedNetwork(CustomSpec(path=path, listed=listed), tuple(assumed))

    def _said(self, found: SlurmTopology) -> str:
        """Say where bandwidths are from."""
        names = found.level_names
        ratios = [*self.oversubscription, *[1.0] * len(names)]
        uplinks = ", ".join(
            f"{ratio:g}:1 above each {name}"
            for name, ratio in zip(names[:-1], ratios, strict=False)
        )
        words = f"switches of {self.file}; bandwidths are the scenario's"
        if uplinks:
            words += f", oversubscription {uplinks}"
        if found.states_speeds:
            words += "; its LinkSpeed, which Slurm does not read either, says nothing"
        return words

    def _tree(self, found: SlurmTopology) -> FatTreeTable:
        """Return the fat-tree that people would have written."""
        node = {"bandwidth": self.node_bandwidth, "latency": self.node_latency}
        first = {"bandwidth": self.nic_bandwidth, "latency": self.nic_latency}
        above = {"latency": self._rates().switch_latency}
        levels = [
            level_table("node", self.devices_per_node, node, self._reached("node"))
        ]
        ratios = [*self.oversubscription, *[None] * len(found.fan_outs)]
        for index, (name, count) in enumerate(
            zip(found.level_names, found.fan_outs, strict=True)
        ):
            rates = above if index else first
            over = {"oversubscription": ratios[index]}
            levels.append(level_table(name, count, rates | over, self._reached("nic")))
        return FatTreeTable.model_construct(
            kind="fat-tree", levels=levels, nic=self.nic
        )

    def _reached(self, part: str) -> dict[str, Any]:
        """Return what is said of one part's efficiency."""
        return {
            name: getattr(self, f"{part}_{name}")
            for name in ("efficiency", "transport")
        }

    def _rates(self) -> TreeRates:
        """Return how fast links are that are listed one by one."""
        inside, outside = reached(self.node_transport), reached(self.nic_transport)
        node_share = self.node_efficiency or inside.efficiency
        nic_share = self.nic_efficiency or outside.efficiency
        between = self.switch_latency
        return TreeRates(
            devices_per_node=self.devices_per_node,
            node_bandwidth=self.node_bandwidth * node_share,
            node_latency=max(self.node_latency, inside.latency),
            nic=self.nic,
            nic_bandwidth=self.nic_bandwidth * nic_share,
            nic_latency=max(self.nic_latency, outside.latency),
            switch_latency=self.nic_latency if between is None else between,
            oversubscription=tuple(self.oversubscription),
        )


def level_table(name: str, fan_out: int, *settings: dict[str, Any]) -> LevelTable:
    """Return a level as people would have written it.

    Parameters
    ----------
    name, fan_out
        As the level has them.
    settings
        Others; None where one is left out.
    """
    given = {key: one for part in settings for key, one in part.items()}
    written = {key: one for key, one in given.items() if one is not None}
    return LevelTable.model_construct(name=name, fan_out=fan_out, **written)


class InfraGraphTable(Table):
    """A graph of InfraGraph; what it does not tell of its links is said here."""

    kind: Literal["infragraph"]
    """Name of this kind of network."""

    file: Text = Field(examples=["infrastructure.yaml"])
    """An infrastructure of InfraGraph in JSON or YAML, relative to the scenario's
    folder. Its devices are the components of choice "xpu"."""

    bandwidths: dict[Text, Bandwidth] = Field(
        {}, examples=[{"nvlink": "450 GB/s", "pcie": "63 GB/s"}]
    )
    """Bandwidth of one edge of a link, by the link's name, per direction [byte/s]. For
    links of which the file says none, or in gigatransfers; the others keep theirs
    unless they are named here."""

    latencies: dict[Text, Latency] = Field({}, examples=[{"nvlink": "500 ns"}])
    """Latency of one edge of a link, by the link's name [s]."""

    latency: Latency | None = Field(None, examples=["500 ns"])
    """Latency of one edge of links of which neither the file nor `latencies` says one
    [s]."""

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
        expected = "an infrastructure of InfraGraph in JSON or YAML"
        path = input_file(folder, self.file, "file", expected)
        options = InfraOptions(
            bandwidths=self.bandwidths, latencies=self.latencies, latency=self.latency
        )
        with located("file", ": "):
            listed, assumed = read_infragraph(path, options)
        said = [f"links of {self.file}"]
        if self.bandwidths:
            names = ", ".join(self.bandwidths)
            said.append(f"bandwidths of {names} are the scenario's")
        spec = CustomSpec(path=path, listed=listed)
        return DescribedNetwork(spec, ("; ".join(said), *assumed))
