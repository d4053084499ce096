"""An encoder and a decoder, spelled out."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from nestsim.scenario.architectures.sizes import (
    Attention,
    NumLayers,
    Probability,
    SequenceLength,
    Vocabulary,
    Width,
)
from nestsim.scenario.base import Table


class EncoderDecoderModel(Table):
    """A T5 under Megatron's names: RMSNorm, relative positions, no biases.

    Encoder and decoder are one chain of blocks. Tokens in reports are the encoder's.
    """

    family: Literal["t5"]
    """Family of the model."""

    encoder_num_layers: NumLayers = Field(examples=[24])
    """Transformer blocks of the encoder."""

    decoder_num_layers: NumLayers | None = Field(None, examples=[24])
    """Transformer blocks of the decoder. Left out, as many as the encoder has."""

    hidden_size: Width = Field(examples=[1024])
    """Width of the hidden states."""

    num_attention_heads: Width = Field(examples=[16])
    """Heads of each attention layer."""

    vocab_size: Vocabulary = Field(examples=[32128])
    """Entries of the word embedding, which encoder and decoder share."""

    sequence_length: SequenceLength = Field(examples=[512])
    """Tokens of a training sequence that the encoder reads."""

    decoder_sequence_length: SequenceLength | None = Field(None, examples=[114])
    """Tokens of a training sequence that the decoder writes. Left out,
    `sequence_length`."""

    ffn_hidden_size: Width | None = Field(None, examples=[4096])
    """Inner width of the feed-forward layer. Left out, four times `hidden_size`."""

    kv_channels: Width | None = Field(None, examples=[64])
    """Width of one attention head. Left out, `hidden_size` over
    `num_attention_heads`."""

    gated_linear_unit: bool = Field(False, examples=[True])
    """Whether the feed-forward layer is a gated GELU, as in T5 1.1, rather than a
    ReLU."""

    tie_word_embeddings: bool | None = Field(None, examples=[True])
    """Whether the output layer shares the word embedding's weight. Left out, it does
    unless the feed-forward layer is gated."""

    hidden_dropout: Probability = Field(0.0, examples=[0.1])
    """Probability of dropout after the embedding, the attention and the feed-forward
    layer."""

    attention_dropout: Probability = Field(0.0, examples=[0.1])
    """Probability of dropout after the attention softmax."""

    attention: Attention = "flash"
    """How attention is computed: by one fused kernel ("flash"), or by two products with
    a softmax between them."""

    def build(self, folder: Path) -> TransformerSpec:  # noqa: ARG002  # one interface
        """Return the architecture."""
        gated = self.gated_linear_unit
        words = {
            "activation_func": "gelu" if gated else "relu",
            "tie_word_embeddings": not gated,
            "attention_implementation": self.attention,
        }
        given = self.model_dump(exclude_none=True, exclude={"attention"})
        return build_spec(words | given)
