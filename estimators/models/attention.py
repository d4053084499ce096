"""Self-attention: projections to heads and back, positions, norms of queries and keys.

What lies between is `estimators.models.core_attention`. Queries, keys and values have
the shape (batch, heads, sequence, head).

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

from estimators.models.core_attention import build_core
from estimators.models.layers import (
    ColumnParallelLinear,
    RMSNorm,
    RowParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec, turned_channels


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
        self.query_norm, self.key_norm = _query_key_norms(spec)
        self.rotary = (
            RotaryEmbedding(spec.kv_channels, percent=spec.rotary_percent)
            if rotary
            else None
        )
        self.core_attention = build_core(spec, window)
        self.linear_proj = RowParallelLinear(
            spec.query_width, spec.hidden_size, bias=spec.has_attention_bias
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        context = self.core_attention(*self.heads(hidden))
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: (batch, heads, sequence, head)."""
        query, key, value = self.linear_qkv(hidden)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.rotary is not None:
            query, key = self.rotary(query, key)
        return query, key, value


def _query_key_norms(
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
    """Return attention within the architecture's sliding window."""
    return SelfAttention(spec, spec.window_size)
