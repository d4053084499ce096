"""Multi-token prediction: layers that predict tokens further ahead, and their losses.

Layer ``d`` (from 0) stands between the final norm and the head. It joins the hidden
states of the layer before it with the embedding of the token that comes ``d + 1``
later, each normalised, projects both to the model's width and passes them through a
block of its own [1]_. Word embedding and output layer are the model's. Hidden states of
the model and of each depth leave side by side, and the head finds a loss for each, as
in Megatron Core's ``MultiTokenPredictionLayer``: the last stage of a pipeline holds a
copy of the word embedding for them, whose gradients it adds up with the first stage.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2, equations 21
   to 25.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # its customary name

from estimators.models.layers import (
    CrossEntropy,
    SoftCap,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec

LOSS_SCALE = 0.1
"""Weight of the losses of all depths together; Megatron-LM's default of
``mtp_loss_scaling_factor``."""


class LaterTokenEmbedding(VocabParallelEmbedding):
    """The word embedding, of tokens that come later."""

    def __init__(self, spec: TransformerSpec, depth: int) -> None:
        super().__init__(spec.vocab_size, spec.hidden_size)
        self.ahead = depth + 1
        self.is_held_already = depth > 0 or spec.tie_word_embeddings
        """Whether another layer of the last stage holds the same weight."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return vectors of the tokens that come `ahead` later."""
        return super().forward(tokens.roll(-self.ahead, -1))


class Concatenation(nn.Module):
    """Put tensors side by side along one axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return both as one tensor."""
        return torch.cat((first, second), self.axis)


class MultiTokenPrediction(nn.Module):
    """One depth: two norms, a projection, a block, a norm."""

    def __init__(self, spec: TransformerSpec, block: nn.Module, depth: int) -> None:
        super().__init__()
        self.num_parts = depth + 1
        self.embedding = LaterTokenEmbedding(spec, depth)
        self.enorm = build_norm(spec)
        self.hnorm = build_norm(spec)
        self.join = Concatenation(-1)
        self.eh_proj = nn.Linear(2 * spec.hidden_size, spec.hidden_size, bias=False)
        self.transformer_layer = block
        self.final_norm = build_norm(spec)
        self.append = Concatenation(1)

    def forward(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return the hidden states that came, and those of this depth behind them."""
        last = self.num_parts - 1
        before = hidden.chunk(self.num_parts, 1)[last] if last else hidden
        joined = self.join(self.enorm(self.embedding(tokens)), self.hnorm(before))
        ahead = self.final_norm(self.transformer_layer(self.eh_proj(joined)))
        output: Tensor = self.append(hidden, ahead)
        return output


class LaterCrossEntropy(nn.Module):
    """Loss in fp32 over a vocabulary that may be split, of tokens that come later."""

    def __init__(self, ahead: int, scale: float) -> None:
        super().__init__()
        self.ahead, self.scale = ahead, scale

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss, scaled."""
        rows, later = logits.flatten(0, -2).float(), labels.roll(-self.ahead, -1)
        return F.cross_entropy(rows, later.flatten()) * self.scale


class MultiTokenHead(nn.Module):
    """Output layer of the model and of each depth, one loss after the other."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.num_parts = spec.mtp_num_layers + 1
        self.output_layer = VocabParallelLinear(
            spec.hidden_size, spec.vocab_size, bias=False
        )
        cap = spec.final_logit_softcapping
        self.soft_cap = SoftCap(cap) if cap else nn.Identity()
        self.loss = CrossEntropy()
        scale = LOSS_SCALE / spec.mtp_num_layers
        self.later_losses = nn.ModuleList(
            LaterCrossEntropy(ahead, scale) for ahead in range(1, self.num_parts)
        )

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the model's loss and those of all depths."""
        parts = hidden.chunk(self.num_parts, 1)
        logits = self.soft_cap(self.output_layer(parts[0]))
        total: Tensor = self.loss(logits, labels)
        for place, loss in enumerate(self.later_losses, 1):
            logits = self.soft_cap(self.output_layer(parts[place]))
            total = total + loss(logits, labels)
        return total
