"""The account of memory: every allocation and release of a worker, at its moment.

A forward pass allocates what its chunk saves for the backward pass, and its working
memory; it releases the latter when it ends. A backward pass allocates its working
memory and releases both when it ends.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nestsim.simulator.outcome import SPAN_KINDS, MemoryTimeline
from nestsim.simulator.programs import StageProgram
from nestsim.simulator.work import StageMemory

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_FORWARD = SPAN_KINDS.index("forward")
_BACKWARD = SPAN_KINDS.index("backward")


class _Account(NamedTuple):
    """What one worker holds after each allocation or release, in their order."""

    times: FloatArray
    saved: FloatArray
    working: FloatArray
    total: FloatArray


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
    best: _Account | None = None
    for starts, ends in workers:
        account = _account(memory, program, starts, ends)
        if best is None or account.total.max() > best.total.max():
            best = account
    assert best is not None
    at = int(np.argmax(best.total))
    # A release and an allocation at one moment leave no dip between them.
    hidden = (best.times[:-1] == best.times[1:]) & (best.total[:-1] <= best.total[1:])
    shown = np.append(~hidden, True)
    return MemoryTimeline(
        times=tuple(best.times[shown].tolist()),
        total=tuple(best.total[shown].tolist()),
        peak=float(best.total[at]),
        peak_time=float(best.times[at]),
        peak_parts={
            **memory.static,
            "activations": float(best.saved[at]),
            "working": float(best.working[at]),
        },
    )


def _account(
    memory: StageMemory, program: StageProgram, starts: FloatArray, ends: FloatArray
) -> _Account:
    """Write down the moment and the outcome of every change, from the step's start."""
    forward, backward = program.kinds == _FORWARD, program.kinds == _BACKWARD
    num_changes = 2 * program.kinds.size
    saved = np.zeros(num_changes)
    for chunk, num_bytes in enumerate(memory.saved_per_microbatch):
        # Whole microbatches are counted, so that the end is exactly the beginning.
        change = np.zeros(num_changes, dtype=np.int64)
        change[0::2] = forward & (program.chunks == chunk)
        change[1::2] -= backward & (program.chunks == chunk)
        saved += np.cumsum(change) * num_bytes
    working = np.zeros(num_changes)
    working[0::2] = (
        forward * memory.forward_working + backward * memory.backward_working
    )
    times = np.empty(num_changes)
    times[0::2], times[1::2] = starts, ends
    static = float(sum(memory.static.values()))
    return _Account(
        np.concatenate(([0.0], times)),
        np.concatenate(([0.0], saved)),
        np.concatenate(([0.0], working)),
        static + np.concatenate(([0.0], saved + working)),
    )
