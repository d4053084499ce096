"""Routes of every family of rules, walked on the spot.

A subkernel for each family writes the routes of ``M`` messages one behind the other to
``links``, and where each ends to ``ends``. In order from source to target, none where
they are the same device. All O(M h), ``h`` the links of a route; with a graph between
copies (`JOINED`) times the links that end at one of its vertices.

Unsigned loop counters are on purpose: numba tests signed ones for negative indices,
and walking a route takes half as long without.
"""

import numpy as np

from topologies.arrays import Int32Matrix, Int32Vector, IntVector, UInt32Vector
from topologies.compiling import subkernel

# Kinds of routes, and what `numbers` holds for each.
TREE = 0
"""Tiers, planes, relay, NIC per device, whether a hash picks links, devices, then per
tier: what a link down lies above the link up, parallel links, seed of the hash."""
TORUS = 1
"""Dimensions, then per dimension: size, stride, whether it wraps around."""
PATHS = 2
"""Nothing."""
JOINED = 3
"""Kind of one copy and how many numbers it has, devices and links of a copy, links of a
way, first column of the ways, first link and vertices of the graph, whether a hash
picks, its seed, copies of a part of Valiant's routes, parts, devices; then the copy's
numbers and the graph as `topologies.fabrics.routing.JoinedTable` has it."""


_ONE = np.uint64(1)


@subkernel
def _mix(value: np.uint64) -> np.uint64:
    """Scramble 64 bits as trees' hashes do (finaliser of SplitMix64)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@subkernel
def _turn_round(links: UInt32Vector, begin: int, end: int) -> None:
    """Write the links of a way that was found backwards in the order of the way."""
    last = end - 1
    while begin < last:
        links[begin], links[last] = links[last], links[begin]
        begin += 1
        last -= 1


@subkernel
def tree_routes(
    numbers: IntVector,
    rows: Int32Matrix,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write routes up to the lowest common switch and down again, as `walk_routes`."""
    depth = np.uint64(numbers[0])
    planes = numbers[1]
    relay = numbers[2]
    nic_per_device = numbers[3]
    hashed = numbers[4]
    num_devices = np.uint64(numbers[5])
    down = numbers[6:]
    choices = down[numbers[0] :]
    seeds = choices[numbers[0] :]
    at = np.uint64(0)
    for q in range(len(sources)):
        a = np.uint64(sources[q])
        b = np.uint64(targets[q])
        if a != b:
            low = np.uint64(0)
            while rows[a, depth + low] != rows[b, depth + low]:
                low += _ONE
            if planes > 1 and low >= _ONE:
                across = targets[q] % planes - sources[q] % planes
                if relay and across != 0:
                    links[at] = rows[a, 0]
                    a = np.uint64(sources[q] + across)
                    links[at + _ONE] = rows[a, 0] + down[0]
                    at += _ONE + _ONE
                elif across != 0 and low == _ONE:
                    low += _ONE
            first = np.uint64(1 if nic_per_device and low >= _ONE else 0)
            k = first
            while k <= low:
                links[at] = rows[a, k]
                at += _ONE
                k += _ONE
            if hashed:
                back = at
                while k > first:
                    k -= _ONE
                    back -= _ONE
                    links[at] = rows[b, k] + down[k]
                    if choices[k] > 1:
                        drawn = _mix((a * num_devices + b) ^ np.uint64(seeds[k]))
                        pick = drawn % np.uint64(choices[k])
                        links[back] += pick
                        links[at] += pick
                    at += _ONE
            while k > first:
                k -= _ONE
                links[at] = rows[b, k] + down[k]
                at += _ONE
        ends[q] = at


@subkernel
def torus_routes(
    numbers: IntVector,
    rows: Int32Matrix,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write routes that go the shorter way along each dimension, as `walk_routes`."""
    axes = np.uint64(numbers[0])
    at = np.uint64(0)
    for q in range(len(sources)):
        device = sources[q]
        b = np.uint64(targets[q])
        for axis in range(axes):
            place = np.int64(rows[np.uint64(device), axis])
            steps = np.int64(rows[b, axis]) - place
            if steps == 0:
                continue
            size = numbers[np.uint64(1) + np.uint64(3) * axis]
            stride = numbers[np.uint64(2) + np.uint64(3) * axis]
            if numbers[np.uint64(3) + np.uint64(3) * axis]:
                if steps < 0:
                    steps += size
                if 2 * steps > size:
                    steps -= size
            column = axes + np.uint64(2) * axis
            step = 1
            last = size - 1
            back = -last * stride
            if steps < 0:
                column += _ONE
                step = -1
                last = 0
                back = -back
            for _ in range(abs(steps)):
                links[at] = rows[np.uint64(device), column]
                at += _ONE
                if place == last:
                    device += back
                    place = size - 1 - last
                else:
                    device += step * stride
                    place += step
        ends[q] = at


@subkernel
def listed_routes(
    rows: Int32Matrix,
    tails: Int32Vector,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write routes found backwards and turned round, as `walk_routes`."""
    at = 0
    for q in range(len(sources)):
        first = at
        vertex = targets[q]
        while vertex != sources[q]:
            link = rows[sources[q], vertex]
            links[at] = link
            at += 1
            vertex = np.int64(tails[link])
        _turn_round(links, first, at)
        ends[q] = at


@subkernel
def _single_routes(  # noqa: PLR0913, PLR0917 - subkernels take arrays
    kind: int,
    numbers: IntVector,
    rows: Int32Matrix,
    tails: Int32Vector,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write the routes of one network that is not of copies."""
    if kind == TREE:
        tree_routes(numbers, rows, sources, targets, links, ends)
    elif kind == TORUS:
        torus_routes(numbers, rows, sources, targets, links, ends)
    else:
        listed_routes(rows, tails, sources, targets, links, ends)


@subkernel
def _way_over_graph(  # noqa: PLR0913, PLR0917
    graph: IntVector,
    count: int,
    source: int,
    target: int,
    draw: np.uint64,
    first_link: int,
    links: UInt32Vector,
    at: int,
) -> int:
    """Write the way from one vertex of a graph to another; return where it ends.

    Found backwards, as `topologies.fabrics.joined` does, and turned round.
    """
    indptr = graph[: count + 1]
    num_links = indptr[count]
    numbers = graph[count + 1 :]
    tails = numbers[num_links:]
    weights = tails[num_links:]
    distance = weights[num_links + source * count :]
    begin = at
    vertex = target
    while vertex != source:
        far = distance[vertex]
        usable = 0
        for i in range(indptr[vertex], indptr[vertex + 1]):
            if distance[tails[i]] + weights[i] == far:
                usable += 1
        nth = np.int64(draw % np.uint64(usable))
        draw //= np.uint64(usable)
        for i in range(indptr[vertex], indptr[vertex + 1]):
            if distance[tails[i]] + weights[i] == far:
                if nth == 0:
                    links[at] = first_link + numbers[i]
                    at += 1
                    vertex = tails[i]
                    break
                nth -= 1
    _turn_round(links, begin, at)
    return at


@subkernel
def joined_routes(  # noqa: PLR0913, PLR0917
    numbers: IntVector,
    rows: Int32Matrix,
    tails: Int32Vector,
    sources: IntVector,
    targets: IntVector,
    links: UInt32Vector,
    ends: IntVector,
) -> None:
    """Write routes inside copies, and from copy to copy over the graph between them."""
    kind, num_inner, size, per_copy, way, column = numbers[:6]
    first_link, count, hashed, seed, spread, parts, num_devices = numbers[6:13]
    inner = numbers[13 : 13 + num_inner]
    graph = numbers[13 + num_inner :]
    landing = graph[count + 1 + 3 * graph[count] + count * count :]
    here = np.empty(len(sources), np.int64)
    there = np.empty(len(sources), np.int64)
    for q in range(len(sources)):
        alike = sources[q] // size == targets[q] // size
        here[q] = sources[q] % size if alike else 0
        there[q] = targets[q] % size if alike else 0
    stops = np.empty(len(sources), np.int64)
    inside = np.empty(len(links), np.uint32)
    _single_routes(kind, inner, rows, tails, here, there, inside, stops)
    at = 0
    i = 0
    for q in range(len(sources)):
        source = sources[q] // size
        target = targets[q] // size
        offset = source * per_copy
        while i < stops[q]:
            links[at] = inside[i] + offset
            at += 1
            i += 1
        if source != target:
            for k in range(way):
                links[at] = offset + rows[sources[q] % size, column + k]
                at += 1
            if hashed:
                pair = np.uint64(sources[q]) * np.uint64(num_devices)
                draw = _mix((pair + np.uint64(targets[q])) ^ np.uint64(seed))
            else:
                draw = np.uint64(source + target)
            middle = target
            if parts:
                part = np.int64(draw % np.uint64(parts))
                draw //= np.uint64(parts)
                if part != source // spread and part != target // spread:
                    middle = landing[source * parts + part]
            at = _way_over_graph(
                graph, count, source, middle, draw, first_link, links, at
            )
            if middle != target:
                at = _way_over_graph(
                    graph, count, middle, target, draw, first_link, links, at
                )
            offset = target * per_copy
            for k in range(way):
                links[at] = offset + rows[targets[q] % size, column + way + k]
                at += 1
        ends[q] = at
