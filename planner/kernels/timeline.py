"""Exact timeline of a pipeline whose transfers do not compete: a max-plus recurrence.

Letters: ``p`` stages, ``m`` microbatches, ``v`` chunks of each stage, ``N``
instructions of all stages. Boundary ``s`` lies between virtual stages ``s`` and
``s + 1``, wherever a schedule has put these.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5 (timed event graphs).
"""

from typing import Any, NamedTuple

import numpy as np

from topologies.arrays import FloatMatrix, FloatVector, IntArray, IntVector
from topologies.compiling import kernel, subkernel

FORWARD = 0
BACKWARD = 1


class InstructionLists(NamedTuple):
    """What the stages do, in compressed rows: one list after another."""

    indptr: IntVector
    """Where the list of each stage begins, shape ``(p + 1,)``."""

    kind: IntVector
    """0 forward, 1 backward, 2 weight gradients, shape ``(N,)``."""

    microbatch: IntVector
    """Microbatch of the pass, from 0, shape ``(N,)``."""

    virtual_stage: IntVector
    """Virtual stage of the pass, from 0 in the order of the chain, shape ``(N,)``."""


class BoundaryTimes(NamedTuple):
    """Transfers over the boundaries between virtual stages, ``(v p - 1,)`` each."""

    forward_wire: FloatVector
    """Bytes of an activation over bandwidth [s]."""

    backward_wire: FloatVector
    """Bytes of a gradient over bandwidth [s]."""

    forward_latency: FloatVector
    """Added after the last byte of an activation, not occupying the channel [s]."""

    backward_latency: FloatVector
    """The same of a gradient [s]."""


@subkernel
def _sweep(
    lists: InstructionLists,
    num_microbatches: int,
    durations: FloatVector,
    floors: FloatVector,
    boundaries: BoundaryTimes,
    start: FloatVector,
    end: FloatVector,
    stage_end: FloatVector,
) -> int:
    """Fill the arrays that `instruction_timeline` returns, zeros before; its status."""
    indptr, kind, microbatch, virtual_stage = lists
    forward_wire, backward_wire, forward_latency, backward_latency = boundaries
    num_stages = indptr.shape[0] - 1
    last = forward_wire.shape[0]
    activation = np.empty((last + 1, num_microbatches))
    gradient = np.empty((last + 1, num_microbatches))
    for s in range(last + 1):
        for k in range(num_microbatches):
            activation[s, k] = 0.0 if s == 0 else np.inf
            gradient[s, k] = 0.0 if s == last else np.inf
    activation_left = np.zeros(last + 1)
    gradient_left = np.zeros(last + 1)
    position = indptr[:-1].copy()
    num_done = 0
    upwards = True
    moved = True
    while moved:
        moved = False
        for step in range(num_stages):
            i = step if upwards else num_stages - 1 - step
            while position[i] < indptr[i + 1]:
                o = position[i]
                k = microbatch[o]
                s = virtual_stage[o]
                ready = 0.0
                if kind[o] == FORWARD:
                    ready = activation[s, k]
                elif kind[o] == BACKWARD:
                    ready = gradient[s, k]
                if ready == np.inf:
                    break
                start[o] = max(stage_end[i], ready)
                end[o] = max(start[o] + durations[o], floors[o])
                stage_end[i] = end[o]
                if kind[o] == FORWARD and s < last:
                    activation_left[s] = max(end[o], activation_left[s])
                    activation_left[s] += forward_wire[s]
                    activation[s + 1, k] = activation_left[s] + forward_latency[s]
                elif kind[o] == BACKWARD and s > 0:
                    gradient_left[s] = max(end[o], gradient_left[s])
                    gradient_left[s] += backward_wire[s - 1]
                    gradient[s - 1, k] = gradient_left[s] + backward_latency[s - 1]
                position[i] += 1
                num_done += 1
                moved = True
        upwards = not upwards
    return 0 if num_done == kind.shape[0] else 1


@kernel
def instruction_timeline(
    lists: InstructionLists,
    num_microbatches: int,
    durations: FloatVector,
    floors: FloatVector,
    boundaries: BoundaryTimes,
) -> Any:
    """Return when every instruction starts and ends, transfers being asynchronous.

    With ``o`` a position in the list of stage ``i``, ``k`` the microbatch and ``s`` the
    virtual stage there, and ``ch`` the channel that an instruction sends on (one for
    each boundary and direction, first in, first out)::

        start(i, o)  = max(end(i, o - 1), arrive(in))
        end(i, o)    = max(start(i, o) + duration(i, o), floor(i, o))
        leave(ch, k) = max(end of the sender's instruction, leave(ch, before k)) + wire
        arrive(ch, k) = leave(ch, k) + latency

    ``in`` of a forward pass is the activation from virtual stage ``s - 1``, of a
    backward pass the gradient from virtual stage ``s + 1``. Weight gradients, the first
    virtual stage's forward and the last one's backward passes wait for their own stage
    only, and so each list must have a microbatch's weight gradients after its backward
    pass, and the last stage's list each of these backward passes after its forward
    pass. Stages are swept up and down, each as far as it can go, until nothing moves:
    O(N + p (p + m)) for 1F1B, ZB-H1 and GPipe. Interleaved 1F1B took at most ``m v +
    2 p`` sweeps wherever measured, which is O(N + p^2).

    Parameters
    ----------
    lists
        Instructions of the stages.
    num_microbatches
        ``m``; each virtual stage has one forward and one backward pass of each.
    durations
        Of each instruction, shape ``(N,)`` [s].
    floors
        Moments before which instructions do not end, shape ``(N,)`` [s].
    boundaries
        Transfers between virtual stages.

    Returns
    -------
    tuple
        ``(status, start, end, stage_end)``: status 0, or 1 if the lists wait for each
        other in a circle; start and end of each instruction, shape ``(N,)`` [s]; end
        of each stage's last instruction, shape ``(p,)`` [s]. There are no ties to
        break: the recurrence has one solution.
    """
    start, end = np.zeros(lists.kind.shape[0]), np.zeros(lists.kind.shape[0])
    stage_end = np.zeros(lists.indptr.shape[0] - 1)
    status = _sweep(
        lists, num_microbatches, durations, floors, boundaries, start, end, stage_end
    )
    return status, start, end, stage_end


@kernel
def timeline(
    lists: InstructionLists,
    num_microbatches: int,
    durations: FloatMatrix,
    boundaries: BoundaryTimes,
) -> Any:
    """Return when every instruction starts and ends, all passes of a kind alike.

    As `instruction_timeline`, without floors and with durations by kind and virtual
    stage, shape ``(3, v p)`` [s].
    """
    _, kind, _, virtual_stage = lists
    each = np.empty(kind.shape[0])
    for o in range(kind.shape[0]):
        each[o] = durations[kind[o], virtual_stage[o]]
    floors, start = np.zeros(each.shape[0]), np.zeros(each.shape[0])
    end = np.zeros(each.shape[0])
    stage_end = np.zeros(lists.indptr.shape[0] - 1)
    status = _sweep(
        lists, num_microbatches, each, floors, boundaries, start, end, stage_end
    )
    return status, start, end, stage_end


class MovableChain(NamedTuple):
    """A chain whose layers may be dealt out anew to ``C`` virtual stages."""

    layers: FloatMatrix
    """Weight of the layers in front of each, by what instructions are written as,
    shape ``(W, L + 1)``."""

    paces: FloatMatrix
    """Time of a virtual stage's passes over the weight of its layers, shape ``(W, C)``
    [s]."""

    written: IntVector
    """What each instruction is written as, shape ``(N,)``."""

    stage: IntVector
    """Stage of each virtual stage, shape ``(C,)``."""

    most: IntVector
    """Most layers of each stage, shape ``(p,)``."""

    least: IntVector
    """Fewest layers of each virtual stage, shape ``(C,)``."""

    parameters: FloatVector
    """Parameters of the layers in front of each, shape ``(L + 1,)``."""

    step_end: FloatMatrix
    """Time of each stage after its last pass [s], and for each of its parameters [s],
    shape ``(2, p)``."""


@subkernel
def _dealt_time(
    lists: InstructionLists,
    num_microbatches: int,
    chain: MovableChain,
    cuts: IntVector,
    boundaries: BoundaryTimes,
    more: int,
) -> float:
    """Return the end of the step, with ``more`` microbatches than are listed [s].

    These take as long as others of the middle of the first stage's list.
    """
    durations = np.empty(lists.kind.shape[0])
    for o in range(durations.shape[0]):
        k, w = lists.virtual_stage[o], chain.written[o]
        weight = chain.layers[w, cuts[k + 1]] - chain.layers[w, cuts[k]]
        durations[o] = weight * chain.paces[w, k]
    floors, start = np.zeros(durations.shape[0]), np.zeros(durations.shape[0])
    end = np.zeros(durations.shape[0])
    stage_end = np.zeros(lists.indptr.shape[0] - 1)
    _sweep(
        lists, num_microbatches, durations, floors, boundaries, start, end, stage_end
    )
    for k in range(chain.stage.shape[0]):
        held = chain.parameters[cuts[k + 1]] - chain.parameters[cuts[k]]
        stage_end[chain.stage[k]] += held * chain.step_end[1, chain.stage[k]]
    time: float = (stage_end + chain.step_end[0]).max()
    if more:
        first, half = lists.indptr[1], num_microbatches // 2
        a = first // 2 - (first // num_microbatches) * (half // 2)
        b = a + (first // num_microbatches) * half
        time += (end[b] - end[a]) * more / half
    return time


@kernel
def deal_anew(
    lists: InstructionLists,
    num_microbatches: int,
    chain: MovableChain,
    cuts: IntVector,
    boundaries: BoundaryTimes,
    most_steps: int,
    more: int,
) -> tuple[IntArray, float, int]:
    """Return cuts from which moving a layer gains nothing, their time, and the steps.

    From the cuts that are given single layers go from one virtual stage to another,
    whenever the timeline is then shorter, near ones first; none gets more than it may
    have, nor keeps fewer than it must. Steps are instructions that were
    looked at: O(N) for each move that is tried, until there are ``most_steps``. What
    remains may be no optimum; it is never slower than the beginning.

    Parameters
    ----------
    lists, num_microbatches, boundaries
        As for `instruction_timeline`.
    chain
        Layers, and who may have how many.
    cuts
        First layer of each virtual stage, and the number of layers, shape ``(C + 1,)``.
    most_steps
        Most steps.
    more
        Microbatches beyond those that are listed.
    """
    best = cuts.copy()
    trial = cuts.copy()
    count = chain.paces.shape[1]
    size = lists.kind.shape[0]
    held = np.zeros(chain.most.shape[0], dtype=np.int64)
    for k in range(count):
        held[chain.stage[k]] += cuts[k + 1] - cuts[k]
    time = _dealt_time(lists, num_microbatches, chain, cuts, boundaries, more)
    steps = size
    failed = 0
    distance = 1
    source = 0
    tries = 2 * count * (count - 1)
    while failed < tries and steps + size <= most_steps:
        target = source + distance
        failed += 1
        if 0 <= target < count:
            giver, taker = chain.stage[source], chain.stage[target]
            spare = best[source + 1] - best[source] - chain.least[source]
            if spare > 0 and (giver == taker or held[taker] < chain.most[taker]):
                step = -1 if target > source else 1
                for k in range(min(source, target) + 1, max(source, target) + 1):
                    trial[k] = best[k] + step
                value = _dealt_time(
                    lists, num_microbatches, chain, trial, boundaries, more
                )
                steps += size
                if value < time * (1.0 - 1e-9):
                    time = value
                    held[giver] -= 1
                    held[taker] += 1
                    best[:] = trial
                    failed = 0
                else:
                    trial[:] = best
        source += 1
        if source == count:
            source = 0
            distance = -distance if distance > 0 else 1 - distance
            if distance == count:
                distance = 1
    return best, time, steps
