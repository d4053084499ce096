"""What the decoders have in common: word embedding, block, output layer."""

from torch import Tensor, nn

from estimators.models.layers import (
    CrossEntropy,
    PositionEmbedding,
    Scale,
    SoftCap,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec


class WordEmbedding(nn.Module):
    """Word embedding, scaled, with positions or normalised where it is; dropout."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        learned = spec.position_embedding_type == "learned"
        rows, width = spec.max_position_embeddings, spec.hidden_size
        self.word_embeddings = VocabParallelEmbedding(spec.vocab_size, width)
        self.scale = Scale(width**0.5) if spec.scale_embeddings else nn.Identity()
        self.position_embeddings = PositionEmbedding(rows, width) if learned else None
        self.norm = build_norm(spec) if spec.embedding_layernorm else nn.Identity()
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the first hidden states of token ids (batch, sequence)."""
        hidden: Tensor = self.scale(self.word_embeddings(tokens))
        if self.position_embeddings is not None:
            hidden = self.position_embeddings(hidden)
        output: Tensor = self.dropout(self.norm(hidden))
        return output


class TransformerBlock(nn.Module):
    """A block of two branches, each normalised before or behind it, or both.

    Branches follow each other, or read the same hidden states.

    Parameters
    ----------
    spec
        The architecture.
    mixer
        Branch that lets tokens see each other, if there is one.
    mlp
        Branch that looks at each token by itself, if there is one.
    """

    def __init__(
        self, spec: TransformerSpec, mixer: nn.Module | None, mlp: nn.Module | None
    ) -> None:
        super().__init__()
        self.parallel = spec.parallel_residual
        self.shares_norm = spec.norm_placement == "shared" and mixer is not None
        self.input_norm = _norm(spec, mixer, "pre", "sandwich", "shared")
        self.self_attention = mixer
        self.post_attention_norm = _norm(spec, mixer, "post", "sandwich")
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_mlp_norm = _norm(spec, mlp, "pre", "sandwich")
        self.mlp = mlp
        self.post_mlp_norm = _norm(spec, mlp, "post", "sandwich")
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        entering, normed = hidden, hidden
        if self.self_attention is not None:
            normed = self.input_norm(entering)
            branch = self.post_attention_norm(self.self_attention(normed))
            hidden = entering + self.attention_dropout(branch)
        if self.mlp is not None:
            if not self.shares_norm:
                normed = self.pre_mlp_norm(entering if self.parallel else hidden)
            branch = self.post_mlp_norm(self.mlp(normed))
            hidden = hidden + self.mlp_dropout(branch)
        return hidden


def _norm(
    spec: TransformerSpec, branch: nn.Module | None, *placements: str
) -> nn.Module:
    """Return a norm of a branch, or nothing where norms are placed elsewhere."""
    if branch is None or spec.norm_placement not in placements:
        return nn.Identity()
    return build_norm(spec)


class FinalNorm(nn.Module):
    """The norm between the last block and the output layer."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.norm = build_norm(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        output: Tensor = self.norm(hidden)
        return output


class LanguageModelHead(nn.Module):
    """Output layer and loss of a decoder."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.output_layer = VocabParallelLinear(
            spec.hidden_size, spec.vocab_size, bias=False
        )
        cap = spec.final_logit_softcapping
        self.soft_cap = SoftCap(cap) if cap else nn.Identity()
        self.loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over all tokens."""
        logits = self.soft_cap(self.output_layer(hidden))
        loss: Tensor = self.loss(logits, labels)
        return loss
