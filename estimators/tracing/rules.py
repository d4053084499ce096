"""What the tracer knows about each module and function, and how it runs a layer.

A rule describes one node of a traced graph: the tensors that it reads, writes and keeps
for the backward pass (as autograd does), its dimensions, and how its results are
laid out over a tensor-parallel group. Layouts follow Megatron-LM: column-parallel
layers turn "sequence" into "tensor", row-parallel layers turn it back.

References
----------
.. [1] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, section 4.1: which tensors an operator saves.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from estimators.models import (
    attention,
    diffusion_blocks,
    encoders,
    families,
    hyper_connections,
    layers,
    vision_tower,
)
from estimators.models.vocabulary import Tensor, nn
from estimators.tracing.graph import TracedOperator, TracedTensor

_NO_DIMS = (0, 0, 0, 0)
_CORE = frozenset(
    {
        attention.PlainAttention,
        attention.FlashAttention,
        attention.ChunkedFlashAttention,
        encoders.BiasedPlainAttention,
        encoders.UnmaskedPlainAttention,
        encoders.BiasedFlashAttention,
        encoders.UnmaskedFlashAttention,
        diffusion_blocks.TextFlashAttention,
    }
)
"""Operators that selective recompute repeats."""

_UNMASKED = frozenset(
    {encoders.UnmaskedPlainAttention, encoders.UnmaskedFlashAttention}
)
"""Those in which every query sees every key."""


@dataclass(slots=True, kw_only=True)
class Tape:
    """What has been written down so far."""

    tensors: list[TracedTensor] = field(default_factory=list)
    """Tensors recorded so far."""
    operators: list[TracedOperator] = field(default_factory=list)
    """Operators recorded so far."""
    numbers: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    """Node of a graph -> numbers of the tensors that it results in."""

    def add(self, elements: int, layout: str, precision: str) -> int:
        """Return the number of a new tensor."""
        self.tensors.append(TracedTensor(elements, layout, precision))
        return len(self.tensors) - 1


class TracedCall(NamedTuple):
    """One node of the graph while its rule looks at it."""

    tape: Tape
    """Tape that the call is recorded on."""
    node: Any
    """Node of the graph."""
    target: Any
    """Module that is called; of a function its name, or nothing."""
    inputs: tuple[int, ...]
    """Numbers of the tensors read."""
    results: tuple[Tensor, ...]
    """Tensors that came out; shapes only."""
    name: str = ""
    """Path of the module, or of the function in it."""
    within: frozenset[type[nn.Module]] = frozenset()
    """Kinds of the modules that the call is part of."""

    def result(self, place: int = 0, layout: str = "") -> int:
        """Return a number for a result, by default laid out like the first input."""
        layout = layout or self.tape.tensors[self.inputs[0]].layout
        return self.tape.add(self.results[place].numel(), layout, "model")

    def extra(self, elements: int, precision: str) -> int:
        """Return a number for a tensor that is only kept for the backward pass."""
        layout = self.tape.tensors[self.inputs[0]].layout
        return self.tape.add(elements, layout, precision)

    def emit(
        self,
        operation: str,
        outputs: tuple[int, ...],
        *,
        saved: tuple[int, ...] = (),
        sharding: str = "",
        dims: tuple[int, int, int, int] = _NO_DIMS,
        window: int = 0,
    ) -> None:
        """Write the operator down; its results become those of the node."""
        self.tape.operators.append(
            TracedOperator(
                name=self.name,
                operation=operation,
                sharding=sharding,
                inputs=self.inputs,
                outputs=outputs,
                saved=saved,
                dims=dims,
                core=not _CORE.isdisjoint(self.within),
                window=window,
                sees_all=not _UNMASKED.isdisjoint(self.within),
            )
        )
        self.set(outputs)

    def set(self, outputs: tuple[int, ...]) -> None:
        """Say which numbers the node's results have."""
        self.tape.numbers[self.node] = outputs


def _alias(call: TracedCall) -> None:
    """Let a view share its tensor."""
    call.set(call.inputs[:1])


def _parts(call: TracedCall) -> None:
    """Parts of a tensor can be kept by themselves."""
    call.set(tuple(call.result(place) for place in range(len(call.results))))


def linear_rule(sharding: str, layout: str) -> Callable[[TracedCall], None]:
    """Return the rule of a product with a weight: it keeps its input."""

    def rule(call: TracedCall) -> None:
        n, k = call.target.weight.shape
        source = call.inputs[0]
        m = call.tape.tensors[source].elements // k
        output = call.result(layout=layout)
        call.emit(
            "linear", (output,), saved=(source,), sharding=sharding, dims=(m, n, k, 1)
        )

    return rule


QKV_LAYOUTS = ("tensor", "groups", "groups", "tensor")
"""Layouts of queries, keys, values and gates."""


def _qkv(call: TracedCall) -> None:
    n, k = call.target.weight.shape
    source = call.inputs[0]
    m = call.tape.tensors[source].elements // k
    outputs = tuple(
        call.result(place, layout)
        for place, layout in enumerate(QKV_LAYOUTS[: len(call.results)])
    )
    call.emit("linear", outputs, saved=(source,), sharding="qkv", dims=(m, n, k, 1))


def _experts(sharding: str, layout: str) -> Callable[[TracedCall], None]:
    """Return the rule of one product per expert; m counts the rows of all experts."""

    def rule(call: TracedCall) -> None:
        _, n, k = call.target.weight.shape
        m = call.results[0].shape[0]
        source, output = call.inputs[0], call.result(layout=layout)
        call.emit(
            "linear", (output,), saved=(source,), sharding=sharding, dims=(m, n, k, 1)
        )

    return rule


def matmul_rule(call: TracedCall) -> None:
    """Products of two activations keep both."""
    m, n = call.results[0].shape[-2:]
    batch = call.results[0].numel() // (m * n)
    k = call.tape.tensors[call.inputs[0]].elements // (m * batch)
    output = call.result(layout="tensor")
    call.emit(
        "matmul", (output,), saved=call.inputs, sharding="heads", dims=(m, n, k, batch)
    )


def flash_rule(call: TracedCall, window: int = 0) -> None:
    """Keep queries, keys, values, the result, and one fp32 number per row and head.

    A dropout mask is drawn again from the state of the random generator.
    """
    heads, rows, size = call.results[0].shape[-3:]
    # Scores have the width of queries, contexts that of values: the mean counts.
    query = call.tape.tensors[call.inputs[0]].elements // (heads * rows)
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs, output, log_sums),
        sharding="heads",
        dims=(rows, rows, (query + size) // 2, heads),
        window=window,
    )


def _flash(call: TracedCall) -> None:
    """Count the keys that a sliding window shows."""
    flash_rule(call, call.target.rules.window)


def dropout_rule(call: TracedCall) -> None:
    """Keep a mask; nothing happens at probability 0."""
    if call.target.p == 0:
        _alias(call)
        return
    output, mask = call.result(), call.extra(call.results[0].numel(), "mask")
    call.emit("dropout", (output,), saved=(mask,))


def embedding_rule(sharding: str) -> Callable[[TracedCall], None]:
    """Return the rule of an embedding: it keeps ids only, which are not counted."""

    def rule(call: TracedCall) -> None:
        output = call.result(layout="sequence")
        call.emit("embedding", (output,), sharding=sharding)

    return rule


def _rotary(call: TracedCall) -> None:
    """Keep nothing: turning back needs angles only."""
    tensors = call.tape.tensors
    outputs = tuple(
        call.result(place, tensors[number].layout)
        for place, number in enumerate(call.inputs)
    )
    call.emit("rotary", outputs)


def _latent_heads(call: TracedCall) -> None:
    """Keep nothing, as rotary embeddings do; every result is made anew."""
    places = range(len(call.results))
    call.emit("rotary", tuple(call.result(place, "tensor") for place in places))


def _topk(call: TracedCall) -> None:
    """Keep the softmax over all experts."""
    weights = call.result()
    everything = call.extra(call.tape.tensors[call.inputs[0]].elements, "model")
    call.emit("top-k", (weights,), saved=(everything,))


def cross_entropy_rule(call: TracedCall) -> None:
    """Keep the softmax over the vocabulary in fp32."""
    loss = call.result(layout="whole")
    softmax = call.extra(call.tape.tensors[call.inputs[0]].elements, "fp32")
    call.emit("cross entropy", (loss,), saved=(softmax,))


def memory_rule(
    operation: str, *, keeps: str = "", layout: str = ""
) -> Callable[[TracedCall], None]:
    """Return the rule of an operator bound by memory, with one result.

    `keeps` says what the backward pass needs: ``"inputs"``, ``"output"`` or nothing.
    """

    def rule(call: TracedCall) -> None:
        output = call.result(layout=layout)
        saved = {"inputs": call.inputs, "output": (output,), "": ()}[keeps]
        call.emit(operation, (output,), saved=saved)

    return rule


MODULE_RULES: Mapping[type[nn.Module], Callable[[TracedCall], None]] = MappingProxyType(
    {
        layers.ColumnParallelLinear: linear_rule("column", "tensor"),
        layers.RowParallelLinear: linear_rule("row", "sequence"),
        layers.VocabParallelLinear: linear_rule("vocab", "vocab"),
        nn.Linear: linear_rule("", ""),
        attention.QKVParallelLinear: _qkv,
        layers.ExpertColumnLinear: _experts("expert column", "expert tensor"),
        layers.ExpertRowLinear: _experts("expert row", "sequence"),
        attention.FlashAttention: _flash,
        attention.ScaledMaskedSoftmax: memory_rule("softmax", keeps="output"),
        attention.HeadGate: memory_rule("multiply", keeps="inputs"),
        attention.RotaryEmbedding: _rotary,
        attention.LatentHeads: _latent_heads,
        layers.VocabParallelEmbedding: embedding_rule("row"),
        nn.Embedding: embedding_rule(""),
        layers.PositionEmbedding: memory_rule("add"),
        layers.RMSNorm: memory_rule("norm", keeps="inputs"),
        attention.QueryNorm: memory_rule("norm", keeps="inputs"),
        attention.KeyNorm: memory_rule("norm", keeps="inputs"),
        nn.LayerNorm: memory_rule("norm", keeps="inputs"),
        nn.GELU: memory_rule("activation", keeps="inputs"),
        nn.SiLU: memory_rule("activation", keeps="inputs"),
        nn.ReLU: memory_rule("activation", keeps="inputs"),
        layers.SquaredReLU: memory_rule("activation", keeps="inputs"),
        layers.XIELU: memory_rule("activation", keeps="inputs"),
        nn.Tanh: memory_rule("activation", keeps="output"),
        nn.Sigmoid: memory_rule("activation", keeps="output"),
        layers.SoftCap: memory_rule("activation", keeps="output"),
        layers.Scale: memory_rule("multiply"),
        nn.Dropout: dropout_rule,
        layers.CrossEntropy: cross_entropy_rule,
        layers.TopK: _topk,
        layers.TokenDispatch: memory_rule("dispatch", layout="experts"),
        layers.IdentityExperts: memory_rule("multiply", keeps="inputs"),
        layers.TokenCombine: memory_rule("combine", keeps="inputs"),
    }
)
"""Module kept in one piece -> its rule."""

FUNCTION_RULES: Mapping[str, Callable[[TracedCall], None]] = MappingProxyType(
    {
        "add": memory_rule("add"),
        "chunk": _parts,
        "flatten": _alias,
        "getitem": _parts,
        "matmul": matmul_rule,
        "mul": memory_rule("multiply", keeps="inputs"),
        "repeat_interleave": memory_rule("repeat", layout="tensor"),
        "split": _parts,
        "transpose": _alias,
        "view_as": _alias,
    }
)
"""Function between modules that are kept in one piece, as `shapes.FUNCTIONS` names it
-> its rule."""


def biased_flash_rule(call: TracedCall) -> None:
    """Keep what fused attention keeps; a bias belongs to all blocks together."""
    heads, rows, size = call.results[0].shape[-3:]
    tensors, (query, key, *_) = call.tape.tensors, call.inputs
    keys = rows * tensors[key].elements // tensors[query].elements
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs[:3], output, log_sums),
        sharding="heads",
        dims=(rows, keys, size, heads),
    )


def _position_bias(call: TracedCall) -> None:
    """Read rows of a small table, keep nothing."""
    call.emit("embedding", (call.result(layout="tensor"),))


def _cross_heads(call: TracedCall) -> None:
    """Share the queries' tensor; keys and values can be kept by themselves."""
    keys, values = (
        call.tape.add(result.numel(), "tensor", "model") for result in call.results[1:]
    )
    call.set((call.inputs[0], keys, values))


def _patches(call: TracedCall) -> None:
    """Describe patches that are cut out and projected as one product."""
    rows, width = call.results[0].shape[-2:]
    inner = call.target.weight.numel() // width
    output = call.result(layout="sequence")
    call.emit("linear", (output,), saved=call.inputs, dims=(rows, width, inner, 1))


def _picture_heads(call: TracedCall) -> None:
    """Turn queries and keys where they are turned; else parts of one tensor."""
    outputs = tuple(call.result(place, "tensor") for place in range(3))
    if call.target.rotary:
        call.emit("rotary", outputs)
    call.set(outputs)


def _chunked_flash(call: TracedCall) -> None:
    """Describe fused attention whose chunks are sequences of their own."""
    heads, rows, size = call.results[0].shape[-3:]
    chunk = call.target.chunk
    output, log_sums = call.result(), call.extra(heads * rows, "fp32")
    call.emit(
        "attention",
        (output,),
        saved=(*call.inputs, output, log_sums),
        sharding="heads",
        dims=(chunk, chunk, size, heads * (rows // chunk)),
    )


def _stream_sum(call: TracedCall) -> None:
    """Keep streams, and weights before and behind their nonlinearity, in fp32."""
    (streams,) = call.inputs
    outputs, inner = call.target.weight.shape
    tokens = call.tape.tensors[streams].elements // inner
    logits, made = (call.extra(tokens * outputs, "fp32") for _ in range(2))
    dims = (tokens, outputs, inner, 1)
    part = call._replace(name=f"{call.name}.product")
    part.emit("linear", (logits,), saved=(streams,), dims=dims)
    part = call._replace(name=f"{call.name}.weights", inputs=(logits,))
    part.emit("stream weights", (made,), saved=(logits,))
    hidden = call.result()
    part = call._replace(name=f"{call.name}.sum", inputs=(streams, made))
    part.emit("stream sum", (hidden,), saved=(streams, made))
    call.set((hidden, made)[: len(call.results)])


def _stream_update(call: TracedCall) -> None:
    """Keep the branch and weights, and the streams where a matrix mixes them."""
    streams, *others = call.inputs
    saved = call.inputs if call.target.mixes else tuple(others)
    elements = call.results[0].numel()
    updated = call.tape.add(elements, call.tape.tensors[streams].layout, "model")
    dims = _NO_DIMS
    if call.target.mixes:
        tokens, n = math.prod(call.results[0].shape[:2]), call.target.streams
        dims = (elements // (tokens * n), n, n, tokens)
    call.emit("stream update", (updated,), saved=saved, dims=dims)


def _borrowed_heads(call: TracedCall) -> None:
    """Split keys and values as far as there are groups."""
    call.set(tuple(call.result(place, "groups") for place in range(2)))


def _gated_sum(call: TracedCall) -> None:
    """Keep what is weighed, and by what."""
    call.emit("add", (call.result(),), saved=call.inputs[1:])


def _joined_streams(call: TracedCall) -> None:
    """Join parts that nothing has moved."""
    call.set((call.result(),))


ARCHITECTURE_RULES: Mapping[type[nn.Module], Callable[[TracedCall], None]] = (
    MappingProxyType(
        {
            attention.ChunkedFlashAttention: _chunked_flash,
            attention.UnitNorm: memory_rule("norm", keeps="inputs"),
            families.LaterTokenEmbedding: embedding_rule("row"),
            families.NGramTables: embedding_rule("row"),
            hyper_connections.StreamCopies: memory_rule("repeat"),
            hyper_connections.StreamSum: _stream_sum,
            hyper_connections.LastStreamSum: _stream_sum,
            hyper_connections.StreamUpdate: _stream_update,
            hyper_connections.StreamPrediction: _stream_update,
            hyper_connections.StreamCorrection: _stream_update,
            hyper_connections.OtherStreams: _stream_update,
            hyper_connections.MagnitudeOf: memory_rule("norm", keeps="inputs"),
            hyper_connections.JoinedParts: memory_rule("concatenate"),
            hyper_connections.ChannelScale: memory_rule("multiply", keeps="inputs"),
            hyper_connections.ThresholdActivation: memory_rule(
                "activation", keeps="inputs"
            ),
            hyper_connections.PartNorm: memory_rule("norm", keeps="inputs"),
            hyper_connections.QueryRotary: _rotary,
            hyper_connections.BorrowedHeads: _borrowed_heads,
            layers.Concatenation: memory_rule("concatenate"),
            families.LaterCrossEntropy: cross_entropy_rule,
            encoders.BiasedFlashAttention: biased_flash_rule,
            encoders.UnmaskedFlashAttention: biased_flash_rule,
            encoders.CrossHeads: _cross_heads,
            encoders.MaskedSoftmax: memory_rule("softmax", keeps="output"),
            encoders.RelativePositionBias: _position_bias,
            vision_tower.PictureHeads: _picture_heads,
            vision_tower.JoinedHeads: _alias,
            vision_tower.MergedPatches: _alias,
            vision_tower.AveragedPatches: memory_rule("add"),
            vision_tower.Positions: memory_rule("add"),
            vision_tower.PlacedTokens: memory_rule("concatenate"),
            encoders.PatchProjection: _patches,
            diffusion_blocks.RowLinear: linear_rule("conditioning", "conditioning"),
            diffusion_blocks.ModulationTable: memory_rule("add"),
            diffusion_blocks.Modulate: memory_rule("multiply", keeps="inputs"),
            diffusion_blocks.GatedSum: _gated_sum,
            diffusion_blocks.TextFlashAttention: biased_flash_rule,
            diffusion_blocks.JoinedStreams: _joined_streams,
            diffusion_blocks.SquareError: memory_rule(
                "square error", keeps="inputs", layout="whole"
            ),
            encoders.ClassTokenAndPositions: memory_rule("add"),
        }
    )
)
"""Module kept in one piece -> its rule."""
