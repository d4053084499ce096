"""Phases of collective algorithms, by the places of members in their group.

With the members of a group in order of device number, a phase sends from place ``i``
to place ``i + stride``, and from the last place of a ring back to its first. Phases
depend only on the group's *shape*: how many parts it has at each level of the network
within one part of the next level, innermost first. So those of many stages are one
small table, from which kernels price them without making the rings.

Phases of every collective algorithm, by the places of members in their group.

An exchange is a set of messages that leave at the same time and move in lock-step,
each with the same share of the tensor; a collective is a sequence of them. It needs
the time ``num_steps * latency + fraction * S * inverse_bandwidth`` of its slowest
message. Only the wire is counted: a message costs nothing beyond the latency of its
route, however many a member sends at once.

``S`` is what nccl-tests calls the size: the bytes that a member holds of a tensor that
is reduced, exchanged or sent on, and the gathered size of an all-gather or a
reduce-scatter. In a broadcast the first member has the data; in a send/recv every
member sends to the next one and the last to the first.

Letters: ``n`` members at places ``0 .. n - 1``, ``p`` the largest power of two up to
``n``, ``r = n - p``, ``k`` number of a round.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
   Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 3-4.
.. [2] J. Huang et al., "Communication Algorithm-Architecture Co-Design for
   Distributed Deep Learning", ISCA 2021: hierarchical (per level) all-reduce.
.. [3] NCCL, ``src/graph/tuning.cc``: steps of rings and trees inside and between nodes,
   and what each waits for (LL128 between nodes: 4.0 us in a ring, 8.5 us in a tree).
.. [4] R. Graham et al., "Scalable Hierarchical Aggregation Protocol (SHArP)",
   COMHPC 2016.
.. [5] B. Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory
   Multiprocessor Collectives", ISCA 2020.
.. [6] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
   Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 3-4.
.. [7] P. Sanders, J. Speck, J. L. Traff, "Two-tree algorithms for full bandwidth
   broadcast, reduction and scan", Parallel Computing 35, 2009.
.. [8] J. Bruck et al., "Efficient Algorithms for All-to-All Communications in
   Multiport Message-Passing Systems", IEEE TPDS 8(11), 1997, section 3.
.. [9] NCCL, ``src/graph/trees.cc``, ``ncclGetBtree`` and ``ncclGetDtree`` (the shape of
   the trees), and ``src/graph/tuning.cc`` (their price: twice the depth, twice the
   bytes).
"""

import itertools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimators.collectives.edges import RingPhaseTables
from topologies.arrays import IntArray
from topologies.network import CollectiveRules

Shape = tuple[int, ...]


class Turn(NamedTuple):
    """One pass of data round a ring of ``n`` members."""

    fraction: float
    """Bytes that each member sends over the bytes of the full tensor."""

    num_steps: int
    """Number of rounds, each of which pays the latency once."""


def ring_pass(size: int) -> Turn:
    """All-gather or reduce-scatter: ``n - 1`` rounds of ``S / n`` bytes [1]_."""
    return Turn((size - 1) / size, size - 1)


def ring_all_reduce(size: int) -> Turn:
    """Reduce-scatter, then all-gather: ``2 (n - 1)`` rounds of ``S / n`` bytes [1]_."""
    return Turn(2 * (size - 1) / size, 2 * (size - 1))


RING_OPERATIONS: Mapping[str, Callable[[int], Turn]] = MappingProxyType(
    {
        "all_reduce": ring_all_reduce,
        "all_gather": ring_pass,
        "reduce_scatter": ring_pass,
    }
)
"""Operation -> what one ring does for it."""


class RingTurns(NamedTuple):
    """One phase of a collective."""

    stride: int
    """Distance from a member to the next one of its ring, in places of the group."""

    size: int
    """Number of members of a ring."""

    fraction: float
    """Bytes that each member sends over the bytes of the full tensor."""

    num_steps: int
    """Number of rounds, each of which pays the latency once."""


_IDLE = RingTurns(1, 1, 0.0, 0)
"""Phase of a stage that has ended before others of the same round."""


@lru_cache(maxsize=4096)
def phases_of_shape(
    operation: str, shape: Shape, rules: CollectiveRules | None = None
) -> tuple[RingTurns, ...]:
    """Return the phases of a collective over groups of a shape [2]_.

    All-reduce: reduce-scatter inside the parts, level by level outwards, all-reduce
    over the outermost level, all-gather back inwards; the other operations are one
    half of that. Each level works on what the levels inside it have left. A shape of
    one level gives the plain ring, and a group of one no phase at all.

    With rules a shape begins with the members in a node, also where there is but one.

    * A library's ring [3]_ is one ring through all levels: of its ``n - 1`` steps those
      inside of a part are taken for each part of the levels around it.
    * Its all-reduces wait no longer than a tree between nodes does, of twice the depth,
      a step of which waits for two children and counts twice [3]_; the bytes are a
      ring's, which a tree's exceed by less than a part in as many as there are nodes.
    * Switches between nodes that add up take each byte once up and give it once down,
      whatever the number of nodes [4]_.
    * Those of a node that add up do so inside of it, for what is left of the group
      outside of nodes, too: once to the member that asks for its part of the sum, and
      once from that member to all [5]_.
    """
    sums = rules if operation == "all_reduce" else None
    if sums is not None and sums.adds_in_switches:
        found = _added_in_switches(shape, sums.summed_weight)
        if found:
            return found
    plain = _level_by_level(operation, shape)
    if rules is not None and rules.is_library:
        plain = _with_library_steps(operation, shape, plain)
    if sums is not None and sums.summed_weight > 0.0 and shape[0] > 1:
        return _added_in_nodes(shape[0], plain, sums.summed_weight)
    return plain


def _level_by_level(operation: str, shape: Shape) -> tuple[RingTurns, ...]:
    """Return one phase of rings for each level, or two."""
    sizes = [size for size in shape if size > 1]
    if not sizes:
        return ()
    inner: list[RingTurns] = []
    stride, left = 1, 1.0
    for size in sizes[:-1]:
        turn = ring_pass(size)
        inner.append(RingTurns(stride, size, turn.fraction * left, turn.num_steps))
        stride *= size
        left /= size
    turn = RING_OPERATIONS[operation](sizes[-1])
    outermost = RingTurns(stride, sizes[-1], turn.fraction * left, turn.num_steps)
    before = inner if operation != "all_gather" else []
    after = inner[::-1] if operation != "reduce_scatter" else []
    return (*before, outermost, *after)


def _added_in_switches(shape: Shape, weight: float) -> tuple[RingTurns, ...]:
    """Return the phases of an all-reduce by switches; none inside one node.

    Messages from each node's member to the next one's load the links of a tree as what
    they stand for does: each port once up and once down, and so each switch. Inside of
    nodes rings or switches do it, whichever have less to carry.
    """
    inside, outside = shape[0], math.prod(max(size, 1) for size in shape[1:])
    if outside == 1:
        return ()
    between = RingTurns(inside, outside, 1.0 / inside, 2)
    if inside == 1:
        return (between,)
    half = RingTurns(1, inside, *ring_pass(inside))
    if 0.0 < weight * (inside + 1) < 2 * (inside - 1):
        half = _node_half(inside, weight)
    return half, between, half


def _added_in_nodes(
    inside: int, plain: tuple[RingTurns, ...], weight: float
) -> tuple[RingTurns, ...]:
    """Return phases whose part inside a node its switches do."""
    half = _node_half(inside, weight)
    if len(plain) == 1:
        return (half._replace(fraction=2 * half.fraction, num_steps=2),)
    return half, *plain[1:-1], half


def _node_half(size: int, weight: float) -> RingTurns:
    """Return half of an all-reduce by a node's switches: one of its two steps.

    First every member asks for its ``S / n`` of the sum: its ``S`` goes up, the sum
    comes down; then it sends that up, and all ``S`` come down [5]_. Chunks of both
    halves move at once, in either direction ``S + S / n`` in all. Messages to the next
    member of a ring load a switch's links so, each by half of it.
    """
    return RingTurns(1, size, weight * (size + 1) / (2 * size), 1)


def _with_library_steps(
    operation: str, shape: Shape, plain: tuple[RingTurns, ...]
) -> tuple[RingTurns, ...]:
    """Return phases of the same bytes, with the steps that a library waits for."""
    members = math.prod(max(size, 1) for size in shape)
    stepped = []
    for phase in plain:
        steps = phase.num_steps
        if operation != "all_reduce":
            # Parts of the levels around this one.
            steps *= members // (phase.stride * phase.size)
        elif phase.stride >= shape[0]:
            steps = min(steps, _tree_steps(phase.size) * (steps // (phase.size - 1)))
        stepped.append(phase._replace(num_steps=steps))
    return tuple(stepped)


def _tree_steps(size: int) -> int:
    """Return how many steps of a ring a tree takes from its leaves to its root."""
    return 2 * (size - 1).bit_length()


@lru_cache(maxsize=1024)
def ring_phase_tables(
    operations: tuple[str, ...],
    forms: tuple[tuple[Shape, ...], ...],
    rules: tuple[CollectiveRules | None, ...],
) -> RingPhaseTables:
    """Return the tables of all operations by all algorithms, operations fastest.

    A form gives the shape of a stage's groups for each algorithm, ``rules`` those that
    the algorithm goes by. The ``t``-th phases of all stages take place at the same
    time, whatever the stages' forms are.
    """
    numbers: dict[tuple[tuple[int, int], ...], int] = {}
    sequences = []
    for algorithm in range(len(forms[0])):
        for operation in operations:
            by_form = [
                phases_of_shape(operation, form[algorithm], rules[algorithm])
                for form in forms
            ]
            sequences.append(list(itertools.zip_longest(*by_form, fillvalue=_IDLE)))
    longest = max(len(sequence) for sequence in sequences)
    turns = np.full((len(sequences), longest), -1, dtype=np.int64)
    factors = np.zeros((len(sequences), longest, len(forms), 2))
    for c, sequence in enumerate(sequences):
        for t, at_once in enumerate(sequence):
            key = tuple((phase.stride, phase.size) for phase in at_once)
            turns[c, t] = numbers.setdefault(key, len(numbers))
            factors[c, t] = [(phase.num_steps, phase.fraction) for phase in at_once]
    rings = np.array(list(numbers), dtype=np.int64).reshape(-1, len(forms), 2)
    return RingPhaseTables(rings, turns, factors)


class Exchange(NamedTuple):
    """Messages that leave at the same time and move in lock-step."""

    senders: IntArray
    """Places of the members that send, shape ``(M,)``."""

    receivers: IntArray
    """Places of the members that receive, shape ``(M,)``."""

    fraction: float
    """Bytes that each message carries in all steps together over the bytes of the full
    tensor."""

    num_steps: int
    """Number of rounds, each of which pays the latency once."""


Exchanges = tuple[Exchange, ...]


def _exchange(
    senders: IntArray, receivers: IntArray, fraction: float, num_steps: int = 1
) -> Exchange:
    ends = []
    for places in (senders, receivers):
        frozen = np.ascontiguousarray(places, dtype=np.int64).reshape(-1)
        frozen.flags.writeable = False
        ends.append(frozen)
    return Exchange(ends[0], ends[1], fraction, num_steps)


def _mirrored(exchanges: Exchanges) -> Exchanges:
    """Run backwards in time: what gathers then scatters."""
    return tuple(
        Exchange(
            exchange.receivers, exchange.senders, exchange.fraction, exchange.num_steps
        )
        for exchange in reversed(exchanges)
    )


# Rings.


def _ring(operation: str) -> Callable[[int], Exchanges]:
    def build(size: int) -> Exchanges:
        places = np.arange(size)
        turn = RING_OPERATIONS[operation](size)
        return (_exchange(places, np.roll(places, -1), *turn),)

    return build


def _ring_all_to_all(size: int) -> Exchanges:
    """Pass on what is not for oneself: ``n - 1`` rounds of ``n - 1, n - 2, .. 1``."""
    places = np.arange(size)
    return (_exchange(places, np.roll(places, -1), (size - 1) / 2, size - 1),)


def _chain_broadcast(size: int) -> Exchanges:
    """Pass the tensor along a chain in small pieces, as NCCL's rings do."""
    return (_exchange(np.arange(size - 1), np.arange(1, size), 1.0, size - 1),)


# Every pair.


def _pairs(size: int) -> tuple[IntArray, IntArray]:
    senders, receivers = np.divmod(np.arange(size * size), size)
    apart = senders != receivers
    return senders[apart], receivers[apart]


def _direct_pass(size: int) -> Exchanges:
    """Each member sends every other one its ``n``-th."""
    return (_exchange(*_pairs(size), 1 / size),)


def _direct_all_reduce(size: int) -> Exchanges:
    return _direct_pass(size) * 2


def _direct_broadcast(size: int) -> Exchanges:
    return (_exchange(np.zeros(size - 1, np.int64), np.arange(1, size), 1.0),)


def _next(size: int) -> Exchanges:
    places = np.arange(size)
    return (_exchange(places, np.roll(places, -1), 1.0),)


# Halving and doubling. The first ``r`` pairs of members are one participant each: the
# one at the even place takes part, the other one hands over before and gets back after.


def _participants(size: int) -> tuple[IntArray, IntArray]:
    """Return the places of those that take part, and of the others."""
    rest = size - 2 ** (size.bit_length() - 1)
    places = np.arange(size)
    is_other = (places < 2 * rest) & (places % 2 == 1)
    return places[~is_other], places[is_other]


def _doubling(members: IntArray, shares: list[float]) -> Exchanges:
    """Swap with the member at distance 1, 2, 4, ..: one share each time."""
    index = np.arange(members.size)
    return tuple(
        _exchange(members, members[index ^ (1 << k)], share)
        for k, share in enumerate(shares)
    )


def _halving_doubling_all_reduce(size: int) -> Exchanges:
    """Reduce-scatter by halves, the nearest first, and back [6]_, section 4.5."""
    members, others = _participants(size)
    rounds = members.size.bit_length() - 1
    halves = _doubling(members, [0.5 ** (k + 1) for k in range(rounds)])
    whole = (*halves, *_mirrored(halves))
    if not others.size:
        return whole
    before = _exchange(others, others - 1, 1.0)
    return (before, *whole, *_mirrored((before,)))


def _doubling_all_gather(size: int) -> Exchanges:
    """Swap all that is known with members ever further away [6]_, section 4.1.

    The first participants know two shards to begin with; the largest message of a
    round is the first one's.
    """
    members, others = _participants(size)
    rounds = members.size.bit_length() - 1
    known = [2**k + min(others.size, 2**k) for k in range(rounds)]
    doubling = _doubling(members, [shards / size for shards in known])
    if not others.size:
        return doubling
    before = _exchange(others, others - 1, 1 / size)
    return (before, *doubling, _exchange(others - 1, others, (size - 1) / size))


def _halving_reduce_scatter(size: int) -> Exchanges:
    """Do the all-gather backwards [6]_, section 4.2."""
    return _mirrored(_doubling_all_gather(size))


def _scatter_broadcast(size: int) -> Exchanges:
    """Scatter by halves, then gather by doubling [6]_, section 4.4."""
    members, others = _participants(size)
    rounds = members.size.bit_length() - 1
    scatter = []
    for k in range(rounds):
        distance = members.size >> (k + 1)
        holders = np.arange(0, members.size, 2 * distance)
        ends = members[holders], members[holders + distance]
        scatter.append(_exchange(*ends, 0.5 ** (k + 1)))
    gather = _doubling(members, [2**k / members.size for k in range(rounds)])
    after = (_exchange(others - 1, others, 1.0),) if others.size else ()
    return (*scatter, *gather, *after)


def _bruck_all_to_all(size: int) -> Exchanges:
    """Send on, at distance 1, 2, 4, .., what has that bit left to go [8]_."""
    places, distances = np.arange(size), np.arange(1, size)
    exchanges = []
    for k in range((size - 1).bit_length()):
        share = float(np.count_nonzero(distances & (1 << k))) / size
        exchanges.append(_exchange(places, np.roll(places, -(1 << k)), share))
    return tuple(exchanges)


# Two trees, each with half of the tensor, so that everyone's port is used both ways:
# who is inside one tree is a leaf of the other. Pieces are small against the tensor,
# so that filling the pipeline costs latency alone.


def parents_of_both(size: int) -> tuple[IntArray, IntArray]:
    """Return each place's parent in either tree, -1 for the root [9]_.

    The second tree is the first one seen from the other end if ``n`` is even, and
    shifted by one place if it is odd, so that no place has children in both [7]_ but
    one where ``n`` is odd.
    """
    first = _parents(size)
    places = np.arange(size)
    image = size - 1 - places if size % 2 == 0 else (places + 1) % size
    second = np.full(size, -1, dtype=np.int64)
    inner = first >= 0
    second[image[inner]] = image[first[inner]]
    return first, second


def _parents(size: int) -> IntArray:
    """Return the tree whose root is place 0 and whose odd places are leaves [9]_.

    The parent of a place clears its lowest set bit and sets the next one, or only
    clears it where there is no such place.
    """
    places = np.arange(size, dtype=np.int64)
    bit = places & -places
    parents = (places ^ bit) | (bit << 1)
    outside = parents >= size
    parents[outside] = (places ^ bit)[outside]
    parents[0] = -1
    return parents


def depth(parents: IntArray) -> int:
    """Return the most edges from a place to the root."""
    levels = 0
    above = parents
    while (above >= 0).any():
        levels += 1
        above = np.where(above >= 0, parents[above], -1)
    return levels


def _two_trees(size: int) -> tuple[IntArray, IntArray, int]:
    """Return children, their parents, and the depth of the deeper tree."""
    both = parents_of_both(size)
    ends = []
    for parents in both:
        children = np.flatnonzero(parents >= 0)
        ends.append((children, parents[children]))
    children, above = (np.concatenate(part) for part in zip(*ends, strict=True))
    return children, above, max(depth(parents) for parents in both)


def _tree_all_reduce(size: int) -> Exchanges:
    """Reduce up both trees and broadcast down them, all at once [7]_ [9]_."""
    children, parents, levels = _two_trees(size)
    senders = np.concatenate([children, parents])
    receivers = np.concatenate([parents, children])
    return (_exchange(senders, receivers, 0.5, 2 * levels),)


def _tree_broadcast(size: int) -> Exchanges:
    """Send a half to the root of each tree of the others, and down them [7]_."""
    if size == 2:
        return _direct_broadcast(size)
    children, parents, levels = _two_trees(size - 1)
    roots = [int(np.flatnonzero(tree < 0)[0]) for tree in parents_of_both(size - 1)]
    senders = np.concatenate([[0, 0], parents + 1])
    receivers = np.concatenate([np.array(roots), children]) + 1
    return (_exchange(senders, receivers, 0.5, 1 + levels),)


FLAT: Mapping[str, Mapping[str, Callable[[int], Exchanges]]] = MappingProxyType(
    {
        "ring": {
            **{operation: _ring(operation) for operation in RING_OPERATIONS},
            "all_to_all": _ring_all_to_all,
            "broadcast": _chain_broadcast,
        },
        "direct": {
            "all_reduce": _direct_all_reduce,
            "all_gather": _direct_pass,
            "reduce_scatter": _direct_pass,
            "all_to_all": _direct_pass,
            "broadcast": _direct_broadcast,
            "send_recv": _next,
        },
        "halving-doubling": {
            "all_reduce": _halving_doubling_all_reduce,
            "all_gather": _doubling_all_gather,
            "reduce_scatter": _halving_reduce_scatter,
            "all_to_all": _bruck_all_to_all,
            "broadcast": _scatter_broadcast,
        },
        "double-binary-tree": {
            "all_reduce": _tree_all_reduce,
            "broadcast": _tree_broadcast,
        },
    }
)
"""Algorithm -> operation -> its exchanges among ``n >= 2`` members."""
