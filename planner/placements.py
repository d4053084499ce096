"""Where stages, replicas and groups stand: nestings over device numbers.

A placement is a sequence of factors, innermost first; a factor gives one parallel
dimension, or a part of it, a stride over device numbers. Tensor parallelism is always
innermost with stride 1. Context, expert, data and pipeline parallelism follow in any
order (``dp`` here counts the replicas of each expert; times ``ep`` it is the
data-parallel size). Data and pipeline parallelism may each be split once into an inner
part that fills a block of the network and an outer part, another dimension between
them: pipelines inside a node and replicas across, the reverse, or half of one inside
the other. Once per placement the extent may be padded to the size of a block, leaving
devices idle to avoid a slow link.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]

SPLIT_ONCE = ("dp", "pp")
"""Dimensions that may have an inner and an outer factor."""


class Extents(NamedTuple):
    """Sizes of the dimensions of a placement; ``dp`` counts replicas of experts."""

    tp: int
    cp: int
    ep: int
    dp: int
    pp: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Devices of every stage, replica and rank."""

    name: str
    """The factors, innermost first: ``"tp8 dp4 pp2"``; ``"/12"`` after a factor
    means padded to an extent of 12 devices."""

    extents: Extents
    """Sizes of the dimensions."""

    steps: tuple[tuple[int, ...], ...]
    """Of each dimension, in the order of `Extents`: size and stride of the inner
    factor, stride of the outer one (0 if there is none)."""

    @property
    def grid(self) -> IntArray:
        """Device numbers, shape ``(pp, dp, ep, cp, tp)``, stages from first to last."""
        grid = np.zeros((1,) * len(self.extents), dtype=np.int64)
        for axis, (size, step) in enumerate(zip(self.extents, self.steps, strict=True)):
            inner, inner_stride, outer_stride = step
            ranks = np.arange(size, dtype=np.int64)
            offsets = ranks % inner * inner_stride + ranks // inner * outer_stride
            shape = [1] * len(self.extents)
            shape[-1 - axis] = size
            grid = grid + offsets.reshape(shape)
        return grid

    @property
    def devices(self) -> IntArray:
        """Device numbers, shape ``(p, d, lanes)``.

        Replica ``dp_rank * ep + ep_rank``, lane ``cp_rank * tp + tp_rank``.
        """
        pp, dp, ep, cp, tp = self.grid.shape
        return self.grid.reshape(pp, dp * ep, cp * tp)


class _Open(NamedTuple):
    """A placement under construction."""

    extent: int
    factors: tuple[tuple[str, int, int], ...]
    """(Dimension, size, stride), innermost first."""
    left: tuple[tuple[str, int], ...]
    split: tuple[str, ...]
    padded: bool
    name: str

    def key(self) -> tuple[object, ...]:
        """Return what decides which placements the state leads to."""
        return self.extent, frozenset(self.factors), self.left, self.split, self.padded


@lru_cache(maxsize=4096)
def placements(
    extents: Extents, num_devices: int, block_sizes: tuple[int, ...]
) -> tuple[Placement, ...]:
    """Return every placement of the space that fits the cluster, without repetition.

    Parameters
    ----------
    extents
        Sizes of the dimensions.
    num_devices
        Devices of the cluster.
    block_sizes
        `Network.block_sizes`, rising.

    Returns
    -------
    tuple[Placement, ...]
        Empty if the devices do not suffice. Compact orders come first.
    """
    if math.prod(extents) > num_devices:
        return ()
    start = _Open(
        extent=extents.tp,
        factors=(),
        left=tuple(
            (name, size)
            for name, size in extents._asdict().items()
            if name != "tp" and size > 1
        ),
        split=(),
        padded=False,
        name=f"tp{extents.tp}",
    )
    states = _complete(start, num_devices, block_sizes)
    found: dict[tuple[tuple[int, ...], ...], Placement] = {}
    for state in states:
        steps = _steps_of(state, extents)
        if steps not in found and _largest(steps, extents) < num_devices:
            found[steps] = Placement(name=state.name, extents=extents, steps=steps)
    return tuple(found.values())


def _complete(
    start: _Open, num_devices: int, block_sizes: tuple[int, ...]
) -> Iterator[_Open]:
    """Yield every way to finish a placement, depth first, each state once."""
    seen: set[tuple[object, ...]] = set()
    stack = [start]
    while stack:
        state = stack.pop()
        if state.key() in seen:
            continue
        seen.add(state.key())
        if not state.left:
            yield state
            continue
        following = [
            step
            for opened in (state, *_padded(state, block_sizes))
            for name, size in opened.left
            for step in _next_factors(opened, name, size, block_sizes)
            # Whatever comes next has at least this extent for its stride.
            if not step.left or step.extent < num_devices
        ]
        stack.extend(reversed(following))


def _next_factors(
    state: _Open, name: str, size: int, block_sizes: tuple[int, ...]
) -> Iterator[_Open]:
    """Yield the next factor: the whole dimension, or an inner part of it."""
    rest = tuple(item for item in state.left if item[0] != name)
    yield _with_factor(state, name, size, rest)
    if name in state.split or name not in SPLIT_ONCE or not rest:
        return
    for inner in sorted({block // state.extent for block in block_sizes}):
        if 2 <= inner < size:
            outer = -(-size // inner)
            left = tuple(sorted((*rest, (name, outer))))
            partly = _with_factor(state, name, inner, left)
            yield partly._replace(split=tuple(sorted((*state.split, name))))


def _with_factor(
    state: _Open, name: str, size: int, left: tuple[tuple[str, int], ...]
) -> _Open:
    return _Open(
        state.extent * size,
        (*state.factors, (name, size, state.extent)),
        left,
        state.split,
        state.padded,
        f"{state.name} {name}{size}",
    )


def _padded(state: _Open, block_sizes: tuple[int, ...]) -> Iterator[_Open]:
    """Yield the state with its extent rounded up to fit blocks evenly."""
    if state.padded:
        return
    for extent in _even_extents(state.extent, block_sizes):
        name = f"{state.name}/{extent}"
        yield state._replace(extent=extent, padded=True, name=name)


@lru_cache(maxsize=4096)
def _even_extents(extent: int, block_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the extents above this one that divide a block, or fill whole ones."""
    found = set()
    for block in block_sizes:
        if extent > block:
            found.add(-(-extent // block) * block)
        else:
            found.update(
                block // parts
                for parts in range(1, block // extent + 1)
                if block % parts == 0
            )
    return tuple(sorted(found - {extent}))


def _steps_of(state: _Open, extents: Extents) -> tuple[tuple[int, ...], ...]:
    """Return ``(inner size, inner stride, outer stride)`` of each dimension.

    An inner size of the whole dimension makes the outer stride 0.
    """
    steps = {name: (size, 0, 0) for name, size in extents._asdict().items()}
    steps["tp"] = (extents.tp, 1, 0)
    for name, size, stride in state.factors:
        inner, first, _ = steps[name]
        if first == 0:
            steps[name] = (size, stride, 0)
        elif stride == inner * first:  # the two parts join up to one
            steps[name] = (inner * size, first, 0)
        else:
            steps[name] = (inner, first, stride)
    return tuple(
        (min(inner, size), first, outer)
        for size, (inner, first, outer) in zip(extents, steps.values(), strict=True)
    )


def _largest(steps: tuple[tuple[int, ...], ...], extents: Extents) -> int:
    """Return the largest device number of a placement."""
    return sum(
        (size - 1) * inner_stride
        if outer_stride == 0
        else max(
            (size - 1) // inner * outer_stride + (size - 1) % inner * inner_stride,
            # A last outer part that is not full may lie lower than the one before.
            ((size // inner) - 1) * outer_stride + (inner - 1) * inner_stride,
        )
        for size, (inner, inner_stride, outer_stride) in zip(
            extents, steps, strict=True
        )
    )
