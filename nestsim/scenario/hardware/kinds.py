"""All kinds of [cluster.network], and what they are told by measurements."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from estimators.collectives.transports import Scope
from nestsim.scenario.base import Table
from nestsim.scenario.hardware.network import (
    CustomTable,
    FatTreeTable,
    GridTable,
    LinkNames,
    PodTable,
    RailTable,
    SpineLeafTable,
)
from nestsim.scenario.hardware.switch_graphs import (
    DragonflyTable,
    HyperXTable,
    NodeTorusTable,
)
from topologies.errors import located
from topologies.joined_specs import NetworkSpec
from topologies.specs import BasicSpec, CustomSpec

_T = TypeVar("_T", bound=Table)

SwitchedTable = SpineLeafTable | RailTable
GraphTable = DragonflyTable | HyperXTable | NodeTorusTable
BuiltTable = FatTreeTable | SwitchedTable | GridTable | GraphTable
NetworkTable = BuiltTable | CustomTable


def link_names(table: NetworkTable | CustomSpec | None) -> LinkNames:
    """Return the transports that the links of a network name."""
    if isinstance(table, FatTreeTable):
        return table.link_names()
    if not isinstance(table, SwitchedTable | GraphTable):
        return LinkNames()
    name = table.node_transport
    node = ((table.devices_per_node, name),) if name else ()
    if isinstance(table, NodeTorusTable):
        return LinkNames(node)
    return LinkNames(node, table.nic_transport or "")


def with_measured(table: BuiltTable, reached: Mapping[Scope, float]) -> BuiltTable:
    """Return a network whose links reach what was measured, where it states nothing.

    The first level of a fat-tree, and all links of a torus or a mesh, are links inside
    a node.
    """
    node, fabric = reached.get("node"), reached.get("fabric")
    if isinstance(table, FatTreeTable):
        inner, *outer = table.levels
        levels = [
            _stating(inner, {"efficiency": node}),
            *(_stating(level, {"efficiency": fabric}) for level in outer),
        ]
        return table.model_copy(update={"levels": levels})
    if isinstance(table, GridTable):
        return _stating(table, {"efficiency": node})
    names = ("nic_efficiency", "spine_efficiency", "efficiency")
    stated = {name: fabric for name in names if name in type(table).model_fields}
    return _stating(table, {"node_efficiency": node, **stated})


def built_record(
    table: BuiltTable | CustomTable, folder: Path, reached: Mapping[Scope, float]
) -> NetworkSpec:
    """Return the record of a network, or of pods of it.

    Parameters
    ----------
    table
        The network.
    folder
        The scenario file's; other files are named relative to it.
    reached
        Efficiency of links that state none.
    """
    if isinstance(table, CustomTable):
        return _in_pods(table, table.build(folder))
    measured = with_measured(table, reached)
    if isinstance(measured, GraphTable):
        return measured.build()
    return _in_pods(measured, measured.build())


def _in_pods(table: PodTable, spec: BasicSpec) -> NetworkSpec:
    if table.pods is None:
        return spec
    with located("pods"):
        return table.pods.build(spec)


def _stating(table: _T, measured: Mapping[str, float | None]) -> _T:
    """Return a table with efficiencies that it leaves out, if they were measured.

    One that names a transport has said what its links reach.
    """
    stated = table.model_fields_set
    missing = {
        name: value
        for name, value in measured.items()
        if value is not None
        and name not in stated
        and name.replace("efficiency", "transport") not in stated
    }
    return table.model_copy(update=missing)
