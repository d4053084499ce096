"""Which part of a tensor, a parameter or a product one device has.

A vocabulary is padded to a multiple of 128 tp (Megatron-LM,
``--make-vocab-size-divisible-by``).

The collectives that a traced layer waits for, from how its operators are split.

Letters as in `estimators.layers.sharding`. ``S`` = b s/cp h e, a full tensor of hidden
states.

Tensor group [1]_ [2]_. A column-parallel product adds up the gradients of its input,
a row-parallel one its results: one all-reduce of S each. With sp the all-reduce becomes
an all-gather before (after, in the backward pass) and a reduce-scatter; since the saved
input of a column-parallel product is split too, it is gathered once more for the
weight's gradient. The loss over a split vocabulary needs the largest logit, the
label's logit and the sum of exponentials of every token, in fp32.

Experts [3]_. Tokens travel to their experts and back: one all-to-all of the copies that
a device dispatches each way, forward and backward. With sp each tensor rank dispatches
its own part, which is then gathered over the tensor group, and results are
reduce-scattered before they travel back. Where experts are split over ``etp`` < ``tp``
ranks, those gather and reduce instead of the tensor group [5]_. All that comes after
the dispatch is that of the busiest rank (`estimators.layers.routing`).

An indexer is whole on every tensor rank: with sp its projections gather what they read,
for the forward pass alone, as nothing is handed back [10]_.

Context group. On a ring [4]_ keys and values go round in cp - 1 hops; backward they do
so again, and so do their gradients. Gathered [6]_, they are whole on every rank for as
long as attention works, backward once more, and their gradients are reduce-scattered.
Ulysses [7]_ exchanges tokens for heads: an all-to-all of queries, keys and values each
before attention and one of the context behind it, and one for each of their gradients;
query groups that are fewer than the ranks are copied first. Of two levels the inner
one exchanges, the outer one is a ring [8]_. Linear attention exchanges what its
product made, and back what the next product reads [10]_.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3.
.. [2] Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
   Models", 2022, section 4.2.2.
.. [3] Megatron-LM, ``MoEAlltoAllTokenDispatcher``.
.. [4] Liu et al., "Ring Attention with Blockwise Transformers", 2023, section 3.
.. [5] Liu et al., "MoE Parallel Folding", 2025, section 3; Megatron-LM,
   ``expert_tensor_parallel_size``.
.. [6] Grattafiori et al., "The Llama 3 Herd of Models", 2024, section 3.3.2;
   TransformerEngine, ``AttnFuncWithCPAndKVAllGather``.
.. [7] Jacobs et al., "DeepSpeed Ulysses", 2023, section 3.
.. [8] Megatron-LM, ``hierarchical_context_parallel_sizes``.
.. [9] Megatron Bridge 067f987, ``src/megatron/bridge/peft/utils.py``,
   ``ParallelLinearAdapter``: a first factor that is column-parallel with its output
   gathered, or row-parallel, and a second one that is column-parallel, gathered beside
   a row-parallel layer.
.. [10] Megatron Core at d98e8a64, ``core/ssm/gated_delta_net``: ``a2a_cp_to_hp`` and
   ``a2a_hp_to_cp``.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from estimators.layers.routing import busiest_load
from estimators.layers.work import CollectiveWork, Degrees, sent_in_passes
from estimators.models.spec import TransformerSpec
from estimators.tracing.graph import (
    INDEX_SCORES,
    LayerGraph,
    TracedLayer,
    TracedOperator,
)
from estimators.tracing.recurrences import RECURRENCES
from estimators.tracing.trained_tower import REPLICATED

_VOCAB_MULTIPLE = 128


class ExactShare(NamedTuple):
    """The part ``numerator / denominator`` of a count; exact where it divides."""

    numerator: int
    """Numerator of the share."""
    denominator: int
    """Denominator of the share."""
    load: float = 1.0
    """What experts of the busiest rank get, over an even part."""

    def of(self, count: int) -> float:
        """Return that part of a count."""
        return count * self.numerator / self.denominator * self.load


class ProductShare(NamedTuple):
    """What one device has of each dimension of a product."""

    m: ExactShare
    """Share of the rows."""
    n: ExactShare
    """Share of the columns."""
    k: ExactShare
    """Share of the inner size."""
    batch: ExactShare
    """Share of the independent products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """All parts of one device, relative to one sequence on a device by itself."""

    tensors: Mapping[str, ExactShare]
    """Layout of an activation -> share of its elements, for the whole micro-batch."""

    parameters: Mapping[str, ExactShare]
    """Layout of a parameter -> share of its elements."""

    products: Mapping[str, ProductShare]
    """Sharding of an operator -> shares of its dimensions, for the whole
    micro-batch."""


def padded_vocab_size(spec: TransformerSpec, tp: int) -> int:
    """Return the rows of the embedding together: real ones if nothing is split."""
    if tp == 1:
        return spec.vocab_size
    multiple = _VOCAB_MULTIPLE * tp
    return math.ceil(spec.vocab_size / multiple) * multiple


@lru_cache(maxsize=1024)
def device_shares(
    spec: TransformerSpec, degrees: Degrees, *, kept: bool = False
) -> Shares:
    """Return what one device works on, or keeps, under the given degrees."""
    tp, cp, ep, b, sp, *_ = degrees
    groups = min(tp, spec.num_query_groups)
    padded, vocab = padded_vocab_size(spec, tp), spec.vocab_size
    load = busiest_load(spec, degrees, kept=kept)
    tensors = {
        "whole": ExactShare(b, cp),
        "conditioning": ExactShare(b, 1),
        "sequence": ExactShare(b, cp * tp if sp else cp),
        "tensor": ExactShare(b, cp * tp),
        "groups": ExactShare(b, cp * groups),
        "experts": ExactShare(b, cp * (tp // degrees.etp), load),
        "expert tensor": ExactShare(b, cp * tp, load),
        "gathered experts": ExactShare(b, cp, load),
        "vocab": ExactShare(b * padded, cp * tp * vocab),
    }
    parameters = {
        "whole": ExactShare(1, 1),
        "tensor": ExactShare(1, tp),
        "groups": ExactShare(1, groups),
        "vocab": ExactShare(padded, tp * vocab),
        "expert": ExactShare(1, ep * degrees.etp),
    }
    return Shares(
        tensors=MappingProxyType(tensors),
        parameters=MappingProxyType(parameters),
        products=MappingProxyType(_product_shares(spec, degrees, tensors, parameters)),
    )


def chain_parameters(graph: LayerGraph, degrees: Degrees) -> tuple[float, float]:
    """Return the parameters of all layers, and those of experts that are spread."""
    shares = device_shares(graph.spec, degrees)
    held = [held_parameters(layer, shares) for layer in graph.layers]
    every = [sum(count for _, count in some) for some in held]
    experts = [sum(n for layout, n in some if layout == "expert") for some in held]
    spread = float(degrees.spreads_experts)
    return (
        sum(every[kind] for kind in graph.kinds),
        spread * sum(experts[kind] for kind in graph.kinds),
    )


def held_parameters(
    layer: TracedLayer, shares: Shares, *, frozen: bool = False
) -> list[tuple[str, float]]:
    """Return layout and local size of each parameter of a layer, trained or not."""
    return [
        (p.layout, shares.parameters[p.layout].of(p.elements))
        for p in layer.parameters
        if p.frozen == frozen
    ]


def tied_parameters(graph: LayerGraph, degrees: Degrees) -> float:
    """Return how many of its parameters a device of the last stage has tied."""
    if graph.tied_parameters == 0:
        return 0.0
    spec, tp = graph.spec, degrees.tp
    return padded_vocab_size(spec, tp) * spec.hidden_size / tp


def _product_shares(
    spec: TransformerSpec,
    degrees: Degrees,
    tensors: Mapping[str, ExactShare],
    parameters: Mapping[str, ExactShare],
) -> dict[str, ProductShare]:
    tp, cp, ep, b, *_ = degrees
    all_of, rows, split = ExactShare(1, 1), tensors["whole"], parameters["tensor"]
    groups = min(tp, spec.num_query_groups)
    heads, kv = spec.num_attention_heads, 2 * spec.num_query_groups
    heads *= 1 + spec.attention_output_gate
    if spec.attention_head_gate:
        heads, kv = heads * (spec.kv_channels + 1), kv * spec.kv_channels
    qkv = ExactShare(heads * groups + kv * tp, tp * groups * (heads + kv))
    # The traced product counts the rows of all experts: a device has its tokens' share
    # of them, over its E / ep experts; the busiest one has more.
    experts = max(spec.num_moe_experts, 1)
    rows_per_expert, local_experts, expert_split = (
        ExactShare(b * ep, cp * (tp // degrees.etp) * experts, tensors["experts"].load),
        ExactShare(experts, ep),
        ExactShare(1, degrees.etp),
    )
    return {
        "": ProductShare(tensors["sequence"], all_of, all_of, all_of),
        "conditioning": ProductShare(tensors["conditioning"], all_of, all_of, all_of),
        "column": ProductShare(rows, split, all_of, all_of),
        "qkv": ProductShare(rows, qkv, all_of, all_of),
        "vocab": ProductShare(rows, parameters["vocab"], all_of, all_of),
        "row": ProductShare(rows, all_of, split, all_of),
        "adapter column in": ProductShare(rows, split, all_of, all_of),
        "adapter column out": ProductShare(rows, split, all_of, all_of),
        "adapter row in": ProductShare(rows, all_of, split, all_of),
        "adapter row out": ProductShare(rows, split, all_of, all_of),
        "heads": ProductShare(ExactShare(1, cp), all_of, all_of, ExactShare(b, tp)),
        "per head": ProductShare(rows, all_of, all_of, split),
        "copied": ProductShare(rows, all_of, all_of, all_of),
        REPLICATED: ProductShare(rows, all_of, all_of, all_of),
        "expert column": ProductShare(
            rows_per_expert, expert_split, all_of, local_experts
        ),
        "expert row": ProductShare(
            rows_per_expert, all_of, expert_split, local_experts
        ),
    }


def divisibility_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    """Say why a model cannot be split this way, or return None if it can."""
    problems = (
        _tensor_problem(spec, degrees),
        _context_problem(spec, degrees),
        _expert_problem(spec, degrees),
    )
    return next((problem for problem in problems if problem), None)


def _tensor_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    tp, groups = degrees.tp, spec.num_query_groups
    if tp > 1 and spec.whole_because:
        return f"tensor_model_parallel_size {tp}, but {spec.whole_because}"
    # Heads of Mamba-2 are split with their groups, as in Megatron Core's MambaMixer.
    names = ["num_attention_heads", *_inner_widths(spec)]
    names += ["moe_shared_expert_intermediate_size"]
    own = ["window_num_attention_heads", "num_query_groups"]
    names += own * (spec.window_num_attention_heads > 0)
    names += ["mamba_num_groups"] * spec.has_mamba
    names += ["linear_num_key_heads"] * spec.has_delta_nets
    names += ["hidden_size"] * (spec.short_convolution_width > 0)
    names += ["selective_width"] * (spec.selective_width > 0)
    for name in names:
        if getattr(spec, name) % tp:
            return (
                f"tensor_model_parallel_size {tp} does not divide "
                f"{name} {getattr(spec, name)}"
            )
    if spec.vision and (problem := spec.vision.split_problem(tp)):
        return problem
    if spec.compression and spec.compression[1] % tp:
        return f"tensor_model_parallel_size {tp} does not divide the groups of o_groups"
    if groups % tp and tp % groups:
        return (
            f"tensor_model_parallel_size {tp} is neither a divisor nor a multiple of "
            f"num_query_groups {groups}"
        )
    return None


def _inner_widths(spec: TransformerSpec) -> tuple[str, ...]:
    """Return the widths that tensor groups split in some block."""
    layers = set("+".join(spec.block_kinds.values()).split("+"))
    has_expert_width = spec.moe_ffn_hidden_size != spec.ffn_hidden_size
    if "experts" in layers and has_expert_width:
        dense = ("ffn_hidden_size",) if "dense" in layers else ()
        return (*dense, "moe_ffn_hidden_size")
    return ("ffn_hidden_size",)


def _context_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    tp, cp = degrees.tp, degrees.cp
    if cp > 1 and (problem := _state_problem(spec, degrees)):
        return problem
    if cp > 1 and spec.has_decoder:
        return (
            f"context_parallel_size {cp}, but relative positions and attention to an "
            "encoder go over whole sequences"
        )
    if cp > 1 and spec.attention_implementation != "flash":
        return f"context_parallel_size {cp} needs flash attention"
    is_ring = degrees.grouping.ring(cp) > 1
    if is_ring and (spec.has_windows or spec.attention_chunk_size):
        what = "chunks (attention_chunk_size" if spec.attention_chunk_size else ""
        what = what or "sliding windows (window_size"
        size = spec.attention_chunk_size or spec.window_size
        return (
            f"context_parallel_size {cp} passes keys round a ring, which has no "
            f"{what} {size})"
        )
    parts = cp * (tp if degrees.sequence_parallel else 1)
    # Ranks of a causal ring take one early and one late chunk each, to be equally
    # busy (Megatron-LM's context parallelism).
    parts *= 2 if cp > 1 and spec.causal else 1
    for name, tokens in (
        ("sequence_length", spec.sequence_length),
        ("decoder_sequence_length", spec.decoder_sequence_length),
        ("text_tokens", spec.diffusion.text_tokens if spec.diffusion else 0),
    ):
        if tokens % parts:
            return (
                f"{name} {tokens} does not split into the {parts} "
                f"parts that context_parallel_size {cp} and tensor_model_parallel_size "
                f"{tp} ask for"
            )
    return _exchange_problem(spec, degrees)


def _state_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    """Say why ranks cannot share sequences of heads that hold a state, or None."""
    tp, cp, grouping = degrees.tp, degrees.cp, degrees.grouping
    carried = (
        ("attention among the patches of a picture goes", spec.vision is not None),
        ("the scan of Mamba-2 layers goes", spec.has_mamba),
        ("the scan of Mamba-1 layers goes", spec.selective_width),
        ("short convolutions go", spec.short_convolution_width),
    )
    if what := next((what for what, has in carried if has), ""):
        return f"context_parallel_size {cp}, but {what} through whole sequences"
    indexed = spec.dsa_indexer_topk or spec.compression
    if indexed and grouping.cp_comm_type != "all_gather":
        return (
            f"context_parallel_size {cp}, but an indexer needs the keys of all tokens, "
            f'which cp_comm_type "{grouping.cp_comm_type}" has not: "all_gather"'
        )
    if not spec.has_recurrences:
        return None
    if grouping.cp_comm_type == "a2a+p2p":
        return (
            f"context_parallel_size {cp}, but linear attention exchanges heads among "
            f'all ranks, not among the {grouping.a2a} of cp_comm_type "a2a+p2p"'
        )
    lightning = "lightning" in spec.mixers
    name = "num_attention_heads" if lightning else "linear_num_key_heads"
    if getattr(spec, name) % (tp * cp):
        return (
            f"tensor_model_parallel_size {tp} times context_parallel_size {cp} does "
            f"not divide {name} {getattr(spec, name)}"
        )
    return None


def _exchange_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    """Say why heads cannot be exchanged for tokens, or return None."""
    ranks = degrees.grouping.exchanging(degrees.cp)
    if ranks < 1 or degrees.cp % ranks:
        return (
            f"all-to-alls among {ranks} ranks do not divide context_parallel_size "
            f"{degrees.cp}"
        )
    heads = spec.num_attention_heads // degrees.tp
    if heads % ranks:
        return (
            f"cp_comm_type {degrees.grouping.cp_comm_type} shares {heads} heads of a "
            f"tensor-parallel rank among {ranks} ranks, which do not divide them"
        )
    groups = max(spec.num_query_groups // degrees.tp, 1)
    if groups % ranks and ranks % groups:
        return (
            f"cp_comm_type {degrees.grouping.cp_comm_type} shares {groups} query "
            f"groups of a tensor-parallel rank among {ranks} ranks, which neither "
            "divide them nor are a multiple"
        )
    return None


def group_copies(spec: TransformerSpec, degrees: Degrees) -> int:
    """Return how often keys and values are there once heads are exchanged.

    More than once where there are fewer query groups than ranks.
    """
    groups = max(spec.num_query_groups // degrees.tp, 1)
    return max(degrees.grouping.exchanging(degrees.cp) // groups, 1)


def _expert_problem(spec: TransformerSpec, degrees: Degrees) -> str | None:
    ep, experts = degrees.ep, spec.num_moe_experts
    if ep > 1 and experts == 0:
        return f"expert_model_parallel_size {ep}, but the model has no experts"
    if experts % ep:
        return f"expert_model_parallel_size {ep} does not divide the {experts} experts"
    if degrees.grouping.etp and not experts:
        return (
            f"expert_tensor_parallel_size {degrees.etp}, but the model has no experts"
        )
    if degrees.grouping.etp and (
        degrees.tp % degrees.etp or not degrees.sequence_parallel
    ):
        return (
            f"expert_tensor_parallel_size {degrees.etp} needs sequence_parallel and a "
            f"multiple of it as tensor_model_parallel_size, not {degrees.tp}"
        )
    return None


_COLUMN = frozenset({"column", "qkv", "vocab"})
_FP32_BYTES = 4


class _ShareCase(NamedTuple):
    """What every rule needs to know."""

    layer: TracedLayer
    """Layer as it was traced."""
    shares: Shares
    """Shares of the layer's tensors, parameters and products."""
    degrees: Degrees
    """Sizes that shares depend on."""
    element_bytes: int
    """Bytes of an element of activations [byte]."""
    copies: int
    """Copies of keys and values once heads are exchanged, see `group_copies`."""

    def size(self, number: int, layout: str = "") -> float:
        """Return the local size of a tensor, or what it would be in a layout [byte]."""
        tensor = self.layer.tensors[number]
        share = self.shares.tensors[layout or tensor.layout]
        return share.of(tensor.elements) * self.element_bytes


def operator_collectives(
    layer: TracedLayer,
    shares: Shares,
    degrees: Degrees,
    element_bytes: int,
    copies: int = 1,
    operators: Iterable[TracedOperator] | None = None,
) -> tuple[tuple[CollectiveWork, ...], ...]:
    """Return the collectives of each operator.

    ``copies`` from `group_copies`; ``operators`` are those that are looked at, by
    default all of the layer.
    """
    case = _ShareCase(layer, shares, degrees, element_bytes, copies)
    looked_at = layer.operators if operators is None else operators
    return tuple(
        sent_in_passes(some, _of_operator(case, some)) if _may_send(some) else ()
        for some in looked_at
    )


_SENDING = frozenset(
    {"dispatch", "combine", "cross entropy", "attention", INDEX_SCORES, *RECURRENCES}
)


def _may_send(operator: TracedOperator) -> bool:
    """Tell whether an operator sends anything however it is split."""
    return bool(operator.sharding) or operator.operation in _SENDING


def _of_operator(
    case: _ShareCase, operator: TracedOperator
) -> Iterator[CollectiveWork]:
    if operator.operation == "dequantize":
        return
    at_experts = operator.operation in {"dispatch", "combine"}
    if case.degrees.grouping.etp and at_experts:
        yield from _expert_tensor_group(case, operator)
    elif case.degrees.tp > 1:
        is_factor = operator.sharding.startswith("adapter")
        yield from (_adapter if is_factor else _tensor_group)(case, operator)
    if case.degrees.ep > 1 and at_experts:
        copies = (
            operator.outputs if operator.operation == "dispatch" else operator.inputs
        )
        size = case.size(copies[0], "sequence")
        yield CollectiveWork("all_to_all", "expert", 1, size, 1, size)
    if case.degrees.cp > 1 and operator.operation in {"attention", INDEX_SCORES}:
        yield from _context_group(case, operator)
    if case.degrees.cp > 1 and operator.operation in RECURRENCES:
        size = sum(map(case.size, _exchanged_tensors(case.layer, operator)))
        yield _exchange(case.degrees, size)


def _exchange(degrees: Degrees, size: float) -> CollectiveWork:
    """Exchange heads of linear attention for tokens, and back.

    Where attention exchanges no heads the exchange is priced as what attention's groups
    do, of as many bytes: a gather, or the hops of a ring. It takes as long as that
    among ranks that all links reach alike.
    """
    cp, kind = degrees.cp, degrees.grouping.cp_comm_type
    if kind == "p2p":
        hops, sent = 2 * (cp - 1), size * (cp - 1) / cp
        return CollectiveWork("send_recv", "context", hops, sent, hops, sent)
    operation = "all_gather" if kind == "all_gather" else "all_to_all"
    return CollectiveWork(operation, "context", 2, size, 2, size)


_MIXER = "self_attention."


def _exchanged_tensors(layer: TracedLayer, operator: TracedOperator) -> list[int]:
    """Return what column-parallel products made for it, and what is projected back."""
    prefix = operator.name.partition(_MIXER)[0] + _MIXER
    mixer = [op for op in layer.operators if op.name.startswith(prefix)]
    made = [number for op in mixer if op.sharding == "column" for number in op.outputs]
    return made + [
        number for op in mixer if op.sharding == "row" for number in op.inputs
    ]


def _context_group(
    case: _ShareCase, operator: TracedOperator
) -> Iterator[CollectiveWork]:
    """Bring the keys and values of all tokens to the queries, or the reverse."""
    cp, grouping = case.degrees.cp, case.degrees.grouping
    query, *others = operator.inputs
    keys = sum(_exchanged_size(case, number) for number in others)
    if grouping.cp_comm_type == "all_gather":
        count, size = len(others), cp * keys
        yield CollectiveWork("all_gather", "context", count, size, count, size)
        yield CollectiveWork("reduce_scatter", "context", 0, 0.0, count, size)
    if grouping.exchanging(cp) > 1:
        count = len(operator.inputs) + len(operator.outputs)
        size = case.size(query) + keys + sum(map(case.size, operator.outputs))
        yield CollectiveWork("all_to_all", "context", count, size, count, size)
    if grouping.ring(cp) > 1:
        hops = grouping.ring(cp) - 1
        size = hops * keys
        yield CollectiveWork("send_recv", "context", hops, size, 2 * hops, 2 * size)


def _exchanged_size(case: _ShareCase, number: int) -> float:
    """Return the local size of keys or values, with the copies of an exchange."""
    copied = case.layer.tensors[number].layout == "groups"
    return case.size(number) * (case.copies if copied else 1)


def _tensor_group(
    case: _ShareCase, operator: TracedOperator
) -> Iterator[CollectiveWork]:
    sp = case.degrees.sequence_parallel
    if operator.sharding in {*_COLUMN, "copied"}:
        yield from _gathering(case, operator)
    elif operator.sharding == "row":
        yield from _leave(case.size(operator.outputs[0], "whole"), sp=sp)
    elif operator.operation == "dispatch":
        copies = case.size(operator.outputs[0], "gathered experts")
        if sp:
            yield CollectiveWork("all_gather", "tensor", 1, copies, 0, 0.0)
        yield _enter(copies if sp else case.size(operator.inputs[0], "whole"), sp=sp)
    elif operator.operation == "combine":
        # Adding up the copies of a token and adding up over ranks commute: without
        # sp the all-reduce is over tokens, not over copies.
        copies, tokens = operator.inputs[0], operator.outputs[0]
        size = (
            case.size(copies, "gathered experts") if sp else case.size(tokens, "whole")
        )
        yield from _leave(size, sp=sp)
    elif operator.operation == "cross entropy":
        yield from _loss(case, operator)


def _gathering(case: _ShareCase, operator: TracedOperator) -> Iterator[CollectiveWork]:
    """Bring whole rows to a product, and add up their gradients if it has any."""
    sp, passes_back = case.degrees.sequence_parallel, operator.sharding in _COLUMN
    size = case.size(operator.inputs[0], "whole")
    if sp:
        back = (1, size) if passes_back else (0, 0.0)
        yield CollectiveWork("all_gather", "tensor", 1, size, *back)
    if passes_back:
        yield _enter(size, sp=sp)


def _adapter(case: _ShareCase, factor: TracedOperator) -> Iterator[CollectiveWork]:
    """Share the factors of an adapter [9]_.

    What the first makes is whole on every rank. Gradients of what enters beside a
    column-parallel product are added up for the adapter by itself, and what comes out
    beside a row-parallel one is gathered.
    """
    sp = case.degrees.sequence_parallel
    middle = case.size(
        (factor.inputs if "out" in factor.sharding else factor.outputs)[0]
    )
    if factor.sharding == "adapter column in":
        yield CollectiveWork("all_gather", "tensor", 1, middle, 0, 0.0)
        yield _enter(case.size(factor.inputs[0], "whole"), sp=sp)
    elif factor.sharding == "adapter row in":
        yield CollectiveWork("all_reduce", "tensor", 1, middle, 0, 0.0)
    else:
        yield _enter(middle, sp=False)
    if factor.sharding == "adapter row out":
        size = case.size(factor.outputs[0], "whole")
        back = (1, size) if sp else (0, 0.0)
        yield CollectiveWork("all_gather", "tensor", 1, size, *back)


def _expert_tensor_group(
    case: _ShareCase, operator: TracedOperator
) -> Iterator[CollectiveWork]:
    """Gather what ranks that split experts have dispatched, and reduce the results."""
    group = "expert tensor"
    if case.degrees.etp > 1 and operator.operation == "dispatch":
        size = case.size(operator.outputs[0], "experts")
        yield CollectiveWork("all_gather", group, 1, size, 0, 0.0)
        yield CollectiveWork("reduce_scatter", group, 0, 0.0, 1, size)
    elif case.degrees.etp > 1 and operator.operation == "combine":
        size = case.size(operator.inputs[0], "experts")
        yield CollectiveWork("reduce_scatter", group, 1, size, 0, 0.0)
        yield CollectiveWork("all_gather", group, 0, 0.0, 1, size)


def _enter(size: float, *, sp: bool) -> CollectiveWork:
    """Add up the gradients of what entered a tensor-parallel part."""
    operation = "reduce_scatter" if sp else "all_reduce"
    return CollectiveWork(operation, "tensor", 0, 0.0, 1, size)


def _leave(size: float, *, sp: bool) -> Iterator[CollectiveWork]:
    """Add up the partial results of a tensor-parallel part."""
    operation = "reduce_scatter" if sp else "all_reduce"
    yield CollectiveWork(operation, "tensor", 1, size, 0, 0.0)
    if sp:
        yield CollectiveWork("all_gather", "tensor", 0, 0.0, 1, size)


def _loss(case: _ShareCase, operator: TracedOperator) -> Iterator[CollectiveWork]:
    logits = case.layer.tensors[operator.inputs[0]]
    if logits.layout != "vocab":
        return
    # Products of several depths have as many rows each.
    product = next(o for o in case.layer.operators if o.sharding == "vocab")
    tokens = case.shares.tensors["whole"].of(product.dims[0])
    yield CollectiveWork("all_reduce", "tensor", 3, 3 * _FP32_BYTES * tokens, 0, 0.0)
