"""Writes down the steps of one stage's actors.

Letters: ``p`` stages, ``v`` chunks of each. Virtual stage ``k`` is chunk ``k div p`` of
stage ``k mod p``.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from nestsim.simulator.clock import quantise
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
from nestsim.simulator.system import CLOSES, NONE, OPENS, WHOLE, Step
from nestsim.simulator.work import PipelineWork
from planner.schedules import BACKWARD, FORWARD, SCHEDULES, WEIGHT, Instructions

_PORTS = {
    FORWARD: (ACTIVATION_IN, ACTIVATION_OUT),
    BACKWARD: (GRADIENT_IN, GRADIENT_OUT),
}
"""Kind of pass -> slots of its chunk that it receives from and sends to."""

_FIRST, _PLAIN, _LAST = range(3)
"""The first forward pass of a chunk, which may wait for buckets; others; and the pass
that completes its gradients."""


_step: Callable[[Iterable[float]], Step] = partial(tuple.__new__, Step)
"""Makes a step of its fields, in two thirds of the time of ``Step._make``."""


class _Rows(NamedTuple):
    """Parts as steps, but for what depends on where in the program they are."""

    durations: tuple[float, ...]
    """[s]"""

    sources: tuple[int, ...]

    fixed: tuple[tuple[int, int], ...]
    """Parts with a known need, by number."""

    ahead: tuple[int, ...]
    """Of the others: what is posted to the source before, from the first part on."""

    targets: tuple[int, ...]

    spans: tuple[int, ...]

    posts: tuple[tuple[int, int], ...]
    """Slots, and what all parts together post to them."""


class Writer:
    """Writes the program of one stage.

    Parameters
    ----------
    work
        The training step.
    lists
        What its schedule has all stages do.
    stage
        Which one this is.
    slots
        Its slots.
    """

    def __init__(
        self,
        work: PipelineWork,
        lists: list[Instructions],
        stage: int,
        slots: StageSlots,
    ) -> None:
        self.work, self.lists, self.stage, self.slots = work, lists, stage, slots
        schedule = SCHEDULES[work.schedule]
        self.rendezvous = work.blocking_transfers and not schedule.interleaves
        self.own = list(zip(*(c.tolist() for c in lists[stage]), strict=True))
        self.order = {
            (kind, chunk): self._arrivals(kind, chunk)
            for kind in _PORTS
            for chunk in range(work.num_chunks)
        }
        self.ports = {
            (kind, chunk): self._ports(kind, chunk)
            for kind in (FORWARD, BACKWARD, WEIGHT)
            for chunk in range(work.num_chunks)
        }
        self.completing = WEIGHT if schedule.splits_backward else BACKWARD
        self.places = self._places()

    def write(self, slowdown: float, tick: float) -> tuple[Step, ...]:
        """Return the steps of an actor whose compute takes ``slowdown`` times."""
        self.steps: list[Step] = []
        self.posted: dict[int, int] = {}
        self.tick = tick
        passes: dict[tuple[int, int, int], _Rows] = {}
        filling = False
        for position, (kind, microbatch, chunk) in enumerate(self.own):
            place = self.places.get(position, _PLAIN)
            key = kind, chunk, place + 3 * filling
            source, target = self.ports[kind, chunk]
            if key not in passes:
                parts = self._pass(kind, chunk, slowdown, place, filling=filling)
                # What the first part needs is said below.
                arrival = Part(0.0, source)
                parts = between_stages(parts, arrival, target)
                passes[key] = _rows(parts, opens=beginning(parts))
            filling = filling or (place == _LAST and self.slots.signal != NONE)
            self._receive(position, source)
            need = self.order[kind, chunk][microbatch] if source != NONE else RUNNING
            self._append(passes[key], first_need=need)
            self._send(position, target)
        self._end(float(self.work.optimizer_time[self.stage]) * slowdown)
        return tuple(self.steps)

    def _arrivals(self, kind: int, chunk: int) -> dict[int, int]:
        """Return how many messages have come when that of each microbatch has.

        The passes of that kind through the sending virtual stage send them, in order.
        """
        step = 1 if kind == BACKWARD else -1
        sender = chunk * len(self.lists) + self.stage + step
        if not 0 <= sender < self.work.num_chunks * len(self.lists):
            return {}
        sending_chunk, stage = divmod(sender, len(self.lists))
        own = self.lists[stage]
        sent = own.microbatch[(own.kind == kind) & (own.chunk == sending_chunk)]
        return {microbatch: count for count, microbatch in enumerate(sent.tolist(), 1)}

    def _ports(self, kind: int, chunk: int) -> tuple[int, int]:
        """Return the slots that a pass receives from and sends to, or `NONE`."""
        if kind not in _PORTS:
            return NONE, NONE
        first = chunk * SLOTS_PER_CHUNK
        source, target = (
            first + port if self.slots.channels[0, first + port] != NONE else NONE
            for port in _PORTS[kind]
        )
        return source, target

    def _places(self) -> dict[int, int]:
        """Find the first forward pass and the completing pass of every chunk."""
        places = {}
        for chunk in range(self.work.num_chunks):
            positions = [
                [
                    position
                    for position, (kind, _, own) in enumerate(self.own)
                    if kind == wanted and own == chunk
                ]
                for wanted in (FORWARD, self.completing)
            ]
            places[positions[0][0]] = _FIRST
            places[positions[1][-1]] = _LAST
        return places

    def _pass(
        self, kind: int, chunk: int, slowdown: float, place: int, *, filling: bool
    ) -> Parts:
        """Return the parts of a pass, its buckets included."""
        virtual = chunk * len(self.lists) + self.stage
        moves = self.work.pass_moves(kind)[virtual]
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
            marks = self._gather_marks(chunk)
            alongside = self.stage == 0 and chunk == 0 and bool(marks)
            parts = marked(scaled(parts, beside) if alongside else parts, marks)
        elif place == _LAST:
            marks = self._reduce_marks(chunk)
            parts = marked(parts, marks, after=1.0 if filling else beside)
        return tuple(
            part._replace(duration=quantise(part.duration, self.tick)) for part in parts
        )

    def _gather_marks(self, chunk: int) -> list[Mark]:
        own = self.work.gather_buckets[self.stage]
        ends = self.slots.bucket_ends()[: len(own)]
        return [
            Mark(bucket.at, slot, need)
            for bucket, (slot, need) in zip(own, ends, strict=True)
            if bucket.chunk == chunk
        ]

    def _reduce_marks(self, chunk: int) -> list[Mark]:
        own = self.work.reduce_buckets[self.stage]
        return [
            Mark(bucket.at, target=self.slots.signal)
            for bucket in own
            if bucket.chunk == chunk
        ]

    def _receive(self, position: int, source: int) -> None:
        """Be ready for the input, if the sender waits for that."""
        if not self.rendezvous or source == NONE:
            return
        before = self.own[position - 1] if position > 0 else None
        pending = self.ports[before[0], before[2]][1] if before else NONE
        exchange = before is not None and before[0] != self.own[position][0]
        if pending != NONE and not exchange:
            self._append(_rows((Part(0.0, pending, target=source),)))
            return
        # Back to back with a message the other way: both are under way at once.
        self._append(_rows((Part(0.0, target=source),)))
        if pending != NONE:
            self._append(_rows((Part(0.0, pending),)))

    def _send(self, position: int, target: int) -> None:
        """Wait until the output has arrived, if transfers block."""
        if not self.work.blocking_transfers or target == NONE:
            return
        if self.rendezvous and position + 1 < len(self.own):
            kind, _, chunk = self.own[position + 1]
            if self.ports[kind, chunk][0] != NONE:
                return  # `_receive` waits
        self._append(_rows((Part(0.0, target),)))

    def _end(self, optimizer: float) -> None:
        """Add the collectives of the step's end and the optimizer step."""
        pending, need = NONE, 0
        if self.slots.reduce_buckets:
            pending, need = self.slots.bucket_ends()[-1]
        for slot in self.slots.before:
            self.steps.append(Step(0.0, pending, need, slot, 0))
            pending, need = slot, 1
        after = self.slots.after
        following = after[0] if after else NONE
        duration = quantise(optimizer, self.tick)
        self.steps.append(Step(duration, pending, need, following, WHOLE))
        followers = (*after[1:], NONE)[: len(after)]
        for slot, follower in zip(after, followers, strict=True):
            self.steps.append(Step(0.0, slot, 1, follower, 0))

    def _append(self, rows: _Rows, *, first_need: int = RUNNING) -> None:
        """Write parts, of whole ticks, down as steps, and count what is posted."""
        posted = self.posted
        needs = [
            posted.get(source, 0) + ahead
            for source, ahead in zip(rows.sources, rows.ahead, strict=True)
        ]
        for number, need in rows.fixed:
            needs[number] = need
        if first_need != RUNNING:
            needs[0] = first_need
        for slot, count in rows.posts:
            posted[slot] = posted.get(slot, 0) + count
        columns = rows.durations, rows.sources, needs, rows.targets, rows.spans
        self.steps.extend(map(_step, zip(*columns, strict=True)))


def _rows(parts: Parts, *, opens: int | None = None) -> _Rows:
    """Turn parts into steps; a span begins with one of them, and ends with the last."""
    durations, sources, needs, targets = zip(*parts, strict=True)
    spans = [0] * len(parts)
    if opens is not None:
        spans[opens] |= OPENS
        spans[-1] |= CLOSES
    posts: dict[int, int] = {}
    ahead = []
    for source, target in zip(sources, targets, strict=True):
        ahead.append(posts.get(source, 0))
        if target != NONE:
            posts[target] = posts.get(target, 0) + 1
    fixed = tuple((k, need) for k, need in enumerate(needs) if need != RUNNING)
    counts = tuple(ahead), targets, tuple(spans), tuple(posts.items())
    return _Rows(durations, sources, fixed, *counts)
