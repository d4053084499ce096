"""What a placement's communication costs, message by message over explicit routes.

Every group is a set of device numbers read off the placement; nothing of
`planner.cost.rates` is used.
"""

from collections.abc import Iterable
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from hypothesis import reject

from tests.planner.naive_wires import FREE, Rate, Wires, around


class Sharding(NamedTuple):
    """ZeRO's shards over one group per stage."""

    group_size: int
    inside: Rate
    """All-gather or reduce-scatter of the parameters."""
    across: Rate
    """All-reduce among those that hold the same shard."""


class StageRates(NamedTuple):
    """What one stage pays; equal ones are equal tuples."""

    tensor_reduce: Rate
    tensor_pass: Rate
    context: Rate
    expert: Rate
    dense_reduce: Rate
    expert_reduce: Rate
    expert_pass: Rate
    shardings: tuple[Sharding, ...]


class Collective(NamedTuple):
    """All-reduce, and the dearer of all-gather and reduce-scatter, of every stage."""

    reduce: list[Rate]
    pass_: list[Rate]


class NaiveRates:
    """A placement's rates.

    ``grid`` has shape ``(pp, dp, axis, cp, tp)``, ``dp`` counting replicas of experts.
    The axis is that of ``ep``, or 1 where experts go round all ranks of a stage.
    """

    def __init__(self, wires: Wires, grid: np.ndarray, ep: int) -> None:
        self.wires, self.grid = wires, grid
        self.num_stages, dp, axis, cp, self.tp = grid.shape
        self.ep, self.cp, self.num_replicas = ep, cp, dp * axis
        self.folds = axis != ep
        self.lanes = grid.reshape(self.num_stages, dp * axis, cp * self.tp)

    def counted(self, kept: str) -> list[tuple[tuple[int, ...], ...]]:
        """Return, by stage, the devices with the same place among those of an expert.

        Or with the same ``"expert"``, as ranks are counted: ``tp`` innermost, then
        experts, then their replicas.
        """
        found = []
        for stage in self.grid:
            groups: dict[tuple[int, int], list[int]] = {}
            for rank, device in enumerate(stage.ravel().tolist()):
                lane, expert = rank % self.tp, rank // self.tp % self.ep
                copy = rank // (self.tp * self.ep)
                key = lane, expert if kept == "expert" else copy
                groups.setdefault(key, []).append(device)
            found.append(tuple(map(tuple, groups.values())))
        return found

    def groups(self, *axes: int) -> list[tuple[tuple[int, ...], ...]]:
        """Return, by stage, the devices that differ in nothing but these ranks."""
        kept = [axis for axis in range(1, 5) if axis not in axes]
        size = int(np.prod([self.grid.shape[axis] for axis in axes]))
        ordered = self.grid.transpose(0, *kept, *axes)
        return [
            tuple(tuple(group) for group in stage.reshape(-1, size).tolist())
            for stage in ordered
        ]

    def priced(self, groups: list, algorithm: str) -> Collective:
        """Price groups under an algorithm."""
        if len(groups[0][0]) == 1:
            return Collective([FREE] * len(groups), [FREE] * len(groups))

        def of(operation: str) -> list[Rate]:
            return self.wires.collective(groups, operation, algorithm)

        passes = zip(of("all_gather"), of("reduce_scatter"), strict=True)
        dearer = [(max(a[0], b[0]), max(a[1], b[1])) for a, b in passes]
        return Collective(of("all_reduce"), dearer)

    @cached_property
    def tensor(self) -> dict[str, Collective]:
        """Tensor-parallel groups under each algorithm."""
        groups = self.groups(4)
        return {name: self.priced(groups, name) for name in self.wires.algorithms}

    @cached_property
    def dense(self) -> dict[str, Collective]:
        """Replicas of dense parameters under each algorithm."""
        groups = self.groups(1, 2, 3)
        return {name: self.priced(groups, name) for name in self.wires.algorithms}

    @cached_property
    def context(self) -> list[Rate]:
        """Return one hop of the rings of context parallelism, in order of rank."""
        if self.cp == 1:
            return [FREE] * self.num_stages
        return self.wires.slowest(
            tuple(tuple(around(groups)) for groups in self.groups(3))
        )

    @cached_property
    def expert(self) -> list[Rate]:
        """All-to-all per byte held: everyone sends ``1 / ep`` of it to each other."""
        if self.ep == 1:
            return [FREE] * self.num_stages
        messages = tuple(
            tuple(pair for group in groups for pair in product(group, group))
            for groups in (self.counted("copy") if self.folds else self.groups(2))
        )
        worst = self.wires.slowest(messages)
        return [(latency, inverse / self.ep) for latency, inverse in worst]

    def _shardings(self, algorithm: str) -> list[tuple[Sharding, ...]]:
        whole = self.dense[algorithm].pass_
        groups = self.groups(1, 2, 3)
        size = len(groups[0][0])
        found = [[Sharding(size, rate, FREE)] for rate in whole]
        for part, split in self._parts(groups) if self.ep == 1 else ():
            inside = [tuple(one for parts in stage for one in parts) for stage in split]
            across = [
                tuple(same for parts in stage for same in zip(*parts, strict=True))
                for stage in split
            ]
            rates = (
                self.priced(inside, algorithm).pass_,
                self.priced(across, algorithm).reduce,
            )
            for options, *pair in zip(found, *rates, strict=True):
                options.append(Sharding(part, *pair))
        return [tuple(options) for options in found]

    def _parts(self, groups: list) -> Iterable[tuple[int, list]]:
        """Yield what groups fall into in blocks that hold equally many of each."""
        size = len(groups[0][0])
        seen = {1, size}
        for block in self.wires.blocks:
            split = [[_by_block(group, block) for group in stage] for stage in groups]
            sizes = {len(p) for stage in split for parts in stage for p in parts}
            if len(sizes) == 1 and not sizes & seen:
                seen |= sizes
                yield sizes.pop(), split

    @cached_property
    def experts(self) -> dict[str, Collective]:
        """Replicas of experts under each algorithm."""
        if self.ep == 1:
            return self.dense
        groups = self.counted("expert") if self.folds else self.groups(1, 3)
        return {name: self.priced(groups, name) for name in self.wires.algorithms}

    @cached_property
    def shardings(self) -> dict[str, list[tuple[Sharding, ...]]]:
        """Return, under each algorithm and by stage, every way to share shards."""
        return {name: self._shardings(name) for name in self.wires.algorithms}

    def stages(self, tensor_bytes: float, gradient_bytes: float) -> list[StageRates]:
        """Return the rates of every stage; sizes are what algorithms are chosen by.

        Where rounding decides between algorithms whose rates differ no answer is the
        right one: then the instance is no test.
        """
        every = [
            self._stages(*names)
            for names in product(
                cheapest(self.tensor, tensor_bytes),
                cheapest(self.dense, gradient_bytes),
            )
        ]
        if any(not _alike(every[0], other) for other in every[1:]):
            reject()
        return every[0]

    def _stages(self, tensor: str, data: str) -> list[StageRates]:
        return [
            StageRates(*rates)
            for rates in zip(
                *self.tensor[tensor],
                self.context,
                self.expert,
                self.dense[data].reduce,
                *self.experts[data],
                self.shardings[data],
                strict=True,
            )
        ]

    @cached_property
    def tied(self) -> Rate:
        """All-reduce between the first and the last stage, all lanes at once."""
        if self.num_stages == 1:
            return FREE
        ends = self.lanes[0].ravel().tolist(), self.lanes[-1].ravel().tolist()
        pairs = tuple(zip(*ends, strict=True))
        return self.wires.collective([pairs], "all_reduce", "ring")[0]

    @cached_property
    def boundaries(self) -> list[tuple[list[Rate], list[Rate]]]:
        """Forward and backward over the boundary after each stage, by replica.

        All replicas and lanes at once, either direction and every boundary apart; the
        last boundary is the one from the last stage to the first.
        """
        lanes = self.lanes.tolist()
        found = []
        for ends in zip(lanes, [*lanes[1:], lanes[0]], strict=True):
            there = tuple(
                tuple(zip(*lane, strict=True)) for lane in zip(*ends, strict=True)
            )
            back = tuple(tuple((b, a) for a, b in messages) for messages in there)
            found.append((self.wires.slowest(there), self.wires.slowest(back)))
        return found

    def transfers(self, num_bytes: float, v: int) -> list[tuple[float, ...]]:
        """Return what each replica's stages wait for boundaries, for one microbatch.

        Half of each round trip at either side; every boundary is crossed once for
        each virtual stage, the one from the last stage to the first once less.
        """
        p = self.num_stages
        times = [[0.0] * p for _ in range(self.num_replicas)]
        for s, directions in enumerate(self.boundaries if p > 1 else ()):
            crossings = v if s < p - 1 else v - 1
            for rates in directions:
                for row, (latency, inverse) in zip(times, rates, strict=True):
                    half = 0.5 * crossings * (latency + inverse * num_bytes)
                    row[s] += half
                    row[(s + 1) % p] += half
        return [tuple(row) for row in times]


def cheapest(priced: dict[str, Collective], num_bytes: float) -> list[str]:
    """Return the algorithms whose slowest all-reduce is fastest, the chosen one first.

    Others are as fast but for rounding. Of equal ones the first counts: mostly rings to
    which both fall back at the slowest stage.
    """
    times = {
        name: max(latency + inverse * num_bytes for latency, inverse in one.reduce)
        for name, one in priced.items()
    }
    best = min(times, key=times.__getitem__)
    return [
        best,
        *(
            name
            for name, time in times.items()
            if time != times[best]
            and np.isclose(time, times[best], rtol=1e-12, atol=0.0)
        ),
    ]


def _alike(one: list[StageRates], other: list[StageRates]) -> bool:
    """Tell whether all rates are equal but for rounding."""
    pairs = zip(_flat(one), _flat(other), strict=True)
    return all(np.isclose(a, b, rtol=1e-12, atol=0.0) for a, b in pairs)


def _flat(nested: Iterable) -> Iterable[float]:
    for item in nested:
        yield from _flat(item) if isinstance(item, Iterable) else (item,)


def _by_block(group: tuple[int, ...], block: int) -> list[tuple[int, ...]]:
    """Return the members in each block, both in order of device number."""
    parts: dict[int, list[int]] = {}
    for device in sorted(group):
        parts.setdefault(device // block, []).append(device)
    return [tuple(part) for part in parts.values()]
