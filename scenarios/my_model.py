"""A model of one's own in plain torch: `custom_module.toml` names its function `build`.

A decoder whose blocks run attention and feed-forward layer side by side, with norms of
queries and keys, grouped heads, rotary positions and a squared ReLU: none of the
families that nestsim has. Nothing here knows nestsim.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its customary name


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of channels by an angle that grows with the position."""
    left, right = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-right, left), dim=-1) * sin


class Block(nn.Module):
    """Attention and feed-forward layer of one norm, side by side."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        self.norm = nn.RMSNorm(width)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, groups * self.size, bias=False)
        self.values = nn.Linear(width, groups * self.size, bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(self.size), nn.RMSNorm(self.size)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return hidden states of the same shape: (batch, sequence, width)."""
        batch, tokens, width = hidden.shape
        normed = self.norm(hidden)
        query, key, value = (
            one(normed).view(batch, tokens, -1, self.size).transpose(1, 2)
            for one in (self.queries, self.keys, self.values)
        )
        query = turn(self.query_norm(query), cos, sin)
        key = turn(self.key_norm(key), cos, sin)
        context = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        attended = self.out(context.transpose(1, 2).reshape(batch, tokens, width))
        return hidden + attended + self.down(F.relu(self.up(normed)).square())


class Decoder(nn.Module):
    """Embedding, blocks, norm and output layer; returns logits."""

    def __init__(
        self, width: int, num_layers: int, heads: int, groups: int, words: int
    ) -> None:
        super().__init__()
        self.size = width // heads
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, groups) for _ in range(num_layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of token ids (batch, sequence)."""
        rates = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1]), rates).repeat(1, 2)
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden, angles.cos(), angles.sin())
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def build(
    width: int = 2048,
    num_layers: int = 24,
    heads: int = 16,
    groups: int = 4,
    words: int = 32_000,
) -> nn.Module:
    """Return the model; the scenario's table [model.arguments] says how large."""
    return Decoder(width, num_layers, heads, groups, words)
