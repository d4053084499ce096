"""Floating-point operations that a model needs, however it is run.

Letters: ``B`` sequences, ``s`` sequence length, ``l`` layers, ``h`` hidden size, ``V``
vocabulary. Matrix products only, two FLOP for a multiply-add, a backward pass of twice
the forward pass. Of routed experts those that a token uses count. Recomputed work is
not model FLOPs.

Attention is counted in two ways. The common one takes the full square of attention
scores even if the mask is causal, ``12 s^2 h`` FLOP for each layer and sequence,
forward and backward: that of Narayanan et al. [1]_, Korthikanti et al. [2]_ and PaLM's
model FLOPs utilisation [3]_. The other leaves out what a causal mask hides, half of the
square, as FlashAttention's figures do [4]_. Models without a causal mask have one
number.

References
----------
.. [1] Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
   Using Megatron-LM", SC'21, section 5.1 and appendix, equation 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", MLSys 2023, appendix A.
.. [3] Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022,
   appendix B.
.. [4] Dao, "FlashAttention-2", 2023, section 4.1: divided by 2 with a causal mask.
"""

from estimators.layer_graph import LayerGraph, TracedOperator
from estimators.models.spec import TransformerSpec

_FORWARD_AND_BACKWARD = 3


def model_flops_per_sequence(graph: LayerGraph, *, counts_masked: bool = True) -> float:
    """Return the forward and backward FLOPs of one sequence [FLOP].

    Parameters
    ----------
    graph
        The traced model.
    counts_masked
        Whether the half of attention that a causal mask hides counts.
    """
    halves = graph.spec.causal and not counts_masked
    each = [
        sum(
            op.model_flops / (2 if halves and _is_attention(op) else 1)
            for op in layer.operators
        )
        for layer in graph.layers
    ]
    return float(_FORWARD_AND_BACKWARD * sum(each[kind] for kind in graph.kinds))


def _is_attention(operator: TracedOperator) -> bool:
    """Tell whether it multiplies queries with keys, or scores with values."""
    return operator.operation == "attention" or (
        operator.core and operator.operation == "matmul"
    )


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
