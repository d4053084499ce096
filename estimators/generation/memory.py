"""What one device of a replica holds: weights, and how many tokens' caches beside them.

    caches = utilisation x memory - weights - working tensors - context

Weights are those of the training model's shards: the embedding and the output layer in
16 bits, norms too, matrices of blocks in the engine's format. Working tensors are the
largest of a full step: what enters and leaves the feed-forward layer, and logits in
fp32 of every sequence. Context is what the driver and communication libraries hold
(`estimators.constants`).
"""

from typing import NamedTuple

import numpy as np

from estimators.generation.caches import Caches
from estimators.generation.engine import EngineSetup
from estimators.generation.forward import ForwardTimes
from estimators.layers.shares import device_shares, held_parameters
from estimators.models.spec import TransformerSpec
from topologies.errors import InputError


class EngineMemory(NamedTuple):
    """Memory of one device [byte]."""

    weights: float
    """Weights [byte]."""

    working: float
    """Tensors of a step, and what lies outside of the allocator [byte]."""

    caches: float
    """What is left for caches [byte]."""


def weight_bytes(times: ForwardTimes) -> float:
    """Return the weights of one device [byte]."""
    graph, engine = times.graph, times.engine
    shares = device_shares(graph.spec, engine.degrees(1))
    total = 0.0
    tied = graph.spec.tie_word_embeddings
    for kind, layer in enumerate(graph.layers):
        count = graph.kinds.count(kind)
        names = {graph.names[i] for i, other in enumerate(graph.kinds) if other == kind}
        is_block = any(name.startswith("block") for name in names)
        if tied and "head" in names and engine.tp == 1:
            # The output layer is the embedding.
            count = 0
        for layout, number in held_parameters(layer, shares):
            is_matrix = is_block and layout in {"tensor", "expert", "groups"}
            width = engine.weight_bytes if is_matrix else 2.0
            total += count * width * number
    return total


def device_memory(spec: TransformerSpec, times: ForwardTimes) -> EngineMemory:
    """Return how a device's memory is used.

    Raises
    ------
    InputError
        If weights leave nothing for caches.
    """
    engine, platform = times.engine, times.platform
    capacity = platform.accelerator.memory_bytes
    weights = weight_bytes(times)
    sequences = min(-(-engine.max_sequences // engine.ep), engine.batched_tokens)
    inner = max(
        spec.ffn_hidden_size / engine.tp,
        spec.moe_ffn_hidden_size * spec.moe_router_topk / engine.tp,
    )
    gates = 3.0 if spec.gated_linear_unit else 2.0
    step = 2.0 * engine.batched_tokens * (2.0 * spec.hidden_size + gates * inner)
    logits = 4.0 * sequences * spec.vocab_size
    context = platform.constants.allocator("default").context
    working = max(step, logits) + context
    left = engine.memory_utilisation * capacity - weights - working
    if left <= 0.0:
        raise InputError(
            "the engine's devices are too small for the model",
            where="engine.memory_utilisation",
            got=f"{engine.memory_utilisation:g} of {capacity / 1e9:,.0f} GB",
            expected=f"more than {(weights + working) / 1e9:,.1f} GB for weights and "
            "working tensors; more tp, more ep, or a narrower dtype",
        )
    return EngineMemory(weights, working, left)


def most_sequences(
    engine: EngineSetup, memory: EngineMemory, caches: Caches, tokens: int
) -> int:
    """Return how many sequences of so many tokens a replica has room for."""
    size = float(caches.kept(np.array([float(tokens)]))[0]) + caches.state_bytes
    room = engine.ep * memory.caches / size if size > 0.0 else float("inf")
    return int(min(engine.max_sequences, room))
