"""Admissible bounds of every configuration, in closed form.

Letters: ``W`` the sum of the layers' least times, ``X`` the least transfers of a
microbatch, ``p`` stages, ``v`` virtual stages, ``m`` microbatches, ``n`` replicas.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from estimators.layer_table import LayerTable
from estimators.memory import Sharded, optimizer_step_bytes, static_bytes
from planner.kernels import split as kernel
from planner.relaxation import Relaxation
from planner.search_spec import SearchSpec
from planner.space import Inner
from planner.workload import Workload

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerBounds:
    """What bounds need of a layer table."""

    minima: FloatArray
    """No choice and no placement makes a layer faster, shape ``(L,)`` [s]."""
    total: float
    """Their sum [s]."""
    largest: float
    """The slowest layer [s]."""
    least_block: float
    """The fastest block [s]."""
    num_blocks: int
    boundary_bytes: float
    """What each lane sends over every boundary [byte]."""
    dense: float
    """Parameters on one device outside of routed experts, tied ones once."""
    expert: float
    """Parameters of routed experts on one device."""


def layer_bounds(
    table: LayerTable, tensor: dict[str, FloatArray], hop: FloatArray, ep: int
) -> LayerBounds:
    """Bound a table's layers; ``tensor`` from `planner.relaxation.best_group_rates`."""
    minima = table.forward_time + table.backward_time
    for item in table.traffic:
        if item.group == "tensor":
            latency, inverse = tensor[item.operation][0]
        else:
            share = (ep - 1) / ep if item.group == "expert" else 1.0
            latency, inverse = hop * (1.0, share)
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
        dense=float(table.parameters.sum()) - expert - table.tied_parameters,
        expert=expert,
    )


def closed_form_bounds(
    relaxation: Relaxation,
    workload: Workload,
    spec: SearchSpec,
    item: Inner,
    layers: LayerBounds,
) -> FloatArray:
    """Return LB1 of every ``(pp, dp)`` of one inner configuration [s].

    ``ws (W + X) + wm max(mean stage, largest layer, most blocks of a stage) + tail``,
    where some stage holds at least ``ceil(blocks / (v p))`` blocks in each of its ``v``
    chunks.
    """
    p, dp, v = item.pp, item.dp, item.v
    m = np.ceil(
        workload.training.global_batch_size / (item.degrees.micro_batch_size * dp)
    )
    one = float(relaxation.hop[0] + layers.boundary_bytes * relaxation.hop[1])
    transfers = np.where(p > 1, 2.0 * one * (v * (p - 1) + v - 1), 0.0)
    per_stage = np.where(p > 1, v * one, 0.0)
    total = layers.total + transfers
    blocks = v * np.ceil(layers.num_blocks / (v * p)) * layers.least_block
    slowest = np.maximum(total / p, np.maximum(blocks, layers.largest) + per_stage)
    time = total / v + (m - 1.0 / v) * slowest
    tail = _tail_bound(relaxation, workload, spec, item, layers)
    return np.asarray((time + tail) * kernel.SAFE, dtype=np.float64)


def _tail_bound(
    relaxation: Relaxation,
    workload: Workload,
    spec: SearchSpec,
    item: Inner,
    layers: LayerBounds,
) -> FloatArray:
    """Return what synchronisation and the optimizer add at least [s].

    Some stage holds at least the mean dense parameters. Under ZeRO-0 and 1 it pays for
    them in its tail; under ZeRO-2 and 3 in its tail and, for one microbatch, in the
    sum of stage times. Hybrid sharding pays for gradients at least as much as the whole
    group in a reduce-scatter under ZeRO-1, and may pay next to nothing else.
    """
    n = (item.dp * item.degrees.cp).astype(np.float64)
    each = workload.parameter_bytes
    held = layers.dense / item.pp
    whole = relaxation.pass_inverse(item.degrees.tp, n)
    port = 0.5 * relaxation.hop[1] * (n > 1)
    inside = np.minimum(whole, port) if item.degrees.ep == 1 else whole
    ws = 1.0 / item.v
    sums = {
        0: 2.0 * each.gradients * whole,
        1: each.gradients * (inside if relaxation.has_racks else whole)
        + each.weights * inside,
        2: (ws * each.gradients + each.weights) * inside,
        3: ws * (each.gradients + 2.0 * each.weights) * inside,
    }
    step = optimizer_step_bytes(each) / workload.memory_rate
    costs = [
        held * (sums[zero] + step / (n if zero >= 1 else 1.0))
        for zero in set(spec.zero_stages)
    ]
    tail = np.min(costs, axis=0)
    if layers.expert > 0:
        # The least of a sum is at least the sum of the least.
        members = n / item.degrees.ep
        one = relaxation.pass_inverse(item.degrees.tp, members)
        shares = {
            0: 2.0 * each.gradients,
            1: each.gradients + each.weights,
            2: ws * each.gradients + each.weights,
            3: ws * (each.gradients + 2.0 * each.weights),
        }
        least = min(shares[zero] for zero in set(spec.zero_stages))
        tail = tail + layers.expert / item.pp * (least * one + step / members)
    return np.asarray(tail, dtype=np.float64)


def least_memory_bounds(
    workload: Workload, spec: SearchSpec, item: Inner, layers: LayerBounds
) -> FloatArray:
    """Return the parameters' memory of the mean stage under the thriftiest ZeRO stage.

    Some stage holds at least the mean, so this much is needed by every split [byte].
    """
    n = (item.dp * item.degrees.cp).astype(np.float64)
    dense = Sharded(layers.dense / item.pp, n)
    expert = Sharded(layers.expert / item.pp, n / item.degrees.ep)
    held = [
        np.asarray(
            static_bytes(
                dense, expert, 0.0, each=workload.parameter_bytes, zero_stage=zero
            ).total()
        )
        for zero in set(spec.zero_stages)
    ]
    return np.asarray(np.min(held, axis=0) * kernel.SAFE, dtype=np.float64)
