"""Writes down the steps of one stage's actors.

A program is a list of *blocks*: a pass, what comes before it and after it, and the end
of the step. Most blocks come again and again, and differ only in what they wait for; so
each is written once, and the program is put together of them.

Letters: ``p`` stages, ``v`` chunks of each, ``m`` microbatches, ``n`` passes of the
stage. Virtual stage ``k`` is chunk ``k div p`` of stage ``k mod p``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nestsim.simulator.clock import quantise
from nestsim.simulator.kernels import steps as kernels
from nestsim.simulator.pass_steps import (
    RUNNING,
    Mark,
    Part,
    Parts,
    beginning,
    between_stages,
    marked,
    parts_of,
    scaled,
)
from nestsim.simulator.slots import (
    ACTIVATION_IN,
    ACTIVATION_OUT,
    GRADIENT_IN,
    GRADIENT_OUT,
    SLOTS_PER_CHUNK,
    StageSlots,
)
from nestsim.simulator.system import CLOSES, NONE, OPENS, WHOLE, Step, Steps
from nestsim.simulator.work import PipelineWork
from planner.step.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, Instructions
from topologies.arrays import IntArray

assert (RUNNING, FORWARD) == (kernels.RUNNING, kernels.FORWARD)

_PORTS = {
    FORWARD: (ACTIVATION_IN, ACTIVATION_OUT),
    BACKWARD: (GRADIENT_IN, GRADIENT_OUT),
}
"""Kind of pass -> slots of its chunk that it receives from and sends to."""

_KINDS = (FORWARD, BACKWARD, WEIGHT)

_Block = tuple[Step, ...]
"""Steps; the need of one may be `RUNNING`."""


class _Code(NamedTuple):
    """What tells blocks apart."""

    block: int
    """`PASS`, `RECEIVE`, `SEND` or `END` of the kernels."""

    kind: int
    """Of the pass."""

    chunk: int
    """Of the pass."""

    place: int
    """`PLAIN`, `FIRST` or `LAST` of the kernels."""

    filling: int
    """1 if the stage has sent a bucket of gradients, 0 if not."""

    before: int
    """Kind of the pass before, `NONE` if there is none."""


def pass_numbers(own: Instructions, work: PipelineWork) -> IntArray:
    """Return which pass of its kind and chunk that of each microbatch is.

    They are counted from 1, in the order of a stage, shape ``(3, v, m)``; 0 for what
    the stage does not do.
    """
    shape = len(_KINDS), work.num_chunks, work.num_microbatches
    return kernels.number_passes(own.kind, own.microbatch, own.chunk, *shape)


class Writer:
    """Writes the program of one stage.

    Parameters
    ----------
    work
        The training step.
    own
        What its schedule has the stage do.
    numbers
        Of the passes of every stage, as of `pass_numbers`.
    stage
        Which one this is.
    slots
        Its slots.
    """

    def __init__(
        self,
        work: PipelineWork,
        own: Instructions,
        numbers: Sequence[IntArray],
        stage: int,
        slots: StageSlots,
    ) -> None:
        self.work, self.own, self.stage, self.slots = work, own, stage, slots
        self.num_stages = len(numbers)
        schedule = SCHEDULES[work.schedule]
        self.rendezvous = work.blocking_transfers and not schedule.interleaves
        self.completing = WEIGHT if schedule.splits_backward else BACKWARD
        self.ports = self._ports()
        self.bucket_ends = slots.bucket_ends()
        self.gather_marks = self._gather_marks()
        self.reduce_marks = self._reduce_marks()
        self.codes, self.order = self._order(numbers)

    def write(self, slowdown: float, tick: float) -> Steps:
        """Return the steps of an actor whose compute takes ``slowdown`` times."""
        written = [self._block(code, slowdown) for code in self.codes]
        rows = Steps.of(step for block in written for step in block)
        duration, steps = kernels.write_blocks(
            self.order[0],
            self.order[1],
            np.cumsum([0, *map(len, written)]),
            quantise(rows.duration, tick),
            np.stack((rows.source, rows.need, rows.target, rows.span)),
            self.slots.channels.shape[1],
        )
        return Steps(duration, *steps)

    def _order(self, numbers: Sequence[IntArray]) -> tuple[list[_Code], IntArray]:
        """Return the distinct blocks, and what the program is made of.

        That is, which block comes next, and what its first step needs, shape
        ``(2, B)``.
        """
        codes, order = kernels.order_blocks(
            *self.own,
            self.ports,
            self._arrivals(numbers),
            self.completing,
            self.slots.signal != NONE,
            self.rendezvous,
            self.work.blocking_transfers,
        )
        return [_Code(*row) for row in codes.tolist()], order

    def _ports(self) -> IntArray:
        """Return the slots that passes receive from and send to, or `NONE`.

        Shape ``(2, 3, v)``: by kind and chunk.
        """
        v = self.work.num_chunks
        ports = np.full((2, len(_KINDS), v), NONE)
        first = np.arange(v) * SLOTS_PER_CHUNK
        for kind, own in _PORTS.items():
            for side, port in enumerate(own):
                exists = self.slots.channels[0, first + port] != NONE
                ports[side, kind] = np.where(exists, first + port, NONE)
        return ports

    def _arrivals(self, numbers: Sequence[IntArray]) -> IntArray:
        """Return how many messages have come when that of each microbatch has.

        The passes of that kind through the sending virtual stage send them, in order.
        Shape ``(3, v, m)``.
        """
        arrivals = np.zeros_like(numbers[self.stage])
        last = self.work.num_chunks * self.num_stages - 1
        for kind, step in ((FORWARD, -1), (BACKWARD, 1)):
            for chunk in range(self.work.num_chunks):
                sender = chunk * self.num_stages + self.stage + step
                if 0 <= sender <= last:
                    sending_chunk, stage = divmod(sender, self.num_stages)
                    arrivals[kind, chunk] = numbers[stage][kind, sending_chunk]
        return arrivals

    def _block(self, code: _Code, slowdown: float) -> _Block:
        """Return the steps of a block; durations are not whole ticks yet."""
        block, kind, chunk, place, filling, before = code
        if block == kernels.END:
            return self._end(float(self.work.optimizer_time[self.stage]) * slowdown)
        source, target = self.ports[:, kind, chunk].tolist()
        if block == kernels.SEND:
            return _steps((Part(0.0, target),))
        if block == kernels.RECEIVE:
            return self._receive(source, kind, before)
        parts = self._pass(kind, chunk, slowdown, place, filling=bool(filling))
        # What the first part needs differs from pass to pass.
        parts = between_stages(parts, Part(0.0, source), target)
        return _steps(parts, opens=beginning(parts))

    def _pass(
        self, kind: int, chunk: int, slowdown: float, place: int, *, filling: bool
    ) -> Parts:
        """Return the parts of a pass, its buckets included."""
        virtual = chunk * self.num_stages + self.stage
        moves = self.work.pass_moves(kind, virtual)
        total = sum(move.duration for move in moves)
        sent = self.work.sent_time.get(kind)
        share = float(sent[virtual]) / total if sent is not None and total else 0.0

        def stretch(factor: float) -> float:
            return 1.0 + (factor - 1.0) * (1.0 - share)

        parts = scaled(parts_of(moves, self.slots), stretch(slowdown))
        beside = stretch(self.work.interference)
        if filling:
            parts = scaled(parts, beside)
        if place == kernels.FIRST:
            marks = self.gather_marks[chunk]
            alongside = self.stage == 0 and chunk == 0 and bool(marks)
            parts = marked(scaled(parts, beside) if alongside else parts, marks)
        elif place == kernels.LAST:
            marks = self.reduce_marks[chunk]
            parts = marked(parts, marks, after=1.0 if filling else beside)
        return parts

    def _gather_marks(self) -> list[list[Mark]]:
        """Return where the first forward pass of each chunk waits."""
        own = self.work.gather_buckets[self.stage]
        marks: list[list[Mark]] = [[] for _ in range(self.work.num_chunks)]
        for bucket, (slot, need) in zip(own, self.bucket_ends, strict=False):
            marks[bucket.chunk].append(Mark(bucket.at, slot, need))
        return marks

    def _reduce_marks(self) -> list[list[Mark]]:
        """Return where the pass that completes the gradients of each chunk posts."""
        marks: list[list[Mark]] = [[] for _ in range(self.work.num_chunks)]
        for bucket in self.work.reduce_buckets[self.stage]:
            marks[bucket.chunk].append(Mark(bucket.at, target=self.slots.signal))
        return marks

    def _receive(self, source: int, kind: int, before: int) -> _Block:
        """Be ready for the input: the sender waits for that."""
        pending = int(self.ports[1, before, 0]) if before != NONE else NONE
        if pending == NONE:
            return _steps((Part(0.0, target=source),))
        if before == kind:
            return _steps((Part(0.0, pending, target=source),))
        # Back to back with a message the other way: both are under way at once.
        return _steps((Part(0.0, target=source), Part(0.0, pending)))

    def _end(self, optimizer: float) -> _Block:
        """Return the collectives of the step's end and the optimizer step."""
        steps = []
        pending, need = NONE, 0
        if self.slots.reduce_buckets:
            pending, need = self.bucket_ends[-1]
        for slot in self.slots.before:
            steps.append(Step(0.0, pending, need, slot, 0))
            pending, need = slot, 1
        after = self.slots.after
        following = after[0] if after else NONE
        steps.append(Step(optimizer, pending, need, following, WHOLE))
        followers = (*after[1:], NONE)[: len(after)]
        for slot, follower in zip(after, followers, strict=True):
            steps.append(Step(0.0, slot, 1, follower, 0))
        return tuple(steps)


def _steps(parts: Parts, *, opens: int | None = None) -> _Block:
    """Turn parts into steps; a span begins with one of them, and ends with the last."""
    spans = [0] * len(parts)
    if opens is not None:
        spans[opens] |= OPENS
        spans[-1] |= CLOSES
    return tuple(Step(*part, span) for part, span in zip(parts, spans, strict=True))
