"""The state of a run of the compiled engine at one moment."""

import numpy as np

from nestsim.simulator.kernels import fluid
from topologies.arrays import FloatArray, FloatMatrix, FloatVector, IntArray, IntMatrix
from topologies.compiling import kernel

_ACTIVE = fluid.ACTIVE
_ARRIVED = fluid.ARRIVED
_AT_WORK = fluid.AT_WORK
_FIRST_MESSAGE = fluid.FIRST_MESSAGE
_MISSING = fluid.MISSING
_NUM_ARRIVED = fluid.NUM_ARRIVED
_NUM_BEGUN = fluid.NUM_BEGUN
_NUM_LEFT = fluid.NUM_LEFT
_NUM_POSTED = fluid.NUM_POSTED
_RATE = fluid.RATE
_REMAINING = fluid.REMAINING
_SINCE = fluid.SINCE


@kernel
def snapshot(
    now: float,
    delay: float,
    actors: IntMatrix,
    channels: IntMatrix,
    messages: FloatMatrix,
    due: FloatVector,
    flow_state: FloatMatrix,
    flow_ints: IntMatrix,
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """Return what will happen next depends on, beside the positions of the actors.

    As the fields of `nestsim.simulator.steady.State`; for the arrays of the engine see
    `nestsim.simulator.kernels.fluid`. O(A + C + messages on their way).

    Returns
    -------
    tuple[FloatArray, IntArray, FloatArray, FloatArray]
        What is left of each step, shape ``(A,)``; messages posted, started and arrived
        and posts that are missing, shape ``(4, C)``; flows, shape ``(3, C)``; and the
        time until each message arrives that has left.
    """
    num_actors, num_channels = actors.shape[1], channels.shape[1]
    left = np.empty(num_actors)
    for a in range(num_actors):
        left[a] = due[a] - now if actors[_AT_WORK, a] > 0 else -1.0
    counts = np.empty((4, num_channels), np.int64)
    flows = np.zeros((3, num_channels))
    num_coming = 0
    for c in range(num_channels):
        counts[0, c] = channels[_NUM_POSTED, c]
        counts[1, c] = channels[_NUM_BEGUN, c]
        counts[2, c] = channels[_NUM_ARRIVED, c]
        counts[3, c] = channels[_MISSING, c]
        num_coming += channels[_NUM_LEFT, c] - channels[_NUM_ARRIVED, c]
        if flow_ints[_ACTIVE, c] > 0:
            flows[0, c] = flow_state[_REMAINING, c]
            flows[1, c] = flow_state[_RATE, c]
            flows[2, c] = now - flow_state[_SINCE, c]
    coming = np.empty(num_coming)
    i = 0
    for c in range(num_channels):
        first = channels[_FIRST_MESSAGE, c]
        for n in range(channels[_NUM_ARRIVED, c], channels[_NUM_LEFT, c]):
            coming[i] = messages[_ARRIVED, first + n] - (now + delay)
            i += 1
    return left, counts, flows, coming
