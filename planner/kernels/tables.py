"""Costs of every class of intervals under every choice: what the split kernel reads.

Letters: ``K`` interval classes, ``C`` choices, ``J`` kinds of in-layer collectives,
``z`` ZeRO stage, ``g`` devices that share dense shards, ``ge`` those of experts. Rows
of the inputs are named by the constants below. A rate is a pair of latency [s] and
inverse bandwidth [s/byte].

Time of one microbatch (``P`` dense and ``E`` expert parameters, ``G`` and ``W`` bytes
of a gradient and a weight on the wire, ``n`` layers)::

    compute + collectives + recompute(r)
    + [z >= 2] reduce-scatter(n, G P; G E) + [z = 3] 2 all-gather(n, W P; W E)

Tail, after the last backward pass::

    z = 0   all-reduce(G P) + all-reduce(G E)
    z = 1   reduce-scatter(G P; G E) + across(G P / g) + all-gather(W P; W E)
    z = 2   across(G P / g) + all-gather(W P; W E)
    z = 3   across(G P / g)
    always  optimizer step on (P / g + E / ge) parameters (z = 0: P + E)

Memory: ``once + static(z, g) + working(r) + in_flight * saved(r)``, solved for the
passes in flight.

References
----------
.. [1] Rajbhandari et al., "ZeRO", SC 2020, sections 5 and 7.
.. [2] Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2: hybrid sharding.
"""

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
from topologies.compiling import kernel

# Recompute modes.
NONE = 0
SELECTIVE = 1
FULL = 2
STAGE = 3
NUM_MODES = 4

# Rows of the class sums, shape (NUM_SUMS, K).
COMPUTE = 0
RECOMPUTE = 1  # + mode: extra compute of the backward pass
SAVED = 5  # + mode: kept per pass in flight
WORKING = 9  # + mode: alive inside one pass
ONCE = 13  # saved by layers that have one pass in flight at most
NUM_LAYERS = 14
PARAMETERS = 15
EXPERT_PARAMETERS = 16
LARGEST_LAYER = 17
NUM_SUMS = 18

# Rows of the traffic of one kind of collective, shape (J, NUM_TRAFFIC, K).
COUNT = 0
BYTES = 1
RECOMPUTE_COUNT = 2  # + mode
RECOMPUTE_BYTES = 6  # + mode
NUM_TRAFFIC = 10

# Columns of the rates of a stage: latency, and inverse bandwidth in the next one.
TENSOR_REDUCE = 0
TENSOR_PASS = 2
CONTEXT = 4
EXPERT = 6
DENSE_REDUCE = 8
EXPERT_REDUCE = 10
EXPERT_PASS = 12
SHARD_PASS = 14  # + 4 * sharding option
SHARD_ACROSS = 16  # + 4 * sharding option
NUM_FIXED_RATES = 14

# Columns of the choices, shape (C, 3).
CHOICE_RECOMPUTE = 0
CHOICE_ZERO = 1
CHOICE_SHARDING = 2

# Entries of the job's constants.
WEIGHT_BYTES = 0
GRADIENT_BYTES = 1
OPTIMIZER_BYTES = 2
STEP_TIME = 3  # of one parameter [s]
MEMORY = 4
EXPERT_GROUP = 5
GATHER_BYTES = 6  # of a weight on the wire
REDUCE_BYTES = 7  # of a gradient on the wire
NUM_CONSTANTS = 8


@kernel
def time_and_tail(
    sums: FloatMatrix,
    traffic: FloatCube,
    traffic_rate: IntVector,
    choices: IntMatrix,
    group_sizes: FloatVector,
    rates: FloatMatrix,
    constants: FloatVector,
) -> tuple[FloatArray, FloatArray]:
    """Return time and tail, each of shape ``(sig, C, K)`` [s].

    ``traffic_rate (J,)`` says which rate each kind of collective has; ``group_sizes``
    the devices of each sharding option; ``rates (sig, R)`` the rates of each signature.
    O(sig C K).
    """
    num_classes = sums.shape[1]
    shape = (rates.shape[0], choices.shape[0], num_classes)
    time = np.empty(shape)
    tail = np.empty(shape)
    weight = constants[GATHER_BYTES]
    gradient = constants[REDUCE_BYTES]
    step = constants[STEP_TIME]
    expert_group = constants[EXPERT_GROUP]
    plain = np.empty(num_classes)
    extra = np.empty((NUM_MODES, num_classes))
    for row in range(shape[0]):
        rate = rates[row]
        for k in range(num_classes):
            plain[k] = sums[COMPUTE, k]
            for mode in range(NUM_MODES):
                extra[mode, k] = sums[RECOMPUTE + mode, k]
            for j in range(traffic.shape[0]):
                a = rate[traffic_rate[j]]
                b = rate[traffic_rate[j] + 1]
                plain[k] += traffic[j, COUNT, k] * a + traffic[j, BYTES, k] * b
                for mode in range(NUM_MODES):
                    extra[mode, k] += (
                        traffic[j, RECOMPUTE_COUNT + mode, k] * a
                        + traffic[j, RECOMPUTE_BYTES + mode, k] * b
                    )
        for c in range(shape[1]):
            mode = choices[c, CHOICE_RECOMPUTE]
            zero = choices[c, CHOICE_ZERO]
            option = choices[c, CHOICE_SHARDING]
            inside = SHARD_PASS + 4 * option
            across = SHARD_ACROSS + 4 * option
            group = group_sizes[option]
            for k in range(num_classes):
                dense = sums[PARAMETERS, k]
                expert = sums[EXPERT_PARAMETERS, k]
                layers = sums[NUM_LAYERS, k]
                expert_layers = layers if expert > 0.0 else 0.0
                t = plain[k] + extra[mode, k]
                if zero >= 2:
                    t += layers * rate[inside] + gradient * dense * rate[inside + 1]
                    t += expert_layers * rate[EXPERT_PASS]
                    t += gradient * expert * rate[EXPERT_PASS + 1]
                if zero == 3:
                    gather = layers * rate[inside]
                    gather += weight * dense * rate[inside + 1]
                    gather += expert_layers * rate[EXPERT_PASS]
                    gather += weight * expert * rate[EXPERT_PASS + 1]
                    t += 2.0 * gather
                time[row, c, k] = t
                present = 1.0 if expert > 0.0 else 0.0
                if zero == 0:
                    y = rate[DENSE_REDUCE] + gradient * dense * rate[DENSE_REDUCE + 1]
                    y += present * rate[EXPERT_REDUCE]
                    y += gradient * expert * rate[EXPERT_REDUCE + 1]
                    y += step * (dense + expert)
                else:
                    y = rate[across] + gradient * dense / group * rate[across + 1]
                    y += step * (dense / group + expert / expert_group)
                    if zero == 1:
                        y += rate[inside] + gradient * dense * rate[inside + 1]
                        y += present * rate[EXPERT_PASS]
                        y += gradient * expert * rate[EXPERT_PASS + 1]
                    if zero <= 2:
                        y += rate[inside] + weight * dense * rate[inside + 1]
                        y += present * rate[EXPERT_PASS]
                        y += weight * expert * rate[EXPERT_PASS + 1]
                tail[row, c, k] = y
    return time, tail


@kernel
def memory_slots(
    sums: FloatMatrix,
    choices: IntMatrix,
    group_sizes: FloatVector,
    constants: FloatVector,
) -> IntArray:
    """Return how many passes may be in flight, shape ``(C, K)``; 0 if none.

    ZeRO-2 keeps one layer's gradients whole until they are reduced; ZeRO-3 also two
    layers' weights gathered, the one in use and the one prefetched. O(C K).
    """
    num_classes = sums.shape[1]
    slots = np.zeros((choices.shape[0], num_classes), dtype=np.int64)
    weight = constants[WEIGHT_BYTES]
    gathered = constants[GATHER_BYTES]
    gradient = constants[GRADIENT_BYTES]
    optimizer = constants[OPTIMIZER_BYTES]
    for c in range(choices.shape[0]):
        mode = choices[c, CHOICE_RECOMPUTE]
        zero = choices[c, CHOICE_ZERO]
        group = group_sizes[choices[c, CHOICE_SHARDING]]
        expert_group = constants[EXPERT_GROUP]
        shared = 1.0 if max(group, expert_group) > 1.0 else 0.0
        for k in range(num_classes):
            dense = sums[PARAMETERS, k]
            expert = sums[EXPERT_PARAMETERS, k]
            sharded = dense / group + expert / expert_group
            whole = dense + expert
            held = optimizer * (sharded if zero >= 1 else whole)
            held += gradient * (sharded if zero >= 2 else whole)
            held += weight * (sharded if zero >= 3 else whole)
            if zero >= 2:
                held += shared * gradient * sums[LARGEST_LAYER, k]
            if zero >= 3:
                held += shared * 2.0 * gathered * sums[LARGEST_LAYER, k]
            room = constants[MEMORY] - held - sums[ONCE, k] - sums[WORKING + mode, k]
            if room < 0.0:
                continue
            saved = sums[SAVED + mode, k]
            if saved * 4e18 > room:
                slots[c, k] = np.int64(np.floor(room / saved))
            else:
                slots[c, k] = np.int64(4_000_000_000_000_000_000)
    return slots
