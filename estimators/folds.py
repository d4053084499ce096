"""Phases of collectives as folds: rings by the places of members in their group.

With the members of a group in order of device number, a fold sends from place ``i``
to place ``i + stride``, and from the last place of a ring back to its first. Folds
depend only on the group's *shape*: how many parts it has at each level of the network
within one part of the next level, innermost first. So the phases of many stages are
one small table, from which kernels price them without making the rings.

References
----------
.. [1] R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
   Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 3-4.
.. [2] J. Huang et al., "Communication Algorithm-Architecture Co-Design for
   Distributed Deep Learning", ISCA 2021: hierarchical (per level) all-reduce.
"""

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Shape = tuple[int, ...]


class Turn(NamedTuple):
    """One pass of data round a ring of ``n`` members."""

    fraction: float
    """What each member sends, over the bytes of the full tensor."""

    num_steps: int
    """Rounds, each paying the latency once."""


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


class Fold(NamedTuple):
    """One phase of a collective."""

    stride: int
    """Places from a member to the next one of its ring."""

    size: int
    """Members of a ring."""

    fraction: float
    """As in `Turn`."""

    num_steps: int
    """As in `Turn`."""


_IDLE = Fold(1, 1, 0.0, 0)
"""What a stage does that has ended before others of the same round."""


@lru_cache(maxsize=4096)
def folds(operation: str, shape: Shape) -> tuple[Fold, ...]:
    """Return the phases of a collective over groups of a shape [2]_.

    All-reduce: reduce-scatter inside the parts, level by level outwards, all-reduce
    over the outermost level, all-gather back inwards; the other operations are one
    half of that. Each level works on what the levels inside it have left. A shape of
    one level gives the plain ring, and a group of one no phase at all.
    """
    sizes = [size for size in shape if size > 1]
    if not sizes:
        return ()
    inner: list[Fold] = []
    stride, left = 1, 1.0
    for size in sizes[:-1]:
        turn = ring_pass(size)
        inner.append(Fold(stride, size, turn.fraction * left, turn.num_steps))
        stride *= size
        left /= size
    turn = RING_OPERATIONS[operation](sizes[-1])
    outermost = Fold(stride, sizes[-1], turn.fraction * left, turn.num_steps)
    before = inner if operation != "all_gather" else []
    after = inner[::-1] if operation != "reduce_scatter" else []
    return (*before, outermost, *after)


class FoldTables(NamedTuple):
    """Phases of ``C`` collectives, for stages of ``U`` forms, each phase once.

    What `estimators.kernels.edges.price_rings` takes, and explains.
    """

    rings: IntArray
    """Stride and size, shape ``(P, U, 2)``."""

    turns: IntArray
    """Phases of each collective, then -1, shape ``(C, T)``."""

    factors: FloatArray
    """Number of steps and fraction of each turn, shape ``(C, T, U, 2)``."""


@lru_cache(maxsize=1024)
def fold_tables(
    operations: tuple[str, ...], forms: tuple[tuple[Shape, ...], ...]
) -> FoldTables:
    """Return the tables of all operations by all algorithms, operations fastest.

    A form gives the shape of a stage's groups for each algorithm. The ``t``-th phases
    of all stages take place at the same time, whatever the stages' forms are.
    """
    phases: dict[tuple[tuple[int, int], ...], int] = {}
    sequences = []
    for algorithm in range(len(forms[0])):
        for operation in operations:
            each = [folds(operation, form[algorithm]) for form in forms]
            sequences.append(list(itertools.zip_longest(*each, fillvalue=_IDLE)))
    longest = max(len(sequence) for sequence in sequences)
    turns = np.full((len(sequences), longest), -1, dtype=np.int64)
    factors = np.zeros((len(sequences), longest, len(forms), 2))
    for c, sequence in enumerate(sequences):
        for t, phase in enumerate(sequence):
            key = tuple((fold.stride, fold.size) for fold in phase)
            turns[c, t] = phases.setdefault(key, len(phases))
            factors[c, t] = [(fold.num_steps, fold.fraction) for fold in phase]
    rings = np.array(list(phases), dtype=np.int64).reshape(-1, len(forms), 2)
    return FoldTables(rings, turns, factors)
