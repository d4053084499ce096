"""The exact timeline of a plan's step on a network where transfers never meet.

Passes wait for each other as the schedule says, and for what is sent between stages.
Buckets of parameters arrive behind the first forward passes, buckets of gradients leave
behind the last passes (`planner.step.exposure`), and each stage ends with what is left
to reduce, the optimizer step and what is left to gather. A replay of the plan by stages
is the same if no two transfers meet, but for stages that stop for transfers between
them (``overlap_p2p_comm = false``): here these do not.

Replicas whose devices or transfers differ have timelines of their own. What a stage
sends once for all of its replicas, before its optimizer step or after, waits for the
last of them.

Compute of passes beside buckets is slowed down: from a stage's first gradient bucket
on, and in the first forward pass of the first stage if it waits for buckets.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from planner.cost.stage import StagePrice
from planner.kernels.timeline import (
    BoundaryTimes,
    InstructionLists,
    instruction_timeline,
)
from planner.step.exposure import first_pass_end, gathered_at, reduced_at
from planner.step.instructions import BACKWARD, FORWARD, WEIGHT, Program
from planner.step.plan import Plan
from planner.step.schedules import SCHEDULES
from topologies.arrays import FloatArray, IntArray


class StepEnds(NamedTuple):
    """When a step is over."""

    passes: float
    """End of the last pass of all stages [s]."""

    step: float
    """End of the last stage's duties after its passes [s]."""


class _Filled(NamedTuple):
    """When passes fill gradient buckets."""

    instructions: list[int]
    """Pass of each bucket."""
    after: list[float]
    """Time from the pass's begin on [s]."""


class AlikeReplicas(NamedTuple):
    """Replicas that are alike: their passes, and what they wait for."""

    timeline: "PlanTimeline"
    """Schedule and durations."""

    boundaries: FloatArray
    """Latency [s] and inverse bandwidth [s/byte] of activations and of gradients over
    the boundary after each stage, shape ``(p, 2, 2)``."""


class _Reached(NamedTuple):
    """How far passes bring the stages of replicas."""

    passes: FloatArray
    """End of each stage's last pass, shape ``(p,)`` [s]."""

    filled: tuple[FloatArray, ...]
    """When each stage's passes have filled each of its gradient buckets [s]."""


def last_pass(pipelines: Sequence[AlikeReplicas]) -> float:
    """Return the end of the last pass without what it does for parameters [s]."""
    return max(
        pipeline.timeline.last_pass(pipeline.boundaries) for pipeline in pipelines
    )


def step_ends(pipelines: Sequence[AlikeReplicas]) -> StepEnds:
    """Return when the passes and the step of all replicas are over.

    Parameters
    ----------
    pipelines
        Replicas that differ, each once.
    """
    reached = [pipeline.timeline.reached(pipeline.boundaries) for pipeline in pipelines]
    passes = np.max([one.passes for one in reached], axis=0)
    # What is sent does not depend on the devices: it is that of any replica.
    stages = pipelines[0].timeline.stages
    reduced = passes.copy()
    waits = np.zeros(len(stages), dtype=np.bool_)
    for number, stage in enumerate(stages):
        moments = np.max([one.filled[number] for one in reached], axis=0)
        free = float(sum(bucket.time for bucket in stage.gathers))
        if moments.size:
            end = reduced_at(stage.reduces, moments, free)
            reduced[number] = max(end, passes[number])
        reduced[number] += stage.reduce_time
        waits[number] = bool(moments.size) or stage.reduce_time > 0.0
    tied = stages[0].cost.tied_time
    if tied > 0.0:
        reduced[[0, -1]] = max(reduced[0], reduced[-1]) + tied
        waits[[0, -1]] = True
    end = 0.0
    for one, own in zip(pipelines, reached, strict=True):
        ready = np.where(waits, reduced, own.passes)
        after = [
            stage.cost.optimizer_time + stage.cost.crowding_time + stage.gather_time
            for stage in one.timeline.stages
        ]
        end = max(end, float((ready + after).max()))
    return StepEnds(float(passes.max()), end)


class PlanTimeline:
    """The instructions of a plan's stages, and how long each takes.

    Parameters
    ----------
    plan, stages
        Schedule and durations.
    slowdown
        Factor on compute beside buckets.
    """

    def __init__(
        self, plan: Plan, stages: Sequence[StagePrice], slowdown: float
    ) -> None:
        self.plan, self.stages, self.slowdown = plan, stages, slowdown
        p, v = len(stages), plan.virtual_pipeline_model_parallel_size
        schedule = SCHEDULES[plan.schedule]
        self.completing = WEIGHT if schedule.splits_backward else BACKWARD
        self.program: Program = schedule.program(p, plan.num_microbatches, v)
        self.virtual = schedule.virtual_stages(p, v)
        self.chunk = self.virtual.chunk[self.program.virtual_stage]
        order = zip(
            self.virtual.stage.tolist(), self.virtual.chunk.tolist(), strict=True
        )
        times = np.array([stages[s].cost.chunk_times[c] for s, c in order]).T
        self.written = schedule.written_kinds(
            self.program.kind,
            self.program.virtual_stage,
            self.program.indptr,
            first=plan.has_second_copies,
        )
        self.plain = np.ascontiguousarray(
            times[self.written, self.program.virtual_stage]
        )
        self.nothing = np.zeros(self.plain.size)

    def busy(self, stage: int) -> float:
        """Return what the passes of a stage take, paired ones as pairs [s]."""
        first, end = self.program.indptr[stage : stage + 2].tolist()
        return float(self.plain[first:end].sum())

    def last_pass(self, boundaries: FloatArray) -> float:
        """Return the end of the last pass without what it does for parameters [s].

        ``boundaries`` as in `AlikeReplicas`.
        """
        return float(self._run(boundaries, self.plain, self.nothing)[1].max())

    def reached(self, boundaries: FloatArray) -> _Reached:
        """Return how far passes bring the stages.

        ``boundaries`` as in `AlikeReplicas`.
        """
        durations, floors = self.plain.copy(), self.nothing.copy()
        filled = [
            self._stage(stage, durations, floors) for stage in range(len(self.stages))
        ]
        starts, passes = self._run(boundaries, durations, floors)
        return _Reached(
            passes,
            tuple(starts[fills.instructions] + fills.after for fills in filled),
        )

    def _stage(self, number: int, durations: FloatArray, floors: FloatArray) -> _Filled:
        """Let a stage's passes wait for buckets and fill them; say which one when."""
        stage = self.stages[number]
        positions = slice(*self.program.indptr[number : number + 2].tolist())
        if stage.gathers:
            arrivals = gathered_at(stage.gathers)
            for chunk in sorted({bucket.chunk for bucket in stage.gathers}):
                first = positions.start + int(
                    self._places(positions, FORWARD, chunk)[0]
                )
                if number == chunk == 0:
                    written = int(self.written[first])
                    durations[first] *= self._beside(number, written, chunk)
                floors[first] = first_pass_end(
                    durations[first], stage.gathers, arrivals, chunk
                )
        fills = _Filled([], [])
        if not stage.reduces:
            return fills
        chunks = range(self.plan.virtual_pipeline_model_parallel_size)
        last = [
            positions.start + int(self._places(positions, self.completing, c)[-1])
            for c in chunks
        ]
        self._slow_down(number, slice(min(last) + 1, positions.stop), durations)
        for chunk, buckets in groupby(stage.reduces, lambda bucket: bucket.chunk):
            at, places = last[chunk], [bucket.at for bucket in buckets]
            whole = float(durations[at])
            if at == min(last):
                # Its compute is slower from the first bucket on.
                whole, begin = float(self.plain[at]), places[0]
                beside = self._beside(number, int(self.written[at]), chunk)
                durations[at] = (begin + (1.0 - begin) * beside) * whole
                places = [begin + (place - begin) * beside for place in places]
            fills.instructions.extend([at] * len(places))
            fills.after.extend([place * whole for place in places])
        return fills

    def _slow_down(self, number: int, rest: slice, durations: FloatArray) -> None:
        """Slow down the passes of a stage that follow its first gradient bucket."""
        if self.slowdown == 1.0:
            return
        kinds, chunks = self.written[rest], self.chunk[rest]
        for kind, chunk in set(zip(kinds.tolist(), chunks.tolist(), strict=True)):
            which = (kinds == kind) & (chunks == chunk)
            durations[rest][which] *= self._beside(number, kind, chunk)

    def _beside(self, number: int, kind: int, chunk: int) -> float:
        """Return what a pass beside buckets is longer by, a factor."""
        times = self.stages[number].passes[chunk][kind]
        share = times.worked / times.whole if times.whole else 1.0
        return 1.0 + (self.slowdown - 1.0) * share

    def _places(self, positions: slice, kind: int, chunk: int) -> IntArray:
        """Return where in its list a stage has passes of a kind."""
        is_one = (self.program.kind[positions] == kind) & (
            self.chunk[positions] == chunk
        )
        return np.flatnonzero(is_one)

    def _run(
        self, boundary: FloatArray, durations: FloatArray, floors: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the start of each instruction and the end of each stage's last [s]."""
        num_bytes = self.stages[0].cost.boundary_bytes
        laid = self.virtual.after_each(boundary)
        wire = laid[:, 1] * num_bytes
        starts: FloatArray
        ends: FloatArray
        status, starts, _, ends = instruction_timeline(
            InstructionLists(*self.program),
            self.plan.num_microbatches,
            durations,
            floors,
            BoundaryTimes(
                forward_wire=np.ascontiguousarray(wire[:, 0]),
                backward_wire=np.ascontiguousarray(wire[:, 1]),
                forward_latency=np.ascontiguousarray(laid[:, 0, 0]),
                backward_latency=np.ascontiguousarray(laid[:, 0, 1]),
            ),
        )
        assert status == 0, "a schedule's instructions wait for each other"
        return starts, ends
