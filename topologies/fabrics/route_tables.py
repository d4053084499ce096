"""Routing rules as plain arrays, for kernels that walk routes without objects.

A table says the same as `Network.routes`, link for link, in a form in which one route
costs a few reads: no arrays over all pairs and no loop in Python. There is one form
for each family of rules; integers are 32 bits wide where they come in numbers, so
that the table of 16,384 devices stays in a core's cache.
"""

from functools import singledispatch
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, Int32Array, IntArray
from topologies.fabrics.custom import CustomRouting
from topologies.fabrics.detours import DegradedRouting
from topologies.fabrics.tori import TorusRouting
from topologies.fabrics.tree_routing import TreeRouting
from topologies.network import Routing


class TreeTable(NamedTuple):
    """Up to the lowest common switch, and down again, for ``K`` tiers."""

    rows: Int32Array
    """Shape ``(N, 2 K)``: each device's link up into every tier, the first one where
    there are several, then its block at every tier."""

    down: IntArray
    """Shape ``(K,)``: a link down from a tier is the link up plus this."""

    num_planes: int
    """Rails; 1 without rails."""

    relay: bool
    """Whether traffic to another rail crosses the sender's node first (PXN)."""

    nic_per_device: bool
    """Whether routes out of a node leave its own switch aside."""

    num_choices: tuple[int, ...]
    """Of each tier: parallel links, spines or cables, among which a hash picks."""

    seeds: tuple[int, ...]
    """Of that hash, of each tier, below ``2**64``."""

    longest: int
    """Links of the longest route, or more."""


class TorusTable(NamedTuple):
    """Dimension by dimension, each the shorter way round, for ``A`` dimensions."""

    rows: Int32Array
    """Shape ``(N, 3 A)``: each device's position along every dimension, then for every
    dimension its link in the positive and in the negative direction, -1 for none."""

    shape: IntArray
    """Devices along each dimension, shape ``(A,)``."""

    strides: IntArray
    """Between neighbours' numbers, shape ``(A,)``."""

    wrap: IntArray
    """1 where a dimension's ends are joined, shape ``(A,)``."""

    longest: int
    """Links of the longest route."""


class PathTable(NamedTuple):
    """Any fixed routes, one tree of them per source."""

    last_link: Int32Array
    """Shape ``(N, V)``: the last link of the route from a device to a vertex."""

    tails: Int32Array
    """Vertex where each link starts, shape ``(E,)``."""

    longest: int
    """Links of the longest route, or more."""


class DetourTable(NamedTuple):
    """The rule that a network was built with, of which links have been removed.

    Routes over removed links are others, which no table holds: `Network.routes` finds
    them, pair by pair.
    """

    built: TreeTable | TorusTable | PathTable
    """Of the undisturbed network."""

    kept: BoolArray
    """Links that are still there, shape ``(E,)``."""

    @property
    def longest(self) -> int:
        """Links of the longest route that avoids what was removed, or more."""
        return self.built.longest


RouteTable = TreeTable | TorusTable | PathTable | DetourTable


@singledispatch
def route_table(routing: Routing) -> RouteTable:
    """Return the table of a routing rule; a new family of rules registers its own."""
    raise TypeError(f"no route table for {type(routing).__name__}")


@route_table.register
def _(routing: TreeRouting) -> RouteTable:
    devices = np.arange(routing.num_devices, dtype=np.int64)
    depth = len(routing.switch_tiers)
    up = [routing.up(devices, k) for k in range(depth)]
    blocks = [devices // size for size in routing.block_sizes]
    num_up = [
        count * tier.num_choices
        for count, tier in zip(routing.num_children, routing.switch_tiers, strict=True)
    ]
    return TreeTable(
        rows=np.stack([*up, *blocks], axis=1).astype(np.int32),
        down=np.array(num_up, dtype=np.int64),
        num_planes=routing.num_planes,
        relay=routing.relay,
        nic_per_device=routing.nic_per_device,
        num_choices=tuple(tier.num_choices for tier in routing.switch_tiers),
        seeds=routing.seeds,
        longest=2 * depth + 2,
    )


@route_table.register
def _(routing: DegradedRouting) -> RouteTable:
    built = route_table(routing.built)
    assert not isinstance(built, DetourTable), "a degraded network is built once"
    return built if routing.kept.all() else DetourTable(built, routing.kept)


@route_table.register
def _(routing: TorusRouting) -> RouteTable:
    devices = np.arange(routing.spec.num_devices, dtype=np.int64)
    strides = np.array(routing.strides, dtype=np.int64)
    shape = np.array(routing.shape, dtype=np.int64)
    positions = devices[:, None] // strides % shape
    links = routing.link_towards.reshape(len(devices), -1)
    return TorusTable(
        rows=np.concatenate([positions, links], axis=1).astype(np.int32),
        shape=shape,
        strides=strides,
        wrap=np.array(routing.spec.wrap, dtype=np.int64),
        longest=routing.diameter,
    )


@route_table.register
def _(routing: CustomRouting) -> RouteTable:
    return PathTable(
        last_link=routing.last_link,
        tails=routing.links.source.astype(np.int32),
        longest=routing.num_vertices,
    )
