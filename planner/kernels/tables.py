"""Costs of every class of intervals under every choice: what the split kernel reads.

Letters: ``K`` interval classes, ``C`` choices, ``J`` kinds of in-layer collectives,
``z`` ZeRO stage, ``g`` devices that share dense shards, ``ge`` those of experts. Rows
of the inputs are named by the constants below. A rate is a pair of latency [s] and
inverse bandwidth [s/byte].

What ``z`` sends and holds stands in a row of the ledger (`planner.step.ledger`): how
many times, in the columns named below. Time of one microbatch (``P`` dense and ``E``
expert parameters, ``G`` and ``W`` bytes of a gradient and a weight on the wire, ``n``
layers)::

    compute + collectives + recompute(r)
    + REDUCED_EACH reduce-scatter(n, G P; G E)
    + GATHERED_EACH all-gather(n, W P; W E)

Tail, after the last backward pass::

      REDUCED_WHOLE all-reduce(G P) + all-reduce(G E)
    + REDUCED_ACROSS across(G P / g)
    + optimizer step on P + E parameters, P / g + E / ge if it is sharded
    + REDUCED_ONCE reduce-scatter(G P; G E)
    + GATHERED_ONCE all-gather(W P; W E)

Memory: ``once + static(z, g) + working(r) + in_flight * saved(r)``, and what the
optimizer makes for its step in place of all but what is static, solved for the
passes in flight.
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
COPIES_BYTES = 8  # of what the optimizer makes for its step
NUM_CONSTANTS = 9

# Columns of the ledger, a row for each ZeRO stage: how often a step sends, over devices
# that share shards unless said otherwise ..
REDUCED_EACH = 0  # gradients in every microbatch, layer by layer
GATHERED_EACH = 1  # weights in every microbatch, layer by layer
REDUCED_WHOLE = 2  # gradients at the end, over all replicas
REDUCED_ONCE = 3  # gradients at the end
REDUCED_ACROSS = 4  # a shard of them at the end, over devices that hold the same one
GATHERED_ONCE = 5  # weights after the optimizer step
# .. whether it shards ..
SHARDS_OPTIMIZER = 6
SHARDS_GRADIENTS = 7
SHARDS_WEIGHTS = 8
# .. and how many layers are whole beside the shards.
WHOLE_GRADIENTS = 9
WHOLE_WEIGHTS = 10
NUM_LEDGER = 11


@kernel
def time_and_tail(
    sums: FloatMatrix,
    traffic: FloatCube,
    traffic_rate: IntVector,
    choices: IntMatrix,
    group_sizes: FloatVector,
    rates: FloatMatrix,
    constants: FloatVector,
    ledger: FloatMatrix,
) -> tuple[FloatArray, FloatArray]:
    """Return time and tail, each of shape ``(sig, C, K)`` [s].

    ``traffic_rate (J,)`` says which rate each kind of collective has; ``group_sizes``
    the devices of each sharding option; ``rates (sig, R)`` the rates of each signature;
    ``ledger`` what each ZeRO stage sends. O(sig C K).
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
            sent = ledger[choices[c, CHOICE_ZERO]]
            option = choices[c, CHOICE_SHARDING]
            inside = SHARD_PASS + 4 * option
            across = SHARD_ACROSS + 4 * option
            group = group_sizes[option]
            reduced_each, gathered_each = sent[REDUCED_EACH], sent[GATHERED_EACH]
            reduced_whole, reduced_once = sent[REDUCED_WHOLE], sent[REDUCED_ONCE]
            reduced_across, gathered_once = sent[REDUCED_ACROSS], sent[GATHERED_ONCE]
            is_sharded = sent[SHARDS_OPTIMIZER] > 0.0
            for k in range(num_classes):
                dense = sums[PARAMETERS, k]
                expert = sums[EXPERT_PARAMETERS, k]
                layers = sums[NUM_LAYERS, k]
                expert_layers = layers if expert > 0.0 else 0.0
                t = plain[k] + extra[mode, k]
                if reduced_each > 0.0:
                    reduce = layers * rate[inside]
                    reduce += gradient * dense * rate[inside + 1]
                    reduce += expert_layers * rate[EXPERT_PASS]
                    reduce += gradient * expert * rate[EXPERT_PASS + 1]
                    t += reduced_each * reduce
                if gathered_each > 0.0:
                    gather = layers * rate[inside]
                    gather += weight * dense * rate[inside + 1]
                    gather += expert_layers * rate[EXPERT_PASS]
                    gather += weight * expert * rate[EXPERT_PASS + 1]
                    t += gathered_each * gather
                time[row, c, k] = t
                present = 1.0 if expert > 0.0 else 0.0
                y = step * (dense + expert)
                if is_sharded:
                    y = step * (dense / group + expert / expert_group)
                if reduced_whole > 0.0:
                    reduce = rate[DENSE_REDUCE]
                    reduce += gradient * dense * rate[DENSE_REDUCE + 1]
                    reduce += present * rate[EXPERT_REDUCE]
                    reduce += gradient * expert * rate[EXPERT_REDUCE + 1]
                    y += reduced_whole * reduce
                if reduced_across > 0.0:
                    reduce = rate[across] + gradient * dense / group * rate[across + 1]
                    y += reduced_across * reduce
                if reduced_once > 0.0:
                    reduce = rate[inside] + gradient * dense * rate[inside + 1]
                    reduce += present * rate[EXPERT_PASS]
                    reduce += gradient * expert * rate[EXPERT_PASS + 1]
                    y += reduced_once * reduce
                if gathered_once > 0.0:
                    gather = rate[inside] + weight * dense * rate[inside + 1]
                    gather += present * rate[EXPERT_PASS]
                    gather += weight * expert * rate[EXPERT_PASS + 1]
                    y += gathered_once * gather
                tail[row, c, k] = y
    return time, tail


@kernel
def memory_slots(
    sums: FloatMatrix,
    choices: IntMatrix,
    group_sizes: FloatVector,
    constants: FloatVector,
    ledger: FloatMatrix,
) -> IntArray:
    """Return how many passes may be in flight, shape ``(C, K)``; 0 if none. O(C K)."""
    num_classes = sums.shape[1]
    slots = np.zeros((choices.shape[0], num_classes), dtype=np.int64)
    weight = constants[WEIGHT_BYTES]
    gathered = constants[GATHER_BYTES]
    gradient = constants[GRADIENT_BYTES]
    optimizer = constants[OPTIMIZER_BYTES]
    for c in range(choices.shape[0]):
        mode = choices[c, CHOICE_RECOMPUTE]
        holds = ledger[choices[c, CHOICE_ZERO]]
        group = group_sizes[choices[c, CHOICE_SHARDING]]
        expert_group = constants[EXPERT_GROUP]
        shared = 1.0 if max(group, expert_group) > 1.0 else 0.0
        buffers = holds[WHOLE_GRADIENTS] * gradient + holds[WHOLE_WEIGHTS] * gathered
        for k in range(num_classes):
            dense = sums[PARAMETERS, k]
            expert = sums[EXPERT_PARAMETERS, k]
            sharded = dense / group + expert / expert_group
            whole = dense + expert
            held = optimizer * (sharded if holds[SHARDS_OPTIMIZER] > 0.0 else whole)
            held += gradient * (sharded if holds[SHARDS_GRADIENTS] > 0.0 else whole)
            held += weight * (sharded if holds[SHARDS_WEIGHTS] > 0.0 else whole)
            copies = sharded if holds[SHARDS_OPTIMIZER] > 0.0 else whole
            if held + constants[COPIES_BYTES] * copies > constants[MEMORY]:
                continue
            held += shared * buffers * sums[LARGEST_LAYER, k]
            room = constants[MEMORY] - held - sums[ONCE, k] - sums[WORKING + mode, k]
            if room < 0.0:
                continue
            saved = sums[SAVED + mode, k]
            if saved * 4e18 > room:
                slots[c, k] = np.int64(np.floor(room / saved))
            else:
                slots[c, k] = np.int64(4_000_000_000_000_000_000)
    return slots
