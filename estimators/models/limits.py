"""The limits of an architecture: of single fields, and of what goes together.

What each check says is data (``checks.toml``); here is when.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated, Any, get_args

import tomli
from annotated_types import Ge, Le, Lt

from topologies.errors import InputError
from topologies.settings import Examples, Listed, NameChoice

MODULE_FAMILY = "module"
"""Family of a user's own module, which is traced and not built."""

MAX_LAYERS = 4_000
"""Most transformer blocks: some planners keep tables of all pairs of them."""

MAX_WIDTH = 1_000_000
"""Largest width of hidden states and heads, and most heads and experts."""

MAX_INNER = 4 * MAX_WIDTH
"""Largest width of feed-forward layers."""

MAX_SEQUENCE = 100_000_000
"""Most tokens per sequence."""

MAX_VOCABULARY = 1_000_000_000
"""Most entries of the word embedding."""

MAX_DEPTHS = 16
"""Most layers of multi-token prediction."""

NumLayers = Annotated[int, Ge(1), Le(MAX_LAYERS)]
Width = Annotated[int, Ge(1), Le(MAX_WIDTH)]
Inner = Annotated[int, Ge(1), Le(MAX_INNER)]
SequenceLength = Annotated[int, Ge(1), Le(MAX_SEQUENCE)]
Vocabulary = Annotated[int, Ge(1), Le(MAX_VOCABULARY)]
Depths = Annotated[int, Ge(0), Le(MAX_DEPTHS)]
Streams = Annotated[int, Ge(1), Le(64)]
Probability = Annotated[float, Ge(0), Lt(1)]
Exponent = Annotated[float, Ge(0), Le(100)]
CapacityFactor = Annotated[float, Ge(0), Le(MAX_WIDTH)]
ExpertLoads = Annotated[
    tuple[Annotated[float, Ge(0), Le(1e15)], ...], Listed(most=MAX_WIDTH)
]

ImagePixels = Annotated[
    tuple[Annotated[int, Ge(1), Le(MAX_WIDTH)], ...], Listed(most=2)
]
DocumentLength = Annotated[int, Ge(0), Le(MAX_SEQUENCE)]
DocumentLengths = Annotated[
    tuple[Annotated[int, Ge(1), Le(MAX_SEQUENCE)], ...], Listed(most=MAX_WIDTH)
]
Sigma = Annotated[float, Ge(0), Le(10)]

Documents = Annotated[str, NameChoice(("whole", "fixed", "log-normal", "measured"))]
"""How documents fill sequences (`estimators.layers.documents`)."""

Routing = Annotated[
    str, NameChoice(("balanced", "random", "power-law", "log-normal", "measured"))
]
"""Where tokens go among experts (`estimators.layers.routing`)."""

Placement = Annotated[str, NameChoice(("linear", "balanced"))]
"""Which ranks hold which experts (`estimators.layers.routing`)."""

CONVOLUTION_WIDTH = 4
"""Tokens that the convolution of a Mamba-2 layer reaches (Dao and Gu, 2024)."""

NUM_BUCKETS = 32
"""Ranges of distances that T5's position biases tell apart (Raffel et al., 2020)."""

LONGEST_DISTANCE = 128
"""Distance from which on T5's position biases tell none apart [tokens]."""

NUM_CHANNELS = 3
"""Colours of a pixel of a vision transformer's images."""

MAX_ELEMENTS = 2**56
"""Most elements of one tensor: its bytes and FLOPs are counted in 64 bits."""

MAMBA_SIZES = MappingProxyType(
    {
        "mamba_state_dim": 128,
        "mamba_head_dim": 64,
        "mamba_num_groups": 8,
        "mamba_chunk_size": 128,
        "mamba_num_heads": 0,
    }
)
"""Size of Mamba-2 layers -> what it is by default; 0 where that follows from others."""


MAMBA_MIXERS = frozenset({"mamba", "mamba_attention"})
"""Mixers that have a Mamba-2 layer."""

LINEAR_SIZES = MappingProxyType(
    {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
)
"""Size of delta nets -> what it is by default, as in Megatron Core."""

SPARSE_MIXERS = frozenset({"sparse", "reusing"})
"""Mixers that attend to the keys that an indexer chose, in their block or before."""

RECURRENT_MIXERS = frozenset({"gated_delta", "kimi_delta", "lightning"})
"""Mixers that are linear attention."""


CONVOLUTION_MIXERS = MappingProxyType(
    {"short_convolution": "short_convolution", "selective_scan": "selective_scan"}
)
"""Mixer around a convolution -> table of its sizes in ``checks.toml``."""


@cache
def _words() -> dict[str, Any]:
    """Return the tables of ``checks.toml``, which nobody changes."""
    file = files("estimators").joinpath("models", "checks.toml")
    return tomli.loads(file.read_text(encoding="utf-8"))


def _wrong(
    spec: Any, name: str, problem: str, expected: str, got: object = None
) -> InputError:
    """Return the error of a field, with its value unless another is given."""
    value = getattr(spec, name) if got is None else got
    return InputError(problem, where=name, got=value, expected=expected)


def _refuse_if(broken: object, spec: Any, rule: str, **texts: object) -> None:
    """Refuse what breaks a rule of ``checks.toml``."""
    if broken:
        name, problem, expected = _words()["rules"][rule]
        got = texts.pop("got", None)
        raise _wrong(spec, name, problem, expected.format(s=spec, **texts), got)


def _need(spec: Any, table: str, **computed: object) -> None:
    """Refuse a field that has another value than a table of ``needs`` gives.

    A value that is the name of a field is that field's.
    """
    words = _words()["needs"][table]
    for name, value in words["values"].items():
        needed = tuple(value) if isinstance(value, list) else value
        if isinstance(value, str) and value in computed:
            needed = computed[value]
        elif isinstance(value, str) and hasattr(spec, value):
            needed = getattr(spec, value)
        if getattr(spec, name) != needed:
            expected = words["expected"].format(value=needed, lower=str(needed).lower())
            raise _wrong(spec, name, words["problem"], expected)


def _refuse_sizes(spec: Any, architecture: str) -> None:
    """Refuse the first size that belongs to another architecture."""
    words = _words()["sizes_of"][architecture]
    for name in words["names"]:
        if getattr(spec, name):
            raise _wrong(spec, name, words["problem"], words["expected"])


def _check_elements(spec: Any, made: Mapping[str, int]) -> None:
    """Refuse sizes that together make a tensor that nobody can count."""
    sizes, most = max(made.items(), key=lambda item: item[1])
    if most > MAX_ELEMENTS:
        raise _wrong(
            spec,
            sizes.partition(" ")[0],
            f"makes a tensor of {float(most):.2g} elements, by {sizes}",
            f"sizes whose product is at most {float(MAX_ELEMENTS):.2g}",
        )


def check_values(spec: Any) -> None:
    """Refuse the first field of an architecture that is wrong by itself.

    What a field may be is what its annotation says, and its default.

    Raises
    ------
    InputError
        With the field's name, what it has and what is expected.
    """
    for field in fields(spec):
        kind, *marks = get_args(field.type)
        value, default = getattr(spec, field.name), field.default
        if type(value) is type(default) and value == default:
            continue
        if kind is bool and not isinstance(value, bool):
            expected = "true or false"
            raise _wrong(spec, field.name, "must be true or false", expected, value)
        if kind is int:
            _check_integer(spec, field.name, marks, 0 if default == 0 else 1)
        if kind is float:
            _check_number(spec, field.name, marks)
        for mark in marks:
            if isinstance(mark, NameChoice) and value not in mark.names:
                expected = " or ".join(f'"{name}"' for name in mark.names)
                problem = "not one of the choices"
                raise _wrong(spec, field.name, problem, expected, value)


def _bounds(marks: Sequence[object]) -> dict[str, float]:
    """Return bounds that marks set, ``"ge"``, ``"gt"``, ``"le"`` and ``"lt"``."""
    names = ("ge", "gt", "le", "lt")
    return {n: getattr(mark, n) for mark in marks for n in names if hasattr(mark, n)}


def _example(marks: Sequence[object]) -> object:
    """Return the first example that marks have, else 8."""
    given = (mark.examples for mark in marks if isinstance(mark, Examples))
    return next((examples[0] for examples in given if examples), 8)


def _check_number(spec: Any, name: str, marks: Sequence[object]) -> None:
    value, bounds = getattr(spec, name), _bounds(marks)
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if (
        known
        and math.isfinite(float(value))
        and all(getattr(operator, kind)(value, bound) for kind, bound in bounds.items())
    ):
        return
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = " and ".join(f"{words[kind]} {bounds[kind]:g}" for kind in bounds)
    problem = f"must be a number {limits}"
    raise _wrong(spec, name, problem, f"{limits}, e.g. {_example(marks)}", value)


def _check_integer(spec: Any, name: str, marks: Sequence[object], lowest: int) -> None:
    value, most = getattr(spec, name), int(_bounds(marks)["le"])
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        what = "0 for the default, or 1, 2, ..." if lowest == 0 else "1, 2, ..."
        if any(name in table["names"] for table in _zero_tables()):
            what = "0 for none, or 1, 2, ..."
        problem = f"must be a whole number of at least {lowest}"
        raise _wrong(spec, name, problem, f"{what}, at most {most:,}", value)
    if value > most:
        expected = f"a whole number up to {most:,}, e.g. {_example(marks)}"
        raise _wrong(spec, name, f"must be at most {most:,}", expected)


def _zero_tables() -> list[dict[str, Any]]:
    """Return the tables of sizes that mean none at 0."""
    return [_words()["none_at_zero"], *_words()["sizes_of"].values()]


def require_divides(spec: Any, divisor: str, number: str) -> None:
    """Refuse a field that does not divide another one.

    Raises
    ------
    InputError
        With both.
    """
    if getattr(spec, number) % getattr(spec, divisor):
        expected = f"a divisor of {number} = {getattr(spec, number)}"
        raise _wrong(spec, divisor, f"does not divide {number}", expected)


def check_latent(spec: Any) -> None:
    """Refuse what latent attention does not have, and its widths without it.

    Raises
    ------
    InputError
        With the field that does not fit.
    """
    if not spec.kv_lora_rank:
        _refuse_sizes(spec, "latent")
        return
    _need(spec, "latent_ranks")
    head = spec.qk_pos_emb_head_dim
    _refuse_if(head < 1 or head % 2 > 0, spec, "odd_latent")


def check_together(spec: Any, pattern: Sequence[str]) -> None:
    """Refuse what cannot be together, and sizes of other architectures.

    Parameters
    ----------
    spec
        The `TransformerSpec`, its defaults resolved.
    pattern
        The blocks that an encoder and decoder of this depth would have.

    Raises
    ------
    InputError
        With the field's name, what it has and what is expected.
    """
    _check_positions(spec)
    _check_blocks(spec)
    _check_attention(spec)
    _check_chunks(spec)
    _check_mamba(spec)
    _check_linear(spec)
    _check_convolutions(spec)
    _check_indexer(spec)
    _check_images(spec)
    _check_streams(spec)
    _check_ngrams(spec)
    _check_decoder(spec, pattern)
    _check_experts(spec)
    _check_router(spec)
    _check_routing(spec)
    _check_documents(spec)
    without = spec.family in {"bert", "t5", "vit"} or not spec.causal
    _refuse_if(spec.mtp_num_layers > 0 and without, spec, "depths")
    _check_tensors(spec)
    if spec.diffusion is not None:
        spec.diffusion.check(spec)


def _check_positions(spec: Any) -> None:
    learned = spec.position_embedding_type == "learned"
    too_long = learned and spec.sequence_length > spec.max_position_embeddings
    _refuse_if(too_long, spec, "positions")
    turned = int(spec.kv_channels * spec.rotary_percent)
    odd = spec.position_embedding_type == "rope" and (turned % 2 > 0 or not turned)
    _refuse_if(odd, spec, "odd_channels")
    _refuse_if(spec.family == "bert" and (spec.causal or not learned), spec, "bert")


def _check_blocks(spec: Any) -> None:
    """Refuse a pattern of another length, or with experts or windows that are not."""
    pattern, kinds = spec.block_pattern, spec.block_kinds.values()
    unlike = pattern and len(pattern) != spec.num_layers
    _refuse_if(unlike, spec, "pattern", got=f"{len(pattern)} kinds")
    routed = any("experts" in kind.split("+") for kind in kinds)
    _refuse_if(routed != (spec.num_moe_experts > 0), spec, "expert_blocks")
    windows = any(kind.startswith("window") for kind in kinds)
    _refuse_if(windows != (spec.window_size > 0), spec, "window")
    heads = spec.window_num_attention_heads
    unfit = heads and (not windows or heads % spec.num_query_groups)
    _refuse_if(unfit, spec, "window_heads")
    _refuse_if(spec.attention_head_gate and spec.attention_output_gate, spec, "gates")
    _refuse_if(spec.window_size and not spec.causal, spec, "window_causal")


def _check_attention(spec: Any) -> None:
    """Refuse what attention and its norms cannot be together."""
    rms = spec.qk_layernorm and spec.normalization == "rmsnorm"
    shared = spec.norm_placement == "shared"
    for table, applies in (
        ("plain", spec.attention_implementation != "flash"),
        ("bert", spec.family == "bert"),
        ("latent", spec.kv_lora_rank > 0),
        ("dense_latent", spec.kv_lora_rank > 0 and not spec.dsa_indexer_topk),
        ("not_rotary", spec.position_embedding_type != "rope"),
        ("not_parallel", shared and not spec.parallel_residual),
        ("no_query_norm", not rms),
    ):
        if applies:
            _need(spec, table)


def _check_chunks(spec: Any) -> None:
    """Refuse chunks that no block has, or that do not fill a sequence."""
    chunk, length = spec.attention_chunk_size, spec.sequence_length
    chunked = any(kind.startswith("chunked") for kind in spec.block_kinds.values())
    _refuse_if(chunked != (chunk > 0), spec, "chunks")
    _refuse_if(chunk and length > chunk and length % chunk, spec, "chunk_length")
    fused = spec.attention_implementation == "flash" and spec.causal
    _refuse_if(chunk and not fused, spec, "chunk_kernel")


def _check_mamba(spec: Any) -> None:
    if not spec.has_mamba:
        _refuse_sizes(spec, "mamba")
        return
    _refuse_if(spec.family in {"bert", "t5", "vit"}, spec, "mamba_family")
    heads, groups = spec.mamba_num_heads, spec.mamba_num_groups
    _refuse_if(heads < 1 or heads % groups, spec, "mamba_groups")
    width, state, length = spec.mamba_width, spec.mamba_state_dim, spec.sequence_length
    chunk, hidden = spec.mamba_chunk_size, spec.hidden_size
    rows = 2 * width + width * state // chunk
    made = {
        "mamba_num_heads x mamba_head_dim x hidden_size": 2 * width * hidden,
        "mamba_num_heads x mamba_head_dim x mamba_state_dim": width * state,
        "mamba_num_groups x mamba_state_dim x hidden_size": 2 * groups * state * hidden,
        "sequence_length x mamba_num_heads x mamba_head_dim": length * rows,
    }
    scores = "sequence_length x mamba_chunk_size x mamba_num_groups"
    _check_elements(spec, made | {scores: groups * length * max(chunk, state)})


def _check_linear(spec: Any) -> None:
    """Refuse sizes of delta nets that do not go together, or that no block has."""
    if not spec.has_delta_nets:
        _refuse_sizes(spec, "delta")
    if not spec.has_recurrences:
        return
    _need(spec, "linear")
    _refuse_if(not spec.causal or spec.family in {"bert", "t5"}, spec, "linear_family")
    keys, values = spec.linear_num_key_heads, spec.linear_num_value_heads
    key, value = spec.linear_key_head_dim, spec.linear_value_head_dim
    if "kimi_delta" in spec.mixers:
        _refuse_if(keys != values, spec, "kimi_heads")
        _refuse_if(key != value, spec, "kimi_widths")
    _refuse_if(keys and values % keys, spec, "delta_heads")
    rows = 2 * keys * key + 2 * values * (value + 1)
    length, heads = spec.sequence_length, max(keys, values)
    made = {
        "linear_num_value_heads x linear_value_head_dim x hidden_size": rows
        * spec.hidden_size,
        "sequence_length x linear_num_value_heads x linear_value_head_dim": length
        * max(rows, 2 * heads * max(key, value)),
    }
    _check_elements(spec, made)


def _check_convolutions(spec: Any) -> None:
    """Refuse sizes of mixers around a convolution without blocks, or the reverse."""
    for mixer, architecture in CONVOLUTION_MIXERS.items():
        names = _words()["sizes_of"][architecture]["names"]
        if mixer not in spec.mixers:
            _refuse_sizes(spec, architecture)
            continue
        missing = next((name for name in names if not getattr(spec, name)), "")
        if missing:
            raise _wrong(spec, missing, f'is needed by "{mixer}"', "1, 2, ...")
        _refuse_if(not spec.causal, spec, "linear_family")
    width, hidden = spec.selective_width, spec.hidden_size
    state, rank = spec.selective_state_dim, spec.selective_step_rank
    made = {
        "selective_width x hidden_size": 2 * width * hidden,
        "selective_width x selective_step_rank": width * (rank + 2 * state),
        "sequence_length x selective_width": 2 * width * spec.sequence_length,
    }
    _check_elements(spec, made)


def _check_indexer(spec: Any) -> None:
    """Refuse an indexer that no block has, or that latent attention is not beside."""
    sparse = not spec.mixers.isdisjoint(SPARSE_MIXERS)
    _refuse_if(sparse != (spec.dsa_indexer_topk > 0), spec, "indexer_blocks")
    if not sparse:
        _refuse_sizes(spec, "indexer")
        return
    _need(spec, "indexer")
    for name in ("kv_lora_rank", "q_lora_rank"):
        _refuse_if(not getattr(spec, name), spec, f"indexer_{name}")
    heads, width = spec.dsa_indexer_n_heads, spec.dsa_indexer_head_dim
    _refuse_if(heads < 1, spec, "indexer_heads")
    _refuse_if(width < max(spec.qk_pos_emb_head_dim, 1), spec, "indexer_width")
    tokens, rank = spec.sequence_length, spec.kv_lora_rank
    made = {
        "dsa_indexer_n_heads x dsa_indexer_head_dim x q_lora_rank": heads
        * width
        * spec.q_lora_rank,
        "sequence_length^2": tokens**2,
        "sequence_length x dsa_indexer_n_heads x dsa_indexer_head_dim": tokens
        * heads
        * width,
        "sequence_length x num_attention_heads x kv_lora_rank": tokens
        * spec.num_attention_heads
        * (rank + spec.qk_pos_emb_head_dim),
    }
    _check_elements(spec, made)


def _check_images(spec: Any) -> None:
    if spec.family != "vit":
        _refuse_sizes(spec, "vit")
        return
    image, patch = spec.image_size, spec.patch_size
    _refuse_if(not patch or image < patch or image % patch, spec, "patches")
    tokens = (image // patch) ** 2 + 1
    _refuse_if(spec.sequence_length != tokens, spec, "image_tokens", tokens=tokens)
    _need(spec, "vit")


def _check_streams(spec: Any) -> None:
    """Refuse several residual streams where a block is not made of plain branches."""
    if not spec.num_residual_streams:
        return
    _need(spec, "streams")
    encoder = spec.family in {"bert", "t5", "vit"} or spec.vision is not None
    shortcut = "attention+dense+experts" in spec.block_kinds.values()
    _refuse_if(encoder or shortcut, spec, "streams")
    elements = spec.num_residual_streams * spec.sequence_length * spec.hidden_size
    made = {"num_residual_streams x sequence_length x hidden_size": elements}
    _check_elements(spec, made)


def _check_ngrams(spec: Any) -> None:
    """Refuse tables of n-grams that do not fill the hidden states."""
    if not spec.ngram_embedding:
        return
    longest, splits, rows = spec.ngram_embedding
    tables = (longest - 1) * splits
    unfit = tables < 1 or spec.hidden_size % tables
    encoder = spec.family in {"bert", "t5", "vit"}
    _refuse_if(unfit or encoder, spec, "ngrams", got=list(spec.ngram_embedding))
    made = {"ngram_embedding x hidden_size": (rows + 2 * tables) * spec.hidden_size}
    _check_elements(spec, made)


def _check_decoder(spec: Any, pattern: Sequence[str]) -> None:
    if not spec.has_decoder:
        _refuse_sizes(spec, "t5")
        _refuse_if(spec.position_embedding_type == "relative", spec, "relative")
        return
    _need(spec, "t5", encoder_decoder=pattern)
    length = spec.decoder_sequence_length
    scores = spec.num_attention_heads * max(spec.sequence_length, length) ** 2
    made = {
        "num_attention_heads x sequence_length^2": scores,
        "decoder_sequence_length x vocab_size": length * spec.vocab_size,
        "decoder_sequence_length x ffn_hidden_size": 2 * length * spec.ffn_hidden_size,
    }
    _check_elements(spec, made)


def _check_experts(spec: Any) -> None:
    """Refuse experts that do not fit the model or each other."""
    experts, family, top = spec.num_moe_experts, spec.family, spec.moe_router_topk
    unlike = (family == "mixtral" and not experts) or (family == "bert" and experts)
    _refuse_if(unlike, spec, "expert_family")
    shared = spec.moe_shared_expert_intermediate_size
    _refuse_if(shared and not experts, spec, "shared_experts")
    unfit = top > experts or (experts > 0 and top == 0)
    _refuse_if(unfit, spec, "topk" if experts else "topk_dense")
    plain = experts and not spec.gated_linear_unit and family != "mamba"
    _refuse_if(plain, spec, "gated")
    _refuse_if(spec.moe_shared_expert_gate and not shared, spec, "shared_gate")
    zero = spec.moe_num_zero_experts
    _refuse_if(zero and not experts, spec, "zero_experts")
    if zero:
        _need(spec, "zero_experts")
    shortcut = "attention+dense+experts" in spec.block_kinds.values()
    _refuse_if(shortcut and spec.norm_placement != "pre", spec, "shortcut_norms")
    _refuse_if(shortcut and spec.parallel_residual, spec, "shortcut_branches")
    if experts:
        _need(spec, "experts")


def _check_router(spec: Any) -> None:
    """Refuse groups of experts that do not fit them, or each other."""
    groups, chosen = spec.moe_router_num_groups, spec.moe_router_group_topk
    experts = spec.num_moe_experts
    if groups or chosen:
        unlike = not groups or experts == 0 or experts % groups
        _refuse_if(unlike, spec, "router_groups")
        held = chosen * (experts // groups)
        unfit = not 1 <= chosen <= groups or held < spec.moe_router_topk
        _refuse_if(unfit, spec, "group_topk")


def _check_routing(spec: Any) -> None:
    """Refuse what says where tokens go, but not all of it, or to no experts."""
    routing, loads = spec.moe_routing, spec.moe_expert_loads
    capacity = spec.moe_expert_capacity_factor
    uneven = routing != "balanced"
    _refuse_if(uneven and not spec.num_moe_experts, spec, "routing")
    _refuse_if(capacity and not spec.num_moe_experts, spec, "capacity")
    bare = spec.moe_pad_expert_input_to_capacity and not capacity
    _refuse_if(bare, spec, "padding")
    powers = routing == "power-law"
    _refuse_if(powers != (spec.moe_routing_exponent > 0), spec, "exponent")
    spread = routing == "log-normal"
    _refuse_if(spread != (spec.moe_routing_sigma > 0), spec, "routing_sigma")
    measured = routing == "measured"
    _check_layer_loads(spec)
    single = measured and spec.moe_layer_loads is None
    _refuse_if(bool(loads) != single, spec, "loads")
    count = spec.num_moe_experts if single else 0
    _refuse_if(len(loads) != count, spec, "number_of_loads", got=f"{len(loads)} loads")
    often = single and max(loads) * spec.moe_router_topk > sum(loads)
    _refuse_if(often or (single and not sum(loads)), spec, "largest_load")
    unknown = routing in {"balanced", "random"} or spec.moe_pad_expert_input_to_capacity
    _refuse_if(spec.moe_expert_placement != "linear" and unknown, spec, "placement")
    known = spec.moe_expert_skew > 1.0
    _refuse_if(known and (uneven or capacity), spec, "skew")


def _check_layer_loads(spec: Any) -> None:
    """Refuse loads of layers beside others, or that experts cannot have."""
    loads = spec.moe_layer_loads
    if loads is None:
        return
    unread = spec.moe_routing != "measured" or spec.moe_expert_loads
    _refuse_if(unread, spec, "layer_loads", got=f"{len(loads.layers)} layers")
    experts = len(loads.tokens[0])
    unlike = experts != spec.num_moe_experts
    _refuse_if(unlike, spec, "layers_of_loads", got=f"{experts} experts")
    for layer, tokens in zip(loads.layers, loads.tokens, strict=True):
        often = max(tokens) * spec.moe_router_topk > sum(tokens) or not sum(tokens)
        got = f"{max(tokens):g} of {sum(tokens):g} tokens in layer {layer}"
        _refuse_if(often, spec, "largest_of_layer", got=got)


def _check_documents(spec: Any) -> None:
    """Refuse lengths of documents that are not all said, or that nothing reads."""
    kind, fused = spec.documents, spec.attention_implementation == "flash"
    _refuse_if(kind != "whole" and not fused, spec, "plain_documents")
    plain = spec.family in {"vit", "t5", "diffusion"} and kind != "whole"
    _refuse_if(plain, spec, "no_documents")
    scans = (spec.has_mamba or spec.selective_width) and kind != "whole"
    _refuse_if(scans, spec, "scanned_documents")
    sized = kind in {"fixed", "log-normal"}
    _refuse_if(sized != (spec.document_length > 0), spec, "document_length")
    spread = spec.document_length_sigma > 0
    _refuse_if((kind == "log-normal") != spread, spec, "document_sigma")
    measured = kind == "measured"
    _refuse_if(measured != bool(spec.document_length_samples), spec, "document_samples")


def _check_tensors(spec: Any) -> None:
    """Refuse sizes that together make a tensor that nobody can count."""
    tokens, hidden, heads = spec.sequence_length, spec.hidden_size, spec.query_width
    inner = spec.ffn_hidden_size * (2 if spec.gated_linear_unit else 1)
    routed = spec.num_moe_experts * 2 * spec.moe_ffn_hidden_size * hidden
    made = {
        "vocab_size x hidden_size": spec.vocab_size * hidden,
        "sequence_length x vocab_size": tokens * spec.vocab_size,
        "sequence_length x ffn_hidden_size": tokens * inner,
        "num_attention_heads x kv_channels x hidden_size": heads * hidden,
        "sequence_length x num_attention_heads x kv_channels": tokens * heads,
        "num_moe_experts x moe_ffn_hidden_size x hidden_size": routed,
        "ffn_hidden_size x hidden_size": inner * hidden,
    }
    if spec.kv_lora_rank:
        width = spec.kv_channels + max(spec.qk_pos_emb_head_dim, spec.v_head_dim)
        wide = spec.num_attention_heads * width
        ranks = max(spec.q_lora_rank, spec.kv_lora_rank)
        made["num_attention_heads x v_head_dim x kv_lora_rank"] = wide * ranks
        made["sequence_length x num_attention_heads x v_head_dim"] = tokens * wide
    if spec.attention_implementation == "plain":
        scores = spec.num_attention_heads * tokens**2
        made["num_attention_heads x sequence_length^2"] = scores
    _check_elements(spec, made)
