"""Builders of networks whose switches form a tree.

Every builder turns its parameters into tiers of one tree core,
`topologies.fabrics.tree_routing`. Devices are numbered consecutively inside a node,
nodes inside a leaf or unit, and so on.

References
----------
.. [1] Leiserson, "Fat-trees: universal networks for hardware-efficient
   supercomputing", IEEE Transactions on Computers 1985.
.. [2] NVIDIA, "DGX SuperPOD Reference Architecture (H100)", 2023: rails.
.. [3] W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs
   with Trillion Parameters", arXiv:2307.12169, 2023.
"""

import math
from dataclasses import replace

from topologies.errors import InputError
from topologies.fabrics.tree_routing import TreeRouting
from topologies.network import CollectiveRules, Network, Tier
from topologies.specs import (
    MAX_CABLES,
    MAX_SPINE_LINKS,
    FatTreeSpec,
    RailSpec,
    SpineLeafSpec,
)


def build_fat_tree(spec: FatTreeSpec) -> Network:
    """Build a tree of any depth; its links have the cables that the levels say.

    With ideal trunks a link is one of all its cables together. With ECMP every cable
    is a link with an equal share of the capacity.
    """
    tiers: list[Tier] = []
    for index, level in enumerate(spec.levels):
        bandwidth, cables = level.bandwidth, 1
        if bandwidth is None:
            ratio = spec.levels[index - 1].oversubscription or 1.0
            bandwidth, cables = _derived_trunk(tiers[-1], ratio, spec, index)
        cables = level.num_cables or cables
        tiers.append(_tree_tier(spec, index, bandwidth, cables))
    routing = TreeRouting(tuple(tiers), seed=spec.ecmp_seed)
    return _network(spec, routing, node_levels=spec.node_levels)


def _derived_trunk(
    below: Tier, ratio: float, spec: FatTreeSpec, index: int
) -> tuple[float, int]:
    """Return bandwidth and cables of the link from a child into level ``index``."""
    children = below.fan_out
    if below.joins_devices:
        children *= spec.levels[0].fan_out
    if index == 1 and spec.nic == "device":
        children = 1
    # Either factor is 1: cables are separate links, or one link stands for all.
    cables = max(1, round(children * below.num_parallel * below.num_cables / ratio))
    return children * below.child_bandwidth / ratio, cables


def _tree_tier(spec: FatTreeSpec, index: int, bandwidth: float, cables: int) -> Tier:
    """Return a tier whose children have links of this bandwidth and these cables."""
    level = spec.levels[index]
    if cables > MAX_CABLES:
        raise InputError(
            "too many cables in one link",
            where=f"levels[{index}]",
            got=f"{float(cables):.3g} cables",
            expected=f"at most {float(MAX_CABLES):.3g}: larger oversubscription below",
        )
    separate = cables if spec.trunk == "ecmp" else 1
    joins_devices = index == 1 and spec.nic == "device"
    below = 0 if joins_devices else index
    num_children = math.prod(higher.fan_out for higher in spec.levels[below:])
    if separate > 1 and num_children * separate > MAX_SPINE_LINKS:
        raise InputError(
            "too many cables that are links of their own",
            where=f"levels[{index}]",
            got=num_children * separate,
            expected=f"at most {MAX_SPINE_LINKS} cables on a level",
        )
    return Tier(
        name=level.name,
        fan_out=level.fan_out,
        bandwidth=bandwidth / separate,
        latency=level.latency,
        num_parallel=cables // separate,
        num_cables=separate,
        joins_devices=joins_devices,
        efficiency=level.efficiency,
    )


def build_spine_leaf(spec: SpineLeafSpec) -> Network:
    """Build nodes below leaves below spines.

    With an ideal trunk the spines are one vertex, and a leaf's link to it has
    `num_spines` cables. With ECMP each spine is a vertex, a leaf has a link with an
    equal share of the capacity to each, and a pair keeps to one spine.
    """
    nics = spec.nodes_per_leaf * (spec.devices_per_node if spec.nic == "device" else 1)
    tiers = (
        _node_tier(spec),
        Tier(
            name="leaf",
            fan_out=spec.nodes_per_leaf,
            bandwidth=spec.nic_bandwidth,
            latency=spec.nic_latency,
            efficiency=spec.nic_efficiency,
            joins_devices=spec.nic == "device",
        ),
        _spine_tier(spec, spec.num_leaves, nics),
    )
    return _network(spec, TreeRouting(tiers, seed=spec.ecmp_seed))


def build_rail(spec: RailSpec) -> Network:
    """Build rail-optimised units [2]_: one rail switch per unit and local rank.

    Spines are one vertex or several, as in `build_spine_leaf`; in rail-only networks
    [3]_ so many for each rail, and none above the rail switches of one unit.
    """
    spine = _spine_tier(spec, spec.num_units, spec.nodes_per_unit)
    if spec.rail_only:
        spine = replace(spine, num_planes=spec.devices_per_node)
    tiers = (
        _node_tier(spec),
        Tier(
            name="rail unit",
            fan_out=spec.nodes_per_unit,
            bandwidth=spec.nic_bandwidth,
            latency=spec.nic_latency,
            efficiency=spec.nic_efficiency,
            num_planes=spec.devices_per_node,
            joins_devices=True,
        ),
        *((spine,) if spec.has_spines else ()),
    )
    routing = TreeRouting(tiers, relay=spec.pxn, seed=spec.ecmp_seed)
    return _network(spec, routing)


def _spine_tier(spec: SpineLeafSpec | RailSpec, fan_out: int, num_nics: int) -> Tier:
    """Return the tier of spines over switches that join so many NICs each."""
    trunk = num_nics * spec.nic_bandwidth / spec.oversubscription
    separate = spec.num_spines if spec.trunk == "ecmp" else 1
    return Tier(
        name="spine",
        fan_out=fan_out,
        bandwidth=trunk / separate,
        latency=spec.spine_latency,
        efficiency=spec.spine_efficiency,
        num_parallel=spec.num_spines // separate,
        num_switches=spec.num_spines // separate,
        num_spines=separate,
    )


def _node_tier(spec: SpineLeafSpec | RailSpec) -> Tier:
    return Tier(
        name="node",
        fan_out=spec.devices_per_node,
        bandwidth=spec.node_bandwidth,
        latency=spec.node_latency,
        efficiency=spec.node_efficiency,
    )


def _network(
    spec: FatTreeSpec | SpineLeafSpec | RailSpec,
    routing: TreeRouting,
    *,
    node_levels: int = 1,
) -> Network:
    sizes = {size for size in routing.block_sizes if size > 1} or {1}
    return Network(
        kind=spec.kind,
        num_devices=routing.num_devices,
        vertex_names=routing.vertex_names(),
        links=routing.links(),
        levels=routing.planner_levels(),
        block_sizes=tuple(sorted(sizes)),
        routing=routing,
        rules=CollectiveRules(
            node_levels=node_levels,
            node_size=routing.block_sizes[node_levels - 1],
            adds_in_switches=spec.sharp,
            summed_weight=spec.summed_weight(routing.switch_tiers[0].efficiency),
        ),
    )
