"""Multi-head latent attention: keys, values and queries through narrow projections.

Keys and values of a token are made of `TransformerSpec.kv_lora_rank` numbers, and of
`qk_pos_emb_head_dim` rotary ones that all heads share; queries of `q_lora_rank`.
Down-projections are whole on every tensor-parallel rank, up-projections split by heads,
as in Megatron Core's ``MLASelfAttention``.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1 and appendix C.
"""

import torch
from torch import Tensor, nn

from estimators.models.attention import (
    FlashAttention,
    RotaryEmbedding,
    SelfAttention,
)
from estimators.models.layers import ColumnParallelLinear, RMSNorm, RowParallelLinear
from estimators.models.spec import TransformerSpec


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
