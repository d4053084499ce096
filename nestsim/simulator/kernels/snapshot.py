"""The state of a run of the compiled engine at one moment."""

import numpy as np

from nestsim.simulator.kernels.fluid import (
    ACTIVE,
    ARRIVED,
    AT_WORK,
    FIRST_MESSAGE,
    MISSING,
    NUM_ARRIVED,
    NUM_BEGUN,
    NUM_LEFT,
    NUM_POSTED,
    RATE,
    REMAINING,
    SINCE,
)
from topologies.arrays import FloatArray, FloatMatrix, FloatVector, IntArray, IntMatrix
from topologies.compiling import kernel


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

    As the fields of `nestsim.simulator.states.State`; for the arrays of the engine see
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
        left[a] = due[a] - now if actors[AT_WORK, a] > 0 else -1.0
    counts = np.empty((4, num_channels), np.int64)
    flows = np.zeros((3, num_channels))
    num_coming = 0
    for c in range(num_channels):
        counts[0, c] = channels[NUM_POSTED, c]
        counts[1, c] = channels[NUM_BEGUN, c]
        counts[2, c] = channels[NUM_ARRIVED, c]
        counts[3, c] = channels[MISSING, c]
        num_coming += channels[NUM_LEFT, c] - channels[NUM_ARRIVED, c]
        if flow_ints[ACTIVE, c] > 0:
            flows[0, c] = flow_state[REMAINING, c]
            flows[1, c] = flow_state[RATE, c]
            flows[2, c] = now - flow_state[SINCE, c]
    coming = np.empty(num_coming)
    i = 0
    for c in range(num_channels):
        first = channels[FIRST_MESSAGE, c]
        for n in range(channels[NUM_ARRIVED, c], channels[NUM_LEFT, c]):
            coming[i] = messages[ARRIVED, first + n] - (now + delay)
            i += 1
    return left, counts, flows, coming
