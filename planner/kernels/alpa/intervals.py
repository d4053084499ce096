"""The least cost of layers that follow each other on one mesh.

Letters: ``L`` layers, ``X`` states of the tensor between two layers, ``K`` kinds of
layers. A min-plus product of the layers' tables by state: ``V_j[y] = min_x V_(j - 1)[x]
+ W_j[x, y]``; what the choice needs of memory goes along.
"""

import numpy as np

from topologies.arrays import FloatArray, FloatCube, FloatHypercube, IntVector
from topologies.compiling import kernel


@kernel
def interval_costs(
    kinds: IntVector, cost: FloatCube, footprint: FloatHypercube
) -> tuple[FloatArray, FloatArray]:
    """Return the least time of every interval of layers, and its memory.

    Shapes: ``kinds (L,)``, ``cost (K, X, X)`` by the state in which a layer is entered
    and left [s], ``footprint (K, X, X, Q)``, of whose numbers the last one does not add
    up [byte]. Results ``(L, L)`` by the first and the last layer, infinite where there
    is nothing, and ``(L, L, Q)``. O(L^2 X^2).
    """
    num_layers = len(kinds)
    num_states, numbers = cost.shape[1], footprint.shape[3]
    time = np.full((num_layers, num_layers), np.inf)
    memory = np.zeros((num_layers, num_layers, numbers))
    value = np.zeros(num_states)
    held = np.zeros((num_states, numbers))
    new_value = np.zeros(num_states)
    new_held = np.zeros((num_states, numbers))
    for i in range(num_layers):
        for x in range(num_states):
            value[x] = 0.0
            for q in range(numbers):
                held[x, q] = 0.0
        for j in range(i, num_layers):
            kind = kinds[j]
            for y in range(num_states):
                best = 0
                least = np.inf
                for x in range(num_states):
                    total = value[x] + cost[kind, x, y]
                    if total < least:
                        least = total
                        best = x
                new_value[y] = least
                for q in range(numbers):
                    more = footprint[kind, best, y, q]
                    if q == numbers - 1:
                        new_held[y, q] = max(held[best, q], more)
                    else:
                        new_held[y, q] = held[best, q] + more
            for y in range(num_states):
                value[y] = new_value[y]
                for q in range(numbers):
                    held[y, q] = new_held[y, q]
                if value[y] < time[i, j]:
                    time[i, j] = value[y]
                    for q in range(numbers):
                        memory[i, j, q] = held[y, q]
    return time, memory
