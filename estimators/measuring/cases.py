"""What is measured: the modules that the traced layers consist of, one at a time.

Each case puts one module or function of `estimators.tracing.rules` into a module of
its own. Tracing that module tells its FLOPs and bytes in the words in which a layer's
operators are described, so that a measured shape and a shape that is looked up can be
compared.

Letters: ``T`` tokens, ``h`` hidden size, ``s`` tokens of a sequence, ``a`` heads,
``d = h / a`` head size, ``V`` vocabulary.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from estimators.layers.sharding import layer_work
from estimators.layers.work import Degrees, OperatorWork
from estimators.models import attention, layers, vocabulary
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import LayerGraph
from estimators.tracing.trace import record_layer

Part = Callable[["Words"], Callable[..., Any]]
"""Builds a module, or returns a function, in some words."""

DROPOUT = 0.1
"""Probability at which dropout is measured; its time does not depend on it."""

NUM_EXPERTS, TOPK = 8, 2
"""At which routing is measured: those of Mixtral."""


class Words(NamedTuple):
    """What cases are written in: shapes that are traced, or torch's, measured."""

    torch: Any
    """Functions."""
    nn: Any
    """Modules."""
    attention: Any
    """Those of `estimators.models.attention`."""
    layers: Any
    """Those of `estimators.models.layers`."""


_SHAPES = Words(vocabulary.torch, vocabulary.nn, attention, layers)


@cache
def _torch_words() -> Words:
    parts = (vocabulary.torch_module(name) for name in ("attention", "layers"))
    return Words(torch, torch.nn, *parts)


class Size(NamedTuple):
    """From which the shapes of all operators of a layer follow."""

    tokens: int
    """Tokens of a micro-batch."""
    hidden: int
    """Width of the hidden states."""
    heads: int
    """Attention heads."""
    sequence: int
    """Tokens of a sequence."""
    vocab: int
    """Entries of the vocabulary."""


SIZES: dict[str, tuple[Size, ...]] = {
    "cpu": (
        Size(256, 256, 4, 128, 4096),
        Size(128, 128, 2, 64, 2048),
        Size(512, 512, 8, 256, 8192),
        Size(256, 512, 8, 128, 4096),
        Size(512, 256, 4, 512, 8192),
        Size(1024, 512, 8, 512, 16384),
        Size(512, 1024, 16, 256, 8192),
        Size(1024, 1024, 16, 1024, 16384),
        Size(2048, 2048, 16, 1024, 32768),
    ),
    "cuda": (
        Size(4096, 4096, 32, 2048, 32768),
        Size(1024, 1024, 16, 512, 32768),
        Size(8192, 4096, 32, 4096, 32768),
        Size(2048, 2048, 16, 2048, 32768),
        Size(8192, 8192, 64, 4096, 32768),
        Size(2048, 4096, 32, 2048, 128256),
        Size(16384, 2048, 16, 4096, 50304),
        Size(4096, 5120, 40, 4096, 32768),
        Size(2048, 12288, 96, 2048, 51200),
        Size(16384, 8192, 64, 8192, 32768),
        Size(8192, 1024, 16, 1024, 50304),
        Size(512, 4096, 32, 512, 32768),
    ),
}
"""Kind of device -> sizes in the order in which they are measured: first one from the
middle, then what widens the range, then what lies between."""

NUM_QUICK_SIZES = 2


class Given(NamedTuple):
    """One input of a case."""

    shape: tuple[int, ...]
    """Shape of the input."""
    below: int = 0
    """Bound that whole numbers are drawn below; 0 for numbers of the measured
    precision."""

    def make(self, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Return a tensor of that shape."""
        if self.below:
            return torch.randint(self.below, self.shape, device=device)
        return torch.randn(self.shape, device=device, dtype=dtype, requires_grad=True)

    def shaped(self, sequences: int) -> Any:
        """Return the shape of one of some sequences."""
        count, *rest = self.shape
        shape = (1 if sequences > 1 else count, *rest)
        return _SHAPES.torch.empty(shape, dtype="long" if self.below else "float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCase:
    """One operator of one shape."""

    operation: str
    """Name of the operation, as `Measurement.operation`."""

    part: Part
    """What is measured."""

    inputs: tuple[Given, ...]
    """Inputs of the call."""

    sequences: int = 1
    """First size of every input, if it counts sequences: layers are traced with one."""

    width: int = 0
    """Width of the result, where the shape of the first input does not tell."""

    sums_gradients: bool = False
    """Whether the backward pass passes the gradient on, and adds up two of them where
    its inputs come from."""

    def module(self) -> torch.nn.Module:
        """Build a module of torch that consists of the operator only."""
        module: torch.nn.Module = self._module(_torch_words())
        return module

    def _module(self, words: Words) -> Any:
        return words.layers.Alone(self.part(words))

    def work(self, element_bytes: int) -> OperatorWork:
        """Return FLOPs and bytes, as a traced layer's operators have them."""
        inputs = tuple(given.shaped(self.sequences) for given in self.inputs)
        module = self._module(_SHAPES)
        traced = record_layer(module, inputs, takes_hidden=False)
        graph = LayerGraph(spec=_ONE, names=("case",), kinds=(0,), layers=(traced,))
        degrees = Degrees(micro_batch_size=self.sequences)
        (work,) = layer_work(graph, 0, degrees, element_bytes).operators
        return work

    def shape(self, work: OperatorWork) -> tuple[int, ...]:
        """Return what `Measurement.shape` says."""
        if work.kind == "matmul":
            return int(work.m), int(work.n), int(work.k), int(work.batch)
        return self.inputs[0].shape + ((self.width,) if self.width else ())


def cases(size: Size) -> Iterator[OperatorCase]:
    """List what is measured at one size, in order."""
    tokens, hidden, heads, sequence, _ = size
    batch = max(1, tokens // sequence)
    yield from _products(size)
    yield from _attention(batch, heads, sequence, hidden // heads)
    yield from _streams(size, (batch, sequence, hidden))
    yield from _routing(tokens, hidden)


_ONE = TransformerSpec(
    family="gpt",
    num_layers=1,
    hidden_size=128,
    num_attention_heads=1,
    vocab_size=128,
    sequence_length=128,
)
"""One device alone: its degrees are 1, so that nothing of this is looked at but that
attention is causal."""


def _products(size: Size) -> Iterator[OperatorCase]:
    """Query-key-value, projection, both feed-forward layers, two halves, head."""
    tokens, h, _, _, vocab = size
    half = h // 2
    shapes = ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (half, h), (h, half))
    for n, k in (*shapes, (vocab, h)):
        yield OperatorCase(
            operation="linear",
            part=partial(_linear, k, n),
            inputs=(Given((tokens, k)),),
        )


def _linear(inner: int, outer: int, words: Words) -> Any:
    return words.layers.ColumnParallelLinear(inner, outer, bias=False)


def _scores(words: Words) -> Callable[[Any, Any], Any]:
    return lambda query, key: words.torch.matmul(query, key.transpose(-1, -2))


def _attention(b: int, a: int, s: int, d: int) -> Iterator[OperatorCase]:
    """Plain attention by its two products and softmax, and fused attention."""
    heads, square = Given((b, a, s, d)), Given((b, a, s, s))
    spec = TransformerSpec(
        family="gpt",
        num_layers=1,
        hidden_size=a * d,
        num_attention_heads=a,
        vocab_size=128,
        sequence_length=s,
    )
    parts: tuple[tuple[str, Part, tuple[Given, ...]], ...]
    parts = (
        (
            "attention",
            lambda words: words.attention.FlashAttention(spec),
            (heads, heads, heads),
        ),
        ("matmul", _scores, (heads, heads)),
        ("matmul", lambda words: words.torch.matmul, (square, heads)),
        (
            "softmax",
            lambda words: words.attention.ScaledMaskedSoftmax(
                d, words.attention.score_rules(spec)
            ),
            (square,),
        ),
        ("rotary", lambda words: words.attention.RotaryEmbedding(d), (heads, heads)),
        ("repeat", lambda _: _repeated, (heads,)),
    )
    for operation, part, inputs in parts:
        yield OperatorCase(operation=operation, part=part, inputs=inputs, sequences=b)


def _repeated(heads: Any) -> Any:
    return heads.repeat_interleave(2, 1)


def _streams(size: Size, shape: tuple[int, int, int]) -> Iterator[OperatorCase]:
    """Everything else that a dense layer, the embedding and the loss do."""
    h, vocab = size.hidden, size.vocab
    hidden, wide = Given(shape), Given((*shape[:2], 4 * h))
    parts: tuple[tuple[str, Part, tuple[Given, ...]], ...]
    parts = (
        ("layernorm", lambda words: words.nn.LayerNorm(h), (hidden,)),
        ("rmsnorm", lambda words: words.layers.RMSNorm(h), (hidden,)),
        ("gelu", lambda words: words.nn.GELU(), (wide,)),
        ("silu", lambda words: words.nn.SiLU(), (wide,)),
        ("multiply", lambda _: operator.mul, (wide, wide)),
        ("dropout", lambda words: words.nn.Dropout(DROPOUT), (hidden,)),
        (
            "embedding",
            lambda words: words.layers.VocabParallelEmbedding(vocab, h),
            (Given(shape[:2], vocab),),
        ),
        (
            "cross entropy",
            lambda words: words.layers.CrossEntropy(),
            (Given((*shape[:2], vocab)), Given(shape[:2], vocab)),
        ),
    )
    yield OperatorCase(
        operation="add",
        part=lambda _: operator.add,
        inputs=(hidden, hidden),
        sequences=shape[0],
        sums_gradients=True,
    )
    for operation, part, inputs in parts:
        yield OperatorCase(
            operation=operation,
            part=part,
            inputs=inputs,
            sequences=shape[0],
            width=h if operation == "embedding" else 0,
        )


def _routing(tokens: int, h: int) -> Iterator[OperatorCase]:
    """Choice of experts, and the way of the tokens there and back."""
    chosen = Given((tokens, TOPK), NUM_EXPERTS)
    yield OperatorCase(
        operation="top-k",
        part=lambda words: words.layers.TopK(TOPK),
        inputs=(Given((tokens, NUM_EXPERTS)),),
    )
    yield OperatorCase(
        operation="dispatch",
        part=lambda words: words.layers.TokenDispatch(NUM_EXPERTS),
        inputs=(Given((tokens, h)), chosen),
    )
    yield OperatorCase(
        operation="combine",
        part=lambda words: words.layers.TokenCombine(),
        inputs=(Given((tokens * TOPK, h)), Given((tokens, TOPK)), chosen),
    )
