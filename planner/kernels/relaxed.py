"""Rates that no placement of given sizes can beat, one row for all stages.

A tensor group stands on consecutive device numbers in every placement. Everything else
is bounded by the fastest link and by what must leave a node of a tree.

Letters: ``n`` replicas (data- times context-parallel ranks) of ``tp`` lanes, ``k`` of
them at most in a node, ``B`` devices of a node.
"""

from typing import NamedTuple

import numpy as np

from planner.kernels import tables as columns
from topologies.arrays import FloatArray, FloatMatrix, FloatVector
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
    """Whether there are blocks larger than a node, smaller than the cluster."""

    is_aligned: bool
    """Whether tensor groups fill nodes or are filled by them, in every placement."""


_TENSOR_REDUCE = columns.TENSOR_REDUCE
_TENSOR_PASS = columns.TENSOR_PASS
_CONTEXT = columns.CONTEXT
_EXPERT = columns.EXPERT
_DENSE_REDUCE = columns.DENSE_REDUCE
_EXPERT_REDUCE = columns.EXPERT_REDUCE
_EXPERT_PASS = columns.EXPERT_PASS
_SHARD_PASS = columns.SHARD_PASS
_SHARD_ACROSS = columns.SHARD_ACROSS
NUM_FIXED_RATES = columns.NUM_FIXED_RATES


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
    found = np.empty(n.shape[0])
    for i in range(n.shape[0]):
        found[i] = pass_inverse(network, tp, n[i], groups)
    return found


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
    found: float = max(inside, (ep - together) / ep * leaving)
    return found


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
    found: float = max(hop, lanes * network.exit_inverse, network.exit_link_inverse)
    return found


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
    row = np.zeros(NUM_FIXED_RATES + 4 * options)
    for i in range(2):
        row[_TENSOR_REDUCE + i] = tensor[0, i]
        row[_TENSOR_PASS + i] = tensor[1, i]
    if cp > 1:
        row[_CONTEXT] = network.hop_latency
        row[_CONTEXT + 1] = context_inverse(network, tp, cp)
    if ep > 1:
        row[_EXPERT] = network.hop_latency
        row[_EXPERT + 1] = exchange_inverse(network, tp, ep, together)
    whole = pass_inverse(network, tp, float(n), 1)
    experts = pass_inverse(network, tp, float(n // ep), together)
    row[_DENSE_REDUCE + 1] = 2.0 * whole
    row[_EXPERT_REDUCE + 1] = 2.0 * experts
    row[_EXPERT_PASS + 1] = experts
    row[_SHARD_PASS + 1] = whole
    if hybrid:
        row[_SHARD_PASS + 4 + 1] = 0.5 * hop
        if spanning:
            lanes = min(float(tp), block)
            k = max(float(block // tp), 1.0)
            out = lanes * network.exit_inverse
            # Rates across are per byte of a shard, 1 / n of the gradients.
            row[_SHARD_ACROSS + 4 + 1] = 2.0 * n * max(1.0 - k / n, 0.0) * out
            if options == 3:
                row[_SHARD_PASS + 8 + 1] = max(0.5 * hop, 0.5 * out)
                row[_SHARD_ACROSS + 8 + 1] = 2.0 * k * out
    return row
