"""The language of schedules: what each stage does, as a list of instructions.

Letters: ``p`` stages, ``m`` microbatches, ``v`` chunks of each stage, stage ``i`` and
chunk ``c`` from 0. The ``v p`` virtual stages are the chunks of all stages in the order
of the chain of layers; a schedule says which stage holds which (`Schedule.stage_of`).
Chunk ``c`` of a stage is the ``c``-th virtual stage that it holds, ``c p + i`` if they
are dealt in turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from planner.step.rounds import IN_GROUPS_OF, check_group, round_length
from topologies.arrays import BoolArray, FloatArray, IntArray
from topologies.errors import InputError

FORWARD = 0
"""Kind of instruction: forward pass of one microbatch through one chunk."""

BACKWARD = 1
"""Kind of instruction: backward pass of one microbatch through one chunk; gradients of
activations alone where the schedule has passes of kind `WEIGHT`, else of both."""

WEIGHT = 2
"""Kind of instruction: weight gradients of one microbatch in one chunk."""

NUM_KINDS = 3
"""Kinds of instructions."""

PAIRED_FORWARD = FORWARD + NUM_KINDS
"""A forward pass beside a backward pass of another microbatch, as it is written and
priced; the instruction is of kind `FORWARD`."""

PAIRED_BACKWARD = BACKWARD + NUM_KINDS
"""A backward pass beside a forward pass of another microbatch, as it is written and
priced; the instruction is of kind `BACKWARD`."""

FIRST_FORWARD = PAIRED_BACKWARD + 1
"""The first forward pass of a step through a chunk, as it is written and priced where
it sends other than later ones; the instruction is of kind `FORWARD`."""

PAIRED = frozenset({PAIRED_FORWARD, PAIRED_BACKWARD})
"""Kinds of passes that have another one beside them."""

USUAL_KIND: Mapping[int, int] = MappingProxyType(
    {PAIRED_FORWARD: FORWARD, PAIRED_BACKWARD: BACKWARD, FIRST_FORWARD: FORWARD}
)
"""Kind of a pass that is unlike others of its instruction -> that of the others."""

MAX_PASSES = 4_000_000
"""Most passes of all stages together: the replay keeps about 500 bytes of each, 2
GB."""


class Instructions(NamedTuple):
    """What one stage does, in order: arrays of one length."""

    kind: IntArray
    """Kind of each instruction: `FORWARD`, `BACKWARD` or `WEIGHT`."""

    microbatch: IntArray
    """Number of the microbatch, from 0."""

    chunk: IntArray
    """Number of the chunk, from 0."""


class Program(NamedTuple):
    """The instructions of all stages, in compressed rows."""

    indptr: IntArray
    """Positions of each stage, shape ``(p + 1,)``: stage ``i`` has positions
    ``indptr[i]:indptr[i + 1]``."""

    kind: IntArray
    """Kind of each instruction: `FORWARD`, `BACKWARD` or `WEIGHT`."""

    microbatch: IntArray
    """Number of the microbatch, from 0."""

    virtual_stage: IntArray
    """Number of the virtual stage in the order of the chain, from 0."""


class VirtualStages(NamedTuple):
    """Which stage holds which part of the chain."""

    stage: IntArray
    """Stage of each virtual stage, shape ``(v p,)``."""

    chunk: IntArray
    """Which of its stage's chunks each virtual stage is, shape ``(v p,)``."""

    number: IntArray
    """Virtual stage that is each chunk of each stage, shape ``(p, v)``."""

    boundary: IntArray
    """Stage before the boundary that messages from each virtual stage to the next one
    cross, shape ``(v p - 1,)``; any where they cross none."""

    returns: BoolArray
    """Whether the virtual stage after each one is on the stage before, shape
    ``(v p - 1,)``."""

    stays: BoolArray
    """Whether the virtual stage after each one is on the same stage, shape
    ``(v p - 1,)``."""

    def after_each(self, rates: FloatArray) -> FloatArray:
        """Return what messages over the boundary after each virtual stage meet.

        Parameters
        ----------
        rates
            What they meet over the boundary after each stage, the last one being that
            to the first stage, with the direction in the last axis: activations, which
            go to the stage after, and gradients, which come back; ``(p, .., 2)``.

        Returns
        -------
        FloatArray
            Shape ``(v p - 1, .., 2)``: 0 where the next virtual stage is on the same
            stage, and with the directions exchanged where it is on the stage before.
        """
        crossed: FloatArray = rates[self.boundary]
        if self.returns.any():
            crossed[self.returns] = crossed[self.returns][..., ::-1]
        if self.stays.any():
            crossed[self.stays] = 0.0
        return crossed


class ScheduleSizes(NamedTuple):
    """What a schedule is written for."""

    p: int
    """Pipeline stages."""
    m: int
    """Microbatches."""
    v: int
    """Chunks of each stage."""


def dealt_in_turn(virtual_stage: int, num_stages: int) -> int:
    """Return the stage of a virtual stage: each gets one, then each the next one."""
    return virtual_stage % num_stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule.

    Every method refuses, with `InputError`, sizes that `check` refuses.
    """

    name: str
    """Name of the schedule, as in scenarios and plans."""

    interleaves: bool = False
    """Whether stages consist of several chunks: if so there are at least two stages
    and two chunks; if not there is one chunk."""

    splits_backward: bool = False
    """Whether weight gradients are passes of their own, of kind `WEIGHT`: one after
    each backward pass, which other stages do not wait for."""

    pairs_passes: bool = False
    """Whether a forward pass and the backward pass right after it, which is of another
    microbatch, go on beside each other (`paired_kind`)."""

    pairs_chunks: bool = False
    """Whether those two are of different chunks; else they may be of one."""

    pairs_layers: bool = False
    """Whether the passes of a pair go through their layers in step, so that the forward
    one keeps what the backward one lets go of, and a layer more."""

    reserves_processors: bool = False
    """Whether what is sent beside such passes has processors of a device to itself as
    long as they last, rather than as long as it is on its way."""

    forward_first: bool = False
    """Whether all forward passes of a stage come before its first backward pass."""

    keeps_bubbles: bool = False
    """Whether what a pass saves is kept, too, for the turns in which a stage has no
    microbatch, as one loop over all stages does."""

    write: Callable[[int, ScheduleSizes], Instructions]
    """``(stage, sizes)`` -> what the stage does."""

    count: Callable[[int, ScheduleSizes], int] | None = None
    """``(stage, sizes)`` -> the most activations that the stage keeps at once; None if
    they are counted along its list."""

    num_chunks: int | None = None
    """Chunks of each stage of a schedule that has several; None for any number."""

    deals_rounds: bool = True
    """Whether a schedule of several chunks has microbatches come in rounds, all of
    `round_length`, or of `group`."""

    group: int | None = None
    """Microbatches of a round, but of the last one, which has those that are left; None
    for `round_length`."""

    least_rounds: int = 0
    """Least number of microbatches, in ``p``."""

    runs_ahead: bool = False
    """Whether a stage of one chunk sends on before the receiver asks for it, as it must
    where senders that wait for their receivers would wait for ever."""

    stage_of: Callable[[int, int], int] = dealt_in_turn
    """``(virtual stage, p)`` -> the stage whose devices hold it. The first one is on
    the first stage, two in a row are on one stage or on neighbours."""

    @property
    def family(self) -> str:
        """Name of the schedule, whatever its groups."""
        return self.name.partition(IN_GROUPS_OF)[0]

    def round_length(self, num_stages: int, num_microbatches: int) -> int:
        """Return how many microbatches a round has, but maybe the last one."""
        return self.group or round_length(num_stages, num_microbatches)

    @property
    def meets_receivers(self) -> bool:
        """Whether blocking transfers begin once the receiver is ready for them."""
        return not (self.interleaves or self.runs_ahead)

    def check(
        self, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> None:
        """Refuse sizes that the schedule cannot have.

        Raises
        ------
        InputError
            If so, with what is expected.
        """
        chunks = "1" if not self.interleaves else str(self.num_chunks or "2 or more")
        least = self.least_rounds * num_stages
        claims = (
            (
                num_stages >= 2 or not self.interleaves,
                "pipeline stages",
                num_stages,
                "2 or more",
            ),
            (
                chunks == str(num_chunks)
                or (chunks == "2 or more" and num_chunks >= 2),
                "chunks per stage",
                num_chunks,
                chunks,
            ),
            (
                not (self.interleaves and self.deals_rounds)
                or self.group is not None
                or num_microbatches % round_length(num_stages, num_microbatches) == 0,
                "microbatches",
                num_microbatches,
                f"a multiple of the {num_stages} stages, or of a little more",
            ),
            (
                num_microbatches >= least,
                "microbatches",
                num_microbatches,
                f"{least} or more, {self.least_rounds} for each of the {num_stages} "
                "stages",
            ),
        )
        for holds, what, got, expected in claims:
            if not holds:
                raise InputError(
                    f"{self.name} does not work with this number of {what}",
                    got=got,
                    expected=expected,
                )
        if self.group is not None:
            check_group(self.group, num_stages, num_microbatches)

    def allows(
        self, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> bool:
        """Tell whether the schedule can have such sizes."""
        try:
            self.check(num_stages, num_microbatches, num_chunks)
        except InputError:
            return False
        return True

    def check_length(
        self,
        num_stages: int,
        num_microbatches: int,
        num_chunks: int = 1,
        *,
        where: str = "micro_batch_size",
        copies: int = 1,
    ) -> None:
        """Refuse a step of so many passes that writing them down fills the memory.

        Parameters
        ----------
        num_stages, num_microbatches, num_chunks
            Of the pipeline.
        where
            The setting that errors name.
        copies
            Lists of instructions that are kept of each stage.

        Raises
        ------
        InputError
            If so, with the estimate and what would fit.
        """
        kinds = 3 if self.splits_backward else 2
        per_copy = kinds * num_stages * num_chunks * copies
        if per_copy * num_microbatches > MAX_PASSES:
            of_copies = f", {copies:,} times," if copies > 1 else ""
            raise InputError(
                "makes too many passes to be written down and replayed",
                where=where,
                got=f"{num_microbatches:,} microbatches through {num_stages:,} stages "
                f"of {num_chunks:,} chunks{of_copies} make "
                f"{per_copy * num_microbatches:,} passes",
                expected=f"at most {MAX_PASSES:,} passes, here "
                f"{max(MAX_PASSES // per_copy, 1):,} microbatches: a smaller global "
                "batch, or larger micro-batches or more replicas",
            )

    def instructions(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> Instructions:
        """Return what a stage does, in order."""
        self.check(num_stages, num_microbatches, num_chunks)
        return self.write(
            stage, ScheduleSizes(num_stages, num_microbatches, num_chunks)
        )

    def in_flight(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> int:
        """Return the most activations that a stage keeps at once.

        An activation is what one chunk keeps of one microbatch, from its forward pass
        to the end of its last pass: the backward one, or the weight gradients.
        """
        sizes = ScheduleSizes(num_stages, num_microbatches, num_chunks)
        if self.count is None:
            return int(self.held(stage, *sizes).sum(axis=1).max())
        self.check(*sizes)
        return self.count(stage, sizes)

    def bubbles_kept(self, num_stages: int) -> int:
        """Return for how many turns without a microbatch a stage keeps activations."""
        return num_stages - 1 if self.keeps_bubbles else 0

    def last_in_flight(self, sizes: ScheduleSizes) -> int:
        """Return the most activations of the last virtual stage that are kept at once.

        Of interleaved 1F1B: its backward pass comes right behind the forward pass, or
        behind one more where passes are paired that do not share their memory. Those of
        a last group of ``r`` microbatches come ``(v - 1) (g - r)`` passes earlier than
        those of a whole one would, and have to wait as long.
        """
        _, m, v = sizes
        if self.forward_first:
            return m
        waits = self.pairs_passes and not self.pairs_layers
        most = min(m, 2 if waits else 1)
        rest = 0 if self.group is None else m % self.group
        if self.group is None or rest == 0:
            return most
        return min(rest, (v - 1) * (self.group - rest) + 1)

    def held(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> IntArray:
        """Return how many activations of each chunk a stage keeps when it is fullest.

        Distinct rows, shape ``(n, v)``: what is kept whenever a pass that releases
        follows one that allocates. It is never more in between, so that ``max(held @
        kept)`` is exactly the most that is kept at once, whatever each chunk keeps
        from its forward to its last pass. The largest sum of a row is `in_flight`.
        Of passes that go through their layers in step the backward one comes first.
        """
        kind, _, chunk = self.instructions(
            stage, num_stages, num_microbatches, num_chunks
        )
        if self.pairs_layers:
            sizes = num_stages, num_microbatches, num_chunks
            begins = shared_pairs(kind, self.in_flight(stage, *sizes))
            order = np.arange(kind.size)
            order[begins], order[begins + 1] = begins + 1, begins
            kind, chunk = kind[order], chunk[order]
        last = WEIGHT if self.splits_backward else BACKWARD
        counted = (kind == FORWARD) | (kind == last)
        allocates, chunk = kind[counted] == FORWARD, chunk[counted]
        alive = _running(np.where(allocates, 1, -1), chunk, num_chunks)
        fullest = allocates[:-1] & ~allocates[1:]
        return np.unique(alive[:-1][fullest], axis=0)

    def waiting(
        self, stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> IntArray:
        """Return what the activations wait for, during each forward and backward pass.

        Distinct, shape ``(n, 2, v)``: how many of each chunk wait for (or are in) their
        backward pass, and how many for their weight gradients; the latter is 0 unless
        the schedule splits the backward pass. A chunk may keep more or less of a
        microbatch once its backward pass is over.
        """
        kind, _, chunk = self.instructions(
            stage, num_stages, num_microbatches, num_chunks
        )
        forward, backward, weight = (
            kind == pass_kind for pass_kind in (FORWARD, BACKWARD, WEIGHT)
        )
        # A pass allocates before it begins, and releases after it has ended.
        saved = _running(forward.astype(np.int64), chunk, num_chunks)
        saved -= _before(_running(backward.astype(np.int64), chunk, num_chunks))
        kept = np.zeros_like(saved)
        if self.splits_backward:
            kept += _before(_running(backward.astype(np.int64), chunk, num_chunks))
            kept -= _before(_running(weight.astype(np.int64), chunk, num_chunks))
        return np.unique(np.stack([saved, kept], axis=1)[~weight], axis=0)

    def program(
        self, num_stages: int, num_microbatches: int, num_chunks: int = 1
    ) -> Program:
        """Return the instructions of all stages."""
        lists = [
            self.instructions(stage, num_stages, num_microbatches, num_chunks)
            for stage in range(num_stages)
        ]
        number = self.virtual_stages(num_stages, num_chunks).number
        lengths = [0, *(instructions.kind.size for instructions in lists)]
        return Program(
            indptr=np.cumsum(lengths, dtype=np.int64),
            kind=np.concatenate([instructions.kind for instructions in lists]),
            microbatch=np.concatenate(
                [instructions.microbatch for instructions in lists]
            ),
            virtual_stage=np.concatenate(
                [
                    number[stage, instructions.chunk]
                    for stage, instructions in enumerate(lists)
                ]
            ),
        )

    def pass_kinds(self, *, first: bool = False) -> tuple[int, ...]:
        """Return the kinds of passes as they are written and priced.

        ``first`` as in `written_kinds`.
        """
        kinds: tuple[int, ...] = (FORWARD, BACKWARD)
        if self.splits_backward:
            kinds = (*kinds, WEIGHT)
        if self.pairs_passes:
            kinds = (*kinds, PAIRED_FORWARD, PAIRED_BACKWARD)
        return (*kinds, FIRST_FORWARD) if first else kinds

    def written_kinds(
        self, kind: IntArray, part: IntArray, indptr: IntArray, *, first: bool = False
    ) -> IntArray:
        """Return the kinds of instructions as they are written and priced.

        Parameters
        ----------
        kind
            Kinds of the instructions of stages, one list after another.
        part
            Numbers of their chunks, or of their virtual stages.
        indptr
            Where each list begins, and behind the last one.
        first
            Whether the first forward pass through each part is a kind apart.
        """
        written = kind
        if self.pairs_passes:
            parts = part if self.pairs_chunks else np.arange(part.size)
            lists = zip(
                *(np.split(listed, indptr[1:-1]) for listed in (kind, parts)),
                strict=True,
            )
            written = np.concatenate([paired_kind(*listed) for listed in lists])
        if first:
            number = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
            forward = np.flatnonzero(kind == FORWARD)
            of_list = number[forward] * (part.max() + 1) + part[forward]
            written = written.copy()
            written[forward[np.unique(of_list, return_index=True)[1]]] = FIRST_FORWARD
        return written

    def virtual_stages(self, num_stages: int, num_chunks: int = 1) -> VirtualStages:
        """Return which stage holds which part of the chain."""
        return _lay_out(self.stage_of, num_stages, num_chunks)


@lru_cache(maxsize=256)
def _lay_out(
    stage_of: Callable[[int, int], int], num_stages: int, num_chunks: int
) -> VirtualStages:
    """Return where a rule puts virtual stages, in arrays that nobody may change."""
    count = num_stages * num_chunks
    stage = np.array([stage_of(k, num_stages) for k in range(count)], dtype=np.int64)
    held = [np.flatnonzero(stage == index) for index in range(num_stages)]
    assert {index.size for index in held} == {num_chunks}, "as many for every stage"
    number = np.stack(held).astype(np.int64)
    chunk = np.empty(count, dtype=np.int64)
    chunk[number] = np.arange(num_chunks)
    here, there = stage[:-1], stage[1:]
    stays = here == there
    returns = ~stays & (there != (here + 1) % num_stages)
    assert (here[returns] == (there[returns] + 1) % num_stages).all(), (
        "virtual stages in a row are on one stage or on neighbours"
    )
    boundary = np.where(returns, there, here)
    virtual = VirtualStages(stage, chunk, number, boundary, returns, stays)
    for array in virtual:
        array.flags.writeable = False
    return virtual


def paired_kind(kind: IntArray, part: IntArray) -> IntArray:
    """Return the kinds of a stage's instructions, those in pairs being kinds apart.

    A pair is a forward pass with a backward pass of another part right after it.
    """
    follows = (kind[:-1] == FORWARD) & (kind[1:] == BACKWARD)
    begins = np.flatnonzero(follows & (part[:-1] != part[1:]))
    written = kind.copy()
    written[begins] = PAIRED_FORWARD
    written[begins + 1] = PAIRED_BACKWARD
    return written


def shared_pairs(kind: IntArray, warmup: int) -> IntArray:
    """Return where a stage's pairs begin that share their memory.

    Parameters
    ----------
    kind
        Kinds of the stage's instructions.
    warmup
        Forward passes that nobody goes on beside.
    """
    number = np.cumsum(kind == FORWARD)
    follows = (kind[:-1] == FORWARD) & (kind[1:] == BACKWARD)
    return np.flatnonzero(follows & (number[:-1] > warmup))


def warm_up_then_alternate(
    forward: tuple[IntArray, IntArray], backward: tuple[IntArray, IntArray], warmup: int
) -> Instructions:
    """Return ``warmup`` forward passes, then pairs F, B, then the last backward ones.

    Both orders are given as microbatches and chunks, ``N`` of each.
    """
    num_passes = forward[0].size
    kind = np.full(2 * num_passes, FORWARD, dtype=np.int64)
    cooldown = 2 * num_passes - warmup
    kind[warmup + 1 : cooldown : 2] = BACKWARD
    kind[cooldown:] = BACKWARD
    columns = np.empty((2, kind.size), dtype=np.int64)
    columns[:, kind == FORWARD] = forward
    columns[:, kind == BACKWARD] = backward
    microbatch, chunk = columns
    return Instructions(kind, microbatch, chunk)


def _running(change: IntArray, chunk: IntArray, num_chunks: int) -> IntArray:
    """Add up a change of one chunk after another, shape ``(N, v)``."""
    changes = np.zeros((change.size, num_chunks), dtype=np.int64)
    changes[np.arange(change.size), chunk] = change
    return np.cumsum(changes, axis=0)


def _before(running: IntArray) -> IntArray:
    """Return what had been reached one instruction earlier."""
    earlier = np.zeros_like(running)
    earlier[1:] = running[:-1]
    return earlier
