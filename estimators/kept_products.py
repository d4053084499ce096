"""Which products selective recompute by operators keeps.

References
----------
.. [1] Liang et al., "TorchTitan", ICLR 2025, section 2.3; torchtitan's
   ``_apply_ac_to_transformer_block``.
"""

from estimators.layer_graph import TracedLayer


def kept_parts(layer: TracedLayer, *, gated: bool) -> list[tuple[bool, ...]]:
    """Return which parts of each operator's results are kept.

    Every second product with a weight, the first included, and fused attention [1]_.
    The projections of queries, keys and values count one by one, and so do those of the
    gate and of what it gates, which are one operator here.
    """
    parts: list[tuple[bool, ...]] = []
    count = 0
    for operator in layer.operators:
        size = 0
        if operator.operation == "linear":
            doubled = gated and operator.sharding in {"column", "expert column"}
            size = 2 if doubled else len(operator.outputs)
        kept = tuple((count + place) % 2 == 0 for place in range(size))
        parts.append((True,) if operator.operation == "attention" else kept)
        count += size
    return parts
