"""Costs of every class of intervals under every choice: what the split kernel reads.

Letters: ``K`` interval classes, ``C`` choices, ``J`` kinds of in-layer collectives,
``z`` ZeRO stage, ``g`` devices that share dense shards, ``ge`` those of experts,
``R`` recompute modes. Columns of rates are named by the constants below. A rate is a
pair of latency [s] and inverse bandwidth [s/byte].

What ``z`` sends and holds stands in a row of the ledger (`planner.step.ledger`): how
many times, by the fields of `ZeroTerms`. Time of one microbatch (``P`` dense and ``E``
expert parameters, ``G`` and ``W`` bytes of a gradient and a weight on the wire, ``n``
layers)::

    compute + collectives + recompute(r)
    + reduced_each reduce-scatter(n, G P; G E)
    + gathered_each all-gather(n, W P; W E)

Step end, after the last backward pass::

      reduced_whole all-reduce(G P) + all-reduce(G E)
    + reduced_across across(G P / g)
    + optimizer step on P + E parameters, P / g + E / ge if it is sharded
    + reduced_once reduce-scatter(G P; G E)
    + gathered_once all-gather(W P; W E)

Memory: ``once + static(z, g) + working(r) + in_flight * saved(r)``, and what the
optimizer makes for its step in place of all but what is static, solved for the
passes in flight. What the host keeps of each is not there, two layers of it apart; the
passes in flight are as many as host and device have room for.
"""

from typing import NamedTuple

import numpy as np

from topologies.arrays import (
    FloatArray,
    FloatCube,
    FloatMatrix,
    FloatVector,
    IntArray,
    IntVector,
)
from topologies.compiling import kernel, subkernel

# Recompute modes.
NONE = 0
SELECTIVE = 1
FULL = 2
STAGE = 3
NUM_MODES = 4

# Columns of the rates of a stage: latency, and inverse bandwidth in the next one.
TENSOR_REDUCE = 0
TENSOR_PASS = 2
CONTEXT = 4
EXPERT = 6
CONTEXT_PASS = 8
CONTEXT_EXCHANGE = 10
EXPERT_TENSOR = 12
DENSE_REDUCE = 14
EXPERT_REDUCE = 16
EXPERT_PASS = 18
SHARD_PASS = 20  # + 4 * sharding option
SHARD_ACROSS = 22  # + 4 * sharding option
NUM_FIXED_RATES = 20

# Columns of what hosts keep.
WEIGHTS = 0
GRADIENTS = 1
OPTIMIZER = 2
ACTIVATIONS = 3

# Layers whose offloaded part has room on a device: one in use, one on the way.
ON_THE_WAY = 2.0


class ClassSums(NamedTuple):
    """What the intervals of each class take and hold, shape ``(K,)`` each."""

    compute: FloatVector
    """Passes without communication [s]."""

    recompute: FloatMatrix
    """Extra compute of the backward pass by recompute mode, shape ``(R, K)`` [s]."""

    saved: FloatMatrix
    """Kept per pass in flight by recompute mode, shape ``(R, K)`` [byte]."""

    working: FloatMatrix
    """Alive inside one pass by recompute mode, shape ``(R, K)`` [byte]."""

    once: FloatVector
    """Saved by layers that have one pass in flight at most [byte]."""

    frozen: FloatVector
    """Weights that are not trained, and never sharded [byte]."""

    num_layers: FloatVector
    """Layers whose parameters are sent one after another."""

    parameters: FloatVector
    """Parameters outside of experts."""

    expert_parameters: FloatVector
    """Parameters of experts."""

    largest_layer: FloatVector
    """Most parameters that are gathered together."""

    most_saved: FloatMatrix
    """Most on its way to a host by recompute mode, over `ON_THE_WAY`, shape ``(R, K)``
    [byte]."""


class ClassTraffic(NamedTuple):
    """What the intervals of each class send inside of layers, ``J`` kinds of it."""

    rate: IntVector
    """Column of the rates for each kind, shape ``(J,)``."""

    num_calls: FloatMatrix
    """Collectives of both passes, shape ``(J, K)``."""

    num_bytes: FloatMatrix
    """What they send, shape ``(J, K)`` [byte]."""

    recompute_count: FloatCube
    """Collectives that are repeated by recompute mode, shape ``(J, R, K)``."""

    recompute_bytes: FloatCube
    """What those send, shape ``(J, R, K)`` [byte]."""


class Choices(NamedTuple):
    """What stages may choose from, shape ``(C,)`` each."""

    recompute: IntVector
    """Recompute mode, by its number; behind those, sets of modules that selective
    recompute may run again, which interval classes do not know."""

    zero_stage: IntVector
    """Stage of ZeRO."""

    sharding: IntVector
    """Sharding option; 0 is the whole group."""

    counting: IntVector
    """0 where all blocks of each chunk are recomputed, 1 where as few as memory asks
    for, 2 where every n-th. Interval classes know all blocks only."""

    unless: IntVector
    """Choice before this one which it stands in for where that does not fit, nor any
    that that stands in for; -1 where it counts in any case."""

    offload: FloatMatrix
    """Fractions that the host keeps of weights, gradients, optimizer states and saved
    activations, shape ``(C, 4)``."""

    host_step: FloatVector
    """What the host adds to the step's end for each parameter that a device updates
    [s]."""

    host_once: FloatVector
    """What the host adds to the step's end beside [s]."""


class JobConstants(NamedTuple):
    """What a parameter costs a device of a job, and what the device has."""

    weight_bytes: float
    """Memory of a weight [byte]."""

    gradient_bytes: float
    """Memory of its gradient [byte]."""

    optimizer_bytes: float
    """Memory of its optimizer state [byte]."""

    copies_bytes: float
    """Memory of what the optimizer makes for its step [byte]."""

    gather_bytes: float
    """A weight on the wire [byte]."""

    update_bytes: float
    """A weight on the wire after the optimizer's step, which sends no frozen ones
    [byte]."""

    reduce_bytes: float
    """A gradient on the wire [byte]."""

    step_time: float
    """Optimizer step of one parameter [s]."""

    memory: float = 0.0
    """Memory that plans may use [byte]."""

    expert_group: float = 0.0
    """Devices that share shards of experts."""

    host_memory: float = np.inf
    """Memory of the host that each device may use [byte]."""


class ZeroTerms(NamedTuple):
    """What a stage of ZeRO sends in a step, how often, and what it holds.

    Sent over devices that share shards unless said otherwise.
    """

    reduced_each: float
    """Gradients in every microbatch, layer by layer."""

    gathered_each: float
    """Weights in every microbatch, layer by layer."""

    reduced_whole: float
    """Gradients at the end, over all replicas."""

    reduced_once: float
    """Gradients at the end."""

    reduced_across: float
    """A shard of them at the end, over devices that hold the same one."""

    gathered_once: float
    """Weights after the optimizer step."""

    shards_optimizer: float
    """1 if optimizer states are sharded."""

    shards_gradients: float
    """1 if gradients are sharded."""

    shards_weights: float
    """1 if weights are sharded."""

    whole_gradients: float
    """Layers whose gradients are whole beside the shards."""

    whole_weights: float
    """Layers whose weights are whole beside the shards."""


@subkernel
def zero_terms(ledger: FloatMatrix, zero_stage: int) -> ZeroTerms:
    """Return a row of the ledger, whose columns are the fields in their order."""
    row = ledger[zero_stage]
    return ZeroTerms(
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9],
        row[10],
    )  # fmt: skip


@kernel
def time_and_step_end(
    sums: ClassSums,
    traffic: ClassTraffic,
    choices: Choices,
    group_sizes: FloatVector,
    rates: FloatMatrix,
    job: JobConstants,
    ledger: FloatMatrix,
) -> tuple[FloatArray, FloatArray]:
    """Return time and step end, each of shape ``(sig, C, K)`` [s].

    ``group_sizes`` are the devices of each sharding option, ``rates`` a row for each
    signature, ``ledger`` what each ZeRO stage sends. O(sig C K).
    """
    num_classes = sums.compute.shape[0]
    shape = (rates.shape[0], choices.zero_stage.shape[0], num_classes)
    time = np.empty(shape)
    step_end = np.empty(shape)
    weight, gradient, step = job.gather_bytes, job.reduce_bytes, job.step_time
    update, expert_group = job.update_bytes, job.expert_group
    plain = np.empty(num_classes)
    extra = np.empty((NUM_MODES, num_classes))
    for row in range(shape[0]):
        rate = rates[row]
        for k in range(num_classes):
            plain[k] = sums.compute[k]
            for mode in range(NUM_MODES):
                extra[mode, k] = sums.recompute[mode, k]
            for j in range(traffic.rate.shape[0]):
                a = rate[traffic.rate[j]]
                b = rate[traffic.rate[j] + 1]
                plain[k] += traffic.num_calls[j, k] * a + traffic.num_bytes[j, k] * b
                for mode in range(NUM_MODES):
                    extra[mode, k] += (
                        traffic.recompute_count[j, mode, k] * a
                        + traffic.recompute_bytes[j, mode, k] * b
                    )
        for c in range(shape[1]):
            mode, option = choices.recompute[c], choices.sharding[c]
            sent = zero_terms(ledger, choices.zero_stage[c])
            inside = SHARD_PASS + 4 * option
            across = SHARD_ACROSS + 4 * option
            group = group_sizes[option]
            is_sharded = sent.shards_optimizer > 0.0
            for k in range(num_classes):
                dense = sums.parameters[k]
                expert = sums.expert_parameters[k]
                layers = sums.num_layers[k]
                expert_layers = layers if expert > 0.0 else 0.0
                t = plain[k] + extra[mode, k]
                if sent.reduced_each > 0.0:
                    reduce = layers * rate[inside]
                    reduce += gradient * dense * rate[inside + 1]
                    reduce += expert_layers * rate[EXPERT_PASS]
                    reduce += gradient * expert * rate[EXPERT_PASS + 1]
                    t += sent.reduced_each * reduce
                if sent.gathered_each > 0.0:
                    gather = layers * rate[inside]
                    gather += weight * dense * rate[inside + 1]
                    gather += expert_layers * rate[EXPERT_PASS]
                    gather += weight * expert * rate[EXPERT_PASS + 1]
                    t += sent.gathered_each * gather
                time[row, c, k] = t
                present = 1.0 if expert > 0.0 else 0.0
                updated = dense + expert
                if is_sharded:
                    updated = dense / group + expert / expert_group
                y = step * updated
                if choices.offload[c, OPTIMIZER] > 0.0:
                    y += choices.host_once[c] + choices.host_step[c] * updated
                if sent.reduced_whole > 0.0:
                    reduce = rate[DENSE_REDUCE]
                    reduce += gradient * dense * rate[DENSE_REDUCE + 1]
                    reduce += present * rate[EXPERT_REDUCE]
                    reduce += gradient * expert * rate[EXPERT_REDUCE + 1]
                    y += sent.reduced_whole * reduce
                if sent.reduced_across > 0.0:
                    reduce = rate[across] + gradient * dense / group * rate[across + 1]
                    y += sent.reduced_across * reduce
                if sent.reduced_once > 0.0:
                    reduce = rate[inside] + gradient * dense * rate[inside + 1]
                    reduce += present * rate[EXPERT_PASS]
                    reduce += gradient * expert * rate[EXPERT_PASS + 1]
                    y += sent.reduced_once * reduce
                if sent.gathered_once > 0.0:
                    gather = rate[inside] + update * dense * rate[inside + 1]
                    gather += present * rate[EXPERT_PASS]
                    gather += update * expert * rate[EXPERT_PASS + 1]
                    y += sent.gathered_once * gather
                step_end[row, c, k] = y
    return time, step_end


@kernel
def most_in_flight(
    sums: ClassSums,
    choices: Choices,
    group_sizes: FloatVector,
    job: JobConstants,
    ledger: FloatMatrix,
) -> IntArray:
    """Return how many passes may be in flight, shape ``(C, K)``; 0 if none. O(C K)."""
    num_classes = sums.compute.shape[0]
    most = np.zeros((choices.zero_stage.shape[0], num_classes), dtype=np.int64)
    expert_group = job.expert_group
    for c in range(choices.zero_stage.shape[0]):
        mode = choices.recompute[c]
        holds = zero_terms(ledger, choices.zero_stage[c])
        group = group_sizes[choices.sharding[c]]
        away = choices.offload[c]
        offloads = away.sum() > 0.0
        shared = 1.0 if max(group, expert_group) > 1.0 else 0.0
        buffers = holds.whole_gradients * job.gradient_bytes
        buffers += holds.whole_weights * job.gather_bytes
        for k in range(num_classes):
            dense = sums.parameters[k]
            expert = sums.expert_parameters[k]
            sharded = dense / group + expert / expert_group
            whole = dense + expert
            updated = sharded if holds.shards_optimizer > 0.0 else whole
            reduced = sharded if holds.shards_gradients > 0.0 else whole
            gathered = sharded if holds.shards_weights > 0.0 else whole
            held = sums.frozen[k] + job.optimizer_bytes * updated
            held += job.gradient_bytes * reduced
            held += job.weight_bytes * gathered
            copies = job.copies_bytes * updated
            saved, once = sums.saved[mode, k], sums.once[k]
            host_room, host_saved = job.host_memory, 0.0
            if offloads:
                on_host = away[OPTIMIZER] * job.optimizer_bytes * updated
                on_host += away[GRADIENTS] * job.gradient_bytes * reduced
                on_host += away[WEIGHTS] * job.weight_bytes * gathered
                shard = min(group, expert_group) if expert > 0.0 else group
                largest = sums.largest_layer[k]
                reduces = largest / (shard if holds.shards_gradients > 0.0 else 1.0)
                gathers = largest / (shard if holds.shards_weights > 0.0 else 1.0)
                staging = away[WEIGHTS] * job.weight_bytes * gathers
                staging += away[GRADIENTS] * job.gradient_bytes * reduces
                staging += away[ACTIVATIONS] * sums.most_saved[mode, k]
                held += ON_THE_WAY * staging - on_host
                copies *= 1.0 - away[OPTIMIZER]
                host_saved = away[ACTIVATIONS] * saved
                host_room -= on_host + away[ACTIVATIONS] * once
                saved -= host_saved
                once *= 1.0 - away[ACTIVATIONS]
                if host_room < 0.0:
                    continue
            if held + copies > job.memory:
                continue
            held += shared * buffers * sums.largest_layer[k]
            room = job.memory - held - once - sums.working[mode, k]
            if room < 0.0:
                continue
            if saved * 4e18 > room:
                most[c, k] = np.int64(np.floor(room / saved))
            else:
                most[c, k] = np.int64(4_000_000_000_000_000_000)
            if host_saved * 4e18 > host_room:
                most[c, k] = min(most[c, k], np.int64(np.floor(host_room / host_saved)))
    return most
