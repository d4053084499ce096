"""Self-attention: fused, or by two batched products as before FlashAttention.

Queries, keys and values have the shape (batch, heads, sequence, head).

Multi-head latent attention [1]_ makes keys and values of a token of
`TransformerSpec.kv_lora_rank` numbers, and of `qk_pos_emb_head_dim` rotary ones that
all heads share; queries of `q_lora_rank`. Down-projections are whole on every
tensor-parallel rank, up-projections split by heads, as in Megatron Core's
``MLASelfAttention``.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from estimators.models.layers import ColumnParallelLinear, RMSNorm, RowParallelLinear
from estimators.models.spec import TransformerSpec


class QKVParallelLinear(nn.Linear):
    """Queries, keys and values in one column-parallel product.

    Heads are split. Groups of keys and values are split as far as there are any, and
    copied beyond that.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        self.heads = (
            spec.num_attention_heads,
            spec.num_query_groups,
            spec.num_query_groups,
        )
        self.head_size = spec.kv_channels
        width = spec.query_width + 2 * spec.group_width
        super().__init__(spec.hidden_size, width, bias=spec.has_qkv_bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]  # three results instead of one
        """Return queries, keys, values: (batch, heads, sequence, head)."""
        widths = [n * self.head_size for n in self.heads]
        parts = torch.split(super().forward(hidden), widths, -1)
        query, key, value = (
            part.view(*part.shape[:2], -1, self.head_size).transpose(1, 2)
            for part in parts
        )
        return query, key, value


class RotaryEmbedding(nn.Module):
    """Turn pairs of channels by an angle that grows with the position (Su, 2021)."""

    def __init__(self, head_size: int, base: float = 10000.0) -> None:
        super().__init__()
        self.head_size, self.base = head_size, base

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return turned queries and keys: (batch, heads, sequence, head)."""
        channels = torch.arange(0, self.head_size, 2, device=query.device)
        positions = torch.arange(query.shape[-2], device=query.device)
        angles = positions[:, None] * self.base ** (-channels / self.head_size)
        angles = torch.cat((angles, angles), -1).to(query.dtype)
        return self._turn(query, angles), self._turn(key, angles)

    @staticmethod
    def _turn(heads: Tensor, angles: Tensor) -> Tensor:
        left, right = heads.chunk(2, -1)
        return heads * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


class ScaledMaskedSoftmax(nn.Module):
    """Scale, mask and softmax of attention scores: one fused kernel in Megatron-LM."""

    def __init__(self, head_size: int, *, causal: bool) -> None:
        super().__init__()
        self.scale, self.causal = head_size**-0.5, causal

    def forward(self, scores: Tensor) -> Tensor:
        """Return probabilities over the last axis."""
        scores = scores * self.scale
        if self.causal:
            shape = scores.shape[-2:]
            later = torch.ones(shape, dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(-1)


class PlainAttention(nn.Module):
    """Attention by two batched products; stores the scores of every pair of tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.heads_per_group = spec.num_attention_heads // spec.num_query_groups
        self.softmax = ScaledMaskedSoftmax(spec.kv_channels, causal=spec.causal)
        self.dropout = nn.Dropout(spec.attention_dropout)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        if self.heads_per_group > 1:
            key = key.repeat_interleave(self.heads_per_group, 1)
            value = value.repeat_interleave(self.heads_per_group, 1)
        scores = torch.matmul(query, key.transpose(-1, -2))
        return torch.matmul(self.dropout(self.softmax(scores)), value)


class FlashAttention(nn.Module):
    """Attention by one fused kernel that never stores scores (Dao et al., 2022)."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.causal, self.dropout = spec.causal, spec.attention_dropout
        self.grouped = spec.num_query_groups < spec.num_attention_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
            enable_gqa=self.grouped,
        )


class SelfAttention(nn.Module):
    """Projection to heads, attention, projection back."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        rotary = spec.position_embedding_type == "rope"
        plain = spec.attention_implementation == "plain"
        self.linear_qkv = QKVParallelLinear(spec)
        self.rotary = RotaryEmbedding(spec.kv_channels) if rotary else None
        self.core_attention = PlainAttention(spec) if plain else FlashAttention(spec)
        self.linear_proj = RowParallelLinear(
            spec.query_width, spec.hidden_size, bias=spec.add_bias_linear
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query, key, value = self.linear_qkv(hidden)
        if self.rotary is not None:
            query, key = self.rotary(query, key)
        context = self.core_attention(query, key, value)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


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
        self.core_attention = FlashAttention(spec)
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
