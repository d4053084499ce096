"""The algorithms that collectives have, flat and level by level.

A hierarchical algorithm has one phase per level of the network [1]_: all-reduce is a
reduce-scatter inside the parts, level by level outwards, an all-reduce over the
outermost level, and an all-gather back inwards, each on what the levels inside have
left. An all-to-all exchanges at each level everything whose receiver lies in the same
part of the next one [2]_; a broadcast goes from the outside in. Levels whose blocks do
not divide the groups evenly are left out.

References
----------
.. [1] J. Huang et al., "Communication Algorithm-Architecture Co-Design for
   Distributed Deep Learning", ISCA 2021: hierarchical (per level) all-reduce.
.. [2] C. Hwang et al., "Tutel: Adaptive Mixture-of-Experts at Scale", MLSys 2023,
   section 3.4: two-dimensional hierarchical all-to-all.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from estimators.collectives.phases import (
    FLAT,
    RING_OPERATIONS,
    Exchange,
    Exchanges,
    Shape,
    phases_of_shape,
)
from estimators.collectives.tori import MULTI_RING
from topologies import InputError
from topologies.arrays import IntArray
from topologies.network import CollectiveRules

Builders = Mapping[str, Callable[[int], Exchanges]]

_LEVEL_BY_LEVEL = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
)

HIERARCHICAL: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "hierarchical": {
            **dict.fromkeys(_LEVEL_BY_LEVEL, "ring"),
            "all_to_all": "direct",
        },
        "hierarchical-direct": dict.fromkeys(
            ("all_reduce", "all_gather", "reduce_scatter", "broadcast"), "direct"
        ),
        "hierarchical-halving-doubling": dict.fromkeys(
            _LEVEL_BY_LEVEL, "halving-doubling"
        ),
    }
)
"""Hierarchical algorithm -> operation -> the flat algorithm of every level."""

ALGORITHM_NAMES = (
    "ring",
    "direct",
    "halving-doubling",
    "double-binary-tree",
    "hierarchical",
    "hierarchical-direct",
    "hierarchical-halving-doubling",
)
"""Names of all algorithms, flat ones first; of equally cheap ones the first is
chosen."""

IN_NETWORK: Mapping[str, str] = MappingProxyType(
    {
        "nvls": "inside nodes (nvls = true)",
        "sharp": "between nodes (sharp = true)",
    }
)
"""Algorithm of networks whose switches add up -> where they must. All-reduces only:
what else groups do goes level by level."""

OPERATIONS = (*_LEVEL_BY_LEVEL, "send_recv")
"""Names of what groups of devices do together."""


def algorithms_for(
    operation: str, rules: CollectiveRules | None = None, num_axes: int = 0
) -> tuple[str, ...]:
    """Return the algorithms that an operation has, on a network of these rules.

    And of so many dimensions.
    """
    assert operation in OPERATIONS
    everywhere = (
        name
        for name in ALGORITHM_NAMES
        if operation in (HIERARCHICAL[name] if name in HIERARCHICAL else FLAT[name])
    )
    added = in_network_algorithms(rules) if operation == "all_reduce" else ()
    rings = (MULTI_RING,) if num_axes and operation in RING_OPERATIONS else ()
    return *everywhere, *added, *rings


def in_network_algorithms(rules: CollectiveRules | None) -> tuple[str, ...]:
    """Return the algorithms whose sums switches of a network do."""
    return tuple(name for name in IN_NETWORK if _adds(name, rules))


def _adds(name: str, rules: CollectiveRules | None) -> bool:
    if rules is None:
        return False
    return rules.summed_weight > 0.0 if name == "nvls" else rules.adds_in_switches


@lru_cache(maxsize=256)
def algorithm_rules(name: str, rules: CollectiveRules | None) -> CollectiveRules | None:
    """Return those of a network's rules that an algorithm goes by.

    A plain ring knows none; ``hierarchical`` lets no switch add up, ``nvls`` those
    inside of nodes, ``sharp`` all that can.

    Raises
    ------
    InputError
        If switches would have to add up that do not.
    """
    if name in IN_NETWORK and not _adds(name, rules):
        raise InputError(
            f"no switches of the network add up all-reduces {IN_NETWORK[name]}",
            got=name,
            expected="one of "
            + ", ".join((*ALGORITHM_NAMES, *in_network_algorithms(rules))),
        )
    if rules is None or name not in {"hierarchical", *IN_NETWORK}:
        return None
    if name == "sharp":
        return rules
    weight = rules.summed_weight if name == "nvls" else 0.0
    return replace(rules, adds_in_switches=False, summed_weight=weight)


def algorithm_or_ring(name: str, operation: str) -> str:
    """Return the algorithm, or what does the operation where it does not.

    The ring that NCCL falls back to; rings level by level where switches add up.
    """
    if name in IN_NETWORK:
        return name if operation == "all_reduce" else "hierarchical"
    if name == MULTI_RING:
        return name if operation in RING_OPERATIONS else "ring"
    return name if name in algorithms_for(operation) else "ring"


@lru_cache(maxsize=4096)
def exchanges(algorithm: str, operation: str, shape: Shape) -> Exchanges:
    """Return the phases of a collective over groups of a shape.

    Parameters
    ----------
    algorithm
        One of `ALGORITHM_NAMES`.
    operation
        One of `OPERATIONS`.
    shape
        Parts at each level of the network within one part of the next, innermost
        first; one level of all members for an algorithm that is not hierarchical.
        None for a group of one.

    Raises
    ------
    InputError
        If there is no such algorithm, or not for this operation.
    """
    if algorithm not in algorithms_for(operation):
        raise InputError(
            f"no such algorithm for {operation.replace('_', '-')}",
            got=algorithm,
            expected="one of " + ", ".join(algorithms_for(operation)),
        )
    sizes = tuple(size for size in shape if size > 1)
    if not sizes:
        return ()
    if algorithm not in HIERARCHICAL:
        (size,) = sizes
        return FLAT[algorithm][operation](size)
    flat = FLAT[HIERARCHICAL[algorithm][operation]]
    if operation not in {"all_to_all", "broadcast"}:
        return _reduced(flat, operation, sizes)
    levels, most = list(range(len(sizes))), None
    if operation == "broadcast":
        levels, most = levels[::-1], 1
    return tuple(
        exchange
        for level in levels
        for exchange in _at_level(
            flat[operation](sizes[level]), sizes, level, most=most
        )
    )


@lru_cache(maxsize=1024)
def ruled_exchanges(operation: str, shape: Shape, rules: CollectiveRules) -> Exchanges:
    """Return what a network's rules make of rings level by level.

    Parameters
    ----------
    operation
        One of `estimators.collectives.phases.RING_OPERATIONS`.
    shape
        As `estimators.collectives.messages.node_shapes` gives it.
    rules
        The network's.
    """
    places = np.arange(math.prod(max(size, 1) for size in shape))
    exchanged = []
    for phase in phases_of_shape(operation, shape, rules):
        grid = places.reshape(-1, phase.size, phase.stride)
        ends = _freeze(grid.copy()), _freeze(np.roll(grid, -1, axis=1))
        exchanged.append(Exchange(*ends, phase.fraction, phase.num_steps))
    return tuple(exchanged)


def _reduced(flat: Builders, operation: str, sizes: Shape) -> Exchanges:
    """Return reduce-scatters inwards-out, the outermost level, all-gathers back."""
    inwards: list[Exchange] = []
    back: list[Exchange] = []
    left = 1.0
    for level, size in enumerate(sizes[:-1]):
        scatter, gather = flat["reduce_scatter"](size), flat["all_gather"](size)
        inwards += _at_level(scatter, sizes, level, left=left)
        back = [*_at_level(gather, sizes, level, left=left), *back]
        left /= size
    top = _at_level(flat[operation](sizes[-1]), sizes, len(sizes) - 1, left=left)
    return (
        *(inwards if operation != "all_gather" else ()),
        *top,
        *(back if operation != "reduce_scatter" else ()),
    )


def _at_level(
    phases: Exchanges,
    sizes: Shape,
    level: int,
    *,
    left: float = 1.0,
    most: int | None = None,
) -> Exchanges:
    """Let each part of a level do what one group of its size does.

    Of the members that have the same place in the parts below, the first ``most``
    such places take part; all of them if None.
    """
    stride = int(np.prod(sizes[:level], dtype=np.int64))
    grid = np.arange(int(np.prod(sizes, dtype=np.int64)))
    starts = grid.reshape(-1, sizes[level], stride)[:, 0, :most].reshape(-1, 1)
    return tuple(
        Exchange(
            _freeze(starts + stride * exchange.senders),
            _freeze(starts + stride * exchange.receivers),
            exchange.fraction * left,
            exchange.num_steps,
        )
        for exchange in phases
    )


def _freeze(places: IntArray) -> IntArray:
    flat = places.reshape(-1)
    flat.flags.writeable = False
    return flat
