"""Closed-form bounds of iteration time and memory, for many configurations at once.

Letters: ``W`` the sum of the layers' least times, ``X`` the least transfers of a
microbatch, ``p`` stages, ``v`` virtual stages, ``m`` microbatches, ``n`` replicas,
``P`` and ``E`` dense and expert parameters, ``ws = 1 / v``, ``wm = m - 1 / v``.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels.relaxed import NetworkTerms, pass_inverse
from planner.kernels.tables import JobConstants, zero_terms
from topologies.arrays import FloatArray, FloatMatrix, IntVector
from topologies.compiling import kernel, subkernel

_SAFE = 1.0 - 1e-12


class ChainTerms(NamedTuple):
    """What the bound needs of a job under one set of inner degrees."""

    total: float
    """``W`` [s]."""

    largest: float
    """The slowest layer [s]."""

    least_block: float
    """The fastest block [s]."""

    num_blocks: float
    """Transformer blocks of the chain."""

    boundary_bytes: float
    """What each lane sends over every boundary [byte]."""

    dense: float
    """``P`` of one device."""

    expert: float
    """``E`` of one device."""

    batch: float
    """Sequences of all replicas' microbatches of one round: B / b."""

    tp: int
    """Tensor-parallel size."""

    cp: int
    """Context-parallel size."""

    ep: int
    """Expert-parallel size."""

    v: int
    """Virtual stages of each stage."""


@subkernel
def least_cost(
    inverse: float,
    scattered: float,
    reduced: float,
    group: float,
    weight: float,
    ledger: FloatMatrix,
    job: JobConstants,
) -> float:
    """Return the least that a parameter costs the mean stage, over ZeRO stages [s].

    Its step end, and ``weight`` times what it sends in every microbatch. ``inverse``
    bounds a reduce-scatter or all-gather among devices that share shards, ``scattered``
    one of gradients once a step, ``reduced`` half of an all-reduce of all replicas.
    What is reduced across may cost nothing. O(1).
    """
    least = np.inf
    gradient, weights, step = job.reduce_bytes, job.gather_bytes, job.step_time
    shard, repeated = step / group, weight * inverse
    for z in range(ledger.shape[0]):
        sent = zero_terms(ledger, z)
        cost = shard if sent.shards_optimizer > 0.0 else step
        cost += gradient * (
            sent.reduced_whole * 2.0 * reduced
            + sent.reduced_once * scattered
            + sent.reduced_each * repeated
        )
        cost += weights * (sent.gathered_once * inverse + sent.gathered_each * repeated)
        least = min(least, cost)
    return least


@kernel
def closed_form(
    chain: ChainTerms,
    network: NetworkTerms,
    job: JobConstants,
    ledger: FloatMatrix,
    pp: IntVector,
    dp: IntVector,
) -> tuple[FloatArray, FloatArray]:
    """Return LB1 [s] and the least memory of parameters [byte] of every ``(pp, dp)``.

    The larger of two bounds::

        ws (W + X) + wm max((W + X) / p, largest layer, most blocks of a stage) + Y(ws)
        (ws + wm / p) (W + X) + Y(ws + wm / p)

    where some stage holds at least ``ceil(blocks / (v p))`` blocks in each of its ``v``
    chunks, and ``Y(w)`` is what parameters cost the mean stage in its step end plus
    ``w`` times what all stages send for them in every microbatch: the largest step end
    is at least the mean one, every stage chooses its ZeRO stage for itself, and the
    least of a sum is at least the sum of the least. Hybrid sharding pays for gradients
    at least as much as the whole group in a reduce-scatter under ZeRO-1, and may pay
    next to nothing else. Memory is that of the mean stage under the thriftiest ZeRO
    stage. ``ledger`` has rows of the ZeRO stages that may be chosen. O(1)
    each.
    """
    bounds = np.empty(pp.shape[0])
    memory = np.empty(pp.shape[0])
    tp, cp, ep, v = chain.tp, chain.cp, chain.ep, chain.v
    hop = network.hop_inverse
    one = network.hop_latency + chain.boundary_bytes * hop
    dense, expert = chain.dense, chain.expert
    ws = 1.0 / v
    for i in range(pp.shape[0]):
        p, n = float(pp[i]), float(dp[i] * cp)
        members = n / ep
        wm = np.ceil(chain.batch / dp[i]) - ws
        total = chain.total
        largest = chain.largest
        chunks = v * np.ceil(chain.num_blocks / (v * p)) * chain.least_block
        largest = max(largest, chunks)
        if p > 1:
            total += 2.0 * one * (v * (p - 1.0) + v - 1.0)
            largest += v * one
        whole = pass_inverse(network, tp, n, 1)
        inside = whole
        if ep == 1:
            inside = min(whole, 0.5 * hop if n > 1 else 0.0)
        scattered = inside if network.has_racks else whole
        apart = pass_inverse(network, tp, members, 1)
        mean = ws + wm / p
        value = 0.0
        for variant in range(2):
            weight = ws if variant == 0 else mean
            # Step ends are the mean stage's, what is sent is all stages' together.
            cost = (
                dense
                / p
                * least_cost(inside, scattered, whole, n, weight * p, ledger, job)
            )
            if expert > 0.0:
                cost += (
                    expert
                    / p
                    * least_cost(apart, apart, apart, members, weight * p, ledger, job)
                )
            if variant == 0:
                time = ws * total + wm * max(total / p, largest)
            else:
                time = mean * total
            value = max(value, time + cost)
        bounds[i] = value * _SAFE
        least = np.inf
        every = (dense + expert) / p
        shard = (dense / n + expert / members) / p
        for z in range(ledger.shape[0]):
            holds = zero_terms(ledger, z)
            held = (
                job.optimizer_bytes * (shard if holds.shards_optimizer > 0.0 else every)
                + job.gradient_bytes
                * (shard if holds.shards_gradients > 0.0 else every)
                + job.weight_bytes * (shard if holds.shards_weights > 0.0 else every)
            )
            least = min(least, held)
        memory[i] = least * _SAFE
    return bounds, memory
