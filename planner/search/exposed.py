"""What stages cost where the framework hides what they send behind their compute.

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

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.kernels import tables
from planner.kernels.tables import Choices, ClassSums, JobConstants
from planner.step.execution import Execution
from planner.step.exposure import bucket_parameters
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
