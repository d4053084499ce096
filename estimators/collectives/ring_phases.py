"""Phases of collectives: rings by the places of members in their group.

With the members of a group in order of device number, a phase sends from place ``i``
to place ``i + stride``, and from the last place of a ring back to its first. Phases
depend only on the group's *shape*: how many parts it has at each level of the network
within one part of the next level, innermost first. So those of many stages are one
small table, from which kernels price them without making the rings.

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
"""

import itertools
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimators.collectives.kernels.edges import RingPhaseTables
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
    found = []
    for phase in plain:
        steps = phase.num_steps
        if operation != "all_reduce":
            # Parts of the levels around this one.
            steps *= members // (phase.stride * phase.size)
        elif phase.stride >= shape[0]:
            steps = min(steps, _tree_steps(phase.size) * (steps // (phase.size - 1)))
        found.append(phase._replace(num_steps=steps))
    return tuple(found)


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
