"""What passes, and the ends of steps, of the stages of one plan take at least.

`planner.kernels.replay_bound` makes paths of waits of them, and timelines read them
(`planner.kernels.stage_terms`). Letters as in the former.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels import tables
from planner.kernels.replay_memory import PlanChoice, PlanFamily, behind_repeated
from planner.kernels.tables import JobConstants
from topologies.arrays import FloatMatrix, FloatVector
from topologies.compiling import subkernel


class PlanStages(NamedTuple):
    """What is found of the stages of one plan."""

    forward: FloatVector
    """``f`` of each virtual stage, shape ``(C,)`` [s]."""

    backward: FloatVector
    """``b`` of each virtual stage, shape ``(C,)`` [s]."""

    work: FloatVector
    """All passes of a microbatch, shape ``(p,)`` [s]."""

    step_ends: FloatVector
    """What is still to do after the last backward pass, shape ``(p,)`` [s]."""

    hidden: FloatVector
    """Passes behind which gradients may be reduced, shape ``(p,)`` [s]."""

    alone_forward: FloatVector
    """``F`` of each virtual stage, shape ``(C,)`` [s]."""

    alone_backward: FloatVector
    """``B`` of each virtual stage, shape ``(C,)`` [s]."""

    alone_work: FloatMatrix
    """What passes that fill (0) and empty (1) the pipeline take beyond `work`, ``(2,
    p)`` [s]."""

    weight: FloatVector
    """Least time of weight gradients, in ``b``, shape ``(C,)`` [s]."""

    passed_on: FloatVector
    """Least time until a gradient is passed on, in ``b``, shape ``(C,)`` [s]."""

    released: FloatVector
    """The earliest begin of collectives of the step's end, shape ``(p,)`` [s]."""

    sizes: FloatMatrix
    """Dense (0) and expert (1) parameters, shape ``(2, p)``."""

    counts: FloatVector
    """Bytes that a lane sends over the boundary after a stage, one way, ``(p,)``."""


@subkernel
def reduction_time(
    rate: FloatVector, plan: PlanChoice, dense: float, expert: float, job: JobConstants
) -> float:
    """Return the gradient collective of some parameters, alone on its links [s]."""
    gradient, sent = job.reduce_bytes, plan.sent
    inside, across = (
        tables.SHARD_PASS + 4 * plan.option,
        tables.SHARD_ACROSS + 4 * plan.option,
    )
    time = 0.0
    if dense > 0.0:
        whole = (
            rate[tables.DENSE_REDUCE] + gradient * dense * rate[tables.DENSE_REDUCE + 1]
        )
        once = rate[inside] + gradient * dense * rate[inside + 1]
        part = rate[across] + gradient * dense / plan.group * rate[across + 1]
        time += sent.reduced_whole * whole + sent.reduced_once * once
        time += sent.reduced_across * part
    if expert > 0.0:
        whole = (
            rate[tables.EXPERT_REDUCE]
            + gradient * expert * rate[tables.EXPERT_REDUCE + 1]
        )
        once = (
            rate[tables.EXPERT_PASS] + gradient * expert * rate[tables.EXPERT_PASS + 1]
        )
        time += sent.reduced_whole * whole + sent.reduced_once * once
    return time


@subkernel
def gathering_time(
    rate: FloatVector, plan: PlanChoice, dense: float, expert: float, job: JobConstants
) -> float:
    """Return how long the weights of an update take to gather, alone [s]."""
    inside = tables.SHARD_PASS + 4 * plan.option
    weight = job.update_bytes
    time: float = 0.0
    if dense > 0.0:
        time += rate[inside] + weight * dense * rate[inside + 1]
    if expert > 0.0:
        time += (
            rate[tables.EXPERT_PASS] + weight * expert * rate[tables.EXPERT_PASS + 1]
        )
    time *= plan.sent.gathered_once
    return time


@subkernel
def fill_passes(family: PlanFamily, plan: PlanChoice, stages: PlanStages) -> None:
    """Fill the times of the passes of each virtual stage."""
    p, v, job = family.pipeline.p, family.pipeline.v, family.job
    bounds, mode, option = plan.bounds, plan.mode, plan.option
    forward, backward = family.passes.forward, family.passes.backward
    sharded, hidden = family.passes.sharded, family.passes.hidden
    f, b, w = stages.forward, stages.backward, stages.weight
    alone_f, alone_b = stages.alone_forward, stages.alone_backward
    alone = family.passes.alone_forward, family.passes.alone_backward
    order, number = family.order, family.order.number
    reduces, gathers = plan.sent.reduced_each, plan.sent.gathered_each
    for k in range(p * v):
        stage = order.stage[k]
        row = family.passes.signature[stage]
        begin, end = bounds[k], bounds[k + 1]
        f[k] = job.messages_time + forward[row, end] - forward[row, begin]
        behind = behind_repeated(family, begin, end, plan.num_blocks)
        b[k] = job.messages_time
        b[k] += backward[row, mode, behind] - backward[row, mode, begin]
        b[k] += backward[row, 0, end] - backward[row, 0, behind]
        alone_f[k] = job.messages_time + alone[0][row, end] - alone[0][row, begin]
        alone_b[k] = job.messages_time
        alone_b[k] += alone[1][row, mode, behind] - alone[1][row, mode, begin]
        alone_b[k] += alone[1][row, 0, end] - alone[1][row, 0, behind]
        w[k] = 0.0
        if order.is_listed:
            w[k] = order.weight[row, end] - order.weight[row, begin]
        stages.passed_on[k] = b[k] - w[k]
        if reduces + gathers > 0.0:
            first, second = begin, end
            share = 1.0
            by_layer = job.by_layer
            by_layer |= job.gathers_ahead and gathers > 0.0
            by_layer |= job.reduces_behind and reduces > 0.0
            by_layer |= plan.offload.sum() > plan.offload[tables.OPTIMIZER]
            if not by_layer and v > 1:
                held = 0
                for chunk in range(v):
                    first = bounds[number[stage, chunk]]
                    held += bounds[number[stage, chunk] + 1] - first
                share = (end - begin) / held
            for chunk in range(v):
                if share < 1.0:
                    first = bounds[number[stage, chunk]]
                    second = bounds[number[stage, chunk] + 1]
                elif chunk > 0:
                    break
                reduced = sharded[row, option, 1, second]
                reduced -= sharded[row, option, 1, first]
                gathered = sharded[row, option, 0, second]
                gathered -= sharded[row, option, 0, first]
                # Half of the gathers in either pass.
                reduced, gathered = reduces * reduced, 0.5 * gathers * gathered
                f[k] += share * gathered
                b[k] += share * (reduced + gathered)
                alone_f[k] += share * gathered
                alone_b[k] += share * (reduced + gathered)
                w[k] += share * reduced
                stages.passed_on[k] += share * gathered
            beside = hidden[row, option, 1, end] - hidden[row, option, 1, begin]
            least = reduces * beside
            beside = hidden[row, option, 0, end] - hidden[row, option, 0, begin]
            least = max(least, 0.5 * gathers * beside)
            b[k], alone_b[k] = max(b[k], least), max(alone_b[k], least)
            least = 0.5 * gathers * beside
            f[k], alone_f[k] = max(f[k], least), max(alone_f[k], least)


@subkernel
def _listed_behind(
    family: PlanFamily, stages: PlanStages, stage: int, chunk: int
) -> float:
    """Return the passes of a chunk from the stage's first complete gradient on [s]."""
    order, k = family.order, family.order.number[stage, chunk]
    time: float = order.behind[stage, 0, chunk] * stages.forward[k]
    time += order.behind[stage, 1, chunk] * stages.passed_on[k]
    time += order.behind[stage, 2, chunk] * (stages.backward[k] - stages.passed_on[k])
    return time


@subkernel
def update_time(
    family: PlanFamily, plan: PlanChoice, i: int, dense: float, expert: float
) -> float:
    """Return what a stage does once its parameters' gradients are reduced [s]."""
    job, devices, sent = family.job, family.devices, plan.sent
    step = dense + expert
    if sent.shards_optimizer > 0.0:
        step = dense / plan.group + expert / job.constants.expert_group
    time: float = step * devices.step_time[i] + job.step_once
    if plan.offload[tables.OPTIMIZER] > 0.0:
        time += plan.host_once + plan.host_step * step
        time += plan.offload[tables.OPTIMIZER] * devices.host_saving[i] * step
    senders = family.sent.senders[plan.option]
    time += job.shard_time * senders * sent.gathered_once
    if not job.gathers_ahead:
        time += gathering_time(family.sent.ends[i], plan, dense, expert, job.constants)
    return time


@subkernel
def fill_ends(
    family: PlanFamily, plan: PlanChoice, stages: PlanStages
) -> tuple[float, float]:
    """Fill what stages do at the step's end.

    Returns
    -------
    tuple[float, float]
        What the first stage still has to do after its last backward pass, and how long
        its first pass waits for weights [s].
    """
    p, v, job, layers = family.pipeline.p, family.pipeline.v, family.job, family.layers
    others = family.pipeline.round_passes
    constants, f, b = job.constants, stages.forward, stages.backward
    # No less than paths take them for: reducing begins no later.
    alone_f, alone_b = stages.alone_forward, stages.alone_backward
    first_end, start_wait = 0.0, 0.0
    joins = family.order.number[0, v - 1] == p * v - 1
    for i in range(p):
        work, dense, expert, later = 0.0, 0.0, 0.0, 0.0
        fills, empties = 0.0, 0.0
        first_dense, first_expert = 0.0, 0.0
        for chunk in range(v):
            k = family.order.number[i, chunk]
            work += f[k] + b[k]
            fills += family.order.alone[i, 0, chunk] * (alone_f[k] - f[k])
            empties += family.order.alone[i, 1, chunk] * (alone_b[k] - b[k])
            if family.order.is_listed:
                later += _listed_behind(family, stages, i, chunk)
            else:
                later += alone_b[k] * (others if chunk < v - 1 else 1)
            for layer in range(plan.bounds[k], plan.bounds[k + 1]):
                dense += layers.dense[layer]
                expert += layers.expert[layer]
            if joins and k == p * v - 1:
                dense -= job.tied_parameters
            if chunk == 0:
                first_dense, first_expert = dense, expert
        rate = family.sent.ends[i]
        stages.work[i] = work
        stages.alone_work[0, i], stages.alone_work[1, i] = fills, empties
        stages.sizes[0, i], stages.sizes[1, i] = dense, expert
        optimizer = update_time(family, plan, i, dense, expert)
        if not joins and (i == 0 or i == p - 1):
            optimizer += job.tied_time
        reduced = reduction_time(rate, plan, dense, expert, constants)
        stages.hidden[i] = later if job.reduces_behind else 0.0
        stages.released[i] = 0.0
        if job.reduces_behind:
            stages.step_ends[i] = optimizer + max(0.0, reduced - later)
        else:
            stages.step_ends[i] = optimizer + reduced
        if i > 0:
            continue
        first_end = stages.step_ends[0]
        if family.order.is_listed:
            first_end = stages.weight[0] + optimizer
            first_end += 0.0 if job.reduces_behind else reduced
        elif job.reduces_behind and v > 1:
            alone = reduction_time(rate, plan, first_dense, first_expert, constants)
            first_end = optimizer + max(0.0, alone - alone_b[0])
        if job.gathers_ahead:
            needed = gathering_time(rate, plan, first_dense, first_expert, constants)
            start_wait = max(0.0, needed - alone_f[0])
    return first_end, start_wait


@subkernel
def empty_stages(p: int, num_virtual: int) -> PlanStages:
    """Return stages of which nothing is known."""
    return PlanStages(
        forward=np.empty(num_virtual),
        backward=np.empty(num_virtual),
        alone_forward=np.empty(num_virtual),
        alone_backward=np.empty(num_virtual),
        alone_work=np.empty((2, p)),
        weight=np.empty(num_virtual),
        passed_on=np.empty(num_virtual),
        work=np.empty(p),
        step_ends=np.empty(p),
        hidden=np.empty(p),
        released=np.empty(p),
        sizes=np.empty((2, p)),
        counts=np.empty(p),
    )
