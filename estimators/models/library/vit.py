"""Vision transformers."""

from collections.abc import Mapping
from types import MappingProxyType

from estimators.models.library.published import PublishedModel
from estimators.models.spec import TransformerSpec


def _vit(
    num_layers: int, hidden_size: int, heads: int, patch_size: int
) -> TransformerSpec:
    """Return a ViT for images of 224 pixels and the 1,000 classes of ImageNet."""
    image_size = 224
    return TransformerSpec(
        family="vit",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        vocab_size=1000,
        sequence_length=(image_size // patch_size) ** 2 + 1,
        image_size=image_size,
        patch_size=patch_size,
        causal=False,
        tie_word_embeddings=False,
    )


_VIT = (
    "Dosovitskiy et al., An Image is Worth 16x16 Words, 2021, table 1, with the head "
    "of torchvision's models for ImageNet"
)

MODELS: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "vit-b-32": PublishedModel(_vit(12, 768, 12, 32), _VIT),
        "vit-b-16": PublishedModel(_vit(12, 768, 12, 16), _VIT),
        "vit-l-32": PublishedModel(_vit(24, 1024, 16, 32), _VIT),
        "vit-l-16": PublishedModel(_vit(24, 1024, 16, 16), _VIT),
        "vit-h-14": PublishedModel(_vit(32, 1280, 16, 14), _VIT),
    }
)
"""Name -> architecture and source."""
