"""Self-attention: scores, the core, projections and positions.

Scores have the shape (batch, heads, queries, keys). None of it is a product, and fused
kernels do all of it while the scores are in registers.

* A sliding window [1]_ hides what is ``w`` tokens back or more: a token sees itself and
  ``w - 1`` before it (Megatron's ``window_size = (w - 1, 0)``).
* ALiBi [2]_ subtracts a multiple of the distance, another one for each head.
* A soft cap [3]_ bends scores below a bound: ``c tanh(x / c)``.
* A sink [4]_ is one learned score for each head that takes part in the softmax, and
  stands for no token.

The core of attention: fused, or by two batched products as before FlashAttention.

Queries, keys and values have the shape (batch, heads, sequence, head). What is done to
scores beside products is `estimators.models.attention`.

Self-attention: projections to heads and back, positions, norms of queries and keys.

What lies between is `estimators.models.attention`. Queries, keys and values have
the shape (batch, heads, sequence, head).

Multi-head latent attention [6]_ makes keys and values of a token of
`TransformerSpec.kv_lora_rank` numbers, and of `qk_pos_emb_head_dim` rotary ones that
all heads share; queries of `q_lora_rank`. Down-projections are whole on every
tensor-parallel rank, up-projections split by heads, as in Megatron Core's
``MLASelfAttention``.

Attention of Llama 4: within chunks of a sequence, and without positions in turn.

Most blocks turn queries and keys, make them unit vectors, and attend within chunks of
``attention_chunk_size`` tokens; every fourth one sees all tokens and no positions
(``Llama4TextAttention`` of transformers; Megatron's ``qk_l2_norm``, ``no_rope_freq``).
Chunks of a sequence are sequences of their own to a fused kernel.

References
----------
.. [1] Beltagy et al., "Longformer", 2020, section 3.1; Jiang et al., "Mistral 7B",
   2023, section 2.
.. [2] Press et al., "Train Short, Test Long", ICLR 2022, section 3.
.. [3] Gemma Team, "Gemma 2", 2024, section 2: logit soft-capping.
.. [4] OpenAI, "gpt-oss-120b and gpt-oss-20b model card", 2025, section 2.3; Megatron
   Core's ``softmax_type = "learnable"``.
.. [5] Dao et al., "FlashAttention", 2022.
.. [6] DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C.
.. [7] Meta, "The Llama 4 herd", 2025: interleaved attention layers without positional
   embeddings.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from estimators.models.layers import (
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import F, Tensor, nn, torch


class ScoreRules(NamedTuple):
    """What an attention does to its scores."""

    causal: bool = True
    """Whether a token sees earlier tokens only."""

    window: int = 0
    """Tokens that a token sees, itself included; 0 for all of them."""

    has_slopes: bool = False
    """Whether scores fall with the distance (ALiBi)."""

    cap: float = 0.0
    """Bound that scores are bent below; 0 for none."""

    def applied(self, scores: Tensor) -> Tensor:
        """Return scores that are ready for the softmax.

        Parameters
        ----------
        scores
            Scaled products of queries and keys.
        """
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        if self.has_slopes:
            queries, keys = (
                torch.arange(size, device=scores.device) for size in scores.shape[-2:]
            )
            slopes = scores.new_tensor(alibi_slopes(scores.shape[1]))
            scores = scores - slopes[:, None, None] * (queries[:, None] - keys).abs()
        every = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        if self.causal:
            scores = scores.masked_fill(every.triu(1), float("-inf"))
        if self.window:
            scores = scores.masked_fill(every.tril(-self.window), float("-inf"))
        return scores


def alibi_slopes(num_heads: int) -> list[float]:
    """Return how fast the scores of each head fall with the distance.

    A geometric sequence from ``2^(-8 / n)`` for ``n`` heads, a power of two; others
    take every second slope of twice as many heads behind those of the power below.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def softmax_with_sink(scores: Tensor, sink: Tensor) -> Tensor:
    """Return probabilities of the keys, where each head has one score of no key.

    Parameters
    ----------
    scores
        Ready scores.
    sink
        One score for each head.
    """
    column = sink[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]


class ScaledMaskedSoftmax(nn.Module):
    """Scale, mask and softmax of attention scores: one fused kernel in Megatron-LM."""

    def __init__(self, head_size: int, rules: ScoreRules) -> None:
        super().__init__()
        self.scale, self.rules = head_size**-0.5, rules

    def forward(self, scores: Tensor) -> Tensor:
        """Return probabilities over the last axis."""
        return self.rules.applied(scores * self.scale).softmax(-1)


class PlainAttention(nn.Module):
    """Attention by two batched products; stores the scores of every pair of tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.heads_per_group = spec.num_attention_heads // spec.num_query_groups
        self.softmax = ScaledMaskedSoftmax(spec.kv_channels, score_rules(spec))
        self.dropout = nn.Dropout(spec.attention_dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        if self.heads_per_group > 1:
            key = key.repeat_interleave(self.heads_per_group, 1)
            value = value.repeat_interleave(self.heads_per_group, 1)
        scores = torch.matmul(query, key.transpose(-1, -2))
        return torch.matmul(self.dropout(self.softmax(scores)), value)


class FlashAttention(nn.Module):
    """Attention by one fused kernel that never stores scores [5]_.

    Parameters
    ----------
    spec
        The architecture.
    window
        Tokens that a token sees, itself included; 0 for all of them.
    """

    def __init__(self, spec: TransformerSpec, window: int = 0) -> None:
        super().__init__()
        self.rules, self.dropout = score_rules(spec, window), spec.attention_dropout
        self.heads_per_group = spec.num_attention_heads // spec.num_query_groups
        self.softmax_offset = (
            nn.Parameter(torch.zeros(spec.num_attention_heads))
            if spec.softmax_type == "learnable"
            else None
        )

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        if self.softmax_offset is not None or self.rules not in _FUSED:
            return self._written_out(query, key, value)
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.rules.causal,
            enable_gqa=self.heads_per_group > 1,
        )

    def _written_out(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Compute what a fused kernel with such scores does, which torch has not."""
        key, value = (
            heads.repeat_interleave(self.heads_per_group, 1) for heads in (key, value)
        )
        products = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        scores = self.rules.applied(products)
        if self.softmax_offset is None:
            weights = scores.softmax(-1)
        else:
            weights = softmax_with_sink(scores, self.softmax_offset)
        return F.dropout(weights, self.dropout, self.training) @ value


_FUSED = (ScoreRules(causal=True), ScoreRules(causal=False))
"""Rules that torch has a fused kernel for."""


def score_rules(spec: TransformerSpec, window: int = 0) -> ScoreRules:
    """Return what an architecture does to scores.

    Parameters
    ----------
    spec
        The architecture.
    window
        Tokens that a token sees, itself included; 0 for all of them. One that is no
        shorter than the sequence hides nothing.
    """
    return ScoreRules(
        causal=spec.causal,
        window=window if window < spec.sequence_length else 0,
        has_slopes=spec.position_embedding_type == "alibi",
        cap=spec.attn_logit_softcapping,
    )


def build_core(spec: TransformerSpec, window: int = 0) -> nn.Module:
    """Return the core of attention that the architecture asks for."""
    if spec.attention_implementation == "plain":
        return PlainAttention(spec)
    return FlashAttention(spec, window)


class QKVParallelLinear(nn.Linear):
    """Queries, keys and values in one column-parallel product, and a gate of heads.

    Heads are split. Groups of keys and values are split as far as there are any, and
    copied beyond that. A gate is one number for each channel of the queries, as in
    Megatron Core's ``attention_output_gate``, or for each head.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        groups = spec.num_query_groups
        heads = (spec.num_attention_heads, groups, groups)
        self.head_size = spec.kv_channels
        widths = [number * self.head_size for number in heads]
        self.widths = [*widths, spec.gate_width]
        bias = spec.has_qkv_bias
        super().__init__(spec.hidden_size, sum(self.widths), bias=bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]  # several results instead of one
        """Return queries, keys, values: (batch, heads, sequence, head); and a gate.

        Gates are (batch, sequence, heads x head), or of heads.
        """
        *parts, gate = torch.split(super().forward(hidden), self.widths, -1)
        heads = (
            part.view(*part.shape[:2], -1, self.head_size).transpose(1, 2)
            for part in parts
        )
        return (*heads, gate) if self.widths[3] else tuple(heads)


def turned_channels(head_size: int, percent: float) -> int:
    """Return how many channels of a head rotary embeddings turn: an even number."""
    return int(head_size * percent) // 2 * 2


class RotaryEmbedding(nn.Module):
    """Turn pairs of channels by an angle that grows with the position (Su, 2021).

    A part of the channels may stay as it is (Black et al., "GPT-NeoX-20B", 2022,
    section 2.1.1).
    """

    def __init__(
        self, head_size: int, base: float = 10000.0, percent: float = 1.0
    ) -> None:
        super().__init__()
        self.head_size, self.base = turned_channels(head_size, percent), base

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return turned queries and keys: (batch, heads, sequence, head)."""
        channels = torch.arange(0, self.head_size, 2, device=query.device)
        positions = torch.arange(query.shape[-2], device=query.device)
        angles = positions[:, None] * self.base ** (-channels / self.head_size)
        angles = torch.cat((angles, angles), -1).to(query.dtype)
        return self._turn(query, angles), self._turn(key, angles)

    def _turn(self, heads: Tensor, angles: Tensor) -> Tensor:
        if self.head_size < heads.shape[-1]:
            turned, rest = heads.tensor_split([self.head_size], -1)
            return torch.cat((self._turn(turned, angles), rest), -1)
        left, right = heads.chunk(2, -1)
        return heads * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


class QueryNorm(RMSNorm):
    """Norm of all queries of a token together; its weight is split with the heads.

    What ranks of a tensor group exchange for it, a number for each token, is left out.
    """

    def forward(self, heads: Tensor) -> Tensor:
        """Return heads of the same shape: (batch, heads, sequence, head)."""
        flat = heads.transpose(1, 2).flatten(2)
        return super().forward(flat).view_as(heads.transpose(1, 2)).transpose(1, 2)


class KeyNorm(QueryNorm):
    """Norm of all keys of a token together; its weight is split with the groups."""


class HeadGate(nn.Module):
    """Weigh what each head returns by a sigmoid of one number."""

    def forward(self, context: Tensor, gate: Tensor) -> Tensor:
        """Return heads side by side, as they came."""
        heads = context.view(*gate.shape, -1)
        weighed: Tensor = (heads * gate.sigmoid()[..., None]).flatten(-2)
        return weighed


class SelfAttention(nn.Module):
    """Projection to heads, attention, projection back.

    Parameters
    ----------
    spec
        The architecture.
    window
        Tokens that a token sees, itself included; 0 for all of them.
    """

    def __init__(self, spec: TransformerSpec, window: int = 0) -> None:
        super().__init__()
        rotary = spec.position_embedding_type == "rope"
        self.linear_qkv = QKVParallelLinear(spec)
        self.query_norm: nn.Module | None
        self.key_norm: nn.Module | None
        self.query_norm, self.key_norm = query_key_norms(spec)
        self.rotary = (
            RotaryEmbedding(spec.kv_channels, percent=spec.rotary_percent)
            if rotary
            else None
        )
        self.value_norm = UnitNorm() if spec.block_embedding else None
        self.core_attention = build_core(spec, window)
        self.gate_activation = nn.Sigmoid() if spec.attention_output_gate else None
        self.head_gate = HeadGate() if spec.attention_head_gate else None
        self.linear_proj = RowParallelLinear(
            spec.query_width, spec.hidden_size, bias=spec.has_attention_bias
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        projected = self.linear_qkv(hidden)
        context = self.core_attention(
            *self.heads(projected[0], projected[1], projected[2])
        )
        context = context.transpose(1, 2).flatten(2)
        if self.gate_activation is not None:
            context = context * self.gate_activation(projected[3])
        if self.head_gate is not None:
            context = self.head_gate(context, projected[3])
        output: Tensor = self.linear_proj(context)
        return output

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys with norms and positions, and values."""
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            query, key = self.rotary(query, key)
        if self.value_norm is not None:
            value = self.value_norm(value)
        return query, key, value


def query_key_norms(
    spec: TransformerSpec,
) -> tuple[nn.Module, nn.Module] | tuple[None, None]:
    """Return the norms of queries and keys: of each head, or of all heads together."""
    if not spec.qk_layernorm:
        return None, None
    if spec.qk_layernorm_whole:
        return QueryNorm(spec.query_width), KeyNorm(spec.group_width)
    return build_norm(spec, spec.kv_channels), build_norm(spec, spec.kv_channels)


class LatentHeads(nn.Module):
    """Heads of what the up-projections made, rotary channels turned and joined."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.plain, self.turned = spec.kv_channels, spec.qk_pos_emb_head_dim
        self.value = spec.v_head_dim
        self.rotary = RotaryEmbedding(self.turned)

    def forward(
        self, queries: Tensor, keys_values: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, values: (batch, heads, sequence, head)."""
        query = self._heads(queries, self.plain + self.turned)
        query, query_turned = torch.split(query, [self.plain, self.turned], -1)
        both = self._heads(keys_values, self.plain + self.value)
        key, value = torch.split(both, [self.plain, self.value], -1)
        query_turned, key_turned = self.rotary(query_turned, positions[:, None])
        key_turned = key_turned.expand(-1, key.shape[1], -1, -1)
        return (
            torch.cat((query, query_turned), -1),
            torch.cat((key, key_turned), -1),
            value,
        )

    @staticmethod
    def _heads(flat: Tensor, width: int) -> Tensor:
        return flat.view(*flat.shape[:2], -1, width).transpose(1, 2)


class LatentSelfAttention(nn.Module):
    """Down, up, attention, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden, heads = spec.hidden_size, spec.num_attention_heads
        ranks = spec.q_lora_rank, spec.kv_lora_rank
        self.kv_widths = [spec.kv_lora_rank, spec.qk_pos_emb_head_dim]
        self.linear_q_down_proj = (
            nn.Linear(hidden, ranks[0], bias=False) if ranks[0] else None
        )
        self.q_norm = RMSNorm(ranks[0]) if ranks[0] else None
        self.linear_q_up_proj = ColumnParallelLinear(
            ranks[0] or hidden,
            heads * (spec.kv_channels + spec.qk_pos_emb_head_dim),
            bias=False,
        )
        self.linear_kv_down_proj = nn.Linear(hidden, sum(self.kv_widths), bias=False)
        self.kv_norm = RMSNorm(ranks[1])
        self.linear_kv_up_proj = ColumnParallelLinear(
            ranks[1], heads * (spec.kv_channels + spec.v_head_dim), bias=False
        )
        self.heads = LatentHeads(spec)
        self.core_attention = build_core(spec)
        self.linear_proj = RowParallelLinear(
            heads * spec.v_head_dim, hidden, bias=False
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        queries = hidden
        if self.linear_q_down_proj is not None and self.q_norm is not None:
            queries = self.q_norm(self.linear_q_down_proj(hidden))
        latent, positions = self.linear_kv_down_proj(hidden).split(self.kv_widths, -1)
        keys_values = self.linear_kv_up_proj(self.kv_norm(latent))
        query, key, value = self.heads(
            self.linear_q_up_proj(queries), keys_values, positions
        )
        context = self.core_attention(query, key, value)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


def build_attention(spec: TransformerSpec) -> nn.Module:
    """Return the attention that the architecture asks for."""
    return LatentSelfAttention(spec) if spec.kv_lora_rank else SelfAttention(spec)


def build_window_attention(spec: TransformerSpec) -> nn.Module:
    """Return attention within the architecture's sliding window, of its own heads."""
    heads = spec.window_num_attention_heads or spec.num_attention_heads
    spec = replace(spec, num_attention_heads=heads, window_num_attention_heads=0)
    return SelfAttention(spec, spec.window_size)


class UnitNorm(nn.Module):
    """Root mean square norm without a weight."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, heads: Tensor) -> Tensor:
        """Return heads of the same shape, of unit root mean square."""
        return heads * (heads.square().mean(-1, keepdim=True) + self.eps).rsqrt()


class ChunkedFlashAttention(FlashAttention):
    """Fused attention of each chunk by itself."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec)
        self.chunk = min(spec.attention_chunk_size, spec.sequence_length)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        batch, heads, tokens, size = query.shape
        context = super().forward(
            *(self._folded(heads) for heads in (query, key, value))
        )
        chunks = context.view(batch, -1, heads, self.chunk, size).transpose(1, 2)
        return chunks.reshape(batch, heads, tokens, size)

    def _folded(self, states: Tensor) -> Tensor:
        batch, heads, _, size = states.shape
        chunks = states.reshape(batch, heads, -1, self.chunk, size).transpose(1, 2)
        return chunks.flatten(0, 1)


class ChunkedSelfAttention(SelfAttention):
    """Attention within chunks, of unit queries and keys if the architecture says so."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec)
        self.core_attention = ChunkedFlashAttention(spec)
        self.unit_norm = UnitNorm() if spec.qk_l2_norm else None

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys of unit length, and values."""
        query, key, value = super().heads(query, key, value)
        if self.unit_norm is not None:
            query, key = self.unit_norm(query), self.unit_norm(key)
        return query, key, value


def build_unturned_attention(spec: TransformerSpec) -> nn.Module:
    """Return attention to all tokens, without positions."""
    unturned = replace(spec, position_embedding_type="none", rotary_percent=1.0)
    return SelfAttention(unturned)
