"""Builders of networks that a graph joins of copies: pods, dragonflies, HyperX.

References
----------
.. [1] J. Kim, W. J. Dally, S. Scott, D. Abts, "Technology-Driven, Highly-Scalable
   Dragonfly Topology", ISCA 2008.
.. [2] A. Shpiner et al., "Dragonfly+: Low Cost Topology for Scaling Datacenters",
   HiPINEB 2017.
.. [3] J. H. Ahn et al., "HyperX: Topology, Routing, and Packaging of Efficient
   Large-Scale Networks", SC 2009.
"""

import itertools
import math
from dataclasses import replace

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.fabrics.joined import Copy, JoinedRouting
from topologies.fabrics.trees import TreeRouting, build_fat_tree
from topologies.fabrics.ways import Graph, joined_links
from topologies.joined_specs import DragonflySpec, HyperXSpec, PodsSpec
from topologies.network import Links, Network, Tier

GLOBAL_WEIGHT = 3
"""What a global link counts in a way where a local one counts 1: a shortest way has the
fewest global links, and a way from a group to another never leads over a third."""

PODS = "pods"
"""Name of the level between pods."""


def build_pods(spec: PodsSpec, pod: Network) -> Network:
    """Join equal pods by a data-centre network.

    Devices that share an adapter have links to it that are as fast as it. Adapters of
    a pod lead to its switch, and that switch has one link to the core.

    Raises
    ------
    InputError
        If a level of the pod has the name that the level between pods has.
    """
    if PODS in {level.name for level in pod.levels}:
        raise InputError(
            "is what the level between pods is called",
            where="levels",
            got=PODS,
            expected="another name for a level inside of a pod",
        )
    size, count = pod.num_devices, spec.num_pods
    copy = _with_adapters(spec, pod)
    nics = size // spec.devices_per_nic
    cables = max(1, round(nics / spec.oversubscription))
    uplink = nics * spec.nic_bandwidth / spec.oversubscription
    roots, core = np.arange(count), np.full(count, count)
    links = _both_ways(
        roots, core, uplink * spec.nic_efficiency, spec.latency, cables=cables
    )
    graph = Graph(
        names=("core",),
        place=np.append(roots, 0),
        lowest=np.append(np.full(count, -1), 0),
        links=links,
        weights=np.ones(len(links), dtype=np.int64),
        level_names=(PODS,),
        block_sizes=(count,),
        tiers=(
            Tier(
                name=PODS,
                fan_out=count,
                bandwidth=uplink,
                latency=spec.latency,
                efficiency=spec.nic_efficiency,
                num_parallel=cables,
                num_blocks=1,
                block_size=size * count,
                num_links=count * cables,
            ),
        ),
    )
    return _network(spec.kind, JoinedRouting(copy, count, graph))


def _with_adapters(spec: PodsSpec, pod: Network) -> Copy:
    """Return a pod with adapters, and its switch as the root."""
    size, shared = pod.num_devices, spec.devices_per_nic
    below = len(pod.vertex_names) - size
    nics, capacity = size // shared, spec.nic_bandwidth * spec.nic_efficiency
    first, root = size + below, size + below
    devices = np.arange(size)
    level = len(pod.levels)
    added, ways, ends = [], [], np.arange(nics)
    latency = spec.nic_latency
    if shared > 1:
        root, latency = first + nics, latency / 2
        adapters = first + devices // shared
        added.append(_both_ways(devices, adapters, capacity, latency, level=level))
        ways.append(devices)
        ends = first + ends
    added.append(_both_ways(ends, np.full(nics, root), capacity, latency, level=level))
    ways.append(devices // shared)
    ups, downs, at = [], [], len(pod.links)
    for part, way in zip(added, ways, strict=True):
        ups.append(at + way)
        downs.append(at + len(part) // 2 + way)
        at += len(part)
    tiers = [replace(tier) for tier in pod.tiers()]
    uplink = nics * spec.nic_bandwidth / spec.oversubscription
    tiers.append(
        Tier(
            name="pod",
            fan_out=nics,
            bandwidth=spec.nic_bandwidth,
            latency=spec.nic_latency,
            efficiency=spec.nic_efficiency,
            joins_devices=True,
            num_blocks=1,
            block_size=size,
            num_links=nics,
            num_uplinks=max(1, round(nics / spec.oversubscription)),
            uplink_bandwidth=uplink,
            oversubscription=spec.oversubscription,
        )
    )
    inside = pod.vertex_names[size:]
    nics_of = [f"NIC {i}" for i in range(nics)] if shared > 1 else []
    names = (
        name
        for number in range(spec.num_pods)
        for name in (
            *(f"pod {number} {name}" for name in (*inside, *nics_of)),
            f"pod {number}",
        )
    )
    return Copy(
        inner=pod,
        links=joined_links([pod.links, *added]),
        names=tuple(names),
        up=np.stack(ups, axis=1),
        down=np.stack(downs[::-1], axis=1),
        out_bandwidth=nics * capacity,
        tiers=tuple(tiers),
    )


def _below(spec: DragonflySpec | HyperXSpec, num_copies: int) -> Copy:
    """Return what stands below one switch, which is the root of its tree."""
    inner = build_fat_tree(spec.below)
    routing = inner.routing
    assert isinstance(routing, TreeRouting)
    devices = np.arange(inner.num_devices)
    tiers = routing.path(len(inner.levels) - 1)
    ups = [routing.up(devices, tier) for tier in tiers]
    counts = [
        routing.num_children[tier] * routing.tiers()[tier].num_choices for tier in tiers
    ]
    downs = [up + count for up, count in zip(ups, counts, strict=True)]
    out = counts[-1] * routing.tiers()[tiers[-1]].capacity
    named = [name.rsplit(" ", 1) for name in inner.vertex_names[inner.num_devices :]]
    numbers = {kind: sum(other == kind for other, _ in named) for kind, _ in named}
    names = (
        f"{kind} {copy * numbers[kind] + int(number)}"
        for copy in range(num_copies)
        for kind, number in named
    )
    return Copy(
        inner=inner,
        links=inner.links,
        names=tuple(names),
        up=np.stack(ups, axis=1),
        down=np.stack(downs[::-1], axis=1),
        out_bandwidth=out,
        tiers=inner.tiers(),
    )


def build_dragonfly(spec: DragonflySpec) -> Network:
    """Build groups of switches, joined all to all by global links [1]_ [2]_.

    Port ``c (g - 1) + o - 1`` of group ``i`` leads to group ``i + o`` modulo ``g``, by
    the ``c``-th of the links between them; ports are those of the first switch, of the
    second, and so on, ``h`` each.
    """
    per_group, groups = spec.switches_per_group, spec.num_groups
    count, spines = per_group * groups, spec.spines_per_group
    group = np.arange(groups)
    leaves = (group[:, None] * per_group + np.arange(per_group)).reshape(groups, -1)
    if spines:
        routers = count + group[:, None] * spines + np.arange(spines)
        ends = [np.repeat(leaves, spines, axis=1), np.tile(routers, per_group)]
    else:
        routers = leaves
        pairs = np.array(list(itertools.combinations(range(per_group), 2)), dtype=int)
        ends = list(np.moveaxis(leaves[:, pairs.reshape(-1, 2)], 2, 0))
    local = _both_ways(
        ends[0].ravel(),
        ends[1].ravel(),
        spec.local_bandwidth * spec.efficiency,
        spec.local_latency,
    )
    here, there = _global_ends(spec, routers)
    far = _both_ways(
        here,
        there,
        spec.global_bandwidth * spec.efficiency,
        spec.global_latency,
        level=1,
    )
    place = [np.arange(count), *([group.repeat(spines) * per_group] if spines else [])]
    weights = np.repeat([1, GLOBAL_WEIGHT], [len(local), len(far)])
    graph = Graph(
        names=tuple(f"spine {i}" for i in range(groups * spines)),
        place=np.concatenate(place),
        lowest=np.repeat([-1, 0], [count, groups * spines]),
        links=joined_links([local, far]),
        weights=weights,
        level_names=("group", "system"),
        block_sizes=(per_group, count),
        tiers=tuple(
            Tier(
                name=name,
                fan_out=fan_out,
                bandwidth=bandwidth,
                latency=latency,
                efficiency=spec.efficiency,
                num_blocks=blocks,
                block_size=spec.num_devices // blocks,
                num_links=len(links) // 2,
            )
            for name, fan_out, bandwidth, latency, blocks, links in (
                (
                    "group",
                    per_group,
                    spec.local_bandwidth,
                    spec.local_latency,
                    groups,
                    local,
                ),
                (
                    "system",
                    groups,
                    spec.global_bandwidth,
                    spec.global_latency,
                    1,
                    far,
                ),
            )
        ),
        hashed=spec.trunk == "ecmp" or spec.routing == "valiant",
        seed=spec.ecmp_seed,
        spread=per_group if spec.routing == "valiant" else 0,
    )
    return _network(spec.kind, JoinedRouting(_below(spec, count), count, graph))


def _global_ends(spec: DragonflySpec, routers: IntArray) -> tuple[IntArray, IntArray]:
    """Return the two switches of each global link, once for both directions."""
    groups, parallel = spec.num_groups, spec.links_between_groups
    group, offset, cable = (
        values.ravel()
        for values in np.meshgrid(
            np.arange(groups), np.arange(1, groups), np.arange(parallel), indexing="ij"
        )
    )
    other = (group + offset) % groups
    first = cable * (groups - 1) + offset - 1
    second = cable * (groups - 1) + groups - offset - 1
    once = group < other
    here = routers[group, first // spec.global_links]
    there = routers[other, second // spec.global_links]
    return here[once], there[once]


def build_hyperx(spec: HyperXSpec) -> Network:
    """Build switches on a grid, with lines joined all to all [3]_ or in rings."""
    shape = spec.dimensions
    count = math.prod(shape)
    switches = np.arange(count)
    parts: list[Links] = []
    tiers: list[Tier] = []
    sizes: list[int] = []
    for number, axis in enumerate(reversed(range(len(shape)))):
        size, stride = shape[axis], math.prod(shape[axis + 1 :])
        place = switches // stride % size
        steps = [1] if spec.rings else range(1, size)
        ends: list[tuple[IntArray, IntArray]] = []
        for step in steps:
            wraps = spec.rings and size > 2
            here = switches[wraps | (place + step < size)]
            position = here // stride % size
            ends.append((here, here + ((position + step) % size - position) * stride))
        links = _both_ways(
            np.concatenate([here for here, _ in ends]),
            np.concatenate([there for _, there in ends]),
            spec.bandwidths[axis] * spec.efficiency,
            spec.latency,
            level=number,
            cables=spec.num_cables,
        )
        parts.append(links)
        sizes.append(stride * size)
        tiers.append(
            Tier(
                name=_dimension(axis),
                fan_out=size,
                bandwidth=spec.bandwidths[axis],
                latency=spec.latency,
                efficiency=spec.efficiency,
                num_parallel=spec.num_cables,
                num_blocks=count // sizes[-1],
                block_size=spec.below.num_devices * sizes[-1],
                num_links=len(links) // 2 * spec.num_cables,
            )
        )
    joined = joined_links(parts)
    graph = Graph(
        names=(),
        place=switches,
        lowest=np.full(count, -1),
        links=joined,
        weights=np.ones(len(joined), dtype=np.int64),
        level_names=tuple(tier.name for tier in tiers),
        block_sizes=tuple(sizes),
        tiers=tuple(tiers),
        hashed=spec.trunk == "ecmp" or spec.routing == "valiant",
        seed=spec.ecmp_seed,
        halves=tuple(
            switches[switches // math.prod(shape[axis + 1 :]) % size < size // 2]
            for axis, size in enumerate(shape)
            if size % 2 == 0
        ),
        spread=1 if spec.routing == "valiant" else 0,
    )
    return _network(spec.kind, JoinedRouting(_below(spec, count), count, graph))


def _dimension(axis: int) -> str:
    return f"dimension {axis}"


def _both_ways(
    here: IntArray,
    there: IntArray,
    bandwidth: float,
    latency: float,
    *,
    level: int = 0,
    cables: int = 1,
) -> Links:
    """Return links of one kind from the first vertices to the second, then back."""
    count = 2 * len(here)
    return Links(
        source=np.concatenate([here, there]),
        target=np.concatenate([there, here]),
        bandwidth=np.full(count, bandwidth),
        latency=np.full(count, latency),
        level=np.full(count, level),
        num_parallel=np.full(count, cables),
    )


def _network(kind: str, routing: JoinedRouting) -> Network:
    inner = routing.copy.inner
    sizes = {size * routing.size for size in routing.graph.block_sizes}
    return Network(
        kind=kind,
        num_devices=routing.num_devices,
        vertex_names=routing.vertex_names(),
        links=routing.links(),
        levels=routing.planner_levels(),
        block_sizes=tuple(sorted({*inner.block_sizes, *sizes} - {1})),
        routing=routing,
        rules=inner.rules,
        num_axes=inner.num_axes,
    )
