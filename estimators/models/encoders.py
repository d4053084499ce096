"""Models with encoders: BERT, vision transformers, T5.

As in the published model and Hugging Face's ``BertForPreTraining``: norms follow the
residual sums, the head transforms before it projects to the vocabulary, and a pooler
feeds the next-sentence classifier. There is no final norm.

Vision transformers: patches of an image as tokens, a class token, one loss.

As published [2]_ and in torchvision and Hugging Face's ``ViTForImageClassification``:
pre-LN blocks without a causal mask, learned positions, a final norm, and a classifier
of the class token. Patches do not overlap: cutting them out is a product.

T5: an encoder, and a decoder whose blocks look at what the encoder made of its text.

One chain of blocks: those of the encoder, then those of the decoder. The first block
of the decoder ends the encoder with its norm and embeds the decoder's tokens; from
there on the encoder's result, called memory here, travels with the hidden states. As
published [3]_: RMSNorm before each branch, no biases, scores that are not scaled, and
one relative position bias each for encoder and decoder, which their first blocks learn
and make. On every pipeline stage Megatron Core makes it again
(``RelativePositionEmbedding``); other blocks than the first take it as given here.

References
----------
.. [1] Devlin et al., "BERT", 2019.
.. [2] Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.1.
.. [3] Raffel et al., "Exploring the Limits of Transfer Learning with a Unified
   Text-to-Text Transformer", 2020, section 2.1.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from estimators.models.attention import QKVParallelLinear, SelfAttention
from estimators.models.layers import (
    MLP,
    ColumnParallelLinear,
    CrossEntropy,
    PositionEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLinear,
    build_norm,
)
from estimators.models.limits import LONGEST_DISTANCE, NUM_BUCKETS, NUM_CHANNELS
from estimators.models.spec import (
    DECODER_BLOCK,
    ENCODER_BLOCK,
    FIRST_DECODER_BLOCK,
    FIRST_ENCODER_BLOCK,
    TransformerSpec,
)
from estimators.models.vocabulary import F, Tensor, nn, torch


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


class PatchProjection(nn.Conv2d):
    """Hidden states of patches, each of which is seen once."""

    def __init__(self, spec: TransformerSpec) -> None:
        size = spec.patch_size
        super().__init__(NUM_CHANNELS, spec.hidden_size, size, stride=size)

    def forward(self, images: Tensor) -> Tensor:
        """Return hidden states (batch, patches, hidden)."""
        return super().forward(images).flatten(2).transpose(1, 2)


class ClassTokenAndPositions(nn.Module):
    """A learned token in front, and learned vectors added to all."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        width = spec.hidden_size
        self.class_token = nn.Parameter(torch.zeros(width))
        self.position_embeddings = nn.Parameter(
            torch.zeros(spec.sequence_length, width)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """Return hidden states of one token more."""
        first = self.class_token.expand(patches.shape[0], 1, -1)
        return torch.cat((first, patches), 1) + self.position_embeddings


class VisionEmbedding(nn.Module):
    """From images to hidden states of their patches and of the class token."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.patch_projection = PatchProjection(spec)
        self.tokens = ClassTokenAndPositions(spec)
        self.dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Return the first hidden states of images (batch, colours, height, width)."""
        output: Tensor = self.dropout(self.tokens(self.patch_projection(images)))
        return output


class ClassificationHead(nn.Module):
    """Classifier of the class token, and its loss."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.classifier = nn.Linear(spec.hidden_size, spec.vocab_size)
        self.loss = CrossEntropy()

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over all images."""
        loss: Tensor = self.loss(self.classifier(hidden[:, 0]), labels)
        return loss


class RelativePositionBias(nn.Embedding):
    """What each head adds to a score for the distance of the two tokens."""

    def __init__(self, spec: TransformerSpec, *, causal: bool) -> None:
        super().__init__(NUM_BUCKETS, spec.num_attention_heads)
        self.causal = causal

    def forward(self, hidden: Tensor) -> Tensor:
        """Return biases (1, heads, sequence, sequence) for hidden states."""
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        buckets = self._buckets(positions[None] - positions[:, None])
        return super().forward(buckets).permute(2, 0, 1)[None]

    def _buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance: near ones apart, far ones by logarithm.

        A causal bias spends all buckets on earlier tokens, another one half of them.
        """
        count, offset = NUM_BUCKETS, torch.zeros_like(distance)
        if self.causal:
            distance = (-distance).clamp(min=0)
        else:
            count //= 2
            offset = (distance > 0) * count
            distance = distance.abs()
        exact = count // 2
        ratio = distance.clamp(min=1) / exact
        far = exact + (
            ratio.log() / math.log(LONGEST_DISTANCE / exact) * (count - exact)
        )
        far = far.clamp(max=count - 1).long()
        return offset + torch.where(distance < exact, distance, far)


class BiasedFlashAttention(nn.Module):
    """Attention by one fused kernel that reads a bias of scores, if there is one."""

    def __init__(self, spec: TransformerSpec, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.dropout = causal, spec.attention_dropout

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        if bias is not None and self.causal:
            later = torch.ones_like(bias, dtype=torch.bool).triu(1)
            bias = bias.masked_fill(later, float("-inf"))
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1.0,
        )


class UnmaskedFlashAttention(BiasedFlashAttention):
    """The same where every query sees every key."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec, causal=False)


class MaskedSoftmax(nn.Module):
    """Mask and softmax of scores that are not scaled: one fused kernel."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, scores: Tensor) -> Tensor:
        """Return probabilities over the last axis."""
        if self.causal:
            later = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(-1)


class BiasedPlainAttention(nn.Module):
    """Attention by two batched products, with a bias of scores if there is one."""

    def __init__(self, spec: TransformerSpec, *, causal: bool) -> None:
        super().__init__()
        self.softmax = MaskedSoftmax(causal=causal)
        self.dropout = nn.Dropout(spec.attention_dropout)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """Return the context: (batch, heads, sequence, head)."""
        scores = torch.matmul(query, key.transpose(-1, -2))
        if bias is not None:
            scores = scores + bias
        return torch.matmul(self.dropout(self.softmax(scores)), value)


class UnmaskedPlainAttention(BiasedPlainAttention):
    """The same where every query sees every key."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__(spec, causal=False)


def _core(spec: TransformerSpec, *, causal: bool) -> nn.Module:
    plain = spec.attention_implementation == "plain"
    if causal:
        masked = BiasedPlainAttention if plain else BiasedFlashAttention
        return masked(spec, causal=True)
    return (UnmaskedPlainAttention if plain else UnmaskedFlashAttention)(spec)


class BiasedSelfAttention(nn.Module):
    """Projection to heads, attention with a position bias, projection back."""

    def __init__(self, spec: TransformerSpec, *, causal: bool) -> None:
        super().__init__()
        self.linear_qkv = QKVParallelLinear(spec)
        self.core_attention = _core(spec, causal=causal)
        self.linear_proj = RowParallelLinear(
            spec.query_width, spec.hidden_size, bias=False
        )

    def forward(self, hidden: Tensor, position_bias: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query, key, value = self.linear_qkv(hidden)
        context = self.core_attention(query, key, value, position_bias)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


class CrossHeads(nn.Module):
    """Heads of queries, and of the keys and values that one product made."""

    def __init__(self, head_size: int) -> None:
        super().__init__()
        self.head_size = head_size

    def forward(
        self, queries: Tensor, keys_values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, values: (batch, heads, sequence, head)."""
        query, key, value = (
            flat.view(*flat.shape[:2], -1, self.head_size).transpose(1, 2)
            for flat in (queries, *keys_values.chunk(2, -1))
        )
        return query, key, value


class CrossAttention(nn.Module):
    """Attention of the decoder to the encoder's result."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        hidden, width = spec.hidden_size, spec.query_width
        self.linear_q = ColumnParallelLinear(hidden, width, bias=False)
        self.linear_kv = ColumnParallelLinear(hidden, 2 * width, bias=False)
        self.heads = CrossHeads(spec.kv_channels)
        self.core_attention = _core(spec, causal=False)
        self.linear_proj = RowParallelLinear(width, hidden, bias=False)

    def forward(self, hidden: Tensor, memory: Tensor) -> Tensor:
        """Return what the block adds to its hidden states."""
        query, key, value = self.heads(self.linear_q(hidden), self.linear_kv(memory))
        context = self.core_attention(query, key, value)
        output: Tensor = self.linear_proj(context.transpose(1, 2).flatten(2))
        return output


class EncoderBlock(nn.Module):
    """A pre-LN block whose tokens see each other."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.input_norm = build_norm(spec)
        self.self_attention = BiasedSelfAttention(spec, causal=False)
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_mlp_norm = build_norm(spec)
        self.mlp = MLP(spec)
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, hidden: Tensor, position_bias: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        branch = self.self_attention(self.input_norm(hidden), position_bias)
        hidden = hidden + self.attention_dropout(branch)
        branch = self.mlp(self.pre_mlp_norm(hidden))
        output: Tensor = hidden + self.mlp_dropout(branch)
        return output


class FirstEncoderBlock(nn.Module):
    """The block that makes the encoder's position bias."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.relative_position_bias = RelativePositionBias(spec, causal=False)
        self.block = EncoderBlock(spec)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden states of the same shape, and the position bias."""
        position_bias = self.relative_position_bias(hidden)
        return self.block(hidden, position_bias), position_bias


class DecoderBlock(nn.Module):
    """A pre-LN block with causal attention, and attention to the encoder's result."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.input_norm = build_norm(spec)
        self.self_attention = BiasedSelfAttention(spec, causal=True)
        self.attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_cross_attention_norm = build_norm(spec)
        self.cross_attention = CrossAttention(spec)
        self.cross_attention_dropout = nn.Dropout(spec.hidden_dropout)
        self.pre_mlp_norm = build_norm(spec)
        self.mlp = MLP(spec)
        self.mlp_dropout = nn.Dropout(spec.hidden_dropout)

    def forward(self, hidden: Tensor, memory: Tensor, position_bias: Tensor) -> Tensor:
        """Return hidden states of the same shape."""
        branch = self.self_attention(self.input_norm(hidden), position_bias)
        hidden = hidden + self.attention_dropout(branch)
        branch = self.cross_attention(self.pre_cross_attention_norm(hidden), memory)
        hidden = hidden + self.cross_attention_dropout(branch)
        branch = self.mlp(self.pre_mlp_norm(hidden))
        output: Tensor = hidden + self.mlp_dropout(branch)
        return output


class FirstDecoderBlock(nn.Module):
    """The end of the encoder, the decoder's embedding, and its first block.

    The embedding is the encoder's, copied to where the decoder begins.
    """

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.encoder_norm = build_norm(spec)
        self.encoder_dropout = nn.Dropout(spec.hidden_dropout)
        self.word_embeddings = VocabParallelEmbedding(spec.vocab_size, spec.hidden_size)
        self.embedding_dropout = nn.Dropout(spec.hidden_dropout)
        self.relative_position_bias = RelativePositionBias(spec, causal=True)
        self.block = DecoderBlock(spec)

    def forward(
        self, encoded: Tensor, decoder_tokens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the decoder's hidden states, the memory, and the position bias."""
        memory = self.encoder_dropout(self.encoder_norm(encoded))
        hidden = self.embedding_dropout(self.word_embeddings(decoder_tokens))
        position_bias = self.relative_position_bias(hidden)
        hidden = self.block(hidden, memory, position_bias)
        return hidden, memory, position_bias


_BLOCKS: Mapping[str, Callable[[TransformerSpec], nn.Module]] = MappingProxyType(
    {
        FIRST_ENCODER_BLOCK: FirstEncoderBlock,
        ENCODER_BLOCK: EncoderBlock,
        FIRST_DECODER_BLOCK: FirstDecoderBlock,
        DECODER_BLOCK: DecoderBlock,
    }
)


def build_t5_block(spec: TransformerSpec, kind: str) -> nn.Module:
    """Return a block of encoder or decoder."""
    return _BLOCKS[kind](spec)
