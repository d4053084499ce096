"""Kernels of rivals: Phaze's program, Alpa's stages, and every split of a chain.

Phaze's dynamic program over suffixes of a chain, on a network of one bandwidth [1]_.
Letters: ``L`` layers, ``K`` interval classes, ``s`` stages counted from the *end*,
``i`` the first layer of a suffix, ``c`` the time of a boundary in one direction. With
``fw`` and ``bw`` the passes of the interval ``i .. j - 1`` and ``again`` its repeated
forward pass, which hides the gradient that comes in::

    load(i, j, s) = [i > 0] c + fw + bw + max(again, [j < L] c)
    g[s, i] = min over j > i of max( load(i, j, s), g[s - 1, j] ),   g[0, L] = 0

over the intervals that memory allows at ``s``. Every stage has the same devices, so
that devices need no index of their own. Ties go to the earliest cut.

Alpa's layers that follow each other on a mesh. Letters: ``L`` layers, ``X`` states of
the tensor between two layers, ``K`` kinds of layers. A min-plus product of the layers'
tables by state: ``V_j[y] = min_x V_(j - 1)[x] + W_j[x, y]``; what the choice needs of
memory goes along.

Alpa's stages of a pipeline whose slowest one stays below a ceiling. Letters: ``L``
units of layers, ``M`` submeshes, ``N`` devices, ``s`` stages counted from the *end*.
With ``t(i, j, m)`` the time of a stage of the units ``i .. j`` on a submesh of ``|m|``
devices, over stages that take at most the ceiling, and that memory allows with ``s -
1`` later ones ([2]_, section 5)::

    F[s, i, D] = min over j >= i, m of t(i, j, m) + F[s - 1, j + 1, D - |m|]
    F[0, L, 0] = 0

Ties go to the earliest cut, then to the smallest submesh.

The best split of a chain by trying every one. Letters: ``L`` layers, ``K`` interval
classes, ``p`` stages from the first to the last, ``C`` choices of recompute and ZeRO,
``F`` choices of a stage that no other one beats in both time and step end. With ``t_s``
and ``y_s`` the time and the step end of stage ``s``::

    T = ws sum_s t_s + wm max_s (t_s + x_s) + max_s y_s

Once the longest step end is given, stages are independent: each takes its fastest
choice with a step end at most as long. So every step end that some stage may have is
tried.

References
----------
.. [1] Wang et al., "Phaze", ICML 2024: the dynamic program; Tarnawski et al., "Piper",
   NeurIPS 2021, which it follows.
.. [2] Zheng et al., "Alpa", OSDI 2022.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatHypercube,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntCube,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel


@kernel
def phaze_tables(
    class_of: IntMatrix,
    passes: FloatMatrix,
    again: FloatMatrix,
    most: IntMatrix,
    transfer: float,
    max_stages: int,
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Return the bottleneck and the cut of every suffix, and loads of first stages.

    Shapes: ``class_of (L + 1, L + 1)``; row 0 for the last stage and row 1 for the
    others: ``passes`` and ``again (2, K)`` [s], ``most (2, K)`` the largest ``s`` that
    memory allows. All results ``(max_stages + 1, L + 1)``: bottlenecks, infinite where
    nothing fits; first layers of the following stage; loads of ``0 .. j - 1`` at ``s``.
    O(L^2 max_stages).
    """
    num_layers = class_of.shape[0] - 1
    shape = (max_stages + 1, num_layers + 1)
    bottleneck = np.full(shape, np.inf)
    following = np.zeros(shape, dtype=np.int64)
    leading = np.full(shape, np.inf)
    bottleneck[0, num_layers] = 0.0
    for s in range(1, max_stages + 1):
        row = 0 if s == 1 else 1
        for i in range(num_layers - s + 1):
            entering = transfer if i > 0 else 0.0
            first = i + 1 if s > 1 else num_layers
            for j in range(first, num_layers - s + 2):
                k = class_of[i, j]
                if s > most[row, k]:
                    continue
                leaving = transfer if j < num_layers else 0.0
                load = entering + passes[row, k] + max(again[row, k], leaving)
                if i == 0:
                    leading[s, j] = load
                value = max(load, bottleneck[s - 1, j])
                if value < bottleneck[s, i]:
                    bottleneck[s, i] = value
                    following[s, i] = j
    return bottleneck, following, leading


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
                        candidate = value + total[before, j + 1, devices - size]
                        if candidate < total[s, i, devices]:
                            total[s, i, devices] = candidate
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


class StagedChain(NamedTuple):
    """A chain and what its intervals cost, by stages from the first to the last.

    Requires ``1 <= p <= L``.
    """

    class_of: IntMatrix
    """Class of the interval ``i .. j - 1``, shape ``(L + 1, L + 1)``."""

    time: FloatCube
    """Time of one microbatch, by signature, choice and class, ``(sig, C, K)`` [s]."""

    step_end: FloatCube
    """Time after the last backward pass, by the same, ``(sig, C, K)`` [s]."""

    most_in_flight: IntCube
    """Passes in flight that memory allows, by memory, choice and class, ``(mem, C,
    K)``."""

    memory_row: IntVector
    """Row of `most_in_flight` of each stage, shape ``(p,)``."""

    signature: IntVector
    """Row of the times of each stage, shape ``(p,)``."""

    adder: FloatVector
    """What transfers add to a stage in the maximum, shape ``(p,)`` [s]."""

    tied: FloatVector
    """What tied embeddings add to each stage's step end, shape ``(p,)`` [s]."""

    in_flight: IntVector
    """Passes in flight at each stage, shape ``(p,)``."""

    sum_weight: float
    """Weight of the sum of the stages' times."""

    max_weight: float
    """Weight of the largest of them."""


@subkernel
def _fill_fronts(chain: StagedChain, front: IntCube, length: IntMatrix) -> None:
    """Fill the choices of every stage and class that none beats, fastest first.

    ``front (p, K, C)`` holds their numbers, ``length (p, K)`` how many there are. Of
    equal choices the first one stays. O(p K C^2).
    """
    time, step_end, tied = chain.time, chain.step_end, chain.tied
    signature, in_flight = chain.signature, chain.in_flight
    most_in_flight = chain.most_in_flight
    num_choices = most_in_flight.shape[1]
    for s in range(len(signature)):
        row, memory = signature[s], chain.memory_row[s]
        for k in range(most_in_flight.shape[2]):
            shortest = np.inf
            count = 0
            used = np.zeros(num_choices, dtype=np.bool_)
            while True:
                picked = -1
                for c in range(num_choices):
                    if used[c] or most_in_flight[memory, c, k] < in_flight[s]:
                        continue
                    if not step_end[row, c, k] + tied[s] < shortest:
                        continue
                    if (
                        picked < 0
                        or time[row, c, k] < time[row, picked, k]
                        or (
                            time[row, c, k] == time[row, picked, k]
                            and step_end[row, c, k] < step_end[row, picked, k]
                        )
                    ):
                        picked = c
                if picked < 0:
                    break
                used[picked] = True
                shortest = step_end[row, picked, k] + tied[s]
                front[s, k, count] = picked
                count += 1
            length[s, k] = count


@kernel
def best_split(chain: StagedChain) -> tuple[float, IntArray, IntArray]:
    """Return ``(T, bounds, choices)`` of the best split, infinity if none fits.

    Ties go to the split whose cuts come first in lexicographic order.
    O(binom(L - 1, p - 1) (p F)^2).
    """
    class_of, time, step_end = chain.class_of, chain.time, chain.step_end
    signature, adder, tied = chain.signature, chain.adder, chain.tied
    p = len(signature)
    num_layers = class_of.shape[0] - 1
    _, num_choices, num_classes = chain.most_in_flight.shape
    front = np.zeros((p, num_classes, num_choices), dtype=np.int64)
    length = np.zeros((p, num_classes), dtype=np.int64)
    _fill_fronts(chain, front, length)
    best = np.inf
    bounds = np.zeros(p + 1, dtype=np.int64)
    choices = np.zeros(p, dtype=np.int64)
    trial = np.arange(p + 1)
    trial[p] = num_layers
    picked = np.zeros(p, dtype=np.int64)
    classes = np.zeros(p, dtype=np.int64)
    while True:
        possible = True
        shortest = 0.0
        for s in range(p):
            k = class_of[trial[s], trial[s + 1]]
            classes[s] = k
            if length[s, k] == 0:
                possible = False
                break
            last = front[s, k, length[s, k] - 1]
            shortest = max(shortest, step_end[signature[s], last, k] + tied[s])
        for position in range(p if possible else 0):
            k = classes[position]
            for place in range(length[position, k]):
                longest = (
                    step_end[signature[position], front[position, k, place], k]
                    + tied[position]
                )
                if longest < shortest:
                    break
                total = 0.0
                most = -np.inf
                latest = 0.0
                for s in range(p):
                    j = classes[s]
                    row = signature[s]
                    turn = 0
                    while step_end[row, front[s, j, turn], j] + tied[s] > longest:
                        turn += 1
                    c = front[s, j, turn]
                    picked[s] = c
                    total += time[row, c, j]
                    most = max(most, time[row, c, j] + adder[s])
                    latest = max(latest, step_end[row, c, j] + tied[s])
                value = chain.sum_weight * total + chain.max_weight * most + latest
                if value < best:
                    best = value
                    bounds[:] = trial
                    choices[:] = picked
        # The next split: the last cut that can move does, those after it close up.
        cut = p - 1
        while cut > 0 and trial[cut] == num_layers - (p - cut):
            cut -= 1
        if cut <= 0:
            return best, bounds, choices
        trial[cut] += 1
        for later in range(cut + 1, p):
            trial[later] = trial[later - 1] + 1
