"""What a simulated iteration consists of, cause by cause.

Four exact timelines of the same schedule and passes, one inside the other, and the
differences between them. The passes are those of the replica whose slowest stage works
longest (the first one of equals), each stage's as long as it took them on average:

- the work of its mean stage: ``"passes"``, collectives inside layers included;
- all stages alike, nothing sent between them: what is added is the ``"bubble"``;
- its stages as they are, nothing sent: what is added is ``"stage imbalance"``;
- the replay until its last pass ends: what is added is ``"transfers"``, the wait for
  messages, with all contention and with what replicas do to each other;
- the replay: what is added is the tail, of which ``"optimizer"`` is as much as the
  longest optimizer step there, and ``"synchronisation"`` is the rest.

Differences are differences: bubbles aside, they can be negative.

Letters: ``p`` stages, ``d`` replicas, ``v`` chunks of each stage, ``m`` microbatches.
"""

from collections.abc import Mapping

import numpy as np

from nestsim.simulator.outcome import SPAN_KINDS, Replay
from planner.step.schedules import SCHEDULES, Program
from topologies.arrays import FloatArray

CAUSES = (
    "passes",
    "bubble",
    "stage imbalance",
    "transfers",
    "synchronisation",
    "optimizer",
)
"""What an iteration consists of."""

_NUM_PASS_KINDS = 3


def iteration_causes(
    replay: Replay, schedule: str, num_microbatches: int
) -> Mapping[str, float]:
    """Return the simulated iteration by cause [s]; the parts add up to it.

    Parameters
    ----------
    replay
        What happened.
    schedule
        A name of `planner.step.schedules.SCHEDULES`.
    num_microbatches
        Of each replica.
    """
    num_stages = replay.stand_in.shape[0]
    durations = _pass_times(replay)
    balanced = np.broadcast_to(durations.mean(axis=1, keepdims=True), durations.shape)
    work = num_microbatches * float(durations.sum()) / num_stages
    sizes = num_stages, num_microbatches, durations.shape[1] // num_stages
    program = SCHEDULES[schedule].program(*sizes)
    alike = _end(program, num_microbatches, balanced.copy())
    alone = _end(program, num_microbatches, durations)
    tail = replay.iteration_time - replay.pipeline_time
    optimizer = _longest_optimizer(replay)
    parts = (
        work,
        alike - work,
        alone - alike,
        replay.pipeline_time - alone,
        tail - optimizer,
        optimizer,
    )
    return dict(zip(CAUSES, parts, strict=True))


def _pass_times(replay: Replay) -> FloatArray:
    """Return the mean times of the slowest replica's passes, shape ``(3, v p)`` [s]."""
    spans = replay.spans
    num_stages, num_replicas = replay.stand_in.shape
    num_chunks = int(spans.chunk.max(initial=0)) + 1
    rows = np.flatnonzero(spans.kind < _NUM_PASS_KINDS)
    shape = (num_stages, num_replicas, _NUM_PASS_KINDS, num_chunks)
    cells = np.ravel_multi_index(
        (
            spans.stage[rows],
            spans.replica[rows],
            spans.kind[rows],
            spans.chunk[rows],
        ),
        shape,
    )
    lengths = (spans.end - spans.start)[rows]
    size = int(np.prod(shape))
    total = np.bincount(cells, weights=lengths, minlength=size).reshape(shape)
    count = np.bincount(cells, minlength=size).reshape(shape)
    mean = total / np.maximum(count, 1)
    of_stage = np.arange(num_stages)[:, None]
    worked = mean.sum(axis=(2, 3))[of_stage, replay.stand_in]
    slowest = int(np.argmax(worked.max(axis=0)))
    # Virtual stage c p + i is chunk c of stage i.
    chosen = mean[np.arange(num_stages), replay.stand_in[:, slowest]]
    return np.ascontiguousarray(
        chosen.transpose(1, 2, 0).reshape(_NUM_PASS_KINDS, -1), dtype=np.float64
    )


def _end(program: Program, num_microbatches: int, durations: FloatArray) -> float:
    """Return when the last pass ends if messages take no time [s]."""
    from planner.kernels.timeline import timeline

    nothing = [np.zeros(durations.shape[1] - 1)] * 4
    status, _, _, ends = timeline(*program, num_microbatches, durations, *nothing)
    assert status == 0, "a schedule's instructions wait for each other"
    return float(ends.max())


def _longest_optimizer(replay: Replay) -> float:
    """Return the longest optimizer step, as far as it is behind the last pass [s]."""
    spans = replay.spans
    steps = spans.kind == SPAN_KINDS.index("optimizer")
    begin = np.maximum(spans.start[steps], replay.pipeline_time)
    return float(np.maximum(spans.end[steps] - begin, 0.0).max(initial=0.0))
