"""What the stages of one plan do, for its timeline, and what its end sends.

`planner.kernels.replay_bound` bounds many plans by some paths of waits; this is what a
timeline of all waits reads of one of them (`planner.search.replayed.timelines`).
Letters as there.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels.replay_bound import least_exit, plan_choice, with_count
from planner.kernels.replay_memory import PlanFamily, Variants
from planner.kernels.stage_times import (
    PlanStages,
    empty_stages,
    fill_passes,
    gathering_time,
    reduction_time,
    update_time,
)
from topologies.arrays import FloatCube, FloatMatrix, FloatVector
from topologies.compiling import kernel, writing_kernel


class StageTerms(NamedTuple):
    """What the stages of one plan do, no longer than in any replay."""

    durations: FloatMatrix
    """Passes of each virtual stage: forward, backward and weight gradients, the latter
    in the second where they are no passes of their own, shape ``(3, C)`` [s]."""

    gathers: FloatMatrix
    """Gathering the weights of each chunk before its first pass, shape ``(p, v)``
    [s]."""

    updates: FloatVector
    """Optimizer step and what gathers its weights, shape ``(p,)`` [s]."""

    reduction: FloatMatrix
    """Reducing gradients of dense and expert parameters: once if there are any [s], and
    for a parameter [s], shape ``(p, 4)``."""

    sizes: FloatCube
    """Dense (0) and expert (1) parameters of each chunk, shape ``(2, p, v)``."""


@writing_kernel
def _fill_terms(
    family: PlanFamily,
    variants: Variants,
    num_blocks: int,
    stages: PlanStages,
    terms: StageTerms,
) -> None:
    """Fill the terms of the first plan."""
    p, v, job = family.pipeline.p, family.pipeline.v, family.job
    plan = plan_choice(family, variants, 0, 0)
    if num_blocks > 0:
        plan = with_count(plan, num_blocks)
    fill_passes(family, plan, stages)
    joins = family.order.number[0, v - 1] == p * v - 1
    for i in range(p):
        rate, dense, expert = family.sent.ends[i], 0.0, 0.0
        for chunk in range(v):
            k = family.order.number[i, chunk]
            held, spread = 0.0, 0.0
            for layer in range(plan.bounds[k], plan.bounds[k + 1]):
                held += family.layers.dense[layer]
                spread += family.layers.expert[layer]
            if joins and k == p * v - 1:
                held -= job.tied_parameters
            terms.sizes[0, i, chunk], terms.sizes[1, i, chunk] = held, spread
            if job.gathers_ahead:
                terms.gathers[i, chunk] = gathering_time(
                    rate, plan, held, spread, job.constants
                )
            dense, expert = dense + held, expert + spread
        terms.updates[i] = update_time(family, plan, i, dense, expert)
        for kind in range(2):
            once = reduction_time(rate, plan, 1.0 - kind, 1.0 * kind, job.constants)
            twice = reduction_time(
                rate, plan, 2.0 - 2.0 * kind, 2.0 * kind, job.constants
            )
            terms.reduction[i, 2 * kind] = max(0.0, 2.0 * once - twice)
            terms.reduction[i, 2 * kind + 1] = twice - once


@kernel
def stage_terms(family: PlanFamily, variants: Variants, num_blocks: int) -> StageTerms:
    """Return the terms of the first plan, which repeats so many blocks; 0 for all."""
    p, v = family.pipeline.p, family.pipeline.v
    stages = empty_stages(p, p * v)
    terms = StageTerms(
        durations=np.zeros((3, p * v)),
        gathers=np.zeros((p, v)),
        updates=np.zeros(p),
        reduction=np.zeros((p, 4)),
        sizes=np.zeros((2, p, v)),
    )
    _fill_terms(family, variants, num_blocks, stages, terms)
    terms.durations[0] = stages.forward
    terms.durations[1] = stages.backward
    if family.order.is_listed:
        terms.durations[1], terms.durations[2] = stages.passed_on, stages.weight
    return terms


@writing_kernel
def _exit(family: PlanFamily, variants: Variants, stages: PlanStages) -> float:
    """Bound the first plan by what leaves blocks of the network [s]."""
    return least_exit(family, plan_choice(family, variants, 0, 0), stages)


@kernel
def exit_bound(
    family: PlanFamily, variants: Variants, sizes: FloatCube, released: FloatVector
) -> float:
    """Bound the first plan by what leaves blocks of the network [s].

    Parameters
    ----------
    family, variants
        The plan.
    sizes
        As of `StageTerms`.
    released
        The earliest begin of collectives of each stage's end, shape ``(p,)`` [s].
    """
    p = family.pipeline.p
    stages = empty_stages(p, p * family.pipeline.v)
    for i in range(p):
        times = family.order.crossings[i]
        stages.counts[i] = family.job.boundary_bytes * family.pipeline.m * times
        stages.released[i] = released[i]
        for kind in range(2):
            stages.sizes[kind, i] = sizes[kind, i].sum()
    return _exit(family, variants, stages)
