"""What sequences keep on a device, and how long it takes to read it at every step.

Of each token attention keeps keys and values: of ``g`` groups of heads ``g / tp`` on
each tensor-parallel rank, and at least one, copied where there are more ranks than
groups; of latent attention one vector for all heads, whole on every rank. Layers with a
window keep, and read, no more than its keys, and so do those whose indexer chooses keys
(which keep all). Recurrences keep a state of each sequence, which every step reads and
writes, `STATE_BYTES` a number.

Prompts are taken through attention whole, as in training's forward pass; so is what
recurrences make of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from estimators.generation.forward import ForwardTimes, mixes, one_token
from estimators.generation.laws import AttentionLaw
from estimators.layers.sharding import layer_work
from estimators.models.spec import TransformerSpec
from estimators.operators.shape_tables import KERNEL_TIME
from estimators.tracing.graph import INDEX_SCORES, TracedLayer, TracedOperator
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trace import trace_model
from topologies.arrays import FloatVector

STATE_BYTES = 4.0
"""Size of a number of a recurrence's state [byte]: kernels keep it in fp32."""

_LONG = 1 << 17
"""Tokens of the sequences on which windows show, and of the longest priced prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKind:
    """What one kind of layer keeps, and how long reading it takes."""

    layers: int
    """Layers of the kind."""

    key_bytes: float
    """What a token leaves on a device, one layer [byte]."""

    state_bytes: float
    """What a sequence has on a device whatever its length, one layer [byte]."""

    window: int
    """Most keys that are read; 0 for all."""

    keeps_all: bool
    """Whether keys that are not read are kept."""

    kernel: float
    """Time of one layer's kernels with next to no keys [s]."""

    per_sequence: float
    """Time that each sequence adds [s]."""

    per_key: float
    """Time that each key adds that is read [s]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Caches:
    """What all layers keep of a sequence on a device, and how it is read."""

    kinds: tuple[CacheKind, ...]
    """Kinds of layers that keep something."""

    spec: TransformerSpec
    """The model."""

    times: ForwardTimes
    """What prices its other work."""

    @classmethod
    def of(cls, spec: TransformerSpec, times: ForwardTimes) -> "Caches":
        """Return those of a model."""
        long = replace(one_token(spec), sequence_length=_whole(spec, _LONG))
        graph = trace_model(long)
        kinds = [
            replace(kept, layers=graph.kinds.count(kind))
            for kind, layer in enumerate(graph.layers)
            for kept in _kinds(spec, layer, times)
        ]
        return cls(kinds=tuple(kinds), spec=spec, times=times)

    @cached_property
    def window(self) -> int:
        """Most keys that a layer with a limit reads; 0 if none has one."""
        return max((kind.window for kind in self.kinds), default=0)

    @cached_property
    def whole_bytes(self) -> float:
        """What each token leaves in layers that keep all [byte]."""
        return sum(
            k.layers * k.key_bytes for k in self.kinds if k.keeps_all or not k.window
        )

    @cached_property
    def window_bytes(self) -> float:
        """What each token of a window leaves in layers that keep no more [byte]."""
        return sum(
            k.layers * k.key_bytes for k in self.kinds if k.window and not k.keeps_all
        )

    @cached_property
    def state_bytes(self) -> float:
        """What each sequence has beside its keys [byte]."""
        return sum(k.layers * k.state_bytes for k in self.kinds)

    def kept(self, tokens: FloatVector) -> FloatVector:
        """Return what keys and values of sequences take on a device [byte]."""
        return self.whole_bytes * tokens + self.window_bytes * np.minimum(
            tokens, self.window
        )

    @cached_property
    def step(self) -> tuple[float, float, float, float]:
        """Time of a step's kernels, of a sequence, of a key, and of one in windows [s].

        The last two are those of all layers without and with a limit.
        """
        return (
            sum(k.layers * k.kernel for k in self.kinds),
            sum(k.layers * k.per_sequence for k in self.kinds),
            sum(k.layers * k.per_key for k in self.kinds if not k.window),
            sum(k.layers * k.per_key for k in self.kinds if k.window),
        )

    @cached_property
    def mixing(self) -> tuple[FloatVector, FloatVector]:
        """Lengths of prompts, and time for a token of theirs to see the others [s].

        Powers of two: between them time for a token is nearly a line.
        """
        nodes = [2**i for i in range(_LONG.bit_length())]
        times = [self._mixing_time(node) / node for node in nodes]
        return np.array(nodes, dtype=np.float64), np.array(times)

    def _mixing_time(self, length: int) -> float:
        """Return the time of a prompt in a step that is full of such prompts [s]."""
        if length <= 1:
            return 0.0
        engine = self.times.engine
        together = max(1, engine.batched_tokens // length)
        spec = replace(one_token(self.spec), sequence_length=_whole(self.spec, length))
        graph = trace_model(spec)
        _, model = self.times.models
        total = 0.0
        for kind in range(len(graph.layers)):
            work = layer_work(graph, kind, engine.degrees(together), 2)
            for item in work.operators:
                if mixes(item):
                    time = model.operator_time(item).forward
                    total += graph.kinds.count(kind) * time
        return total / together


def _whole(spec: TransformerSpec, length: int) -> int:
    """Return a length in whole chunks, where attention has such."""
    chunk = spec.attention_chunk_size
    return length if not chunk or length <= chunk else -(-length // chunk) * chunk


def _kinds(
    spec: TransformerSpec, layer: TracedLayer, times: ForwardTimes
) -> Iterator[CacheKind]:
    """Yield what a layer keeps, traced on a long sequence, but for how many it is."""
    for operator in layer.operators:
        if operator.operation == "attention":
            yield _attention(spec, operator, times)
        elif operator.operation == INDEX_SCORES:
            width = spec.dsa_indexer_head_dim * times.engine.kv_bytes
            flops = 2.0 * spec.dsa_indexer_head_dim * spec.dsa_indexer_n_heads
            yield _kind(times, width, flops, latent=True)
        elif operator.operation in RECURRENCES:
            _, value, key, heads = operator.dims
            yield _state(value * key * heads / times.engine.tp, times)
        elif operator.operation == "state passing":
            width = spec.mamba_width * spec.mamba_state_dim
            yield _state(width / times.engine.tp, times)
        elif operator.operation == "selective scan":
            width = spec.selective_width * spec.selective_state_dim
            yield _state(width / times.engine.tp, times)


def _attention(
    spec: TransformerSpec, operator: TracedOperator, times: ForwardTimes
) -> CacheKind:
    rows, keys, _, heads = operator.dims
    long, tp = _whole(spec, _LONG), times.engine.tp
    if rows < long:
        # Chunks are sequences of their own; a window of one is never too few keys.
        heads //= long // rows
    window = operator.window or (keys if keys < long else 0)
    if spec.kv_lora_rank:
        width: float = spec.kv_lora_rank + spec.qk_pos_emb_head_dim
        flops = 2.0 * (width + spec.kv_lora_rank) * heads / tp
        cache = _kind(
            times,
            width * times.engine.kv_bytes,
            flops,
            queries=width * heads / tp,
            latent=True,
        )
    else:
        groups = max(1.0, spec.num_query_groups / tp)
        width = spec.kv_channels + (spec.v_head_dim or spec.kv_channels)
        cache = _kind(
            times,
            groups * width * times.engine.kv_bytes,
            queries=spec.kv_channels * heads / tp,
        )
    return replace(cache, window=window, keeps_all=spec.dsa_indexer_topk > 0)


def _kind(
    times: ForwardTimes,
    key_bytes: float,
    flops: float = 0.0,
    *,
    queries: float = 0.0,
    latent: bool = False,
) -> CacheKind:
    law = AttentionLaw.of(
        times.platform.accelerator, times.engine.kv_bytes, latent=latent
    )
    return CacheKind(
        layers=1,
        key_bytes=key_bytes,
        state_bytes=0.0,
        window=0,
        keeps_all=True,
        kernel=law.kernel,
        per_sequence=law.per_query * queries,
        per_key=law.per_key(key_bytes, flops),
    )


def _state(numbers: float, times: ForwardTimes) -> CacheKind:
    """Return a state that is read and written at every step."""
    size = STATE_BYTES * numbers
    return CacheKind(
        layers=1,
        key_bytes=0.0,
        state_bytes=size,
        window=0,
        keeps_all=True,
        kernel=KERNEL_TIME,
        per_sequence=2.0 * size / times.models[0].memory_rate,
        per_key=0.0,
    )
