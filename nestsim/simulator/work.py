"""What the simulator is given: one training step, lowered to work, messages and memory.

Letters: ``p`` stages (0 is the first, with the embedding), ``v`` chunks per stage (1
without interleaving), ``d`` replicas, ``t`` ranks of a replica (tensor- and
context-parallel), ``m`` microbatches, ``E`` links. An *actor* is one stage of one
replica: its ranks work in lockstep. All replicas of a stage send the same; where
devices differ, they are of several *kinds*, and compute at paces of their own. Virtual
stages are the chunks of all stages in the order of the chain; the schedule says which
stage holds which.

A pass of a stage is one duration, or a list of moves between which the actor sends
and waits. What a *lockstep group* of replicas sends together inside of passes (the
ranks of one replica in a tensor-parallel collective, all ranks that share experts in an
all-to-all) is one coupled flow, for which all of them must be ready.

A phase of a collective says which devices send to which others in lockstep, round rings
or by any messages at all: those of one stage, or of lockstep groups of its replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from nestsim.simulator.system import NONE
from planner.step.instructions import FIRST_FORWARD, USUAL_KIND, VirtualStages
from planner.step.schedules import find_schedule
from topologies.arrays import FloatArray, IntArray

Ends = tuple[IntArray, IntArray]
"""Devices that send, and the device that each of them sends to."""


class RingPhase(NamedTuple):
    """One phase of a collective of one stage: rings that turn in lockstep."""

    rings: IntArray
    """Shape ``(R, n)``: device ``rings[r, k]`` sends to ``rings[r, (k + 1) % n]``."""

    bytes_per_member: float
    """What each member sends through its port in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the ring's largest route latency once."""

    def ends(self) -> Ends:
        """Return who sends to whom, one message a member."""
        return _around(self.rings)


class EdgePhase(NamedTuple):
    """One phase of a collective of one stage: messages that move in lockstep."""

    sources: IntArray
    """Device that sends, shape ``(M,)``."""

    targets: IntArray
    """Device that receives, shape ``(M,)``."""

    bytes_per_member: float
    """What each message carries in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the largest route latency once."""

    def ends(self) -> Ends:
        """Return who sends to whom."""
        return self.sources, self.targets


Phase = RingPhase | EdgePhase
"""Phase of a collective of one stage."""


class LockstepRingPhase(NamedTuple):
    """One phase of an in-layer collective: rings of every lockstep group."""

    rings: IntArray
    """Shape ``(R, n)``: device ``rings[r, k]`` sends to ``rings[r, (k + 1) % n]``; the
    rings of a lockstep group are adjacent."""

    lockstep: IntArray
    """Lockstep group of each ring, rising from 0, shape ``(R,)``."""

    bytes_per_member: float
    """What a member of weight 1 sends through its port in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the ring's largest route latency once."""

    weights: FloatArray | None = None
    """What each member sends over `bytes_per_member`, shape ``(R, n)``; multiples of
    2**-20. All 1 if None."""

    def ends(self) -> Ends:
        """Return who sends to whom, one message a member."""
        return _around(self.rings)

    def lockstep_of_message(self) -> IntArray:
        """Return the lockstep group of each message."""
        return np.repeat(self.lockstep, self.rings.shape[1])


class LockstepEdgePhase(NamedTuple):
    """One phase of an in-layer collective: messages of every lockstep group."""

    sources: IntArray
    """Device that sends each message, those of a lockstep group adjacent, shape
    ``(M,)``."""

    targets: IntArray
    """Device that receives each message, shape ``(M,)``."""

    lockstep: IntArray
    """Lockstep group of each message, rising from 0, shape ``(M,)``."""

    bytes_per_member: float
    """What each message carries in the whole phase [byte]."""

    num_steps: int
    """Rounds; each pays the largest route latency once."""

    weights: None = None
    """None: every message carries `bytes_per_member`."""

    def ends(self) -> Ends:
        """Return who sends to whom."""
        return self.sources, self.targets

    def lockstep_of_message(self) -> IntArray:
        """Return the lockstep group of each message."""
        return self.lockstep


def _around(rings: IntArray) -> Ends:
    following = np.concatenate((rings[:, 1:], rings[:, :1]), axis=1)
    return rings.ravel(), following.ravel()


class LockstepTraffic(NamedTuple):
    """Collectives of one kind and size that passes of one stage wait for."""

    kind: str
    """A name of `nestsim.simulator.system.TRANSFER_KINDS`."""

    lockstep: IntArray
    """Lockstep group of each replica, whose members send together, shape ``(d,)``."""

    phases: tuple[LockstepRingPhase | LockstepEdgePhase, ...]
    """Phases of the collective, one after another; at least one."""


class Move(NamedTuple):
    """Part of a pass: wait, work, send."""

    wait: int
    """Number of the stage's `LockstepTraffic` to wait for, until everything that this
    actor has sent of it so far has arrived; or `NONE`."""

    duration: float
    """Compute between waiting and sending, on a device that is not slow [s]."""

    post: int
    """Number of the stage's `LockstepTraffic` to send once, or `NONE`; its first phase
    starts at once, later ones when the actor comes to wait for it."""


Moves = tuple[Move, ...]
"""Moves of a pass, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTraffic:
    """What passes consist of, layer by layer."""

    collectives: tuple[tuple[LockstepTraffic, ...], ...]
    """Collectives of each stage, in the order in which its moves number them."""

    passes: Mapping[int, tuple[Moves, ...]]
    """Kind of pass (as in `planner.step.schedules`) -> moves in each virtual stage; at
    least one move each."""


class Bucket(NamedTuple):
    """Parameters of a stage that are reduced or gathered together."""

    chunk: int
    """Chunk of the stage that the parameters belong to."""

    at: float
    """Moment of a pass at which the last backward pass has filled the bucket, or the
    first forward pass needs it, as a fraction of its duration without waits."""

    phases: tuple[Phase, ...]
    """Phases of the collective, one after another; at least one."""


class Held(NamedTuple):
    """Memory of one purpose, held during passes or from one pass to another."""

    part: str
    """What the memory is for, e.g. ``"activations"``."""

    chunk: int
    """Chunk of the stage whose passes hold the memory."""

    begin: int
    """Kind of pass (`planner.step.schedules`) at whose start it is allocated."""

    end: int
    """Kind of pass, of the same chunk and microbatch, at whose end it is released."""

    num_bytes: float
    """Memory that one microbatch holds [byte]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of one device of one stage, by what it is for [byte]."""

    static: Mapping[str, float]
    """Memory held for the whole step, by part: ``"weights"``, ``"gradients"``,
    ``"optimizer"`` [byte]."""

    held: tuple[Held, ...]
    """What passes allocate and release. Passes of one actor do not overlap."""

    until_step_end: Mapping[str, float] = field(default_factory=dict)
    """Memory held from the start until all passes are done, by part [byte]."""

    step_end: Mapping[str, float] = field(default_factory=dict)
    """Memory that the optimizer takes for its step, behind all passes, by part
    [byte]."""

    warmup: int | None = None
    """Forward passes of the stage that nobody goes on beside: later ones keep what the
    backward pass behind them has let go of; None if passes share no memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorTimes:
    """What depends on an actor's devices, of every stage; as in `PipelineWork`."""

    forward_time: FloatArray
    """Forward pass through each virtual stage, shape ``(v p,)`` [s]."""

    backward_time: FloatArray
    """Backward pass through each virtual stage, shape ``(v p,)`` [s]."""

    weight_time: FloatArray
    """Pass for weight gradients through each virtual stage, shape ``(v p,)`` [s]."""

    unusual_time: Mapping[int, FloatArray]
    """Kind of a pass that is unlike others of its instruction -> its time through each
    virtual stage, shape ``(v p,)`` [s]."""

    sent_time: Mapping[int, FloatArray]
    """Kind of pass -> the part of its time that is communication, shape ``(v p,)``
    [s]."""

    optimizer_time: FloatArray
    """Optimizer step of each stage, with what its hidden collectives have delayed,
    shape ``(p,)`` [s]."""

    passes: Mapping[int, tuple[Moves, ...]] | None
    """Kind of pass -> moves in each virtual stage; None where passes send nothing."""

    reduce_at: tuple[tuple[float, ...], ...]
    """Moment of each of `PipelineWork.reduce_buckets`, as a fraction of its pass."""

    gather_at: tuple[tuple[float, ...], ...]
    """Moment of each of `PipelineWork.gather_buckets`, as a fraction of its pass."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineWork:
    """One training step, lowered: all that the replay needs beside the network.

    Times are those of actors of kind 0; `of_kind` has those of others.
    """

    schedule: str
    """A name of `planner.step.schedules.SCHEDULES`."""

    num_chunks: int
    """Chunks ``v`` of each stage."""

    num_microbatches: int
    """Microbatches ``m`` of each replica."""

    devices: IntArray
    """Device numbers, shape ``(p, d, t)``."""

    forward_time: FloatArray
    """Forward pass of one microbatch through each virtual stage, without what `layers`
    sends, shape ``(v p,)`` [s]."""

    backward_time: FloatArray
    """Backward pass of one microbatch through each virtual stage, without what `layers`
    sends, shape ``(v p,)`` [s]."""

    weight_time: FloatArray
    """Pass for the weights' gradients alone of one microbatch through each virtual
    stage, in schedules that have one, shape ``(v p,)`` [s]."""

    unusual_time: Mapping[int, FloatArray] = field(default_factory=dict)
    """Kind of a pass that is unlike others of its instruction (it has another one
    beside it, in schedules that have pairs, or is the first and sends more) -> its time
    through each virtual stage, shape ``(v p,)``; as the others where a kind is missing
    [s]."""

    sent_time: Mapping[int, FloatArray]
    """Kind of pass -> the part of its time that is communication, which nothing beside
    it stretches, shape ``(v p,)``; 0 where a kind is missing [s]."""

    segments: Mapping[int, IntArray] = field(default_factory=dict)
    """Kind of pass -> the parts of its compute whose times vary on their own: layers,
    and what is between two collectives of a layer, shape ``(v p,)``; one where a kind
    is missing."""

    layers: LayerTraffic | None
    """What passes send; None if that is part of their durations."""

    boundary_bytes: FloatArray
    """What each rank of a replica sends over the boundary after each virtual stage,
    forward; as much comes back, shape ``(v p - 1,)`` [byte]."""

    blocking_transfers: bool
    """Whether stages stop for transfers between them. Without interleaving a message
    then leaves when both sides are ready, and both wait for it; with interleaving the
    sender waits for its arrival."""

    reduce_buckets: tuple[tuple[Bucket, ...], ...]
    """Gradient collectives of each stage behind the last backward pass of each chunk,
    in the order in which they start; the optimizer step waits for them."""

    reduce_phases: tuple[tuple[Phase, ...], ...]
    """Gradient collective of each stage after the last backward pass and the buckets,
    before the optimizer step; empty with one replica."""

    optimizer_time: FloatArray
    """Optimizer step of each stage, with what its hidden collectives have delayed,
    shape ``(p,)`` [s]."""

    gather_phases: tuple[tuple[Phase, ...], ...]
    """Parameter all-gather of each stage after the optimizer step (ZeRO-1 and 2)."""

    gather_buckets: tuple[tuple[Bucket, ...], ...]
    """Parameter all-gathers of each stage from the beginning of the step on, in their
    order, that the first forward pass of each chunk waits for. In a steady stream of
    steps they are what follows the optimizer step of the one before."""

    tied_phases: tuple[Phase, ...]
    """Collective of the tied embedding between the first and the last stage: starts
    when the gradient collectives of both are done, and both wait for it before their
    optimizer step; empty if nothing is tied."""

    host_time: FloatArray | None = None
    """Part of the forward (0) and of the backward passes (1) and of the optimizer step
    (2) of each stage in which devices wait for their hosts, all microbatches together,
    the mean of its replicas, shape ``(p, 3)``; None for nothing [s]."""

    kind: IntArray
    """Which times each actor has, from 0 on in every stage, shape ``(p, d)``. Kinds of
    one stage have nothing to do with those of another."""

    others: tuple[ActorTimes, ...] = ()
    """Times of actors of kind 1, 2 and so on; of stages that have less kinds those of
    kind 0."""

    interference: float
    """Factor on the duration of compute that is beside buckets: from a stage's first
    gradient bucket on, and in the first forward pass of the first stage if it waits for
    buckets."""

    memory: tuple[StageMemory, ...]
    """What a device of each stage holds; empty if it was not asked for."""

    notes: tuple[str, ...]
    """What is part of the durations instead of being simulated, one sentence each."""

    @property
    def tells_first(self) -> bool:
        """Whether the first forward pass of each chunk is unlike later ones."""
        return FIRST_FORWARD in self.unusual_time

    def virtual_stages(self) -> VirtualStages:
        """Return which stage holds which part of the chain, as the schedule says."""
        schedule = find_schedule(self.schedule)
        return schedule.virtual_stages(len(self.devices), self.num_chunks)

    def of_kind(self, number: int) -> "PipelineWork":
        """Return the step with the times of actors of a kind as its own."""
        if number == 0:
            return self
        times = self.others[number - 1]
        layers = self.layers
        if layers is not None:
            assert times.passes is not None
            layers = replace(layers, passes=times.passes)
        return replace(
            self,
            forward_time=times.forward_time,
            backward_time=times.backward_time,
            weight_time=times.weight_time,
            unusual_time=times.unusual_time,
            sent_time=times.sent_time,
            optimizer_time=times.optimizer_time,
            layers=layers,
            reduce_buckets=_at(self.reduce_buckets, times.reduce_at),
            gather_buckets=_at(self.gather_buckets, times.gather_at),
        )

    def sent_in(self, kind: int, virtual: int) -> float:
        """Return the part of a pass's time that is communication [s]."""
        sent = self.sent_time.get(kind, self.sent_time.get(USUAL_KIND.get(kind, kind)))
        return 0.0 if sent is None else float(sent[virtual])

    def segments_in(self, kind: int, virtual: int) -> int:
        """Return in how many parts the compute of a pass varies, at least 1."""
        segments = self.segments.get(
            kind, self.segments.get(USUAL_KIND.get(kind, kind))
        )
        return 1 if segments is None else max(1, int(segments[virtual]))

    def pass_moves(self, kind: int, virtual: int) -> Moves:
        """Return the moves of a kind of pass in a virtual stage."""
        usual = USUAL_KIND.get(kind, kind)
        if self.layers is not None:
            passes = self.layers.passes
            moves = passes.get(kind, passes.get(usual))
            if moves is not None:
                return moves[virtual]
        times = (self.forward_time, self.backward_time, self.weight_time)[usual]
        times = self.unusual_time.get(kind, times)
        return (Move(NONE, float(times[virtual]), NONE),)


def _at(
    buckets: tuple[tuple[Bucket, ...], ...], moments: tuple[tuple[float, ...], ...]
) -> tuple[tuple[Bucket, ...], ...]:
    """Return the buckets of each stage at other moments."""
    return tuple(
        tuple(
            bucket._replace(at=moment)
            for bucket, moment in zip(of_stage, when, strict=True)
        )
        for of_stage, when in zip(buckets, moments, strict=True)
    )
