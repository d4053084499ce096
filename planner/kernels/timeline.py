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

from topologies.arrays import FloatMatrix, FloatVector, IntVector
from topologies.compiling import kernel

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
    indptr, kind, microbatch, virtual_stage = lists
    forward_wire, backward_wire, forward_latency, backward_latency = boundaries
    num_stages = indptr.shape[0] - 1
    last = forward_wire.shape[0]
    start = np.zeros(kind.shape[0])
    end = np.zeros(kind.shape[0])
    stage_end = np.zeros(num_stages)
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
    status = 0 if num_done == kind.shape[0] else 1
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
    floors = np.zeros(each.size)
    return instruction_timeline(lists, num_microbatches, each, floors, boundaries)
