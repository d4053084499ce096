"""Tables of every interval of a chain, in the cost model of the NEST artifact.

Letters: ``N`` nodes, ``E`` edges, ``L`` network levels. An interval ``[i, j)`` holds
nodes ``i`` to ``j - 1``; tables have shape ``(N, N + 1)``.
`planner.rivals.nest_artifact.costs` has the model in words; sums here run in its order,
so that both give the same bits.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel


class Edges(NamedTuple):
    """Edges into the nodes of a chain, or out of them, in compressed rows."""

    start: IntVector
    """Where the edges of each node begin, shape ``(N + 1,)``."""

    node: IntVector
    """The node at the other end, shape ``(E,)``."""

    num_bytes: FloatVector
    """What an edge carries, shape ``(E,)`` [byte]."""


class IntervalTimes(NamedTuple):
    """What the passes of every interval take."""

    there: FloatCube
    """``F[l, i, j]``: forward, the incoming link at level ``l``, ``(L, N, N + 1)``
    [s]."""

    back: FloatCube
    """``R[l, i, j]``: backward, the outgoing link at level ``l``, ``(L, N, N + 1)``
    [s]."""

    last: FloatVector
    """Backward pass of ``[i, N)`` without recompute, shape ``(N,)`` [s]."""


@kernel
def memory_tables(
    parameters: FloatVector,
    activations: FloatVector,
    incoming: Edges,
    recompute: bool,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return parameters, activations and stash of every interval, ``(N, N + 1)``.

    The stash is what comes in from outside with recompute, else all activations.
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
            for e in range(incoming.start[v], incoming.start[v + 1]):
                if incoming.node[e] < i:
                    stash[i, v + 1] += incoming.num_bytes[e]
    return kept, alive, stash


@subkernel
def passes_that_fit(constant: float, stash: float, limit: float, most: int) -> int:
    """Return how many microbatches in flight fit, at most about ``most``."""
    if constant + (most - 1) * stash <= limit:
        return most
    if constant > limit:
        return 0
    return 1 + int(np.floor((limit - constant) / stash))


@kernel
def fill_in_flight(
    kept: FloatMatrix,
    alive: FloatMatrix,
    stash: FloatMatrix,
    limit: float,
    num_devices: int,
    width: int,
    adam: bool,
    zero: bool,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return ``(in_flight, degree, zero_stage)`` of every interval, ``(N, N + 1)``.

    With ``zero``, an interval that does not fit at all gets the smallest power of two
    as degree, then stage 2 before 3, that fits at every position; degree 1 and stage
    0 otherwise. From one end of an interval to a later one they never grow, unless
    the interval gets sharded; 0 stays 0 in any case. O(N^2).
    """
    n = kept.shape[0]
    in_flight = np.zeros((n, n + 1), dtype=np.int64)
    degree = np.ones((n, n + 1), dtype=np.int64)
    zero_stage = np.zeros((n, n + 1), dtype=np.int64)
    for i in range(n):
        for j in range(i + 1, n + 1):
            weights = kept[i, j]
            states = 6.0 * weights if adam else 0.0
            constant = 2.0 * weights + states + alive[i, j]
            in_flight[i, j] = passes_that_fit(constant, stash[i, j], limit, num_devices)
            if in_flight[i, j] > 0 or not zero:
                continue
            z = 2
            while width * z <= num_devices and zero_stage[i, j] == 0:
                for stage in (2, 3):
                    if stage == 2:
                        constant = weights + weights / z + states / z
                    else:
                        constant = 2.0 * (weights / z) + states / z
                    fit = passes_that_fit(
                        constant + alive[i, j], stash[i, j], limit, num_devices
                    )
                    if fit >= min(num_devices, n):
                        in_flight[i, j] = fit
                        degree[i, j] = z
                        zero_stage[i, j] = stage
                        break
                z *= 2
    return in_flight, degree, zero_stage


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
    incoming: Edges,
    outgoing: Edges,
    narrowest: FloatVector,
    latency: FloatVector,
    recompute: bool,
    in_flight: IntMatrix,
) -> IntervalTimes:
    """Return what the passes of every interval take.

    With recompute the backward pass comes after the repeated forward pass. Both are
    longest paths over all edges that cross the border, infinite where no pass of the
    interval may be in flight. A longest path through a maximum splits
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
                if in_flight[i, v + 1] == 0:
                    break
                for e in range(incoming.start[v], incoming.start[v + 1]):
                    if incoming.node[e] < i:
                        num_bytes = incoming.num_bytes[e]
                        time = message_time(num_bytes, level, narrowest, latency)
                        finish = max(finish, time)
                finish += forward[v]
                there[level, i, v + 1] = finish
        for j in range(1, n + 1):
            finish = 0.0
            for v in range(j - 1, -1, -1):
                for e in range(outgoing.start[v], outgoing.start[v + 1]):
                    if outgoing.node[e] >= j:
                        num_bytes = outgoing.num_bytes[e]
                        time = message_time(num_bytes, level, narrowest, latency)
                        finish = max(finish, time)
                finish += backward[v]
                if in_flight[v, j] > 0:
                    back[level, v, j] = finish
    if not recompute:
        return IntervalTimes(there, back, last)
    for i in range(n):
        again = 0.0
        for j in range(i + 1, n + 1):
            again += backward[j - 1]
            if in_flight[i, j] == 0:
                break
            finish = again
            for v in range(j - 1, i - 1, -1):
                finish += backward[v]
            for level in range(num_levels):
                back[level, i, j] = max(back[level, i, j], finish)
    return IntervalTimes(there, back, last)
