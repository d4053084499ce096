"""Sparse attention with an indexer: a query attends to the best keys alone.

DeepSeek Sparse Attention [1]_ stands on multi-head latent attention. An indexer of few
narrow heads scores all earlier tokens for each query, and the query attends to the
``dsa_indexer_topk`` best of them. Keys are the latents themselves, which all heads
share: what makes keys and values of latents is multiplied with queries and with what
attention returns, which is as much work as to make them of the latents. A head of a
query is then as wide as a latent and the rotary channels, 576 in DeepSeek V3.2, and
what it returns as wide as a latent.

Every tensor-parallel rank has the whole indexer, and works on whole sequences in it, as
Megatron Core's ``DSAIndexer`` does [2]_. Blocks may use what an indexer before them has
chosen, as in GLM-5.2; what a pipeline's stages would send for that is left out.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1; ``DeepseekV32Attention`` of
   transformers.
.. [2] Megatron Core at d98e8a64, ``core/transformer/experimental_attention_variant/
   dsa.py`` and ``absorbed_mla.py``.
"""

from estimators.models.attention import LatentHeads, RotaryEmbedding
from estimators.models.layers import ColumnParallelLinear, RMSNorm, RowParallelLinear
from estimators.models.spec import TransformerSpec
from estimators.models.vocabulary import Tensor, nn, torch


class Indexer(nn.Module):
    """Choose the keys of each query: numbers of tokens (batch, sequence, keys)."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        heads, width = spec.dsa_indexer_n_heads, spec.dsa_indexer_head_dim
        self.heads, self.width, self.topk = heads, width, spec.dsa_indexer_topk
        self.turned = spec.qk_pos_emb_head_dim
        self.linear_wq_b = nn.Linear(spec.q_lora_rank, heads * width, bias=False)
        self.linear_wk = nn.Linear(spec.hidden_size, width, bias=False)
        self.k_norm = nn.LayerNorm(width, eps=1e-6)
        self.linear_weights_proj = nn.Linear(spec.hidden_size, heads, bias=False)
        self.rotary = RotaryEmbedding(self.turned)

    def forward(self, hidden: Tensor, queries: Tensor) -> Tensor:
        """Return the tokens that each query attends to, best ones first.

        Parameters
        ----------
        hidden
            What enters attention.
        queries
            The narrow queries of latent attention.
        """
        tokens = hidden.shape[1]
        if hidden.is_meta:
            shape = hidden.shape[0], tokens, min(self.topk, tokens)
            return torch.empty(shape, dtype=torch.int32, device="meta")
        query = self.linear_wq_b(queries).unflatten(-1, (self.heads, self.width))
        key = self.k_norm(self.linear_wk(hidden))[:, :, None]
        query, key = (part.transpose(1, 2) for part in (query, key))
        turned = self.rotary(query[..., : self.turned], key[..., : self.turned])
        query, key = (
            torch.cat((first, part[..., self.turned :]), -1)
            for first, part in zip(turned, (query, key), strict=True)
        )
        scores = (query @ key.transpose(-1, -2) * self.width**-0.5).relu()
        weights = self.linear_weights_proj(hidden) * self.heads**-0.5
        summed = torch.einsum("bsh,bhst->bst", weights, scores)
        every = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device)
        summed = summed.masked_fill(every.triu(1), float("-inf"))
        return summed.topk(min(self.topk, tokens), -1).indices.int()


class SparseLatentCore(nn.Module):
    """Attention of all heads to latents of the tokens that were chosen.

    A learned score of no key may be among those of each head.
    """

    softmax_offset: Tensor | None

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.rank, self.turned = spec.kv_lora_rank, spec.qk_pos_emb_head_dim
        self.num_heads, self.plain = spec.num_attention_heads, spec.kv_channels
        self.value, self.topk = spec.v_head_dim, spec.dsa_indexer_topk
        self.linear_kv_up_proj = ColumnParallelLinear(
            self.rank, self.num_heads * (self.plain + self.value), bias=False
        )
        self.heads = LatentHeads(spec)
        learned = spec.softmax_type == "learnable"
        offset = nn.Parameter(torch.zeros(self.num_heads)) if learned else None
        self.register_parameter("softmax_offset", offset)

    def forward(
        self, queries: Tensor, latent: Tensor, positions: Tensor, chosen: Tensor | None
    ) -> Tensor:
        """Return the contexts (batch, sequence, heads x value).

        Parameters
        ----------
        queries
            Of all heads side by side.
        latent, positions
            What keys and values are made of, and rotary channels of keys.
        chosen
            The tokens that each query attends to; None for those of a block before,
            which are not known here: then for all up to its own.
        """
        if queries.is_meta:
            width = self.num_heads * self.value
            return queries.new_empty(*queries.shape[:2], width)
        query, key, value = self.heads(
            queries, self.linear_kv_up_proj(latent), positions
        )
        tokens = query.shape[-2]
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        if chosen is not None:
            left = torch.ones(len(queries), tokens, tokens, dtype=torch.bool)
            hidden = hidden | left.scatter(-1, chosen.long(), value=False)[:, None]
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        scores = scores.masked_fill(hidden, float("-inf"))
        if self.softmax_offset is not None:
            sinks = self.softmax_offset[:, None, None].expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, sinks), -1)
        weights = scores.softmax(-1)[..., :tokens]
        context: Tensor = (weights @ value).transpose(1, 2).flatten(2)
        return context


class SparseLatentAttention(nn.Module):
    """Latent attention to the tokens that an indexer chooses.

    Parameters
    ----------
    spec
        The architecture.
    chooses
        Whether it has an indexer, or attends to what one before it has chosen.
    """

    def __init__(self, spec: TransformerSpec, *, chooses: bool = True) -> None:
        super().__init__()
        hidden, rank = spec.hidden_size, spec.q_lora_rank
        self.kv_widths = [spec.kv_lora_rank, spec.qk_pos_emb_head_dim]
        self.linear_q_down_proj = nn.Linear(hidden, rank, bias=False)
        self.q_norm = RMSNorm(rank)
        self.linear_q_up_proj = ColumnParallelLinear(
            rank,
            spec.num_attention_heads * (spec.kv_channels + spec.qk_pos_emb_head_dim),
            bias=False,
        )
        self.linear_kv_down_proj = nn.Linear(hidden, sum(self.kv_widths), bias=False)
        self.kv_norm = RMSNorm(spec.kv_lora_rank)
        self.indexer = Indexer(spec) if chooses else None
        self.core_attention = SparseLatentCore(spec)
        width = spec.num_attention_heads * spec.v_head_dim
        gated = spec.attention_output_gate
        self.linear_gate = (
            ColumnParallelLinear(hidden, width, bias=False) if gated else None
        )
        self.gate_activation = nn.Sigmoid()
        self.linear_proj = RowParallelLinear(width, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        queries = self.q_norm(self.linear_q_down_proj(hidden))
        latent, positions = self.linear_kv_down_proj(hidden).split(self.kv_widths, -1)
        chosen = None if self.indexer is None else self.indexer(hidden, queries)
        context = self.core_attention(
            self.linear_q_up_proj(queries), self.kv_norm(latent), positions, chosen
        )
        if self.linear_gate is not None:
            context = context * self.gate_activation(self.linear_gate(hidden))
        output: Tensor = self.linear_proj(context)
        return output
