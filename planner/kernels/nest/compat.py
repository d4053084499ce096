"""Split a chain under the cost model of the published NEST artifact, exactly.

Letters: ``N`` nodes, ``L`` network levels, ``K`` devices, ``a`` devices of a stage,
``s`` position of a stage counted from the end (the last is 1), ``S`` stages, ``d``
replicas, ``B`` microbatches. An interval ``[i, j)`` holds nodes ``i`` to ``j - 1``.
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

from planner.kernels.nest.tables import IntervalTimes
from topologies.arrays import (
    FloatMatrix,
    FloatVector,
    IntArray,
    IntMatrix,
    IntVector,
)
from topologies.compiling import kernel, subkernel

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
    found = 0
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
            found = d
    return best, found


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
