"""A cluster's network: devices joined by directed links, and the rule that routes.

The same `Network` answers the planner (levels, the load that traffic puts on links)
and the simulator (links and routes), so that the two can never see different
networks. Vertices are numbered with the devices first; a link is an index into the
arrays of `Links`.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from topologies.accelerators import Host
from topologies.arrays import BoolArray, FloatArray, Int32Array, IntArray
from topologies.errors import InputError, short_repr

Family = Literal["tree", "torus", "custom", "joined"]
"""What routes follow: a tree's switches, dimensions, what is shortest, or the rule of
one copy of a network and a graph that joins the copies."""


class Routes(NamedTuple):
    """Routes of several pairs, in compressed rows."""

    indptr: IntArray
    """First place in `links` of each pair's route, and the place behind the last route,
    shape ``(P + 1,)``: pair ``q`` uses ``links[indptr[q]:indptr[q + 1]]``."""

    links: IntArray
    """Links of all routes, each route in order from its source to its target."""

    def take(self, order: IntArray) -> "Routes":
        """Return the routes of some pairs, in the order given."""
        hops = np.diff(self.indptr)[order]
        indptr = np.concatenate([[0], np.cumsum(hops)])
        place = np.repeat(self.indptr[order] - indptr[:-1], hops)
        return Routes(indptr, self.links[place + np.arange(int(indptr[-1]))])


class RouteTable(Protocol):
    """A rule as plain arrays, for kernels that walk routes without objects."""

    @property
    def rows(self) -> Int32Array:
        """What the family of rules says of each device, a row of 32 bit integers."""
        ...

    @property
    def numbers(self) -> list[int] | IntArray:
        """Everything else that the family's rules depend on."""
        ...

    @property
    def tails(self) -> Int32Array:
        """Vertex where each link starts, empty if routes are not walked back."""
        ...

    @property
    def kept(self) -> BoolArray:
        """Whether each link is still there, empty where none was removed."""
        ...

    @property
    def longest(self) -> int:
        """Number of links of the longest route, or more."""
        ...


class Routing(Protocol):
    """The rule that a builder supplies, or what removed links have made of it.

    Methods that take pairs are vectorised over them. Nobody else asks of which class a
    rule is: what differs between families is answered here.
    """

    @property
    def family(self) -> Family:
        """The family of rules, which tables, kernels and pictures go by."""
        ...

    @property
    def built(self) -> "Routing":
        """The rule of the undisturbed network; itself where nothing was removed."""
        ...

    @property
    def kept(self) -> BoolArray:
        """Whether each link is still there, shape ``(E,)``."""
        ...

    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link before any was slowed [byte/s].

        Custom networks, whose rule depends on them, only know what is left.
        """
        ...

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the route of each pair; empty where source equals target."""
        ...

    def rehashed_routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray
    ) -> Routes:
        """Return the routes if a hash picks among those parallel links that are kept.

        What is not parallel is used as built, kept or not.
        """
        ...

    def cut_pairs(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return which pairs, rising, do not have the routes that were built."""
        ...

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the level of each pair; 0 where source equals target."""
        ...

    def bisection_bandwidth(self) -> float:
        """Return the capacity between two halves of the devices [byte/s]."""
        ...

    def tiers(self) -> "tuple[Tier, ...]":
        """Return the physical tiers, from the inside out."""
        ...

    def reroute(
        self, levels: "tuple[Level, ...]", links: "Links", kept: BoolArray
    ) -> "Rerouted":
        """Return what becomes of a network with less bandwidth or fewer links.

        Parameters
        ----------
        levels
            The network's, before.
        links
            All links, removed ones included, with what bandwidth is left.
        kept
            Which of them are still there, shape ``(E,)``. Every device reaches every
            other over them.
        """
        ...

    def table(self) -> RouteTable:
        """Return the rule as plain arrays, for kernels."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network, as one pair of devices meets it.

    In trees a level is a switch tier and a pair's level that of its lowest common
    switch; in tori and custom networks a level is a class of pairs of similar cost.
    """

    name: str
    """Name of the level: ``"node"``, ``"leaf"``, ``"spine"``, ``"2 hops"``."""

    block_size: int
    """Number of devices within reach of a device at this level, itself included."""

    num_blocks: int
    """Number of blocks of this level in the cluster; 1 at the outermost level."""

    bandwidth: float
    """Bandwidth at most from one device to a peer at this level [byte/s]."""

    latency: float
    """One-way latency of the route between two devices at this level [s]."""

    uplink_bandwidth: float
    """Bandwidth from one block to the level above; infinite without one [byte/s]."""

    oversubscription: float
    """What a block's devices can send together into its switches, divided by
    `uplink_bandwidth`; 1 is non-blocking, and also what the outermost level has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier of a network's wires as built: of switches, a dimension, or a class.

    Trees are made of their tiers: builders say how a child is joined to its switch, and
    `topologies.fabrics.trees` counts what follows from all tiers together, the
    fields from `num_blocks` on. What slow and removed links leave is not told here.
    """

    name: str
    """Name of the tier: a tree's level, and the first part of its switches' names;
    ``"dimension 0"`` of a torus, a level of a custom network."""

    fan_out: int
    """Children of one block: blocks of the tier below; devices at the innermost tier,
    along a dimension, and in a custom network."""

    bandwidth: float
    """Bandwidth of the link from one child to one switch, or between two neighbours,
    per direction, as built [byte/s]."""

    latency: float
    """Latency of one link, of the longest one in custom networks [s]."""

    efficiency: float = 1.0
    """Fraction of `bandwidth` that traffic reaches. All bandwidths and ratios of a tier
    are as built; those of `Links` and `Level` are what is reached."""

    num_parallel: int = 1
    """Cables that one link stands for."""

    num_planes: int = 1
    """Switches of one block; a child is joined to the one of its number modulo this."""

    num_spines: int = 1
    """Switches of one block that every child is joined to; a hash picks one. For the
    outermost tier of a tree only."""

    num_cables: int = 1
    """Separate links between a child and its switch; a hash picks one, the same one on
    the way up and on the way down."""

    num_switches: int = 1
    """Switches that one switch of a block stands for: the spines of an ideal trunk."""

    joins_devices: bool = False
    """Whether the children are devices although the tier is not a tree's innermost."""

    num_blocks: int = 1
    """Number of blocks of the tier in the cluster: nodes, leaf groups, rings."""

    block_size: int = 1
    """Number of devices of one block."""

    num_links: int = 0
    """Cables that carry one direction, over all blocks: from the children into the
    tier's switches, between neighbours of a dimension, or of the class."""

    num_uplinks: int = 0
    """Cables that carry one direction from one block to the tier above; 0 where there
    is none, and in custom networks, whose blocks have no tier above."""

    uplink_bandwidth: float = math.inf
    """Bandwidth of a block's uplinks together; infinite without any [byte/s]."""

    oversubscription: float = 1.0
    """What one block's children can send into it over `uplink_bandwidth`; 1 where
    there is no tier above."""

    @property
    def link_bandwidth(self) -> float:
        """Bandwidth of one cable, per direction [byte/s]."""
        return self.bandwidth / self.num_parallel

    @property
    def capacity(self) -> float:
        """What traffic reaches on one link, per direction [byte/s]."""
        return self.bandwidth * self.efficiency

    @property
    def num_choices(self) -> int:
        """Links of one child into the tier, of which a pair keeps to one."""
        return self.num_spines * self.num_cables

    @property
    def child_bandwidth(self) -> float:
        """All links of one child into the tier together, per direction [byte/s]."""
        return self.num_choices * self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """The directed links, a structure of read-only arrays of shape ``(E,)``."""

    source: IntArray
    """Vertex where each link starts."""

    target: IntArray
    """Vertex where each link ends."""

    bandwidth: FloatArray
    """Capacity of each link: what traffic reaches [byte/s]."""

    latency: FloatArray
    """Time from each link's entry to its exit for the first byte [s]."""

    level: IntArray
    """Level whose switch each link leads into (upwards) or out of (downwards)."""

    num_parallel: IntArray
    """Physical cables that each link stands for: those of an ideal trunk, else 1."""

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for field in fields(self):
            dtype = np.float64 if field.name in {"bandwidth", "latency"} else np.int64
            array = np.array(getattr(self, field.name), dtype=dtype, order="C")
            array.flags.writeable = False
            object.__setattr__(self, field.name, array)
        assert len({getattr(self, f.name).shape for f in fields(self)}) == 1
        assert np.all(self.bandwidth > 0), "a link without capacity must be left out"
        assert np.all(self.latency >= 0)

    def __len__(self) -> int:
        return int(self.source.shape[0])

    def only(self, kept: BoolArray) -> "Links":
        """Return some of the links, numbered anew in their order."""
        return Links(**{f.name: getattr(self, f.name)[kept] for f in fields(self)})


class Rerouted(NamedTuple):
    """What links that were slowed or removed leave of a network."""

    routing: Routing
    """The rule that avoids what was removed."""

    links: Links
    """All links, removed ones included, under the numbers that they had."""

    levels: tuple[Level, ...]
    """Levels with what is left of their bandwidths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRules:
    """How collectives go level by level, beside what links and routes say."""

    node_levels: int = 1
    """Number of levels inside a node."""

    node_size: int
    """Number of devices of a node, a block of its outermost level."""

    is_library: bool = False
    """Whether a library does the collectives (NCCL and its like): its rings go through
    all levels at once, so that what is passed on inside of nodes is passed on for each
    node, and what all-reduces wait for is a tree between nodes."""

    adds_in_switches: bool = False
    """Whether switches outside nodes add up all-reduces on their way (SHARP)."""

    summed_weight: float = 0.0
    """Load on a link of a byte that a node's switches add up (NVLS), over that of one
    that they pass on: 1 or more, and 0 where they add up nothing."""

    ring_weights: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """For operations of rings, the load of a byte in groups of 2, 3, .. members of one
    node over that in the quickest rings, 1 or more; the last holds for larger groups,
    and 1 for other operations."""

    def ring_weight(self, operation: str, size: int) -> float:
        """Return the load of a byte in rings of so many members of one node."""
        weights = dict(self.ring_weights).get(operation, ())
        return weights[min(size - 2, len(weights) - 1)] if weights and size > 1 else 1.0

    @property
    def adds_anywhere(self) -> bool:
        """Whether any switches add up."""
        return self.adds_in_switches or self.summed_weight > 0.0

    @property
    def depends_on_nodes(self) -> bool:
        """Whether it makes a difference what is inside of nodes."""
        return self.is_library or self.adds_anywhere


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Devices, switches, directed links, routes and levels of one cluster."""

    kind: str
    """Name of the builder: ``"fat-tree"``, ``"rail"``, ``"torus"``, ``"dragonfly"`` and
    so on; ``"pods"`` for pods of any of them."""

    num_devices: int
    """Number of devices, which are vertices ``0 .. num_devices - 1``."""

    vertex_names: tuple[str, ...]
    """Names of all vertices, devices first."""

    links: Links
    """Directed links between vertices."""

    levels: tuple[Level, ...]
    """Levels that pairs of devices meet, from the inside out."""

    block_sizes: tuple[int, ...]
    """Devices per aligned block of consecutive device numbers at which placements
    are worth aligning, rising, the last one being the whole cluster. In trees those
    of the levels; in tori those of a line, a plane and so on."""

    routing: Routing
    """Rule that finds routes and levels."""

    rules: CollectiveRules | None = None
    """How collectives go level by level; None in tori and custom networks, which have
    one phase of rings for each level."""

    host: Host | None = None
    """What stands behind the devices; None if nothing is sent there."""

    num_axes: int = 0
    """How many of `block_sizes`, the innermost ones, are sides of a torus or a mesh: a
    line, a plane and so on; 0 where devices are no routers."""

    __repr__ = short_repr

    @property
    def is_tree(self) -> bool:
        """Whether level 0 is blocks of consecutive devices with one way out."""
        return self.routing.family == "tree"

    @property
    def adds_in_switches(self) -> bool:
        """Whether switches add up all-reduces on their way."""
        return self.rules is not None and self.rules.adds_in_switches

    def with_host(self, host: Host) -> "Network":
        """Return the network with host links, numbered behind all others.

        Hosts are the last vertices, one for each host link, joined to the first of the
        devices that share it; nothing is passed on through them. First come the links
        to all hosts, then those back.
        """
        assert self.host is None, "devices have one host"
        count = -(-self.num_devices // host.devices_per_link)
        device = np.arange(count) * host.devices_per_link
        vertex = len(self.vertex_names) + np.arange(count)
        added = {
            "source": np.concatenate([device, vertex]),
            "target": np.concatenate([vertex, device]),
            "bandwidth": np.repeat([host.to_host, host.to_device], count),
            "latency": np.full(2 * count, host.latency),
            "level": np.full(2 * count, len(self.levels)),
            "num_parallel": np.ones(2 * count),
        }
        links = {
            name: np.concatenate([getattr(self.links, name), values])
            for name, values in added.items()
        }
        return replace(
            self,
            links=Links(**links),
            vertex_names=(
                *self.vertex_names,
                *(f"host {number}" for number in range(count)),
            ),
            host=host,
        )

    @property
    def num_hosts(self) -> int:
        """Host links, each with a vertex of its own; 0 without a host."""
        if self.host is None:
            return 0
        return -(-self.num_devices // self.host.devices_per_link)

    def without_host(self) -> "Network":
        """Return the network of devices and switches alone."""
        if self.host is None:
            return self
        names = self.vertex_names[: len(self.vertex_names) - self.num_hosts]
        links = self.links.only(self.links.level < len(self.levels))
        return replace(self, links=links, vertex_names=names, host=None)

    def host_of(self, devices: IntArray) -> IntArray:
        """Return the vertex of the host behind each device."""
        assert self.host is not None, "nothing is sent to hosts"
        first = len(self.vertex_names) - self.num_hosts
        return np.asarray(first + devices // self.host.devices_per_link, np.int64)

    def level_name(self, number: int) -> str:
        """Return the name of a link's level; host links are behind all levels."""
        return "host" if number == len(self.levels) else self.levels[number].name

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the route of every pair ``sources[q] -> targets[q]``.

        Pairs are two devices, or a device and its own host.
        """
        first = len(self.vertex_names) - self.num_hosts
        to_host, from_host = targets >= first, sources >= first
        beyond = to_host | from_host
        if not beyond.any():
            return self.routing.routes(sources, targets)
        inside = np.flatnonzero(~beyond)
        found = self.routing.routes(sources[inside], targets[inside])
        hops = np.ones(len(sources), np.int64)
        hops[inside] = np.diff(found.indptr)
        indptr = np.concatenate([[0], np.cumsum(hops)])
        links = np.empty(int(indptr[-1]), np.int64)
        links[np.repeat(~beyond, hops)] = found.links
        host_links = len(self.links) - 2 * self.num_hosts
        links[indptr[:-1][to_host]] = host_links + targets[to_host] - first
        links[indptr[:-1][from_host]] = (
            host_links + self.num_hosts + sources[from_host] - first
        )
        return Routes(indptr, links)

    def route(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one device to another, in order."""
        routes = self.routes(np.array([source]), np.array([target]))
        return tuple(int(link) for link in routes.links)

    def pair_levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the level of every pair."""
        return self.routing.levels(sources, targets)

    def group_level(self, devices: IntArray) -> int:
        """Return the outermost level that any pair of the group meets.

        Raises
        ------
        InputError
            If a device is not in the cluster.
        """
        members = np.unique(np.asarray(devices, dtype=np.int64))
        if members.size and not 0 <= members[0] <= members[-1] < self.num_devices:
            raise InputError(
                "no such device",
                got=members.tolist(),
                expected=f"device numbers 0 to {self.num_devices - 1}",
            )
        sources, targets = (a.ravel() for a in np.meshgrid(members, members))
        return int(self.pair_levels(sources, targets).max(initial=0))

    def bisection_bandwidth(self) -> float:
        """Return the capacity between two halves of the devices, one way [byte/s].

        Trees: the smallest cut of all cuts into halves (the links inside a node being
        no slower than its links to the outside; rails: with an even number of nodes,
        otherwise an upper bound). Tori and meshes: the
        smallest cut by a plane that comes nearest to halves. Custom networks, and all
        of which links have been slowed or removed: the largest flow from the first half
        of the device numbers to the second half. With an odd number of devices one half
        has one more.
        """
        return self.routing.bisection_bandwidth()

    def tiers(self) -> tuple[Tier, ...]:
        """Return the physical tiers, from the inside out, for reports."""
        return self.routing.tiers()

    def latencies(self, routes: Routes) -> FloatArray:
        """Return the sum of the links' latencies along each route [s]."""
        return _sum_by_route(routes, self.links.latency)


def _sum_by_route(routes: Routes, values: FloatArray) -> FloatArray:
    """Add up each route on its own, in order: equal routes have equal sums."""
    hops = np.diff(routes.indptr)
    route = np.repeat(np.arange(len(hops)), hops)
    sums = np.zeros(len(hops))
    np.add.at(sums, route, values[routes.links])
    return sums
