"""A bound of the iteration time that knows what memory forces stages to do.

A stage that does not fit recomputes activations or shards more, and pays for it in
every microbatch. Per block and stage, with ``c`` a recompute mode and a ZeRO stage
under a sharding option::

    cost_c = (ws + wm / p) (recompute_c + sent_c) + end_c / p
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

from typing import NamedTuple

import numpy as np

from planner.kernels import tables
from planner.kernels.tables import Choices, JobConstants, ZeroTerms, zero_terms
from topologies.arrays import FloatCube, FloatMatrix, FloatVector
from topologies.compiling import kernel, subkernel

_SAFE = 1.0 - 1e-12

_NUM_BISECTIONS = 24
_HIGHEST = 1024.0
"""The largest ``mu`` tried, in units of the dearest choice."""


class InnerTerms(NamedTuple):
    """What the bound needs of a chain under one set of inner degrees."""

    total: float
    """Least times of all layers together: ``W`` [s]."""

    num_blocks: float
    """Transformer blocks of the chain: ``B``."""

    block_dense: float
    """Least parameters of a block outside of routed experts."""

    block_expert: float
    """Least parameters of its routed experts."""

    saved: FloatVector
    """Least bytes that a block saves per microbatch, by recompute mode [byte]."""

    recompute: FloatVector
    """Least compute of a block that is done again, by recompute mode [s]."""

    context_bytes: float
    """Sent in hops of the context-parallel ring [byte]."""

    context_inverse: float
    """What a hop is counted with in ``W`` [s/byte]."""

    expert_bytes: float
    """Exchanged among expert-parallel ranks [byte]."""

    expert_inverse: float
    """What an exchange is counted with in ``W`` [s/byte]."""

    boundary_bytes: float
    """What each lane sends over every boundary [byte]."""

    all_dense: float
    """Parameters of the whole chain outside of routed experts."""

    all_expert: float
    """Parameters of its routed experts."""


class ChoiceTerms(NamedTuple):
    """What stages may choose from, and what a choice costs."""

    choices: Choices
    """Recompute modes, ZeRO stages and sharding options."""

    group: float
    """Ranks that share dense shards."""

    job: JobConstants
    """What a parameter costs."""

    ledger: FloatMatrix
    """What each ZeRO stage sends and holds, see `planner.kernels.tables`."""


class BlockKinds(NamedTuple):
    """What each choice costs and holds per block, shape ``(C,)`` each."""

    cost: FloatVector
    """What a block costs the mean stage [s]."""

    static: FloatVector
    """What a block holds, whatever is in flight [byte]."""

    saved: FloatVector
    """What it holds for each microbatch in flight [byte]."""

    once: FloatVector
    """What it holds while the stage is recomputed [byte]."""


@subkernel
def parameter_cost(
    row: FloatVector,
    job: JobConstants,
    group: float,
    sent: ZeroTerms,
    option: int,
    dense: float,
    expert: float,
) -> tuple[float, float]:
    """Return what parameters send in every microbatch, and their step end [s].

    The bytes' share of `planner.kernels.tables.time_and_step_end`. O(1).
    """
    weight, gradient = job.gather_bytes, job.reduce_bytes
    inside = row[tables.SHARD_PASS + 4 * option + 1]
    across = row[tables.SHARD_ACROSS + 4 * option + 1]
    shared = dense * inside + expert * row[tables.EXPERT_PASS + 1]
    reduced = (
        dense * row[tables.DENSE_REDUCE + 1] + expert * row[tables.EXPERT_REDUCE + 1]
    )
    updated = dense + expert
    if sent.shards_optimizer > 0.0:
        updated = dense / group + expert / job.expert_group
    step_end = job.step_time * updated
    step_end += sent.reduced_whole * gradient * reduced
    step_end += sent.reduced_across * gradient * dense / group * across
    step_end += sent.reduced_once * gradient * shared
    step_end += sent.gathered_once * job.update_bytes * shared
    every_microbatch = sent.reduced_each * gradient * shared
    every_microbatch += sent.gathered_each * weight * shared
    return every_microbatch, step_end


@subkernel
def dual_value(
    mu: float,
    kinds: BlockKinds,
    in_flight: FloatVector,
    num_blocks: float,
    memory: float,
) -> tuple[float, float]:
    """Return the dual's value and slope at ``mu``. O(p C)."""
    cost, static, saved, once = kinds
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
    inner: InnerTerms,
    row: FloatVector,
    options: ChoiceTerms,
    in_flight: FloatVector,
    per_microbatch: float,
) -> float:
    """Return what choices cost the chain at least, infinity if blocks do not fit [s].

    Parameters outside of blocks cost what they cost without a limit of memory.

    Parameters
    ----------
    inner
        The chain.
    row
        Rates of all stages.
    options
        What they may choose from.
    in_flight
        Whole microbatches in flight at each stage, shape ``(p,)``.
    per_microbatch
        ``ws + wm / p``.
    """
    choices, job, group = options.choices, options.job, options.group
    num_choices = choices.zero_stage.shape[0]
    p = in_flight.shape[0]
    cost = np.empty(num_choices)
    static = np.empty(num_choices)
    saved = np.empty(num_choices)
    once = np.zeros(num_choices)
    kinds = BlockKinds(cost, static, saved, once)
    dense, expert = inner.block_dense, inner.block_expert
    num_blocks, memory = inner.num_blocks, job.memory
    other_dense = max(inner.all_dense - num_blocks * dense, 0.0)
    other_expert = max(inner.all_expert - num_blocks * expert, 0.0)
    rest = np.inf
    dearest = 0.0
    cheapest = np.inf
    for c in range(num_choices):
        mode, option = choices.recompute[c], choices.sharding[c]
        terms = zero_terms(options.ledger, choices.zero_stage[c])
        sent, step_end = parameter_cost(row, job, group, terms, option, dense, expert)
        others = parameter_cost(
            row, job, group, terms, option, other_dense, other_expert
        )
        updated = dense + expert
        other_updated = other_dense + other_expert
        if terms.shards_optimizer > 0.0:
            updated = dense / group + expert / job.expert_group
            other_updated = other_dense / group + other_expert / job.expert_group
        away = choices.offload[c]
        other_end = others[1]
        if away[tables.OPTIMIZER] > 0.0:
            # Less than nothing where the host updates faster than the device.
            step_end += choices.host_step[c] * updated
            other_end += choices.host_step[c] * other_updated
        rest = min(rest, per_microbatch * others[0] + other_end / p)
        redone = inner.recompute[mode]
        cost[c] = per_microbatch * (redone + sent) + step_end / p
        dearest = max(dearest, cost[c])
        cheapest = min(cheapest, cost[c])
        sharded = dense / group + expert / job.expert_group
        whole = dense + expert
        reduced = sharded if terms.shards_gradients > 0.0 else whole
        gathered = sharded if terms.shards_weights > 0.0 else whole
        static[c] = (
            (1.0 - away[tables.OPTIMIZER]) * job.optimizer_bytes * updated
            + (1.0 - away[tables.GRADIENTS]) * job.gradient_bytes * reduced
            + (1.0 - away[tables.WEIGHTS]) * job.weight_bytes * gathered
        )
        # Where the host keeps everything, what is on the way is more than a byte.
        static[c] = max(static[c], 1.0)
        saved[c] = (1.0 - away[tables.ACTIVATIONS]) * inner.saved[mode]
        if mode == tables.STAGE:
            # The stage's input aside, everything is kept while it is redone.
            once[c] = inner.saved[0]
            saved[c] = 0.0
    if num_blocks == 0.0:
        return rest
    low, high = cheapest, _HIGHEST * max(dearest, 1e-30)
    best, slope = dual_value(high, kinds, in_flight, num_blocks, memory)
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
        value, slope = dual_value(middle, kinds, in_flight, num_blocks, memory)
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
    inner: InnerTerms,
    rows: FloatMatrix,
    boundary: FloatCube,
    options: ChoiceTerms,
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
    context = max(row[tables.CONTEXT + 1] - inner.context_inverse, 0.0)
    exchange = max(row[tables.EXPERT + 1] - inner.expert_inverse, 0.0)
    total = inner.total + inner.context_bytes * context
    total += inner.expert_bytes * exchange
    total += largest_transfers(boundary, inner.boundary_bytes, num_chunks)
    mean = sum_weight + max_weight / in_flight.shape[0]
    costs = choice_costs(inner, row, options, in_flight, mean)
    bound: float = (mean * total + costs) * _SAFE
    return bound
