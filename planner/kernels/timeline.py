"""Exact timeline of a pipeline whose transfers do not compete: a max-plus recurrence.

Letters: ``p`` stages, ``m`` microbatches, ``N`` instructions of all stages. Boundary
``s`` lies between stages ``s`` and ``s + 1``.

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5 (timed event graphs).
"""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

FORWARD = 0
BACKWARD = 1

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@numba.njit(cache=True, error_model="numpy")
def timeline(
    indptr: IntArray,
    kind: IntArray,
    microbatch: IntArray,
    num_microbatches: int,
    forward_time: FloatArray,
    backward_time: FloatArray,
    forward_wire: FloatArray,
    backward_wire: FloatArray,
    forward_latency: FloatArray,
    backward_latency: FloatArray,
) -> Any:
    """Return when every instruction starts and ends, transfers being asynchronous.

    With ``o`` a position in the list of stage ``i``, ``k`` the microbatch there, and
    ``ch`` the channel that an instruction sends on (one for each boundary and
    direction, first in, first out)::

        start(i, o)  = max(end(i, o - 1), arrive(in))     end = start + duration
        leave(ch, k) = max(end of the sender's instruction, leave(ch, before k)) + wire
        arrive(ch, k) = leave(ch, k) + latency

    ``in`` of a forward pass is the activation from stage ``i - 1``, of a backward pass
    the gradient from stage ``i + 1``; the first stage's forward and the last stage's
    backward passes wait for their own stage only, and so the last stage's list must
    have each backward pass after its forward pass. Stages are swept up and down, each
    as far as it can go, until nothing moves: O(N + p (p + m)) for 1F1B and GPipe.

    Parameters
    ----------
    indptr, kind, microbatch
        Instruction lists of the stages in compressed rows, shapes ``(p + 1,)``,
        ``(N,)``, ``(N,)``; kind 0 forward, 1 backward.
    num_microbatches
        ``m``; each stage has one forward and one backward pass of each.
    forward_time, backward_time
        Durations, shape ``(p,)`` [s].
    forward_wire, backward_wire
        Bytes over bandwidth at each boundary, shape ``(p - 1,)`` [s].
    forward_latency, backward_latency
        Added after the last byte, not occupying the channel, shape ``(p - 1,)`` [s].

    Returns
    -------
    tuple
        ``(status, start, end, stage_end)``: status 0, or 1 if the lists wait for each
        other in a circle; start and end of each instruction, shape ``(N,)`` [s]; end
        of each stage's last instruction, shape ``(p,)`` [s]. There are no ties to
        break: the recurrence has one solution.
    """
    num_stages = indptr.shape[0] - 1
    start = np.zeros(kind.shape[0])
    end = np.zeros(kind.shape[0])
    stage_end = np.zeros(num_stages)
    activation = np.full((num_stages, num_microbatches), np.inf)
    gradient = np.full((num_stages, num_microbatches), np.inf)
    activation[0, :] = 0.0
    gradient[num_stages - 1, :] = 0.0
    activation_left = np.zeros(num_stages)
    gradient_left = np.zeros(num_stages)
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
                if kind[o] == FORWARD:
                    ready = activation[i, k]
                    duration = forward_time[i]
                else:
                    ready = gradient[i, k]
                    duration = backward_time[i]
                if ready == np.inf:
                    break
                start[o] = max(stage_end[i], ready)
                end[o] = start[o] + duration
                stage_end[i] = end[o]
                if kind[o] == FORWARD and i < num_stages - 1:
                    activation_left[i] = max(end[o], activation_left[i])
                    activation_left[i] += forward_wire[i]
                    activation[i + 1, k] = activation_left[i] + forward_latency[i]
                elif kind[o] == BACKWARD and i > 0:
                    gradient_left[i] = max(end[o], gradient_left[i])
                    gradient_left[i] += backward_wire[i - 1]
                    gradient[i - 1, k] = gradient_left[i] + backward_latency[i - 1]
                position[i] += 1
                num_done += 1
                moved = True
        upwards = not upwards
    status = 0 if num_done == kind.shape[0] else 1
    return status, start, end, stage_end
