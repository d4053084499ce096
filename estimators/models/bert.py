"""BERT for pre-training: post-LN blocks, masked tokens and next sentence.

As in the published model and Hugging Face's ``BertForPreTraining``: norms follow the
residual sums, the head transforms before it projects to the vocabulary, and a pooler
feeds the next-sentence classifier. There is no final norm.

References
----------
.. [1] Devlin et al., "BERT", 2019.
"""

from torch import Tensor, nn

from estimators.models.attention import SelfAttention
from estimators.models.layers import (
    MLP,
    CrossEntropy,
    PositionEmbedding,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.spec import TransformerSpec


class BertEmbedding(nn.Module):
    """Sum of word, position and token type embeddings, norm, dropout."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        rows, width = spec.max_position_embeddings, spec.hidden_size
        types = spec.num_token_types
        self.word_embeddings = VocabParallelEmbedding(spec.vocab_size, width)
        self.position_embeddings = PositionEmbedding(rows, width)
        self.token_type_embeddings = nn.Embedding(types, width) if types else None
        self.norm = build_norm(spec)
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, tokens: Tensor, token_types: Tensor) -> Tensor:
        """Return the first hidden states of ids (batch, sequence)."""
        hidden = self.position_embeddings(self.word_embeddings(tokens))
        if self.token_type_embeddings is not None:
            hidden = hidden + self.token_type_embeddings(token_types)
        output: Tensor = self.dropout(self.norm(hidden))
        return output


class BertBlock(nn.Module):
    """A block that normalises after each residual sum (post-LN)."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.self_attention = SelfAttention(spec)
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.attention_norm = build_norm(spec)
        self.mlp = MLP(spec)
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)
        self.mlp_norm = build_norm(spec)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        branch = self.attention_dropout(self.self_attention(hidden))
        hidden = self.attention_norm(hidden + branch)
        branch = self.mlp_dropout(self.mlp(hidden))
        output: Tensor = self.mlp_norm(hidden + branch)
        return output


class BertHead(nn.Module):
    """Masked-token head, pooler and next-sentence head, both losses."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width = spec.hidden_size
        self.transform = nn.Linear(width, width)
        self.activation = nn.GELU()
        self.norm = build_norm(spec)
        self.output_layer = VocabParallelLinear(width, spec.vocab_size)
        self.loss = CrossEntropy()
        self.pooler = nn.Linear(width, width) if spec.bert_binary_head else None
        self.pooler_activation = nn.Tanh()
        self.next_sentence = nn.Linear(width, 2) if spec.bert_binary_head else None
        self.next_sentence_loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor, is_next: Tensor) -> Tensor:
        """Return the sum of the mean losses."""
        logits = self.output_layer(self.norm(self.activation(self.transform(hidden))))
        loss: Tensor = self.loss(logits, labels)
        if self.pooler is not None and self.next_sentence is not None:
            pooled = self.pooler_activation(self.pooler(hidden[:, 0]))
            loss = loss + self.next_sentence_loss(self.next_sentence(pooled), is_next)
        return loss
