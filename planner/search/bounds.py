"""Admissible bounds of every configuration, in closed form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from estimators.layers.work import Degrees, LayerTable
from planner.kernels import closed_form as kernel
from planner.kernels.tables import GRADIENTS, OPTIMIZER, WEIGHTS, JobConstants
from planner.search.device_kinds import least_step_time
from planner.search.exposed import unhidden_job
from planner.search.relaxation import Relaxation
from planner.search.space import Inner, SearchSpec
from planner.step.execution import Workload
from planner.step.ledger import KERNEL_LEDGER
from topologies.arrays import FloatArray


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
