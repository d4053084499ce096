"""A bound of the iteration time that knows what memory forces stages to do.

A stage that does not fit recomputes activations or shards more, and pays for it in
every microbatch. Per block and stage, with ``c`` a recompute mode and a ZeRO stage
under a sharding option::

    cost_c = (ws + wm / p) (recompute_c + sent_c) + tail_c / p
    mem_cs = static_c + f_s saved_c           f_s passes in flight at position s

A split is a way to hand ``B`` blocks to ``p`` stages of memory ``M``. Its linear
relaxation, any number of blocks of each kind anywhere, has the dual ::

    max over mu of   mu B - M sum_s max_c { (mu - cost_c) / mem_cs, 0 }

of which every ``mu >= 0`` gives a lower bound of what the blocks cost together. It is
concave: a bisection on its slope finds the largest. Where the slope stays positive,
the blocks do not fit at all.

Letters as in `planner.kernels.split`; rates are those of `planner.kernels.relaxed`.

References
----------
.. [1] Dantzig, "Discrete-Variable Extremum Problems", Operations Research 5(2), 1957:
   the linear relaxation of knapsacks, and its dual.
"""

import numpy as np

from planner.kernels import tables
from topologies.arrays import FloatCube, FloatMatrix, FloatVector, IntMatrix
from topologies.compiling import kernel, subkernel

# Of an inner configuration, entries of an array.
NUM_BLOCKS = 0
BLOCK_DENSE = 1  # least parameters of a block outside of routed experts
BLOCK_EXPERT = 2  # least parameters of its routed experts
SAVED = 3  # + mode: least bytes that a block saves per microbatch
RECOMPUTE = 7  # + mode: least compute that is done again [s]
TOTAL = 11  # W: least times of all layers together [s]
CONTEXT_BYTES = 12  # sent in hops of the context-parallel ring [byte]
CONTEXT_INVERSE = 13  # what a hop is counted with in W [s/byte]
EXPERT_BYTES = 14  # exchanged among expert-parallel ranks [byte]
EXPERT_INVERSE = 15  # what an exchange is counted with in W [s/byte]
BOUNDARY_BYTES = 16  # what each lane sends over every boundary [byte]
ALL_DENSE = 17  # parameters of the whole chain outside of routed experts
ALL_EXPERT = 18  # parameters of its routed experts
NUM_INNER = 19

_SAFE = 1.0 - 1e-12

_NUM_BISECTIONS = 24
_HIGHEST = 1024.0
"""The largest ``mu`` tried, in units of the dearest choice."""

_SHARD_PASS = tables.SHARD_PASS
_SHARD_ACROSS = tables.SHARD_ACROSS
_EXPERT_PASS = tables.EXPERT_PASS
_DENSE_REDUCE = tables.DENSE_REDUCE
_EXPERT_REDUCE = tables.EXPERT_REDUCE
_WEIGHT_BYTES = tables.WEIGHT_BYTES
_GATHER_BYTES = tables.GATHER_BYTES
_REDUCE_BYTES = tables.REDUCE_BYTES
_GRADIENT_BYTES = tables.GRADIENT_BYTES
_OPTIMIZER_BYTES = tables.OPTIMIZER_BYTES
_STEP_TIME = tables.STEP_TIME
_MEMORY = tables.MEMORY
_EXPERT_GROUP = tables.EXPERT_GROUP
_CONTEXT = tables.CONTEXT
_EXPERT = tables.EXPERT
_STAGE = tables.STAGE
_REDUCED_EACH = tables.REDUCED_EACH
_GATHERED_EACH = tables.GATHERED_EACH
_REDUCED_WHOLE = tables.REDUCED_WHOLE
_REDUCED_ONCE = tables.REDUCED_ONCE
_REDUCED_ACROSS = tables.REDUCED_ACROSS
_GATHERED_ONCE = tables.GATHERED_ONCE
_SHARDS_OPTIMIZER = tables.SHARDS_OPTIMIZER
_SHARDS_GRADIENTS = tables.SHARDS_GRADIENTS
_SHARDS_WEIGHTS = tables.SHARDS_WEIGHTS


@subkernel
def parameter_cost(
    row: FloatVector,
    constants: FloatVector,
    group: float,
    ledger: FloatVector,
    option: int,
    dense: float,
    expert: float,
) -> tuple[float, float]:
    """Return what parameters send in every microbatch, and their tail [s].

    The bytes' share of `planner.kernels.tables.time_and_tail`; ``ledger`` is the row of
    a ZeRO stage. O(1).
    """
    weight, gradient = constants[_GATHER_BYTES], constants[_REDUCE_BYTES]
    step = constants[_STEP_TIME]
    inside = row[_SHARD_PASS + 4 * option + 1]
    across = row[_SHARD_ACROSS + 4 * option + 1]
    shared = dense * inside + expert * row[_EXPERT_PASS + 1]
    reduced = dense * row[_DENSE_REDUCE + 1] + expert * row[_EXPERT_REDUCE + 1]
    updated = dense + expert
    if ledger[_SHARDS_OPTIMIZER] > 0.0:
        updated = dense / group + expert / constants[_EXPERT_GROUP]
    tail = step * updated
    tail += ledger[_REDUCED_WHOLE] * gradient * reduced
    tail += ledger[_REDUCED_ACROSS] * gradient * dense / group * across
    tail += ledger[_REDUCED_ONCE] * gradient * shared
    tail += ledger[_GATHERED_ONCE] * weight * shared
    sent = ledger[_REDUCED_EACH] * gradient * shared
    sent += ledger[_GATHERED_EACH] * weight * shared
    return sent, tail


@subkernel
def dual_value(
    mu: float,
    cost: FloatVector,
    static: FloatVector,
    saved: FloatVector,
    once: FloatVector,
    in_flight: FloatVector,
    num_blocks: float,
    memory: float,
) -> tuple[float, float]:
    """Return the dual's value and slope at ``mu``. O(p C)."""
    value = mu * num_blocks
    slope = num_blocks
    for s in range(in_flight.shape[0]):
        most = 0.0
        rate = 0.0
        for c in range(cost.shape[0]):
            gain = mu - cost[c]
            if gain <= 0.0:
                continue
            inverse = 1.0 / (static[c] + once[c] + in_flight[s] * saved[c])
            if gain * inverse > most:
                most = gain * inverse
                rate = inverse
        value -= memory * most
        slope -= memory * rate
    return value, slope


@subkernel
def choice_costs(
    inner: FloatVector,
    row: FloatVector,
    choices: IntMatrix,
    group: float,
    constants: FloatVector,
    ledger: FloatMatrix,
    in_flight: FloatVector,
    per_microbatch: float,
) -> float:
    """Return what choices cost the chain at least, infinity if blocks do not fit [s].

    Parameters outside of blocks cost what they cost without a limit of memory.

    Parameters
    ----------
    inner
        Entries as above, of one inner configuration.
    row
        Rates of all stages.
    choices
        As in `planner.kernels.tables`, shape ``(C, 3)``.
    group
        Ranks that share dense shards.
    constants, ledger
        As in `planner.kernels.tables`.
    in_flight
        Whole microbatches in flight at each stage, shape ``(p,)``.
    per_microbatch
        ``ws + wm / p``.
    """
    num_choices = choices.shape[0]
    p = in_flight.shape[0]
    cost = np.empty(num_choices)
    static = np.empty(num_choices)
    saved = np.empty(num_choices)
    once = np.zeros(num_choices)
    dense, expert = inner[BLOCK_DENSE], inner[BLOCK_EXPERT]
    num_blocks, memory = inner[NUM_BLOCKS], constants[_MEMORY]
    other_dense = max(inner[ALL_DENSE] - num_blocks * dense, 0.0)
    other_expert = max(inner[ALL_EXPERT] - num_blocks * expert, 0.0)
    rest = np.inf
    dearest = 0.0
    cheapest = np.inf
    for c in range(num_choices):
        mode, zero, option = choices[c, 0], choices[c, 1], choices[c, 2]
        own = ledger[zero]
        sent, tail = parameter_cost(row, constants, group, own, option, dense, expert)
        others = parameter_cost(
            row, constants, group, own, option, other_dense, other_expert
        )
        rest = min(rest, per_microbatch * others[0] + others[1] / p)
        redone = inner[RECOMPUTE + mode]
        cost[c] = per_microbatch * (redone + sent) + tail / p
        dearest = max(dearest, cost[c])
        cheapest = min(cheapest, cost[c])
        sharded = dense / group + expert / constants[_EXPERT_GROUP]
        whole = dense + expert
        static[c] = (
            constants[_OPTIMIZER_BYTES]
            * (sharded if own[_SHARDS_OPTIMIZER] > 0.0 else whole)
            + constants[_GRADIENT_BYTES]
            * (sharded if own[_SHARDS_GRADIENTS] > 0.0 else whole)
            + constants[_WEIGHT_BYTES]
            * (sharded if own[_SHARDS_WEIGHTS] > 0.0 else whole)
        )
        saved[c] = inner[SAVED + mode]
        if mode == _STAGE:
            # The stage's input aside, everything is kept while it is redone.
            once[c] = inner[SAVED]
            saved[c] = 0.0
    if num_blocks == 0.0:
        return rest
    low, high = cheapest, _HIGHEST * max(dearest, 1e-30)
    best, slope = dual_value(
        high, cost, static, saved, once, in_flight, num_blocks, memory
    )
    if slope > 0.0:
        steepest = num_blocks
        for s in range(p):
            most = 0.0
            for c in range(num_choices):
                most = max(most, 1.0 / (static[c] + once[c] + in_flight[s] * saved[c]))
            steepest -= memory * most
        if steepest > 1e-9 * num_blocks:
            return np.inf
    best = max(best, cheapest * num_blocks)
    for _ in range(_NUM_BISECTIONS):
        # The range of mu spans orders of magnitude.
        middle = np.sqrt(max(low, 1e-12 * high) * high)
        value, slope = dual_value(
            middle, cost, static, saved, once, in_flight, num_blocks, memory
        )
        best = max(best, value)
        if slope > 0.0:
            low = middle
        else:
            high = middle
    cheapest_chain: float = best + rest
    return cheapest_chain


@subkernel
def largest_transfers(boundary: FloatCube, num_bytes: float, num_chunks: int) -> float:
    """Return the transfers of one microbatch in the slowest replica [s].

    ``boundary`` as in `planner.kernels.split.stage_adders`. O(p d).
    """
    p = boundary.shape[0]
    largest = 0.0
    if p == 1:
        return largest
    for r in range(boundary.shape[1]):
        total = 0.0
        for s in range(p):
            times = num_chunks if s < p - 1 else num_chunks - 1
            total += times * (boundary[s, r, 0] + boundary[s, r, 1] * num_bytes)
        largest = max(largest, 2.0 * total)
    return largest


@kernel
def time_bound(
    inner: FloatVector,
    rows: FloatMatrix,
    boundary: FloatCube,
    choices: IntMatrix,
    group: float,
    constants: FloatVector,
    ledger: FloatMatrix,
    in_flight: FloatVector,
    num_chunks: int,
    sum_weight: float,
    max_weight: float,
) -> float:
    """Return ``(ws + wm / p) (W + X)`` plus what choices cost the chain at least [s].

    The largest stage takes at least as long as the mean one. ``rows (sig, R)`` and
    ``boundary (p, d, 2)`` are rates, or bounds of them; the rest as in `choice_costs`.
    """
    row = rows[0].copy()
    for i in range(1, rows.shape[0]):
        for k in range(row.shape[0]):
            row[k] = min(row[k], rows[i, k])
    context = max(row[_CONTEXT + 1] - inner[CONTEXT_INVERSE], 0.0)
    exchange = max(row[_EXPERT + 1] - inner[EXPERT_INVERSE], 0.0)
    total = inner[TOTAL] + inner[CONTEXT_BYTES] * context
    total += inner[EXPERT_BYTES] * exchange
    total += largest_transfers(boundary, inner[BOUNDARY_BYTES], num_chunks)
    mean = sum_weight + max_weight / in_flight.shape[0]
    costs = choice_costs(inner, row, choices, group, constants, ledger, in_flight, mean)
    bound: float = (mean * total + costs) * _SAFE
    return bound
