"""Builders of networks whose switches form a tree.

Every builder turns its parameters into tiers of one tree core,
`topologies.tree_routing`. Devices are numbered consecutively inside a node, nodes
inside a leaf or unit, and so on.

References
----------
.. [1] Leiserson, "Fat-trees: universal networks for hardware-efficient
   supercomputing", IEEE Transactions on Computers 1985.
.. [2] NVIDIA, "DGX SuperPOD Reference Architecture (H100)", 2023: rails.
"""

from topologies.network import Network
from topologies.specs import FatTreeSpec, LevelSpec, RailSpec, SpineLeafSpec
from topologies.tree_routing import TreeRouting, TreeTier


def build_fat_tree(spec: FatTreeSpec) -> Network:
    """Build a tree of any depth whose trunks are ideal.

    A trunk whose bandwidth is derived has as many cables as the switch has children,
    divided by the oversubscription and rounded; one whose bandwidth is given is one.
    """
    tiers: list[TreeTier] = []
    for index, level in enumerate(spec.levels):
        per_device = index == 1 and spec.nic == "device"
        bandwidth, cables = level.bandwidth, 1
        if bandwidth is None:
            ratio = spec.levels[index - 1].oversubscription or 1.0
            bandwidth, cables = _derived_trunk(tiers[-1], ratio, spec, index)
        tiers.append(_tree_tier(level, bandwidth, cables, joins_devices=per_device))
    return _network(spec.kind, TreeRouting(tuple(tiers)))


def _derived_trunk(
    below: TreeTier, ratio: float, spec: FatTreeSpec, index: int
) -> tuple[float, int]:
    """Return bandwidth and cables of the link from a child into level ``index``."""
    children = below.fan_out
    if below.joins_devices:
        children *= spec.levels[0].fan_out
    if index == 1 and spec.nic == "device":
        children = 1
    cables = max(1, round(children * below.num_parallel / ratio))
    return children * below.bandwidth / ratio, cables


def _tree_tier(
    level: LevelSpec, bandwidth: float, cables: int, *, joins_devices: bool
) -> TreeTier:
    return TreeTier(
        name=level.name,
        fan_out=level.fan_out,
        bandwidth=bandwidth,
        latency=level.latency,
        num_parallel=cables,
        joins_devices=joins_devices,
    )


def build_spine_leaf(spec: SpineLeafSpec) -> Network:
    """Build nodes below leaves below spines.

    With an ideal trunk the spines are one vertex, and a leaf's link to it has
    `num_spines` cables. With ECMP each spine is a vertex, a leaf has a link with an
    equal share of the capacity to each, and a pair keeps to one spine.
    """
    nics = spec.nodes_per_leaf * (spec.devices_per_node if spec.nic == "device" else 1)
    trunk = nics * spec.nic_bandwidth / spec.oversubscription
    ecmp = spec.trunk == "ecmp"
    tiers = (
        _node_tier(spec),
        TreeTier(
            name="leaf",
            fan_out=spec.nodes_per_leaf,
            bandwidth=spec.nic_bandwidth,
            latency=spec.nic_latency,
            joins_devices=spec.nic == "device",
        ),
        TreeTier(
            name="spine",
            fan_out=spec.num_leaves,
            bandwidth=trunk / spec.num_spines if ecmp else trunk,
            latency=spec.spine_latency,
            num_parallel=1 if ecmp else spec.num_spines,
            num_spines=spec.num_spines if ecmp else 1,
        ),
    )
    return _network(spec.kind, TreeRouting(tiers, seed=spec.ecmp_seed))


def build_rail(spec: RailSpec) -> Network:
    """Build rail-optimised units [2]_: one rail switch per unit and local rank."""
    trunk = spec.nodes_per_unit * spec.nic_bandwidth / spec.oversubscription
    tiers = (
        _node_tier(spec),
        TreeTier(
            name="rail unit",
            fan_out=spec.nodes_per_unit,
            bandwidth=spec.nic_bandwidth,
            latency=spec.nic_latency,
            num_planes=spec.devices_per_node,
            joins_devices=True,
        ),
        TreeTier(
            name="spine",
            fan_out=spec.num_units,
            bandwidth=trunk,
            latency=spec.spine_latency,
            num_parallel=spec.num_spines,
        ),
    )
    return _network(spec.kind, TreeRouting(tiers, relay=spec.pxn))


def _node_tier(spec: SpineLeafSpec | RailSpec) -> TreeTier:
    return TreeTier(
        name="node",
        fan_out=spec.devices_per_node,
        bandwidth=spec.node_bandwidth,
        latency=spec.node_latency,
    )


def _network(kind: str, routing: TreeRouting) -> Network:
    sizes = {size for size in routing.block_sizes if size > 1} or {1}
    return Network(
        kind=kind,
        num_devices=routing.num_devices,
        vertex_names=routing.vertex_names(),
        links=routing.links(),
        levels=routing.planner_levels(),
        block_sizes=tuple(sorted(sizes)),
        routing=routing,
    )
