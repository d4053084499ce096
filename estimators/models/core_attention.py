"""The core of attention: fused, or by two batched products as before FlashAttention.

Queries, keys and values have the shape (batch, heads, sequence, head). What is done to
scores beside products is `estimators.models.scores`.

References
----------
.. [1] Dao et al., "FlashAttention", 2022.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own abbreviation

from estimators.models.scores import ScoreRules, softmax_with_sink
from estimators.models.spec import TransformerSpec


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
    """Attention by one fused kernel that never stores scores [1]_.

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
