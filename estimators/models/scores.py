"""What happens to attention scores between two products: masks, slopes, caps, sinks.

Scores have the shape (batch, heads, queries, keys). None of it is a product, and fused
kernels do all of it while the scores are in registers.

* A sliding window [1]_ hides what is ``w`` tokens back or more: a token sees itself and
  ``w - 1`` before it (Megatron's ``window_size = (w - 1, 0)``).
* ALiBi [2]_ subtracts a multiple of the distance, another one for each head.
* A soft cap [3]_ bends scores below a bound: ``c tanh(x / c)``.
* A sink [4]_ is one learned score for each head that takes part in the softmax, and
  stands for no token.

References
----------
.. [1] Beltagy et al., "Longformer", 2020, section 3.1; Jiang et al., "Mistral 7B",
   2023, section 2.
.. [2] Press et al., "Train Short, Test Long", ICLR 2022, section 3.
.. [3] Gemma Team, "Gemma 2", 2024, section 2: logit soft-capping.
.. [4] OpenAI, "gpt-oss-120b and gpt-oss-20b model card", 2025, section 2.3; Megatron
   Core's ``softmax_type = "learnable"``.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class ScoreRules(NamedTuple):
    """What an attention does to its scores."""

    causal: bool = True
    """Whether a token sees earlier tokens only."""

    window: int = 0
    """Tokens that a token sees, itself included; 0 for all of them."""

    has_slopes: bool = False
    """Whether scores fall with the distance (ALiBi)."""

    cap: float = 0.0
    """Bound that scores are bent below; 0 for none."""

    def applied(self, scores: Tensor) -> Tensor:
        """Return scores that are ready for the softmax.

        Parameters
        ----------
        scores
            Scaled products of queries and keys.
        """
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        if self.has_slopes:
            queries, keys = (
                torch.arange(size, device=scores.device) for size in scores.shape[-2:]
            )
            slopes = scores.new_tensor(alibi_slopes(scores.shape[1]))
            scores = scores - slopes[:, None, None] * (queries[:, None] - keys).abs()
        every = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        if self.causal:
            scores = scores.masked_fill(every.triu(1), float("-inf"))
        if self.window:
            scores = scores.masked_fill(every.tril(-self.window), float("-inf"))
        return scores


def alibi_slopes(num_heads: int) -> list[float]:
    """Return how fast the scores of each head fall with the distance.

    A geometric sequence from ``2^(-8 / n)`` for ``n`` heads, a power of two; others
    take every second slope of twice as many heads behind those of the power below.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * power, 2)]
    return slopes + between[: num_heads - power]


def softmax_with_sink(scores: Tensor, sink: Tensor) -> Tensor:
    """Return probabilities of the keys, where each head has one score of no key.

    Parameters
    ----------
    scores
        Ready scores.
    sink
        One score for each head.
    """
    column = sink[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, column), -1).softmax(-1)[..., :-1]
