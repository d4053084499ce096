"""The table [model] of families whose architectures have settings of their own."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from estimators.models.library import build_spec
from estimators.models.limits import (
    NumLayers,
    Probability,
    SequenceLength,
    Vocabulary,
    Width,
)
from estimators.models.spec import TransformerSpec
from nestsim.scenario.base import Table

Attention = Literal["flash", "plain"]
"""How attention is computed."""


class Architecture(Table):
    """What all architectures that are spelled out say."""

    family: str
    """Family of the model."""

    hidden_size: Width = Field(examples=[4096])
    """Width of the hidden states."""

    num_attention_heads: Width = Field(examples=[32])
    """Query heads of each attention layer."""

    ffn_hidden_size: Width | None = Field(None, examples=[11008])
    """Inner width of the feed-forward layer. Left out, four times `hidden_size`."""

    hidden_dropout: Probability = Field(0.0, examples=[0.1])
    """Probability of dropout after the embedding, the attention and the feed-forward
    layer."""

    attention_dropout: Probability = Field(0.0, examples=[0.1])
    """Probability of dropout after the attention softmax."""

    attention: Attention = "flash"
    """How attention is computed: by one fused kernel ("flash"), or by two products with
    a softmax between them."""

    def words(self) -> dict[str, Any]:
        """Return what is given in the words of `build_spec`."""
        given = self.model_dump(exclude_none=True, exclude={"attention"})
        return {"attention_implementation": self.attention, **given}


class EncoderDecoderModel(Architecture):
    """A T5 under Megatron's names: RMSNorm, relative positions, no biases.

    Encoder and decoder are one chain of blocks. Tokens in reports are the encoder's.
    """

    family: Literal["t5"]
    """Family of the model."""

    encoder_num_layers: NumLayers = Field(examples=[24])
    """Transformer blocks of the encoder."""

    decoder_num_layers: NumLayers | None = Field(None, examples=[24])
    """Transformer blocks of the decoder. Left out, as many as the encoder has."""

    vocab_size: Vocabulary = Field(examples=[32128])
    """Entries of the word embedding, which encoder and decoder share."""

    sequence_length: SequenceLength = Field(examples=[512])
    """Tokens of a training sequence that the encoder reads."""

    decoder_sequence_length: SequenceLength | None = Field(None, examples=[114])
    """Tokens of a training sequence that the decoder writes. Left out,
    `sequence_length`."""

    kv_channels: Width | None = Field(None, examples=[64])
    """Width of one attention head. Left out, `hidden_size` over
    `num_attention_heads`."""

    gated_linear_unit: bool = Field(False, examples=[True])
    """Whether the feed-forward layer is a gated GELU, as in T5 1.1, rather than a
    ReLU."""

    tie_word_embeddings: bool | None = Field(None, examples=[True])
    """Whether the output layer shares the word embedding's weight. Left out, it does
    unless the feed-forward layer is gated."""

    def build(self, folder: Path) -> TransformerSpec:  # noqa: ARG002  # one interface
        """Return the architecture."""
        gated = self.gated_linear_unit
        usual = {
            "activation_func": "gelu" if gated else "relu",
            "tie_word_embeddings": not gated,
        }
        return build_spec(usual | self.words())


class VisionModel(Architecture):
    """A vision transformer with a classifier: LayerNorm, GELU, biases, no mask.

    A sequence is an image: its patches and the class token are what reports call
    tokens, and the global batch counts images.
    """

    family: Literal["vit"]
    """Family of the model."""

    num_layers: NumLayers = Field(examples=[12])
    """Transformer blocks of the model."""

    image_size: Width = Field(examples=[224])
    """Height and width of an image in pixels."""

    patch_size: Width = Field(examples=[16])
    """Height and width of a patch in pixels, a divisor of `image_size`."""

    num_classes: Vocabulary = Field(examples=[1000])
    """Classes that images are told apart by."""

    def build(self, folder: Path) -> TransformerSpec:  # noqa: ARG002  # one interface
        """Return the architecture."""
        words = self.words()
        return build_spec(words | {"vocab_size": words.pop("num_classes")})
