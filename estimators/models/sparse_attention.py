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

DeepSeek-V4 [3]_ has one key for all heads, which is the value too. Queries see a window
of tokens and, in most blocks, summaries of all tokens before: weighed sums of 128 of
them, or of 8 at every fourth, of which an indexer chooses some, by summaries of its
own. What heads return is turned back and projected group by group. One kernel attends
to a window and to summaries; every tensor-parallel rank makes all summaries. Rotary
channels are the last ones of a head. Tables that say which experts a word goes to are
no parameters.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3.2", 2025, section 2.1; ``DeepseekV32Attention`` of
   transformers.
.. [2] Megatron Core at d98e8a64, ``core/transformer/experimental_attention_variant/
   dsa.py`` and ``absorbed_mla.py``.
.. [3] DeepSeek-AI, "DeepSeek-V4", 2026, sections 2.3.1 and 2.3.2;
   ``DeepseekV4Attention`` of transformers.
"""

from typing import NamedTuple

from estimators.models.attention import LatentHeads, RotaryEmbedding, UnitNorm
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


class Compression(NamedTuple):
    """Sizes of DeepSeek-V4's attention, in the order of `TransformerSpec`."""

    query_rank: int
    """Width that queries are made of."""
    groups: int
    """Groups of heads that are projected by themselves."""
    group_rank: int
    """Width that each of them is projected to."""
    turned: int
    """Rotary channels of a head."""
    chosen_rate: int
    """Tokens from one summary to the next, of those that an indexer chooses from."""
    compressed_rate: int
    """Tokens of a summary, of those that all queries see."""
    topk: int
    """Summaries that an indexer chooses for each query."""
    index_heads: int
    """Heads of an indexer."""
    index_width: int
    """Width of a head of an indexer."""


class Summaries(nn.Module):
    """Sums of tokens, weighed by a softmax over those of each channel.

    Parameters
    ----------
    hidden, width
        Of tokens and of summaries.
    rate
        Tokens from one summary to the next.
    overlaps
        Whether a summary is of as many tokens before, too, by other products.
    """

    def __init__(self, hidden: int, width: int, rate: int, *, overlaps: bool) -> None:
        super().__init__()
        self.width, self.rate, self.parts = width, rate, 2 if overlaps else 1
        both = self.parts * width
        self.linear = nn.Linear(hidden, 2 * both, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(rate, both))
        self.norm = RMSNorm(width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return summaries (batch, summaries, width)."""
        batch, count = hidden.shape[0], hidden.shape[1] // self.rate
        if hidden.is_meta:
            return hidden.new_empty(batch, count, self.width)
        whole = self.linear(hidden)[:, : count * self.rate]
        kept, gate = whole.view(batch, count, self.rate, -1).chunk(2, -1)
        gate = gate + self.position_bias
        if self.parts > 1:
            kept, gate = self._spread(kept, 0.0), self._spread(gate, float("-inf"))
        summed: Tensor = self.norm((kept * gate.softmax(2)).sum(2))
        return summed

    @staticmethod
    def _spread(parts: Tensor, empty: float) -> Tensor:
        """Return one half of each token's channels in the summary behind its own."""
        before, inside = parts.chunk(2, -1)
        first = torch.full_like(before[:, :1], empty)
        return torch.cat((torch.cat((first, before[:, :-1]), 1), inside), 2)


def _unseen(tokens: int, count: int, rate: int) -> Tensor:
    """Return which summaries are not complete at each token."""
    complete = (torch.arange(tokens) + 1) // rate
    return torch.arange(count) >= complete[:, None]


class SummaryIndexer(nn.Module):
    """Choose the summaries of each query: numbers (batch, sequence, summaries)."""

    def __init__(self, spec: TransformerSpec, sizes: Compression) -> None:
        super().__init__()
        self.heads, self.width = sizes.index_heads, sizes.index_width
        self.topk, hidden = sizes.topk, spec.hidden_size
        self.summaries = Summaries(hidden, self.width, sizes.chosen_rate, overlaps=True)
        self.linear_wq_b = nn.Linear(
            sizes.query_rank, self.heads * self.width, bias=False
        )
        self.linear_weights_proj = nn.Linear(hidden, self.heads, bias=False)

    def forward(self, hidden: Tensor, queries: Tensor) -> Tensor:
        """Return the summaries that each query sees; of others, one past the last."""
        batch, tokens = hidden.shape[:2]
        count = tokens // self.summaries.rate
        shape = batch, tokens, min(self.topk, count)
        if hidden.is_meta:
            return torch.empty(shape, dtype=torch.int32, device="meta")
        query = self.linear_wq_b(queries).view(batch, tokens, self.heads, -1)
        keys = self.summaries(hidden)[:, None].transpose(-1, -2)
        scores = (query @ keys * self.width**-0.5).relu()
        weights = self.linear_weights_proj(hidden) * self.heads**-0.5
        summed = (weights[..., None] * scores).sum(2)
        unseen = _unseen(tokens, count, self.summaries.rate)
        summed = summed.masked_fill(unseen, float("-inf"))
        best = summed.topk(shape[-1], -1)
        chosen = best.indices.masked_fill(best.values == float("-inf"), count)
        numbers: Tensor = chosen.int()
        return numbers


class TurnedQueries(nn.Module):
    """Queries of unit root mean square, with positions, and keys with them."""

    def __init__(self, width: int, turned: int) -> None:
        super().__init__()
        self.width, self.plain = width, width - turned
        self.norm, self.rotary = UnitNorm(), RotaryEmbedding(turned)

    def forward(self, flat: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return both in the shapes that they have, heads side by side."""
        if flat.is_meta:
            return flat.new_empty(*flat.shape), key.new_empty(*key.shape)
        heads = self.norm(flat.view(*flat.shape[:2], -1, self.width).transpose(1, 2))
        query, turned = self.rotary(heads[..., self.plain :], key[..., self.plain :])
        query = torch.cat((heads[..., : self.plain], query), -1)
        return query.transpose(1, 2).flatten(2), torch.cat(
            (key[..., : self.plain], turned), -1
        )


class TurnedBack(nn.Module):
    """Contexts without the positions of their queries."""

    def __init__(self, width: int, turned: int) -> None:
        super().__init__()
        self.width, self.plain = width, width - turned
        self.rotary = RotaryEmbedding(turned)

    def forward(self, flat: Tensor) -> Tensor:
        """Return contexts of all heads side by side."""
        if flat.is_meta:
            return flat.new_empty(*flat.shape)
        heads = flat.view(*flat.shape[:2], -1, self.width).transpose(1, 2)
        half = self.rotary.head_size // 2
        signs = torch.ones(2 * half)
        signs[half:] = -1.0  # of one channel of each pair: back in place of forth
        mirrored = heads[..., self.plain :] * signs
        turned, _ = self.rotary(mirrored, mirrored)
        whole = torch.cat((heads[..., : self.plain], turned * signs), -1)
        return whole.transpose(1, 2).flatten(2)


class SummaryCore(nn.Module):
    """Attention of all heads to a window of tokens, and to summaries.

    A learned score of no key is among those of each head.
    """

    def __init__(self, spec: TransformerSpec, rate: int, topk: int) -> None:
        super().__init__()
        self.num_heads, self.width = spec.num_attention_heads, spec.kv_channels
        self.window, self.rate, self.topk = spec.window_size, rate, topk
        self.softmax_offset = nn.Parameter(torch.zeros(self.num_heads))

    def forward(
        self,
        flat: Tensor,
        key: Tensor,
        summaries: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """Return the contexts of all heads side by side.

        Parameters
        ----------
        flat
            Queries of all heads side by side.
        key
            Of each token, and its value.
        summaries
            Of tokens before; None for none.
        chosen
            The summaries that each query sees; None for all of them.
        """
        if flat.is_meta:
            return flat.new_empty(*flat.shape)
        batch, tokens = flat.shape[:2]
        every = torch.ones(tokens, tokens, dtype=torch.bool)
        hidden = (every.triu(1) | every.tril(-self.window)).expand(batch, -1, -1)
        if summaries is not None:
            count = summaries.shape[1]
            unseen = _unseen(tokens, count, self.rate).expand(batch, -1, -1)
            if chosen is not None:
                left = torch.ones(batch, tokens, count + 1, dtype=torch.bool)
                unseen = left.scatter(-1, chosen.long(), value=False)[..., :count]
            key = torch.cat((key, summaries), 1)
            hidden = torch.cat((hidden, unseen), -1)
        query = flat.view(batch, tokens, self.num_heads, -1).transpose(1, 2)
        scores = query @ key[:, None].transpose(-1, -2) * self.width**-0.5
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        sinks = self.softmax_offset[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
        context: Tensor = (weights @ key[:, None]).transpose(1, 2).flatten(2)
        return context


class GroupProjection(nn.Linear):
    """A product of each group of heads by itself."""

    def __init__(self, inner: int, groups: int, rank: int) -> None:
        super().__init__(inner // groups, groups * rank, bias=False)
        self.groups, self.rank = groups, rank

    def forward(self, flat: Tensor) -> Tensor:
        """Return the results of all groups side by side."""
        if flat.is_meta:
            return flat.new_empty(*flat.shape[:2], self.groups * self.rank)
        parts = flat.view(*flat.shape[:2], self.groups, 1, -1)
        weight = self.weight.view(self.groups, self.rank, -1).transpose(-1, -2)
        return (parts @ weight).flatten(2)


class CompressedAttention(nn.Module):
    """Attention to a window, and to summaries of tokens before it.

    Parameters
    ----------
    spec
        The architecture.
    kind
        What it sees beside the window: ``"single"`` (nothing), ``"compressed"`` (all
        summaries) or ``"chosen"`` (those that an indexer chooses).
    """

    def __init__(self, spec: TransformerSpec, kind: str) -> None:
        super().__init__()
        sizes = Compression(*spec.compression)
        hidden, width = spec.hidden_size, spec.kv_channels
        chooses = kind == "chosen"
        rate = sizes.chosen_rate if chooses else sizes.compressed_rate
        self.linear_q_down_proj = nn.Linear(hidden, sizes.query_rank, bias=False)
        self.q_norm = RMSNorm(sizes.query_rank)
        self.linear_q_up_proj = ColumnParallelLinear(
            sizes.query_rank, spec.query_width, bias=False
        )
        self.linear_kv = nn.Linear(hidden, width, bias=False)
        self.kv_norm = RMSNorm(width)
        self.turn = TurnedQueries(width, sizes.turned)
        self.summaries = (
            None
            if kind == "single"
            else Summaries(hidden, width, rate, overlaps=chooses)
        )
        self.indexer = SummaryIndexer(spec, sizes) if chooses else None
        self.core_attention = SummaryCore(spec, rate, sizes.topk if chooses else 0)
        self.turn_back = TurnedBack(width, sizes.turned)
        self.linear_groups = GroupProjection(
            spec.query_width, sizes.groups, sizes.group_rank
        )
        self.linear_proj = RowParallelLinear(
            sizes.groups * sizes.group_rank, hidden, bias=False
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        queries = self.q_norm(self.linear_q_down_proj(hidden))
        key = self.kv_norm(self.linear_kv(hidden))
        query, key = self.turn(self.linear_q_up_proj(queries), key)
        if self.summaries is None:
            context = self.core_attention(query, key)
        elif self.indexer is None:
            context = self.core_attention(query, key, self.summaries(hidden))
        else:
            chosen = self.indexer(hidden, queries)
            context = self.core_attention(query, key, self.summaries(hidden), chosen)
        grouped = self.linear_groups(self.turn_back(context))
        output: Tensor = self.linear_proj(grouped)
        return output
