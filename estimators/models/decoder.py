"""What the decoders have in common: word embedding, pre-LN block, output layer."""

from torch import Tensor, nn

from estimators.models.layers import (
    CrossEntropy,
    PositionEmbedding,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec


class WordEmbedding(nn.Module):
    """Word embedding, learned positions where there are any, dropout."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        learned = spec.position_embedding_type == "learned"
        rows, width = spec.max_position_embeddings, spec.hidden_size
        self.word_embeddings = VocabParallelEmbedding(spec.vocab_size, width)
        self.position_embeddings = PositionEmbedding(rows, width) if learned else None
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the first hidden states of token ids (batch, sequence)."""
        hidden: Tensor = self.word_embeddings(tokens)
        if self.position_embeddings is not None:
            hidden = self.position_embeddings(hidden)
        output: Tensor = self.dropout(hidden)
        return output


class TransformerBlock(nn.Module):
    """A block that normalises what enters its branches (pre-LN).

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
        self.input_norm = None if mixer is None else build_norm(spec)
        self.self_attention = mixer
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_mlp_norm = None if mlp is None else build_norm(spec)
        self.mlp = mlp
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        if self.self_attention is not None and self.input_norm is not None:
            branch = self.self_attention(self.input_norm(hidden))
            hidden = hidden + self.attention_dropout(branch)
        if self.mlp is not None and self.pre_mlp_norm is not None:
            branch = self.mlp(self.pre_mlp_norm(hidden))
            hidden = hidden + self.mlp_dropout(branch)
        return hidden


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
        self.loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over all tokens."""
        loss: Tensor = self.loss(self.output_layer(hidden), labels)
        return loss
