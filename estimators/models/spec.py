"""The architecture of a transformer, as plain data under Megatron's names.

Nothing here knows torch: the modules are built from a `TransformerSpec` elsewhere.
"""

import math
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from topologies.errors import InputError

FAMILY_NAMES = ("gpt", "llama", "mixtral", "bert")
"""Names of the families of models, whose layers `estimators.models.families` builds."""

MODULE_FAMILY = "module"
"""Family of a user's own module, which is traced and not built."""

MAX_LAYERS = 4_000
"""Most transformer blocks: some planners keep tables of all pairs of them."""

MAX_WIDTH = 1_000_000
"""Largest width of hidden states and heads, and most heads and experts."""

MAX_SEQUENCE = 100_000_000
"""Most tokens per sequence."""

MAX_VOCABULARY = 1_000_000_000
"""Most entries of the word embedding."""

MAX_ELEMENTS = 2**56
"""Most elements of one tensor: its bytes and FLOPs are counted in 64 bits."""

_LARGEST = MappingProxyType(
    {
        "num_layers": MAX_LAYERS,
        "sequence_length": MAX_SEQUENCE,
        "max_position_embeddings": MAX_SEQUENCE,
        "vocab_size": MAX_VOCABULARY,
        "ffn_hidden_size": 4 * MAX_WIDTH,
        "moe_shared_expert_intermediate_size": 4 * MAX_WIDTH,
    }
)
"""Sizes whose limit is another than `MAX_WIDTH`."""

_CHOICES = {
    "family": (*FAMILY_NAMES, MODULE_FAMILY),
    "normalization": ("layernorm", "rmsnorm"),
    "position_embedding_type": ("learned", "rope"),
    "attention_implementation": ("flash", "plain"),
}
_EXAMPLES = MappingProxyType(
    {
        "num_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "vocab_size": 32_000,
        "sequence_length": 4096,
        "ffn_hidden_size": 11_008,
        "kv_channels": 128,
        "max_position_embeddings": 4096,
    }
)
_LATENT = ("q_lora_rank", "qk_pos_emb_head_dim", "v_head_dim")
_MAY_BE_ZERO = (
    "num_moe_experts",
    "moe_router_topk",
    "moe_shared_expert_intermediate_size",
    "kv_lora_rank",
    *_LATENT,
    "num_token_types",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSpec:
    """One model and the length of the sequences that it is trained on.

    Sizes left at 0 take Megatron's default, given with each field; reading them back
    gives the resolved value.
    """

    family: str
    """``"gpt"``, ``"llama"``, ``"mixtral"`` or ``"bert"``: which modules are built.
    Mistral is a ``"llama"``, GPT-NeoX a ``"gpt"``. ``"module"`` is a user's own one,
    of which the other fields say what was found by tracing it."""

    num_layers: int
    """Number of transformer blocks."""

    hidden_size: int
    """Width of the hidden states."""

    num_attention_heads: int
    """Query heads of each attention layer."""

    vocab_size: int
    """Entries of the word embedding, unpadded."""

    sequence_length: int
    """Tokens per sequence."""

    ffn_hidden_size: int = 0
    """Inner width of the feed-forward layer, of one of the two halves if it is gated;
    by default four times `hidden_size`."""

    num_query_groups: int = 0
    """Key and value heads of each attention layer; by default as many as query
    heads."""

    kv_channels: int = 0
    """Width of one attention head; by default `hidden_size` over
    `num_attention_heads`."""

    max_position_embeddings: int = 0
    """Rows of a learned position embedding; by default `sequence_length`. Rotary
    embeddings have no rows, and no limit here."""

    gated_linear_unit: bool = False
    """Whether the feed-forward layer is SwiGLU rather than GELU."""

    normalization: str = "layernorm"
    """Norm before attention and feed-forward layer: ``"layernorm"`` (with bias) or
    ``"rmsnorm"``."""

    position_embedding_type: str = "learned"
    """How positions are told apart: ``"learned"`` or ``"rope"``."""

    tie_word_embeddings: bool = True
    """Whether the output layer shares the word embedding's weight."""

    add_bias_linear: bool = True
    """Whether all linear layers of a block have a bias."""

    add_qkv_bias: bool = False
    """Whether at least the query, key and value projections have a bias."""

    hidden_dropout: float = 0.0
    """Probability of dropout after the embedding, the attention and the feed-forward
    layer."""

    attention_dropout: float = 0.0
    """Probability of dropout after the attention softmax."""

    attention_implementation: str = "flash"
    """How attention is computed: ``"flash"`` (one fused kernel, scores never stored) or
    ``"plain"`` (two batched products with a softmax between them)."""

    causal: bool = True
    """Whether a token attends to earlier tokens only."""

    num_moe_experts: int = 0
    """Routed experts of each feed-forward layer; 0 for a dense model."""

    moe_router_topk: int = 0
    """Experts that each token is sent to; 0 for a dense model."""

    moe_shared_expert_intermediate_size: int = 0
    """Inner width of the experts that all tokens go to, together; 0 for none."""

    kv_lora_rank: int = 0
    """Width that keys and values are made of, in multi-head latent attention; 0 for
    attention with projections of their own. `kv_channels` is the width of a query or
    key without its rotary channels then."""

    q_lora_rank: int = 0
    """Width that queries are made of, in multi-head latent attention; 0 if they are
    made of hidden states."""

    qk_pos_emb_head_dim: int = 0
    """Rotary channels of a query or key beside `kv_channels`, in multi-head latent
    attention; those of keys are shared by all heads."""

    v_head_dim: int = 0
    """Width of a value, in multi-head latent attention; by default `kv_channels`."""

    num_token_types: int = 0
    """Rows of BERT's token type embedding; 0 for none."""

    bert_binary_head: bool = True
    """Whether a BERT has a pooler and the next-sentence head."""

    whole_because: str = ""
    """Why no tensor-parallel group can split the layers of a user's own module; empty
    if one can."""

    def __post_init__(self) -> None:
        _check_values(self)
        self._resolve("ffn_hidden_size", 4 * self.hidden_size)
        self._resolve("num_query_groups", self.num_attention_heads)
        self._resolve("max_position_embeddings", self.sequence_length)
        if self.kv_channels == 0:
            _require_divides(self, "num_attention_heads", "hidden_size")
        self._resolve("kv_channels", self.hidden_size // self.num_attention_heads)
        _require_divides(self, "num_query_groups", "num_attention_heads")
        _check_latent(self)
        if self.kv_lora_rank:
            self._resolve("v_head_dim", self.kv_channels)
        _check_positions(self)
        _check_experts(self)
        _check_tensors(self)

    def _resolve(self, name: str, default: int) -> None:
        if getattr(self, name) == 0:
            object.__setattr__(self, name, default)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.kv_channels

    @property
    def group_width(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_query_groups * self.kv_channels

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the query, key and value projections have a bias."""
        return self.add_bias_linear or self.add_qkv_bias


def without_padding(spec: TransformerSpec, mean_length: int) -> TransformerSpec:
    """Return the architecture on sequences whose padding is left out.

    Products, activations and messages are those of the mean sequence; learned
    positions stay those of the longest one. Attention is that of sequences of the mean
    length, which is less than the mean over sequences of unlike lengths.

    Raises
    ------
    InputError
        If the mean is longer than the longest.
    """
    if not 1 <= mean_length <= spec.sequence_length:
        raise InputError(
            "longer than the sequences are",
            where="mean_sequence_length",
            got=mean_length,
            expected=f"at most sequence_length = {spec.sequence_length}",
        )
    return replace(spec, sequence_length=mean_length)


def _check_values(spec: TransformerSpec) -> None:
    """Check every field by itself."""
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.type is int:
            lowest = 0 if field.default == 0 else 1
            _check_integer(field.name, value, lowest)
        elif field.type is bool and not isinstance(value, bool):
            raise InputError(
                "must be true or false",
                where=field.name,
                got=value,
                expected="true or false",
            )
        elif field.type is float:
            _check_probability(field.name, value)
        elif field.name in _CHOICES and value not in _CHOICES[field.name]:
            raise InputError(
                "not one of the choices",
                where=field.name,
                got=value,
                expected=" or ".join(f'"{c}"' for c in _CHOICES[field.name]),
            )


def _check_integer(name: str, value: object, lowest: int) -> None:
    most = _LARGEST.get(name, MAX_WIDTH)
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        what = "0 for the default, or 1, 2, ..." if lowest == 0 else "1, 2, ..."
        if name in _MAY_BE_ZERO:
            what = "0 for none, or 1, 2, ..."
        raise InputError(
            f"must be a whole number of at least {lowest}",
            where=name,
            got=value,
            expected=f"{what}, at most {most:,}",
        )
    if value > most:
        raise InputError(
            f"must be at most {most:,}",
            where=name,
            got=value,
            expected=f"a whole number up to {most:,}, e.g. {_EXAMPLES.get(name, 8)}",
        )


def _check_probability(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(float(value)) and 0 <= float(value) < 1):  # type: ignore[arg-type]  # a number, as just seen
        raise InputError(
            "must be a probability below 1",
            where=name,
            got=value,
            expected="0 up to but without 1, e.g. 0.1",
        )


def _require_divides(spec: TransformerSpec, divisor: str, number: str) -> None:
    if getattr(spec, number) % getattr(spec, divisor):
        raise InputError(
            f"does not divide {number}",
            where=divisor,
            got=getattr(spec, divisor),
            expected=f"a divisor of {number} = {getattr(spec, number)}",
        )


def _check_positions(spec: TransformerSpec) -> None:
    learned = spec.position_embedding_type == "learned"
    if learned and spec.sequence_length > spec.max_position_embeddings:
        raise InputError(
            "longer than the learned position embedding",
            where="sequence_length",
            got=spec.sequence_length,
            expected=f"at most max_position_embeddings = "
            f"{spec.max_position_embeddings}",
        )
    if spec.position_embedding_type == "rope" and spec.kv_channels % 2:
        raise InputError(
            "rotary embeddings turn pairs of channels",
            where="kv_channels",
            got=spec.kv_channels,
            expected="an even number, e.g. 128",
        )
    if spec.family == "bert" and (spec.causal or not learned):
        raise InputError(
            "a bert is neither causal nor rotary",
            where="family",
            got=spec.family,
            expected='causal = false and position_embedding_type = "learned"',
        )


def _check_latent(spec: TransformerSpec) -> None:
    """Refuse what latent attention does not have, and its widths without it."""
    if not spec.kv_lora_rank:
        given = [name for name in _LATENT if getattr(spec, name)]
        if given:
            raise InputError(
                "belongs to multi-head latent attention",
                where=given[0],
                got=getattr(spec, given[0]),
                expected="0, or kv_lora_rank beside it",
            )
        return
    needed = {
        "position_embedding_type": "rope",
        "attention_implementation": "flash",
        "num_query_groups": spec.num_attention_heads,
        "add_bias_linear": False,
        "add_qkv_bias": False,
    }
    for name, value in needed.items():
        if getattr(spec, name) != value:
            raise InputError(
                "does not go with kv_lora_rank",
                where=name,
                got=getattr(spec, name),
                expected=f"{value} with multi-head latent attention",
            )
    if spec.qk_pos_emb_head_dim < 1 or spec.qk_pos_emb_head_dim % 2:
        raise InputError(
            "rotary embeddings turn pairs of channels",
            where="qk_pos_emb_head_dim",
            got=spec.qk_pos_emb_head_dim,
            expected="an even number, e.g. 64",
        )


def _check_experts(spec: TransformerSpec) -> None:
    if (spec.family == "mixtral") != (spec.num_moe_experts > 0):
        raise InputError(
            "experts belong to the mixtral family, and to no other",
            where="num_moe_experts",
            got=spec.num_moe_experts,
            expected='1, 2, ... if family = "mixtral", else 0',
        )
    if spec.moe_shared_expert_intermediate_size and not spec.num_moe_experts:
        raise InputError(
            "shared experts stand beside routed ones",
            where="moe_shared_expert_intermediate_size",
            got=spec.moe_shared_expert_intermediate_size,
            expected="0, or num_moe_experts beside it",
        )
    top, experts = spec.moe_router_topk, spec.num_moe_experts
    if top > experts or (experts > 0 and top == 0):
        raise InputError(
            "does not fit the number of experts",
            where="moe_router_topk",
            got=top,
            expected=f"1 to num_moe_experts = {experts}" if experts else "0",
        )
    if experts and (spec.add_bias_linear or not spec.gated_linear_unit):
        raise InputError(
            "experts are gated and have no biases",
            where="add_bias_linear" if spec.add_bias_linear else "gated_linear_unit",
            got=spec.add_bias_linear or spec.gated_linear_unit,
            expected="gated_linear_unit = true and add_bias_linear = false",
        )


def _check_tensors(spec: TransformerSpec) -> None:
    """Refuse sizes that together make a tensor that nobody can count."""
    tokens, hidden, heads = spec.sequence_length, spec.hidden_size, spec.query_width
    inner = spec.ffn_hidden_size * (2 if spec.gated_linear_unit else 1)
    made = {
        "vocab_size x hidden_size": spec.vocab_size * hidden,
        "sequence_length x vocab_size": tokens * spec.vocab_size,
        "sequence_length x ffn_hidden_size": tokens * inner,
        "num_attention_heads x kv_channels x hidden_size": heads * hidden,
        "sequence_length x num_attention_heads x kv_channels": tokens * heads,
        "num_moe_experts x ffn_hidden_size x hidden_size": max(spec.num_moe_experts, 1)
        * inner
        * hidden,
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
    sizes, most = max(made.items(), key=lambda item: item[1])
    if most > MAX_ELEMENTS:
        raise InputError(
            f"makes a tensor of {float(most):.2g} elements, by {sizes}",
            where=sizes.split(" ")[0],
            got=getattr(spec, sizes.split(" ")[0]),
            expected=f"sizes whose product is at most {float(MAX_ELEMENTS):.2g}",
        )
