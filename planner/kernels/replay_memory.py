"""What the stages of a plan hold, as `planner.step.memory` counts it.

Letters as in `planner.kernels.replay_bound`.
"""

import numpy as np

from planner.kernels import tables
from planner.kernels.replay_terms import PlanChoice, PlanFamily
from topologies.compiling import subkernel

_SAFE = 1.0 - 1e-12
_STAGE = tables.STAGE
_WEIGHTS = tables.WEIGHTS
_GRADIENTS = tables.GRADIENTS
_OPTIMIZER = tables.OPTIMIZER
_ACTIVATIONS = tables.ACTIVATIONS


@subkernel
def behind_repeated(family: PlanFamily, begin: int, end: int, count: int) -> int:
    """Return the first layer behind some blocks of a chunk, or its end."""
    held = 0
    for layer in range(begin, end):
        if family.layers.is_block[layer] > 0.0:
            if held == count:
                return layer
            held += 1
    return end


@subkernel
def _saved_by_rounds(
    family: PlanFamily, plan: PlanChoice, stage: int, most: int
) -> float:
    """Return what passes of several chunks keep at most [byte].

    Any mixture of chunks may be in flight: each block counts by its largest round.
    """
    v, number = family.pipeline.v, family.order.number
    is_block, saved = family.layers.is_block, family.layers.saved
    mode = plan.mode
    each, leads, trails = 0.0, 0.0, 0.0
    for j in range(most):
        round_ = 0.0
        for c in range(v):
            k = number[stage, c]
            begin, end = plan.bounds[k], plan.bounds[k + 1]
            place = 0
            for layer in range(begin, end):
                if is_block[layer] > 0.0:
                    if place == j:
                        row = mode if j < plan.num_blocks else 0
                        round_ = max(round_, saved[row, layer])
                    place += 1
        each += round_
    for c in range(v):
        k = number[stage, c]
        begin, end = plan.bounds[k], plan.bounds[k + 1]
        for layer in range(begin, end):
            if is_block[layer] == 0.0:
                if begin == 0:
                    leads += saved[mode, layer]
                else:
                    trails += saved[mode, layer]
    kept: float = float(family.pipeline.in_flight[stage]) * (each + leads)
    kept += float(family.pipeline.last_in_flight) * trails
    return kept


@subkernel
def _waiting_bytes(
    family: PlanFamily, plan: PlanChoice, stage: int
) -> tuple[float, float]:
    """Return what passes keep at most, of an order that is read list by list [byte].

    Before it, by how much a backward pass leaves more than it found. What a chunk keeps
    for its weight gradients takes the place of what it saved.
    """
    order, layers, v = family.order, family.layers, family.pipeline.v
    first, last = order.waiting_starts[stage], order.waiting_starts[stage + 1]
    most, added = 0.0, 0.0
    for row in range(first, last):
        held = 0.0
        for c in range(v):
            k = order.number[stage, c]
            begin, end = plan.bounds[k], plan.bounds[k + 1]
            behind = behind_repeated(family, begin, end, plan.num_blocks)
            saved, kept = 0.0, 0.0
            for layer in range(begin, end):
                saved += layers.saved[plan.mode if layer < behind else 0, layer]
                kept += order.kept[layer]
            added = max(added, kept - saved)
            held += order.waiting[row, 0, c] * saved + order.waiting[row, 1, c] * kept
        most = max(most, held)
    return added, most


@subkernel
def _stage_memory(family: PlanFamily, plan: PlanChoice, stage: int) -> float:
    """Return the memory of a stage as `planner.step.memory` counts it [byte]."""
    v, layers, number = family.pipeline.v, family.layers, family.order.number
    job, sent, mode = family.job.constants, plan.sent, plan.mode
    in_flight = float(family.pipeline.in_flight[stage])
    dense, expert, largest, working, redone = 0.0, 0.0, 0.0, 0.0, 0.0
    most_saved = 0.0
    row = 0 if mode == _STAGE else mode
    most = 0
    for c in range(v):
        k = number[stage, c]
        begin, end = plan.bounds[k], plan.bounds[k + 1]
        blocks = 0
        behind = behind_repeated(family, begin, end, plan.num_blocks)
        ends = 0.0
        for layer in range(begin, end):
            if layers.is_block[layer] == 0.0 and not family.order.is_listed:
                ends += layers.saved[0, layer]
        for layer in range(begin, end):
            own = row if layer < behind else 0
            if layers.is_block[layer] == 0.0 and not family.order.is_listed:
                ends -= layers.saved[0, layer]
            dense += layers.dense[layer]
            expert += layers.expert[layer]
            largest = max(largest, layers.largest[layer])
            working = max(working, layers.working[own, layer] - ends)
            redone += layers.saved[0, layer]
            most_saved = max(most_saved, layers.saved[own, layer])
            if layers.is_block[layer] > 0.0:
                blocks += 1
        most = max(most, blocks)
    if stage == 0 and number[0, v - 1] == plan.bounds.size - 2:
        dense -= family.job.tied_parameters
    experts = job.expert_group
    whole, shard = dense + expert, dense / plan.group + expert / experts
    updated = shard if sent.shards_optimizer > 0.0 else whole
    reduced = shard if sent.shards_gradients > 0.0 else whole
    gathered = shard if sent.shards_weights > 0.0 else whole
    away = plan.offload
    stays: float = 1.0 - away[_ACTIVATIONS]
    total: float = (1.0 - away[_OPTIMIZER]) * job.optimizer_bytes * updated
    total += (1.0 - away[_GRADIENTS]) * job.gradient_bytes * reduced
    total += (1.0 - away[_WEIGHTS]) * job.weight_bytes * gathered
    on_host: float = away[_OPTIMIZER] * job.optimizer_bytes * updated
    on_host += away[_GRADIENTS] * job.gradient_bytes * reduced
    on_host += away[_WEIGHTS] * job.weight_bytes * gathered
    group = min(plan.group, experts) if expert > 0.0 else plan.group
    layer_weights = largest / (group if sent.shards_weights > 0.0 else 1.0)
    layer_gradients = largest / (group if sent.shards_gradients > 0.0 else 1.0)
    staging = away[_WEIGHTS] * job.weight_bytes * layer_weights
    staging += away[_GRADIENTS] * job.gradient_bytes * layer_gradients
    staging += away[_ACTIVATIONS] * most_saved
    total += tables.ON_THE_WAY * staging
    copies = (1.0 - away[_OPTIMIZER]) * job.copies_bytes * updated
    at_step_end: float = total + copies
    total += working
    if max(plan.group, experts) > 1.0:
        buffers = sent.whole_gradients * job.gradient_bytes
        buffers += sent.whole_weights * job.gather_bytes
        total += buffers * largest
    kept = 0.0
    if family.order.is_listed:
        most_added, kept = _waiting_bytes(family, plan, stage)
        total += most_added
    elif mode == _STAGE:
        entering = 0.0 if plan.bounds[stage] == 0 else family.job.boundary_bytes
        total += in_flight * entering + redone
    elif v == 1:
        once = 0.0
        begin, end = plan.bounds[stage], plan.bounds[stage + 1]
        behind = behind_repeated(family, begin, end, plan.num_blocks)
        for layer in range(begin, end):
            once += layers.saved[mode if layer < behind else 0, layer]
        kept = in_flight * once
    else:
        kept = _saved_by_rounds(family, plan, stage, most)
    total += stays * kept
    on_host += away[_ACTIVATIONS] * kept
    peak: float = max(total, at_step_end)
    if on_host * _SAFE > job.host_memory:
        # Whatever the device has, the host has too little.
        peak = np.inf
    return peak


@subkernel
def most_memory(family: PlanFamily, plan: PlanChoice) -> float:
    """Return the memory of the fullest stage, or of one that is too full [byte].

    What is on devices with less than the most counts by as much more.
    """
    most = 0.0
    for i in range(family.pipeline.p):
        most = max(most, _stage_memory(family, plan, i) * family.devices.scarcity[i])
        if most * _SAFE > family.job.constants.memory:
            break
    return most
