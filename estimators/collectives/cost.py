"""Collectives over the real links, and their closed-form cost.

A collective over groups of ``n`` devices that hold tensors of ``S`` bytes is a
sequence of phases. In a phase every ring turns once per step; each member sends
``fraction * S`` bytes through its port in all steps together. A phase takes
``steps * latency + fraction * S * inverse_bandwidth``, where the inverse bandwidth is
that of the ring's most loaded link, counting every ring that uses the link at the
same time. The simulator replays the very same phases as flows.

`ALGORITHMS` holds what the search chooses from: rings, whose prices a kernel works out
for many placements at once; in tori it has all their rings beside
(`estimators.collectives.tori`). Whatever else `estimators.collectives.algorithms` knows
by name is priced message by message (`estimators.collectives.messages`).

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
   Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 3-4.
.. [2] J. Huang et al., "Communication Algorithm-Architecture Co-Design for
   Distributed Deep Learning", ISCA 2021: hierarchical (per level) all-reduce.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from estimators.collectives import edges
from estimators.collectives.algorithms import (
    IN_NETWORK,
    algorithm_or_ring,
    algorithm_rules,
    in_network_algorithms,
)
from estimators.collectives.messages import (
    Shapes,
    exchange_rates,
    flat_shapes,
    ordered_groups,
    plain,
    ring_weights,
    ruled_shapes,
    run_kernel,
)
from estimators.collectives.phases import (
    RING_OPERATIONS,
    Shape,
    phases_of_shape,
    ring_phase_tables,
)
from estimators.collectives.tori import MULTI_RING
from topologies import Network
from topologies.arrays import FloatArray, IntArray
from topologies.network import CollectiveRules


class Phase(NamedTuple):
    """Rings that turn at the same time."""

    rings: IntArray
    """Device numbers of the rings, shape ``(R, n)``: ``rings[r, k]`` sends to
    ``rings[r, (k + 1) % n]``."""

    fraction: float
    """Bytes that each member sends over the bytes of the full tensor."""

    num_steps: int
    """Number of rounds, each of which pays the latency once."""


def ring_phases(
    operation: str,
    groups: IntArray,
    block_sizes: Sequence[int],
    rules: CollectiveRules | None = None,
) -> tuple[Phase, ...]:
    """One flat ring per group, its members in order of device number [1]_."""
    del rules
    return _phases(operation, groups, block_sizes, flat_shapes)


def hierarchical_phases(
    operation: str,
    groups: IntArray,
    block_sizes: Sequence[int],
    rules: CollectiveRules | None = None,
) -> tuple[Phase, ...]:
    """One phase per level of the network [2]_.

    All-reduce: reduce-scatter inside the blocks, level by level outwards, all-reduce
    over the outermost level, all-gather back inwards. Levels whose blocks do not
    divide the groups evenly are left out; a flat ring is what is left of none. A
    network's ``rules`` change steps and phases as
    `estimators.collectives.phases.phases_of_shape` says.
    """
    return _phases(operation, groups, block_sizes, ruled_shapes(rules), rules)


ALGORITHMS: Mapping[
    str,
    Callable[[str, IntArray, Sequence[int], CollectiveRules | None], tuple[Phase, ...]],
] = MappingProxyType({"ring": ring_phases, "hierarchical": hierarchical_phases})
"""Algorithms that the search chooses from on every network; `auto` choices take the
cheapest, ties the first."""

RING_ALGORITHMS = MappingProxyType(
    {**ALGORITHMS, **dict.fromkeys(IN_NETWORK, hierarchical_phases)}
)
"""Algorithms whose messages go round rings."""


def searched_algorithms(network: Network) -> tuple[str, ...]:
    """Return the algorithms that the search chooses from on a network."""
    rings = (MULTI_RING,) if network.num_axes else ()
    return *ALGORITHMS, *in_network_algorithms(network.rules), *rings


def algorithm_phases(
    network: Network, operation: str, groups: IntArray, algorithm: str
) -> tuple[Phase, ...]:
    """Return the phases of one of `RING_ALGORITHMS` on a network.

    Raises
    ------
    InputError
        If switches would have to add up that do not.
    """
    rules = algorithm_rules(algorithm, network.rules)
    build = RING_ALGORITHMS[algorithm]
    phases = build(operation, groups, network.block_sizes, rules)
    (weight,) = ring_weights(network, operation, algorithm, np.sort(groups[None]))
    return tuple(
        phase._replace(fraction=phase.fraction * float(weight)) for phase in phases
    )


def _phases(
    operation: str,
    groups: IntArray,
    block_sizes: Sequence[int],
    shapes: Shapes,
    rules: CollectiveRules | None = None,
) -> tuple[Phase, ...]:
    ordered = plain(np.sort(groups, axis=1))
    (shape,) = shapes(ordered[None], np.array(block_sizes, dtype=np.int64)).tolist()
    phases = []
    for stride, size, fraction, num_steps in phases_of_shape(
        operation, tuple(shape), rules
    ):
        grid = ordered.reshape(-1, size, stride)
        rings = np.swapaxes(grid, 1, 2).reshape(-1, size)
        phases.append(Phase(rings, fraction, num_steps))
    return tuple(phases)


class CollectiveRate(NamedTuple):
    """Cost of a collective as a line over the size of the tensor."""

    latency: float
    """Time of a collective of no bytes [s]."""

    inverse_bandwidth: float
    """Time that each byte of the full tensor adds [s/byte]."""

    def time(self, num_bytes: float) -> float:
        """Return the time for a full tensor of ``num_bytes`` [s]."""
        return self.latency + num_bytes * self.inverse_bandwidth


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
        One of `estimators.collectives.algorithms.OPERATIONS`.
    groups
        Device numbers, shape ``(stages, groups, n)``.
    algorithm
        One of `estimators.collectives.algorithms.ALGORITHM_NAMES` that the operation
        has.
    together
        Whether the stages, too, communicate at the same time.

    Returns
    -------
    tuple[CollectiveRate, ...]
        For each stage the rate of its slowest group.

    Raises
    ------
    InputError
        If there is no such algorithm for the operation.
    """
    if algorithm in RING_ALGORITHMS and operation in RING_OPERATIONS:
        by_algorithm = _rates(
            network, (operation,), groups, (algorithm,), together=together
        )
        rates = by_algorithm[0]
    else:
        rates = exchange_rates(network, operation, groups, algorithm, together=together)
    return tuple(CollectiveRate(a, b) for a, b in rates.tolist())


def rates_by_algorithm(
    network: Network,
    groups: IntArray,
    algorithms: Sequence[str] | None = None,
    *,
    together: bool = True,
    weighted: bool = True,
) -> dict[str, dict[str, FloatArray]]:
    """Price what rings can do by several algorithms, as `collective_rates` does.

    By those of `searched_algorithms` where none are given. Phases that rings have in
    common, and that is most, are priced once. An operation that an algorithm does not
    have is priced as a ring, which is what NCCL falls back to. Rings that are not
    ``weighted`` are as quick inside of nodes as any, whatever they do.

    Returns
    -------
    dict[str, dict[str, FloatArray]]
        Algorithm -> operation -> shape ``(stages, 2)``: latency [s] and inverse
        bandwidth [s/byte].
    """
    operations = tuple(RING_OPERATIONS)
    if algorithms is None:
        algorithms = searched_algorithms(network)
    searched = [name for name in algorithms if name in RING_ALGORITHMS]
    rates: Iterator[FloatArray] = iter(())
    if searched:
        priced = _rates(
            network, operations, groups, searched, together=together, weighted=weighted
        )
        rates = iter(priced)
    by_name = {
        name: {operation: next(rates) for operation in operations} for name in searched
    }
    for name in algorithms:
        if name not in by_name:
            by_name[name] = {
                operation: exchange_rates(
                    network,
                    operation,
                    groups,
                    algorithm_or_ring(name, operation),
                    together=together,
                )
                for operation in operations
            }
    return {name: by_name[name] for name in algorithms}


def _rates(
    network: Network,
    operations: tuple[str, ...],
    groups: IntArray,
    algorithms: Sequence[str],
    *,
    together: bool,
    weighted: bool = True,
) -> FloatArray:
    """Return shape ``(algorithms x operations, stages, 2)``."""
    ordered = ordered_groups(network, groups)
    blocks = np.array(network.block_sizes, dtype=np.int64)
    rules = tuple(algorithm_rules(name, network.rules) for name in algorithms)
    shapes = [
        (flat_shapes if name == "ring" else ruled_shapes(ruled))(ordered, blocks)
        for name, ruled in zip(algorithms, rules, strict=True)
    ]
    form_of, forms = _distinct(shapes, len(ordered))
    tables = ring_phase_tables(operations, forms, rules)
    rates = np.empty((len(tables.turns), len(ordered), 2))
    kernel = edges.price_rings
    run_kernel(network, kernel, ordered, form_of, tables, together, rates)
    if weighted:
        for index, (name, operation) in enumerate(product(algorithms, operations)):
            rates[index, :, 1] *= ring_weights(network, operation, name, ordered)
    return rates


def _distinct(
    shapes: Sequence[IntArray], num_stages: int
) -> tuple[IntArray, tuple[tuple[Shape, ...], ...]]:
    """Return the form of each stage, and for each form a shape per algorithm."""
    if all(len(rows) == 1 for rows in shapes):
        form = tuple(tuple(rows[0].tolist()) for rows in shapes)
        return np.zeros(num_stages, dtype=np.int64), (form,)
    widths = [rows.shape[1] for rows in shapes]
    full = [np.broadcast_to(rows, (num_stages, rows.shape[1])) for rows in shapes]
    table, form_of = np.unique(np.hstack(full), axis=0, return_inverse=True)
    parts = np.split(table, np.cumsum(widths)[:-1], axis=1)
    forms = tuple(
        tuple(tuple(shape) for shape in form)
        for form in zip(*(part.tolist() for part in parts), strict=True)
    )
    return form_of.reshape(-1).astype(np.int64), forms
