"""The space of placements from its definition: slow, and shared with nobody.

A placement is a sequence of factors, innermost first. A factor gives the digits of one
dimension, or of a part of it, a stride: the extent of all that stands inside it. A
device's number is the sum of its digits times their strides.

- Tensor parallelism comes first, with stride 1.
- Context, expert, data and pipeline parallelism follow in any order.
- Data and pipeline parallelism may be split once, if another factor is still to come:
  an inner part of as many as fill a block of the network, and an outer part of as many
  as it takes, the last of which may be incomplete. The outer part may come at any
  time after that.
- Once, before any factor, a gap may widen the extent: to the next multiple of a block
  that it exceeds, or to a divisor of one that it does not.
- Every device number is below that of the devices.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

NAMES = ("tp", "cp", "ep", "dp", "pp")


class Factor(NamedTuple):
    """Digits ``rank // below % size`` of one dimension."""

    name: str
    below: int
    size: int
    stride: int


class Sequence(NamedTuple):
    """Factors so far, and what is still to come."""

    factors: tuple[Factor, ...]
    extent: int
    whole: dict[str, int]
    """Dimensions that are not begun, and their sizes."""
    outer: dict[str, tuple[int, int]]
    """Dimensions with an inner part: its size, and that of the outer part."""
    has_gap: bool


@lru_cache(maxsize=4096)
def naive_placements(
    sizes: tuple[int, ...], num_devices: int, block_sizes: tuple[int, ...]
) -> frozenset[tuple[int, ...]]:
    """Return the device numbers of every placement.

    ``sizes`` are those of `NAMES`; numbers go by ``(pp, dp, ep, cp, tp)``, the last
    fastest.
    """
    tp = Factor("tp", 1, sizes[0], 1)
    begun = {n: s for n, s in zip(NAMES, sizes, strict=True) if n != "tp" and s > 1}
    start = Sequence((tp,), tp.size, begun, {}, has_gap=False)
    found = set()
    for factors in _sequences(start, block_sizes):
        numbers = _numbers(factors, sizes)
        if max(numbers) < num_devices:
            found.add(numbers)
    return frozenset(found)


def naive_grids(
    sizes: tuple[int, ...], num_devices: int, block_sizes: tuple[int, ...]
) -> list[np.ndarray]:
    """Return every placement in the shape ``(pp, dp, ep, cp, tp)``, in order."""
    found = naive_placements(sizes, num_devices, block_sizes)
    shape = sizes[::-1]
    return [np.array(one, dtype=np.int64).reshape(shape) for one in sorted(found)]


def _sequences(
    state: Sequence, block_sizes: tuple[int, ...]
) -> Iterator[tuple[Factor, ...]]:
    """Yield every way to finish a sequence, many of them several times."""
    if not state.whole and not state.outer:
        yield state.factors
        return
    widened = [
        state._replace(extent=extent, has_gap=True)
        for extent in _wider(state.extent, block_sizes)
    ]
    for one in (state, *(() if state.has_gap else widened)):
        for following in _following(one, block_sizes):
            yield from _sequences(following, block_sizes)


def _following(state: Sequence, block_sizes: tuple[int, ...]) -> Iterator[Sequence]:
    for name, (inner, parts) in state.outer.items():
        outer = {other: two for other, two in state.outer.items() if other != name}
        yield _and(state, Factor(name, inner, parts, state.extent))._replace(
            outer=outer
        )
    for name, size in state.whole.items():
        whole = {other: one for other, one in state.whole.items() if other != name}
        yield _and(state, Factor(name, 1, size, state.extent))._replace(whole=whole)
        is_last = not whole and not state.outer
        if name not in {"dp", "pp"} or is_last:
            continue
        for block in block_sizes:
            inner = block // state.extent
            if 2 <= inner < size:
                parts = -(-size // inner)
                yield _and(state, Factor(name, 1, inner, state.extent))._replace(
                    whole=whole, outer={**state.outer, name: (inner, parts)}
                )


def _and(state: Sequence, factor: Factor) -> Sequence:
    factors = (*state.factors, factor)
    return state._replace(factors=factors, extent=factor.stride * factor.size)


def _wider(extent: int, block_sizes: tuple[int, ...]) -> set[int]:
    """Return what a gap may widen an extent to."""
    wider = set()
    for block in block_sizes:
        if extent <= block:
            wider |= {size for size in range(extent, block + 1) if block % size == 0}
        else:
            wider.add(next(n for n in range(extent, 2 * extent) if n % block == 0))
    return wider - {extent}


def _numbers(factors: tuple[Factor, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the device of every combination of ranks."""
    shares = [
        [
            sum(
                rank // below % size * stride
                for other, below, size, stride in factors
                if other == name
            )
            for rank in range(number)
        ]
        for name, number in zip(reversed(NAMES), reversed(sizes), strict=True)
    ]
    return tuple(map(sum, product(*shares)))
