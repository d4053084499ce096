"""A GPT in plain torch, after the fashion of small public ones."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its customary name


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(c, dim=2)
        q, k, v = (
            one.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for one in (q, k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.resid_dropout(self.c_proj(y))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, width, layers, heads, words, longest, dropout):
        super().__init__()
        self.longest = longest
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(words, width),
                "wpe": nn.Embedding(longest, width),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(Block(width, heads, dropout) for _ in range(layers)),
                "ln_f": nn.LayerNorm(width),
            }
        )
        self.lm_head = nn.Linear(width, words, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets=None):
        _, t = tokens.size()
        assert t <= self.longest, f"{t} tokens, at most {self.longest}"
        places = torch.arange(0, t, dtype=torch.long, device=tokens.device)
        x = self.transformer.wte(tokens) + self.transformer.wpe(places)
        x = self.transformer.drop(x)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.view(-1)
        )


def build(width=64, layers=3, heads=4, words=512, longest=128, dropout=0.1):
    return GPT(width, layers, heads, words, longest, dropout)
