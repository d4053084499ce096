"""Where a job's devices are, among those that other jobs leave.

Devices are taken in *units*, aligned runs of devices inside a node: whole nodes, where
the number of devices allows it. Blocks are those that the network says are worth
aligning with (`Network.block_sizes`): nodes, leaves, pods; lines and planes of a torus.

A *candidate* is a set of free devices. Where there are few that differ, they are all
candidates; else those that an operator would think of are: close together, in whole
free blocks of one level, in windows of consecutive devices, in the fullest or the
emptiest blocks first, in turn from the blocks of each level.

Two candidates are alike if exchanging whole blocks of a tree for their neighbours turns
one into the other, with every device of every job in its place among the job's: on the
network as built they are the same, but for what a hash of device numbers picks.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, IntArray
from topologies.network import Network

MOST_ENUMERATED = 4096
"""Sets of units that are looked at one by one to find all candidates that differ."""

MOST_CANDIDATES = 24
"""Candidates that are judged by a replay, of each job."""

_MOST_WINDOWS = 8
"""Windows of consecutive devices among the candidates."""


class CandidateDevices(NamedTuple):
    """Devices that a job may have."""

    label: str
    """How they were chosen."""

    devices: IntArray
    """Their numbers, rising."""


class Candidates(NamedTuple):
    """What is judged for one job."""

    listed: tuple[CandidateDevices, ...]
    """Candidates that are not alike, in the order in which equals win."""

    is_complete: bool
    """Whether every placement in whole units is alike to one of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Room:
    """A network with the devices that are taken."""

    network: Network
    """The network of all jobs."""

    owners: IntArray
    """Job that has each device, -1 where none has, shape ``(N,)``."""

    ranks: IntArray
    """Place of each device among those of its job, -1 where none has it."""

    is_even: bool
    """Whether nothing of the network is slow or gone."""

    @classmethod
    def of(
        cls, network: Network, taken: Sequence[IntArray], *, is_even: bool = True
    ) -> "Room":
        """Return the room that jobs with these devices leave."""
        owners = np.full(network.num_devices, -1, dtype=np.int64)
        ranks = owners.copy()
        for job, devices in enumerate(taken):
            owners[devices] = job
            ranks[devices] = np.arange(len(devices))
        return cls(network=network, owners=owners, ranks=ranks, is_even=is_even)

    @property
    def node_size(self) -> int:
        """Devices of a node, or of the smallest block."""
        rules = self.network.rules
        return self.network.block_sizes[0] if rules is None else rules.node_size

    def blocks_of(self, num_devices: int) -> tuple[int, ...]:
        """Return devices of a unit and of all larger blocks for a job, rising."""
        unit = math.gcd(num_devices, self.node_size)
        larger = [size for size in self.network.block_sizes if size > unit]
        return (unit, *(size for size in larger if size % unit == 0))

    def free_units(self, unit: int) -> IntArray:
        """Return the first device of each unit of which all devices are free."""
        whole = self.network.num_devices // unit * unit
        taken: BoolArray = (self.owners[:whole] >= 0).reshape(-1, unit)
        return np.flatnonzero(~taken.any(axis=1)) * unit


def compact(room: Room, num_devices: int) -> IntArray | None:
    """Return devices as close together as the room allows, None if it is too small.

    In the smallest block that has enough; in it, whole free blocks first, then the one
    with the least room that is enough for the rest.
    """
    blocks = room.blocks_of(num_devices)
    units = room.free_units(blocks[0])
    if len(units) * blocks[0] < num_devices:
        return None
    return _filled(_packed(units, blocks, num_devices // blocks[0]), blocks[0])


def _packed(units: IntArray, blocks: Sequence[int], count: int) -> IntArray:
    """Return so many units, of the block sizes given the smallest one that has them."""
    for level in range(1, len(blocks)):
        groups = _grouped(units, blocks[level])
        enough = [group for group in groups if len(group) >= count]
        if enough:
            least = min(enough, key=len)
            return _packed_inside(least, blocks[:level], count)
    return units[:count]


def _packed_inside(units: IntArray, blocks: Sequence[int], count: int) -> IntArray:
    """Return so many units of one block, its inner blocks whole as far as they go."""
    if len(blocks) == 1 or count == len(units):
        return units[:count]
    size = blocks[-1] // blocks[0]
    groups = _grouped(units, blocks[-1])
    whole = [group for group in groups if len(group) == size]
    taken = whole[: count // size]
    rest = count - size * len(taken)
    if rest == 0:
        return np.sort(np.concatenate(taken))
    left = [group for group in groups if not any(group is one for one in taken)]
    enough = [group for group in left if len(group) >= rest]
    if enough:
        last = _packed_inside(min(enough, key=len), blocks[:-1], rest)
    else:
        last = np.concatenate(sorted(left, key=len, reverse=True))[:rest]
    return np.sort(np.concatenate([*taken, last]))


def spread(room: Room, num_devices: int, inside: int = 0) -> IntArray | None:
    """Return devices in turn from all blocks, None if the room is too small.

    Parameters
    ----------
    room
        What is free.
    num_devices
        How many are wanted.
    inside
        Devices of the largest blocks that are filled one after another; 0 for units.
    """
    unit, *larger = room.blocks_of(num_devices)
    units = room.free_units(unit)
    if len(units) * unit < num_devices:
        return None
    order = _in_turn(units, [size for size in larger if size > inside])
    return _filled(np.sort(order[: num_devices // unit]), unit)


def _in_turn(units: IntArray, blocks: Sequence[int]) -> IntArray:
    """Return units so that each block's turn comes as often as any other's."""
    if not blocks:
        return units
    parts = [_in_turn(group, blocks[:-1]) for group in _grouped(units, blocks[-1])]
    turns = zip_longest(*(part.tolist() for part in parts))
    return np.array(
        [unit for turn in turns for unit in turn if unit is not None], dtype=np.int64
    )


def _grouped(units: IntArray, size: int) -> list[IntArray]:
    """Return the units of each block that has any."""
    cuts = np.flatnonzero(np.diff(units // size)) + 1
    return np.split(units, cuts) if units.size else []


def _filled(units: IntArray, unit: int) -> IntArray:
    """Return the devices of units."""
    return np.asarray((units[:, None] + np.arange(unit)).ravel(), dtype=np.int64)


def candidates(room: Room, num_devices: int) -> Candidates:
    """Return placements of a job, none of them alike; none if the room is too small.

    Parameters
    ----------
    room
        What other jobs leave.
    num_devices
        Devices of the job.
    """
    blocks = room.blocks_of(num_devices)
    units, count = room.free_units(blocks[0]), num_devices // blocks[0]
    if len(units) < count:
        return Candidates((), is_complete=True)
    signatures = _Signatures(room)
    known: dict[object, CandidateDevices] = {}
    for candidate in _thought_of(room, num_devices):
        known.setdefault(signatures.of(candidate.devices), candidate)
    if math.comb(len(units), count) <= MOST_ENUMERATED:
        every = dict(known)
        for chosen in combinations(units.tolist(), count):
            devices = _filled(np.array(chosen), blocks[0])
            every.setdefault(
                signatures.of(devices), CandidateDevices("another", devices)
            )
        if len(every) <= MOST_CANDIDATES:
            return Candidates(tuple(every.values()), is_complete=True)
    listed = tuple(known.values())[:MOST_CANDIDATES]
    return Candidates(listed, is_complete=False)


def _thought_of(room: Room, num_devices: int) -> Iterator[CandidateDevices]:
    """Yield what an operator would think of; some of it twice."""
    blocks = room.blocks_of(num_devices)
    units, count = room.free_units(blocks[0]), num_devices // blocks[0]

    def made(label: str, chosen: IntArray) -> CandidateDevices:
        return CandidateDevices(label, _filled(np.sort(chosen), blocks[0]))

    yield made("compact", _packed(units, blocks, count))
    for size in reversed(blocks[1:-1]):
        name = _block_name(room.network, size)
        whole = [one for one in _grouped(units, size) if len(one) * blocks[0] == size]
        if num_devices % size == 0 and len(whole) * size >= num_devices:
            chosen = np.concatenate(whole[: num_devices // size])
            yield made(f"whole {name} blocks", chosen)
        groups = _grouped(units, size)
        for label, fullest in (("fullest", 1), ("emptiest", -1)):
            order = sorted(groups, key=lambda group: fullest * len(group))
            yield made(f"{label} {name} first", np.concatenate(order)[:count])
    yield from _evenly(room, units, blocks, count)
    for inside in (0, *blocks[1:-1]):
        chosen = _in_turn(units, [size for size in blocks[1:] if size > inside])
        name = _block_name(room.network, inside or blocks[0])
        yield made(f"spread, {name} by {name}", chosen[:count])
    for start in _windows(units, blocks, count):
        label = f"window from {int(units[start])}"
        yield made(label, units[start : start + count])


def _evenly(
    room: Room, units: IntArray, blocks: Sequence[int], count: int
) -> Iterator[CandidateDevices]:
    """Yield the same number of units in each of as many blocks as that takes."""
    for size in blocks[1:-1]:
        groups = _grouped(units, size)
        name = _block_name(room.network, size)
        for of_block in range(1, size // blocks[0] + 1):
            enough = [group[:of_block] for group in groups if len(group) >= of_block]
            if count % of_block == 0 and len(enough) * of_block >= count > of_block:
                chosen = np.concatenate(enough[: count // of_block])
                label = f"{of_block * blocks[0]} in each {name}"
                yield CandidateDevices(label, _filled(np.sort(chosen), blocks[0]))


def _windows(units: IntArray, blocks: Sequence[int], count: int) -> Iterable[int]:
    """Return where runs of consecutive free units begin, on aligned numbers."""
    last = len(units) - count
    run = units[count - 1 :] - units[: last + 1] == (count - 1) * blocks[0]
    starts = np.flatnonzero(run)
    aligned = max(size for size in blocks if count * blocks[0] % size == 0)
    chosen = [int(start) for start in starts if units[start] % aligned == 0]
    if len(chosen) > _MOST_WINDOWS:
        places = np.linspace(0, len(chosen) - 1, _MOST_WINDOWS).round().astype(int)
        chosen = [chosen[place] for place in np.unique(places)]
    return chosen


def _block_name(network: Network, size: int) -> str:
    """Return what blocks of so many devices are called."""
    for level in network.levels:
        if network.is_tree and level.block_size == size:
            return level.name
    return f"{size} devices" if size > 1 else "device"


class _Signatures:
    """Tells which candidates of a room are alike."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, devices: IntArray) -> object:
        """Return what candidates have in common that are alike."""
        room = self._room
        if not room.network.is_tree or not room.is_even:
            return devices.tobytes()
        owners, ranks = room.owners.copy(), room.ranks.copy()
        owners[devices] = owners.max(initial=-1) + 1
        ranks[devices] = np.arange(len(devices))
        blocks: list[int] = (owners * len(ranks) + ranks).tolist()
        size = 1
        for larger in room.network.block_sizes:
            step = larger // size
            groups = [blocks[at : at + step] for at in range(0, len(blocks), step)]
            # Devices of a node keep their order: rails tell them apart.
            blocks = [
                self._number(group if size == 1 else sorted(group)) for group in groups
            ]
            size = larger
        return tuple(blocks)

    def _number(self, group: Sequence[int]) -> int:
        """Return the same number for the same contents of a block."""
        return self._numbers.setdefault((len(group), *group), len(self._numbers))
