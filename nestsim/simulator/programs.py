"""What each actor does in a training step, as a list of steps.

A step waits for the n-th message of a channel, works for a while, and posts to another
channel; how many messages it needs is known beforehand, so no queues are simulated.
All replicas of a stage run one program, but for slow devices, each with its own table
of channels (`nestsim.simulator.slots`). Buckets of parameters are reduced and gathered
by a second actor, the communication stream of the first: one collective after another,
beside the passes.

Letters: ``p`` stages, ``v`` chunks of each, ``d`` replicas. Virtual stage ``k`` is
chunk ``k div p`` of stage ``k mod p``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nestsim.simulator.outcome import SPAN_KINDS
from nestsim.simulator.slots import StageSlots
from nestsim.simulator.system import NONE, Step, Steps
from nestsim.simulator.work import PipelineWork
from nestsim.simulator.writer import Writer, pass_numbers
from planner.step.schedules import find_schedule
from topologies.arrays import FloatArray, IntArray

PASS_KINDS = ("forward", "backward", "weight")
"""Names in `SPAN_KINDS` of the kinds of `planner.step.schedules`, in their order."""

_SPAN_OF_KIND = np.array([SPAN_KINDS.index(name) for name in PASS_KINDS])

OPTIMIZER = SPAN_KINDS.index("optimizer")


class StageProgram(NamedTuple):
    """The steps of actors, and what their spans mean."""

    steps: Steps

    kinds: IntArray
    """Index into `SPAN_KINDS` of each span."""

    microbatches: IntArray
    """Of each span, -1 where there is none."""

    chunks: IntArray
    """Of each span, -1 where there is none."""


class Programs(NamedTuple):
    """The programs of all actors."""

    distinct: tuple[StageProgram, ...]
    """Every program once."""

    of_actor: IntArray
    """Index into `distinct`: actors stage by stage, replica by replica; then the
    communication streams of the stages in `streams`, in the same order."""

    streams: tuple[int, ...]
    """Stages whose actors have a communication stream."""


def build_programs(
    work: PipelineWork, slots: Sequence[StageSlots], *, tick: float
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
    numbers = [pass_numbers(own, work) for own in lists]
    distinct: list[StageProgram] = []
    of_actor, streams = [], []
    for stage, own in enumerate(lists):
        kinds = np.append(_SPAN_OF_KIND[own.kind], OPTIMIZER)
        meaning = kinds, np.append(own.microbatch, -1), np.append(own.chunk, -1)
        writer = Writer(work, own, numbers, stage, slots[stage])
        values, which = _values(work.slowdown[stage])
        of_actor.append(len(distinct) + which)
        distinct += [StageProgram(writer.write(v, tick), *meaning) for v in values]
    for stage, own_slots in enumerate(slots):
        steps = _stream(own_slots)
        if len(steps):
            streams.append(stage)
            of_actor.append(np.full(num_replicas, len(distinct)))
            nothing = np.zeros(0, dtype=np.int64)
            distinct.append(StageProgram(steps, nothing, nothing, nothing))
    return Programs(
        tuple(distinct), np.concatenate(of_actor).astype(np.int64), tuple(streams)
    )


def _values(slowdown: FloatArray) -> tuple[list[float], IntArray]:
    """Return what is distinct, rising, and which of it each replica has."""
    if (slowdown == slowdown[0]).all():
        return [float(slowdown[0])], np.zeros(slowdown.size, np.int64)
    values, which = np.unique(slowdown, return_inverse=True)
    return values.tolist(), which.ravel()


def _stream(slots: StageSlots) -> Steps:
    """Return the program of a stage's communication streams, empty if there is none.

    Gathers leave one after another from the beginning on; then each gradient bucket
    when it is full and the one before has been reduced.
    """
    steps: list[Step] = []
    posted: dict[int, int] = {}
    pending = NONE

    def post(slot: int) -> None:
        nonlocal pending
        steps.append(Step(0.0, pending, posted.get(pending, 0), slot, 0))
        posted[slot] = posted.get(slot, 0) + 1
        pending = slot

    for phases in slots.gather_buckets:
        for slot in phases:
            post(slot)
    for number, phases in enumerate(slots.reduce_buckets, 1):
        if pending != NONE:
            steps.append(Step(0.0, pending, posted[pending], NONE, 0))
        steps.append(Step(0.0, slots.signal, number, phases[0], 0))
        posted[phases[0]] = posted.get(phases[0], 0) + 1
        pending = phases[0]
        for slot in phases[1:]:
            post(slot)
    return Steps.of(steps)
