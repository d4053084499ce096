"""Rates that no placement of given sizes can beat, one row for all stages.

A tensor group stands on consecutive device numbers in every placement. Everything else
is bounded by the fastest link and by what must leave a node of a tree.

Letters: ``n`` replicas (data- times context-parallel ranks) of ``tp`` lanes, ``k`` of
them at most in a node, ``B`` devices of a node.
"""

import numpy as np

from planner.kernels import tables as columns
from topologies.arrays import FloatArray, FloatMatrix, FloatVector
from topologies.compiling import kernel, subkernel

# What bounds need of a network and a tensor-parallel size, entries of an array.
HOP_LATENCY = 0  # least of any one link [s]
HOP_INVERSE = 1  # least of any one link [s/byte]
BLOCK_SIZE = 2  # devices of a node of a tree; all of them elsewhere
EXIT_INVERSE = 3  # to leave a node, all its ways out together [s/byte]
EXIT_LINK_INVERSE = 4  # the same over the fastest single link [s/byte]
HAS_RACKS = 5  # 1 if there are blocks larger than a node, smaller than the cluster
PORTS_INVERSE = 6  # to leave a device, all its links together [s/byte]
ALIGNED = 7  # 1 if tensor groups fill nodes or are filled by them, in every placement
NUM_CONSTANTS = 8

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
def pass_inverse(constants: FloatVector, tp: int, n: float, groups: int) -> float:
    """Return seconds per byte that a reduce-scatter or all-gather takes, at least.

    Twice this for an all-reduce. A member sends ``(n - 1) / n`` of the tensor through
    its port. If the replicas span nodes, a flat ring sends that much over a link out
    of each node, and the ring of every lane shares the node's ways out; a hierarchical
    algorithm with ``j <= k`` members in a node sends ``(j - 1) / j`` inside first, then
    each node's lanes ``1 - j / n`` outside, which is least for ``j = 1`` or ``j = k``.
    Where ``groups`` groups have members in a node, they share its places and its ways
    out. Tensor groups that straddle nodes get the port's bound. O(1).
    """
    port: float = (n - 1.0) / n * constants[HOP_INVERSE]
    block = constants[BLOCK_SIZE]
    if n * tp <= block or constants[ALIGNED] == 0.0:
        return port
    lanes = min(float(tp), block)
    room = max(float(block // tp), 1.0)
    k = max(room // groups, 1.0)
    out = lanes * groups * constants[EXIT_INVERSE]
    alone = max(out, constants[EXIT_LINK_INVERSE])
    inside = (1.0 - 1.0 / k) * constants[HOP_INVERSE]
    levels = inside + (1.0 - room / (groups * n)) * out
    spanning: float = max(port, min((n - 1.0) / n * alone, levels))
    return spanning


@kernel
def pass_inverses(
    constants: FloatVector, tp: int, n: FloatVector, groups: int
) -> FloatArray:
    """Return `pass_inverse` for several numbers of replicas, of the shape of ``n``."""
    found = np.empty(n.shape[0])
    for i in range(n.shape[0]):
        found[i] = pass_inverse(constants, tp, n[i], groups)
    return found


@subkernel
def exchange_inverse(constants: FloatVector, tp: int, ep: int, together: int) -> float:
    """Return seconds per byte held that an all-to-all over ``ep`` ranks takes.

    At least, if ``together`` of them stand in one node of a tree: each sends the share
    of the others out of it. Tensor groups that straddle nodes get the ports' bound.
    O(1).
    """
    inside: float = (ep - 1) / ep * constants[PORTS_INVERSE]
    if constants[ALIGNED] == 0.0:
        return inside
    lanes = min(float(tp), constants[BLOCK_SIZE])
    leaving = max(
        together * lanes * constants[EXIT_INVERSE], constants[EXIT_LINK_INVERSE]
    )
    found: float = max(inside, (ep - together) / ep * leaving)
    return found


@kernel
def context_inverse(constants: FloatVector, tp: int, cp: int) -> float:
    """Return seconds per byte of one hop of the context-parallel ring, at least.

    A ring that does not fit into a node leaves each node that it touches, and so do
    the rings of the same ranks' other lanes. O(1).
    """
    block = constants[BLOCK_SIZE]
    if cp == 1:
        return 0.0
    hop: float = constants[HOP_INVERSE]
    if tp * cp <= block or constants[ALIGNED] == 0.0:
        return hop
    lanes = min(float(tp), block)
    found: float = max(
        hop, lanes * constants[EXIT_INVERSE], constants[EXIT_LINK_INVERSE]
    )
    return found


@kernel
def relaxed_row(
    constants: FloatVector,
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
    hop = constants[HOP_INVERSE]
    block = constants[BLOCK_SIZE]
    hybrid = ep == 1 and n > 2
    spanning = n * tp > block and constants[ALIGNED] > 0.0
    options = 1
    if hybrid:
        options += 2 if spanning and constants[HAS_RACKS] > 0.0 else 1
    row = np.zeros(NUM_FIXED_RATES + 4 * options)
    for i in range(2):
        row[_TENSOR_REDUCE + i] = tensor[0, i]
        row[_TENSOR_PASS + i] = tensor[1, i]
    if cp > 1:
        row[_CONTEXT] = constants[HOP_LATENCY]
        row[_CONTEXT + 1] = context_inverse(constants, tp, cp)
    if ep > 1:
        row[_EXPERT] = constants[HOP_LATENCY]
        row[_EXPERT + 1] = exchange_inverse(constants, tp, ep, together)
    whole = pass_inverse(constants, tp, float(n), 1)
    experts = pass_inverse(constants, tp, float(n // ep), together)
    row[_DENSE_REDUCE + 1] = 2.0 * whole
    row[_EXPERT_REDUCE + 1] = 2.0 * experts
    row[_EXPERT_PASS + 1] = experts
    row[_SHARD_PASS + 1] = whole
    if hybrid:
        row[_SHARD_PASS + 4 + 1] = 0.5 * hop
        if spanning:
            lanes = min(float(tp), block)
            k = max(float(block // tp), 1.0)
            out = lanes * constants[EXIT_INVERSE]
            # Rates across are per byte of a shard, 1 / n of the gradients.
            row[_SHARD_ACROSS + 4 + 1] = 2.0 * n * max(1.0 - k / n, 0.0) * out
            if options == 3:
                row[_SHARD_PASS + 8 + 1] = max(0.5 * hop, 0.5 * out)
                row[_SHARD_ACROSS + 8 + 1] = 2.0 * k * out
    return row
