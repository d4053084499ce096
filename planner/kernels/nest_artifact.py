"""Split a chain under the cost model of the published NEST artifact, exactly.

Letters: ``N`` nodes, ``E`` edges, ``L`` network levels, ``K`` devices, ``a`` devices of
a stage, ``s`` position of a stage counted from the end (the last is 1), ``S`` stages,
``d`` replicas, ``B`` microbatches. An interval ``[i, j)`` holds nodes ``i`` to ``j -
1``; tables of intervals have shape ``(N, N + 1)``.
`planner.rivals.nest_artifact.costs` has the model in words; sums here run in its order,
so that both give the same bits.

Every stage takes ``a`` devices and the last one is placed first, so the level of the
link between positions ``s`` and ``s + 1`` is data, ``link[s]``::

    load(i, j, s) = F[link[s], i, j] + (last[i] if s = 1 else R[link[s - 1], i, j])
    g[s, i]       = min over j > i of max( load(i, j, s), g[s - 1, j] ),   1 <= i
    T             = min over S, j, d <= min(K // (S a), B) of
                    max( load(0, j, S), g[S - 1, j] ) (ceil(B / d) + S - 1)
                    + D(d, parameters of [0, j), S a)

D depends on the first stage alone, therefore the minimum over its end stands outside
``g``. An interval is used at ``s`` iff ``in_flight[i, j] >= s``, the passes in flight
that memory allows. With ZeRO a stage takes a power of two times ``a`` devices, and the
devices used become a state, see `split_uneven`.
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


FOUND = 0
NOT_BETTER = 1


class NestJob(NamedTuple):
    """A job on a network of the artifact."""

    width: int
    """Devices of a stage."""

    num_devices: int
    """Devices of the cluster."""

    num_microbatches: int
    """Microbatches of all replicas together."""

    bandwidth: FloatVector
    """Bandwidth of each level, shape ``(L,)`` [byte/s]."""

    latency: FloatVector
    """Latency of each level, shape ``(L,)`` [s]."""

    group_devices: IntVector
    """Devices of a group of each level, shape ``(L,)``."""


@subkernel
def all_reduce_time(data: int, num_bytes: float, spacing: int, job: NestJob) -> float:
    """Return D for ranks 0, spacing, .., (data - 1) spacing; 0 for one replica."""
    bandwidth, latency = job.bandwidth, job.latency
    total = 0.0
    part = num_bytes
    left = data
    while left > 1:
        total += latency[0] + 1.0 / bandwidth[0] * part
        part /= 2.0
        left //= 2
    below = 0.0
    level = 0
    while (data - 1) * spacing >= job.group_devices[level]:
        level += 1
        hop = latency[level] + 1.0 / bandwidth[level] * num_bytes
        total += 2.0 * hop + below
        below += total
    return total


@subkernel
def most_replicas(pipeline_devices: int, fixed_data: int, job: NestJob) -> int:
    """Return the largest number of replicas, 0 if there is none.

    ``fixed_data`` is the only number that counts, unless it is 0.
    """
    most = min(job.num_devices // pipeline_devices, job.num_microbatches)
    if fixed_data == 0:
        return most
    return fixed_data if fixed_data <= most else 0


@subkernel
def best_replicas(
    slowest: float,
    num_stages: int,
    first_bytes: float,
    pipeline_devices: int,
    most: int,
    fixed_data: int,
    job: NestJob,
    best: float,
) -> tuple[float, int]:
    """Return the least T below ``best`` over the replicas, and their number or 0.

    From ``most`` downwards, since fewer replicas take more rounds: the first whose
    rounds alone reach the best ends the loop. Ties go to more replicas.
    """
    replicas = 0
    for d in range(most, 0, -1):
        if fixed_data > 0 and d != fixed_data:
            break
        rounds = (job.num_microbatches + d - 1) // d + num_stages - 1
        value = slowest * rounds
        if value >= best:
            break
        value += all_reduce_time(d, first_bytes, pipeline_devices, job)
        if value < best:
            best = value
            replicas = d
    return best, replicas


@kernel
def split_even(
    times: IntervalTimes,
    in_flight: IntMatrix,
    kept: FloatMatrix,
    link: IntVector,
    job: NestJob,
    fixed_stages: int,
    fixed_data: int,
    cutoff: float,
) -> tuple[int, float, int, IntArray]:
    """Return ``(status, T, d, bounds)`` of the best split with ``T < cutoff``.

    The recurrence of this module, every stage on ``width`` devices. ``link[s]`` has
    entries for ``1 <= s < S_max = min(N, K // width)``, entry 0 unused. A value ``v``
    of ``g[s]`` is dropped once ``v`` times the fewest rounds that any deeper pipeline
    takes reaches the best T. ``F`` never falls with ``j`` and passes in flight never
    grow, which ends the loops over ``j``. ``fixed_stages`` and ``fixed_data`` hold S
    and d unless they are 0. Ties go to fewer stages, then the earliest end of the first
    stage, then more replicas. O(S N^2) time, O(S N) memory.
    """
    width, num_microbatches = job.width, job.num_microbatches
    there, back, last = times
    n = len(last)
    deepest = min(n, job.num_devices // width)
    if fixed_stages > 0:
        deepest = fixed_stages if fixed_stages <= deepest else 0
    table = np.full((deepest + 1, n + 1), np.inf)
    following = np.zeros((deepest + 1, n + 1), dtype=np.int64)
    table[0, n] = 0.0
    fewest_rounds = np.full(deepest + 2, np.inf)
    for s in range(deepest, 0, -1):
        fewest_rounds[s] = fewest_rounds[s + 1]
        if fixed_stages > 0 and s != fixed_stages:
            continue
        most = most_replicas(s * width, fixed_data, job)
        if most > 0:
            rounds = (num_microbatches + most - 1) // most + s - 1
            fewest_rounds[s] = min(fewest_rounds[s], float(rounds))
    best = cutoff
    best_data = 0
    best_stages = 0
    best_end = 0
    for s in range(1, deepest + 1):
        most = most_replicas(s * width, fixed_data, job)
        if most > 0 and fixed_stages in (0, s):
            for j in range(n if s == 1 else 1, n - s + 2):
                if in_flight[0, j] < s:
                    break
                load = there[0, 0, j]
                load += last[0] if s == 1 else back[link[s - 1], 0, j]
                value, data = best_replicas(
                    max(load, table[s - 1, j]), s, kept[0, j], s * width, most,
                    fixed_data, job, best,
                )  # fmt: skip
                if data > 0:
                    best = value
                    best_data = data
                    best_stages = s
                    best_end = j
        if s == deepest or fewest_rounds[s + 1] == np.inf:
            break
        rounds_left = fewest_rounds[s + 1]
        for i in range(1, n - s + 1):
            lowest = np.inf
            for j in range(n if s == 1 else i + 1, n - s + 2):
                if in_flight[i, j] < s:
                    break
                load = there[link[s], i, j]
                if load >= lowest or load * rounds_left >= best:
                    break
                load += last[i] if s == 1 else back[link[s - 1], i, j]
                load = max(load, table[s - 1, j])
                if load < lowest and load * rounds_left < best:
                    lowest = load
                    following[s, i] = j
            table[s, i] = lowest
    bounds = np.zeros(best_stages + 1, dtype=np.int64)
    if best_data == 0:
        return NOT_BETTER, best, 0, bounds
    j = best_end
    for k in range(1, best_stages + 1):
        bounds[k] = j
        if k < best_stages:
            j = following[best_stages - k, j]
    return FOUND, best, best_data, bounds


@kernel
def split_uneven(
    times: IntervalTimes,
    in_flight: IntMatrix,
    reduced: FloatMatrix,
    degree: IntMatrix,
    extra: FloatMatrix,
    link: IntVector,
    job: NestJob,
    cutoff: float,
) -> tuple[int, float, int, IntArray]:
    """Return ``(status, T, d, bounds)``; stages take ``degree[i, j] width`` devices.

    ``u`` counts the units of ``width`` devices that a suffix takes, ``z = degree[i,
    j]``; ``link[u]`` is the level between units ``u - 1`` and ``u``::

        g[s, i, u] = min_j max( F[link[u], i, j] + R[link[u - z], i, j] + extra[i, j],
                                g[s - 1, j, u - z] )

    ``reduced[i, j]`` are the bytes in D, ``extra`` what ZeRO adds to a load. Ties as
    in `split_even`, then fewer devices. O(S N^2 U) time and O(S N U) memory, ``U = K
    // width``.
    """
    width = job.width
    there, back, last = times
    n = len(last)
    units = job.num_devices // width
    deepest = min(n, units)
    table = np.full((deepest + 1, n + 1, units + 1), np.inf)
    following = np.zeros((deepest + 1, n + 1, units + 1), dtype=np.int16)
    table[0, n, 0] = 0.0
    best = cutoff
    best_data = 0
    best_stages = 0
    best_end = 0
    best_units = 0
    for s in range(1, deepest + 1):
        for i in range(n - s + 1):
            for j in range(n if s == 1 else i + 1, n - s + 2):
                if in_flight[i, j] < s:
                    continue
                z = degree[i, j]
                for u in range(z + s - 1, units + 1):
                    rest = table[s - 1, j, u - z]
                    if rest == np.inf or (i > 0 and u == units):
                        continue
                    load = there[link[u] if i > 0 else 0, i, j]
                    load += last[i] if s == 1 else back[link[u - z], i, j]
                    load = max(load + extra[i, j], rest)
                    if i > 0:
                        if load < table[s, i, u]:
                            table[s, i, u] = load
                            following[s, i, u] = j
                        continue
                    most = most_replicas(u * width, 0, job)
                    value, data = best_replicas(
                        max(load, 0.0), s, reduced[i, j], u * width, most, 0, job, best
                    )
                    if data > 0:
                        best = value
                        best_data = data
                        best_stages = s
                        best_end = j
                        best_units = u
    bounds = np.zeros(best_stages + 1, dtype=np.int64)
    if best_data == 0:
        return NOT_BETTER, best, 0, bounds
    i = 0
    j = best_end
    u = best_units
    for k in range(1, best_stages + 1):
        bounds[k] = j
        if k < best_stages:
            u -= degree[i, j]
            i = j
            j = following[best_stages - k, i, u]
    return FOUND, best, best_data, bounds
