"""What each stage does in a training step, as a list of steps.

A step waits for the n-th message of a channel, works for a while, and posts to another
channel; how many messages it needs is known beforehand, so no queues are simulated.
Channels are named by *slots*: all replicas of a stage run one program, each with its
own table of channels. A class of alike replicas with a multiplicity would, too.
Slots are those of each chunk in turn, in and out for either direction, and then those
of the collectives.

Letters: ``p`` stages, ``v`` chunks of each. Virtual stage ``k`` is chunk ``k div p`` of
stage ``k mod p``.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.clock import quantise
from nestsim.simulator.flows import Flows
from nestsim.simulator.outcome import SPAN_KINDS
from nestsim.simulator.system import NONE, WHOLE, Step
from nestsim.simulator.work import PipelineWork
from planner.schedules import BACKWARD, FORWARD, Instructions, find_schedule

IntArray = NDArray[np.int64]

OPTIMIZER = SPAN_KINDS.index("optimizer")

_ACTIVATION_IN, _ACTIVATION_OUT, _GRADIENT_IN, _GRADIENT_OUT = range(4)
_SLOTS_PER_CHUNK = 4


class StageProgram(NamedTuple):
    """The steps of one stage, and what its spans mean."""

    steps: tuple[Step, ...]

    kinds: IntArray
    """Index into `SPAN_KINDS` of each span."""

    microbatches: IntArray
    """Of each span, -1 where there is none."""

    chunks: IntArray
    """Of each span, -1 where there is none."""


class _Tail(NamedTuple):
    """Slots of a stage's collectives after its last backward pass."""

    before: tuple[int, ...]
    """Gradients and tied embedding: one after another, then the optimizer step."""

    after: tuple[int, ...]
    """Parameter gather: one after another, after the optimizer step."""


def stage_programs(
    work: PipelineWork, flows: Flows, *, tick: float
) -> tuple[StageProgram, ...]:
    """Return the program of every stage.

    Raises
    ------
    InputError
        If the schedule does not exist or does not work with these sizes.
    """
    num_stages = work.devices.shape[0]
    schedule = find_schedule(work.schedule)
    lists = [
        schedule.instructions(stage, num_stages, work.num_microbatches, work.num_chunks)
        for stage in range(num_stages)
    ]
    return tuple(_stage_program(work, flows, lists, s, tick) for s in range(num_stages))


def actor_channels(flows: Flows, stage: int, replica: int) -> tuple[int, ...]:
    """Return the flow in each slot of the stage's program, for one replica."""
    num_stages = len(flows.reduce)
    last = len(flows.activation)
    slots: list[int] = []
    for k in range(stage, last + 1, num_stages):
        slots += (
            int(flows.activation[k - 1, replica]) if k > 0 else NONE,
            int(flows.activation[k, replica]) if k < last else NONE,
            int(flows.gradient[k, replica]) if k < last else NONE,
            int(flows.gradient[k - 1, replica]) if k > 0 else NONE,
        )
    tied = flows.tied if stage in {0, num_stages - 1} else ()
    return (*slots, *flows.reduce[stage], *tied, *flows.gather[stage])


def _stage_program(
    work: PipelineWork, flows: Flows, lists: list[Instructions], stage: int, tick: float
) -> StageProgram:
    own = lists[stage]
    passes = _chunk_passes(work, lists, stage, tick)
    steps = []
    for kind, microbatch, chunk in zip(
        *(column.tolist() for column in own), strict=True
    ):
        duration, source, target, order = passes[kind, chunk]
        need = order[microbatch] if source != NONE else 0
        steps.append(Step(duration, source, need, target, WHOLE))
    optimizer = quantise(float(work.optimizer_time[stage]), tick)
    tail = _tail(flows, stage, _SLOTS_PER_CHUNK * work.num_chunks)
    steps.extend(_tail_steps(tail, optimizer))
    return StageProgram(
        tuple(steps),
        np.append(own.kind, OPTIMIZER),
        np.append(own.microbatch, -1),
        np.append(own.chunk, -1),
    )


class _Passes(NamedTuple):
    """What the passes of one kind through one chunk have in common."""

    duration: float
    source: int
    target: int
    order: dict[int, int]
    """How many messages have come from the source when each microbatch's has."""


def _chunk_passes(
    work: PipelineWork, lists: list[Instructions], stage: int, tick: float
) -> dict[tuple[int, int], _Passes]:
    """Return the passes of a stage by kind and chunk."""
    last = work.num_chunks * len(lists) - 1
    passes = {}
    for chunk in range(work.num_chunks):
        k = chunk * len(lists) + stage
        slot = chunk * _SLOTS_PER_CHUNK
        passes[FORWARD, chunk] = _Passes(
            quantise(float(work.forward_time[k]), tick),
            slot + _ACTIVATION_IN if k > 0 else NONE,
            slot + _ACTIVATION_OUT if k < last else NONE,
            _arrival_order(lists, k - 1, FORWARD) if k > 0 else {},
        )
        passes[BACKWARD, chunk] = _Passes(
            quantise(float(work.backward_time[k]), tick),
            slot + _GRADIENT_IN if k < last else NONE,
            slot + _GRADIENT_OUT if k > 0 else NONE,
            _arrival_order(lists, k + 1, BACKWARD) if k < last else {},
        )
    return passes


def _arrival_order(lists: list[Instructions], sender: int, kind: int) -> dict[int, int]:
    """Return how many messages have come when that of each microbatch has.

    The passes of that kind through the sending virtual stage send them, in its order.
    """
    chunk, stage = divmod(sender, len(lists))
    own = lists[stage]
    sent = own.microbatch[(own.kind == kind) & (own.chunk == chunk)]
    return {microbatch: count for count, microbatch in enumerate(sent.tolist(), 1)}


def _tail(flows: Flows, stage: int, first: int) -> _Tail:
    """Give the stage's collectives slots, from the first one free."""
    tied = len(flows.tied) if stage in {0, len(flows.reduce) - 1} else 0
    num_before = len(flows.reduce[stage]) + tied
    slots = range(first, first + num_before + len(flows.gather[stage]))
    return _Tail(tuple(slots[:num_before]), tuple(slots[num_before:]))


def _tail_steps(tail: _Tail, optimizer: float) -> list[Step]:
    """Each collective waits for the one before; the optimizer step lies between."""
    steps = []
    pending = NONE
    for slot in tail.before:
        steps.append(Step(0.0, pending, 1, slot, 0))
        pending = slot
    following = tail.after[0] if tail.after else NONE
    steps.append(Step(optimizer, pending, 1, following, WHOLE))
    followers = (*tail.after[1:], NONE)[: len(tail.after)]
    for slot, follower in zip(tail.after, followers, strict=True):
        steps.append(Step(0.0, slot, 1, follower, 0))
    return steps
