"""Where stages, replicas and groups stand: nestings over device numbers.

A placement is a sequence of factors, innermost first; a factor gives one parallel
dimension, or a part of it, a stride over device numbers. Tensor parallelism is always
innermost with stride 1. Context, expert, data and pipeline parallelism follow in any
order (``dp`` here counts the replicas of each expert; times ``ep`` it is the
data-parallel size). Data and pipeline parallelism may each be split once into an inner
part that fills a block of the network and an outer part that comes later: pipelines
inside a node and replicas across, the reverse, or half of one inside the other. Once
per placement the extent may be padded to the size of a block, leaving devices idle to
avoid a slow link.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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

    grid: IntArray
    """Device numbers, shape ``(pp, dp, ep, cp, tp)``, stages from first to last."""

    @property
    def devices(self) -> IntArray:
        """Device numbers, shape ``(p, d, lanes)``.

        Replica ``dp_rank * ep + ep_rank``, lane ``cp_rank * tp + tp_rank``.
        """
        pp, dp, ep, cp, tp = self.grid.shape
        return self.grid.reshape(pp, dp * ep, cp * tp)


@dataclass(frozen=True, slots=True)
class _Open:
    """A placement under construction."""

    extent: int
    strides: tuple[tuple[str, int, int], ...]  # (dimension, size, stride)
    left: tuple[tuple[str, int], ...]
    split: tuple[str, ...]
    padded: bool
    name: str


def placements(
    extents: Extents, *, num_devices: int, block_sizes: Sequence[int]
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
    if int(np.prod(extents)) > num_devices:
        return ()
    start = _Open(
        extent=extents.tp,
        strides=(),
        left=tuple(
            (name, size)
            for name, size in extents._asdict().items()
            if name != "tp" and size > 1
        ),
        split=(),
        padded=False,
        name=f"tp{extents.tp}",
    )
    seen: dict[bytes, Placement] = {}
    for state in _complete(start, num_devices, block_sizes):
        offsets = _offsets(state, extents)
        if sum(int(offset.max()) for offset in offsets.values()) < num_devices:
            key = b"".join(offset.tobytes() for offset in offsets.values())
            if key not in seen:
                seen[key] = Placement(name=state.name, grid=_grid(offsets))
    return tuple(seen.values())


def _complete(
    state: _Open, num_devices: int, block_sizes: Sequence[int]
) -> Iterator[_Open]:
    """Yield every way to finish a placement, depth first."""
    if not state.left:
        yield state
        return
    for opened in (state, *_padded(state, block_sizes)):
        for name, size in opened.left:
            for step in _steps(opened, name, size, block_sizes):
                # Whatever comes next has at least this extent for its stride.
                if not step.left or step.extent < num_devices:
                    yield from _complete(step, num_devices, block_sizes)


def _steps(
    state: _Open, name: str, size: int, block_sizes: Sequence[int]
) -> Iterator[_Open]:
    """Yield the next factor: the whole dimension, or an inner part of it."""
    rest = tuple(item for item in state.left if item[0] != name)
    yield _with_factor(state, name, size, rest)
    if name in state.split or name not in SPLIT_ONCE:
        return
    for inner in sorted({block // state.extent for block in block_sizes}):
        if 2 <= inner < size:
            outer = -(-size // inner)
            partly = _with_factor(state, name, inner, (*rest, (name, outer)))
            yield replace(partly, split=(*state.split, name))


def _with_factor(
    state: _Open, name: str, size: int, left: tuple[tuple[str, int], ...]
) -> _Open:
    return replace(
        state,
        extent=state.extent * size,
        strides=(*state.strides, (name, size, state.extent)),
        left=left,
        name=f"{state.name} {name}{size}",
    )


def _padded(state: _Open, block_sizes: Sequence[int]) -> Iterator[_Open]:
    """Yield the state with its extent rounded up to fit blocks evenly."""
    if state.padded:
        return
    extents = set()
    for block in block_sizes:
        if state.extent > block:
            extents.add(-(-state.extent // block) * block)
        else:
            extents.update(
                block // parts
                for parts in range(1, block // state.extent + 1)
                if block % parts == 0
            )
    for extent in sorted(extents - {state.extent}):
        name = f"{state.name}/{extent}"
        yield replace(state, extent=extent, padded=True, name=name)


def _offsets(state: _Open, extents: Extents) -> dict[str, IntArray]:
    """Return what each rank of each dimension adds to the device number."""
    digits = {
        name: np.arange(size, dtype=np.int64)
        for name, size in extents._asdict().items()
    }
    offsets = {name: np.zeros_like(digit) for name, digit in digits.items()}
    offsets["tp"] = digits["tp"]
    last_factor = {name: place for place, (name, _, _) in enumerate(state.strides)}
    for place, (name, size, stride) in enumerate(state.strides):
        is_last = last_factor[name] == place
        digit = digits[name] if is_last else digits[name] % size
        offsets[name] = offsets[name] + digit * stride
        digits[name] = digits[name] // size
    return offsets


def _grid(offsets: dict[str, IntArray]) -> IntArray:
    return (
        offsets["pp"][:, None, None, None, None]
        + offsets["dp"][:, None, None, None]
        + offsets["ep"][:, None, None]
        + offsets["cp"][:, None]
        + offsets["tp"]
    )
