"""The account of memory: every allocation and release of a worker, at its moment.

What is held for a purpose is allocated when a pass of one kind starts and released when
a pass of the same or another kind, of the same chunk and microbatch, ends. So moments
within a pass are not told apart: all that it works with is alive from its start to its
end. What the optimizer makes for its step is there from the end of the last pass on.
"""

from collections.abc import Sequence

import numpy as np

from nestsim.simulator.outcome import SPAN_KINDS, MemoryTimeline
from nestsim.simulator.programs import PASS_KINDS, StageProgram
from nestsim.simulator.work import StageMemory
from topologies.arrays import FloatArray


def stage_memory_timeline(
    memory: StageMemory,
    program: StageProgram,
    workers: Sequence[tuple[FloatArray, FloatArray]],
) -> MemoryTimeline:
    """Return the timeline of the worker with the largest peak, the first of equals.

    Parameters
    ----------
    memory
        What one device of the stage allocates [byte].
    program
        What its spans are, in the workers' order of work.
    workers
        Start and end of each span, for each replica of the stage [s].
    """
    parts = _parts(memory, program)
    for name, num_bytes in memory.step_end.items():
        parts[name] = np.zeros(2 * program.kinds.size + 1)
        parts[name][-1] = num_bytes
    static = float(sum(memory.static.values()))
    total = np.full(2 * program.kinds.size + 1, static)
    for held in parts.values():
        total += held
    # All workers do the same in the same order: they differ in moments alone.
    starts, ends = workers[0]
    times = np.zeros(total.size)
    times[1::2], times[2::2] = starts, ends
    at = int(np.argmax(total))
    # A release and an allocation at one moment leave no dip between them.
    hidden = (times[:-1] == times[1:]) & (total[:-1] <= total[1:])
    shown = np.append(~hidden, True)
    return MemoryTimeline(
        times=tuple(times[shown].tolist()),
        total=tuple(total[shown].tolist()),
        peak=float(total[at]),
        peak_time=float(times[at]),
        peak_parts={
            **memory.static,
            **{name: float(held[at]) for name, held in parts.items()},
        },
    )


def _parts(memory: StageMemory, program: StageProgram) -> dict[str, FloatArray]:
    """Return what is held of each part after each change, from the step's start on.

    Changes are the start and the end of each span in turn.
    """
    kinds = [SPAN_KINDS.index(name) for name in PASS_KINDS]
    num_changes = 2 * program.kinds.size
    parts: dict[str, FloatArray] = {}
    for part, chunk, begin, end, num_bytes in memory.held:
        of_chunk = program.chunks == chunk
        # Whole microbatches are counted, so that the end is exactly the beginning.
        change = np.zeros(num_changes + 1, dtype=np.int64)
        change[1::2] = of_chunk & (program.kinds == kinds[begin])
        change[2::2] -= of_chunk & (program.kinds == kinds[end])
        parts.setdefault(part, np.zeros(num_changes + 1))
        parts[part] += np.cumsum(change) * num_bytes
    return parts
