"""The links that flows cross, and which actors, channels and links behave alike.

Colour refinement: which actors, channels and links behave alike.

What an item does next depends on others like this:

- an *actor* on the channel at each of its ports;
- a *channel* on the actors that post to it, each by a port, and on its flow's links:
  it waits for all posts, and has the lowest level that any of its links allows, so
  what counts is which kinds of posts and links there are, not how many of each;
- a *link* on the total weight of the flows of each kind that cross it.

Classes are *stable* if all members of a class depend on the same classes in this sense.
Letters: ``A`` actors, ``P`` ports, ``C`` channels, with a flow each, ``L`` links, ``E``
pairs of a flow and a link.

References
----------
.. [1] Paige, Tarjan, "Three partition refinement algorithms", SIAM J. Comput. 16(6)
   1987 (the coarsest stable refinement of given classes).
.. [2] Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
   2014, Figure 16 (the finaliser of SplitMix64).
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    BoolArray,
    BoolMatrix,
    FloatArray,
    FloatMatrix,
    FloatVector,
    HashVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel


class Neighbours(NamedTuple):
    """Links next to each link on routes, each once, in compressed rows."""

    indptr: IntVector
    """Where the neighbours of each link begin, shape ``(E + 1,)``."""

    links: IntVector
    """The neighbours of all links."""


@kernel
def add_lanes(
    counts: IntVector,
    weights: FloatVector,
    indptr: IntVector,
    links: IntVector,
    num_links: int,
) -> tuple[IntArray, IntArray, FloatArray]:
    """Add up the lanes of each flow on each link.

    O(hops of all lanes + k log k for each flow on k links).

    Parameters
    ----------
    counts
        Lanes of each flow, flow by flow, shape ``(F,)``.
    weights
        Of each lane, positive, shape ``(N,)``; all 1 if there are none.
    indptr, links
        Compressed rows: the route of each lane.
    num_links
        Of the network.

    Returns
    -------
    tuple[IntArray, IntArray, FloatArray]
        Compressed rows by flow: links, rising, and their total weights.
    """
    num_flows = counts.shape[0]
    rows = np.zeros(num_flows + 1, np.int64)
    firsts = np.empty(links.shape[0], np.int64)
    totals = np.empty(links.shape[0])
    total = np.zeros(num_links)
    lane, end = 0, 0
    for f in range(num_flows):
        begin = end
        for n in range(lane, lane + counts[f]):
            weight = weights[n] if weights.shape[0] > 0 else 1.0
            for e in range(indptr[n], indptr[n + 1]):
                if total[links[e]] == 0.0:
                    firsts[end] = links[e]
                    end += 1
                total[links[e]] += weight
        lane += counts[f]
        if end - begin < num_links // 16:
            firsts[begin:end].sort()
        else:
            firsts[begin:end] = np.flatnonzero(total)
        for e in range(begin, end):
            totals[e] = total[firsts[e]]
            total[firsts[e]] = 0.0
        rows[f + 1] = end
    return rows, firsts[:end].copy(), totals[:end].copy()


@kernel
def consecutive_links(indptr: IntVector, links: IntVector, num_links: int) -> IntArray:
    """Return links that follow each other on routes: ``first * num_links + second``.

    Some pairs more than once: not those that were the last of their first or of their
    second link. O(hops of all routes).
    """
    after, before = _unset(num_links), _unset(num_links)
    pairs = np.empty(links.size, np.int64)
    count = 0
    for route in range(indptr.size - 1):
        for e in range(indptr[route] + 1, indptr[route + 1]):
            first, second = links[e - 1], links[e]
            if after[first] != second and before[second] != first:
                pairs[count] = first * num_links + second
                count += 1
            after[first], before[second] = second, first
    return pairs[:count].copy()


@kernel
def binding_links(
    order: IntVector,
    capacity: FloatVector,
    inner: BoolMatrix,
    before: Neighbours,
    after: Neighbours,
) -> BoolArray:
    """Return for each link whether it can limit a flow that the others do not.

    Let ``H`` be the links that come directly before link ``l`` on the routes through
    it. If no route starts with ``l``, the weight of any flow on ``l`` is at most the
    sum of its weights on ``H``; so if the capacities of ``H`` add up to at most that
    of ``l``, the constraint of ``l`` follows from those of ``H`` and never changes the
    max-min fair rates. The same holds for the links directly after ``l`` if no route
    ends with it. A constraint is dropped only if it follows from links that were
    dropped earlier or that are kept for good (``locked``), so no two links can be
    dropped on account of each other. O(links + pairs of consecutive links).

    Parameters
    ----------
    order
        Links in the order in which they are tried: by rising capacity, so that a
        tree is pruned from the inside out; it decides ties.
    capacity
        Shape ``(E,)`` [byte/s].
    inner
        Shape ``(2, E)``: whether no route starts, and whether none ends, with a link.
    before, after
        Links directly before and after each link.

    Returns
    -------
    BoolArray
        Shape ``(E,)``.
    """
    num_links = capacity.shape[0]
    kept = np.ones(num_links, dtype=np.bool_)
    locked = np.zeros(num_links, dtype=np.bool_)
    for link in order:
        for side in range(2):
            if locked[link] or not kept[link] or not inner[side, link]:
                continue
            near = before if side == 0 else after
            first, end = near.indptr[link], near.indptr[link + 1]
            total = 0.0
            for e in range(first, end):
                total += capacity[near.links[e]]
            if total > capacity[link] or first == end:
                continue
            kept[link] = False
            for e in range(first, end):
                if kept[near.links[e]]:
                    locked[near.links[e]] = True
    return kept


class ActorGraph(NamedTuple):
    """Who depends on whom."""

    ports: IntMatrix
    """Channel at each port, negative where there is none, shape ``(A, P)``."""

    senders: tuple[IntVector, IntVector]
    """Compressed rows by channel: posts to it, ``actor * P + port``."""

    flow_links: tuple[IntVector, IntVector]
    """Compressed rows by flow: its links."""

    link_flows: tuple[IntVector, IntVector, IntVector]
    """Compressed rows by link: its flows, and their weights in units of 2**-20."""


class Partition(NamedTuple):
    """The class of everything."""

    actors: IntVector
    """Class of each actor, shape ``(A,)``."""

    channels: IntVector
    """Class of each channel, shape ``(C,)``."""

    links: IntVector
    """Class of each link, shape ``(L,)``."""


@subkernel
def _mix(value: int, salt: np.uint64) -> np.uint64:
    """Return a 64-bit hash of two 64-bit integers [2]_."""
    z = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@subkernel
def _unset(size: int) -> IntArray:
    """Return -1 for each of some items."""
    items = np.empty(size, np.int64)
    for i in range(size):
        items[i] = -1
    return items


@kernel
def split(classes: IntVector, keys: HashVector) -> int:
    """Divide classes by key, number them by their first members, return how many. O(n).

    Exact: the hash table compares the pairs of class and key themselves.

    Parameters
    ----------
    classes
        Class of each item, shape ``(n,)``; overwritten.
    keys
        Shape ``(n,)``.
    """
    size = 1
    while size < 2 * classes.size:
        size *= 2
    table = _unset(size)
    numbers = np.empty(classes.size, np.int64)
    count = 0
    for i in range(classes.size):
        place = np.int64(_mix(classes[i], keys[i]) & np.uint64(size - 1))
        while True:
            other = table[place]
            if other < 0:
                table[place] = i
                numbers[i] = count
                count += 1
                break
            if classes[other] == classes[i] and keys[other] == keys[i]:
                numbers[i] = numbers[other]
                break
            place = (place + 1) & (size - 1)
    for i in range(classes.size):
        classes[i] = numbers[i]
    return count


@kernel
def first_members(classes: IntVector) -> IntArray:
    """Return the first member of each class; classes are numbered in that order."""
    first = np.empty(classes.size, np.int64)
    count = 0
    for i in range(classes.size):
        if classes[i] == count:
            first[count] = i
            count += 1
    return first[:count]


@kernel
def by_link(
    flow_indptr: IntVector, flow_links: IntVector, weights: IntVector, num_links: int
) -> tuple[IntVector, IntVector, IntVector]:
    """Turn rows of links by flow into rows of flows by link, rising. O(E + L)."""
    indptr = np.zeros(num_links + 1, np.int64)
    for e in range(flow_links.size):
        indptr[flow_links[e] + 1] += 1
    for link in range(num_links):
        indptr[link + 1] += indptr[link]
    place = indptr[:-1].copy()
    flows = np.empty(flow_links.size, np.int64)
    turned = np.empty(flow_links.size, np.int64)
    for f in range(flow_indptr.size - 1):
        for e in range(flow_indptr[f], flow_indptr[f + 1]):
            at = place[flow_links[e]]
            place[flow_links[e]] += 1
            flows[at] = f
            turned[at] = weights[e]
    return indptr, flows, turned


@kernel
def family_slowness(
    link_indptr: IntVector,
    link_flows: IntVector,
    link_weights: IntVector,
    family: IntVector,
    slowness: FloatMatrix,
    capacity: FloatVector,
) -> None:
    """Find the most weight over capacity of a family on any link of another one.

    O(E + L + families of each link squared).

    Parameters
    ----------
    link_indptr, link_flows, link_weights
        As of `by_link`.
    family
        Family of each flow, shape ``(F,)``.
    slowness
        Zeros; of a family on links of another one, in units of the weights over those
        of the capacity, shape ``(families, families)``.
    capacity
        Of the links.
    """
    total = np.zeros(slowness.shape[0], np.int64)
    there = np.empty(slowness.shape[0], np.int64)
    for link in range(link_indptr.size - 1):
        count = 0
        for e in range(link_indptr[link], link_indptr[link + 1]):
            here = family[link_flows[e]]
            if total[here] == 0:
                there[count] = here
                count += 1
            total[here] += link_weights[e]
        for slowing in there[:count]:
            met = total[slowing] / capacity[link]
            for slowed in there[:count]:
                slowness[slowed, slowing] = max(slowness[slowed, slowing], met)
        total[there[:count]] = 0


@kernel
def split_links(
    link_indptr: IntVector,
    link_flows: IntVector,
    link_weights: IntVector,
    channel_class: IntVector,
    link_class: IntVector,
    seed: int,
) -> int:
    """Divide classes of links by the total weight of each class of flows. O(E + L)."""
    hashes = np.zeros(link_class.size, np.uint64)
    total = np.zeros(channel_class.size, np.int64)
    for link in range(link_class.size):
        for e in range(link_indptr[link], link_indptr[link + 1]):
            total[channel_class[link_flows[e]]] += link_weights[e]
        for e in range(link_indptr[link], link_indptr[link + 1]):
            c = channel_class[link_flows[e]]
            if total[c] != 0:
                hashes[link] += _mix(total[c], _mix(c, np.uint64(seed)))
                total[c] = 0
    return split(link_class, hashes)


@subkernel
def _split_channels(
    graph: ActorGraph,
    link_class: IntVector,
    post_class: IntVector,
    channel_class: IntVector,
    seed: int,
) -> int:
    """Divide classes of channels by their sets of classes of posts and of links."""
    senders, flow_links = graph.senders, graph.flow_links
    hashes = np.zeros(channel_class.size, np.uint64)
    seen = _unset(link_class.size + 1)
    posted = _unset(post_class.size + 1)
    for f in range(channel_class.size):
        for e in range(flow_links[0][f], flow_links[0][f + 1]):
            c = link_class[flow_links[1][e]]
            if seen[c] != f:
                seen[c] = f
                hashes[f] += _mix(c, np.uint64(seed))
        for e in range(senders[0][f], senders[0][f + 1]):
            c = post_class[senders[1][e]]
            if posted[c] != f:
                posted[c] = f
                hashes[f] += _mix(c, np.uint64(seed + 1))
    return split(channel_class, hashes)


@subkernel
def _post_classes(ports: IntMatrix, actor_class: IntVector) -> IntArray:
    """Return the class of each post ``actor * P + port``: same class, same port."""
    classes = np.empty(ports.size, np.int64)
    for post in range(ports.size):
        a = post // ports.shape[1]
        s = post - a * ports.shape[1]
        classes[post] = actor_class[a] * ports.shape[1] + s
    return classes


@kernel
def refine(graph: ActorGraph, classes: Partition, seed: int) -> None:
    """Divide all classes once by what their members depend on. O(A P + C + L + E).

    The sums of hashes do not depend on an order. Items that depend on the same stay
    together; a collision of hashes may leave others together, never the reverse.
    ``seed`` is that of the hashes.
    """
    ports, (indptr, flows, weights) = graph.ports, graph.link_flows
    actor_class, channel_class, link_class = classes
    split_links(indptr, flows, weights, channel_class, link_class, seed)
    posts = _post_classes(ports, actor_class)
    _split_channels(graph, link_class, posts, channel_class, seed)
    hashes = np.zeros(actor_class.size, np.uint64)
    for a in range(ports.shape[0]):
        for s in range(ports.shape[1]):
            if ports[a, s] >= 0:
                hashes[a] += _mix(channel_class[ports[a, s]], _mix(s, np.uint64(seed)))
    split(actor_class, hashes)


@kernel
def links_alike(
    link_indptr: IntVector,
    link_flows: IntVector,
    link_weights: IntVector,
    channel_class: IntVector,
    link_class: IntVector,
) -> bool:
    """Check that links of a class carry the same weight of each class. No hashes."""
    first = first_members(link_class)
    total = np.zeros(channel_class.size, np.int64)
    for link in range(link_class.size):
        other = first[link_class[link]]
        if other == link:
            continue
        for e in range(link_indptr[link], link_indptr[link + 1]):
            total[channel_class[link_flows[e]]] += link_weights[e]
        for e in range(link_indptr[other], link_indptr[other + 1]):
            total[channel_class[link_flows[e]]] -= link_weights[e]
        for row in (link, other):
            for e in range(link_indptr[row], link_indptr[row + 1]):
                if total[channel_class[link_flows[e]]] != 0:
                    return False
    return True


@subkernel
def _sets_alike(
    indptr: IntVector, items: IntVector, item_class: IntVector, row_class: IntVector
) -> bool:
    """Check that rows of a class have the same set of classes of items."""
    first = first_members(row_class)
    # Of each class of items, the last row that had it: 2 row if the row's first member
    # has it, 2 row + 1 if the row itself has it too.
    seen = _unset(item_class.size + 1)
    for row in range(row_class.size):
        other = first[row_class[row]]
        common, alone = 0, 0
        for e in range(indptr[other], indptr[other + 1]):
            if seen[item_class[items[e]]] != 2 * row:
                seen[item_class[items[e]]] = 2 * row
                common += 1
        for e in range(indptr[row], indptr[row + 1]):
            c = item_class[items[e]]
            if seen[c] == 2 * row:
                seen[c] = 2 * row + 1
                alone += 1
            elif seen[c] != 2 * row + 1:
                return False
        if alone != common:
            return False
    return True


@kernel
def certify(graph: ActorGraph, classes: Partition) -> bool:
    """Return whether classes are stable; the check uses no hashes.

    Every member is compared with the first one of its class. O(A P + C + L + E) if
    members of a class have about as many neighbours.
    """
    ports, senders, flow_links, link_flows = graph
    actor_class, channel_class, link_class = classes
    first = first_members(actor_class)
    for a in range(ports.shape[0]):
        other = first[actor_class[a]]
        for s in range(ports.shape[1]):
            mine, theirs = ports[a, s], ports[other, s]
            if (mine < 0) != (theirs < 0):
                return False
            if mine >= 0 and channel_class[mine] != channel_class[theirs]:
                return False
    posts = _post_classes(ports, actor_class)
    indptr, flows, weights = link_flows
    return (
        _sets_alike(senders[0], senders[1], posts, channel_class)
        and _sets_alike(flow_links[0], flow_links[1], link_class, channel_class)
        and links_alike(indptr, flows, weights, channel_class, link_class)
    )
