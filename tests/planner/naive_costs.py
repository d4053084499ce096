"""What stages cost, straight from the layer table: no classes of intervals, no folding.

A piece is what one stage may hold: its chunks. For each piece of a chain every choice
of recompute, ZeRO and sharding group is priced; letters as in
`planner.kernels.tables`, whose formulas are those of the design, sections 5 and 6.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise, product
from typing import NamedTuple

import numpy as np

from estimators.layers.work import LayerTable
from estimators.training import ParameterBytes
from tests.planner.naive_rates import Sharding, StageRates
from tests.planner.naive_wires import Rate

Piece = tuple[tuple[int, int], ...]
"""First layer of each chunk, and the one after its last."""

REPEATED = {
    "none": lambda item, is_block: (0.0 * is_block, 0.0 * is_block),
    "selective": lambda item, is_block: (item.repeated_count, item.repeated_bytes),
    "full": lambda item, is_block: (
        is_block * item.forward_count,
        is_block * item.forward_bytes,
    ),
    "stage": lambda item, is_block: (item.forward_count, item.forward_bytes),
}
"""Number and bytes of what a recompute mode sends again, by layer."""


class Job(NamedTuple):
    """What a stage's costs depend on beside its rates and its layers."""

    modes: tuple[str, ...]
    zeros: tuple[int, ...]
    each: ParameterBytes
    step_time: float
    """Of the optimizer, for one parameter [s]."""
    shard_time: float
    """For each rank that shares shards of ZeRO-1 and 2 [s]."""
    expert_group: int
    memory: float


Option = tuple[float, float]
"""Work and tail of a choice [s]."""


def splits(num_layers: int, num_blocks: int, pp: int, v: int) -> Iterable[list[Piece]]:
    """Yield the pieces of every stage for every split of the space.

    Chains have one layer before the blocks and one after. With virtual stages every
    round has the same cuts, and every stage a block of each.
    """
    if v == 1:
        for cuts in combinations(range(1, num_layers), pp - 1):
            yield [((i, j),) for i, j in pairwise((0, *cuts, num_layers))]
        return
    length = num_blocks // v
    for cuts in combinations(range(1, length), pp - 1):
        chunks = [
            [(1 + turn * length + i, 1 + turn * length + j) for turn in range(v)]
            for i, j in pairwise((0, *cuts, length))
        ]
        chunks[0][0] = (0, chunks[0][0][1])
        chunks[-1][-1] = (chunks[-1][-1][0], num_layers)
        yield [tuple(stage) for stage in chunks]


class Pieces:
    """The pieces of one chain, each quantity an array over them."""

    def __init__(self, table: LayerTable, pieces: Sequence[Piece]) -> None:
        self.table, self.v = table, len(pieces[0])
        self.number = {piece: index for index, piece in enumerate(pieces)}
        layers = np.arange(table.num_layers)
        self.chunks = np.array(
            [[(layers >= i) & (layers < j) for i, j in piece] for piece in pieces],
            dtype=np.float64,
        )
        """Shape ``(pieces, v, L)``."""
        self.held = self.chunks.sum(axis=1)
        self.num_layers = self.held.sum(axis=1)
        self.expert = self.held @ table.expert_parameters
        self.dense = self.held @ table.parameters - self.expert
        # A tied embedding counts once where both of its ends are.
        self.dense -= table.tied_parameters * self.held[:, 0] * self.held[:, -1]
        self.largest = (self.held * table.parameters).max(axis=1)
        self.compute = self.held @ (table.forward_time + table.backward_time)
        self._made: dict = {}
        self.activations = {mode: self._activations(mode) for mode in REPEATED}
        self.traffic = [
            (
                item,
                self.held @ (item.forward_count + item.backward_count),
                self.held @ (item.forward_bytes + item.backward_bytes),
            )
            for item in table.traffic
        ]

    def options(self, rates: StageRates, job: Job, flying: int) -> list[list[Option]]:
        """Return, for each piece, the choices that fit and that no other one beats.

        By rising work and falling tail. Iteration time never falls when a stage's work
        or its tail grows: a choice with another one at most as large in both is never
        needed.
        """
        works, shares = self._work_and_shares(rates, job)
        every = []
        for mode, (extra, tail, static) in product(job.modes, shares.values()):
            kept, once = self.activations[mode]
            fits = _peak(static, flying * kept + once) <= job.memory
            every.append(np.where(fits, (works[mode] + extra, tail), np.inf))
        work, tail = np.stack(every, axis=1)
        order = np.lexsort((tail, work), axis=0)
        work, tail = (np.take_along_axis(one, order, axis=0) for one in (work, tail))
        least = np.vstack([np.full_like(tail[:1], np.inf), tail[:-1]])
        unbeaten = tail < np.minimum.accumulate(least, axis=0)
        columns = (one.T.tolist() for one in (work, tail, unbeaten))
        return [
            [(w, t) for w, t, keep in zip(*piece, strict=True) if keep]
            for piece in zip(*columns, strict=True)
        ]

    def price(
        self,
        rates: StageRates,
        job: Job,
        flying: int,
        choice: tuple[str, int, int],
    ) -> tuple[float, float, float]:
        """Return work, tail and memory of the only piece under one choice."""
        mode, zero, size = choice
        kept, once = self.activations[mode]
        works, shares = self._work_and_shares(rates, job)
        extra, tail, static = shares[zero, size]
        work = works[mode] + extra
        peak = _peak(static, flying * kept + once)
        return work.item(), tail.item(), peak.item()

    def _work_and_shares(
        self, rates: StageRates, job: Job
    ) -> tuple[dict[str, np.ndarray], dict[tuple[int, int], tuple]]:
        """Return what does not depend on the passes in flight, made once."""
        if (rates, job) not in self._made:
            self._made[rates, job] = self._works(rates, job), self._shares(rates, job)
        return self._made[rates, job]

    def _works(self, rates: StageRates, job: Job) -> dict[str, np.ndarray]:
        """Compute, in-layer collectives and recompute of one microbatch [s]."""
        table = self.table
        work = self.compute.copy()
        for item, count, num_bytes in self.traffic:
            work += line(_rate(rates, item), count, num_bytes)
        found = {}
        for mode in job.modes:
            found[mode] = work.copy()
            if mode != "none":
                found[mode] += self.held @ table.recompute_time[mode]
            for item in table.traffic:
                count, num_bytes = REPEATED[mode](item, table.is_block)
                found[mode] += line(
                    _rate(rates, item), self.held @ count, self.held @ num_bytes
                )
        return found

    def _shares(
        self, rates: StageRates, job: Job
    ) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Return for each ZeRO stage and group: time per microbatch, tail, memory."""
        found = {}
        if 0 in job.zeros:
            found[0, 1] = self._unshared(rates, job)
        for zero, sharding in product(job.zeros, rates.shardings):
            if zero > 0:
                found[zero, sharding.group_size] = self._shared(
                    zero, sharding, rates.expert_pass, job
                )
        return found

    def _unshared(
        self, rates: StageRates, job: Job
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Everyone reduces all gradients and steps all parameters."""
        width = job.each.reduce
        tail = line(rates.dense_reduce, 1.0, width * self.dense)
        tail = tail + line(rates.expert_reduce, self.expert > 0, width * self.expert)
        tail = tail + job.step_time * (self.dense + self.expert)
        return np.zeros_like(tail), tail, self._static(0, 1, job)

    def _shared(
        self, zero: int, sharding: Sharding, expert_pass: Rate, job: Job
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ZeRO-1 scatters gradients and gathers weights once, 2 scatters and 3 also
        gathers for each microbatch, twice, layer by layer.
        """
        dense, expert = self.dense, self.expert
        size, inside, across = sharding

        def passed(count: np.ndarray | float, width: int) -> np.ndarray:
            of_experts = line(expert_pass, count * (expert > 0), width * expert)
            return line(inside, count, width * dense) + of_experts

        gradients, weights = job.each.reduce, job.each.gather
        tail = line(across, 1.0, gradients * dense / size)
        tail = tail + job.step_time * (dense / size + expert / job.expert_group)
        extra = np.zeros_like(tail)
        if zero == 1:
            tail = tail + passed(1.0, gradients)
        else:
            extra = extra + passed(self.num_layers, gradients)
        if zero == 3:
            extra = extra + 2 * passed(self.num_layers, weights)
        else:
            tail = tail + passed(1.0, weights) + size * job.shard_time
        return extra, tail, self._static(zero, size, job)

    def _static(self, zero: int, size: int, job: Job) -> np.ndarray:
        """Weights, gradients, optimizer states: with buffers, and with copies [byte].

        Copies are what the optimizer makes of gradients when passes are over.
        """
        each = job.each
        whole = self.dense + self.expert
        shard = self.dense / size + self.expert / job.expert_group
        updated = shard if zero >= 1 else whole
        held = each.optimizer * updated + self.held @ self.table.frozen_weights
        held = held + each.gradients * (shard if zero >= 2 else whole)
        held = held + each.weights * (shard if zero >= 3 else whole)
        copies = each.copies * updated
        if max(size, job.expert_group) > 1:
            # One layer's gradients until they are reduced; two layers' weights, the
            # one in use and the one prefetched.
            gathered = each.gradients * (zero >= 2) + 2 * each.gather * (zero >= 3)
            return np.stack([held + gathered * self.largest, held + copies])
        return np.stack([held, held + copies])

    def _activations(self, mode: str) -> tuple[np.ndarray, np.ndarray]:
        """Return what each pass in flight keeps, and what is held once [byte].

        With virtual stages any chunks may be in flight: a block counts by the largest
        of its rounds. Final norm and head run their backward pass at once.
        """
        table = self.table
        if mode == "stage":
            entering = table.boundary_bytes[1:-1].max(initial=0.0)
            saved = self.held @ table.saved_bytes["none"]
            working = self._working("none")
            return entering * (1.0 - self.held[:, 0]), saved + working
        saved = table.saved_bytes[mode]
        working = self._working(mode)
        if self.v == 1:
            return self.held @ saved, working
        kept, trailing = [], []
        for chunks in self.chunks:
            rounds = [saved[(chunk > 0) & (table.is_block > 0)] for chunk in chunks]
            kept.append(np.max(rounds, axis=0).sum() + chunks[0, 0] * saved[0])
            trailing.append(chunks[-1, -1] * saved[-1])
        return np.array(kept), np.array(trailing) + working

    def _working(self, mode: str) -> np.ndarray:
        """Return the most inside a pass, beside all that it saves [byte].

        A chunk's backward pass, layer by layer: ends of the chain are freed as it goes.
        """
        table = self.table
        found = []
        for stage, held in enumerate(self.held):
            chunks = [held] if self.v == 1 else self.chunks[stage]
            most = -np.inf
            for chunk in chunks:
                freed = 0.0
                for layer in np.flatnonzero(chunk)[::-1]:
                    most = max(most, table.working_bytes[mode][layer] - freed)
                    if not table.is_block[layer]:
                        freed += table.saved_bytes["none"][layer]
            found.append(most)
        return np.array(found)


def _peak(static: np.ndarray, in_passes: np.ndarray) -> np.ndarray:
    in_step, at_end = static
    return np.maximum(in_step + in_passes, at_end)


def line(rate: Rate, count: np.ndarray | float, num_bytes: np.ndarray) -> np.ndarray:
    """Time of ``count`` collectives of together ``num_bytes`` [s]."""
    return count * rate[0] + num_bytes * rate[1]


def _rate(rates: StageRates, item: object) -> Rate:
    if item.group == "tensor":
        is_reduce = item.operation == "all_reduce"
        return rates.tensor_reduce if is_reduce else rates.tensor_pass
    return rates.context if item.group == "context" else rates.expert
