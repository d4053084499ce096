"""The architecture of a transformer, as plain data under Megatron's names.

Nothing here knows torch: the modules are built from a `TransformerSpec` elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from estimators.models.limits import (
    MAMBA_SIZES,
    check_latent,
    check_together,
    check_values,
    require_divides,
)
from topologies.errors import InputError

DENSE_BLOCK = "attention+dense"
"""Kind of a block with attention and a feed-forward layer that all tokens use."""

EXPERT_BLOCK = "attention+experts"
"""Kind of a block with attention and routed experts."""

FIRST_ENCODER_BLOCK, ENCODER_BLOCK = "first encoder", "encoder"
"""Kinds of the blocks of an encoder."""

FIRST_DECODER_BLOCK, DECODER_BLOCK = "first decoder", "decoder"
"""Kinds of the blocks of a decoder that reads what an encoder made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSpec:
    """One model and the length of the sequences that it is trained on.

    Sizes left at 0 take Megatron's default, given with each field; reading them back
    gives the resolved value.
    """

    family: str
    """``"gpt"``, ``"llama"``, ``"mixtral"``, ``"mamba"``, ``"bert"``, ``"t5"`` or
    ``"vit"``: which modules are built. Mistral is a ``"llama"``, GPT-NeoX a ``"gpt"``,
    a hybrid of Mamba-2 and attention a ``"mamba"``. ``"module"`` is a user's own one,
    of which the other fields say what was found by tracing it."""

    num_layers: int
    """Number of transformer blocks, those of an encoder and a decoder together."""

    hidden_size: int
    """Width of the hidden states."""

    num_attention_heads: int
    """Query heads of each attention layer."""

    vocab_size: int
    """Entries of the word embedding, unpadded; classes of a vision transformer."""

    sequence_length: int
    """Tokens per sequence: of the encoder, where there are two; patches of an image
    and its class token."""

    decoder_sequence_length: int = 0
    """Tokens per sequence of a decoder that reads what an encoder made; by default
    `sequence_length`, 0 without such a decoder."""

    block_pattern: tuple[str, ...] = ()
    """Kind of each block in turn, where they are not all alike: its mixer and its
    feed-forward layer, keys of `estimators.models.families.MIXERS` and
    `FEED_FORWARDS`, joined by ``"+"``; either may be missing. Those of encoder and
    decoder are `encoder_decoder_pattern`."""

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
    """Whether the feed-forward layer is gated, as in SwiGLU: one half of its inner
    width is multiplied by the nonlinearity of the other."""

    activation_func: str = ""
    """Nonlinearity of the feed-forward layer: ``"gelu"``, ``"silu"``, ``"relu"`` or
    ``"squared_relu"``; by default SiLU where it is gated, else GELU."""

    normalization: str = "layernorm"
    """Norm of attention and feed-forward layer: ``"layernorm"`` or ``"rmsnorm"``."""

    layernorm_bias: bool = True
    """Whether a ``"layernorm"`` has a bias."""

    layernorm_affine: bool = True
    """Whether a ``"layernorm"`` has weights at all; those of OLMo have none."""

    norm_placement: str = "pre"
    """Where a block normalises: ``"pre"`` before each branch, ``"post"`` behind it
    (OLMo 2), ``"sandwich"`` both (Gemma 2, GLM-4), or ``"shared"``: one norm before
    two parallel branches (Falcon 7B)."""

    parallel_residual: bool = False
    """Whether attention and feed-forward layer read the same hidden states (GPT-J,
    Falcon) instead of one behind the other. They are computed one by one."""

    position_embedding_type: str = "learned"
    """How positions are told apart: ``"learned"``, ``"rope"``, ``"alibi"`` (scores
    fall with the distance), ``"relative"`` (a learned bias of each score, which T5
    has) or ``"none"``."""

    rotary_percent: float = 1.0
    """Part of the channels of a head that ``"rope"`` turns."""

    embedding_layernorm: bool = False
    """Whether a norm follows the word embedding (BLOOM)."""

    scale_embeddings: bool = False
    """Whether embeddings of words are multiplied by a constant (Gemma)."""

    qk_layernorm: bool = False
    """Whether queries and keys are normalised, each head by itself."""

    qk_layernorm_whole: bool = False
    """Whether `qk_layernorm` normalises all heads of a token together (OLMo 2)."""

    softmax_type: str = "vanilla"
    """Softmax of attention: ``"vanilla"``, or ``"learnable"`` with one learned score of
    no key for each head (the sinks of GPT-OSS)."""

    attn_logit_softcapping: float = 0.0
    """Bound that attention scores are bent below; 0 for none."""

    final_logit_softcapping: float = 0.0
    """Bound that the logits of the output layer are bent below; 0 for none."""

    window_size: int = 0
    """Tokens that a token of a block with the mixer ``"window"`` attends to, itself
    included: Megatron's ``(window_size - 1, 0)``. 0 without such blocks."""

    attention_chunk_size: int = 0
    """Tokens of a chunk, which those of a block with the mixer ``"chunked"`` attend
    within; 0 without such blocks."""

    qk_l2_norm: bool = False
    """Whether blocks with the mixer ``"chunked"`` make unit vectors of the heads of
    queries and keys."""

    tie_word_embeddings: bool = True
    """Whether the output layer shares the word embedding's weight."""

    add_bias_linear: bool = True
    """Whether all linear layers of a block have a bias."""

    add_qkv_bias: bool = False
    """Whether at least the query, key and value projections have a bias."""

    add_attention_bias: bool = False
    """Whether at least the linear layers of attention have a bias."""

    hidden_dropout: float = 0.0
    """Probability of dropout after the embedding, the attention and the feed-forward
    layer."""

    attention_dropout: float = 0.0
    """Probability of dropout after the attention softmax."""

    attention_implementation: str = "flash"
    """How attention is computed: ``"flash"`` (one fused kernel, scores never stored) or
    ``"plain"`` (two batched products with a softmax between them)."""

    causal: bool = True
    """Whether a token attends to earlier tokens only; in a decoder, where there is an
    encoder, too."""

    num_moe_experts: int = 0
    """Routed experts of each feed-forward layer; 0 for a dense model."""

    moe_ffn_hidden_size: int = 0
    """Inner width of one routed expert; by default `ffn_hidden_size`."""

    moe_router_topk: int = 0
    """Experts that each token is sent to; 0 for a dense model."""

    moe_shared_expert_intermediate_size: int = 0
    """Inner width of the experts that all tokens go to, together; 0 for none."""

    moe_shared_expert_gate: bool = False
    """Whether what shared experts return is weighed by a gate of its own."""

    moe_router_score_function: str = "softmax"
    """What a router's scores are: a ``"softmax"`` over all experts, or each one's own
    ``"sigmoid"``."""

    moe_router_pre_softmax: bool = False
    """Whether the softmax comes before the choice of experts, so that the weights of
    those chosen add up to less than one."""

    moe_router_enable_expert_bias: bool = False
    """Whether a bias for each expert, that no gradient reaches, takes part in the
    choice."""

    moe_router_num_groups: int = 0
    """Groups that experts are chosen from, of equal size; 0 for no groups."""

    moe_router_group_topk: int = 0
    """Groups that the experts of one token may be of; 0 for no groups."""

    mtp_num_layers: int = 0
    """Layers that predict tokens further ahead, with a block each like the last one; 0
    for none."""

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

    mamba_state_dim: int = 0
    """Numbers that a Mamba-2 layer keeps for each channel; by default 128, 0 without
    such layers, like all sizes of them."""

    mamba_head_dim: int = 0
    """Width of one head of a Mamba-2 layer; by default 64."""

    mamba_num_groups: int = 0
    """Groups of heads of a Mamba-2 layer that share how the state is written and read;
    by default 8."""

    mamba_num_heads: int = 0
    """Heads of a Mamba-2 layer; by default as many as make it twice as wide as
    `hidden_size`."""

    mamba_chunk_size: int = 0
    """Tokens that the scan of a Mamba-2 layer treats as one product; by default 128."""

    image_size: int = 0
    """Height and width of the images of a vision transformer in pixels; 0 without
    images."""

    patch_size: int = 0
    """Height and width of a patch of an image in pixels, which divide those of the
    image; 0 without images."""

    whole_because: str = ""
    """Why no tensor-parallel group can split the layers of a user's own module; empty
    if one can."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_pattern", tuple(self.block_pattern))
        check_values(self)
        self._resolve("ffn_hidden_size", 4 * self.hidden_size)
        if self.num_moe_experts:
            self._resolve("moe_ffn_hidden_size", self.ffn_hidden_size)
        self._resolve("num_query_groups", self.num_attention_heads)
        self._resolve("max_position_embeddings", self.sequence_length)
        if self.kv_channels == 0:
            require_divides(self, "num_attention_heads", "hidden_size")
        self._resolve("kv_channels", self.hidden_size // self.num_attention_heads)
        require_divides(self, "num_query_groups", "num_attention_heads")
        check_latent(self)
        if self.kv_lora_rank:
            self._resolve("v_head_dim", self.kv_channels)
        self._resolve_mamba()
        if self.has_decoder:
            self._resolve("decoder_sequence_length", self.sequence_length)
        check_together(self, self._own_pattern())

    def _resolve(self, name: str, default: int) -> None:
        if getattr(self, name) == 0:
            object.__setattr__(self, name, default)

    def _resolve_mamba(self) -> None:
        if not self.has_mamba:
            return
        for name, default in MAMBA_SIZES.items():
            self._resolve(name, default)
        self._resolve("mamba_num_heads", 2 * self.hidden_size // self.mamba_head_dim)

    def _own_pattern(self) -> tuple[str, ...]:
        """Return the blocks that an encoder and decoder with this pattern would have.

        Where the decoder begins is free.
        """
        begin = FIRST_DECODER_BLOCK in self.block_pattern
        encoder = self.block_pattern.index(FIRST_DECODER_BLOCK) if begin else 1
        encoder = max(encoder, 1)
        return encoder_decoder_pattern(encoder, max(self.num_layers - encoder, 1))

    @property
    def has_mamba(self) -> bool:
        """Whether blocks have Mamba-2 layers."""
        return any("mamba" in kind.split("+") for kind in self.block_kinds.values())

    @property
    def has_decoder(self) -> bool:
        """Whether a decoder reads what an encoder made."""
        return self.family == "t5"

    @property
    def mamba_width(self) -> int:
        """Width of all heads of a Mamba-2 layer together."""
        return self.mamba_num_heads * self.mamba_head_dim

    def entering_tokens(self, kind: str) -> int:
        """Return the tokens of the hidden states that enter a kind of block."""
        in_decoder = kind == DECODER_BLOCK
        return self.decoder_sequence_length if in_decoder else self.sequence_length

    @property
    def copied_parameters(self) -> int:
        """Parameters that a decoder copies from its encoder: the word embedding."""
        return self.vocab_size * self.hidden_size if self.has_decoder else 0

    @property
    def block_kinds(self) -> dict[str, str]:
        """Name of each distinct kind of block -> the kind, in order of first use.

        The name is ``"block"`` where all blocks are alike.
        """
        if not self.block_pattern:
            return {"block": EXPERT_BLOCK if self.num_moe_experts else DENSE_BLOCK}
        kinds = dict.fromkeys(self.block_pattern)
        if len(kinds) == 1:
            return {"block": self.block_pattern[0]}
        return {f"block {kind}": kind for kind in kinds}

    @property
    def last_block_kind(self) -> str:
        """Kind of the last block, and of those of multi-token prediction."""
        if self.block_pattern:
            return self.block_pattern[-1]
        return next(iter(self.block_kinds.values()))

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
        return self.has_attention_bias or self.add_qkv_bias

    @property
    def has_attention_bias(self) -> bool:
        """Whether all linear layers of attention have a bias."""
        return self.add_bias_linear or self.add_attention_bias

    @property
    def nonlinearity(self) -> str:
        """Nonlinearity of the feed-forward layer."""
        return self.activation_func or ("silu" if self.gated_linear_unit else "gelu")

    @property
    def has_windows(self) -> bool:
        """Whether a sliding window hides something of a sequence."""
        return self.window_size > 0 and self.window_size < self.sequence_length


def encoder_decoder_pattern(num_encoder: int, num_decoder: int) -> tuple[str, ...]:
    """Return the kinds of the blocks of an encoder and a decoder, each at least one.

    The first of either makes what all others of it use.
    """
    encoder = (FIRST_ENCODER_BLOCK, *(ENCODER_BLOCK,) * (num_encoder - 1))
    return *encoder, FIRST_DECODER_BLOCK, *(DECODER_BLOCK,) * (num_decoder - 1)


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


def with_sequence_length(
    spec: TransformerSpec, sequence_length: int
) -> TransformerSpec:
    """Return the same model for other sequences.

    A learned position embedding grows where the sequences are longer than it.

    Raises
    ------
    InputError
        If the length is not a positive whole number.
    """
    checked = replace(spec, sequence_length=sequence_length, max_position_embeddings=0)
    rows = max(spec.max_position_embeddings, checked.sequence_length)
    return replace(checked, max_position_embeddings=rows)


def with_num_layers(spec: TransformerSpec, num_layers: int) -> TransformerSpec:
    """Return the same model at another depth: its first blocks, where they differ.

    Blocks that are all alike are repeated. Encoder and decoder share the blocks as
    before, as nearly as whole numbers do.

    Raises
    ------
    InputError
        If blocks differ and there are fewer, or the depth is no depth.
    """
    pattern = spec.block_pattern
    if spec.has_decoder and num_layers > 1:
        decoder = spec.num_layers - pattern.index(FIRST_DECODER_BLOCK)
        part = round(num_layers * decoder / spec.num_layers)
        part = min(max(part, 1), num_layers - 1)
        pattern = encoder_decoder_pattern(num_layers - part, part)
    if len(set(pattern)) == 1:
        pattern = pattern[:1] * max(num_layers, 1)
    if pattern and num_layers > len(pattern):
        raise InputError(
            "more blocks than the model has, whose blocks differ",
            where="num_layers",
            got=num_layers,
            expected=f"at most {len(pattern)}",
        )
    left = pattern[:num_layers]
    window = spec.window_size if any("window" in kind for kind in left) else 0
    return replace(spec, num_layers=num_layers, block_pattern=left, window_size=window)


def with_one_of_each(spec: TransformerSpec) -> TransformerSpec:
    """Return the same model with one block of each kind, and the last one last."""
    if not spec.block_pattern:
        return replace(spec, num_layers=1)
    kinds, last = tuple(spec.block_kinds.values()), spec.last_block_kind
    pattern = kinds if kinds[-1] == last else (*kinds, last)
    return replace(spec, num_layers=len(pattern), block_pattern=pattern)


def with_windows(
    spec: TransformerSpec, window_size: int, skip_freq: int | Sequence[int] = 0
) -> TransformerSpec:
    """Return the same model with sliding windows.

    Parameters
    ----------
    spec
        A model without windows.
    window_size
        Tokens that a token attends to, itself included.
    skip_freq
        Every which block sees all tokens (Megatron's ``window_attn_skip_freq``), 2 for
        every second one; 0 for none of them. Or a 1 for each block with a window and a
        0 for each that sees all tokens.
    """
    if isinstance(skip_freq, int):
        numbers = range(1, spec.num_layers + 1)
        windowed = [not skip_freq or number % skip_freq > 0 for number in numbers]
    else:
        windowed = [mark == 1 for mark in skip_freq]
    if not any(windowed):
        return spec
    kinds = spec.block_pattern or (*spec.block_kinds.values(),) * spec.num_layers
    pattern = tuple(
        kind.replace("attention", "window") if has_window else kind
        for kind, has_window in zip(kinds, windowed, strict=True)
    )
    return replace(spec, window_size=window_size, block_pattern=pattern)


def turned_channels(head_size: int, percent: float) -> int:
    """Return how many channels of a head rotary embeddings turn: an even number."""
    return int(head_size * percent) // 2 * 2
