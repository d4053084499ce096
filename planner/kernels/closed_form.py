"""Closed-form bounds of iteration time and memory, for many configurations at once.

Letters: ``W`` the sum of the layers' least times, ``X`` the least transfers of a
microbatch, ``p`` stages, ``v`` virtual stages, ``m`` microbatches, ``n`` replicas,
``P`` and ``E`` dense and expert parameters, ``ws = 1 / v``, ``wm = m - 1 / v``.
"""

import numpy as np

from planner.kernels import relaxed, tables
from topologies.arrays import FloatArray, FloatMatrix, FloatVector, IntVector
from topologies.compiling import kernel, subkernel

# Of an inner configuration, entries of an array.
TOTAL = 0  # W [s]
LARGEST = 1  # the slowest layer [s]
LEAST_BLOCK = 2  # the fastest block [s]
NUM_BLOCKS = 3
BOUNDARY_BYTES = 4  # what each lane sends over every boundary [byte]
DENSE = 5  # P of one device
EXPERT = 6  # E of one device
BATCH = 7  # sequences of all replicas' microbatches of one round: B / b
NUM_ENTRIES = 8

_SAFE = 1.0 - 1e-12
_HOP_LATENCY, _HOP_INVERSE = relaxed.HOP_LATENCY, relaxed.HOP_INVERSE
_HAS_RACKS = relaxed.HAS_RACKS
_WEIGHT_BYTES = tables.WEIGHT_BYTES
_GATHER_BYTES = tables.GATHER_BYTES
_REDUCE_BYTES = tables.REDUCE_BYTES
_GRADIENT_BYTES = tables.GRADIENT_BYTES
_OPTIMIZER_BYTES = tables.OPTIMIZER_BYTES
_STEP_TIME = tables.STEP_TIME
_REDUCED_EACH = tables.REDUCED_EACH
_GATHERED_EACH = tables.GATHERED_EACH
_REDUCED_WHOLE = tables.REDUCED_WHOLE
_REDUCED_ONCE = tables.REDUCED_ONCE
_GATHERED_ONCE = tables.GATHERED_ONCE
_SHARDS_OPTIMIZER = tables.SHARDS_OPTIMIZER
_SHARDS_GRADIENTS = tables.SHARDS_GRADIENTS
_SHARDS_WEIGHTS = tables.SHARDS_WEIGHTS
_pass_inverse = relaxed.pass_inverse


@subkernel
def least_cost(
    inverse: float,
    scattered: float,
    reduced: float,
    group: float,
    weight: float,
    ledger: FloatMatrix,
    job: FloatVector,
) -> float:
    """Return the least that a parameter costs the mean stage, over ZeRO stages [s].

    Its tail, and ``weight`` times what it sends in every microbatch. ``inverse`` bounds
    a reduce-scatter or all-gather among devices that share shards, ``scattered`` one of
    gradients once a step, ``reduced`` half of an all-reduce of all replicas. What is
    reduced across may cost nothing. O(1).
    """
    least = np.inf
    gradient, weights, step = job[_REDUCE_BYTES], job[_GATHER_BYTES], job[_STEP_TIME]
    shard, repeated = step / group, weight * inverse
    for z in range(ledger.shape[0]):
        cost = shard if ledger[z, _SHARDS_OPTIMIZER] > 0.0 else step
        cost += gradient * (
            ledger[z, _REDUCED_WHOLE] * 2.0 * reduced
            + ledger[z, _REDUCED_ONCE] * scattered
            + ledger[z, _REDUCED_EACH] * repeated
        )
        cost += weights * (
            ledger[z, _GATHERED_ONCE] * inverse + ledger[z, _GATHERED_EACH] * repeated
        )
        least = min(least, cost)
    return least


@kernel
def closed_form(
    entries: FloatVector,
    constants: FloatVector,
    job: FloatVector,
    ledger: FloatMatrix,
    tp: int,
    cp: int,
    ep: int,
    v: int,
    pp: IntVector,
    dp: IntVector,
) -> tuple[FloatArray, FloatArray]:
    """Return LB1 [s] and the least memory of parameters [byte] of every ``(pp, dp)``.

    The larger of two bounds::

        ws (W + X) + wm max((W + X) / p, largest layer, most blocks of a stage) + Y(ws)
        (ws + wm / p) (W + X) + Y(ws + wm / p)

    where some stage holds at least ``ceil(blocks / (v p))`` blocks in each of its ``v``
    chunks, and ``Y(w)`` is what parameters cost the mean stage in its tail plus ``w``
    times what all stages send for them in every microbatch: the largest tail is at
    least the mean one, every stage chooses its ZeRO stage for itself, and the least of
    a sum is at least the sum of the least. Hybrid sharding pays for gradients at least
    as much as the whole group in a reduce-scatter under ZeRO-1, and may pay next to
    nothing else. Memory is that of the mean stage under the thriftiest ZeRO stage.
    ``constants`` as in `planner.kernels.relaxed`, ``job`` and ``ledger`` as in
    `planner.kernels.tables`, rows of the ZeRO stages that may be chosen. O(1) each.
    """
    bounds = np.empty(pp.shape[0])
    memory = np.empty(pp.shape[0])
    hop = constants[_HOP_INVERSE]
    one = constants[_HOP_LATENCY] + entries[BOUNDARY_BYTES] * hop
    dense, expert = entries[DENSE], entries[EXPERT]
    ws = 1.0 / v
    for i in range(pp.shape[0]):
        p, n = float(pp[i]), float(dp[i] * cp)
        members = n / ep
        wm = np.ceil(entries[BATCH] / dp[i]) - ws
        total = entries[TOTAL]
        largest = entries[LARGEST]
        chunks = v * np.ceil(entries[NUM_BLOCKS] / (v * p)) * entries[LEAST_BLOCK]
        largest = max(largest, chunks)
        if p > 1:
            total += 2.0 * one * (v * (p - 1.0) + v - 1.0)
            largest += v * one
        whole = _pass_inverse(constants, tp, n, 1)
        inside = whole
        if ep == 1:
            inside = min(whole, 0.5 * hop if n > 1 else 0.0)
        scattered = inside if constants[_HAS_RACKS] > 0.0 else whole
        apart = _pass_inverse(constants, tp, members, 1)
        mean = ws + wm / p
        value = 0.0
        for variant in range(2):
            weight = ws if variant == 0 else mean
            # Tails are the mean stage's, what is sent is all stages' together.
            cost = (
                dense
                / p
                * least_cost(inside, scattered, whole, n, weight * p, ledger, job)
            )
            if expert > 0.0:
                cost += (
                    expert
                    / p
                    * least_cost(apart, apart, apart, members, weight * p, ledger, job)
                )
            if variant == 0:
                time = ws * total + wm * max(total / p, largest)
            else:
                time = mean * total
            value = max(value, time + cost)
        bounds[i] = value * _SAFE
        least = np.inf
        every = (dense + expert) / p
        shard = (dense / n + expert / members) / p
        for z in range(ledger.shape[0]):
            held = (
                job[_OPTIMIZER_BYTES]
                * (shard if ledger[z, _SHARDS_OPTIMIZER] > 0.0 else every)
                + job[_GRADIENT_BYTES]
                * (shard if ledger[z, _SHARDS_GRADIENTS] > 0.0 else every)
                + job[_WEIGHT_BYTES]
                * (shard if ledger[z, _SHARDS_WEIGHTS] > 0.0 else every)
            )
            least = min(least, held)
        memory[i] = least * _SAFE
    return bounds, memory
