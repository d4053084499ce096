"""Admissible bounds of configurations, and what stages cost where sends are hidden.

The planned objective charges passes and the step's end in full. With
`SearchSpec.hides` what goes on beside compute costs what is left of it when the compute
is over, interval by interval, with ``F`` and ``B`` the forward and backward part of the
compute of a microbatch::

    passes     compute + what waits + max(0, tensor collectives - compute)
               + max(0, what ZeRO sends in passes - compute)
    step end   optimizer + max(gradients - B, their last bucket)
               + max(parameters - F, their first bucket)

It grows with every rate, so the splits of a bound of the rates bound these costs, too.
What is hidden may cost nothing: bounds that know no split leave it out (`unhidden`).
When buckets are filled and which layer hides what are left to `planner.cost.pricing`.

"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layers.table import LayerTable
from estimators.layers.work import Degrees
from planner.kernels import closed_form as kernel
from planner.kernels import tables
from planner.kernels.tables import (
    GRADIENTS,
    OPTIMIZER,
    WEIGHTS,
    Choices,
    ClassSums,
    JobConstants,
)
from planner.search.device_kinds import least_step_time
from planner.search.relaxation import Relaxation
from planner.search.space import Inner, SearchSpec
from planner.step.execution import Execution, Workload
from planner.step.exposure import bucket_parameters
from planner.step.ledger import KERNEL_LEDGER
from topologies.arrays import FloatArray

Costs = tuple[FloatArray, FloatArray]
"""Time of passes and step end, ``(sig, C, K)`` each [s]."""

Price = Callable[[FloatArray, JobConstants], Costs]
"""Returns costs in full, of rates and what parameters cost."""

_TENSOR = slice(tables.TENSOR_REDUCE, tables.CONTEXT)
_PARAMETERS = slice(tables.DENSE_REDUCE, None)


def hides_anything(execution: Execution) -> bool:
    """Tell whether a framework hides anything that these costs know of."""
    return execution.tp_comm_overlap or hides_parameters(execution)


def hides_parameters(execution: Execution) -> bool:
    """Tell whether a framework hides gradients or parameters on their way."""
    return execution.overlap_grad_reduce or execution.overlap_param_gather


def unhidden_job(job: JobConstants, execution: Execution) -> JobConstants:
    """Return what a parameter costs if what may be hidden costs nothing."""
    if execution.overlap_grad_reduce:
        job = job._replace(reduce_bytes=0.0)
    if execution.overlap_param_gather:
        job = job._replace(gather_bytes=0.0)
    return job


def unhidden_rows(rows: FloatArray, execution: Execution) -> FloatArray:
    """Return rates if what may be hidden costs nothing.

    Nothing of what is sent for parameters, if any of it is hidden: gradients and
    weights have columns in common.
    """
    rows = rows.copy()
    if execution.tp_comm_overlap:
        rows[:, _TENSOR] = 0.0
    if hides_parameters(execution):
        rows[:, _PARAMETERS] = 0.0
    return rows


class Covers(NamedTuple):
    """What goes on beside what stages send, and how far it can hide that."""

    compute: FloatArray
    """Compute of a microbatch by choice and class, shape ``(C, K)`` [s]."""

    backward: float
    """Part of it that is the backward pass."""

    bucket: FloatArray
    """Part of a stage's parameters that one bucket has, shape ``(K,)``."""


def exposed_costs(
    price: Price,
    rows: FloatArray,
    job: JobConstants,
    execution: Execution,
    covers: Covers,
) -> Costs:
    """Return what stages cost with everything hidden that the framework hides.

    Parameters
    ----------
    price
        Returns the costs in full.
    rows, job
        Rates of the stages, and what a parameter costs.
    execution
        What the framework hides.
    covers
        What it hides that behind.
    """
    compute, backward, bucket = covers
    time, step_end = price(rows, job)
    whole, whole_end = time, step_end
    if execution.tp_comm_overlap:
        bare = rows.copy()
        bare[:, _TENSOR] = 0.0
        sent = whole - price(bare, job)[0]
        time = time - np.minimum(sent, compute)
    in_passes = np.zeros_like(whole)
    if execution.overlap_grad_reduce:
        free = price(rows, job._replace(reduce_bytes=0.0))
        in_passes += whole - free[0]
        sent = whole_end - free[1]
        step_end = step_end - np.minimum((1.0 - bucket) * sent, backward * compute)
    if execution.overlap_param_gather:
        free = price(rows, job._replace(gather_bytes=0.0))
        in_passes += whole - free[0]
        sent, forward = whole_end - free[1], (1.0 - backward) * compute
        step_end = step_end - np.minimum((1.0 - bucket) * sent, forward)
    return time - np.minimum(in_passes, compute), step_end


def bucket_shares(sums: ClassSums, num_ranks: int, num_chunks: int) -> FloatArray:
    """Return the part of the parameters of a class that one bucket has, ``(K,)``.

    Each of a stage's chunks has its own; ``num_ranks`` hold the same parameters.
    """
    held = np.maximum(sums.parameters + sums.expert_parameters, 1.0)
    share = bucket_parameters(num_ranks) / held
    return np.asarray(np.minimum(share, 1.0 / num_chunks))


def compute_times(sums: ClassSums, choices: Choices) -> FloatArray:
    """Return the compute of a microbatch by choice and class, ``(C, K)`` [s]."""
    return np.asarray(sums.compute + sums.recompute[choices.recompute])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBounds:
    """What bounds need of a layer table."""

    minima: FloatArray
    """Least time of each layer under any choice and placement, shape ``(L,)`` [s]."""
    total: float
    """Sum of `minima` [s]."""
    largest: float
    """Largest of `minima` [s]."""
    least_block: float
    """Smallest of `minima` among transformer blocks [s]."""
    num_blocks: int
    """Number of transformer blocks."""
    boundary_bytes: float
    """Traffic of each rank of a replica over every boundary [byte]."""
    context_bytes: float
    """Traffic of all layers in hops of the context-parallel ring [byte]."""
    context_inverse: float
    """Inverse bandwidth that a hop is counted with in `minima` [s/byte]."""
    expert_bytes: float
    """Traffic of all layers among expert-parallel ranks [byte]."""
    expert_inverse: float
    """Inverse bandwidth that an exchange among experts is counted with in `minima`
    [s/byte]."""
    dense: float
    """Parameters on one device outside of routed experts, tied ones once."""
    expert: float
    """Parameters of routed experts on one device."""


def layer_bounds(
    table: LayerTable, tensor: FloatArray, relaxation: Relaxation, degrees: Degrees
) -> LayerBounds:
    """Bound a table's layers; ``tensor`` from `relaxation.best_group_rates`."""
    minima = table.forward_time + table.backward_time
    tp, cp, ep = degrees.tp, degrees.cp, degrees.ep
    latency, _ = relaxation.hop
    rates = {
        ("tensor", "all_reduce"): tensor[0],
        ("tensor", "all_gather"): tensor[1],
        ("tensor", "reduce_scatter"): tensor[1],
        ("context", "send_recv"): (latency, relaxation.context_inverse(tp, cp)),
        ("expert", "all_to_all"): (latency, relaxation.exchange_inverse(ep)),
    }
    sent = dict.fromkeys(("tensor", "context", "expert"), 0.0)
    for item in table.traffic:
        sent[item.group] += float((item.forward_bytes + item.backward_bytes).sum())
        latency, inverse = rates[item.group, item.operation]
        minima = minima + (item.forward_count + item.backward_count) * latency
        minima = minima + (item.forward_bytes + item.backward_bytes) * inverse
    blocks = minima[table.is_block > 0]
    expert = float(table.expert_parameters.sum())
    return LayerBounds(
        minima=minima,
        total=float(minima.sum()),
        largest=float(minima.max()),
        least_block=float(blocks.min(initial=np.inf)) if blocks.size else 0.0,
        num_blocks=int(blocks.size),
        boundary_bytes=float(table.boundary_bytes[1:-1].max(initial=0.0)),
        context_bytes=sent["context"],
        context_inverse=rates["context", "send_recv"][1],
        expert_bytes=sent["expert"],
        expert_inverse=rates["expert", "all_to_all"][1],
        dense=float(table.parameters.sum()) - expert - table.tied_parameters,
        expert=expert,
    )


def closed_form_bounds(
    relaxation: Relaxation,
    workload: Workload,
    spec: SearchSpec,
    item: Inner,
    layers: LayerBounds,
) -> tuple[FloatArray, FloatArray]:
    """Return LB1 [s] and the least memory [byte] of every ``(pp, dp)`` of ``item``."""
    degrees = item.degrees
    batch = workload.training.global_batch_size
    chain = kernel.ChainTerms(
        total=layers.total,
        largest=layers.largest,
        least_block=layers.least_block,
        num_blocks=float(layers.num_blocks),
        boundary_bytes=layers.boundary_bytes,
        dense=layers.dense,
        expert=layers.expert,
        batch=batch / degrees.micro_batch_size,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        v=item.v,
    )
    found: tuple[FloatArray, FloatArray] = kernel.closed_form(
        chain,
        relaxation.terms_of(degrees.tp),
        _least_constants(workload, spec),
        KERNEL_LEDGER[sorted(set(spec.zero_stages))],
        item.pp,
        item.dp,
    )
    return found


def _least_constants(workload: Workload, spec: SearchSpec) -> JobConstants:
    """Return what a parameter costs a device at least, whatever hosts keep of it."""
    job = job_constants(workload)
    if spec.hides:
        job = unhidden_job(job, workload.execution)
    most = np.max(spec.offload, axis=0)
    stays = 1.0 - most
    return job._replace(
        weight_bytes=job.weight_bytes * float(stays[WEIGHTS]),
        gradient_bytes=job.gradient_bytes * float(stays[GRADIENTS]),
        optimizer_bytes=job.optimizer_bytes * float(stays[OPTIMIZER]),
        step_time=job.step_time * float(stays[OPTIMIZER]),
    )


def job_constants(workload: Workload) -> JobConstants:
    """Return what a parameter costs at least; memory and experts are still open."""
    each = workload.parameter_bytes
    return JobConstants(
        weight_bytes=float(each.weights),
        gradient_bytes=float(each.gradients),
        optimizer_bytes=float(each.optimizer),
        copies_bytes=float(each.copies),
        gather_bytes=float(each.gather),
        reduce_bytes=float(each.reduce),
        step_time=least_step_time(workload),
    )


class Outer(NamedTuple):
    """Configurations in the order of LB1, as arrays."""

    inner: NDArray[np.int32]
    """Number of each configuration's inner configuration."""
    place: NDArray[np.int32]
    """Number of each configuration's pair ``(pp, dp)`` among those of its inner
    configuration."""
    bounds: FloatArray
    """Closed-form bound LB1 of each configuration, rising [s]."""
    memory: FloatArray
    """Least memory of each configuration [byte]."""


def ordered(
    sizes: Sequence[int], bounds: Iterable[tuple[FloatArray, FloatArray]]
) -> Outer:
    """Sort what `closed_form_bounds` finds of each inner configuration.

    Ties stay in order of enumeration. ``sizes`` are the lengths of ``bounds``, which
    are read one by one: of tens of millions no second copy is kept.
    """
    total = sum(sizes)
    values, held = np.empty(total), np.empty(total)
    number = np.empty(total, dtype=np.int32)
    place = np.empty(total, dtype=np.int32)
    start = 0
    for index, (size, bound) in enumerate(zip(sizes, bounds, strict=True)):
        here = slice(start, start + size)
        values[here], held[here] = bound
        number[here], place[here] = index, np.arange(size)
        start += size
    order = np.argsort(values, kind="stable")
    return Outer(number[order], place[order], values[order], held[order])
