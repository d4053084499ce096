"""Rates that no placement of given sizes can beat, and bounds in closed form.

A tensor group stands on consecutive device numbers in every placement. Everything else
is bounded by the fastest link and by what must leave a node of a tree.

Letters: ``n`` replicas (data- times context-parallel ranks) of ``tp`` lanes, ``k`` of
them at most in a node, ``B`` devices of a node.

Of bounds of iteration time and memory, for many configurations at once: ``W`` the sum
of the layers' least times, ``X`` the least transfers of a microbatch, ``p`` stages,
``v`` virtual stages, ``m`` microbatches, ``n`` replicas, ``P`` and ``E`` dense and
expert parameters, ``ws = 1 / v``, ``wm = m - 1 / v``.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels import tables
from planner.kernels.tables import JobConstants, zero_terms
from topologies.arrays import FloatArray, FloatMatrix, FloatVector, IntVector
from topologies.compiling import kernel, subkernel


class NetworkTerms(NamedTuple):
    """What bounds need of a network and a tensor-parallel size."""

    hop_latency: float
    """Least latency of any one link [s]."""

    hop_inverse: float
    """Least inverse bandwidth of any one link [s/byte]."""

    ports_inverse: float
    """To leave a device, all its links together [s/byte]."""

    block_size: float
    """Devices of a node of a tree; all of them elsewhere."""

    exit_inverse: float
    """To leave a node, all its ways out together [s/byte]."""

    exit_link_inverse: float
    """To leave a node over the fastest single link [s/byte]."""

    has_racks: bool
    """Whether sharding groups may be larger than a node, smaller than the cluster:
    those of blocks, or of sizes that are tried."""

    is_aligned: bool
    """Whether tensor groups fill nodes or are filled by them, in every placement."""


@subkernel
def pass_inverse(network: NetworkTerms, tp: int, n: float, groups: int) -> float:
    """Return seconds per byte that a reduce-scatter or all-gather takes, at least.

    Twice this for an all-reduce. A member sends ``(n - 1) / n`` of the tensor through
    its port. If the replicas span nodes, a flat ring sends that much over a link out
    of each node, and the ring of every lane shares the node's ways out; a hierarchical
    algorithm with ``j <= k`` members in a node sends ``(j - 1) / j`` inside first, then
    each node's lanes ``1 - j / n`` outside, which is least for ``j = 1`` or ``j = k``.
    Where ``groups`` groups have members in a node, they share its places and its ways
    out. Tensor groups that straddle nodes get the port's bound. O(1).
    """
    port: float = (n - 1.0) / n * network.hop_inverse
    block = network.block_size
    if n * tp <= block or not network.is_aligned:
        return port
    lanes = min(float(tp), block)
    room = max(float(block // tp), 1.0)
    k = max(room // groups, 1.0)
    out = lanes * groups * network.exit_inverse
    alone = max(out, network.exit_link_inverse)
    inside = (1.0 - 1.0 / k) * network.hop_inverse
    levels = inside + (1.0 - room / (groups * n)) * out
    spanning: float = max(port, min((n - 1.0) / n * alone, levels))
    return spanning


@kernel
def pass_inverses(
    network: NetworkTerms, tp: int, n: FloatVector, groups: int
) -> FloatArray:
    """Return `pass_inverse` for several numbers of replicas, of the shape of ``n``."""
    inverses = np.empty(n.shape[0])
    for i in range(n.shape[0]):
        inverses[i] = pass_inverse(network, tp, n[i], groups)
    return inverses


@subkernel
def exchange_inverse(network: NetworkTerms, tp: int, ep: int, together: int) -> float:
    """Return seconds per byte held that an all-to-all over ``ep`` ranks takes.

    At least, if ``together`` of them stand in one node of a tree: each sends the share
    of the others out of it. Tensor groups that straddle nodes get the ports' bound.
    O(1).
    """
    inside: float = (ep - 1) / ep * network.ports_inverse
    if not network.is_aligned:
        return inside
    lanes = min(float(tp), network.block_size)
    leaving = max(together * lanes * network.exit_inverse, network.exit_link_inverse)
    inverse: float = max(inside, (ep - together) / ep * leaving)
    return inverse


@kernel
def context_inverse(network: NetworkTerms, tp: int, cp: int) -> float:
    """Return seconds per byte of one hop of the context-parallel ring, at least.

    A ring that does not fit into a node leaves each node that it touches, and so do
    the rings of the same ranks' other lanes. O(1).
    """
    block = network.block_size
    if cp == 1:
        return 0.0
    hop: float = network.hop_inverse
    if tp * cp <= block or not network.is_aligned:
        return hop
    lanes = min(float(tp), block)
    inverse: float = max(hop, lanes * network.exit_inverse, network.exit_link_inverse)
    return inverse


@kernel
def relaxed_row(
    network: NetworkTerms,
    tensor: FloatMatrix,
    tp: int,
    cp: int,
    ep: int,
    dp: int,
    together: int,
) -> FloatArray:
    """Return the rates' columns of `planner.kernels.tables`, ``(R,)``; O(1).

    ``tensor (2, 2)``: the least rates of all-reduce and of all-gather. ``together``
    expert-parallel ranks stand in a node. Sharding options beside the whole group, for
    models without experts: shards are as small as those of the whole group, and what is
    shared is as cheap as between two ranks. The all-reduce across groups of ``g`` out
    of ``n`` replicas takes twice ``k / g (1 - g / n)`` of the gradients out of each
    node: all of it where groups stay inside nodes (``g <= k``), at least ``2 k / n``
    where they do not (``g <= n / 2``), in racks; then sharing takes half of the tensor
    out, too.
    """
    n = dp * cp
    hop = network.hop_inverse
    block = network.block_size
    hybrid = ep == 1 and n > 2
    spanning = n * tp > block and network.is_aligned
    options = 1
    if hybrid:
        options += 2 if spanning and network.has_racks else 1
    row = np.zeros(tables.NUM_FIXED_RATES + 4 * options)
    for i in range(2):
        row[tables.TENSOR_REDUCE + i] = tensor[0, i]
        row[tables.TENSOR_PASS + i] = tensor[1, i]
    if cp > 1:
        row[tables.CONTEXT] = network.hop_latency
        row[tables.CONTEXT + 1] = context_inverse(network, tp, cp)
    if ep > 1:
        row[tables.EXPERT] = network.hop_latency
        row[tables.EXPERT + 1] = exchange_inverse(network, tp, ep, together)
    whole = pass_inverse(network, tp, float(n), 1)
    experts = pass_inverse(network, tp, float(n // ep), together)
    row[tables.DENSE_REDUCE + 1] = 2.0 * whole
    row[tables.EXPERT_REDUCE + 1] = 2.0 * experts
    row[tables.EXPERT_PASS + 1] = experts
    row[tables.SHARD_PASS + 1] = whole
    if hybrid:
        row[tables.SHARD_PASS + 4 + 1] = 0.5 * hop
        if spanning:
            lanes = min(float(tp), block)
            k = max(float(block // tp), 1.0)
            out = lanes * network.exit_inverse
            # Rates across are per byte of a shard, 1 / n of the gradients.
            row[tables.SHARD_ACROSS + 4 + 1] = 2.0 * n * max(1.0 - k / n, 0.0) * out
            if options == 3:
                row[tables.SHARD_PASS + 8 + 1] = max(0.5 * hop, 0.5 * out)
                row[tables.SHARD_ACROSS + 8 + 1] = 2.0 * k * out
    return row


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
        cost += job.update_bytes * sent.gathered_once * inverse
        cost += weights * sent.gathered_each * repeated
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
    boundary_hop = network.hop_latency + chain.boundary_bytes * hop
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
            total += 2.0 * boundary_hop * (v * (p - 1.0) + v - 1.0)
            largest += v * boundary_hop
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
