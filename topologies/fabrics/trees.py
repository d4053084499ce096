"""Networks whose switches form one tree: fat-tree, spine-leaf, rail-optimised.

Letters: ``k`` tier, 0 the innermost; ``f_k`` fan-out; ``B_k = f_0 ... f_k`` devices
of a block of tier ``k``; ``P_k`` planes, the switches of one block that share no
device link (the rails of a unit); ``S_k`` spines, the switches among which a child
has a link to each, of its own plane where planes go on (rail-only); ``C_k`` separate
cables of a child to its one switch. At most one of ``S_k`` and ``C_k`` is above 1; a
hash picks the spine or the cable.
Vertices: devices, then the switches of tier 0, 1, ...
Links: for each tier all links up, by child and choice, then all links down.

Switches spread pairs of devices over links of equal cost by a hash of source and
target, and a pair keeps to one link (equal-cost multi-path, ECMP [1]_). Pairs whose
link is gone are hashed again, among the links that are left; all others stay where they
were, as with resilient hashing [2]_. There, ``P`` are pairs and ``C`` parallel links.

Builders of networks whose switches form a tree.

Every builder turns its parameters into tiers of one tree core,
`topologies.fabrics.trees`. Devices are numbered consecutively inside a node,
nodes inside a leaf or unit, and so on.

References
----------
.. [1] Hopps, "Analysis of an equal-cost multi-path algorithm", RFC 2992, 2000.
.. [2] Cumulus Linux documentation, "Equal cost multipath: resilient hashing".
.. [3] Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
   OOPSLA 2014, Figure 16.
.. [4] Leiserson, "Fat-trees: universal networks for hardware-efficient
   supercomputing", IEEE Transactions on Computers 1985.
.. [5] NVIDIA, "DGX SuperPOD Reference Architecture (H100)", 2023: rails.
.. [6] W. Wang et al., "Rail-only: A Low-Cost High-Performance Network for Training LLMs
   with Trillion Parameters", arXiv:2307.12169, 2023.
"""

import math
from dataclasses import replace

import numpy as np

from topologies.arrays import BoolArray, FloatArray, HashArray, IntArray
from topologies.errors import InputError
from topologies.fabrics.routing import BuiltRouting, TreeTable
from topologies.network import (
    CollectiveRules,
    Family,
    Level,
    Links,
    Network,
    Routes,
    Tier,
)
from topologies.records import MAX_CABLES, MAX_SPINE_LINKS
from topologies.specs import FatTreeSpec, RailSpec, SpineLeafSpec


def scramble(values: HashArray) -> HashArray:
    """Scramble 64-bit integers with the finaliser of SplitMix64 [3]_."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def tier_seeds(seed: int, num_tiers: int) -> tuple[int, ...]:
    """Return one seed per tier, below ``2**64``: tiers draw apart from each other.

    The outermost tier's is the seed scrambled once, each tier further in once more.
    """
    seeds = [np.array([seed % 2**64], dtype=np.uint64)]
    for _ in range(num_tiers):
        seeds.append(scramble(seeds[-1]))
    return tuple(int(value[0]) for value in reversed(seeds[1:]))


def hash_pairs(
    sources: IntArray, targets: IntArray, num_devices: int, seed: int
) -> HashArray:
    """Return a hash of each pair, of which the order of its devices matters."""
    pairs = (sources * num_devices + targets).astype(np.uint64)
    return scramble(pairs ^ np.uint64(seed))


def pick(hashes: HashArray, count: int) -> IntArray:
    """Return which of ``count`` parallel links each pair takes."""
    return (hashes % np.uint64(count)).astype(np.int64)


def pick_among(hashes: HashArray, usable: BoolArray) -> IntArray:
    """Return which link each pair takes if it can use some of them only.

    Parameters
    ----------
    hashes
        Of the pairs, shape ``(P,)``.
    usable
        Which of the links each pair can use, shape ``(P, C)``.

    Returns
    -------
    IntArray
        What `pick` returns where that is usable; elsewhere one of the usable links,
        by the hash scrambled once more, as the hash itself is not spread over what is
        left; what `pick` returns where none is usable.
    """
    picks = pick(hashes, usable.shape[1])
    left = usable.sum(axis=1)
    moves = np.flatnonzero(~usable[np.arange(len(picks)), picks] & (left > 0))
    nth = scramble(hashes[moves]) % left[moves].astype(np.uint64)
    rank = np.cumsum(usable[moves], axis=1)
    picks[moves] = np.argmax(rank > nth.astype(np.int64)[:, None], axis=1)
    return picks


class TreeRouting(BuiltRouting):
    """Up to the lowest common switch, and down again; by arithmetic alone.

    Parameters
    ----------
    tiers
        From the inside out. Planes begin at tier 1, where nothing but a relay joins
        them also above it; spines are for the outermost.
    relay
        With planes, whether traffic to another plane first crosses the node to the
        local device on the receiver's plane (NCCL's PXN). If not, it takes the tier
        above.
    seed
        Of the hash that picks spines and cables.
    """

    family: Family = "tree"

    def __init__(
        self, tiers: tuple[Tier, ...], *, relay: bool = True, seed: int = 0
    ) -> None:
        self.switch_tiers = tiers
        self.relay = relay
        self.seeds = tier_seeds(seed, len(tiers))
        self.block_sizes = [
            int(b) for b in np.cumprod([tier.fan_out for tier in tiers], dtype=np.int64)
        ]
        self.num_devices = self.block_sizes[-1]
        self.num_blocks = [self.num_devices // size for size in self.block_sizes]
        self.num_planes = tiers[1].num_planes if len(tiers) > 1 else 1
        self.nic_per_device = len(tiers) > 1 and tiers[1].joins_devices
        assert tiers[0].num_planes == 1
        above = {tier.num_planes for tier in tiers[2:]}
        assert above <= {1} or (relay and above == {self.num_planes})
        assert all(t.num_spines == 1 for t in tiers[:-1])
        assert all(1 in {t.num_spines, t.num_cables} for t in tiers)
        self.num_children = [self._count_children(k) for k in range(len(tiers))]
        sizes = [
            2 * count * tier.num_choices
            for count, tier in zip(self.num_children, tiers, strict=True)
        ]
        self.first_link = [0, *(int(n) for n in np.cumsum(sizes))]
        self.num_vertices = self._first_switch(len(tiers))
        self.switch_tiers = tuple(self._counted(k) for k in range(len(tiers)))

    def _count_children(self, k: int) -> int:
        if self._joins_devices(k):
            return self.num_devices
        return self.num_blocks[k - 1] * self.switch_tiers[k - 1].num_planes

    def _joins_devices(self, k: int) -> bool:
        return k == 0 or self.switch_tiers[k].joins_devices

    def _child(self, devices: IntArray, k: int) -> IntArray:
        """Return the child of tier ``k`` through which each device reaches it."""
        if self._joins_devices(k):
            return devices
        planes = self.switch_tiers[k - 1].num_planes
        return devices // self.block_sizes[k - 1] * planes + devices % planes

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the tier of each pair's lowest common switch."""
        lowest = np.zeros(np.shape(sources), dtype=np.int64)
        for size in self.block_sizes[:-1]:
            lowest += sources // size != targets // size
        if self.num_planes > 1 and not self.relay:
            other_plane = sources % self.num_planes != targets % self.num_planes
            lowest += (lowest == 1) & other_plane
        return lowest

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the routes; O(pairs x tiers), no loop over pairs."""
        return self._routes(sources, targets, None)

    def rehashed_routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray
    ) -> Routes:
        """Return the routes over links that are kept, where there is a choice.

        Pairs whose spine or cable is not kept both ways take one that is, if there is
        one.
        """
        return self._routes(sources, targets, kept)

    def _routes(
        self, sources: IntArray, targets: IntArray, kept: BoolArray | None
    ) -> Routes:
        sources = np.asarray(sources, dtype=np.int64)
        targets = np.asarray(targets, dtype=np.int64)
        lowest = np.where(sources == targets, -1, self.levels(sources, targets))
        columns: list[tuple[IntArray, BoolArray]] = []
        if self.num_planes > 1 and self.relay:
            planes = self.num_planes
            proxies = sources // planes * planes + targets % planes
            crosses = (lowest >= 1) & (proxies != sources)
            columns += [(self.up(sources, 0), crosses)]
            columns += [(self._down(proxies, 0), crosses)]
            sources = np.where(crosses, proxies, sources)
        used = [lowest >= k for k in range(len(self.switch_tiers))]
        if self.nic_per_device:
            used[0] = lowest == 0
        tiers = range(len(self.switch_tiers))
        picks = [self._picks(sources, targets, k, kept) for k in tiers]
        columns += [(self.up(sources, k, picks[k]), used[k]) for k in tiers]
        for k in reversed(tiers):
            columns.append((self._down(targets, k, picks[k]), used[k]))
        links = np.stack([column for column, _ in columns], axis=-1)
        mask = np.stack([where for _, where in columns], axis=-1)
        indptr = np.zeros(len(sources) + 1, dtype=np.int64)
        np.cumsum(mask.sum(axis=-1), out=indptr[1:])
        return Routes(indptr=indptr, links=links[mask])

    def _picks(
        self, sources: IntArray, targets: IntArray, k: int, kept: BoolArray | None
    ) -> IntArray | int:
        """Pick the spine or the cable of each pair at tier ``k``."""
        count = self.switch_tiers[k].num_choices
        if count == 1:
            return 0
        hashes = hash_pairs(sources, targets, self.num_devices, self.seeds[k])
        if kept is None:
            return pick(hashes, count)
        choices = np.arange(count)
        up = kept[self.up(sources, k)[:, None] + choices]
        return pick_among(hashes, up & kept[self._down(targets, k)[:, None] + choices])

    def up(self, devices: IntArray, k: int, picks: IntArray | int = 0) -> IntArray:
        """Return the link through which each device goes up into tier ``k``."""
        count = self.switch_tiers[k].num_choices
        return self.first_link[k] + self._child(devices, k) * count + picks

    def _down(self, devices: IntArray, k: int, picks: IntArray | int = 0) -> IntArray:
        num_up = self.num_children[k] * self.switch_tiers[k].num_choices
        return num_up + self.up(devices, k, picks)

    def uplink_bandwidth(self, k: int) -> float:
        """Return what one block of tier ``k`` can send upwards [byte/s]."""
        if k + 1 == len(self.switch_tiers):
            return float("inf")
        return self._links_per_block(k + 1, k) * self.switch_tiers[k + 1].capacity

    def oversubscription(self, k: int) -> float:
        """Return what a block's children can send into it over its links up, or 1."""
        if k + 1 == len(self.switch_tiers):
            return 1.0
        sending = self._links_per_block(k, k) * self.switch_tiers[k].capacity
        return sending / self.uplink_bandwidth(k)

    def _links_per_block(self, k: int, block_tier: int) -> int:
        """Return the links up into tier ``k`` from one block of another tier."""
        children = self.num_children[k] // self.num_blocks[block_tier]
        return children * self.switch_tiers[k].num_choices

    def sums_by_block(self, values: FloatArray, k: int, block_tier: int) -> FloatArray:
        """Add up values of the links up into tier ``k``, by block of another tier."""
        num_up = self.num_children[k] * self.switch_tiers[k].num_choices
        up = values[self.first_link[k] : self.first_link[k] + num_up]
        sums: FloatArray = up.reshape(self.num_blocks[block_tier], -1).sum(axis=1)
        return sums

    def bisection_bandwidth(self) -> float:
        """Return the smallest cut into halves, one way [byte/s].

        With ``w_k`` the cheapest way to cut a block of tier ``k`` off, that is
        ``min(uplinks, f_k w_{k-1})``, and ``w_{-1}`` a device's own links, halving a
        block costs ``f_k // 2 * w_{k-1}``, and if ``f_k`` is odd, halving one block
        of the tier below. Smallest where the links inside a node are not slower than
        its links to the outside and, with planes, the number of nodes is even.
        """
        first = self.switch_tiers[:2] if self.nic_per_device else self.switch_tiers[:1]
        apart = sum(tier.num_choices * tier.capacity for tier in first)
        halved = 0.0
        for k, tier in enumerate(self.switch_tiers):
            rest = halved if tier.fan_out % 2 else 0.0
            halved = tier.fan_out // 2 * apart + rest
            apart = min(self.uplink_bandwidth(k), tier.fan_out * apart)
        return halved

    def tiers(self) -> tuple[Tier, ...]:
        """Return the tiers of switches, from the inside out."""
        return self.switch_tiers

    def _counted(self, k: int) -> Tier:
        """Return a tier with what follows from all of them together."""
        tier = self.switch_tiers[k]
        counted = replace(
            tier,
            num_blocks=self.num_blocks[k],
            block_size=self.block_sizes[k],
            num_links=self.num_children[k] * tier.num_choices * tier.num_parallel,
        )
        if k + 1 == len(self.switch_tiers):
            return counted
        above = self.switch_tiers[k + 1]
        uplink = self._links_per_block(k + 1, k) * above.bandwidth
        return replace(
            counted,
            num_uplinks=self._links_per_block(k + 1, k) * above.num_parallel,
            uplink_bandwidth=uplink,
            oversubscription=self._links_per_block(k, k) * tier.bandwidth / uplink,
        )

    def planner_levels(self) -> tuple[Level, ...]:
        """Return the levels; of several routes, the longest and narrowest counts."""
        return tuple(self._level(k) for k in range(len(self.switch_tiers)))

    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link before any was slowed [byte/s]."""
        return self.links().bandwidth

    def levels_left(
        self, levels: tuple[Level, ...], links: Links, capacity: FloatArray
    ) -> tuple[Level, ...]:
        """Return levels with what is left of their bandwidths; latencies stay.

        A level's bandwidth is that of the slowest link left among those that its
        undisturbed routes may cross. What leaves a block, and the oversubscription, are
        those of the block that has most left: so bounds made of them hold for all.
        """
        narrowest = []
        for k, tier in enumerate(self.switch_tiers):
            left = capacity[links.level == k]
            narrowest.append(float(left[left > 0].min(initial=tier.capacity)))
        left_levels = []
        for k, level in enumerate(levels):
            bandwidth = min(narrowest[tier] for tier in self.path(k))
            uplink, ratio = level.uplink_bandwidth, level.oversubscription
            if k + 1 < len(levels):
                leaving = self.sums_by_block(capacity, k + 1, k)
                best = int(leaving.argmax())
                uplink = float(leaving[best])
                sending = float(self.sums_by_block(capacity, k, k)[best])
                ratio = sending / uplink if uplink else float("inf")
            left_levels.append(
                replace(
                    level,
                    bandwidth=bandwidth,
                    uplink_bandwidth=uplink,
                    oversubscription=ratio,
                )
            )
        return tuple(left_levels)

    def table(self) -> TreeTable:
        """Return the rule as plain arrays, for kernels."""
        devices = np.arange(self.num_devices, dtype=np.int64)
        depth = len(self.switch_tiers)
        up = [self.up(devices, k) for k in range(depth)]
        blocks = [devices // size for size in self.block_sizes]
        num_up = [
            count * tier.num_choices
            for count, tier in zip(self.num_children, self.switch_tiers, strict=True)
        ]
        return TreeTable(
            rows=np.stack([*up, *blocks], axis=1).astype(np.int32),
            down=np.array(num_up, dtype=np.int64),
            num_planes=self.num_planes,
            relay=self.relay,
            nic_per_device=self.nic_per_device,
            num_choices=tuple(tier.num_choices for tier in self.switch_tiers),
            seeds=self.seeds,
            longest=2 * depth + 2,
        )

    def path(self, k: int) -> tuple[int, ...]:
        """Return the tiers whose links routes at a level may cross, up and down."""
        first = 1 if self.nic_per_device and k else 0
        crosses = k > 0 and self.num_planes > 1 and self.relay
        return (*range(first, k + 1), *((0,) if crosses else ()))

    def _level(self, k: int) -> Level:
        path = [self.switch_tiers[tier] for tier in self.path(k)]
        return Level(
            name=self.switch_tiers[k].name,
            block_size=self.block_sizes[k],
            num_blocks=self.num_blocks[k],
            bandwidth=min(tier.capacity for tier in path),
            latency=2 * sum(tier.latency for tier in path),
            uplink_bandwidth=self.uplink_bandwidth(k),
            oversubscription=self.oversubscription(k),
        )

    def links(self) -> Links:
        """Return all links, in the order that the routes count on."""
        parts = [self._tier_links(k) for k in range(len(self.switch_tiers))]
        tiers = np.repeat(np.arange(len(parts)), [len(source) for source, _ in parts])
        values = [(t.capacity, t.latency, t.num_parallel) for t in self.switch_tiers]
        bandwidth, latency, num_parallel = (
            np.array(v)[tiers] for v in zip(*values, strict=True)
        )
        return Links(
            source=np.concatenate([source for source, _ in parts]),
            target=np.concatenate([target for _, target in parts]),
            bandwidth=bandwidth,
            latency=latency,
            level=tiers,
            num_parallel=num_parallel,
        )

    def _num_switches(self, k: int) -> int:
        tier = self.switch_tiers[k]
        return self.num_blocks[k] * tier.num_planes * tier.num_spines

    def _tier_links(self, k: int) -> tuple[IntArray, IntArray]:
        """Return source and target of the links between tier ``k`` and its children."""
        tier = self.switch_tiers[k]
        child = np.arange(self.num_children[k], dtype=np.int64)
        if self._joins_devices(k):
            parent = child // self.block_sizes[k] * tier.num_planes
            parent += child % tier.num_planes
            below = child
        else:
            below_per_block = self.num_children[k] // self.num_blocks[k]
            parent = child // below_per_block * tier.num_planes
            parent += child % tier.num_planes
            below = child + self._first_switch(k - 1)
        spine = np.arange(tier.num_choices) // tier.num_cables
        lower = np.repeat(below, tier.num_choices)
        upper = (parent[:, None] * tier.num_spines + spine).ravel()
        upper += self._first_switch(k)
        return np.concatenate([lower, upper]), np.concatenate([upper, lower])

    def _first_switch(self, k: int) -> int:
        return self.num_devices + sum(self._num_switches(i) for i in range(k))

    def vertex_names(self) -> tuple[str, ...]:
        """Return ``"device 5"``, ``"leaf 0"``; ``"rail unit 1 rail 3"`` with planes."""
        names = [f"device {d}" for d in range(self.num_devices)]
        for k, tier in enumerate(self.switch_tiers):
            planes, spines = tier.num_planes, tier.num_spines
            for i in range(self._num_switches(k)):
                block, plane = divmod(i // spines, planes)
                rail = f" rail {plane}" if planes > 1 else ""
                names.append(f"{tier.name} {block * spines + i % spines}{rail}")
        return tuple(names)


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
    """Build rail-optimised units [5]_: one rail switch per unit and local rank.

    Spines are one vertex or several, as in `build_spine_leaf`; in rail-only networks
    [6]_ so many for each rail, and none above the rail switches of one unit.
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
