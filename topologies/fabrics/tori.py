"""Tori and meshes of 1 to 3 dimensions: every device is also a router.

Devices are numbered in row-major order, the last dimension fastest. Routes are
dimension-ordered [1]_: first along dimension 0, then 1, then 2, each the shorter way
round; exactly half-way round goes in the positive direction. A dimension of size 2
that wraps around joins its two devices once, not twice.

References
----------
.. [1] Dally and Seitz, "Deadlock-free message routing in multiprocessor
   interconnection networks", IEEE Transactions on Computers 1987.
.. [2] Dally and Towles, "Principles and practices of interconnection networks",
   2004, section 5.2: bisections of tori and meshes.
"""

import math

import numpy as np

from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.fabrics.routing import BuiltRouting, TorusTable
from topologies.network import Family, Level, Links, Network, Routes, Tier
from topologies.specs import TorusSpec

MAX_LEVELS = 5
"""Classes of hop distance, at most."""


class TorusRouting(BuiltRouting):
    """Dimension-ordered shortest routes; by arithmetic and one table of links."""

    family: Family = "torus"

    def __init__(self, spec: TorusSpec) -> None:
        self.spec = spec
        self.num_devices = self.num_vertices = spec.num_devices
        self.shape = spec.dimensions
        self.strides = tuple(
            math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))
        )
        self.source, self.target, self.link_towards = self._wire()
        self.class_bounds = _class_bounds(self.diameter)
        self._classes = np.zeros(self.diameter + 1, dtype=np.int64)
        for bound in self.class_bounds[:-1]:
            self._classes[bound + 1 :] += 1

    @property
    def diameter(self) -> int:
        """The largest distance [hops]."""
        return sum(self.reach(axis) for axis in range(len(self.shape)))

    def reach(self, axis: int) -> int:
        """Return the largest distance along one dimension [hops]."""
        size = self.shape[axis]
        return size // 2 if self.spec.wrap[axis] else size - 1

    def _wire(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the links' ends, and the link of each device, axis and direction.

        The table has shape ``(devices, axes, 2)``, direction 0 being positive, and
        -1 where there is no neighbour.
        """
        num_devices = self.spec.num_devices
        devices = np.arange(num_devices, dtype=np.int64)
        table = np.full((num_devices, len(self.shape), 2), -1, dtype=np.int64)
        sources, targets, count = [], [], 0
        for axis, size in enumerate(self.shape):
            position = self._position(devices, axis)
            for direction, step in enumerate((1, -1)):
                there = (position + step) % size
                exists = self._exists(position + step, axis)
                if size == 2 and direction == 1:
                    exists &= table[:, axis, 0] < 0
                senders = devices[exists]
                table[senders, axis, direction] = count + np.arange(len(senders))
                sources.append(senders)
                targets.append(
                    (devices + (there - position) * self.strides[axis])[exists]
                )
                count += len(senders)
        return np.concatenate(sources), np.concatenate(targets), table

    def _exists(self, position: IntArray, axis: int) -> BoolArray:
        size = self.shape[axis]
        inside = (position >= 0) & (position < size)
        return inside | (self.spec.wrap[axis] and size > 1)

    def _position(self, devices: IntArray, axis: int) -> IntArray:
        return devices // self.strides[axis] % self.shape[axis]

    def steps(self, sources: IntArray, targets: IntArray, axis: int) -> IntArray:
        """Return how far each pair is apart along a dimension, signed [hops]."""
        size = self.shape[axis]
        delta = self._position(targets, axis) - self._position(sources, axis)
        if not self.spec.wrap[axis]:
            return delta
        forward = delta % size
        return np.where(2 * forward <= size, forward, forward - size)

    def distances(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the number of links on each pair's route."""
        total = np.zeros(np.shape(sources), dtype=np.int64)
        for axis in range(len(self.shape)):
            total += np.abs(self.steps(sources, targets, axis))
        return total

    def levels(self, sources: IntArray, targets: IntArray) -> IntArray:
        """Return the distance class of each pair."""
        classes: IntArray = self._classes[self.distances(sources, targets)]
        return classes

    def routes(self, sources: IntArray, targets: IntArray) -> Routes:
        """Return the routes; O(pairs + links on them), no loop over pairs."""
        current = np.array(sources, dtype=np.int64)
        targets = np.asarray(targets, dtype=np.int64)
        indptr = np.zeros(len(current) + 1, dtype=np.int64)
        np.cumsum(self.distances(current, targets), out=indptr[1:])
        links = np.empty(int(indptr[-1]), dtype=np.int64)
        start = indptr[:-1].copy()
        for axis, (size, stride) in enumerate(
            zip(self.shape, self.strides, strict=True)
        ):
            steps = self.steps(current, targets, axis)
            hops = np.abs(steps)
            first = np.cumsum(hops) - hops
            taken = np.arange(int(hops.sum())) - np.repeat(first, hops)
            sign = np.repeat(np.sign(steps), hops)
            begin = np.repeat(self._position(current, axis), hops)
            base = np.repeat(current, hops) - begin * stride
            device = base + (begin + sign * taken) % size * stride
            direction = (sign < 0).astype(np.int64)
            place = np.repeat(start, hops) + taken
            links[place] = self._link(device, axis, direction)
            start += hops
            moved = self._position(targets, axis) - self._position(current, axis)
            current += moved * stride
        return Routes(indptr=indptr, links=links)

    def built_bandwidths(self) -> FloatArray:
        """Return the capacity of each link before any was slowed [byte/s]."""
        return np.full(self.source.shape, self.spec.capacity)

    def levels_left(
        self, levels: tuple[Level, ...], links: Links, capacity: FloatArray
    ) -> tuple[Level, ...]:
        """Return levels of which the narrowest link left sets the bandwidth."""
        del levels, links
        return self.planner_levels(capacity)

    def table(self) -> TorusTable:
        """Return the rule as plain arrays, for kernels."""
        devices = np.arange(self.num_devices, dtype=np.int64)
        strides = np.array(self.strides, dtype=np.int64)
        shape = np.array(self.shape, dtype=np.int64)
        positions = devices[:, None] // strides % shape
        links = self.link_towards.reshape(len(devices), -1)
        return TorusTable(
            rows=np.concatenate([positions, links], axis=1).astype(np.int32),
            shape=shape,
            strides=strides,
            wrap=np.array(self.spec.wrap, dtype=np.int64),
            longest=self.diameter,
        )

    def _link(self, device: IntArray, axis: int, direction: IntArray) -> IntArray:
        links: IntArray = self.link_towards[device, axis, direction]
        return links

    def bisection_bandwidth(self) -> float:
        """Return the capacity of the smallest cut by a plane, one way [byte/s] [2]_.

        A plane across a dimension of odd size leaves a layer in the middle, which is
        halved in the same way.
        """
        sides = tuple(zip(self.shape, self.spec.wrap, strict=True))
        return _halving_links(sides) * self.spec.capacity

    def tiers(self) -> tuple[Tier, ...]:
        """Return one row per dimension, its lines or rings; the last one first."""
        rows = [self._tier(axis) for axis in reversed(range(len(self.shape)))]
        return tuple(rows)

    def _tier(self, axis: int) -> Tier:
        size = self.shape[axis]
        used = self.link_towards[:, axis, :]
        return Tier(
            name=f"dimension {axis} ({'ring' if self.spec.wrap[axis] else 'line'})",
            fan_out=size,
            bandwidth=self.spec.bandwidth,
            latency=self.spec.latency,
            efficiency=self.spec.efficiency,
            joins_devices=True,
            num_blocks=self.spec.num_devices // size,
            block_size=size,
            num_links=int((used >= 0).sum()) // 2,
        )

    def planner_levels(self, capacity: FloatArray | None = None) -> tuple[Level, ...]:
        """Return one level per class of distances, seen from a device in the middle.

        A block is the ball of devices within the class's largest distance of that
        device; its uplinks are the links that leave the ball. Latency is that of the
        class's longest route. With ``capacity``, what is left of each link, bandwidth
        is that of the narrowest one left.
        """
        if capacity is None:
            capacity = self.built_bandwidths()
        middle = sum(
            size // 2 * stride
            for size, stride in zip(self.shape, self.strides, strict=True)
        )
        devices = np.arange(self.spec.num_devices, dtype=np.int64)
        distance = self.distances(np.full_like(devices, middle), devices)
        return tuple(
            self._level(index, distance, capacity)
            for index in range(len(self.class_bounds))
        )

    def _level(self, index: int, distance: IntArray, capacity: FloatArray) -> Level:
        bound = self.class_bounds[index]
        outermost = index + 1 == len(self.class_bounds)
        inside = distance <= bound
        leaving = float(capacity[inside[self.source] & ~inside[self.target]].sum())
        sending = float(capacity[inside[self.source]].sum())
        block_size = self.spec.num_devices if outermost else int(inside.sum())
        blocked = leaving > 0 and not outermost
        return Level(
            name=_class_name(self.class_bounds, index),
            block_size=block_size,
            num_blocks=-(-self.spec.num_devices // block_size),
            bandwidth=float(capacity[capacity > 0].min(initial=self.spec.capacity)),
            latency=bound * self.spec.latency,
            uplink_bandwidth=leaving if blocked else math.inf,
            oversubscription=sending / leaving if blocked else 1.0,
        )


def _halving_links(sides: tuple[tuple[int, bool], ...]) -> int:
    """Return the links that a plane cut into halves crosses, given size and wrap."""
    cuts = []
    for axis, (size, wraps) in enumerate(sides):
        if size > 1:
            others = sides[:axis] + sides[axis + 1 :]
            layer = math.prod(other for other, _ in others)
            crossings = layer * (2 if wraps and size > 2 else 1)
            cuts.append(crossings + (_halving_links(others) if size % 2 else 0))
    return min(cuts, default=0)


def _class_bounds(diameter: int) -> tuple[int, ...]:
    """Return the largest distance of each class: 1 hop, then geometrically wider."""
    if diameter <= MAX_LEVELS:
        return tuple(range(1, diameter + 1)) or (0,)
    ratio = diameter ** (1 / (MAX_LEVELS - 1))
    bounds = [1]
    for power in range(1, MAX_LEVELS - 1):
        bounds.append(max(bounds[-1] + 1, round(ratio**power)))
    return (*bounds, diameter)


def _class_name(bounds: tuple[int, ...], index: int) -> str:
    last = bounds[index]
    first = bounds[index - 1] + 1 if index else min(1, last)
    hops = f"{first}" if first == last else f"{first}-{last}"
    return f"{hops} hop" if last == 1 else f"{hops} hops"


def build_torus(spec: TorusSpec) -> Network:
    """Build a torus or a mesh."""
    routing = TorusRouting(spec)
    num_links = routing.source.shape[0]
    products = {math.prod(spec.dimensions[axis:]) for axis in range(len(routing.shape))}
    block_sizes = tuple(sorted({p for p in products if p > 1} or {1}))
    return Network(
        kind=spec.kind,
        num_devices=spec.num_devices,
        vertex_names=tuple(f"device {d}" for d in range(spec.num_devices)),
        links=Links(
            source=routing.source,
            target=routing.target,
            bandwidth=routing.built_bandwidths(),
            latency=np.full(num_links, spec.latency),
            level=np.zeros(num_links, dtype=np.int64),
            num_parallel=np.ones(num_links, dtype=np.int64),
        ),
        levels=routing.planner_levels(),
        block_sizes=block_sizes,
        num_axes=len(block_sizes),
        routing=routing,
    )
