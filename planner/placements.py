"""Where stages, replicas and tensor groups stand: nestings over device numbers.

A placement is a sequence of factors, innermost first; a factor gives one parallel
dimension, or a part of it, a stride over device numbers. Tensor parallelism is always
innermost with stride 1. Data and pipeline parallelism follow in either order, and
each may be split once into an inner part that fills a block of the network and an
outer part that comes later: pipelines inside a node and replicas across, the reverse,
or half of one inside the other. Once per placement the extent may be padded to the
size of a block, leaving devices idle to avoid a slow link.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """Devices of every stage, replica and tensor rank."""

    name: str
    """The factors, innermost first: ``"tp8 dp4 pp2"``; ``"/12"`` after a factor
    means padded to an extent of 12 devices."""

    devices: IntArray
    """Device numbers, shape ``(p, d, t)``, stages from the first to the last."""


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
    *, tp: int, dp: int, pp: int, num_devices: int, block_sizes: Sequence[int]
) -> tuple[Placement, ...]:
    """Return every placement of the space that fits the cluster, without repetition.

    Parameters
    ----------
    tp, dp, pp
        Parallel degrees.
    num_devices
        Devices of the cluster.
    block_sizes
        `Network.block_sizes`, rising.

    Returns
    -------
    tuple[Placement, ...]
        Empty if ``tp * dp * pp`` devices do not fit. Compact orders come first.
    """
    if tp * dp * pp > num_devices:
        return ()
    start = _Open(
        extent=tp,
        strides=(),
        left=tuple((n, size) for n, size in (("dp", dp), ("pp", pp)) if size > 1),
        split=(),
        padded=False,
        name=f"tp{tp}",
    )
    seen: dict[bytes, Placement] = {}
    for state in _complete(start, num_devices, block_sizes):
        devices = _devices(state, tp, dp, pp)
        if devices.max() < num_devices:
            found = Placement(name=state.name, devices=devices)
            seen.setdefault(devices.tobytes(), found)
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
                if step.extent <= 2 * num_devices:
                    yield from _complete(step, num_devices, block_sizes)


def _steps(
    state: _Open, name: str, size: int, block_sizes: Sequence[int]
) -> Iterator[_Open]:
    """Yield the next factor: the whole dimension, or an inner part of it."""
    rest = tuple(item for item in state.left if item[0] != name)
    yield _with_factor(state, name, size, rest)
    if name in state.split:
        return
    for inner in sorted({block // state.extent for block in block_sizes}):
        if 2 <= inner < size:
            outer = -(-size // inner)
            partly = _with_factor(state, name, inner, (*rest, (name, outer)))
            yield _Open(
                extent=partly.extent,
                strides=partly.strides,
                left=partly.left,
                split=(*state.split, name),
                padded=state.padded,
                name=partly.name,
            )


def _with_factor(
    state: _Open, name: str, size: int, left: tuple[tuple[str, int], ...]
) -> _Open:
    return _Open(
        extent=state.extent * size,
        strides=(*state.strides, (name, size, state.extent)),
        left=left,
        split=state.split,
        padded=state.padded,
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
        yield _Open(
            extent=extent,
            strides=state.strides,
            left=state.left,
            split=state.split,
            padded=True,
            name=f"{state.name}/{extent}",
        )


def _devices(state: _Open, tp: int, dp: int, pp: int) -> IntArray:
    offsets = {"dp": np.zeros(dp, np.int64), "pp": np.zeros(pp, np.int64)}
    digits = {"dp": np.arange(dp), "pp": np.arange(pp)}
    for position, (name, size, stride) in enumerate(state.strides):
        is_last = all(later[0] != name for later in state.strides[position + 1 :])
        digit = digits[name] if is_last else digits[name] % size
        offsets[name] = offsets[name] + digit * stride
        digits[name] = digits[name] // size
    return (
        offsets["pp"][:, None, None]
        + offsets["dp"][None, :, None]
        + np.arange(tp, dtype=np.int64)
    )
