"""The architecture of a transformer, as plain data under Megatron's names.

Nothing here knows torch: the modules are built from a `TransformerSpec` elsewhere.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from estimators.models.diffusion import Diffusion
from estimators.models.document_lengths import histogram
from estimators.models.layer_loads import LayerLoads
from estimators.models.limits import (
    LINEAR_SIZES,
    MAMBA_MIXERS,
    MAMBA_SIZES,
    RECURRENT_MIXERS,
    CapacityFactor,
    Depths,
    DocumentLength,
    DocumentLengths,
    Documents,
    ExpertLoads,
    Exponent,
    Inner,
    NumLayers,
    Placement,
    Probability,
    Routing,
    SequenceLength,
    Sigma,
    Streams,
    Vocabulary,
    Width,
    check_latent,
    check_together,
    check_values,
    require_divides,
)
from estimators.models.vision import VisionTower
from topologies.settings import Derived, Examples, NameChoice, Spec

DENSE_BLOCK, EXPERT_BLOCK = "attention+dense", "attention+experts"
"""Kinds of a block with attention, and a feed-forward layer that all tokens use, or
routed experts."""

SHORTCUT_BLOCK = "attention+dense+experts"
"""Kind of two blocks with attention and a feed-forward layer each, and experts beside
them that read what the first feed-forward layer reads: LongCat-Flash's."""

FIRST_ENCODER_BLOCK, ENCODER_BLOCK = "first encoder", "encoder"
FIRST_DECODER_BLOCK, DECODER_BLOCK = "first decoder", "decoder"
"""Kinds of the blocks of an encoder, and of a decoder that reads what it made."""

FAMILIES = (
    *("gpt", "llama", "mixtral", "mamba", "bert", "t5", "vit", "diffusion", "module"),
)
"""Families of models; the last one is that of users' own modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerSpec(Spec):
    """One model and the length of the sequences that it is trained on.

    Sizes left at 0 are left out: they take Megatron's default, given with each field,
    and reading them back gives the resolved value. What a family decides in files
    (``families.toml``) has GPT's value here.
    """

    family: Annotated[str, NameChoice(FAMILIES)]
    """Family of the model, which decides which modules it is built of. Mistral is a
    "llama", GPT-NeoX a "gpt", a hybrid of Mamba-2 and attention a "mamba". A "module"
    is a user's own one, of which the other fields say what tracing it showed."""

    num_layers: Annotated[NumLayers, Examples(32)]
    """Transformer blocks of the model, those of an encoder and a decoder together."""

    hidden_size: Annotated[Width, Examples(4096)]
    """Width of the hidden states."""

    num_attention_heads: Annotated[Width, Examples(32)]
    """Query heads of each attention layer."""

    vocab_size: Annotated[Vocabulary, Examples(32000)]
    """Entries of the word embedding, unpadded; classes of a vision transformer."""

    sequence_length: Annotated[SequenceLength, Examples(4096)]
    """Tokens of a training sequence: of the encoder, where there are two; patches of an
    image and its class token."""

    documents: Documents = "whole"
    """Which documents fill a sequence, each of which attends to itself alone: "whole"
    (one), "fixed" (of `document_length` tokens), "log-normal" (with that median and
    `document_length_sigma`), or "measured" (`document_length_samples` or
    `document_lengths`). They follow each other in a stream that is cut into
    sequences."""

    document_length: Annotated[DocumentLength, Examples(2048, default=None)] = 0
    """Tokens of a document with `documents` = "fixed", their median with
    "log-normal"."""

    document_length_sigma: Annotated[Sigma, Examples(1.0, default=None)] = 0.0
    """Standard deviation of the natural logarithm of documents' lengths, with
    `documents` = "log-normal"."""

    document_length_samples: Annotated[
        DocumentLengths, Examples([512, 900, 4096], default=None)
    ] = ()
    """Tokens of some documents, drawn as those that train the model, with `documents` =
    "measured". Reading them back gives lengths once each, in order."""

    document_length_counts: Annotated[tuple[int, ...], Derived()] = ()
    """How many documents have each of `document_length_samples`; left out, as often as
    it stands there."""

    decoder_sequence_length: Annotated[SequenceLength, Derived()] = 0
    """Tokens of a sequence of a decoder that reads what an encoder made; by default
    `sequence_length`, 0 without such a decoder."""

    block_pattern: Annotated[tuple[str, ...], Derived()] = ()
    """Kind of each block in turn, where they are not all alike: its mixer and its
    feed-forward layer, keys of `estimators.models.families.MIXERS` and
    `FEED_FORWARDS`, joined by ``"+"``; either may be missing. Those of encoder and
    decoder are `encoder_decoder_pattern`."""

    ffn_hidden_size: Annotated[Inner, Examples(11008, default=None)] = 0
    """Inner width of the feed-forward layer, of one of the two halves if it is gated.
    Left out, four times `hidden_size`."""

    num_query_groups: Annotated[Width, Examples(8, default=None)] = 0
    """Key and value heads of each attention layer. Left out, as many as query heads."""

    kv_channels: Annotated[Width, Examples(128, default=None)] = 0
    """Width of one attention head. Left out, `hidden_size` over
    `num_attention_heads`."""

    max_position_embeddings: Annotated[SequenceLength, Examples(4096, default=None)] = 0
    """Rows of a learned position embedding. Left out, `sequence_length`."""

    gated_linear_unit: Annotated[bool, Examples(True, default=None)] = False
    """Whether the feed-forward layer is gated, as in SwiGLU: one half of its inner
    width is multiplied by the nonlinearity of the other. Left out, as the family has
    it."""

    activation_func: Annotated[
        str,
        NameChoice(("gelu", "silu", "relu", "squared_relu", "xielu")),
        Examples(default=None),
    ] = ""
    """Nonlinearity of the feed-forward layer; "xielu" learns two numbers, as in
    Apertus. Left out, as the family has it: SiLU where it is gated, else GELU, the
    square of a ReLU in a "mamba"."""

    normalization: Annotated[
        str, NameChoice(("layernorm", "rmsnorm")), Examples(default=None)
    ] = "layernorm"
    """Norm of attention and feed-forward layer. Left out, as the family has it."""

    layernorm_bias: Annotated[bool, Examples(False)] = True
    """Whether a LayerNorm has a bias."""

    layernorm_affine: Annotated[bool, Examples(False)] = True
    """Whether norms have weights at all; LayerNorms of OLMo and root mean square norms
    of nanochat have none."""

    norm_placement: Annotated[
        str, NameChoice(("pre", "post", "sandwich", "shared"))
    ] = "pre"
    """Where a block normalises: before each branch ("pre"), behind it ("post", OLMo 2),
    both ("sandwich", Gemma 2 and GLM-4), or once before two parallel branches
    ("shared", Falcon 7B)."""

    parallel_residual: Annotated[bool, Examples(True)] = False
    """Whether attention and feed-forward layer read the same hidden states, as in
    GPT-NeoX and Falcon. They are computed one by one."""

    position_embedding_type: Annotated[
        str,
        NameChoice(("learned", "rope", "alibi", "relative", "none")),
        Examples(default=None),
    ] = "learned"
    """How positions are told apart. ALiBi lets scores fall with the distance; T5 has a
    "relative" bias of each score, which it learns. Left out, as the family has it."""

    rotary_percent: Annotated[float, Gt(0), Le(1), Examples(0.5)] = 1.0
    """Part of the channels of a head that rotary positions turn."""

    embedding_layernorm: Annotated[bool, Examples(True)] = False
    """Whether a norm follows the word embedding, as in BLOOM."""

    scale_embeddings: Annotated[bool, Examples(True)] = False
    """Whether embeddings of words are multiplied by a constant, as in Gemma."""

    qk_layernorm: Annotated[bool, Examples(True)] = False
    """Whether queries and keys are normalised, each head by itself, as in Qwen 3."""

    qk_layernorm_whole: Annotated[bool, Examples(True)] = False
    """Whether `qk_layernorm` normalises all heads of a token together, as in OLMo 2."""

    attention_output_gate: Annotated[bool, Examples(True)] = False
    """Whether a sigmoid of a projection of the hidden states weighs what the heads of
    attention return, before they are projected back, as in Trinity. One product makes
    it with queries, keys and values, and it has a bias if they have."""

    attention_head_gate: Annotated[bool, Derived()] = False
    """Whether a sigmoid of one number for each head weighs what it returns, as in Step
    3.5; one product makes it with queries, keys and values."""

    softmax_type: Annotated[str, NameChoice(("vanilla", "learnable"))] = "vanilla"
    """Softmax of attention: "learnable" has one learned score of no key for each head,
    the sinks of GPT-OSS."""

    attn_logit_softcapping: Annotated[float, Ge(0), Le(1e6), Examples(50.0)] = 0.0
    """Bound that attention scores are bent below, as in Gemma 2; 0 for none."""

    final_logit_softcapping: Annotated[float, Ge(0), Le(1e6), Examples(30.0)] = 0.0
    """Bound that logits of the output layer are bent below, as in Gemma 2, or 0."""

    window_size: Annotated[SequenceLength, Examples(4096, default=None)] = 0
    """Tokens that a token attends to, itself included: Megatron's (window_size - 1, 0).
    Left out, all before it."""

    window_num_attention_heads: Annotated[Width, Derived()] = 0
    """Query heads of blocks with a window, as in Step 3.5; 0 for as many as others."""

    attention_chunk_size: Annotated[SequenceLength, Derived()] = 0
    """Tokens of a chunk, which those of a block with the mixer ``"chunked"`` attend
    within; 0 without such blocks."""

    qk_l2_norm: Annotated[bool, Derived()] = False
    """Whether mixers ``"chunked"`` make unit vectors of queries and keys."""

    tie_word_embeddings: Annotated[bool, Examples(False, default=None)] = True
    """Whether the output layer shares the word embedding's weight. Left out, as the
    family has it."""

    add_bias_linear: Annotated[bool, Examples(False, default=None)] = True
    """Whether all linear layers of a block have a bias. Left out, as the family has
    it."""

    add_qkv_bias: Annotated[bool, Examples(False)] = False
    """Whether at least the query, key and value projections have a bias."""

    add_attention_bias: Annotated[bool, Examples(False)] = False
    """Whether at least the linear layers of attention have a bias."""

    add_mlp_bias: Annotated[bool, Examples(True)] = False
    """Whether at least the linear layers of feed-forward layers have a bias, as in
    GPT-J; not for models with experts."""

    add_head_bias: Annotated[bool, Examples(True)] = False
    """Whether the output layer has a bias, as in GPT-J and Phi-2."""

    hidden_dropout: Annotated[Probability, Examples(0.1)] = 0.0
    """Probability of dropout after the embedding, the attention and the feed-forward
    layer."""

    attention_dropout: Annotated[Probability, Examples(0.1)] = 0.0
    """Probability of dropout after the attention softmax."""

    attention_implementation: Annotated[
        str, NameChoice(("flash", "plain")), Derived()
    ] = "flash"
    """How attention is computed: ``"flash"`` (one fused kernel, scores never stored) or
    ``"plain"`` (two batched products with a softmax between them)."""

    causal: Annotated[bool, Derived()] = True
    """Whether a token attends to earlier tokens only; in a decoder, where there is an
    encoder, too."""

    num_moe_experts: Annotated[Width, Examples(8, default=None)] = 0
    """Routed experts of each feed-forward layer that has any; for the family
    "mixtral"."""

    moe_ffn_hidden_size: Annotated[Inner, Examples(2048, default=None)] = 0
    """Inner width of one routed expert. Left out, `ffn_hidden_size`, which is that of
    blocks without experts."""

    moe_router_topk: Annotated[Width, Examples(2, default=None)] = 0
    """Experts that each token is sent to; for the family "mixtral"."""

    moe_num_zero_experts: Annotated[Width, Derived()] = 0
    """Experts that return a token as it came, beside those with work, as in
    LongCat-Flash: no weights, no work, nothing sent. A token goes to as many of either
    as there are, on average."""

    moe_shared_expert_intermediate_size: Annotated[
        Inner, Examples(2048, default=None)
    ] = 0
    """Inner width of the experts that all tokens go to, together. Left out, there are
    none."""

    moe_shared_expert_gate: Annotated[bool, Examples(True)] = False
    """Whether what the experts of all tokens return is weighed by a gate."""

    moe_router_score_function: Annotated[str, NameChoice(("softmax", "sigmoid"))] = (
        "softmax"
    )
    """What the scores of a router are: a softmax over all experts, or a sigmoid of each
    score."""

    moe_router_pre_softmax: Annotated[bool, Examples(True)] = False
    """Whether the softmax comes before the choice of experts, and weights of those
    chosen add up to less than one."""

    moe_router_enable_expert_bias: Annotated[bool, Examples(True)] = False
    """Whether a bias of each expert, set from its load, takes part in the choice."""

    moe_router_num_groups: Annotated[Width, Examples(8, default=None)] = 0
    """Groups of experts, of equal size, a few of which a token may use: the fewer, the
    fewer nodes are sent the token. Left out, experts have no groups."""

    moe_router_group_topk: Annotated[Width, Examples(4, default=None)] = 0
    """Groups that the experts of one token are of; with `moe_router_num_groups`."""

    moe_routing: Routing = "balanced"
    """Where tokens go, which decides how busy the busiest rank of an expert group is:
    "balanced" (as many to each expert), "random" (each token chooses any experts
    alike), "power-law" (of `moe_routing_exponent`), "log-normal" (of
    `moe_routing_sigma`), or "measured" (`moe_expert_loads` or `moe_routing_file`)."""

    moe_routing_exponent: Annotated[Exponent, Examples(1.2, default=None)] = 0.0
    """Exponent of `moe_routing` = "power-law": tokens of an expert are drawn from a
    density x^-a, as AIConfigurator measured layers of experts, with 1.01 and 1.2."""

    moe_routing_sigma: Annotated[Sigma, Examples(0.3, default=None)] = 0.0
    """Standard deviation of the natural logarithm of experts' loads, with `moe_routing`
    = "log-normal"."""

    moe_expert_loads: Annotated[ExpertLoads, Examples([4, 2, 1, 1], default=None)] = ()
    """Tokens that each expert got, in any unit, with `moe_routing` = "measured": one
    number for each expert, in the order of their numbers."""

    moe_layer_loads: Annotated[LayerLoads | None, Derived()] = None
    """Tokens that each expert of each layer got, in place of `moe_expert_loads`."""

    moe_expert_placement: Placement = "linear"
    """Which rank of an expert group holds which experts: "linear" (neighbours, in their
    order), or "balanced" (by load, as DeepSeek's EPLB packs them, where that is better)
    with a `moe_routing` whose loads are known."""

    moe_expert_capacity_factor: Annotated[
        CapacityFactor, Examples(1.25, default=None)
    ] = 0.0
    """Megatron's option: what an expert takes of a rank's tokens at most, over an even
    share; others are dropped. Left out, none are."""

    moe_pad_expert_input_to_capacity: Annotated[bool, Examples(True)] = False
    """Megatron's option: experts compute and are sent as many tokens as
    `moe_expert_capacity_factor` lets them take, whatever came."""

    moe_expert_skew: Annotated[float, Ge(1), Le(1e6), Derived()] = 1.0
    """Tokens of the busiest rank of an expert group over the mean, where that is said
    (`software.expert_skew`) and does not follow from `moe_routing`."""

    mtp_num_layers: Annotated[Depths, Examples(1, default=None)] = 0
    """Layers that predict tokens further ahead: a block like the last one each, a
    projection, and a loss at the head. Left out, there are none."""

    kv_lora_rank: Annotated[Width, Examples(512, default=None)] = 0
    """Width that keys and values are made of, in multi-head latent attention, whose
    `kv_channels` are those without a position."""

    q_lora_rank: Annotated[Width, Examples(1536, default=None)] = 0
    """Width that queries are made of, in multi-head latent attention. Left out, the
    hidden states."""

    qk_pos_emb_head_dim: Annotated[Width, Examples(64, default=None)] = 0
    """Rotary channels of queries and keys beside `kv_channels`, in latent attention;
    all heads share those of keys."""

    v_head_dim: Annotated[Width, Examples(128, default=None)] = 0
    """Width of one value, in multi-head latent attention. Left out, `kv_channels`."""

    dsa_indexer_topk: Annotated[SequenceLength, Examples(2048, default=None)] = 0
    """Tokens that a query attends to, which an indexer chooses: DeepSeek Sparse
    Attention, in all blocks with latent attention. Left out, all tokens before it."""

    dsa_indexer_n_heads: Annotated[Width, Examples(64, default=None)] = 0
    """Heads of an indexer, with `dsa_indexer_topk`."""

    dsa_indexer_head_dim: Annotated[Width, Examples(128, default=None)] = 0
    """Width of a head of an indexer, with `dsa_indexer_topk`; as many of its channels
    as `qk_pos_emb_head_dim` are rotary."""

    num_token_types: Annotated[Width, Derived()] = 0
    """Rows of BERT's token type embedding; 0 for none."""

    bert_binary_head: Annotated[bool, Derived()] = True
    """Whether a BERT has a pooler and the next-sentence head."""

    mamba_state_dim: Annotated[Width, Examples(128, default=None)] = 0
    """Numbers that a Mamba-2 layer keeps for each channel. Left out, 128, and 0 without
    such layers, like all their sizes."""

    mamba_head_dim: Annotated[Width, Examples(64, default=None)] = 0
    """Width of one head of a Mamba-2 layer. Left out, 64."""

    mamba_num_groups: Annotated[Width, Examples(8, default=None)] = 0
    """Groups of heads of a Mamba-2 layer that share how the state is written and read;
    tensor parallelism splits them. Left out, 8."""

    mamba_num_heads: Annotated[Width, Examples(128, default=None)] = 0
    """Heads of a Mamba-2 layer. Left out, as many as make it twice as wide as
    `hidden_size`."""

    mamba_chunk_size: Annotated[Width, Examples(128, default=None)] = 0
    """Tokens that the scan of a Mamba-2 layer treats as one product. Left out, 128."""

    mamba_rms_norm: Annotated[bool, Derived()] = True
    """Whether a Mamba-2 layer normalises what its scan returns: not in Falcon-H1s."""

    linear_num_key_heads: Annotated[Width, Examples(16, default=None)] = 0
    """Heads of queries and keys of a delta net, a multiple of the tensor-parallel size.
    Left out, 16, and 0 without such layers, like all their sizes."""

    linear_num_value_heads: Annotated[Width, Examples(32, default=None)] = 0
    """Heads of values of a delta net, each with a state of its own; a multiple of
    `linear_num_key_heads`. Left out, 32."""

    linear_key_head_dim: Annotated[Width, Examples(128, default=None)] = 0
    """Width of a query's and a key's head of a delta net. Left out, 128."""

    linear_value_head_dim: Annotated[Width, Examples(128, default=None)] = 0
    """Width of a value's head of a delta net. Left out, 128."""

    short_convolution_width: Annotated[Width, Derived()] = 0
    """Tokens that a mixer's convolution reaches, as in LFM2; 0 without such blocks."""

    selective_width: Annotated[Width, Derived()] = 0
    """Channels of a selective scan, Mamba-1; 0, like all its sizes, without it."""

    selective_state_dim: Annotated[Width, Derived()] = 0
    """Numbers that a selective scan keeps for each channel."""

    selective_step_rank: Annotated[Width, Derived()] = 0
    """Width of what the steps of a selective scan are made of."""

    selective_norm: Annotated[
        str, NameChoice(("none", "plain", "weighted")), Derived()
    ] = "none"
    """Whether what steps are made of, and how the state is written and read, are
    normalised: by norms without weights ("plain", Falcon Mamba) or with ("weighted",
    Jamba)."""

    image_size: Annotated[Width, Derived()] = 0
    """Height and width of a vision transformer's images in pixels; 0 without."""

    patch_size: Annotated[Width, Derived()] = 0
    """Height and width of a patch in pixels, divisors of those of an image."""

    num_residual_streams: Annotated[Streams, Examples(4, default=None)] = 0
    """Residual streams of hyper-connections, which every branch reads and writes by
    weights of its own: Megatron's option. Left out, there is one, without weights."""

    hyper_connections: Annotated[
        str, NameChoice(("manifold", "independent")), Derived()
    ] = "manifold"
    """Whether a doubly stochastic matrix mixes residual streams ("manifold", DeepSeek's
    mHC), or each keeps what it had ("independent", Hunyuan 4)."""

    ngram_embedding: Annotated[tuple[int, ...], Derived()] = ()
    """Tokens of the longest n-grams that are embedded beside words, tables for each
    length, and rows of a table, as in LongCat-Flash-Lite; empty without."""

    block_embedding: Annotated[tuple[int, ...], Derived()] = ()
    """Rows of Gemma 3n's embedding of blocks, blocks, channels of each, and the rank of
    the products beside attention; empty without."""

    compression: Annotated[tuple[int, ...], Derived()] = ()
    """Sizes of `estimators.models.sparse_attention.Compression`; empty without."""

    vision: Annotated[VisionTower | None, Derived()] = None
    """The tower that makes tokens of a sequence's pictures; None without pictures."""

    diffusion: Annotated[Diffusion | None, Derived()] = None
    """What a diffusion transformer has beside blocks; None for other models."""

    whole_because: Annotated[str, Derived()] = ""
    """Why no tensor-parallel group can split a user's own module; empty if one can."""

    def __post_init__(self) -> None:
        listed = ("moe_expert_loads", "document_length_samples")
        for name in ("block_pattern", "ngram_embedding", "block_embedding", *listed):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_values(self)
        self._count_documents()
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
        self._resolve_mixers()
        if self.has_decoder:
            self._resolve("decoder_sequence_length", self.sequence_length)
        check_together(self, self._own_pattern())

    def _count_documents(self) -> None:
        table = histogram(self.document_length_samples, self.document_length_counts)
        object.__setattr__(self, "document_length_samples", table[0])
        object.__setattr__(self, "document_length_counts", table[1])

    def _resolve(self, name: str, default: int) -> None:
        if getattr(self, name) == 0:
            object.__setattr__(self, name, default)

    def _resolve_mixers(self) -> None:
        sizes = dict(LINEAR_SIZES) if self.has_delta_nets else {}
        sizes |= MAMBA_SIZES if self.has_mamba else {}
        for name, default in sizes.items():
            self._resolve(name, default)
        if self.has_mamba:
            usual = 2 * self.hidden_size // self.mamba_head_dim
            self._resolve("mamba_num_heads", usual)

    def _own_pattern(self) -> tuple[str, ...]:
        """Return blocks of an encoder and a decoder, which may begin anywhere."""
        begin = FIRST_DECODER_BLOCK in self.block_pattern
        encoder = max(self.block_pattern.index(FIRST_DECODER_BLOCK) if begin else 1, 1)
        return encoder_decoder_pattern(encoder, max(self.num_layers - encoder, 1))

    @property
    def has_mamba(self) -> bool:
        """Whether blocks have Mamba-2 layers, alone or beside attention."""
        return not self.mixers.isdisjoint(MAMBA_MIXERS)

    @property
    def mixers(self) -> frozenset[str]:
        """Mixers of all blocks, keys of `estimators.models.families.MIXERS`."""
        parts = (kind.partition("+")[0] for kind in self.block_kinds.values())
        return frozenset(parts) - {"dense", "experts"}

    @property
    def has_delta_nets(self) -> bool:
        """Whether blocks have delta nets."""
        return not self.mixers.isdisjoint(RECURRENT_MIXERS - {"lightning"})

    @property
    def has_recurrences(self) -> bool:
        """Whether blocks have linear attention, whose heads hold a state."""
        return not self.mixers.isdisjoint(RECURRENT_MIXERS)

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
        return (*self.block_kinds.values(), *self.block_pattern)[-1]

    @property
    def expert_blocks(self) -> tuple[int, ...]:
        """Numbers of the blocks that have experts, from 0."""
        kinds = self.block_pattern or (*self.block_kinds.values(),) * self.num_layers
        return tuple(n for n, kind in enumerate(kinds) if "experts" in kind.split("+"))

    @property
    def moe_copies(self) -> float:
        """Experts with work that a token is sent to, on average."""
        every = self.num_moe_experts + self.moe_num_zero_experts
        return self.moe_router_topk * self.num_moe_experts / max(every, 1)

    @property
    def query_width(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.kv_channels

    @property
    def gate_width(self) -> int:
        """Numbers that weigh what the heads of one token return."""
        if self.attention_head_gate:
            return self.num_attention_heads
        return self.query_width * self.attention_output_gate

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
    def has_mlp_bias(self) -> bool:
        """Whether the linear layers of feed-forward layers have a bias."""
        return self.add_bias_linear or self.add_mlp_bias

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
