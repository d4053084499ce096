"""Matrices of a model's blocks: what is kept in narrow formats, and what Muon updates.

These are the weights of products, but for that of the head; embeddings, norms and
biases are what is left.

Muon brings each matrix's momentum near to an orthogonal one by five Newton-Schulz
iterations in 16 bits [1]_. Each is, with ``A`` the shorter and ``B`` the longer side of
the matrix ``X``::

    S = X X'             2 A^2 B FLOP
    T = b S + c S S      2 A^3
    X = a X + T X        2 A^2 B

The gate of a feed-forward layer and what it gates are one matrix, and so are queries,
keys and values. Whole matrices are worked on, by the ranks that share their parts: each
its part of the work (Megatron's ``muon_tp_mode`` "distributed", and its layer-wise
optimizer over data-parallel ranks [2]_). What ranks exchange for that is left out.

References
----------
.. [1] Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
   section "Runtime analysis": at most 6 A^2 B FLOP an iteration.
.. [2] Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.3; Megatron
   Core, ``core/optimizer/layer_wise_optimizer.py``.
"""

from typing import NamedTuple

from estimators.tracing.graph import LayerGraph

ITERATIONS = 5
"""Newton-Schulz iterations of a step [1]_."""


class BlockMatrices(NamedTuple):
    """What part matrices of blocks have in a model, and what Muon costs."""

    share: float
    """Part of the model's parameters."""

    orthogonalisation_flops: float
    """FLOPs of Muon's iterations for each of the model's parameters [FLOP]."""


def block_matrices(graph: LayerGraph) -> BlockMatrices:
    """Return what matrices there are in a traced model."""
    matrices = flops = 0.0
    for kind in graph.kinds:
        for operator in graph.layers[kind].operators:
            if operator.operation == "linear" and operator.sharding != "vocab":
                # A traced product of experts is that of one with the rows of all.
                is_expert = operator.sharding.startswith("expert")
                count = graph.spec.num_moe_experts if is_expert else 1
                _, n, k, _ = operator.dims
                matrices += float(count) * n * k
                flops += count * _orthogonalisation(float(n), float(k))
    return BlockMatrices(matrices / graph.num_parameters, flops / graph.num_parameters)


def _orthogonalisation(n: float, k: float) -> float:
    """Return the work of one step on a matrix [FLOP]."""
    short, long = min(n, k), max(n, k)
    return ITERATIONS * (4.0 * short**2 * long + 2.0 * short**3)
