"""Collectives as rings over the real links, and their closed-form cost.

A collective over groups of ``n`` devices that hold tensors of ``S`` bytes is a
sequence of phases. In a phase every ring turns once per step; each member sends
``fraction * S`` bytes through its port in all steps together. A phase takes
``steps * latency + fraction * S * inverse_bandwidth``, where the inverse bandwidth is
that of the ring's most loaded link, counting every ring that uses the link at the
same time. The simulator replays the very same phases as flows.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
   Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 3-4.
.. [2] J. Huang et al., "Communication Algorithm-Architecture Co-Design for
   Distributed Deep Learning", ISCA 2021: hierarchical (per level) all-reduce.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topologies import Network

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Phase(NamedTuple):
    """Rings that turn at the same time."""

    rings: IntArray
    """Shape ``(R, n)``: ``rings[r, k]`` sends to ``rings[r, (k + 1) % n]``."""

    fraction: float
    """What each member sends, over the bytes of the full tensor."""

    num_steps: int
    """Rounds, each paying the latency once."""


class Turn(NamedTuple):
    """One pass of data round a ring of ``n`` members."""

    fraction: float
    num_steps: int


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
"""What one ring does for each operation."""


def ring_phases(
    operation: str, groups: IntArray, block_sizes: Sequence[int]
) -> tuple[Phase, ...]:
    """One flat ring per group, its members in order of device number [1]_."""
    del block_sizes
    size = groups.shape[1]
    if size == 1:
        return ()
    return (Phase(np.sort(groups, axis=1), *RING_OPERATIONS[operation](size)),)


def hierarchical_phases(
    operation: str, groups: IntArray, block_sizes: Sequence[int]
) -> tuple[Phase, ...]:
    """One phase per level of the network [2]_.

    All-reduce: reduce-scatter inside the blocks, level by level outwards, all-reduce
    over the outermost level, all-gather back inwards. Each level works on the part
    that the levels inside it have left. Falls back to a flat ring where the groups
    do not split evenly over the blocks.
    """
    ordered = np.sort(groups, axis=1)
    shape = _even_split(ordered, block_sizes)
    if len(shape) < 2:
        return ring_phases(operation, groups, block_sizes)
    inwards: list[Phase] = []
    part = 1.0
    for axis, size in enumerate(shape):
        grid = ordered.reshape(-1, *reversed(shape))
        rings = np.moveaxis(grid, len(shape) - axis, -1).reshape(-1, size)
        fraction, num_steps = ring_pass(size)
        inwards.append(Phase(rings, fraction * part, num_steps))
        part /= size
    if operation == "reduce_scatter":
        return tuple(inwards)
    if operation == "all_gather":
        return tuple(reversed(inwards))
    top = inwards[-1]
    turned = Phase(top.rings, 2 * top.fraction, 2 * top.num_steps)
    return (*inwards[:-1], turned, *reversed(inwards[:-1]))


def _even_split(ordered: IntArray, block_sizes: Sequence[int]) -> tuple[int, ...]:
    """Return members per block at each level, innermost first; empty if uneven."""
    size = ordered.shape[1]
    shape: list[int] = []
    inner = 1
    for block in block_sizes:
        if inner == size:
            break
        blocks = ordered // block
        inside = int(np.count_nonzero(blocks[0] == blocks[0, 0]))
        if inside == inner:
            continue
        if size % inside or inside % inner:
            return ()
        runs = blocks.reshape(len(ordered), size // inside, inside)
        if not (runs == runs[:, :, :1]).all():
            return ()
        if size > inside and (runs[:, 1:, 0] == runs[:, :-1, 0]).any():
            return ()
        shape.append(inside // inner)
        inner = inside
    return tuple(shape) if inner == size else ()


ALGORITHMS: Mapping[
    str, Callable[[str, IntArray, Sequence[int]], tuple[Phase, ...]]
] = MappingProxyType({"ring": ring_phases, "hierarchical": hierarchical_phases})
"""Algorithms by name; `auto` choices take the cheapest, ties the first."""


class CollectiveRate(NamedTuple):
    """Cost of a collective as a line over the size of the tensor."""

    latency: float
    """At size 0 [s]."""

    inverse_bandwidth: float
    """[s/byte]"""

    def time(self, num_bytes: float) -> float:
        """Return the time for a full tensor of ``num_bytes`` [s]."""
        return self.latency + num_bytes * self.inverse_bandwidth


FREE = CollectiveRate(0.0, 0.0)
"""A group of one."""


class EdgeCost(NamedTuple):
    """What each of several simultaneous messages meets on its way."""

    latency: FloatArray
    """Of the route [s]."""

    inverse_bandwidth: FloatArray
    """Of the most loaded link of the route [s/byte]."""


def edge_costs(
    network: Network,
    sources: IntArray,
    targets: IntArray,
    round_of: IntArray | None = None,
) -> EdgeCost:
    """Price messages that are sent at the same time.

    A link used by ``w`` of the messages gives each of them at least ``1/w`` of its
    capacity, and max-min sharing gives a message exactly that on the link that
    limits it. Messages with different numbers in ``round_of`` do not meet. Cost
    O(messages * hops).
    """
    routes = network.routes(sources, targets)
    hops = np.diff(routes.indptr)
    links = routes.links
    if round_of is not None:
        links = links + np.repeat(round_of, hops) * len(network.links)
    load = np.bincount(links)[links]
    seconds_per_byte = load / network.links.bandwidth[routes.links]
    inverse = np.zeros(len(hops))
    if links.size:
        crossing = hops > 0
        starts = routes.indptr[:-1][crossing]
        inverse[crossing] = np.maximum.reduceat(seconds_per_byte, starts)
    return EdgeCost(network.latencies(routes), inverse)


def collective_rates(
    network: Network,
    operation: str,
    groups: IntArray,
    algorithm: str,
    *,
    together: bool = True,
) -> tuple[CollectiveRate, ...]:
    """Price one collective per stage, all groups of a stage at the same time.

    Parameters
    ----------
    network
        Where the devices are.
    operation
        A key of `RING_OPERATIONS`.
    groups
        Device numbers, shape ``(stages, groups, n)``.
    algorithm
        A key of `ALGORITHMS`.
    together
        Whether the stages, too, communicate at the same time.

    Returns
    -------
    tuple[CollectiveRate, ...]
        For each stage the rate of its slowest group.
    """
    build = ALGORITHMS[algorithm]
    stages = [build(operation, stage, network.block_sizes) for stage in groups]
    latency = np.zeros(len(stages))
    inverse = np.zeros(len(stages))
    for index in range(max(len(phases) for phases in stages)):
        present = [s for s, phases in enumerate(stages) if index < len(phases)]
        phases = [stages[s][index] for s in present]
        sources = np.concatenate([phase.rings.ravel() for phase in phases])
        targets = np.concatenate([_successors(phase.rings) for phase in phases])
        sizes = [phase.rings.size for phase in phases]
        rounds = None if together else np.repeat(np.arange(len(sizes)), sizes)
        edges = edge_costs(network, sources, targets, rounds)
        bounds = np.cumsum([0, *sizes])[:-1]
        slowest_hop = np.maximum.reduceat(edges.latency, bounds)
        slowest_edge = np.maximum.reduceat(edges.inverse_bandwidth, bounds)
        latency[present] += slowest_hop * [phase.num_steps for phase in phases]
        inverse[present] += slowest_edge * [phase.fraction for phase in phases]
    return tuple(
        CollectiveRate(float(a), float(b))
        for a, b in zip(latency, inverse, strict=True)
    )


def _successors(rings: IntArray) -> IntArray:
    return np.roll(rings, -1, axis=1).ravel()
