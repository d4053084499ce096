"""Rules of mixers other than attention: scans and recurrences.

The chunked scan of Mamba-2 [2]_ is described by its kernels: with chunks of ``Q``
tokens, ``G`` groups of ``H / G`` heads of width ``P``, and a state of ``N`` numbers for
each channel, a group of a chunk has the products

* ``C B^T`` of ``Q x N x Q``, the scores;
* ``x^T B`` of ``P H/G x Q x N``, what the chunk adds to the states;
* scores by x of ``Q x Q x P H/G``, and C by the states that entered, of
  ``Q x N x P H/G``: the results;

beside the convolution, the sums of decays, the states handed from chunk to chunk, and
the gate. Scores, sums and states of a chunk are in fp32. For its backward pass the
function keeps its input and the result before the gate and makes the rest again [3]_:
the first two products are of the kind that a backward pass repeats (``"scan"``).

Sparse attention [5]_ is an indexer and a core. The indexer's scores of all pairs of
tokens are one kernel, which adds up heads and writes a number in fp32 for each pair,
masked ones too; the choice reads them. Its backward pass is that of a loss
over the chosen keys [6]_. What makes keys and values of latents is multiplied with
queries and with contexts, and attention is that of heads as wide as latents.

A delta net and lightning attention are recurrences (`estimators.tracing.recurrences`),
each one fused function of several kernels. That of a delta net keeps [4]_ queries and
keys as unit vectors, values, strengths, the sums of decays of a chunk in fp32, or what
decays of channels are made of, and for each token of a head a row of its chunk's
inverse; with decays of channels also a row of scores. Beside it the convolution keeps
its input and unit vectors are kept before they are repeated.

The selective scan of Mamba-1 is one kernel, which keeps what it reads, its result
before the gate, and two numbers of each state for every 2,048 tokens [7]_. It is priced
by the memory it moves: where a chip's exponentials are slower than its memory it takes
longer, of which no measurement is public here.

References
----------
.. [2] Dao and Gu, "Transformers are SSMs", 2024, section 6.
.. [3] state-spaces/mamba, ``ops/triton/ssd_combined.py``:
   ``MambaSplitConv1dScanCombinedFn`` saves ``zxbcdt`` and ``out_x``.
.. [4] fla-org/flash-linear-attention at bc3b101d, ``ops/gated_delta_rule/chunk.py`` and
   ``ops/kda/chunk.py``: ``save_for_backward``; Megatron Core at d98e8a64,
   ``core/ssm/gated_delta_net/common.py``: ``_prepare_input_for_gated_delta_rule``.
.. [5] DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1; Megatron Core at d98e8a64,
   ``core/transformer/experimental_attention_variant``.
.. [6] DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1.1, "Sparse Training Stage". The
   target of that loss, the sum of attention's probabilities over heads, is left out.
.. [7] state-spaces/mamba, ``ops/selective_scan_interface.py``: ``SelectiveScanFn``;
   ``csrc/selective_scan/selective_scan.cpp``: ``n_chunks`` of 2,048 tokens.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from estimators.models import (
    layers,
    linear_attention,
    sparse_attention,
)
from estimators.models.vocabulary import nn
from estimators.tracing.graph import INDEX_SCORES
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.rules import TracedCall, memory_rule


class _Kernels(NamedTuple):
    """A module of several kernels; writes them down one by one."""

    call: TracedCall
    """Call of the module."""
    layout: str = "tensor"
    """How tensors inside are laid out: by default they are split by heads."""
    core: bool = False
    """Whether kernels belong to the attention core."""

    def tensor(self, elements: int, precision: str = "model") -> int:
        """Return the number of a new tensor."""
        return self.call.tape.add(elements, self.layout, precision)

    def emit(
        self,
        part: str,
        operation: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        **described: Any,
    ) -> None:
        """Write one kernel down, as `TracedCall.emit` does.

        One with sizes is split by heads unless it says so.
        """
        if "dims" in described:
            described = {"sharding": "heads", **described}
        self.call._replace(inputs=inputs).emit(operation, outputs, **described)
        operators = self.call.tape.operators
        name = f"{operators[-1].name}.{part}"
        operators[-1] = operators[-1]._replace(name=name, core=self.core)


class _Scan(NamedTuple):
    """The sizes of the scan of one sequence."""

    tokens: int
    """Tokens of the sequence."""
    chunk: int
    """Tokens ``Q`` of a chunk."""
    products: int
    """Chunks times groups: a sequence's last chunk is filled up."""
    width: int
    """Width ``P H/G`` of a group's heads."""
    state: int
    """Numbers ``N`` of a channel's state."""

    @classmethod
    def of(cls, call: TracedCall) -> "_Scan":
        """Read the sizes off a module and its result."""
        module: layers.ChunkedScan = call.target
        tokens = call.results[0].numel() // module.widths[0]
        chunk = min(module.chunk_size, tokens)
        return cls(
            tokens,
            chunk,
            math.ceil(tokens / chunk) * module.num_groups,
            module.widths[0] // module.num_groups,
            module.state_dim,
        )


def scan_rule(call: TracedCall) -> None:
    """Keep the input, as gate, values and steps, and the result before the gate."""
    scan, module, parts = _Scan.of(call), call.target, _Kernels(call)
    chunk, width, state, products = scan.chunk, scan.width, scan.state, scan.products
    gate, convolved, step = (parts.tensor(scan.tokens * n) for n in module.widths)
    maps = scan.tokens * module.num_groups * state
    x, b, c = (parts.tensor(n) for n in (scan.tokens * module.widths[0], maps, maps))
    parts.emit("conv1d", "convolution", (convolved,), (x, b, c), saved=(convolved,))
    decay = parts.tensor(scan.tokens * module.num_heads, "fp32")
    parts.emit("decay", "cumulative sum", (step,), (decay,), saved=(step,))
    scores = parts.tensor(products * chunk**2, "fp32")
    parts.emit(
        "scores", "scan", (c, b), (scores,), dims=(chunk, chunk, state, products)
    )
    added = parts.tensor(products * width * state, "fp32")
    parts.emit(
        "states", "scan", (x, b, decay), (added,), dims=(width, state, chunk, products)
    )
    entered = parts.tensor(products * width * state)
    parts.emit("passing", "state passing", (added,), (entered,))
    inner, result, output = (parts.tensor(call.results[0].numel()) for _ in range(3))
    within = (scores, x, decay)
    parts.emit(
        "within", "matmul", within, (inner,), dims=(chunk, width, chunk, products)
    )
    across = (c, entered, inner)
    parts.emit(
        "across", "matmul", across, (result,), dims=(chunk, width, state, products)
    )
    parts.emit("gate", "multiply", (result, gate), (output,), saved=(result, gate))


def _delta_rule(call: TracedCall) -> None:
    """Describe convolution, unit vectors, decays and the delta rule."""
    parts, module = _Kernels(call), call.target
    mixed, beta, decay = call.inputs
    keys, _, values = module.widths
    tokens = call.results[0].numel() // values
    heads, width = module.num_values, module.num_values * module.key
    name = "channel delta rule" if module.by_channel else "gated delta rule"
    chunk = min(RECURRENCES[name].chunk, tokens)
    both, value = parts.tensor(2 * tokens * keys), parts.tensor(tokens * values)
    parts.emit("conv1d", "convolution", (mixed,), (both, value), saved=(mixed,))
    unit = parts.tensor(2 * tokens * keys)
    parts.emit("unit vectors", "norm", (both,), (unit,), saved=(unit,))
    query, key = (parts.tensor(tokens * width) for _ in range(2))
    copied = parts.tensor(tokens * values)
    parts.emit("heads", "repeat", (unit, value), (query, key, copied))
    strength = parts.tensor(tokens * heads)
    if module.by_channel:
        parts.emit("strength", "activation", (beta,), (strength,), saved=(beta,))
        sums = decay
        rows = tuple(parts.tensor(tokens * heads * chunk) for _ in range(2))
    else:
        sums = parts.tensor(tokens * heads, "fp32")
        given = beta, decay
        parts.emit("decay", "activation", given, (sums, strength), saved=given)
        rows = (parts.tensor(tokens * heads * chunk),)
    inputs = query, key, copied, sums, strength
    parts.emit(
        "rule",
        name,
        inputs,
        (call.result(),),
        saved=(*inputs, *rows),
        dims=(tokens, module.value, module.key, heads),
    )


def _decaying_sum(call: TracedCall) -> None:
    """Keep queries, keys and values."""
    module = call.target
    tokens = call.results[0].numel() // (module.num_heads * module.width)
    call.emit(
        "decaying sum",
        (call.result(),),
        saved=call.inputs,
        sharding="heads",
        dims=(tokens, module.width, module.width, module.num_heads),
    )


def _indexer(call: TracedCall) -> None:
    """Keep what projections read, queries and keys with positions, and the choice."""
    parts, module = _Kernels(call, "whole", core=True), call.target
    hidden, queries = call.inputs
    tokens, heads, width = call.results[0].shape[1], module.heads, module.width
    flat, keys, weights, normed = (
        parts.tensor(tokens * size) for size in (heads * width, width, heads, width)
    )
    parts.emit(
        "linear_wq_b",
        "linear",
        (queries,),
        (flat,),
        saved=(queries,),
        sharding="copied",
        dims=(tokens, heads * width, module.linear_wq_b.in_features, 1),
    )
    parts.emit(
        "linear_wk",
        "linear",
        (hidden,),
        (keys, weights),
        saved=(hidden,),
        sharding="copied",
        dims=(tokens, width + heads, module.linear_wk.in_features, 1),
    )
    parts.emit("k_norm", "norm", (keys,), (normed,), saved=(keys,))
    query, key = parts.tensor(tokens * heads * width), parts.tensor(tokens * width)
    parts.emit("rotary", "rotary", (flat, normed), (query, key))
    topk = call.results[0].shape[-1]
    _choice(parts, (query, key, weights), (tokens, tokens, width, heads), topk)


def _choice(
    parts: _Kernels,
    kept: tuple[int, int, int],
    dims: tuple[int, int, int, int],
    topk: int,
) -> None:
    """Score all keys, keeping queries, keys and weights of heads; choose the best."""
    scores = parts.tensor(dims[0] * dims[1], "fp32")
    read, made = kept[:2], (scores,)
    parts.emit("scores", INDEX_SCORES, read, made, saved=kept, dims=dims, window=topk)
    best = parts.tensor(dims[0] * topk, "fp32")
    parts.emit("topk", "top-k keys", (scores,), (best,))


def _sparse_core(call: TracedCall) -> None:
    """Keep queries before and behind the product with weights, latents, contexts."""
    parts, module = _Kernels(call), call.target
    queries, latent, positions, *chosen = call.inputs
    tokens, heads = call.results[0].shape[1], module.num_heads
    rank, turned, plain = module.rank, module.turned, module.plain
    wide = parts.tensor(tokens * heads * rank)
    turned_parts = (
        parts.tensor(tokens * heads * plain),
        parts.tensor(tokens * heads * turned),
        call.tape.add(tokens * (rank + turned), "whole", "model"),
    )
    parts.emit("heads", "rotary", (queries, latent, positions), turned_parts)
    unturned, rotary, key = turned_parts
    parts.emit(
        "absorbed keys",
        "matmul",
        (unturned,),
        (wide,),
        saved=(unturned,),
        sharding="per head",
        dims=(tokens, rank, plain, heads),
    )
    query = parts.tensor(tokens * heads * (rank + turned))
    parts.emit("query", "concatenate", (wide, rotary), (query,))
    context = parts.tensor(tokens * heads * rank)
    sums = parts.tensor(tokens * heads, "fp32")
    parts._replace(core=True).emit(
        "attention",
        "attention",
        (query, key),
        (context,),
        saved=(query, key, *chosen, context, sums),
        dims=(tokens, tokens, rank + turned // 2, heads),
        window=min(module.topk, tokens),
    )
    parts.emit(
        "absorbed values",
        "matmul",
        (context,),
        (call.result(),),
        saved=(context,),
        sharding="per head",
        dims=(tokens, module.value, rank, heads),
    )


def _copied_linear(
    parts: _Kernels, name: str, source: int, rows: int, module: nn.Linear
) -> int:
    """Write a product of a rank's own rows down; return its result."""
    width, inner = module.weight.shape
    made = parts.tensor(rows * width)
    dims = (rows, width, inner, 1)
    sharding = {"sharding": "copied", "dims": dims, "saved": (source,)}
    parts.emit(name, "linear", (source,), (made,), **sharding)
    return made


def _summed(
    parts: _Kernels,
    module: sparse_attention.Summaries,
    hidden: int,
    tokens: int,
    name: str,
) -> int:
    """Describe products, sums that keep what they read, a norm, and positions."""
    made = _copied_linear(parts, f"{name}linear", hidden, tokens, module.linear)
    summed, normed, turned = (
        parts.tensor(tokens // module.rate * module.width) for _ in range(3)
    )
    parts.emit(f"{name}sum", "weighed sum", (made,), (summed,), saved=(made,))
    parts.emit(f"{name}norm", "norm", (summed,), (normed,), saved=(summed,))
    parts.emit(f"{name}rotary", "rotary", (normed,), (turned,))
    return turned


def _summaries(call: TracedCall) -> None:
    """Keep what products and sums read."""
    (hidden,), module = call.inputs, call.target
    width = module.linear.in_features
    tokens = call.tape.tensors[hidden].elements // width
    call.set((_summed(_Kernels(call, "whole"), module, hidden, tokens, ""),))


def _summary_indexer(call: TracedCall) -> None:
    """Keep what `_indexer` keeps, of summaries in place of tokens."""
    parts, module = _Kernels(call, "whole", core=True), call.target
    hidden, queries = call.inputs
    tokens, topk = call.results[0].shape[1:]
    heads, width, rate = module.heads, module.width, module.summaries.rate
    flat = _copied_linear(parts, "linear_wq_b", queries, tokens, module.linear_wq_b)
    projection = module.linear_weights_proj
    weights = _copied_linear(parts, "linear_weights", hidden, tokens, projection)
    key = _summed(parts, module.summaries, hidden, tokens, "summaries.")
    query = parts.tensor(tokens * heads * width)
    parts.emit("rotary", "rotary", (flat,), (query,))
    dims = tokens, tokens // rate, width, heads
    _choice(parts, (query, key, weights), dims, topk)


def _summary_core(call: TracedCall) -> None:
    """Keep queries, keys, summaries, what was chosen of them, and contexts."""
    parts, module = _Kernels(call, core=True), call.target
    query, key, *beside = call.inputs
    tokens, tensors = call.results[0].shape[1], call.tape.tensors
    context, sums = call.result(), parts.tensor(tokens * module.num_heads, "fp32")
    window = module.window if module.window < tokens else 0
    parts.emit(
        "attention",
        "attention",
        (query, key, *beside[:1]),
        (context,),
        saved=(query, key, *beside, context, sums),
        dims=(tokens, tokens, module.width, module.num_heads),
        window=window,
    )
    summaries = tensors[beside[0]].elements // module.width if beside else 0
    chosen = min(module.topk, summaries)
    operators = call.tape.operators
    operators[-1] = operators[-1]._replace(summaries=summaries, chosen=chosen)


def _turned_queries(call: TracedCall) -> None:
    """Keep queries in front of their norm; positions keep nothing."""
    parts = _Kernels(call)
    flat, key = call.inputs
    normed = parts.tensor(call.results[0].numel())
    parts.emit("norm", "norm", (flat,), (normed,), saved=(flat,))
    outputs = (parts.tensor(call.results[0].numel()), call.result(1, "whole"))
    parts.emit("rotary", "rotary", (normed, key), outputs)


def _grouped_linear(call: TracedCall) -> None:
    """Keep contexts; groups are split with their heads."""
    module, tokens = call.target, call.results[0].shape[1]
    call.emit(
        "linear",
        (call.result(layout="tensor"),),
        saved=call.inputs,
        sharding="per head",
        dims=(tokens, module.rank, module.in_features, module.groups),
    )


STATE_CHUNK = 2048
"""Tokens after which a selective scan keeps its states [7]_."""


def _selective_scan(call: TracedCall) -> None:
    """Keep what it reads, its result before the gate, and some states in fp32."""
    module, read = call.target, call.inputs
    width, state = module.A_log.shape
    elements = call.results[0].numel()
    chunks = math.ceil(elements // width / STATE_CHUNK)
    output, result = call.result(), call.extra(elements, "model")
    states = call.extra(2 * chunks * width * state, "fp32")
    call.emit("selective scan", (output,), saved=(*read, result, states))


MIXER_RULES: Mapping[type[nn.Module], Callable[[TracedCall], None]] = MappingProxyType(
    {
        layers.ChunkedScan: scan_rule,
        layers.GroupedRMSNorm: memory_rule("norm", keeps="inputs"),
        linear_attention.CausalConvolution: memory_rule("convolution", keeps="inputs"),
        linear_attention.SelectiveScan: _selective_scan,
        sparse_attention.Indexer: _indexer,
        sparse_attention.SparseLatentCore: _sparse_core,
        sparse_attention.Summaries: _summaries,
        sparse_attention.SummaryIndexer: _summary_indexer,
        sparse_attention.SummaryCore: _summary_core,
        sparse_attention.TurnedQueries: _turned_queries,
        sparse_attention.TurnedBack: memory_rule("rotary"),
        sparse_attention.GroupProjection: _grouped_linear,
        linear_attention.DeltaRule: _delta_rule,
        linear_attention.DecayingSum: _decaying_sum,
        linear_attention.GatedHeadNorm: memory_rule("norm", keeps="inputs"),
    }
)
"""Module kept in one piece -> its rule."""

MIXER_LAYOUTS: Mapping[tuple[type[nn.Module], str], str] = MappingProxyType(
    {
        (layers.ChunkedScan, "conv1d_weight"): "tensor",
        (layers.ChunkedScan, "conv1d_bias"): "tensor",
        (layers.ChunkedScan, "dt_bias"): "tensor",
        (layers.ChunkedScan, "A_log"): "tensor",
        (layers.ChunkedScan, "D"): "tensor",
        (layers.GroupedRMSNorm, "weight"): "tensor",
        (linear_attention.CausalConvolution, "weight"): "tensor",
        (linear_attention.CausalConvolution, "bias"): "tensor",
        (linear_attention.SelectiveScan, "A_log"): "tensor",
        (linear_attention.SelectiveScan, "D"): "tensor",
        (sparse_attention.SparseLatentCore, "softmax_offset"): "tensor",
        (sparse_attention.SummaryCore, "softmax_offset"): "tensor",
        (sparse_attention.GroupProjection, "weight"): "tensor",
        (linear_attention.DeltaRule, "conv1d_weight"): "tensor",
        (linear_attention.DeltaRule, "dt_bias"): "tensor",
        (linear_attention.DeltaRule, "A_log"): "tensor",
    }
)
"""(Module, parameter) -> layout; everything else is whole on every rank."""
