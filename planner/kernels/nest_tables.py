"""Tables of every interval of a chain, in the cost model of the NEST artifact.

Letters: ``N`` nodes, ``E`` edges, ``L`` network levels. An interval ``[i, j)`` holds
nodes ``i`` to ``j - 1``; tables have shape ``(N, N + 1)``. Edges into node ``v`` are
entries ``in_start[v]`` to ``in_start[v + 1] - 1`` of ``in_node`` and ``in_bytes``,
edges out of it likewise. `planner.nest_artifact.costs` has the model in words; sums
here run in its order, so that both give the same bits.
"""

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel


@kernel
def memory_tables(
    parameters: FloatVector,
    activations: FloatVector,
    in_start: IntVector,
    in_node: IntVector,
    in_bytes: FloatVector,
    recompute: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return parameters, activations and stash of every interval, ``(N, N + 1)``.

    Edges into node ``v`` are entries ``in_start[v]`` to ``in_start[v + 1] - 1``. The
    stash is what comes in from outside with recompute, else all activations.
    O(N^2 + N E).
    """
    n = len(parameters)
    kept = np.zeros((n, n + 1))
    alive = np.zeros((n, n + 1))
    stash = np.zeros((n, n + 1))
    for i in range(n):
        for v in range(i, n):
            kept[i, v + 1] = kept[i, v] + parameters[v]
            alive[i, v + 1] = alive[i, v] + activations[v]
            if not recompute:
                stash[i, v + 1] = alive[i, v + 1]
                continue
            stash[i, v + 1] = stash[i, v]
            for e in range(in_start[v], in_start[v + 1]):
                if in_node[e] < i:
                    stash[i, v + 1] += in_bytes[e]
    return kept, alive, stash


@subkernel
def slots_of(constant: float, stash: float, limit: float, most: int) -> int:
    """Return how many microbatches in flight fit, at most about ``most``."""
    if constant + (most - 1) * stash <= limit:
        return most
    if constant > limit:
        return 0
    return 1 + int(np.floor((limit - constant) / stash))


@kernel
def fill_slots(
    kept: FloatMatrix,
    alive: FloatMatrix,
    stash: FloatMatrix,
    limit: float,
    num_devices: int,
    width: int,
    adam: bool,
    zero: bool,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return ``(slots, degree, zero_stage)`` of every interval, ``(N, N + 1)``.

    With ``zero``, an interval that does not fit at all gets the smallest power of two
    as degree, then stage 2 before 3, that fits at every position; degree 1 and stage
    0 otherwise. From one end of an interval to a later one slots never grow, unless
    the interval gets sharded; 0 stays 0 in any case. O(N^2).
    """
    n = kept.shape[0]
    slots = np.zeros((n, n + 1), dtype=np.int64)
    degree = np.ones((n, n + 1), dtype=np.int64)
    zero_stage = np.zeros((n, n + 1), dtype=np.int64)
    for i in range(n):
        for j in range(i + 1, n + 1):
            weights = kept[i, j]
            states = 6.0 * weights if adam else 0.0
            constant = 2.0 * weights + states + alive[i, j]
            slots[i, j] = slots_of(constant, stash[i, j], limit, num_devices)
            if slots[i, j] > 0 or not zero:
                continue
            z = 2
            while width * z <= num_devices and zero_stage[i, j] == 0:
                for stage in (2, 3):
                    if stage == 2:
                        constant = weights + weights / z + states / z
                    else:
                        constant = 2.0 * (weights / z) + states / z
                    fit = slots_of(
                        constant + alive[i, j], stash[i, j], limit, num_devices
                    )
                    if fit >= min(num_devices, n):
                        slots[i, j] = fit
                        degree[i, j] = z
                        zero_stage[i, j] = stage
                        break
                z *= 2
    return slots, degree, zero_stage


@kernel
def least_memory(
    kept: FloatMatrix, alive: FloatMatrix, stash: FloatMatrix, deepest: int, adam: bool
) -> tuple[float, int]:
    """Return the least memory that any split needs on its fullest device, and its S.

    ``h[s, i] = min over j of max( memory(i, j, s), h[s - 1, j] )`` without ZeRO, over
    all ``S <= deepest``. Infinite and 0 if ``deepest`` is 0. Ties go to fewer stages.
    O(S N^2).
    """
    n = kept.shape[0]
    factor = 8.0 if adam else 2.0
    behind = np.full(n + 1, np.inf)
    behind[n] = 0.0
    best = np.inf
    best_stages = 0
    for s in range(1, min(n, deepest) + 1):
        current = np.full(n + 1, np.inf)
        for i in range(n):
            for j in range(i + 1, n + 1):
                memory = factor * kept[i, j] + alive[i, j] + (s - 1) * stash[i, j]
                if memory >= current[i]:
                    break
                current[i] = min(current[i], max(memory, behind[j]))
        if current[0] < best:
            best = current[0]
            best_stages = s
        behind = current
    return best, best_stages


@subkernel
def message_time(
    num_bytes: float, level: int, narrowest: FloatVector, latency: FloatVector
) -> float:
    """Return the time of a message between stages; ``narrowest`` is a running min."""
    one_way: float = num_bytes / narrowest[level] + latency[level]
    return one_way if level == 0 else 2.0 * one_way


@kernel
def time_tables(
    forward: FloatVector,
    backward: FloatVector,
    in_start: IntVector,
    in_node: IntVector,
    in_bytes: FloatVector,
    out_start: IntVector,
    out_node: IntVector,
    out_bytes: FloatVector,
    narrowest: FloatVector,
    latency: FloatVector,
    recompute: bool,
    slots: IntMatrix,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``F`` and ``R`` of shape ``(L, N, N + 1)``, and ``last`` ``(N,)``.

    ``F[l, i, j]`` is the forward pass with the incoming link at level ``l``,
    ``R[l, i, j]`` the backward pass (with recompute: after the repeated forward pass)
    with the outgoing link at ``l``, both as longest paths over all edges that cross
    the border; ``last[i]`` is the backward pass of ``[i, N)`` without recompute.
    Infinite where the interval has no slots. A longest path through a maximum splits
    into the maximum of two sums exactly, also in floating point, for addition is
    monotone. O(L (N^2 + N E)), with recompute also O(N^3 / 6) short steps.
    """
    n = len(forward)
    num_levels = len(latency)
    there = np.full((num_levels, n, n + 1), np.inf)
    back = np.full((num_levels, n, n + 1), np.inf)
    last = np.zeros(n)
    total = 0.0
    for v in range(n - 1, -1, -1):
        total += backward[v]
        last[v] = total
    for level in range(num_levels):
        for i in range(n):
            finish = 0.0
            for v in range(i, n):
                if slots[i, v + 1] == 0:
                    break
                for e in range(in_start[v], in_start[v + 1]):
                    if in_node[e] < i:
                        time = message_time(in_bytes[e], level, narrowest, latency)
                        finish = max(finish, time)
                finish += forward[v]
                there[level, i, v + 1] = finish
        for j in range(1, n + 1):
            finish = 0.0
            for v in range(j - 1, -1, -1):
                for e in range(out_start[v], out_start[v + 1]):
                    if out_node[e] >= j:
                        time = message_time(out_bytes[e], level, narrowest, latency)
                        finish = max(finish, time)
                finish += backward[v]
                if slots[v, j] > 0:
                    back[level, v, j] = finish
    if not recompute:
        return there, back, last
    for i in range(n):
        again = 0.0
        for j in range(i + 1, n + 1):
            again += backward[j - 1]
            if slots[i, j] == 0:
                break
            finish = again
            for v in range(j - 1, i - 1, -1):
                finish += backward[v]
            for level in range(num_levels):
                back[level, i, j] = max(back[level, i, j], finish)
    return there, back, last
