"""What still fits: the largest micro-batch and the longest sequence of a plan."""

from dataclasses import replace
from typing import NamedTuple

from estimators.tracing.trace import trace_model
from planner.memory.account import MemoryJob, PlanMemory
from planner.memory.changes import PlanStep, changed_memory
from planner.plans.spec import PlanSpec
from planner.search.space import divisors
from topologies.errors import InputError

LONGEST = 2**23
"""Longest sequence that is tried [token]."""

PARTS = 16
"""Lengths between two that are twice as long as the other are tried in such parts."""


class Largest(NamedTuple):
    """A size, and what the plan needs with it."""

    size: int
    """The largest that fits."""

    memory: PlanMemory
    """What the plan needs with it."""


def largest_micro_batch(job: MemoryJob, spec: PlanSpec) -> Largest | None:
    """Return the largest micro-batch with which the plan fits; None if none does.

    Of those that make the global batch in full microbatches.
    """
    before = job.memory(spec)
    dp = before.plan.parallel.data_parallel_size
    per_replica = max(job.workload.training.global_batch_size // dp, 1)
    for size in reversed(divisors(per_replica)):
        step = PlanStep({"micro_batch_size": size, "num_microbatches": None})
        found = changed_memory(job, spec, step)
        if found is not None and found[1].fits(job.limits):
            return Largest(size, found[1])
    return None


def longest_sequence(job: MemoryJob, spec: PlanSpec) -> Largest | None:
    """Return the longest sequence with which a plan fits that fits; else None.

    Doubled until it does not fit, then bisected to `PARTS`: longer sequences need more
    memory. Each length is traced, and learned positions grow with it.
    """
    low = job.workload.graph.spec.sequence_length
    best = _at_length(job, spec, low)
    if best is None:
        return None
    while 2 * low <= LONGEST and (found := _at_length(job, spec, 2 * low)):
        best, low = found, 2 * low
    fits, fails = 0, PARTS
    while fails - fits > 1:
        middle = (fits + fails) // 2
        found = _at_length(job, spec, low + low * middle // PARTS)
        if found is None:
            fails = middle
        else:
            best, fits = found, middle
    return best


def _at_length(job: MemoryJob, spec: PlanSpec, length: int) -> Largest | None:
    """Return what a plan needs at a length of sequences, None if it does not fit."""
    workload = job.workload
    try:
        model = workload.graph.spec
        positions = max(model.max_position_embeddings, length)
        graph = trace_model(
            replace(model, sequence_length=length, max_position_embeddings=positions)
        )
        longer = replace(job, workload=replace(workload, graph=graph))
        memory = longer.memory(spec)
    except InputError:
        return None
    return Largest(length, memory) if memory.fits(job.limits) else None
