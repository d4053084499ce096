"""Lower bounds of the replayed time of plans whose stages all make the same choice.

Letters: ``p`` stages from the first, ``v`` chunks of each, ``C = p v`` virtual stages
(``c p + i`` is chunk ``c`` of stage ``i``), ``m`` microbatches, ``L`` layers, ``Y``
layouts (ways to cut the chain), ``K`` choices of recompute, ZeRO and sharding, ``R``
replicas. ``f`` and ``b`` are the passes of a microbatch through a virtual stage, no
longer than in any replay of the plan; ``x`` a transfer that nothing else slows down.

In a replay each event waits for others and for its own duration; the end can only come
later if a duration grows or a wait is added. So each path of waits that the schedule
alone implies is a lower bound [1]_. Of stage ``i``, with ``t_i`` all of its passes of
one microbatch and ``E_i`` the end of its last backward pass::

    E_i >= sum_{k < i} (f_k + x) + m t_i              it works after the first arrival
    E_i >= sum_k (f_k + x) + sum_{k > (v-1) p + i} (b_k + x) + m t_i - n_i f

since the first backward pass needs a whole way there and back, before which a stage
does the ``n_i`` forward passes that its schedule has first, and no more. Where passes
go on beside each other ``f`` and ``b`` are what they take so; those that fill and empty
the pipeline have nobody beside them and take ``F`` and ``B``, so that ``m t_i`` is as
much longer (of those that fill only where they are still to be done), and a first way
there and a last one back are theirs. Then::

    T >= E_i + sum_{k < i} (b_k + x) + what the first stage still has to do
    T >= E_i + what stage i still has to do

and, without interleaving, a stage that has sent a gradient back starts microbatch
``p`` later, a whole way there and back each: with ``m - 1 = q p + r``, where ``p``
stands for the ``n_0`` forward passes that the first stage has first, all ``m`` in
GPipe::

    T >= (1 + q) (sum_k (f_k + b_k) + 2 sum x) + r t_i + what the first stage has to do

Where a schedule splits the backward pass or has its chain come back (`PassOrder`), the
order of each stage is read off its list. Its first backward pass, of virtual stage
``a``, waits for a whole way there and back to ``a``, and only the forward passes
before it in the list can be over by then. The gradient of its last backward pass, of
virtual stage ``e``, goes on to the first one, while ``n_i`` weight gradients are left;
``g`` are backward passes without weight gradients ``w``, and ``E_i`` is the end of the
last pass of any kind::

    E_i >= sum_{k < first of i} (f_k + x) + m t_i
    E_i >= sum_k (f_k + x) + sum_{k > a} (g_k + x) + m t_i - done_i
    T >= E_i - n_i w + sum_{k < e} (g_k + x) + w_0 + what the first stage has to do
    T >= E_i + what stage i still has to do

What a stage has to do after its last backward pass is what cannot be hidden of its
gradients' reduction, the optimizer step, and the gathering of weights. Buckets that are
reduced behind backward passes begin with the last pass of the last chunk at the
earliest, which is followed by ``p`` passes of each other chunk, or by all of theirs
where all forward passes come first; in a list, by what follows the first pass that
completes the gradients of some chunk.

What must leave a block of the network takes its time over all ways out together: the
transfers of the whole step and the collectives of its end; and those collectives alone,
after the earliest moment at which one of them can begin::

    T >= sum of bytes / capacity
    T >= min_{k <= i} E_k + sum_{k <= i} bytes of the end of stage k / capacity

References
----------
.. [1] Baccelli, Cohen, Olsder, Quadrat, "Synchronization and Linearity: An Algebra
   for Discrete Event Systems", Wiley 1992, section 2.5.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels.replay_memory import (
    PlanChoice,
    PlanFamily,
    Variants,
    most_memory,
    overfull_stage,
)
from planner.kernels.stage_times import (
    PlanStages,
    empty_stages,
    fill_ends,
    fill_passes,
)
from planner.kernels.tables import zero_terms
from topologies.arrays import FloatMatrix, FloatVector, IntMatrix, IntVector
from topologies.compiling import kernel, subkernel, writing_kernel

_SAFE = 1.0 - 1e-12


_ALL = 2**31
"""More blocks than any chunk has."""


class PlanBounds(NamedTuple):
    """What is found of all plans, shape ``(K, Y)`` each."""

    values: FloatMatrix
    """Lower bound of the replayed time [s]."""

    memory: FloatMatrix
    """Memory of the fullest stage, as if its devices had the most of all [byte]."""

    counts: IntMatrix
    """Repeated blocks of each chunk where they are counted, else 0."""


@subkernel
def _longest_path(
    family: PlanFamily, stages: PlanStages, r: int, first_end: float
) -> float:
    """Return the longest path of waits in one replica [s]."""
    p, v, m = family.pipeline.p, family.pipeline.v, family.pipeline.m
    wires, first_passes = family.sent.wires, family.pipeline.first_passes
    f, b, work = stages.forward, stages.backward, stages.work
    alone = family.order.alone
    num_virtual, length = p * v, family.pipeline.round_passes
    value, there, back, first = 0.0, 0.0, 0.0, 0.0
    for k in range(num_virtual):
        there += f[k]
        back += b[k]
        if alone[k % p, 0, k // p] > 0:
            first += stages.alone_forward[k] - f[k]
        if k < num_virtual - 1:
            there += wires[r, k % p, 0]
            back += wires[r, k % p, 1]
    arrived, returned = 0.0, 0.0
    passed = 0.0
    for k in range((v - 1) * p):
        passed += b[k] + wires[r, k % p, 1]
    most_work = 0.0
    for i in range(p):
        last = (v - 1) * p + i
        # Backward passes after the one of the last chunk here.
        passed += b[last]
        before = back - passed
        if last < num_virtual - 1:
            passed += wires[r, last % p, 1]
        fills, empties = stages.alone_work[0, i], stages.alone_work[1, i]
        busy = m * work[i] + empties
        done = 0.0
        whole = first_passes[i] // (length * v)
        rest = first_passes[i] % (length * v)
        for chunk in range(v):
            count = whole * length + min(max(rest - chunk * length, 0), length)
            done += count * f[chunk * p + i]
        end = max(arrived + busy + fills, there + first + before + busy - done)
        value = max(value, end + returned + first_end)
        value = max(value, end + stages.step_ends[i])
        stages.released[i] = max(stages.released[i], end - stages.hidden[i])
        most_work = max(most_work, work[i])
        arrived += wires[r, i, 0]
        arrived += stages.alone_forward[i] if alone[i, 0, 0] > 0 else f[i]
        returned += wires[r, i, 1]
        returned += stages.alone_backward[i] if alone[i, 1, 0] > 0 else b[i]
    if v == 1:
        turns, rest = (m - 1) // first_passes[0], (m - 1) % first_passes[0]
        if turns >= 1:
            whole_way = (1.0 + turns) * (there + back)
            value = max(value, whole_way + rest * most_work + first_end)
    return value


@subkernel
def _listed_path(
    family: PlanFamily, stages: PlanStages, r: int, first_end: float
) -> float:
    """Return the longest path of waits of an order that is read list by list [s]."""
    p, v, m = family.pipeline.p, family.pipeline.v, family.pipeline.m
    order, f, b, g = family.order, stages.forward, stages.backward, stages.passed_on
    last = p * v - 1
    value, there = 0.0, 0.0
    for k in range(last + 1):
        there += f[k]
        if k < last:
            there += order.crossed[r, k, 0]
    for i in range(p):
        arrived, before, returned, done, after = 0.0, 0.0, 0.0, 0.0, 0.0
        for k in range(order.number[i, 0]):
            arrived += f[k] + order.crossed[r, k, 0]
        for k in range(last, order.first_backward[i], -1):
            before += g[k] + order.crossed[r, k - 1, 1]
        for k in range(order.last_backward[i] - 1, -1, -1):
            returned += order.crossed[r, k, 1] + g[k]
        for c in range(v):
            k = order.number[i, c]
            done += order.done[i, c] * f[k]
            after += order.after[i, c] * (b[k] - g[k])
        busy = m * stages.work[i]
        end = max(arrived + busy, there + before + busy - done)
        value = max(value, end + stages.step_ends[i])
        if order.last_backward[i] > 0:
            value = max(value, end - after + returned + first_end)
        stages.released[i] = max(stages.released[i], end - stages.hidden[i])
    return value


@subkernel
def _smallest(values: FloatVector) -> float:
    """Return the least of some values, infinity if there are none."""
    least = np.inf
    for value in values:
        least = min(least, value)
    return least


@subkernel
def least_exit(family: PlanFamily, plan: PlanChoice, stages: PlanStages) -> float:
    """Bound the step by what must leave blocks of the network [s]."""
    exits, sizes, sent = family.sent.exits, stages.sizes, plan.sent
    is_choice, option, job = exits.is_choice, plan.option, family.job.constants
    p = family.pipeline.p
    reduced = job.reduce_bytes * (2.0 * sent.reduced_whole + sent.reduced_once)
    gathered = job.update_bytes * sent.gathered_once
    shared = 2.0 * job.reduce_bytes * sent.reduced_across / plan.group
    least_dense, least_expert = _smallest(sizes[0]), _smallest(sizes[1])
    found = np.inf if is_choice else 0.0
    for row in range(exits.shares.shape[0]):
        inverse = exits.inverses[row]
        total, ends, last, least = 0.0, 0.0, 0.0, np.inf
        for i in range(p):
            lanes = exits.shares[row, 0, i] + exits.shares[row, 1, i]
            total += stages.counts[i] * lanes
            least = min(least, stages.released[i])
            volume, gathers = 0.0, 0.0
            for kind in range(2):
                size = sizes[kind, i]
                if is_choice:
                    # Which stages stand where is open: all like the smallest.
                    size = least_dense if kind == 0 else least_expert
                leaving = exits.shares[row, 2 + kind, i]
                if kind == 0 and option > 0:
                    leaving = exits.inside[row, option, i]
                    volume += exits.across[row, option, i] * shared * size
                volume += leaving * reduced * size
                gathers += leaving * gathered * size
            ends += volume if family.job.gathers_ahead else volume + gathers
            total += volume + gathers
            if not is_choice:
                last = max(last, least + ends * inverse)
        if is_choice:
            last = least + ends * inverse if ends > 0.0 else 0.0
        value = max(total * inverse, last)
        found = min(found, value) if is_choice else max(found, value)
    return found if found < np.inf else 0.0


@subkernel
def _bound(
    family: PlanFamily, plan: PlanChoice, stages: PlanStages, cutoff: float
) -> float:
    """Return the bound of one plan that fits [s]."""
    fill_passes(family, plan, stages)
    first_end, start_wait = fill_ends(family, plan, stages)
    value = 0.0
    for r in range(family.sent.wires.shape[0]):
        if family.order.is_listed:
            value = max(value, _listed_path(family, stages, r, first_end))
        else:
            value = max(value, _longest_path(family, stages, r, first_end))
        if value + start_wait >= cutoff:
            break
    value += start_wait
    if family.sent.exits.shares.shape[0] > 0 and value < cutoff:
        value = max(value, least_exit(family, plan, stages))
    return value * _SAFE


@subkernel
def _least_count(family: PlanFamily, plan: PlanChoice, counting: int) -> int:
    """Return the fewest repeated blocks of each chunk with which a plan fits.

    0 if none need be, or all must be, or not even that suffices; if every ``n``-th
    block is to be repeated (2), only where all chunks hold as many.
    """
    p, v = family.pipeline.p, family.pipeline.v
    most, least = 0, family.layers.is_block.size
    for k in range(p * v):
        blocks = 0
        for layer in range(plan.bounds[k], plan.bounds[k + 1]):
            if family.layers.is_block[layer] > 0.0:
                blocks += 1
        most, least = max(most, blocks), min(least, blocks)
    if counting > 1 and least < most:
        return 0
    full = overfull_stage(family, with_count(plan, 0), 0)
    if full < 0 or overfull_stage(family, with_count(plan, most), full) >= 0:
        return 0
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        still = overfull_stage(family, with_count(plan, middle), full)
        if still < 0:
            high = middle
        else:
            low, full = middle, still
    if counting > 1:
        return _every(high, most, v)
    return high if high < most else 0


@subkernel
def _every(count: int, blocks: int, v: int) -> int:
    """Return how many blocks every ``n``-th is at least, ``n`` dividing several chunks.

    0 if no ``n`` above 1 comes to so many.
    """
    repeated = 0
    for every in range(2, blocks + 1):
        if blocks // every < count:
            break
        if v == 1 or blocks % every == 0:
            repeated = blocks // every
    return repeated


@subkernel
def with_count(plan: PlanChoice, count: int) -> PlanChoice:
    """Return a choice with another number of repeated blocks."""
    return PlanChoice(
        plan.bounds,
        plan.mode,
        count,
        plan.option,
        plan.group,
        plan.sent,
        plan.offload,
        plan.host_step,
        plan.host_once,
    )


@subkernel
def plan_choice(family: PlanFamily, variants: Variants, c: int, y: int) -> PlanChoice:
    """Return a plan that repeats all blocks, if any."""
    choices = variants.choices
    return PlanChoice(
        bounds=variants.layouts[y],
        mode=choices.recompute[c],
        num_blocks=_ALL,
        option=choices.sharding[c],
        group=family.sent.group_sizes[choices.sharding[c]],
        sent=zero_terms(family.job.ledger, choices.zero_stage[c]),
        offload=choices.offload[c],
        host_step=choices.host_step[c],
        host_once=choices.host_once[c],
    )


@writing_kernel
def _fill_bounds(
    family: PlanFamily,
    variants: Variants,
    cutoff: float,
    stages: PlanStages,
    settled: IntVector,
    bounds: PlanBounds,
) -> None:
    """Fill the bounds, the memory and the repeated blocks of all plans.

    ``settled`` is room for whether a choice fits, or one that it stands in for.
    """
    values, memory = bounds.values, bounds.memory
    p, m = family.pipeline.p, family.pipeline.m
    choices = variants.choices
    is_bounded = family.job.constants.memory < np.inf
    for i in range(p):
        times = family.order.crossings[i]
        stages.counts[i] = family.job.boundary_bytes * m * times
    for y in range(variants.layouts.shape[0]):
        for c in range(choices.zero_stage.shape[0]):
            before = choices.unless[c]
            settled[c] = settled[before] if before >= 0 else 0
            if settled[c] > 0:
                memory[c, y] = np.inf
                continue
            plan = plan_choice(family, variants, c, y)
            if choices.counting[c] > 0:
                count = _least_count(family, plan, choices.counting[c])
                if count == 0:
                    memory[c, y] = np.inf
                    continue
                bounds.counts[c, y] = count
                plan = with_count(plan, count)
            memory[c, y] = most_memory(family, plan)
            if memory[c, y] * _SAFE <= family.job.constants.memory:
                values[c, y] = _bound(family, plan, stages, cutoff)
                settled[c] = 1 if is_bounded else 0


@kernel
def replay_bounds(family: PlanFamily, variants: Variants, cutoff: float) -> PlanBounds:
    """Return what is found of all plans.

    The bound is infinite where the memory exceeds what a device has; where it reaches
    the cutoff [s] it may be of part of the paths only. Where the number of repeated
    blocks is counted, it is the least that fits, which takes least time; both are
    infinite where that is none or all of them, and where another choice fits that comes
    before (`Choices.unless`).
    """
    p, num_virtual = family.pipeline.p, family.pipeline.p * family.pipeline.v
    shape = variants.choices.zero_stage.shape[0], variants.layouts.shape[0]
    values = np.empty(shape)
    values[:] = np.inf
    memory = np.zeros(shape)
    counts = np.zeros(shape, dtype=np.int64)
    bounds = PlanBounds(values, memory, counts)
    stages = empty_stages(p, num_virtual)
    settled = np.zeros(shape[0], dtype=np.int64)
    _fill_bounds(family, variants, cutoff, stages, settled, bounds)
    return bounds
