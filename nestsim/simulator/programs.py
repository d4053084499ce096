"""What each stage does in a training step, as a list of steps.

A step waits for the n-th message of a channel, works for a while, and posts to another
channel; how many messages it needs is known beforehand, so no queues are simulated.
Channels are named by *slots*: all replicas of a stage run one program, each with its
own table of channels. A class of alike replicas with a multiplicity would, too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.clock import quantise
from nestsim.simulator.flows import Flows
from nestsim.simulator.work import SPAN_KINDS, PipelineWork
from planner.schedules import BACKWARD, FORWARD, Instructions, find_schedule

IntArray = NDArray[np.int64]

NONE = -1
"""No slot, or no channel in a slot."""

OPTIMIZER = SPAN_KINDS.index("optimizer")

_ACTIVATION_IN, _ACTIVATION_OUT, _GRADIENT_IN, _GRADIENT_OUT = range(4)
_FIRST_COLLECTIVE = 4


class Step(NamedTuple):
    """One step of a program."""

    duration: float
    """A multiple of the tick [s]."""

    source: int
    """Slot of the channel to wait for, or `NONE`."""

    need: int
    """Messages that must have arrived there."""

    target: int
    """Slot of the channel to post to at the end, or `NONE`."""

    recorded: bool
    """Whether the step is work that shows as a span; others only wait or post."""


class StageProgram(NamedTuple):
    """The steps of one stage, and what its spans mean."""

    steps: tuple[Step, ...]

    kinds: IntArray
    """Index into `SPAN_KINDS` of each recorded step."""

    microbatches: IntArray
    """Of each recorded step, -1 where there is none."""


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
        If the schedule does not exist.
    """
    num_stages = work.devices.shape[0]
    schedule = find_schedule(work.schedule)
    lists = [
        schedule.instructions(stage, num_stages, work.num_microbatches)
        for stage in range(num_stages)
    ]
    return tuple(_stage_program(work, flows, lists, s, tick) for s in range(num_stages))


def actor_channels(flows: Flows, stage: int, replica: int) -> tuple[int, ...]:
    """Return the flow in each slot of the stage's program, for one replica."""
    last = len(flows.activation)
    before = stage > 0
    after = stage < last
    return (
        int(flows.activation[stage - 1, replica]) if before else NONE,
        int(flows.activation[stage, replica]) if after else NONE,
        int(flows.gradient[stage, replica]) if after else NONE,
        int(flows.gradient[stage - 1, replica]) if before else NONE,
        *flows.reduce[stage],
        *(flows.tied if stage in {0, last} else ()),
        *flows.gather[stage],
    )


def _stage_program(
    work: PipelineWork, flows: Flows, lists: list[Instructions], stage: int, tick: float
) -> StageProgram:
    own = lists[stage]
    last = len(lists) - 1
    arrivals = {
        _ACTIVATION_IN: _arrival_order(lists, stage - 1, FORWARD),
        _GRADIENT_IN: _arrival_order(lists, stage + 1, BACKWARD),
    }
    durations = (
        quantise(float(work.forward_time[stage]), tick),
        quantise(float(work.backward_time[stage]), tick),
    )
    steps = []
    for kind, microbatch in zip(
        own.kind.tolist(), own.microbatch.tolist(), strict=True
    ):
        if kind == FORWARD:
            source = _ACTIVATION_IN if stage > 0 else NONE
            target = _ACTIVATION_OUT if stage < last else NONE
        else:
            source = _GRADIENT_IN if stage < last else NONE
            target = _GRADIENT_OUT if stage > 0 else NONE
        need = arrivals[source][microbatch] if source != NONE else 0
        steps.append(Step(durations[kind], source, need, target, recorded=True))
    optimizer = quantise(float(work.optimizer_time[stage]), tick)
    steps.extend(_tail_steps(_tail(flows, stage, last), optimizer))
    return StageProgram(
        tuple(steps),
        np.append(own.kind, OPTIMIZER),
        np.append(own.microbatch, -1),
    )


def _arrival_order(lists: list[Instructions], sender: int, kind: int) -> dict[int, int]:
    """Return how many messages have come when that of each microbatch has.

    The sender's passes of that kind send them, in its order.
    """
    if not 0 <= sender < len(lists):
        return {}
    sent = lists[sender].microbatch[lists[sender].kind == kind]
    return {microbatch: count for count, microbatch in enumerate(sent.tolist(), 1)}


def _tail(flows: Flows, stage: int, last: int) -> _Tail:
    tied = len(flows.tied) if stage in {0, last} else 0
    num_before = len(flows.reduce[stage]) + tied
    slots = range(
        _FIRST_COLLECTIVE, _FIRST_COLLECTIVE + num_before + len(flows.gather[stage])
    )
    return _Tail(tuple(slots[:num_before]), tuple(slots[num_before:]))


def _tail_steps(tail: _Tail, optimizer: float) -> list[Step]:
    """Each collective waits for the one before; the optimizer step lies between."""
    steps = []
    pending = NONE
    for slot in tail.before:
        steps.append(Step(0.0, pending, 1, slot, recorded=False))
        pending = slot
    following = tail.after[0] if tail.after else NONE
    steps.append(Step(optimizer, pending, 1, following, recorded=True))
    followers = (*tail.after[1:], NONE)[: len(tail.after)]
    for slot, follower in zip(tail.after, followers, strict=True):
        steps.append(Step(0.0, slot, 1, follower, recorded=False))
    return steps
