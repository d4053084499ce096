"""A Llama in plain torch, written as people write it: nothing of the library."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # its customary name


class Norm(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.scale


def rotate(x, cos, sin):
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, width, heads, groups, *, written_out):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.wq = nn.Linear(width, heads * self.size, bias=False)
        self.wk = nn.Linear(width, groups * self.size, bias=False)
        self.wv = nn.Linear(width, groups * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, width, bias=False)
        self.written_out = written_out

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k = self.wk(x).view(b, t, self.groups, self.size).transpose(1, 2)
        v = self.wv(x).view(b, t, self.groups, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.written_out:
            if self.groups < self.heads:
                k = k.repeat_interleave(self.heads // self.groups, dim=1)
                v = v.repeat_interleave(self.heads // self.groups, dim=1)
            scores = q @ k.transpose(-2, -1) / self.size**0.5
            later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.groups < self.heads
            )
        return self.wo(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, heads, groups, inner, *, written_out):
        super().__init__()
        self.attention = Attention(width, heads, groups, written_out=written_out)
        self.feed_forward = FeedForward(width, inner)
        self.attention_norm, self.ffn_norm = Norm(width), Norm(width)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, width, layers, heads, groups, inner, words, *, written_out):
        super().__init__()
        self.size = width // heads
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Block(width, heads, groups, inner, written_out=written_out)
            for _ in range(layers)
        )
        self.norm = Norm(width)
        self.output = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        turns = 10000.0 ** (-torch.arange(0, self.size, 2) / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1]), turns)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.output(self.norm(x))


def build(
    width=64, layers=3, heads=8, groups=4, inner=192, words=512, written_out=False
):
    return Llama(width, layers, heads, groups, inner, words, written_out=written_out)
