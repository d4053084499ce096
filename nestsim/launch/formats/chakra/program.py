"""What the ranks of one stage do in a step, node by node.

It is the step that the replay is given (`nestsim.simulator.work.PipelineWork`): the
passes of the schedule in their order, each with its moves; what they send between
stages; the collectives around the optimizer step. Ranks of a stage have one program;
whom they send to, and with whom, is theirs (`Peers`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nestsim.lowering.lower import StageCollectives
from nestsim.simulator.system import NONE
from nestsim.simulator.work import PipelineWork
from planner.step.instructions import BACKWARD, FORWARD, USUAL_KIND, WEIGHT
from planner.step.offload import TO_DEVICE, TO_HOST
from planner.step.schedules import find_schedule
from topologies.arrays import IntArray

_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradients"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceNode:
    """One node of a stage's program."""

    what: str
    """A key of `nestsim.launch.formats.chakra.wire.NODE_TYPES`."""

    name: str
    """What people read."""

    after: tuple[int, ...]
    """Nodes before it on the same rank."""

    duration: float = 0.0
    """Compute [s]."""

    num_bytes: float = 0.0
    """What is sent: of a collective the full tensor [byte]."""

    operation: str = ""
    """Collective."""

    groups: IntArray | None = None
    """Devices of each group of a collective, shape ``(G, n)``."""

    peers: IntArray | None = None
    """Device at the other end for each device of the stage, in the order of
    `PipelineWork.devices`."""

    tag: int = 0
    """Number that a message and its receiver share."""


@dataclass(slots=True)
class TraceProgram:
    """Writes the nodes of one stage."""

    work: PipelineWork
    """The step."""

    stage: int
    """Which stage it is."""

    sent: StageCollectives
    """What it sends."""

    tied: tuple[IntArray, float] | None
    """Pairs of devices that hold the tied embedding, shape ``(G, 2)``, and its size
    [byte]; None if this stage has none."""

    items: list[TraceNode] = field(default_factory=list)
    """Nodes so far."""

    frontier: tuple[int, ...] = ()
    """Nodes that what comes next waits for."""

    pending: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Number of a collective -> its nodes that were started last."""

    def write(self) -> tuple[TraceNode, ...]:
        """Return the program."""
        work = self.work
        schedule = find_schedule(work.schedule)
        virtual = work.virtual_stages()
        kinds, microbatches, chunks = schedule.instructions(
            self.stage, len(work.devices), work.num_microbatches, work.num_chunks
        )
        written = schedule.written_kinds(
            kinds, chunks, np.array([0, kinds.size]), first=work.tells_first
        )
        gathered: tuple[int, ...] = ()
        if work.gather_buckets[self.stage]:
            gathered = self._step_collectives(self.sent.after)
        rows = zip(
            *(column.tolist() for column in (kinds, microbatches, chunks, written)),
            strict=True,
        )
        for kind, microbatch, chunk, as_written in rows:
            number = int(virtual.number[self.stage, chunk])
            self._receive(kind, microbatch, number)
            self.frontier = (*self.frontier, *gathered)
            gathered = ()
            self._pass(kind, as_written, microbatch, number)
            self._send(kind, microbatch, number)
        self._end()
        return tuple(self.items)

    def _add(self, what: str, name: str, after: Sequence[int], **rest: object) -> int:
        unique = tuple(dict.fromkeys(after))
        self.items.append(TraceNode(what=what, name=name, after=unique, **rest))  # type: ignore[arg-type]
        return len(self.items) - 1

    def _compute(self, name: str, duration: float) -> None:
        if duration > 0.0:
            node = self._add("compute", name, self.frontier, duration=duration)
            self.frontier = (node,)

    # Between stages.

    def _neighbour(self, number: int, step: int) -> IntArray | None:
        """Return the devices that hold a virtual stage's neighbour, if others do."""
        virtual = self.work.virtual_stages()
        other = number + step
        if not 0 <= other < virtual.stage.size:
            return None
        holder = int(virtual.stage[other])
        if holder == self.stage:
            return None
        return np.asarray(self.work.devices[holder].ravel(), dtype=np.int64)

    def _tag(self, kind: int, microbatch: int, boundary: int) -> int:
        """Return the number of a message over the boundary after a virtual stage."""
        boundaries = self.work.boundary_bytes.size
        place = microbatch * boundaries + boundary
        return 2 * place + (kind == BACKWARD)

    def _receive(self, kind: int, microbatch: int, number: int) -> None:
        """Wait for the input of a pass."""
        if kind == WEIGHT:
            return
        step = -1 if kind == FORWARD else 1
        peers = self._neighbour(number, step)
        if peers is None:
            return
        boundary = number - 1 if kind == FORWARD else number
        node = self._add(
            "receive",
            f"receive for {_NAMES[kind]} {microbatch}",
            (),
            num_bytes=float(self.work.boundary_bytes[boundary]),
            peers=peers,
            tag=self._tag(kind, microbatch, boundary),
        )
        self.frontier = (*self.frontier, node)

    def _send(self, kind: int, microbatch: int, number: int) -> None:
        """Send the output of a pass."""
        if kind == WEIGHT:
            return
        step = 1 if kind == FORWARD else -1
        peers = self._neighbour(number, step)
        if peers is None:
            return
        boundary = number if kind == FORWARD else number - 1
        node = self._add(
            "send",
            f"send of {_NAMES[kind]} {microbatch}",
            self.frontier,
            num_bytes=float(self.work.boundary_bytes[boundary]),
            peers=peers,
            tag=self._tag(kind, microbatch, boundary),
        )
        if self.work.blocking_transfers:
            self.frontier = (*self.frontier, node)

    # Passes.

    def _pass(self, kind: int, written: int, microbatch: int, number: int) -> None:
        name = f"{_NAMES[kind]} {microbatch}, part {number}"
        assert USUAL_KIND.get(written, written) == kind
        for wait, duration, post in self.work.pass_moves(written, number):
            if wait != NONE:
                self.frontier = (*self.frontier, *self.pending.get(wait, ()))
            self._compute(name, duration)
            if post != NONE:
                before = self.pending.get(post, ())
                self.pending[post] = self._post(post, name, before)

    def _post(self, number: int, name: str, before: tuple[int, ...]) -> tuple[int, ...]:
        """Send one of the stage's collectives; one of a number follows another."""
        message, groups = self.sent.in_passes[number]
        after = (*self.frontier, *before)
        if message.kind in {TO_DEVICE, TO_HOST}:
            what = "load" if message.kind == TO_DEVICE else "store"
            node = self._add(what, name, after, num_bytes=message.num_bytes)
            return (node,)
        if message.operation == "send_recv":
            return tuple(self._hops(message.num_bytes, message.num_hops, groups, after))
        node = self._add(
            "collective",
            f"{message.kind} {message.operation}, {name}",
            after,
            num_bytes=message.num_bytes,
            operation=message.operation,
            groups=groups,
        )
        return (node,)

    def _hops(
        self, num_bytes: float, hops: int, groups: IntArray, after: Sequence[int]
    ) -> list[int]:
        """Send round the rings: to the next of each, from the one before."""
        following, before = _ring_neighbours(groups, self.work.devices[self.stage])
        first = 2 * self.work.num_microbatches * max(self.work.boundary_bytes.size, 1)
        waited = list(after)
        for _ in range(max(hops, 1)):
            tag = first + len(self.items)
            share = num_bytes / max(hops, 1)
            waited = [
                self._add(
                    what,
                    "hop of a ring",
                    waited,
                    num_bytes=share,
                    peers=peers,
                    tag=tag,
                )
                for what, peers in (("send", following), ("receive", before))
            ]
        return waited

    # The end of the step.

    def _end(self) -> None:
        """Reduce gradients, update, gather weights."""
        # Nothing that was started is left behind.
        left = (node for nodes in self.pending.values() for node in nodes)
        self.frontier = (*self.frontier, *left)
        self.frontier = self._step_collectives(self.sent.before) or self.frontier
        if self.tied is not None:
            pairs, num_bytes = self.tied
            node = self._add(
                "collective",
                "tied embedding",
                self.frontier,
                num_bytes=num_bytes,
                operation="all_reduce",
                groups=pairs,
            )
            self.frontier = (node,)
        self._compute("optimizer", float(self.work.optimizer_time[self.stage]))
        if not self.work.gather_buckets[self.stage]:
            self._step_collectives(self.sent.after)

    def _step_collectives(self, collectives: Sequence) -> tuple[int, ...]:  # type: ignore[type-arg]
        """Do collectives of the step's end one after another."""
        last = self.frontier
        for operation, groups, num_bytes in collectives:
            node = self._add(
                "collective",
                f"step {operation}",
                last,
                num_bytes=num_bytes,
                operation=operation,
                groups=groups,
            )
            last = (node,)
        return last if collectives else ()


def _ring_neighbours(groups: IntArray, devices: IntArray) -> tuple[IntArray, IntArray]:
    """Return who follows and who precedes each device in its ring."""
    size = int(max(groups.max(), devices.max())) + 1
    following = np.arange(size)
    before = np.arange(size)
    following[groups] = np.roll(groups, -1, axis=1)
    before[groups] = np.roll(groups, 1, axis=1)
    return following[devices.ravel()], before[devices.ravel()]


def numbered(groups: Iterator[IntArray]) -> dict[tuple[int, ...], int]:
    """Return the number of each group of devices, from 1 on as they come."""
    found: dict[tuple[int, ...], int] = {}
    for several in groups:
        for group in several.tolist():
            found.setdefault(tuple(group), len(found) + 1)
    return found
