"""A vision transformer, spelled out."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from estimators.models.library import build_spec
from estimators.models.spec import TransformerSpec
from nestsim.scenario.architectures.sizes import (
    Attention,
    NumLayers,
    Probability,
    Vocabulary,
    Width,
)
from nestsim.scenario.base import Table


class VisionModel(Table):
    """A vision transformer with a classifier: LayerNorm, GELU, biases, no mask.

    A sequence is an image: its patches and the class token are what reports call
    tokens, and the global batch counts images.
    """

    family: Literal["vit"]
    """Family of the model."""

    num_layers: NumLayers = Field(examples=[12])
    """Transformer blocks of the model."""

    hidden_size: Width = Field(examples=[768])
    """Width of the hidden states."""

    num_attention_heads: Width = Field(examples=[12])
    """Heads of each attention layer."""

    image_size: Width = Field(examples=[224])
    """Height and width of an image in pixels."""

    patch_size: Width = Field(examples=[16])
    """Height and width of a patch in pixels, a divisor of `image_size`."""

    num_classes: Vocabulary = Field(examples=[1000])
    """Classes that images are told apart by."""

    ffn_hidden_size: Width | None = Field(None, examples=[3072])
    """Inner width of the feed-forward layer. Left out, four times `hidden_size`."""

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
        words = self.model_dump(exclude_none=True, exclude={"attention", "num_classes"})
        words |= {"vocab_size": self.num_classes}
        return build_spec({**words, "attention_implementation": self.attention})
