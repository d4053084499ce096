"""Building networks by kind, and the part of one that a job has.

The part of a network that a job has whose devices are some of it.

A job that shares a cluster plans on its own devices. Where they are whole and equal
parts of a tree's blocks, or a box of a torus, what joins them is a network of the same
kind with fewer devices, link for link: the same bandwidths and latencies, and the same
level for every pair. Elsewhere a compact part of the same kind stands in, and
`SubNetwork.is_exact` says so. Parts are of the network as it was built; what is slow or
gone, prices and replays on the whole network see.

Letters: ``f_k`` children of a block of tier ``k``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError, short_repr
from topologies.fabrics.custom import build_custom
from topologies.fabrics.joined import JoinedRouting
from topologies.fabrics.joining import build_dragonfly, build_hyperx, build_pods
from topologies.fabrics.tori import TorusRouting, build_torus
from topologies.fabrics.trees import (
    TreeRouting,
    build_fat_tree,
    build_rail,
    build_spine_leaf,
)
from topologies.joined_specs import NetworkSpec, PodsSpec
from topologies.network import Network
from topologies.specs import DevicesSpec

BUILDERS: Mapping[str, Callable[[Any], Network]] = MappingProxyType(
    {
        "fat-tree": build_fat_tree,
        "spine-leaf": build_spine_leaf,
        "rail": build_rail,
        "torus": build_torus,
        "mesh": build_torus,
        "custom": build_custom,
        "dragonfly": build_dragonfly,
        "dragonfly+": build_dragonfly,
        "hyperx": build_hyperx,
        "node-torus": build_hyperx,
    }
)
"""Kind of network -> the function that builds it from its record of parameters; pods
are built of any of them."""


def build_network(spec: NetworkSpec) -> Network:
    """Build the network that a record of parameters describes.

    Raises
    ------
    InputError
        If there can be none, or it does not say how devices are joined.
    """
    if isinstance(spec, DevicesSpec):
        raise InputError(
            "there is no network",
            expected='how the devices are joined, e.g. kind = "fat-tree"',
            hint="without a network, nestsim memory says what fits",
        )
    if isinstance(spec, PodsSpec):
        return build_pods(spec, build_network(spec.pod))
    return BUILDERS[spec.kind](spec)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SubNetwork:
    """Some devices of a network, as a network of their own."""

    network: Network
    """Devices numbered from 0, and what joins them; no hosts."""

    devices: IntArray
    """Device of the whole network that each of them is, rising."""

    is_exact: bool
    """Whether every pair has the level, and every level the links, that it has in the
    whole network as it was built."""

    __repr__ = short_repr


def sub_network(network: Network, devices: Sequence[int] | IntArray) -> SubNetwork:
    """Return the network of some devices.

    Parameters
    ----------
    network
        The whole one, without hosts.
    devices
        Different numbers of devices, at least one, in any order.
    """
    chosen = np.unique(np.asarray(devices, dtype=np.int64))
    built = network.routing.built
    is_built = built is network.routing
    if isinstance(built, JoinedRouting) and chosen[0] // built.size == (
        chosen[-1] // built.size
    ):
        # All in one pod, or below one switch: as in that network by itself.
        inner = replace(built.copy.inner, rules=network.rules)
        inside = sub_network(inner, chosen % built.size)
        return replace(inside, devices=chosen, is_exact=inside.is_exact and is_built)
    if isinstance(built, TreeRouting):
        shape = tree_shape(built, chosen)
        fan_outs = shape or _compact(len(chosen), [t.fan_out for t in built.tiers()])
        part = _sub_tree(network, built, fan_outs)
        is_exact = shape is not None
    elif isinstance(built, TorusRouting):
        box = _box(built, chosen)
        sides = box or _compact(len(chosen), built.shape[::-1])[::-1]
        part = _sub_torus(built, sides)
        is_exact = box is not None
    else:
        # Routes may take any vertex: the first devices stand for those of the job.
        part = replace(
            network, num_devices=len(chosen), block_sizes=(len(chosen),), num_axes=0
        )
        if isinstance(built, JoinedRouting):
            part = replace(part, routing=built, links=built.links())
        is_exact = bool(chosen[-1] == len(chosen) - 1)
    return SubNetwork(
        network=part,
        devices=chosen,
        is_exact=is_exact and is_built,
    )


def tree_shape(routing: TreeRouting, devices: IntArray) -> tuple[int, ...] | None:
    """Return the ``f_k`` of devices that are equal parts of equally many blocks.

    None if they are not, or if they leave out rails of a node.

    Parameters
    ----------
    routing
        Of the whole tree.
    devices
        Different numbers, rising.
    """
    shape = []
    below = devices
    for size in routing.block_sizes:
        blocks, counts = np.unique(below // size, return_counts=True)
        if counts.min() != counts.max():
            return None
        shape.append(int(counts[0]))
        below = blocks * size
    if routing.num_planes > 1 and shape[0] != routing.block_sizes[0]:
        return None
    return tuple(shape)


def _compact(num_devices: int, most: Sequence[int]) -> tuple[int, ...]:
    """Return factors of a number, each the largest that its block has room for.

    The outermost one is what is left, whether there is as much room or not: 5 nodes
    below leaves of 4 are 5 leaves.
    """
    factors, rest = [], num_devices
    for limit in most[:-1]:
        factors.append(max(f for f in range(1, limit + 1) if rest % f == 0))
        rest //= factors[-1]
    return (*factors, rest)


def _sub_tree(
    network: Network, routing: TreeRouting, fan_outs: Sequence[int]
) -> Network:
    """Return the tree with fewer children of each block, its links as they are."""
    tiers = tuple(
        replace(
            tier,
            fan_out=fan_out,
            num_planes=fan_outs[0] if tier.num_planes > 1 else 1,
        )
        for tier, fan_out in zip(routing.tiers(), fan_outs, strict=True)
    )
    part = TreeRouting(tiers, relay=routing.relay)
    rules = network.rules
    assert rules is not None, "trees have rules"
    return Network(
        kind=network.kind,
        num_devices=part.num_devices,
        vertex_names=part.vertex_names(),
        links=part.links(),
        levels=part.planner_levels(),
        block_sizes=tuple(
            sorted({size for size in part.block_sizes if size > 1} or {1})
        ),
        routing=part,
        rules=replace(rules, node_size=part.block_sizes[rules.node_levels - 1]),
    )


def _box(routing: TorusRouting, devices: IntArray) -> tuple[int, ...] | None:
    """Return the sides of the box that devices fill, None if they fill none.

    Nor if the shorter way round of a pair leads out of it.
    """
    sides = []
    for axis, size in enumerate(routing.shape):
        places = np.unique(devices // routing.strides[axis] % size)
        side = int(places[-1] - places[0]) + 1
        outside = routing.spec.wrap[axis] and size <= 2 * (side - 1) < 2 * (size - 1)
        if side != len(places) or outside:
            return None
        sides.append(side)
    return tuple(sides) if math.prod(sides) == len(devices) else None


def _sub_torus(routing: TorusRouting, sides: Sequence[int]) -> Network:
    """Return the torus of a box: dimensions go round where they are whole."""
    spec = routing.spec
    wrap = tuple(
        goes_round and side == size
        for goes_round, side, size in zip(
            spec.wrap, sides, spec.dimensions, strict=True
        )
    )
    return build_torus(replace(spec, dimensions=tuple(sides), wrap=wrap))
