"""What each actor does in a training step, as a list of steps.

A step waits for the n-th message of a channel, works for a while, and posts to another
channel; how many messages it needs is known beforehand, so no queues are simulated.
All replicas of a stage run one program, but where devices differ, each with its own
table of channels (`nestsim.simulator.flows`). Buckets of parameters are reduced and
gathered by a second actor, the communication stream of the first: one collective after
another, beside the passes.

A pass is a list of *parts* before it is known which one in the step it is. It begins
when what it needs has come, and ends when its last move is done; what it sends to the
next stage leaves with its end. A program is a list of *blocks*: a pass, what comes
before it and after it, and the end of the step. Most blocks come again and again, and
differ only in what they wait for; so each is written once, and the program is put
together of them.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas, ``m`` microbatches, ``n``
passes of the stage. Virtual stage ``k`` is chunk ``k div p`` of stage ``k mod p``.
"""

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nestsim.simulator.flows import (
    ACTIVATION_IN,
    ACTIVATION_OUT,
    GRADIENT_IN,
    GRADIENT_OUT,
    PORTS_PER_CHUNK,
    StagePorts,
)
from nestsim.simulator.kernels import steps as kernels
from nestsim.simulator.system import (
    CLOSES,
    NONE,
    OPENS,
    SPAN_KINDS,
    WHOLE,
    Step,
    Steps,
    quantise,
)
from nestsim.simulator.work import Moves, PipelineWork
from planner.step.instructions import (
    BACKWARD,
    FIRST_FORWARD,
    FORWARD,
    NUM_KINDS,
    WEIGHT,
    Instructions,
)
from planner.step.schedules import SCHEDULES, find_schedule
from topologies.arrays import IntArray

RUNNING = -1
"""Need of a part that waits for all that its actor has posted to the port so far."""


class Part(NamedTuple):
    """A step of a pass: wait, work, post."""

    duration: float
    """Duration of the work [s]."""

    source: int = NONE
    """Port to wait for, or `NONE`."""

    need: int = RUNNING
    """Messages that must have come there."""

    target: int = NONE
    """Port to post to, or `NONE`."""


class Mark(NamedTuple):
    """Something to wait for or to post in the middle of a pass."""

    at: float
    """Moment in the pass, as a fraction of its duration."""

    source: int = NONE
    """Port to wait for, or `NONE`."""

    need: int = RUNNING
    """Messages that must have come there."""

    target: int = NONE
    """Port to post to, or `NONE`."""


Parts = tuple[Part, ...]
"""Parts of a pass, in order."""


def parts_of(moves: Moves, ports: StagePorts) -> Parts:
    """Turn moves into parts; phases after the first are posted where they are due."""
    parts = []
    for wait, duration, post in moves:
        source = NONE
        if wait != NONE:
            phases = ports.in_passes[wait]
            parts += [
                Part(0.0, phase, target=other) for phase, other in pairwise(phases)
            ]
            source = phases[-1]
        target = ports.in_passes[post][0] if post != NONE else NONE
        parts.append(Part(duration, source, target=target))
    return tuple(parts)


def scaled(parts: Parts, factor: float) -> Parts:
    """Return the same parts with all durations times a factor."""
    if factor == 1.0:
        return parts
    return tuple(part._replace(duration=part.duration * factor) for part in parts)


def marked(parts: Parts, marks: list[Mark], *, after: float = 1.0) -> Parts:
    """Put marks, which rise, into a pass, dividing parts where they fall inside.

    Whatever follows the first mark takes ``after`` times as long. What is left over
    by rounding comes at the end.
    """
    total = sum(part.duration for part in parts)
    divided: list[Part] = []
    left = list(reversed(marks))
    past, factor = 0.0, 1.0
    for part in parts:
        rest, done = part, 0.0
        while left and left[-1].at * total < past + part.duration:
            mark = left.pop()
            until = max(mark.at * total - past, done)
            divided += _stopped(rest, (until - done) * factor, mark)
            # Waiting takes place before the rest; posting is over.
            rest = Part(0.0, mark.source, mark.need, rest.target)
            done, factor = until, after
        remainder = (part.duration - done) * factor
        divided.append(Part(remainder, rest.source, rest.need, rest.target))
        past += part.duration
    for mark in reversed(left):
        divided.append(Part(0.0, mark.source, mark.need, mark.target))
    return tuple(divided)


def _stopped(rest: Part, duration: float, mark: Mark) -> list[Part]:
    """Return what comes before a mark: nothing if there is nothing to do."""
    part = Part(duration, rest.source, rest.need, mark.target)
    idle = duration == 0.0 and part.source == NONE and part.target == NONE
    return [] if idle else [part]


def between_stages(parts: Parts, arrival: Part, target: int) -> Parts:
    """Let a pass wait for its input, and post its output.

    Parameters
    ----------
    parts
        At least one.
    arrival
        A part without duration that waits for the input, or for nothing.
    target
        Port of the output, or `NONE`.
    """
    if arrival.source != NONE:
        first = parts[0]
        if first.source == NONE:
            joined = first._replace(source=arrival.source, need=arrival.need)
            parts = (joined, *parts[1:])
        else:
            parts = (arrival, *parts)
    if target != NONE:
        last = parts[-1]
        if last.target == NONE:
            parts = (*parts[:-1], last._replace(target=target))
        else:
            parts = (*parts, Part(0.0, target=target))
    return parts


def beginning(parts: Parts) -> int:
    """Return the part with which the span of a pass begins: the first to do anything.

    Waiting before it is not part of the pass.
    """
    for number, part in enumerate(parts):
        if part.duration > 0.0 or part.target != NONE:
            return number
    return len(parts) - 1


assert (RUNNING, FORWARD) == (kernels.RUNNING, kernels.FORWARD)

_PORTS_OF_KIND = {
    FORWARD: (ACTIVATION_IN, ACTIVATION_OUT),
    BACKWARD: (GRADIENT_IN, GRADIENT_OUT),
}
"""Kind of pass -> ports of its chunk that it receives from and sends to."""

_KINDS = (FORWARD, BACKWARD, WEIGHT)
"""Kinds of passes, in the order of the kernels' axes."""

_Block = tuple[tuple[float, int, int, int, int], ...]
"""Rows with the fields of `Step`; the need of one may be `RUNNING`."""


class _Code(NamedTuple):
    """What tells blocks apart."""

    block: int
    """`PASS`, `RECEIVE`, `SEND` or `END` of the kernels."""

    kind: int
    """Kind of the pass."""

    chunk: int
    """Chunk of the pass."""

    place: int
    """`PLAIN`, `FIRST` or `LAST` of the kernels."""

    filling: int
    """1 if the stage has sent a bucket of gradients, 0 if not."""

    before: int
    """Kind of the pass before, `NONE` if there is none."""

    paired: int
    """1 if the pass has another one beside it."""


def pass_numbers(instructions: Instructions, work: PipelineWork) -> IntArray:
    """Return which pass of its kind and chunk that of each microbatch is.

    They are counted from 1, in the order of a stage, shape ``(3, v, m)``; 0 for what
    the stage does not do.
    """
    shape = len(_KINDS), work.num_chunks, work.num_microbatches
    return kernels.number_passes(kernels.Passes(*instructions), *shape)


class Writer:
    """Writes the program of one stage.

    Parameters
    ----------
    work
        The training step.
    instructions
        What its schedule has the stage do.
    numbers
        Of the passes of every stage, as of `pass_numbers`.
    stage
        Which one this is.
    ports
        Its ports.
    known
        Parts of passes that were written for other stages of the same step.
    """

    def __init__(
        self,
        work: PipelineWork,
        instructions: Instructions,
        numbers: Sequence[IntArray],
        stage: int,
        ports: StagePorts,
        known: dict[Hashable, Parts],
    ) -> None:
        self.known = known
        self.work, self.instructions, self.stage = work, instructions, stage
        self.ports = ports
        self.virtual = work.virtual_stages()
        schedule = self.schedule = SCHEDULES[work.schedule]
        self.rendezvous = work.blocking_transfers and schedule.meets_receivers
        self.completing = WEIGHT if schedule.splits_backward else BACKWARD
        self.pass_ports = self._pass_ports()
        self.bucket_ends = ports.bucket_ends()
        self.gather_marks = self._gather_marks()
        self.reduce_marks = self._reduce_marks()
        self.codes, self.order = self._order(numbers)

    def write(self, tick: float) -> Steps:
        """Return the steps of the stage's actors of kind 0."""
        written = [self._block(code) for code in self.codes]
        rows = Steps.of(step for block in written for step in block)
        steps = kernels.write_blocks(
            self.order,
            np.cumsum([0, *map(len, written)]),
            kernels.StepColumns(
                quantise(rows.duration, tick),
                rows.source,
                rows.need,
                rows.target,
                rows.span,
            ),
            self.ports.channels.shape[1],
        )
        return Steps(*steps)

    def _order(
        self, numbers: Sequence[IntArray]
    ) -> tuple[list[_Code], kernels.BlockOrder]:
        """Return the distinct blocks, and what the program is made of."""
        codes, order = kernels.order_blocks(
            kernels.Passes(*self.instructions),
            self._paired(),
            self.pass_ports,
            self._arrivals(numbers),
            kernels.BlockRules(
                completing=self.completing,
                fills=self.ports.signal != NONE,
                rendezvous=self.rendezvous,
                blocking=self.work.blocking_transfers,
            ),
        )
        columns = (column.tolist() for column in codes)
        return [_Code(*row) for row in zip(*columns, strict=True)], order

    def _paired(self) -> IntArray:
        """Return 1 for passes that have another one beside them, shape ``(n,)``."""
        kind, _, chunk = self.instructions
        written = self.schedule.written_kinds(kind, chunk, np.array([0, kind.size]))
        return np.asarray(written != kind, dtype=np.int64)

    def _pass_ports(self) -> IntArray:
        """Return the ports that passes receive from and send to, or `NONE`.

        Shape ``(2, 3, v)``: by kind and chunk.
        """
        v = self.work.num_chunks
        ports = np.full((2, len(_KINDS), v), NONE)
        first = np.arange(v) * PORTS_PER_CHUNK
        for kind, of_kind in _PORTS_OF_KIND.items():
            for side, port in enumerate(of_kind):
                exists = self.ports.channels[0, first + port] != NONE
                ports[side, kind] = np.where(exists, first + port, NONE)
        return ports

    def _arrivals(self, numbers: Sequence[IntArray]) -> IntArray:
        """Return how many messages have come when that of each microbatch has.

        The passes of that kind through the sending virtual stage send them, in order.
        Shape ``(3, v, m)``.
        """
        arrivals = np.zeros_like(numbers[self.stage])
        of_virtual = self.virtual
        for kind, step in ((FORWARD, -1), (BACKWARD, 1)):
            for chunk, virtual in enumerate(of_virtual.number[self.stage].tolist()):
                sender = virtual + step
                if 0 <= sender < of_virtual.stage.size:
                    sent = numbers[of_virtual.stage[sender]]
                    arrivals[kind, chunk] = sent[kind, of_virtual.chunk[sender]]
        return arrivals

    def _block(self, code: _Code) -> _Block:
        """Return the steps of a block; durations are not whole ticks yet."""
        block, kind, chunk, place, filling, before, paired = code
        if block == kernels.END:
            return self._end(float(self.work.optimizer_time[self.stage]))
        source, target = self.pass_ports[:, kind, chunk].tolist()
        if block == kernels.SEND:
            return _steps((Part(0.0, target),))
        if block == kernels.RECEIVE:
            return self._receive(source, kind, before)
        written = kind + NUM_KINDS * paired
        if place == kernels.FIRST and self.work.tells_first:
            written = FIRST_FORWARD
        if place == kernels.PLAIN and self.work.layers is None:
            # Most passes are neither the first nor the last, and a single part.
            duration = self._plain(written, chunk, filling=bool(filling))
            return (Step(duration, source, RUNNING, target, WHOLE),)
        parts = self._pass(written, chunk, place, filling=bool(filling))
        # What the first part needs differs from pass to pass.
        parts = between_stages(parts, Part(0.0, source), target)
        return _steps(parts, opens=beginning(parts))

    def _plain(self, kind: int, chunk: int, *, filling: bool) -> float:
        """Return the duration of a pass of a single part [s]."""
        virtual = int(self.virtual.number[self.stage, chunk])
        ((_, duration, _),) = self.work.pass_moves(kind, virtual)
        if not filling or self.work.interference == 1.0:
            return duration
        return duration * self._beside(self.work.sent_in(kind, virtual), duration)

    def _beside(self, sent: float, total: float) -> float:
        """Return the factor on a pass beside buckets, which sends for a part of it."""
        share = sent / total if total else 0.0
        return 1.0 + (self.work.interference - 1.0) * (1.0 - share)

    def _pass(self, kind: int, chunk: int, place: int, *, filling: bool) -> Parts:
        """Return the parts of a pass, its buckets included."""
        virtual = int(self.virtual.number[self.stage, chunk])
        moves = self.work.pass_moves(kind, virtual)
        sent = self.work.sent_in(kind, virtual)
        marks: list[Mark] = []
        if place == kernels.FIRST:
            marks = self.gather_marks[chunk]
        elif place == kernels.LAST:
            marks = self.reduce_marks[chunk]
        alongside = place == kernels.FIRST and self.stage == chunk == 0 and bool(marks)
        beside = self._beside(sent, sum(move.duration for move in moves))
        after = beside if place == kernels.LAST and not filling else 1.0
        factors = beside if filling else 1.0, beside if alongside else 1.0
        if self.work.layers is not None:
            return self._divided(moves, marks, factors, after)
        # Without messages inside, passes of many stages and chunks are alike.
        key = moves, tuple(marks), factors, after
        parts = self.known.get(key)
        if parts is None:
            parts = self.known[key] = self._divided(moves, marks, factors, after)
        return parts

    def _divided(
        self, moves: Moves, marks: list[Mark], factors: Iterable[float], after: float
    ) -> Parts:
        """Return moves as parts, some factors longer, divided at marks."""
        parts = parts_of(moves, self.ports)
        for factor in factors:
            parts = scaled(parts, factor)
        return marked(parts, marks, after=after) if marks else parts

    def _gather_marks(self) -> list[list[Mark]]:
        """Return where the first forward pass of each chunk waits."""
        buckets = self.work.gather_buckets[self.stage]
        marks: list[list[Mark]] = [[] for _ in range(self.work.num_chunks)]
        for bucket, (port, need) in zip(buckets, self.bucket_ends, strict=False):
            marks[bucket.chunk].append(Mark(bucket.at, port, need))
        return marks

    def _reduce_marks(self) -> list[list[Mark]]:
        """Return where the pass that completes the gradients of each chunk posts."""
        marks: list[list[Mark]] = [[] for _ in range(self.work.num_chunks)]
        for bucket in self.work.reduce_buckets[self.stage]:
            marks[bucket.chunk].append(Mark(bucket.at, target=self.ports.signal))
        return marks

    def _receive(self, source: int, kind: int, before: int) -> _Block:
        """Be ready for the input: the sender waits for that."""
        pending = int(self.pass_ports[1, before, 0]) if before != NONE else NONE
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
        if self.ports.reduce_buckets:
            pending, need = self.bucket_ends[-1]
        for port in self.ports.before:
            steps.append(Step(0.0, pending, need, port, 0))
            pending, need = port, 1
        after = self.ports.after
        following = after[0] if after else NONE
        steps.append(Step(optimizer, pending, need, following, WHOLE))
        followers = (*after[1:], NONE)[: len(after)]
        for port, follower in zip(after, followers, strict=True):
            steps.append(Step(0.0, port, 1, follower, 0))
        return tuple(steps)


def _steps(parts: Parts, *, opens: int | None = None) -> _Block:
    """Turn parts into steps; a span begins with one of them, and ends with the last."""
    spans = [0] * len(parts)
    if opens is not None:
        spans[opens] |= OPENS
        spans[-1] |= CLOSES
    return tuple([(*part, span) for part, span in zip(parts, spans, strict=True)])


PASS_KINDS = ("forward", "backward", "weight")
"""Names in `SPAN_KINDS` of the kinds of `planner.step.schedules`, in their order."""

_SPAN_OF_KIND = np.array([SPAN_KINDS.index(name) for name in PASS_KINDS])
"""Kind of span of each kind of pass."""

OPTIMIZER = SPAN_KINDS.index("optimizer")
"""Kind of the optimizer's span."""


class StageProgram(NamedTuple):
    """The steps of actors, and what their spans mean."""

    steps: Steps
    """Steps of the program."""

    kinds: IntArray
    """Kind of each span, an index into `SPAN_KINDS`."""

    microbatches: IntArray
    """Microbatch of each span, -1 where there is none."""

    chunks: IntArray
    """Chunk of each span, -1 where there is none."""


class Programs(NamedTuple):
    """The programs of all actors."""

    distinct: tuple[StageProgram, ...]
    """Programs, each once."""

    of_actor: IntArray
    """Index into `distinct`: actors stage by stage, replica by replica; then the
    communication streams of the stages in `streams`, in the same order."""

    streams: tuple[int, ...]
    """Stages whose actors have a communication stream."""


def build_programs(
    work: PipelineWork, ports: Sequence[StagePorts], *, tick: float
) -> Programs:
    """Return the programs of all actors.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    num_stages, num_replicas, _ = work.devices.shape
    schedule = find_schedule(work.schedule)
    lists = [
        schedule.instructions(stage, num_stages, work.num_microbatches, work.num_chunks)
        for stage in range(num_stages)
    ]
    numbers = [pass_numbers(instructions, work) for instructions in lists]
    of_kind = [work.of_kind(number) for number in range(1 + len(work.others))]
    distinct: list[StageProgram] = []
    of_actor, streams = [], []
    known: dict[Hashable, Parts] = {}
    for stage, instructions in enumerate(lists):
        kinds = np.append(_SPAN_OF_KIND[instructions.kind], OPTIMIZER)
        meaning = (
            kinds,
            np.append(instructions.microbatch, -1),
            np.append(instructions.chunk, -1),
        )
        of_actor.append(len(distinct) + work.kind[stage])
        for work_of_kind in of_kind[: int(work.kind[stage].max()) + 1]:
            writer = Writer(
                work_of_kind, instructions, numbers, stage, ports[stage], known
            )
            distinct.append(StageProgram(writer.write(tick), *meaning))
    of_buckets: dict[Hashable, Steps] = {}
    for stage, row in enumerate(ports):
        # Streams of many stages do the same.
        buckets = row.gather_buckets, row.reduce_buckets, row.signal
        if buckets not in of_buckets:
            of_buckets[buckets] = _stream(row)
        steps = of_buckets[buckets]
        if len(steps):
            streams.append(stage)
            of_actor.append(np.full(num_replicas, len(distinct)))
            nothing = np.zeros(0, dtype=np.int64)
            distinct.append(StageProgram(steps, nothing, nothing, nothing))
    return Programs(
        tuple(distinct), np.concatenate(of_actor).astype(np.int64), tuple(streams)
    )


def _stream(ports: StagePorts) -> Steps:
    """Return the program of a stage's communication streams, empty if there is none.

    Gathers leave one after another from the beginning on; then each gradient bucket
    when it is full and the one before has been reduced.
    """
    waits: list[tuple[int, int, int]] = []
    posted: dict[int, int] = {}
    pending, need = NONE, 0
    for phases in ports.gather_buckets:
        for port in phases:
            waits.append((pending, need, port))
            pending, need = port, posted.get(port, 0) + 1
            posted[port] = need
    for number, phases in enumerate(ports.reduce_buckets, 1):
        if pending != NONE:
            waits.append((pending, need, NONE))
        pending, need = ports.signal, number
        for port in phases:
            waits.append((pending, need, port))
            pending, need = port, posted.get(port, 0) + 1
            posted[port] = need
    source, needs, target = np.array(waits, np.int64).reshape(-1, 3).T.copy()
    nothing = np.zeros(len(waits), np.int64)
    return Steps(np.zeros(len(waits)), source, needs, target, nothing)
