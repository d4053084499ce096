"""Admissible bounds of every configuration, in closed form.

Letters: ``W`` the sum of the layers' least times, ``x`` the least boundary transfer,
``p`` stages, ``m`` microbatches, ``dp`` replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import LayerTable
from estimators.layer_work import Degrees
from estimators.memory import optimizer_step_bytes, static_bytes
from planner.kernels import split as kernel
from planner.relaxation import fastest_hop
from planner.search_spec import SearchSpec
from planner.space import Inner
from planner.stage_tables import ClassSums, class_sums
from planner.workload import Workload
from topologies import Network

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InnerCosts:
    """What all configurations of one (tp, b) share."""

    degrees: Degrees
    table: LayerTable
    sums: ClassSums
    layer_minima: FloatArray
    """No choice and no placement makes a layer faster, shape ``(L,)`` [s]."""
    least_bottlenecks: FloatArray
    """Smallest slowest stage for each number of stages, shape ``(L + 1,)`` [s]."""


def inner_costs(
    workload: Workload, degrees: Degrees, tensor: dict[str, FloatArray]
) -> InnerCosts:
    """Work out what the configurations of one ``(tp, b)`` share.

    ``tensor`` are the rates of `planner.relaxation.best_tensor_rates`.
    """
    table = workload.table(degrees)
    minima = table.forward_time + table.backward_time
    for item in table.traffic:
        latency, inverse = tensor[item.operation][0]
        minima = minima + (item.forward_count + item.backward_count) * latency
        minima = minima + (item.forward_bytes + item.backward_bytes) * inverse
    return InnerCosts(
        degrees=degrees,
        table=table,
        sums=class_sums(table, workload.classes),
        layer_minima=minima,
        least_bottlenecks=kernel.least_bottlenecks(minima),
    )


def closed_form_bounds(
    network: Network,
    workload: Workload,
    spec: SearchSpec,
    item: Inner,
    costs: InnerCosts,
) -> FloatArray:
    """Return LB1 of every ``(pp, dp)``, from sums of layer minima [s].

    ``W + 2 (p - 1) x + (m - 1) max(bottleneck_p + x, (W + 2 (p - 1) x) / p)`` and the
    optimizer step of the mean stage, with ``W`` the sum of the layers' least times,
    ``x`` the least boundary transfer (none at p = 1).
    """
    p, dp = np.array(item.sizes).T
    m = np.ceil(
        workload.training.global_batch_size / (item.degrees.micro_batch_size * dp)
    )
    latency, inverse = fastest_hop(network)
    least_cut = min(costs.table.boundary_bytes[1:-1], default=0.0)
    transfer = np.where(p > 1, latency + least_cut * inverse, 0.0)
    total = costs.layer_minima.sum() + 2 * (p - 1) * transfer
    slowest = np.maximum(costs.least_bottlenecks[p] + transfer, total / p)
    sharded = dp if max(spec.zero_stages) >= 1 else np.ones_like(dp)
    parameters = costs.sums.parameters[workload.classes.whole] / (p * sharded)
    step = parameters * optimizer_step_bytes(workload.parameter_bytes)
    bound = total + (m - 1) * slowest + step / workload.memory_rate
    return np.asarray(bound * kernel.SAFE, dtype=np.float64)


def least_memory_bounds(
    workload: Workload, spec: SearchSpec, item: Inner, costs: InnerCosts
) -> FloatArray:
    """Return the parameters' memory of the mean stage under the thriftiest ZeRO stage.

    Some stage holds at least the mean, so this much is needed by every split [byte].
    """
    p, dp = np.array(item.sizes).T
    parameters = costs.sums.parameters[workload.classes.whole]
    held = [
        static_bytes(
            parameters / p,
            np.zeros(1),
            each=workload.parameter_bytes,
            zero_stage=zero,
            zero_group=dp,
        ).total()
        for zero in spec.zero_stages
    ]
    return np.asarray(np.min(held, axis=0) * kernel.SAFE, dtype=np.float64)
