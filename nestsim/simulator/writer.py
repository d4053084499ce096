"""Writes down the steps of one stage's actors.

A program is a list of *blocks*: a pass, what comes before it and after it, and the end
of the step. Most blocks come again and again, and differ only in what they wait for; so
each is written once, and the program is put together of them.

Letters: ``p`` stages, ``v`` chunks of each, ``m`` microbatches, ``n`` passes of the
stage. Virtual stage ``k`` is chunk ``k div p`` of stage ``k mod p``.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
from planner.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, Instructions

IntArray = NDArray[np.int64]

assert RUNNING == kernels.RUNNING

_PORTS = {
    FORWARD: (ACTIVATION_IN, ACTIVATION_OUT),
    BACKWARD: (GRADIENT_IN, GRADIENT_OUT),
}
"""Kind of pass -> slots of its chunk that it receives from and sends to."""

_KINDS = (FORWARD, BACKWARD, WEIGHT)

_PLAIN, _FIRST, _LAST = range(3)
"""Passes that wait for no bucket and fill none; the first forward pass of a chunk,
which may wait for buckets; and the pass that completes its gradients."""

_PASS, _RECEIVE, _SEND, _END = range(4)
"""Blocks: a pass, being ready for its input, waiting for its output's arrival, and the
end of the step."""

_Block = tuple[Step, ...]
"""Steps; the need of one may be `RUNNING`."""


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
        self.code_shape = (4, len(_KINDS), work.num_chunks, 3, 2, len(_KINDS) + 1)
        self.codes, self.first_need = self._order(numbers)

    def write(self, slowdown: float, tick: float) -> Steps:
        """Return the steps of an actor whose compute takes ``slowdown`` times."""
        is_used = np.zeros(math.prod(self.code_shape), np.bool_)
        is_used[self.codes] = True
        used = np.flatnonzero(is_used)
        written = [self._block(code, slowdown) for code in used.tolist()]
        rows = Steps.of(step for block in written for step in block)
        duration, steps = kernels.write_blocks(
            (np.cumsum(is_used) - 1)[self.codes],
            self.first_need,
            np.cumsum([0, *map(len, written)]),
            quantise(rows.duration, tick),
            np.stack((rows.source, rows.need, rows.target, rows.span)),
            self.slots.channels.shape[1],
        )
        return Steps(duration, *steps)

    def _order(self, numbers: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
        """Return the codes of all blocks in order, and the needs of their first steps.

        That is `RUNNING` if it is as the block says.
        """
        kind, microbatch, chunk = self.own
        source, target = self.ports[:, kind, chunk]
        codes = np.full((kind.size, 3), NONE)
        needs = np.full(codes.shape, RUNNING)
        place = self._places()
        filling = np.zeros(kind.size, np.int64)
        if self.slots.signal != NONE:
            filling[np.argmax(place == _LAST) + 1 :] = 1
        codes[:, 1] = self._codes(_PASS, kind, chunk, place, filling)
        arrivals = self._arrivals(numbers)[kind, chunk, microbatch]
        needs[:, 1] = np.where(source != NONE, arrivals, RUNNING)
        sending = target != NONE
        if self.rendezvous:
            before = np.concatenate(([NONE], kind[:-1]))
            receives = self._codes(_RECEIVE, kind, before=before + 1)
            codes[:, 0] = np.where(source != NONE, receives, NONE)
            # What a pass has sent is waited for when the next one receives.
            sending[:-1] &= source[1:] == NONE
        if self.work.blocking_transfers:
            codes[:, 2] = np.where(sending, self._codes(_SEND, kind, chunk), NONE)
        kept = codes != NONE
        end = self._codes(_END, np.zeros(1, np.int64))
        return (
            np.concatenate((codes[kept], end)),
            np.append(needs[kept], RUNNING).astype(np.int64),
        )

    def _codes(
        self,
        block: int,
        kind: IntArray,
        chunk: IntArray | int = 0,
        place: IntArray | int = 0,
        filling: IntArray | int = 0,
        before: IntArray | int = 0,
    ) -> IntArray:
        """Return one number for all that tells blocks apart."""
        columns = (block, kind, chunk, place, filling, before)
        return np.asarray(np.ravel_multi_index(columns, self.code_shape), np.int64)

    def _places(self) -> IntArray:
        """Find the first forward pass and the completing pass of every chunk."""
        place = np.full(self.own.kind.size, _PLAIN)
        for chunk in range(self.work.num_chunks):
            own = self.own.chunk == chunk
            place[np.argmax(own & (self.own.kind == FORWARD))] = _FIRST
            completing = own & (self.own.kind == self.completing)
            place[np.flatnonzero(completing)[-1]] = _LAST
        return place

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

    def _block(self, code: int, slowdown: float) -> _Block:
        """Return the steps of a block; durations are not whole ticks yet."""
        found = (int(one) for one in np.unravel_index(code, self.code_shape))
        block, kind, chunk, place, filling, before = found
        if block == _END:
            return self._end(float(self.work.optimizer_time[self.stage]) * slowdown)
        source, target = self.ports[:, kind, chunk].tolist()
        if block == _SEND:
            return _steps((Part(0.0, target),))
        if block == _RECEIVE:
            return self._receive(source, kind, before - 1)
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
        if place == _FIRST:
            marks = self.gather_marks[chunk]
            alongside = self.stage == 0 and chunk == 0 and bool(marks)
            parts = marked(scaled(parts, beside) if alongside else parts, marks)
        elif place == _LAST:
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
