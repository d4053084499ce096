"""Kernels of Alpa: layers on one mesh, and stages of a pipeline below a ceiling.

Layers that follow each other on a mesh. Letters: ``L`` layers, ``X`` states of the
tensor between two layers, ``K`` kinds of layers. A min-plus product of the layers'
tables by state: ``V_j[y] = min_x V_(j - 1)[x] + W_j[x, y]``; what the choice needs of
memory goes along.

The stages of a pipeline whose slowest one stays below a ceiling.

Letters: ``L`` units of layers, ``M`` submeshes, ``N`` devices, ``s`` stages counted
from the *end*. With ``t(i, j, m)`` the time of a stage of the units ``i .. j`` on a
submesh of ``|m|`` devices, over stages that take at most the ceiling, and that memory
allows with ``s - 1`` later ones ([1]_, section 5)::

    F[s, i, D] = min over j >= i, m of t(i, j, m) + F[s - 1, j + 1, D - |m|]
    F[0, L, 0] = 0

Ties go to the earliest cut, then to the smallest submesh.

References
----------
.. [1] Zheng et al., "Alpa", OSDI 2022.
"""

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatHypercube,
    FloatMatrix,
    IntArray,
    IntMatrix,
    IntVector,
)
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


@kernel
def equal_stages(
    time: FloatMatrix, most_later: IntMatrix, num_stages: int, ceiling: float
) -> tuple[float, IntArray]:
    """Return the least sum of stages that have equally many devices, and the cuts.

    Shapes: ``time`` and ``most_later (L, L)`` [s]. The cuts are the first unit of each
    stage, and ``L``; the sum is infinite where nothing is allowed. O(L^2 num_stages).
    """
    num_units = len(time)
    total = np.full((num_stages + 1, num_units + 1), np.inf)
    following = np.zeros((num_stages + 1, num_units + 1), dtype=np.int64)
    total[0, num_units] = 0.0
    for s in range(1, num_stages + 1):
        for i in range(num_units - s + 1):
            for j in range(i, num_units):
                if time[i, j] > ceiling or most_later[i, j] < s - 1:
                    continue
                value = time[i, j] + total[s - 1, j + 1]
                if value < total[s, i]:
                    total[s, i] = value
                    following[s, i] = j + 1
    cuts = np.zeros(num_stages + 1, dtype=np.int64)
    if np.isfinite(total[num_stages, 0]):
        for s in range(num_stages, 0, -1):
            cuts[num_stages - s + 1] = following[s, cuts[num_stages - s]]
    return total[num_stages, 0], cuts


@kernel
def mixed_stages(
    times: FloatHypercube, sizes: IntVector, num_devices: int, ceiling: float
) -> tuple[float, IntArray]:
    """Return the least sum of stages on submeshes that use every device.

    Shapes: ``times (S, M, L, L)`` by the number of later stages, the last row for all
    numbers from there on; infinite where memory does not allow it [s]; ``sizes (M,)``.
    The rows of the result are the first unit and the submesh of each stage, and ``(L,
    -1)``; no row if nothing is allowed. O(P L^2 N M) with ``P`` stages at most, one if
    ``S`` is 1: then how many stages follow is of no account.
    """
    num_rows, num_meshes, num_units, _ = times.shape
    most = 1 if num_rows == 1 else min(num_units, num_devices)
    shape = (most + 1, num_units + 1, num_devices + 1)
    total = np.full(shape, np.inf)
    end = np.zeros(shape, dtype=np.int64)
    mesh = np.full(shape, -1, dtype=np.int64)
    total[0, num_units, 0] = 0.0
    is_free = num_rows == 1
    if is_free:
        total[1, num_units, 0] = 0.0
    for s in range(1, most + 1):
        row = min(s - 1, num_rows - 1)
        before = s if is_free else s - 1
        for i in range(num_units - 1, -1, -1):
            for j in range(i, num_units):
                for m in range(num_meshes):
                    value = times[row, m, i, j]
                    if value > ceiling:
                        continue
                    size = sizes[m]
                    for devices in range(size, num_devices + 1):
                        found = value + total[before, j + 1, devices - size]
                        if found < total[s, i, devices]:
                            total[s, i, devices] = found
                            end[s, i, devices] = j + 1
                            mesh[s, i, devices] = m
    best = 1
    for s in range(2, most + 1):
        if total[s, 0, num_devices] < total[best, 0, num_devices]:
            best = s
    value = total[best, 0, num_devices]
    stages = np.full((num_units + 1, 2), -1, dtype=np.int64)
    if not np.isfinite(value):
        return value, stages[:0]
    unit, devices, s, count = 0, num_devices, best, 0
    while unit < num_units:
        m = mesh[s, unit, devices]
        stages[count, 0] = unit
        stages[count, 1] = m
        unit, devices = end[s, unit, devices], devices - sizes[m]
        s = s if is_free else s - 1
        count += 1
    stages[count, 0] = num_units
    return value, stages[: count + 1]
