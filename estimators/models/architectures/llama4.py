"""Attention of Llama 4: within chunks of a sequence, and without positions in turn.

Most blocks turn queries and keys, make them unit vectors, and attend within chunks of
``attention_chunk_size`` tokens; every fourth one sees all tokens and no positions
(``Llama4TextAttention`` of transformers; Megatron's ``qk_l2_norm``, ``no_rope_freq``).
Chunks of a sequence are sequences of their own to a fused kernel.

References
----------
.. [1] Meta, "The Llama 4 herd", 2025: interleaved attention layers without positional
   embeddings.
"""

from dataclasses import replace

from torch import Tensor, nn

from estimators.models.attention import SelfAttention
from estimators.models.core_attention import FlashAttention
from estimators.models.spec import TransformerSpec


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

    def heads(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values: (batch, heads, sequence, head)."""
        query, key, value = super().heads(hidden)
        if self.unit_norm is not None:
            query, key = self.unit_norm(query), self.unit_norm(key)
        return query, key, value


def build_unturned_attention(spec: TransformerSpec) -> nn.Module:
    """Return attention to all tokens, without positions."""
    return SelfAttention(replace(spec, position_embedding_type="none"))
