"""Floating-point operations that a model needs, however it is run.

Letters: ``B`` sequences, ``s`` sequence length, ``l`` layers, ``h`` hidden size, ``V``
vocabulary. Convention of Narayanan et al. and Megatron-LM: matrix products only, the
full square of attention scores even if the mask is causal, two FLOP for a multiply-add,
a backward pass of twice the forward pass. Of routed experts those that a token uses
count. Recomputed work is not model FLOPs.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
   Using Megatron-LM", SC'21, section 5.1 and appendix, equation 3.
"""

from estimators.layer_graph import LayerGraph
from estimators.models.spec import TransformerSpec

_FORWARD_AND_BACKWARD = 3


def model_flops_per_sequence(graph: LayerGraph) -> float:
    """Return the forward and backward FLOPs of one sequence [FLOP]."""
    each = [sum(op.model_flops for op in layer.operators) for layer in graph.layers]
    return float(_FORWARD_AND_BACKWARD * sum(each[kind] for kind in graph.kinds))


def closed_form_training_flops(
    spec: TransformerSpec, *, global_batch_size: int, full_recompute: bool
) -> float:
    """Return the FLOPs of one step by the formula for GPTs [FLOP].

    With full recompute 96 B s l h^2 (1 + s / (6 h) + V / (16 l h)), equation 3 of [1]_;
    without it 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)). Both are exact for a
    feed-forward width of 4 h and as many key heads as query heads.
    """
    s, h, n, v = (
        spec.sequence_length,
        spec.hidden_size,
        spec.num_layers,
        spec.vocab_size,
    )
    factor, share = (96, 16) if full_recompute else (72, 12)
    blocks = factor * global_batch_size * s * n * h**2
    return blocks * (1 + s / (6 * h) + v / (share * n * h))
